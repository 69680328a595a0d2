/* Elements of the candidate with their expected values and allowances, and the verdict on them. */
#ifndef M3_ORACLE_JUDGE_SIDE_BY_SIDE_H
#define M3_ORACLE_JUDGE_SIDE_BY_SIDE_H

#include <math.h>

#include "oracle/error/parameters/filter.h"
#include "oracle/error/recompute.h"
#include "oracle/error/tiers/tiers.h"

struct m3_side_by_side {
    double *got, *want, *bound, *walk, *suspect, *error, *variance;     /* [count] */
    double *owned;              /* the memory of all of them; NULL: they are those of m3_side_by_side_view */
    int64_t *numbers;           /* row numbers; NULL: not kept */
    unsigned char *repeated;    /* [rows] of m3_side_by_side_mark; NULL: no row is known to be */
    int64_t count, rows;
};

/* Makes room for this many elements and row numbers (0: none). Call m3_side_by_side_free after any result. */
int m3_side_by_side_room(struct m3_side_by_side *s, int64_t elements, int64_t rows, const char *tap,
                         struct m3_error *error);
void m3_side_by_side_free(struct m3_side_by_side *s);
/* Does row r tell more than those before it? */
static inline int m3_side_by_side_tells(const struct m3_side_by_side *s, int64_t r)
{
    return !s->repeated || !s->repeated[r];
}
/* Allows element i a further error up to `error`, uniformly distributed. */
void m3_side_by_side_add(struct m3_side_by_side *s, int64_t i, double error);
/* Of a right error of element i: u of sums, and of storing, which tells where far more was stored than is right. */
static inline double m3_side_by_side_variance(const struct m3_side_by_side *s, int64_t i, double u, double stored)
{
    const double walk = u * s->walk[i], rounding = stored * s->got[i];
    return fmax(walk * walk / 3 + (s->variance ? s->variance[i] : 0), rounding * rounding / 3);
}
/* Marks rows whose values differ from those of another row by less than roundings do, as those of equal tokens: their
 * errors are alike, too, and prove nothing that those of the other row do not. u, stored: as above. M3_INTERNAL. */
int m3_side_by_side_mark(struct m3_side_by_side *s, double u, double stored, const char *tap, struct m3_error *error);
/* Adds a recomputed row; dumped: unit roundoff of the candidate's dump. Returns the memory for the candidate's row;
 * NULL: the row was not recomputed, or its inputs made it NaN. */
double *m3_side_by_side_row(struct m3_side_by_side *s, const struct m3_recomputed *recomputed, int64_t number,
                            double dumped);

/* The same without a copy, if `recomputed` has exactly these rows [rows] in this order, none of them NaN: the elements
 * are those of `recomputed` and of `got`, which must outlive it; `suspect`, `error` and
 * `variance` are NULL if `recomputed` has none. Returns 0, and changes nothing, if it does not have them. */
int m3_side_by_side_view(struct m3_side_by_side *s, const struct m3_recomputed *recomputed, double *got,
                         int64_t *numbers, int64_t rows);

/* The parameters of a verdict besides the elements. */
struct m3_side_by_side_rules {
    const struct m3_setting *setting;
    const char *tap;
    int64_t n, f;               /* steps of the bound */
    int has_suspect, has_extra; /* if 0, `suspect`, or `error` and `variance`, are ignored */
};

/* The tap whose operator made the elements, for the tests of SPEC 7.15. */
struct m3_side_by_side_tap {
    struct m3_trace *trace;     /* holds the operands */
    enum m3_tap tap;
    int64_t layer;
};

/* Adds to a verdict what looks like another value of a parameter. M3_INTERNAL. */
int m3_side_by_side_parameters(struct m3_tier_result *verdict, const struct m3_side_by_side *s,
                               const struct m3_side_by_side_rules *rules, const struct m3_side_by_side_tap *tap,
                               struct m3_error *error);

/* How often the elements' errors hold `by` [count], such as what a known mistake would add (SPEC 7.15). M3_INTERNAL. */
int m3_side_by_side_direction(struct m3_fit *fit, const struct m3_side_by_side *s,
                              const struct m3_side_by_side_rules *rules, const struct m3_side_by_side_tap *tap,
                              const double *by, struct m3_error *error);

/* The verdict by the tiers of SPEC 7.2. */
struct m3_tier_result m3_side_by_side_verdict(const struct m3_side_by_side *s,
                                              const struct m3_side_by_side_rules *rules);

#endif
