#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/options.h"
#include "io/json.h"
#include "oracle/operators/which.h"
#include "oracle/variants/mistakes.h"

struct arguments {
    const char *id;
    int list, json, help;
};

static const char about[] =
    "usage: m3ref mistakes [--list] [--json]\n"
    "       m3ref mistakes --show ID [--json]\n"
    "\n"
    "Prints the known mistakes: errors that public implementations have made, or could easily make. Each mistake can\n"
    "be found in a dump (m3ref compare, m3ref blame) or in the results of one operator (m3ref op). Mistakes of\n"
    "derivatives, grad.*, are only found by m3ref op.\n"
    "\n";

static const char end[] = "\n"
                          "Exit status: 0 done; 64 wrong usage, or an unknown ID; 70 internal error; 74 I/O error.\n";

#define M3_CLI_ARGUMENTS struct arguments
/* clang-format off */
static const struct m3_cli_option options[] = {
    M3_CLI_FLAG_OF("list", list,
      "print every mistake (the default)"),
    M3_CLI_TEXT_OF("show", "ID", id,
      "print one mistake: what it is; the tap where it shows first; the operators whose cases can find\n"
      "it; the properties that model and case must have for the mistake to show; and, if there is one,\n"
      "the reading of the model under which the same behaviour is correct"),
    M3_CLI_FLAG_OF("json", json,
      "print one JSON object per mistake"),
    M3_CLI_HELP_OF(help),
    M3_CLI_END,
};
/* clang-format on */

static const struct m3_cli_command command_line = { "mistakes", about, options, 14, end };

/* For every operator which mistakes are its own: [m3_operator_rows()], to be freed with free_owners in any case. */
static int find_owners(unsigned char ***are_of, struct m3_error *error)
{
    const size_t count = (size_t)m3_operator_rows();
    int status = M3_OK;
    *are_of = calloc(count, sizeof **are_of);
    if (!*are_of) return m3_fail_memory(error, "operators", count * sizeof **are_of);
    for (size_t i = 0; i < count && !status; i++) status = m3_mistakes_of(&(*are_of)[i], m3_operator_at((int)i), error);
    return status;
}

static void free_owners(unsigned char **are_of)
{
    for (int i = 0; are_of && i < m3_operator_rows(); i++) free(are_of[i]);
    free(are_of);
}

/* "rope, qk_norm_rope": operators whose calls compute the tap in which mistake k first shows. */
static void operators_of(char *names, size_t size, unsigned char *const *are_of, int k)
{
    names[0] = '\0';
    for (int i = 0; i < m3_operator_rows(); i++) {
        const size_t length = strlen(names);
        if (are_of[i][k]) snprintf(names + length, size - length, "%s%s", length ? ", " : "", m3_operator_at(i)->name);
    }
}

static int print_json(unsigned char *const *are_of, int k, struct m3_error *error)
{
    const struct m3_mistake *mistake = m3_operator_mistake_at(k);
    char names[512];
    operators_of(names, sizeof names, are_of, k);
    return m3_json_line(stdout,
                        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?, s:s?}", "type", "mistake", "id", mistake->id, "what",
                                  mistake->what, "first_tap", mistake->first, "operators", names, "needs",
                                  mistake->input, "reading", mistake->reading),
                        error);
}

static void print_one(unsigned char *const *are_of, int k)
{
    const struct m3_mistake *mistake = m3_operator_mistake_at(k);
    char names[512];
    operators_of(names, sizeof names, are_of, k);
    printf("%s: %s\n", mistake->id, mistake->what);
    printf("  first shows in   %s\n", mistake->first);
    printf("  op cases of      %s\n", names[0] ? names : "none: it arises between operators");
    if (mistake->input) printf("  shows only with  %s\n", mistake->input);
    if (mistake->reading) printf("  is right under   --set %s\n", mistake->reading);
    printf("  effect           %s\n", m3_mistake_named(mistake->id) ? "ref/oracle/REFERENCE.md, section 7.12"
                                                                    : "ref/train/TRAINING.md, section 19.22");
}

/* All of them, or only mistake k. */
static int print_chosen(unsigned char *const *are_of, int k, int json, struct m3_error *error)
{
    int status = M3_OK;
    for (int i = 0; !status && i < m3_operator_mistakes(); i++) {
        if (k >= 0 && i != k) continue;
        if (json) status = print_json(are_of, i, error);
        else if (k >= 0) print_one(are_of, i);
        else printf("%-24s %s\n", m3_operator_mistake_at(i)->id, m3_operator_mistake_at(i)->what);
    }
    return status;
}

static int number_of(const char *id)
{
    for (int k = 0; k < m3_operator_mistakes(); k++)
        if (strcmp(m3_operator_mistake_at(k)->id, id) == 0) return k;
    return -1;
}

static int print(const char *id, int json, struct m3_error *error)
{
    const int k = id ? number_of(id) : -1;
    unsigned char **are_of = NULL;
    if (id && k < 0)
        return m3_fail(error, M3_USAGE, "mistakes: got the id %s, expected one of m3ref mistakes --list", id);
    int status = json || k >= 0 ? find_owners(&are_of, error) : M3_OK;
    if (!status) status = print_chosen(are_of, k, json, error);
    free_owners(are_of);
    if (!status && fflush(stdout)) return m3_fail(error, M3_IO, "standard output: %s", strerror(errno));
    return status;
}

int m3_cli_mistakes(int argc, char **argv)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct arguments a = { 0 };
    int status = m3_cli_options(&command_line, &a, NULL, argc, argv, &error);
    if (!status && a.help) return m3_cli_end(m3_cli_print_help(&command_line, &error), &notes, &error);
    if (!status && optind != argc)
        status = m3_fail(&error, M3_USAGE, "mistakes: got %d names, expected none", argc - optind);
    if (!status) status = print(a.id, a.json, &error);
    return m3_cli_end(status, &notes, &error);
}
