/* The parts of m3_estimate. Used only in this folder and the folders below it. */
#ifndef M3_ESTIMATE_PRIVATE_PARTS_H
#define M3_ESTIMATE_PRIVATE_PARTS_H

#include <stdio.h>

#include "estimate/estimate.h"

/* The kinds of entries in the summary, in its order. */
enum m3_figure_kind {
    M3_FIGURE_TEXT,             /* no number */
    M3_FIGURE_WHOLE,            /* the formula's value, exact */
    M3_FIGURE_RATIO,            /* the same, a fraction */
    M3_FIGURE_QUANTITY,         /* the same, a double */
    M3_FIGURE_COUNTED,          /* set by m3_estimate_count; the formula only explains it */
    M3_FIGURE_SPREAD,           /* the same; m3_estimate_spread_formula writes the formula */
};

struct m3_figure {
    const char *key;
    enum m3_figure_kind kind;
    unsigned when; /* conditions that hold, of figures.c. Where rows have one key, they exclude each other */
    const char *unit, *formula;
};

extern const struct m3_figure m3_figures[M3_FIGURES];

int m3_figure_is_formula(const struct m3_figure *figure);
unsigned m3_figure_conditions(const struct m3_estimate *e);
int m3_figure_holds(const struct m3_figure *figure, const struct m3_estimate *e);
/* The row with this key that applies, otherwise any row with this key; NULL: none. */
const struct m3_figure *m3_figure_named(const struct m3_estimate *e, const char *key);

/* A name in formulas that is not a figure. */
struct m3_symbol {
    const char *name, *meaning;
    int64_t value; /* M3_UNKNOWN: not known */
};

enum { M3_MOST_SYMBOLS = 112 };

struct m3_symbols {
    struct m3_symbol list[M3_MOST_SYMBOLS];
    int count;
};

struct m3_symbols m3_symbols_of(const struct m3_estimate *e);
const struct m3_symbol *m3_symbol_named(const struct m3_symbols *symbols, const char *name, size_t length);

/* Length of the name at the start of `text`: letters, digits, '_', and '.' between them. */
size_t m3_name_length(const char *text);

/* Looks up the value of a name; returns 0 if it has none. */
typedef int (*m3_name_value)(struct m3_value *value, void *self, const char *name);

/* + - * / ^ ( ), numbers, ceil(x) floor(x) min(x, y) max(x, y), names. Exact until a double takes part: the exact part
 * of a sum or product is computed separately and rounded once. An unknown operand makes the result unknown.
 * M3_BAD_INPUT names the position in the formula. */
int m3_formula_value(struct m3_value *value, const char *formula, m3_name_value name_value, void *self,
                     struct m3_error *error);

/* The names that formulas may use: the symbols of an estimate, and its figures so far. */
struct m3_scope {
    const struct m3_estimate *e;
    struct m3_symbols symbols;
    int pending; /* a name has no value yet */
};

struct m3_scope m3_scope_of(const struct m3_estimate *e);
int m3_scope_value(struct m3_value *value, void *scope, const char *name);

struct m3_value m3_exact(m3_wide over, m3_wide under);
double m3_value_double(const struct m3_value *value); /* NaN if it is not known */

/* The model of the request if only a few numbers of it are known; otherwise NULL. */
const struct m3_foreign *m3_few_numbers(const struct m3_estimate *e);

int64_t m3_census_bytes(const struct m3_census *census);

/* Compute the inputs of the formulas from the config, the files and the pictures, */
void m3_estimate_parameters(struct m3_estimate *e);
void m3_estimate_pictures(struct m3_estimate *e);
void m3_estimate_experts(struct m3_estimate *e);
/* then every figure. M3_INTERNAL if a formula is malformed. */
int m3_estimate_figures(struct m3_estimate *e, struct m3_error *error);

/* With a layout: the same for the stage that leaves room for the fewest sequences. */
int m3_estimate_layout(struct m3_estimate *e, struct m3_error *error);
struct m3_stage m3_layout_stage(const struct m3_estimate *e, int64_t stage);

/* Sets a figure that is counted. */
void m3_estimate_count(struct m3_estimate *e, const char *key, struct m3_value value);
/* Writes the formula for the probability of j experts on the fullest card; j 0: for their expected number. */
void m3_estimate_spread_formula(char *text, size_t size, const struct m3_estimate *e, int j);

#endif
