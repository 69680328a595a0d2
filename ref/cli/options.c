#include "cli/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "cli/cli.h"

/* Above every character, because getopt returns an unknown short option as its character. */
enum { FIRST = 256 };

static int is_option(const struct m3_cli_option *o) { return o->kind != M3_CLI_TEXT_ONLY && o->kind != M3_CLI_PROSE; }

/* The table as getopt reads it; its values are FIRST + the row. NULL: memory is short. */
static struct option *listed(const struct m3_cli_option *options)
{
    int rows = 0, count = 0;
    while (options[rows].name) rows++;
    struct option *all = calloc((size_t)rows + 1, sizeof *all);
    for (int i = 0; all && i < rows; i++)
        if (is_option(&options[i]))
            all[count++] =
                (struct option){ options[i].name, options[i].value ? required_argument : no_argument, NULL, FIRST + i };
    return all;
}

static int take(const struct m3_cli_command *command, const struct m3_cli_option *o, void *arguments,
                struct m3_cli_input *input, struct m3_error *error)
{
    char *at = (char *)arguments + o->at;
    char flag[64];
    snprintf(flag, sizeof flag, "--%s", o->name);
    switch (o->kind) {
    case M3_CLI_FLAG:
    case M3_CLI_HELP: *(int *)(void *)at = 1; return M3_OK;
    case M3_CLI_TEXT: *(const char **)(void *)at = optarg; return M3_OK;
    case M3_CLI_NUMBER: return m3_cli_number((int64_t *)(void *)at, flag, optarg, o->low, o->high, error);
    case M3_CLI_TAKE: return o->take(arguments, optarg, error);
    case M3_CLI_SHARED: return take(command, m3_cli_input_option(o->name), input, NULL, error);
    case M3_CLI_TEXT_ONLY:
    case M3_CLI_PROSE: break;
    }
    return M3_INTERNAL;
}

int m3_cli_options(const struct m3_cli_command *command, void *arguments, struct m3_cli_input *input, int argc,
                   char **argv, struct m3_error *error)
{
    struct option *all = listed(command->options);
    int option, status = all ? M3_OK : m3_fail_memory(error, "the command line", 0);
    optind = 0; /* argv is not the program's: start afresh */
    opterr = 0;
    while (!status && (option = getopt_long(argc, argv, ":", all, NULL)) != -1) {
        if (option < FIRST) {
            status = m3_cli_bad_option(option, argv, command->name, error);
            break;
        }
        const struct m3_cli_option *o = &command->options[option - FIRST];
        status = take(command, o, arguments, input, error);
        if (o->kind == M3_CLI_HELP) break;
    }
    free(all);
    return status;
}

/* A row, its text from the column on. */
static void print_row(FILE *out, const struct m3_cli_option *o, int column)
{
    int at =
        fprintf(out, "  %s%s%s%s", is_option(o) ? "--" : "", o->name, o->value ? " " : "", o->value ? o->value : "");
    const char *line = o->help;
    for (;; at = 0) {
        const int length = (int)strcspn(line, "\n");
        /* A placeholder of several lines brings its own indentation. */
        const int gap = strncmp(line, "{readings}", 10) == 0 ? 0 : at < column ? column - at : 2;
        fprintf(out, "%*s%.*s\n", length ? gap : 0, "", length, line);
        if (!line[length]) return;
        line += length + 1;
    }
}

int m3_cli_print_help(const struct m3_cli_command *command, struct m3_error *error)
{
    struct m3_memory_stream memory = { 0 };
    FILE *out = m3_memory_open(&memory);
    if (out) fputs(command->about, out);
    for (const struct m3_cli_option *o = command->options; out && o->name; o++)
        if (o->kind == M3_CLI_PROSE) fputs(o->help, out);
        else if (o->help) print_row(out, o, command->column);
    if (out) fputs(command->end, out);
    char *text = m3_memory_close(&memory);
    const int status = text ? m3_cli_help(text, error) : m3_fail_memory(error, "the help", 0);
    free(text);
    return status;
}
