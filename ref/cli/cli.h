/* The commands, each in its own file. argv[0] is the command's name; the result is the exit status. */
#ifndef M3_CLI_CLI_H
#define M3_CLI_CLI_H

#include <stdint.h>

#include "base/context.h"
#include "base/progress.h"
#include "base/status.h"

int m3_cli_blame(int argc, char **argv);
int m3_cli_bench(int argc, char **argv);
int m3_cli_check(int argc, char **argv);
int m3_cli_compare(int argc, char **argv);
int m3_cli_envelope(int argc, char **argv);
int m3_cli_estimate(int argc, char **argv);
int m3_cli_explain(int argc, char **argv);
int m3_cli_generate(int argc, char **argv);
int m3_cli_grad(int argc, char **argv);
int m3_cli_inspect(int argc, char **argv);
int m3_cli_mistakes(int argc, char **argv);
int m3_cli_op(int argc, char **argv);
int m3_cli_picture(int argc, char **argv);
int m3_cli_prompt(int argc, char **argv);
int m3_cli_run(int argc, char **argv);
int m3_cli_synth(int argc, char **argv);

/* Prints what this program is and computes with (cli/version.c). Returns M3_OK. */
int m3_cli_version(void);

/* Takes --max-memory out of the command line and limits the process (cli/memory.c). The program has to end by _exit if
 * this fails, because the BLAS library may wait for memory for ever. M3_USAGE, M3_INTERNAL. */
int m3_cli_memory(int *argc, char **argv, struct m3_error *error);

/* To be called first: threads of this process wait without spinning, unless the environment says how they wait. For that
 * it may start the program again, in the same process (cli/start.c). */
void m3_cli_start(char **argv);

/* Functions shared by the commands (cli/common.c). */

/* Prints `help`, with the usual profiles for "{profiles}", an example of words for "{words}", the names of "{maps}", the
 * fields of "{readings}", and what every command takes before its exit statuses. M3_IO if writing fails. */
int m3_cli_help(const char *help, struct m3_error *error);
/* Do the arguments of a command say --profile help? Prints all built-in profiles and words, a line each. */
int m3_cli_asks_for_profiles(int argc, char **argv);
int m3_cli_list_profiles(struct m3_error *error);
/* The same of --map help and the built-in maps. */
int m3_cli_asks_for_maps(int argc, char **argv);
int m3_cli_list_maps(struct m3_error *error);
/* Reports a value of getopt_long that is not an option of the command. */
int m3_cli_bad_option(int option, char **argv, const char *command, struct m3_error *error);
/* Reads a whole number in [low, high] from a flag's value. */
int m3_cli_number(int64_t *number, const char *flag, const char *text, int64_t low, int64_t high,
                  struct m3_error *error);
/* Reads a real number in [low, high], or in (low, high] if `open`, from a flag's value; NaN is rejected. */
int m3_cli_real(double *number, const char *flag, const char *text, double low, double high, int open,
                struct m3_error *error);
/* Reads A:B with 0 <= A < B, the value of --layers. */
int m3_cli_layers(int64_t *first, int64_t *end, const char *text, struct m3_error *error);
/* Prints the notes, and frees them: before a verdict, which is the last line. M3_INTERNAL if memory was short for one.
 */
int m3_cli_print_notes(struct m3_error *notes, struct m3_error *error);
/* Prints the notes, then the lines of the error, frees both, and returns `status`. */
int m3_cli_end(int status, struct m3_error *notes, struct m3_error *error);
/* The current anonymous memory in bytes, without pages of mapped model files; 0 if the system does not report it. */
int64_t m3_cli_anonymous_bytes(void);
/* The line of long work (cli/progress.c): on a terminal, or, where --progress asks for it, once a minute in a log. */
struct m3_cli_watch {
    int64_t anonymous;          /* largest memory seen between layers */
    int terminal, logs;         /* where the line goes */
    int64_t end_layer;          /* of the text layers that run; 0: all */
    char what[24];              /* the line is about, */
    int64_t done, first;        /* the part that has begun, and with which this began, */
    double began, entered;      /* when this and its last part began, */
    int64_t read_before;        /* and what had been read before */
    double told;                /* when the last line was written */
    int width;                  /* of the line */
};
void m3_cli_watch_begin(struct m3_cli_watch *watch, int logs);
struct m3_progress m3_cli_watched(struct m3_cli_watch *watch);
/* Erases the line. */
void m3_cli_watch_end(const struct m3_cli_watch *watch);
/* The options for a pass that commands share: a case file, or ids and pictures; and how the pass is run. */
struct m3_batch;
struct m3_case;
struct m3_config;
struct m3_engine;
struct m3_semantics;
enum { M3_CLI_MOST_SETS = 64 };
/* --ops LIB[,WORDS] (cli/ops.c): a file, "cuda" for the library that `make cuda` builds, or "plain". A file is code of
 * others: it runs in a child process, with a guard around each call (watch/). */
struct m3_plugin;
struct m3_guard;
struct m3_replacement;
struct m3_watch;
struct m3_watch_record;
enum { M3_CLI_TIMEOUT = 600 };                  /* the default of --timeout */
struct m3_cli_ops {
    const char *name;                           /* as given; NULL: the default operators */
    int64_t timeout;                            /* seconds for one call of a plug-in's operator; 0: the default */
    char path[4096];                            /* of the library, after it is found */
    const char *words;                          /* for the library, after it is found */
    struct m3_plugin *plugin;
    struct m3_watch_record *record;             /* NULL: the process is not watched, and there is no guard */
    struct m3_guard *guard;
    int is_timed;                               /* calls of operators are timed, not guarded */
    int guard_all;                              /* --ops-guard: the library of `make cuda` is code of others too */
};
/* `path` [room] := a library that is only opened if it is needed: in the program's folder, where make puts it, or in
 * ../lib, where make install puts it. M3_UNAVAILABLE; `what` needs it, `target` builds it. */
int m3_cli_library(char *path, size_t room, const char *library, const char *what, const char *target,
                   struct m3_error *error);
int m3_cli_ops_find(struct m3_cli_ops *ops, struct m3_error *error);    /* `name` is not NULL, nor that of plain */
int m3_cli_ops_plain(const struct m3_cli_ops *ops);     /* are the plain definitions requested? */
int m3_cli_ops_foreign(const struct m3_cli_ops *ops);   /* is it code of others? */
int m3_cli_ops_open(struct m3_cli_ops *ops, const struct m3_engine *engine, struct m3_error *error);
void m3_cli_ops_close(struct m3_cli_ops *ops);
const struct m3_replacement *m3_cli_ops_replacement(const struct m3_cli_ops *ops);
/* Opens a watch with the options' time limit; its record becomes that of *ops. */
int m3_cli_ops_watch(struct m3_watch *watch, struct m3_cli_ops *ops, struct m3_error *error);
/* Runs body(self), the rest of a command with its messages, and returns its exit status: in a watched child if *ops
 * names a file. What ends the child is printed, with M3_INTERNAL. */
int m3_cli_ops_run(struct m3_cli_ops *ops, int (*body)(void *self), void *self);
struct m3_cli_input {
    const char *case_path, *ids, *prompt, *chat;
    char *text;                                 /* that `ids` points to, if not to the command line; NULL: it does */
    const char *ids_path, *ids_name;            /* the file that the ids come from, or NULL; for messages */
    const char **images, **videos;              /* files, folders: room for argc of each */
    int64_t image_count, video_count;
    int allow_long;                             /* allow positions beyond max_position_embeddings */
    int quiet;                                  /* print no line for each picture */
    int progress;                               /* --progress: a line a minute where there is no terminal */
    const struct m3_engine *engine;
    enum m3_linear linear;
    int64_t threads;
    struct m3_cli_ops ops;
    char *set[M3_CLI_MOST_SETS];                /* FIELD=VALUE, one each */
    int sets;
};
/* Sets the defaults, with room for the options of argc words. M3_INTERNAL; m3_cli_input_end in any case. */
int m3_cli_input_begin(struct m3_cli_input *in, int argc, struct m3_error *error);
/* The row of a shared option (cli/options.h); NULL: there is none. */
struct m3_cli_option;
const struct m3_cli_option *m3_cli_input_option(const char *name);
/* Checks that one name is left, the model's, and that there is a case. */
int m3_cli_input_model(const char **model, struct m3_cli_input *in, int argc, char **argv, struct m3_error *error);
/* The config's reading of the model with every --set. */
int m3_cli_input_semantics(struct m3_semantics *semantics, const struct m3_cli_input *in,
                           const struct m3_config *config, struct m3_error *error);
/* Checks combinations of options, after all have been read, and reads ids that are not on the command line. */
int m3_cli_input_check(struct m3_cli_input *in, const char *model, const char *command, struct m3_error *error);
/* Reads the case and checks it against the model, after p0 cached places, and prints a line for each picture. */
int m3_cli_input_read(struct m3_case *c, const struct m3_cli_input *in, const struct m3_config *config, int64_t p0,
                      struct m3_error *error);
/* The same for a case of one sequence or of several, whose blocks are anchored as the reading says. */
int m3_cli_input_read_batch(struct m3_batch *batch, const struct m3_cli_input *in, const struct m3_config *config,
                            const struct m3_semantics *semantics, int64_t p0, struct m3_error *error);
void m3_cli_input_end(struct m3_cli_input *in);

/* Reads "1,2,3", ids below V, into *ids, which the caller frees. */
int m3_cli_ids(int32_t **ids, int64_t *count, const char *flag, const char *text, int64_t V, struct m3_error *error);

/* The rate of an item of `m3ref bench`, "read" or "sgemm", in bytes or operations per second: a limit of the machine. */
int m3_cli_bench_rate(double *rate, const char *name, int64_t threads, int64_t runs, struct m3_error *error);

/* The whole command line as one string of ASCII, other characters as '?', to be freed; NULL if memory is short. */
char *m3_cli_line(int argc, char **argv);
/* The same as a command that a shell reads as these words, whatever bytes they hold. M3_INTERNAL. */
int m3_cli_shell_line(char **line, int argc, char **argv, struct m3_error *error);

#endif
