#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "cli/cli.h"
#include "io/json.h"
#include "io/mapped.h"
#include "model/semantics.h"
#include "oracle/error/profile.h"
#include "oracle/map/map.h"

/* "selection=group|shared|union ..": what --set takes, in lines below an option's text. */
static void list_readings(char *text, size_t size)
{
    enum { INDENT = 25, WIDTH = 118 };
    size_t used = 0, column = WIDTH;
    const struct m3_field *field;
    for (int i = 0; (field = m3_semantics_at(i)) != NULL && used + WIDTH < size; i++) {
        char choices[M3_FIELD_CHOICES];
        m3_field_choices(choices, field);
        const size_t length = strlen(field->name) + 1 + strlen(choices);
        if (column + 1 + length > WIDTH) {
            used += (size_t)snprintf(text + used, size - used, "%s%*s", used ? "\n" : "", INDENT - 1, "");
            column = INDENT - 1;
        }
        used += (size_t)snprintf(text + used, size - used, " %s=%s", field->name, choices);
        column += 1 + length;
    }
}

int m3_cli_help(const char *help, struct m3_error *error)
{
    char maps[256], readings[2048];
    const char *const usual[][2] = {
        { "{profiles}", "fp32, bf16, fp16, fp8, another name" },
        { "{words}", "bf16+tp8 for eight tensor-parallel ranks. `--profile help` lists all names and words" },
        { "{maps}", maps },
        { "{readings}", readings },
    };
    const char *const status = strstr(help, "\nExit status:");
    m3_map_names(maps, sizeof maps);
    list_readings(readings, sizeof readings);
    const size_t count = sizeof usual / sizeof *usual;
    for (const char *at = help; *at;) {
        size_t i = 0;
        while (i < count && strncmp(at, usual[i][0], strlen(usual[i][0])) != 0) i++;
        if (at == status)
            printf(
                "\nWith --max-memory SIZE, such as 512M or 8G, every command refuses to allocate more. Mapped files do "
                "not\ncount. Without --max-memory, only .gz files and pictures are checked, and refused if they do not "
                "fit into\nmemory.\n");
        if (i < count) {
            printf("%s", usual[i][1]);
            at += strlen(usual[i][0]);
        } else putchar(*at++);
    }
    if (!ferror(stdout) && fflush(stdout) == 0) return M3_OK;
    return m3_fail(error, M3_IO, "standard output: cannot be written");
}

/* Do the arguments say OPTION help, or OPTION=help? */
static int asks_for(const char *option, int argc, char **argv)
{
    const size_t length = strlen(option);
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], option, length) != 0) continue;
        if (strcmp(argv[i] + length, "=help") == 0) return 1;
        if (argv[i][length] == '\0' && i + 1 < argc && strcmp(argv[i + 1], "help") == 0) return 1;
    }
    return 0;
}

int m3_cli_asks_for_profiles(int argc, char **argv) { return asks_for("--profile", argc, argv); }
int m3_cli_asks_for_maps(int argc, char **argv) { return asks_for("--map", argc, argv); }

static void print_profile(void *self, int is_word, const char *name, const char *what)
{
    int *last = self;
    if (is_word != *last)
        printf("%s", is_word
                         ? "\nWords, which may follow a profile's name (bf16+tp8), and what each allows in addition:\n"
                         : "Profiles, and what each allows a program to round (SPEC 7.3):\n");
    *last = is_word;
    printf("  %-20s  %s\n", name, what ? what : "");
}

int m3_cli_list_profiles(struct m3_error *error)
{
    int last = -1;
    int status = m3_profile_list(print_profile, &last);
    if (status) return m3_fail_memory(error, "the profiles", 0);
    printf(
        "\nA profile may also be a JSON file, with a base: ref/oracle/REFERENCE.md, section 7.3. The built-in profiles are\n"
        "in ref/oracle/error/profiles/; each file names the source of its roundings.\n");
    return fflush(stdout) == 0 && !ferror(stdout) ? M3_OK : m3_fail(error, M3_IO, "standard output: cannot be written");
}

static void print_map(void *self, const char *name, const char *versions)
{
    (void)self;
    printf("  %-14s  %s\n", name, versions);
}

int m3_cli_list_maps(struct m3_error *error)
{
    printf("Maps of names, and the versions that each was tried with (SPEC 7.11):\n");
    if (m3_map_list(print_map, NULL)) return m3_fail_memory(error, "the maps", 0);
    printf("\nA map may also be a JSON file: ref/oracle/REFERENCE.md, section 7.11. The built-in maps are in "
           "ref/oracle/map/maps/.\n");
    return fflush(stdout) == 0 && !ferror(stdout) ? M3_OK : m3_fail(error, M3_IO, "standard output: cannot be written");
}

int m3_cli_bad_option(int option, char **argv, const char *command, struct m3_error *error)
{
    if (option == ':') return m3_fail(error, M3_USAGE, "%s: %s needs a value", command, argv[optind - 1]);
    if (optopt > 0 && optopt < 256) return m3_fail(error, M3_USAGE, "%s: -%c is not an option", command, optopt);
    return m3_fail(error, M3_USAGE, "%s: %s is not an option", command, argv[optind - 1]);
}

int m3_cli_number(int64_t *number, const char *flag, const char *text, int64_t low, int64_t high,
                  struct m3_error *error)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high)
        return m3_fail(error, M3_USAGE, "%s: got %s, expected a number from %" PRId64 " to %" PRId64, flag, text, low,
                       high);
    *number = value;
    return M3_OK;
}

int m3_cli_real(double *number, const char *flag, const char *text, double low, double high, int open,
                struct m3_error *error)
{
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    if (!errno && end != text && !*end && *number >= low && *number <= high && !(open && *number == low)) return M3_OK;
    return m3_fail(error, M3_USAGE, "%s: got %s, expected a number %s %g to %g", flag, text, open ? "above" : "from",
                   low, high);
}

int m3_cli_layers(int64_t *first, int64_t *end, const char *text, struct m3_error *error)
{
    char *middle, *rest;
    *first = strtoll(text, &middle, 10);
    if (middle != text && *middle == ':') {
        *end = strtoll(middle + 1, &rest, 10);
        if (rest != middle + 1 && *rest == '\0' && *first >= 0 && *end > *first) return M3_OK;
    }
    return m3_fail(error, M3_USAGE, "--layers: got %s, expected A:B with 0 <= A < B", text);
}

int m3_cli_print_notes(struct m3_error *notes, struct m3_error *error)
{
    const int status = m3_notes_whole(notes, error);
    if (status) return status;
    m3_error_print(notes, stderr);
    m3_error_free(notes);
    return M3_OK;
}

int m3_cli_end(int status, struct m3_error *notes, struct m3_error *error)
{
    if ((fflush(stdout) || ferror(stdout)) && status < M3_USAGE)
        status = m3_fail(error, M3_IO, "standard output: cannot be written");
    if (status < M3_USAGE && m3_mapped_check_past(error)) status = M3_IO;
    if (!status) status = m3_notes_whole(notes, error);
    if (m3_json_failed() && status != M3_INTERNAL) {    /* another message says what followed from it */
        m3_error_free(error);
        status = m3_fail_memory(error, "JSON", 0);
    }
    m3_error_print(notes, stderr);
    m3_error_print(error, stderr);
    m3_error_free(notes);
    m3_error_free(error);
    return status;
}

char *m3_cli_line(int argc, char **argv)
{
    size_t size = sizeof "m3ref";
    for (int i = 0; i < argc; i++) size += strlen(argv[i]) + 1;
    char *line = malloc(size), *end = line;
    if (!line) return NULL;
    end += sprintf(end, "m3ref");
    for (int i = 0; i < argc; i++) end += sprintf(end, " %s", argv[i]);
    for (end = line; *end; end++)       /* metadata is UTF-8; a file name may be any bytes */
        if ((unsigned char)*end > 126 || (unsigned char)*end < 32) *end = '?';
    return line;
}

/* A word as it is, if a shell takes nothing in it for more than itself; otherwise in quotes. Bytes that are not
 * printable ASCII are written as numbers. */
static void print_word(FILE *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    int odd = 0;
    for (const char *c = word; *c; c++) odd |= (unsigned char)*c > 126 || (unsigned char)*c < 32;
    if (*word && word[strspn(word, plain)] == '\0') {
        fputs(word, out);
        return;
    }
    fputs(odd ? "$'" : "'", out);
    for (const char *c = word; *c; c++) {
        const unsigned char byte = (unsigned char)*c;
        if (byte > 126 || byte < 32) fprintf(out, "\\%03o", byte);
        else if (odd && (byte == '\'' || byte == '\\')) fprintf(out, "\\%c", byte);
        else if (byte == '\'') fputs("'\\''", out);
        else fputc(byte, out);
    }
    fputc('\'', out);
}

int m3_cli_shell_line(char **line, int argc, char **argv, struct m3_error *error)
{
    struct m3_memory_stream memory;
    FILE *out = m3_memory_open(&memory);
    if (out) fputs("m3ref", out);
    for (int i = 0; out && i < argc; i++) {
        fputc(' ', out);
        print_word(out, argv[i]);
    }
    *line = m3_memory_close(&memory);
    return *line ? M3_OK : m3_fail_memory(error, "the command line", 0);
}
