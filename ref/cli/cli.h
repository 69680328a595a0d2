/* The commands: one file each. argv[0] is the command's name; the result is the exit status. */
#ifndef M3_CLI_CLI_H
#define M3_CLI_CLI_H

#include <stdint.h>

#include "base/context.h"
#include "base/status.h"

int m3_cli_blame(int argc, char **argv);
int m3_cli_bench(int argc, char **argv);
int m3_cli_compare(int argc, char **argv);
int m3_cli_envelope(int argc, char **argv);
int m3_cli_estimate(int argc, char **argv);
int m3_cli_generate(int argc, char **argv);
int m3_cli_inspect(int argc, char **argv);
int m3_cli_run(int argc, char **argv);
int m3_cli_synth(int argc, char **argv);

/* What the commands share (cli/common.c). */

/* Prints `help`, with the names of the built-in profiles for "{profiles}". M3_IO if it cannot be written. */
int m3_cli_help(const char *help, struct m3_error *error);
/* The finding for what getopt_long returned besides an option of the command. */
int m3_cli_bad_option(int option, char **argv, const char *command, struct m3_error *error);
/* A whole number in [low, high] from a flag's value. */
int m3_cli_number(int64_t *number, const char *flag, const char *text, int64_t low, int64_t high,
                  struct m3_error *error);
/* Prints the notes, then the lines of the error, frees both, and returns `status`. */
int m3_cli_end(int status, struct m3_error *notes, struct m3_error *error);
/* What a map had to say (oracle/map.h) is to stand in the report. */
void m3_cli_add_notes(struct m3_error *report, const struct m3_error *notes);
/* Anonymous memory now; 0 where the system does not tell. Pages of mapped model files are not in it. */
int64_t m3_cli_anonymous_bytes(void);
/* The progress line of a pass, for struct m3_request; nothing in a pipe. */
struct m3_cli_watch {
    int64_t anonymous;          /* largest memory seen between layers */
    int terminal;
};
void m3_cli_progress(void *watch, const char *part, int64_t layer, int64_t layers);
/* What a pass is asked, by the options that commands share: a case file, or ids and pictures; and how it is run. */
struct m3_case;
struct m3_config;
struct m3_engine;
struct m3_semantics;
enum { M3_CLI_MOST_SETS = 64 };
/* --ops LIB[,WORDS] (cli/ops.c): a file, "cuda" for the library that `make cuda` builds, or "plain". */
struct m3_plugin;
struct m3_cli_ops {
    const char *name;                           /* as given; NULL: the default ones */
    char path[4096];                            /* of the library, once it is open */
    struct m3_plugin *plugin;
};
int m3_cli_ops_plain(const struct m3_cli_ops *ops);     /* are the plain definitions asked for? */
int m3_cli_ops_open(struct m3_cli_ops *ops, const struct m3_engine *engine, struct m3_error *error);
void m3_cli_ops_close(struct m3_cli_ops *ops);
struct m3_cli_input {
    const char *case_path, *ids;
    const char **images, **videos;              /* files, folders: room for argc each */
    int64_t image_count, video_count;
    int allow_long;                             /* positions beyond max_position_embeddings */
    int quiet;                                  /* no line for each picture */
    const struct m3_engine *engine;
    enum m3_linear linear;
    int64_t threads;
    struct m3_cli_ops ops;
    const char *set[M3_CLI_MOST_SETS];          /* FIELD=VALUE */
    int sets;
};
/* The values that getopt_long gives for those options. */
/* clang-format off */
enum {
    M3_CLI_CASE = 512, M3_CLI_IDS, M3_CLI_IMAGE, M3_CLI_VIDEO, M3_CLI_ALLOW_LONG, M3_CLI_PRECISION, M3_CLI_LINEAR,
    M3_CLI_THREADS, M3_CLI_SET, M3_CLI_OPS
};
/* clang-format on */
/* Takes an option of the command, whose value is optarg; -1 if `option` is none. */
typedef int (*m3_cli_take)(void *arguments, int option, struct m3_error *error);
struct option;
/* Reads all options, those above into *in, the others by `take`, up to the first error or until *help is set. */
int m3_cli_input_parse(struct m3_cli_input *in, int argc, char **argv, const struct option *options, m3_cli_take take,
                       void *arguments, const int *help, struct m3_error *error);
/* The one name that has to be left, and a case. */
int m3_cli_input_model(const char **model, struct m3_cli_input *in, int argc, char **argv, struct m3_error *error);
/* The config's reading of the model with every --set. */
int m3_cli_input_semantics(struct m3_semantics *semantics, const struct m3_cli_input *in,
                           const struct m3_config *config, struct m3_error *error);
/* Checks what stands together, once all options are taken. */
int m3_cli_input_check(struct m3_cli_input *in, const char *command, struct m3_error *error);
/* Reads and checks it against the model, after p0 cached places, and prints a line for each picture. */
int m3_cli_input_read(struct m3_case *c, const struct m3_cli_input *in, const struct m3_config *config, int64_t p0,
                      struct m3_error *error);
void m3_cli_input_end(struct m3_cli_input *in);

/* "1,2,3" of ids below V into *ids, to be freed. */
int m3_cli_ids(int32_t **ids, int64_t *count, const char *flag, const char *text, int64_t V, struct m3_error *error);

/* What estimate prints (cli/estimate_print.c): the model once, then each combination; more than one in a line each. */
struct m3_estimate;
struct m3_mark;
struct json_t;
struct m3_cli_marks {
    const struct m3_mark *marks;    /* figures that documents print otherwise; their lines name the errata */
    int count;
};
void m3_cli_estimate_model(const struct m3_estimate *e, const char *path, const struct m3_cli_marks *marks);
void m3_cli_estimate_detail(const struct m3_estimate *e, const struct m3_cli_marks *marks);
void m3_cli_estimate_line(const struct m3_estimate *e, int first);
void m3_cli_estimate_csv(const struct json_t *summary, int first);     /* a header before the first */

/* What documents print of the model, and otherwise than an estimate has it (cli/estimate_documents.c). */
int m3_cli_estimate_documents(const struct m3_estimate *e, struct m3_error *error);
void m3_cli_estimate_errata(const struct m3_cli_marks *marks);

/* Whole command line as one string of ASCII, other characters as '?', to be freed; NULL if memory is short. */
char *m3_cli_line(int argc, char **argv);

#endif
