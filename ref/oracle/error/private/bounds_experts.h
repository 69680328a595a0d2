/* Tokens by the expert that they chose, a few at a time. Inside the oracle. */
#ifndef M3_ORACLE_ERROR_PRIVATE_BOUNDS_EXPERTS_H
#define M3_ORACLE_ERROR_PRIVATE_BOUNDS_EXPERTS_H

#include <stdint.h>

#include "base/context.h"

enum { M3_CHOSEN = 64 };        /* tokens of a gated MLP at a time: bounds the scratch memory */

/* The tokens of one expert stand in slots t K + k of ids [T,K]: n of them, at most M3_CHOSEN, ascending. */
typedef int (*m3_at_expert)(struct m3_ctx *ctx, const void *self, int64_t expert, const int64_t *slots, int64_t n);

/* Experts ascending. Stops at a status that is not 0; M3_BAD_INPUT where an id is out of range. */
int m3_each_expert(struct m3_ctx *ctx, m3_at_expert visit, const void *self, const int32_t *ids, int64_t T, int64_t E,
                   int64_t K);
/* to [n,H] := rows slots[i] / K of x, and back: rows slots[i] of to := rows of from. */
void m3_gather_tokens(double *to, const double *x, const int64_t *slots, int64_t n, int64_t K, int64_t H);
/* Sums of a gated MLP in 5.15: 1, or 2 if the factor is no power of two. */
int m3_factor_steps(double factor);

#endif
