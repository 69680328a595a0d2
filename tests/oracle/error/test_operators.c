/* The table of operators: each has its descriptor, and the headings of SPEC.md that say what its taps are. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "oracle/error/private/operators.h"

/* Does a line of the section name the tap, in backquotes, and the operator? */
static int one_line_names(const char *spec, const char *section, const char *tap, const char *operator)
{
    char quoted[64];
    const char *begin = strstr(spec, section), *stop = begin ? strstr(begin, "\n---\n") : NULL;
    ck_assert_ptr_nonnull(stop);
    snprintf(quoted, sizeof quoted, "`%s`", tap);
    for (const char *line = begin + 1, *end; (end = strchr(line, '\n')) != NULL && end <= stop; line = end + 1) {
        const char *a = strstr(line, quoted), *b = strstr(line, operator);
        if (a != NULL && a < end && b != NULL && b < end) return 1;
    }
    return 0;
}

/* Goal:  each heading that a tap links to is one of SPEC.md, and is of the operator that makes the tap in SPEC 6 or 12.
 * Seen to fail with a row of the table left out, with "5.4 rope", and with add for the attention's linear. */
TEST(sections)
{
    static char spec[1 << 20];
    FILE *file = fopen("SPEC.md", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_lt(fread(spec, 1, sizeof spec - 1, file), sizeof spec - 1);
    fclose(file);
    static const char pass[] = "\n## 6. The forward pass\n", modules[] = "\n## 12. Multi-token prediction\n";
    struct m3_graph graph;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_graph_record_every_tap(&graph, &error), M3_OK);
    for (int i = 0; i < M3_TAPS; i++) {
        const char *const *headings = m3_tap_sections(m3_graph_last(&graph, (enum m3_tap)i));
        ck_assert_ptr_nonnull(headings[0]);
        for (int k = 0; k < 2 && headings[k] != NULL; k++) {
            char line[80];
            snprintf(line, sizeof line, "## %s\n", headings[k]);
            const char *tap = m3_tap_table[i].name, *operator = strchr(headings[k], ' ') + 1;
            ck_assert_msg(strstr(spec, line) != NULL, "%s: no heading %s", tap, headings[k]);
            ck_assert_msg(strncmp(headings[k], "5.", 2) != 0 || one_line_names(spec, pass, tap, operator) ||
                              one_line_names(spec, modules, tap, operator),
                          "SPEC 6 and 12 do not make %s with %s", tap, headings[k]);
        }
    }
    m3_graph_free(&graph);
}

/* Goal:  every operator of the graph has a descriptor with a name and a section; what computes has a bound.
 * Claim: no other operator is without one than copies, those whose value gives it (expert, gated_mlp), those of ids.
 * Seen to fail with a row of the table left out, and with the bound of gelu left out. */
TEST(complete)
{
    static const enum m3_operator without[] = {
        M3_OP_NONE,      M3_OP_INPUT,  M3_OP_COPY,          M3_OP_SCATTER,
        M3_OP_GATED_MLP, M3_OP_EXPERT, M3_OP_SELECT_BLOCKS, M3_OP_SELECT_EXPERTS
    };
    for (int op = 0; op < M3_OPERATORS; op++) {
        const struct m3_error_operator *o = m3_error_operators[op];
        int has_bound = 1;
        for (size_t i = 0; i < sizeof without / sizeof *without; i++) has_bound &= op != (int)without[i];
        ck_assert_ptr_nonnull(o);
        ck_assert(o->name && o->sections[0]);
        ck_assert_msg((o->bound != NULL) == has_bound, "%s", o->name);
        for (int other = 0; other < op; other++) ck_assert_ptr_ne(o, m3_error_operators[other]);
    }
}
