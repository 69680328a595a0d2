/* The experts of a call whose weights are drawn: those of one row at a time are made in memory. */
#ifndef M3_ORACLE_OPERATORS_DRAWN_EXPERTS_H
#define M3_ORACLE_OPERATORS_DRAWN_EXPERTS_H

#include "base/status.h"
#include "oracle/operators/drawn/drawn.h"

struct m3_drawn_experts;

/* Of [E] experts, of which the matrices w1, w3, w2 with drawings[0], [1], [2] are made when they are needed; a drawing
 * with levels 0: that matrix is stored. `most` are in memory at the same time. */
int m3_drawn_experts_new(struct m3_drawn_experts **made, struct m3_expert *experts, int64_t E,
                         const struct m3_drawing drawings[3], int64_t most, struct m3_error *error);
void m3_drawn_experts_free(struct m3_drawn_experts *drawn);         /* NULL is fine */

/* Makes the experts ids [count], at most `most` different ones. Others lose their data. Ids that are no experts are
 * skipped: the operator refuses them. For m3_setting.need. */
int m3_drawn_experts_need(void *drawn, const int32_t *ids, int64_t count, int threads, struct m3_error *error);

#endif
