#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "estimate/private/parts.h"

/* A whole double is printed as an integer, as in the summary. */
static void print_value(const struct m3_value *value, FILE *out)
{
    const double x = m3_value_double(value);
    if (value->kind == M3_VALUE_EXACT && value->under == 1) fprintf(out, "%" PRId64, (int64_t)value->over);
    else if (x == floor(x) && fabs(x) < 0x1p53) fprintf(out, "%.0f", x);
    else fprintf(out, "%.17g", x);
}

/* The formula with the numbers in place of names; names without a number, such as "ceil", stay. */
static void print_numbers(const char *formula, const struct m3_symbols *symbols, const struct m3_estimate *e, FILE *out)
{
    while (*formula) {
        size_t length = m3_name_length(formula);
        char name[128] = "";
        if (length && length < sizeof name) memcpy(name, formula, length);
        const struct m3_symbol *symbol = length ? m3_symbol_named(symbols, formula, length) : NULL;
        const struct m3_value value = m3_estimate_figure(e, name);
        if (symbol) fprintf(out, "%" PRId64, symbol->value);
        else if (value.kind != M3_VALUE_UNKNOWN) print_value(&value, out);
        else fprintf(out, "%.*s", length ? (int)length : 1, formula);
        formula += length ? length : 1;
    }
}

static void print_legend(const char *formula, const struct m3_symbols *symbols, FILE *out)
{
    unsigned char seen[M3_MOST_SYMBOLS] = { 0 };
    const char *between = "    ";
    if (strstr(formula, "ways(")) {
        fprintf(out, "    ways(n, m, j, K): choices of K experts on n cards of m, at most j on a card");
        between = "; ";
    }
    for (size_t length; *formula; formula += length ? length : 1) {
        length = m3_name_length(formula);
        const struct m3_symbol *symbol = length ? m3_symbol_named(symbols, formula, length) : NULL;
        if (!symbol || seen[symbol - symbols->list]++) continue;
        fprintf(out, "%s%s: %s", between, symbol->name, symbol->meaning);
        between = "; ";
    }
    if (between[0] == ';') fprintf(out, "\n");
}

/* True for the key itself and members of the group that it names; for a ratio also the figures in it. */
static int asked(const char *row, const char *key)
{
    size_t length = strlen(key), whole = strlen(row);
    if (strncmp(row, "ratios.", 7) == 0 && strncmp(row, key, whole) == 0 &&
        (strcmp(key + whole, ".value") == 0 || strcmp(key + whole, ".fraction") == 0))
        return 1;
    return strncmp(row, key, length) == 0 && (row[length] == '\0' || row[length] == '.');
}

struct explanation {
    const struct m3_estimate *e;
    const char *key;            /* as requested */
    struct m3_symbols symbols;
    FILE *out;
    int known, printed;         /* the key exists; it has a value */
};

static void explain_row(struct explanation *x, const struct m3_figure *row)
{
    if (!asked(row->key, x->key)) return;
    const struct m3_value value = m3_estimate_figure(x->e, row->key);
    x->known = 1;
    if (value.kind == M3_VALUE_UNKNOWN || !m3_figure_holds(row, x->e)) return;
    fprintf(x->out, "%s\n  = %s\n  = ", row->key, row->formula);
    print_numbers(row->formula, &x->symbols, x->e, x->out);
    fprintf(x->out, "\n  = ");
    if (row->kind == M3_FIGURE_RATIO)
        fprintf(x->out, "%" PRId64 "/%" PRId64 " = ", (int64_t)value.over, (int64_t)value.under);
    print_value(&value, x->out);
    fprintf(x->out, "%s%s\n", row->unit[0] ? " " : "", row->unit);
    print_legend(row->formula, &x->symbols, x->out);
    x->printed = 1;
}

/* Rows with a number in the key, then their expectation. */
static void explain_spread(struct explanation *x)
{
    enum { TERM = 48 };
    char key[64], formula[TERM * M3_MOST_SPREAD];
    for (int j = 1; j <= M3_MOST_SPREAD; j++) {
        snprintf(key, sizeof key, "expert_spread.p_fullest.%d", j - 1);
        m3_estimate_spread_formula(formula, sizeof formula, x->e, j);
        explain_row(x, &(struct m3_figure){ key, M3_FIGURE_SPREAD, 0, "", formula });
    }
    m3_estimate_spread_formula(formula, sizeof formula, x->e, 0);
    explain_row(x, &(struct m3_figure){ "expert_spread.expected_fullest", M3_FIGURE_SPREAD, 0, "experts", formula });
}

int m3_estimate_explain(const struct m3_estimate *e, const char *key, FILE *out, struct m3_error *error)
{
    struct explanation x = { .e = e, .key = key, .symbols = m3_symbols_of(e), .out = out };
    char caches[64];
    if (strncmp(key, "kv.", 3) == 0) {
        snprintf(caches, sizeof caches, "kv_bytes.%s", key + 3);
        x.key = caches;
    }
    for (int i = 0; i < M3_FIGURES; i++)
        if (m3_figures[i].formula) explain_row(&x, &m3_figures[i]);
    explain_spread(&x);
    if (!x.known)
        return m3_fail(error, M3_USAGE,
                       "--explain: got %s, expected the key of a number of --json, such as "
                       "flops_decode.total, or a group such as kv_bytes",
                       key);
    if (!x.printed)
        return m3_fail(error, M3_USAGE,
                       "--explain: got %s, which has no value for this model, or only with --gpu, "
                       "--mtp, --image or sparse layers",
                       key);
    return M3_OK;
}
