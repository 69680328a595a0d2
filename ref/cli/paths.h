/* The paths that a command writes and reads: no output may replace an input or another output, and that is said before any
 * work is done.
 *
 * What is open already is noted (io/reading.h). A command names its outputs, and then the inputs that it opens later, or
 * for which a message is to name the option. Standard output, if it is a file, is an output too. */
#ifndef M3_CLI_PATHS_H
#define M3_CLI_PATHS_H

#include <sys/stat.h>

#include "base/status.h"

enum { M3_CLI_MOST_OUTPUTS = 4 };

struct m3_cli_output {
    const char *option, *path, *name; /* name: the part after the folder */
    struct stat file, folder;
    int has_file, has_folder;
};

struct m3_cli_paths {
    struct m3_cli_output outputs[M3_CLI_MOST_OUTPUTS];
    int count;
    int status; /* M3_USAGE from the first two equal files on; `error` has the line */
    struct m3_error *error;
};

struct m3_cli_input;

struct m3_cli_paths m3_cli_paths(struct m3_error *error);
/* A NULL path is ignored. */
void m3_cli_writes(struct m3_cli_paths *paths, const char *option, const char *path);
void m3_cli_reads(struct m3_cli_paths *paths, const char *option, const char *path);
/* Names a profile or a map: a file, or built in. */
void m3_cli_reads_named(struct m3_cli_paths *paths, const char *option, const char *name);
/* The same for --profile: words may follow the name. */
void m3_cli_reads_profile(struct m3_cli_paths *paths, const char *profile);
/* Names the case, or pictures and frames of videos; and the plug-in. */
void m3_cli_reads_input(struct m3_cli_paths *paths, const struct m3_cli_input *in);

/* The folder of --resume is not for outputs, which have been named. NULL is ignored. */
void m3_cli_keeps(struct m3_cli_paths *paths, const char *folder);

/* M3_USAGE if an output would replace something that is read. */
int m3_cli_paths_end(struct m3_cli_paths *paths);

#endif
