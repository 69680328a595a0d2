/* Mistakes of a few places: rows of a tap, or positions of an answer. Quantiles over all places cannot see them, so each
 * place is compared with what honest runs give at this very place. SPEC 7.10, 7.18.
 *
 * An honest program may choose another expert where no run does, and be far off in that row. Such rows are rare and
 * stand alone. Several bad rows side by side, or one where no choice could be another, are a mistake. */
#ifndef M3_ORACLE_JUDGE_ROWS_LOCAL_H
#define M3_ORACLE_JUDGE_ROWS_LOCAL_H

#include "oracle/error/tiers/verdict.h"
#include "oracle/judge/rows/distances.h"

struct m3_local {
    enum m3_verdict verdict; /* pass, suspect or fail */
    int64_t first, count; /* the bad places; they lie side by side, but for those that say nothing */
    double times; /* each of the worst of them is so many times as far off as runs are there */
};

/* Rows that are alike, as those of equal tokens, share roundings and choices: side by side they say no more than one. */
enum { M3_LOCAL_REACH = 8 };

struct m3_local_rules {
    int has_nearest; /* d->nearest is known; otherwise errors alone count */
    double resolution; /* of the candidate's own distance: counts as nothing */
    const double *others; /* [d->n] how many choices are to be expected to differ at each place; NULL: not known */
    const unsigned char *alike; /* [d->n] is it like one of the M3_LOCAL_REACH before it? NULL: none is */
    double blank; /* the distance of a place that holds another's values; NaN: not known */
};

/* Are places far off that lie side by side, or one alone that no honest run explains? M3_INTERNAL: no memory. */
int m3_local_find(struct m3_local *found, const struct m3_distances *d, const struct m3_local_rules *rules,
                  struct m3_error *error);

#endif
