/* Declarations shared by the files that judge one call. */
#ifndef M3_ORACLE_OPERATORS_PRIVATE_H
#define M3_ORACLE_OPERATORS_PRIVATE_H

#include "oracle/error/recompute.h"
#include "oracle/operators/fragment.h"

/* without_tap.c: the value of an output that is no tap, or that does not follow from its tap's operands alone: cos,
 * sin, noise, and a rotation by a given table. Of noise only the listed rows are recomputed (rows NULL: all).
 * Statuses as m3_recompute. */
int m3_is_without_tap(const struct m3_fragment *fragment, const struct m3_operand_row *output);
int m3_recompute_without_tap(struct m3_recomputed *out, const struct m3_setting *setting,
                             const struct m3_fragment *fragment, const struct m3_operand_row *output,
                             const int64_t *rows, int64_t count, struct m3_error *error);

#endif
