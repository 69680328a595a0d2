#include "ops/math.h"
#include "ops/operators.h"

/* phi: x sig(x) in double, rounded once. */
static real feature(real x) { return (real)((double)x / (1 + m3_exp(-(double)x))); }

/* One head of all rows; q, k, v, o point at its channels, state points at its matrix. */
static void lightning_head(real *o, real *state, const real *q, const real *k, const real *v, real decay, int64_t T,
                           int64_t stride, int64_t D)
{
    for (int64_t t = 0; t < T; t++) {
        const real *q_t = q + t * stride, *k_t = k + t * stride, *v_t = v + t * stride;
        real *o_t = o + t * stride;

        for (int64_t d = 0; d < D; d++) o_t[d] = 0;
        for (int64_t i = 0; i < D; i++) {
            real *state_i = state + i * D, query = feature(q_t[i]), key = feature(k_t[i]);
            for (int64_t d = 0; d < D; d++) {
                state_i[d] = decay * state_i[d] + key * v_t[d];
                o_t[d] = o_t[d] + query * state_i[d];
            }
        }
    }
}

/* Lightning attention of MiniMax-Text-01 as a recurrence. SPEC 5.23
 *
 *     S_t = decay S_(t-1) + phi(k_t)' v_t,   o_t = phi(q_t) S_t,   phi(x) = x sig(x)
 *
 * o [T,Q,D]; state [Q,D,D], channel of k first: on entry the state after the earlier rows (zeros at the start), on
 * return the state after these rows; q, k, v [T,Q,D]; decay [Q], exp(-slope).  With decay 1 the last o is phi(q)
 * (phi(K)' V).
 * Order: channels of k ascending; everything else in real.
 * Often wrong: decay applied after the row is read; a scale 1/sqrt(D); a division by the sum of the weights; SiLU
 * applied to v here (Text-01 applies it in the projection of v). */
int m3_lightning_attention(struct m3_ctx *ctx, real *o, real *state, const real *q, const real *k, const real *v,
                           const real *decay, int64_t T, int64_t Q, int64_t D)
{
#pragma omp parallel for num_threads(m3_team(ctx, T * Q * D * D))
    for (int64_t h = 0; h < Q; h++)
        lightning_head(o + h * D, state + h * D * D, q + h * D, k + h * D, v + h * D, decay[h], T, Q * D, D);
    return M3_OK;
}
