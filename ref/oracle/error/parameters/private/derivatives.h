/* Derivatives of taps by parameters: each fills m->y. Where a derivative would say nothing, or its elements share one
 * rounding, it is 0. */
#ifndef M3_ORACLE_ERROR_PARAMETERS_PRIVATE_DERIVATIVES_H
#define M3_ORACLE_ERROR_PARAMETERS_PRIVATE_DERIVATIVES_H

#include "oracle/error/private/recompute.h"

/* activation.c: `mlp.act`, `moe.shared`, `moe.expert_out` */
int m3_by_alpha(struct m3_recomputing *m);
int m3_by_beta(struct m3_recomputing *m);
int m3_by_limit_of_up(struct m3_recomputing *m);
int m3_by_limit_of_gate(struct m3_recomputing *m);      /* mlp.act only */
/* attention.c: `attn`, `attn_lse`, `vision.*.attn`; by ln(scale), and by 1 / cap^2 at 0 */
int m3_by_scale(struct m3_recomputing *m);
int m3_by_cap(struct m3_recomputing *m);
/* angles.c: by ln(theta) */
int m3_by_theta(struct m3_recomputing *m);
/* norms.c */
int m3_by_eps(struct m3_recomputing *m);
/* factors.c */
int m3_by_factor(struct m3_recomputing *m);             /* moe.routed */
int m3_by_index_scale(struct m3_recomputing *m);        /* by ln(scale) */

#endif
