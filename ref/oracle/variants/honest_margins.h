/* How sure the choices of honest implementations are, row by row: where none of them is near a tie, no honest program
 * chooses otherwise, and one bad row is a mistake. SPEC 7.10. */
#ifndef M3_ORACLE_VARIANTS_HONEST_MARGINS_H
#define M3_ORACLE_VARIANTS_HONEST_MARGINS_H

#include "model/model.h"
#include "model/semantics.h"
#include "model/taps.h"

struct m3_honest_margins;

/* For passes over T tokens from place 0. M3_INTERNAL: no memory. *margins is NULL on failure. */
int m3_honest_margins_new(struct m3_honest_margins **margins, const struct m3_model *model,
                          const struct m3_semantics *semantics, int64_t T, struct m3_error *error);
void m3_honest_margins_free(struct m3_honest_margins *margins);        /* NULL is fine */

/* Is it a tap of scores by which a layer of the main model chooses? */
int m3_honest_margins_wants(enum m3_tap tap, int64_t layer);
/* Takes rows [row, row + count) of such a tap of one run. M3_INTERNAL: no memory. */
int m3_honest_margins_take(struct m3_honest_margins *margins, enum m3_tap tap, int64_t layer, const float *scores,
                           int64_t row, int64_t count, struct m3_error *error);
/* others [T]: in each row, how many of the choices from layer `first` on and before the tap an honest program is to be
 * expected to make otherwise than all runs do, as far as the margins of the runs vary. 0: nothing is chosen. */
void m3_honest_margins_others(double *others, const struct m3_honest_margins *margins, enum m3_tap tap, int64_t layer,
                              int64_t first);

#endif
