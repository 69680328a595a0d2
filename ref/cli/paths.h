/* Every path that a command reads and writes: no output may take the place of an input, or of another output.
 *
 * Files are one if device and inode are, whatever they are called; those that do not exist yet if folder and name are.
 * A command names its outputs, then its inputs, before it opens an output. What is standard output, if it is a file, is
 * an output too. An input that is named before an output may be the same file. */
#ifndef M3_CLI_PATHS_H
#define M3_CLI_PATHS_H

#include <sys/stat.h>

#include "base/status.h"

enum { M3_CLI_MOST_OUTPUTS = 4 };

struct m3_cli_output {
    const char *option, *path, *name; /* name: what follows the folder */
    struct stat file, folder;
    int has_file, has_folder;
};

struct m3_cli_paths {
    struct m3_cli_output outputs[M3_CLI_MOST_OUTPUTS];
    int count;
    int status; /* M3_USAGE from the first two that are one; `error` has the line */
    struct m3_error *error;
};

struct m3_checkpoint;
struct m3_cli_input;

struct m3_cli_paths m3_cli_paths(struct m3_error *error);
/* A path that is NULL is none. */
void m3_cli_writes(struct m3_cli_paths *paths, const char *option, const char *path);
void m3_cli_reads(struct m3_cli_paths *paths, const char *option, const char *path);
/* A profile or a map: a file, or built in. */
void m3_cli_reads_named(struct m3_cli_paths *paths, const char *option, const char *name);
/* A model directory: its weight files, unless `files` is NULL, and what a release has beside them, present or not. */
void m3_cli_reads_model(struct m3_cli_paths *paths, const char *folder, const struct m3_checkpoint *files);
/* The case, or pictures and frames of videos; the plug-in. */
void m3_cli_reads_input(struct m3_cli_paths *paths, const struct m3_cli_input *in);

#endif
