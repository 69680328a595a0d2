/* What an operator is called, where SPEC defines it, and how many roundings its arithmetic has. SPEC 7.1. */
#ifndef M3_ORACLE_ERROR_OPERATORS_H
#define M3_ORACLE_ERROR_OPERATORS_H

#include <stdint.h>

#include "model/graph/graph.h"
#include "oracle/error/bounds.h"

const char *m3_operator_name(enum m3_operator op);
/* [2]: the headings of the sections of SPEC.md that define a tap. The second is for the other kind of layer (sparse
 * instead of full, MoE instead of dense); NULL: there is none. */
const char *const *m3_tap_sections(const struct m3_node *node);

/* The steps n + f of a tap that is judged in that arithmetic: n of the reduction. */
void m3_steps(int64_t *n, int64_t *f, const struct m3_model *model, const struct m3_semantics *semantics,
              enum m3_tap tap, int64_t layer, const struct m3_arithmetic *how);

#endif
