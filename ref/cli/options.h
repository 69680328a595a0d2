/* The options of a command, stated once: their names, what they set, and what the help says of them. The command line
 * is read, and the help printed, from that table. Shells complete from the page ref/cli/README.md, which a test compares
 * with the help. */
#ifndef M3_CLI_OPTIONS_H
#define M3_CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum m3_cli_kind {
    M3_CLI_TEXT_ONLY, /* a row of the help: the name of a file, another form of an option */
    M3_CLI_PROSE, /* a paragraph of the help */
    M3_CLI_FLAG, /* int := 1 */
    M3_CLI_TEXT, /* const char * := the value */
    M3_CLI_NUMBER, /* int64_t := the value, from low to high */
    M3_CLI_TAKE, /* take(arguments, value) */
    M3_CLI_SHARED, /* an option of struct m3_cli_input */
    M3_CLI_HELP /* int := 1, and what follows is not read */
};

struct m3_cli_option {
    enum m3_cli_kind kind;
    const char *name; /* "ids"; of M3_CLI_TEXT_ONLY as it is printed: "MODEL" */
    const char *value; /* "1,2,3"; NULL: it takes none */
    size_t at; /* in the arguments */
    int64_t low, high;
    int (*take)(void *arguments, const char *value, struct m3_error *error);
    const char *help; /* lines; NULL: another row speaks of it */
};

/* Rows of a table, for fields of M3_CLI_ARGUMENTS, which the command defines. A field of another type does not compile. */
#define M3_CLI_AT(type, field)                                                                                         \
    (offsetof(M3_CLI_ARGUMENTS, field) + 0 * sizeof(&((M3_CLI_ARGUMENTS *)0)->field == (type *)0))
#define M3_CLI_ROW(form, text) { .kind = M3_CLI_TEXT_ONLY, .name = form, .help = text }
#define M3_CLI_PARAGRAPH(text) { .kind = M3_CLI_PROSE, .name = "", .help = text }
#define M3_CLI_FLAG_OF(option, field, text)                                                                            \
    { .kind = M3_CLI_FLAG, .name = option, .at = M3_CLI_AT(int, field), .help = text }
#define M3_CLI_TEXT_OF(option, form, field, text)                                                                      \
    { .kind = M3_CLI_TEXT, .name = option, .value = form, .at = M3_CLI_AT(const char *, field), .help = text }
#define M3_CLI_NUMBER_OF(option, form, field, least, most, text)                                                       \
    { .kind = M3_CLI_NUMBER,                                                                                           \
      .name = option,                                                                                                  \
      .value = form,                                                                                                   \
      .at = M3_CLI_AT(int64_t, field),                                                                                 \
      .low = least,                                                                                                    \
      .high = most,                                                                                                    \
      .help = text }
#define M3_CLI_TAKEN(option, form, function, text)                                                                     \
    { .kind = M3_CLI_TAKE, .name = option, .value = form, .take = function, .help = text }
#define M3_CLI_SHARED_OF(option, form, text) { .kind = M3_CLI_SHARED, .name = option, .value = form, .help = text }
#define M3_CLI_HELP_OF(field)                                                                                          \
    { .kind = M3_CLI_HELP, .name = "help", .at = M3_CLI_AT(int, field), .help = "print this text" }
#define M3_CLI_END { .name = NULL }

struct m3_cli_input;

struct m3_cli_command {
    const char *name;
    const char *about; /* usage and purpose, as m3_cli_help prints it */
    const struct m3_cli_option *options;
    int column; /* where the help begins to say what an option does */
    const char *end; /* after the options: exit statuses */
};

/* Reads the options of argv into *arguments, shared ones into *input, which m3_cli_input_begin has prepared (NULL: the
 * command has none), up to the first error or --help. optind is then that of the first name. M3_USAGE, M3_INTERNAL. */
int m3_cli_options(const struct m3_cli_command *command, void *arguments, struct m3_cli_input *input, int argc,
                   char **argv, struct m3_error *error);
/* Prints the help. M3_INTERNAL, M3_IO. */
int m3_cli_print_help(const struct m3_cli_command *command, struct m3_error *error);

#endif
