/* Elements of the candidate beside what they should be, with what each is allowed, and the verdict on them. */
#ifndef M3_ORACLE_JUDGE_SIDE_BY_SIDE_H
#define M3_ORACLE_JUDGE_SIDE_BY_SIDE_H

#include "oracle/error/recompute.h"
#include "oracle/error/tiers.h"

struct m3_side_by_side {
    double *got, *want, *bound, *walk, *suspect, *error, *variance;     /* [count]; got owns all */
    int64_t *numbers;           /* of the rows; NULL: they are not kept */
    int64_t count, rows;
};

/* Room for so many elements, and numbers of rows (0: none are kept). m3_side_by_side_free is due after any result. */
int m3_side_by_side_room(struct m3_side_by_side *s, int64_t elements, int64_t rows, const char *tap,
                         struct m3_error *error);
void m3_side_by_side_free(struct m3_side_by_side *s);
/* Element i may be off by `error` more, evenly spread. */
void m3_side_by_side_add(struct m3_side_by_side *s, int64_t i, double error);
/* Adds a row that was recomputed; dumped: unit roundoff of the candidate's dump. Returns the room for the candidate's
 * row; NULL: the row was not recomputed, or its inputs made it NaN. */
double *m3_side_by_side_row(struct m3_side_by_side *s, const struct m3_recomputed *recomputed, int64_t number,
                            double dumped);

/* What a verdict depends on beside the elements. */
struct m3_side_by_side_rules {
    const struct m3_setting *setting;
    const char *tap;
    int64_t n, f;               /* steps of the bound */
    int has_suspect, has_extra; /* else `suspect`, or `error` and `variance`, do not count */
};

/* By the tiers of SPEC 7.2. */
struct m3_tier_result m3_side_by_side_verdict(const struct m3_side_by_side *s,
                                              const struct m3_side_by_side_rules *rules);

#endif
