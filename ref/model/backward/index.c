/* The alignment loss of a sparse layer's index branch, and its gradient: of the index branch alone. */
#include <math.h>
#include <stdlib.h>
#include "model/backward/stages.h"
#include "ops/math.h"

static double kl(struct m3_backward *b, real *dq, real *dk, int64_t rows, double weight)
{
    const struct m3_config *c = b->f.config;
    const int64_t T = b->f.rows, Q = c->Q, G = c->G, D = c->D, X = c->X, R = Q / G;
    const real *q = b->kept.at[M3_TAP_Q_ROPE], *k = b->kept.at[M3_TAP_K_ROPE];
    const real *iq = b->kept.at[M3_TAP_INDEX_Q_ROPE], *ik = b->kept.at[M3_TAP_INDEX_K_ROPE];
    const int32_t *blocks = b->kept.at[M3_TAP_INDEX_BLOCKS];
    double *P = malloc((size_t)T * 8), *z = malloc((size_t)T * 8), loss = 0, *ak = calloc((size_t)(T * X), 8),
           *aq = calloc((size_t)X, 8);
    int64_t *J = malloc((size_t)T * 8);
    if (!P || !z || !ak || !aq || !J) {
        b->f.status = m3_fail_memory(b->error, "the index loss", (size_t)(T * X) * 8);
        free(P), free(z), free(ak), free(aq), free(J);
        return 0;
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t g = 0; g < G; g++) {
            int64_t n = 0;
            for (int64_t j = 0; j <= t; j++)
                for (int64_t m = 0; m < c->N; m++)
                    if (blocks[(t * G + g) * c->N + m] == j / c->block) J[n++] = j;
            for (int64_t a = 0; a < n; a++) P[a] = 0;
            for (int64_t r = 0; r < R; r++) {
                const real *qh = q + (t * Q + g * R + r) * D;
                double mx = -INFINITY, S = 0;
                for (int64_t a = 0; a < n; a++) {
                    double s = 0;
                    for (int64_t d = 0; d < D; d++) s += (double)qh[d] * (double)k[(J[a] * G + g) * D + d];
                    z[a] = s / sqrt((double)D);
                    if (z[a] > mx) mx = z[a];
                }
                for (int64_t a = 0; a < n; a++) S += z[a] = m3_exp(z[a] - mx);
                for (int64_t a = 0; a < n; a++) P[a] += z[a] / S / (double)R;
            }
            double mx = -INFINITY, S = 0;
            for (int64_t a = 0; a < n; a++) {
                double s = 0;
                for (int64_t d = 0; d < X; d++) s += (double)iq[(t * G + g) * X + d] * (double)ik[J[a] * X + d];
                z[a] = s / sqrt((double)X);
                if (z[a] > mx) mx = z[a];
            }
            for (int64_t a = 0; a < n; a++) S += m3_exp(z[a] - mx);
            for (int64_t d = 0; d < X; d++) aq[d] = 0;
            for (int64_t a = 0; a < n; a++) {
                double l = z[a] - mx - m3_log(S);
                if (P[a] > 0) loss += P[a] * (m3_log(P[a]) - l);
                double ds = (m3_exp(l) - P[a]) * weight / ((double)rows * (double)G * sqrt((double)X));
                for (int64_t d = 0; d < X; d++) {
                    aq[d] += ds * (double)ik[J[a] * X + d];
                    ak[J[a] * X + d] += ds * (double)iq[(t * G + g) * X + d];
                }
            }
            for (int64_t d = 0; d < X; d++) dq[(t * G + g) * X + d] = (real)aq[d];
        }
    for (int64_t i = 0; i < T * X; i++) dk[i] = (real)ak[i];
    free(P);
    free(z);
    free(ak);
    free(aq);
    free(J);
    return loss / ((double)rows * (double)G);
}

void m3_backward_index(struct m3_backward *b, const struct m3_layer *w)
{
    struct m3_pass *f = &b->f;
    const struct m3_config *c = f->config;
    const struct m3_kept *kept = &b->kept;
    int64_t rows = 0;
    for (int64_t i = 0; i < b->request->count; i++) rows += b->request->sequences[i].T;
    real *dq = m3_pass_need(f, f->rows, c->G * c->X, sizeof *dq), *dk = m3_pass_need(f, f->rows, c->X, sizeof *dk);
    if (!f->status) b->losses->kl += kl(b, dq, dk, rows, b->request->weights.kl);
    shown(b, M3_TAP_INDEX_Q_ROPE, dq);
    shown(b, M3_TAP_INDEX_K_ROPE, dk);
    rope_back(b, M3_TAP_INDEX_Q_NORM, dq, dq, &b->angles);
    rope_back(b, M3_TAP_INDEX_K_NORM, dk, dk, &b->angles);
    rms_norm_back(b, M3_TAP_INDEX_Q_PROJ, dq, dq, kept->at[M3_TAP_INDEX_Q_PROJ], &w->index_q_norm);
    rms_norm_back(b, M3_TAP_INDEX_K_PROJ, dk, dk, kept->at[M3_TAP_INDEX_K_PROJ], &w->index_k_norm);
    linear_back(b, prepares(M3_TAP_ATTN_NORM), NULL, dq, kept->at[M3_TAP_ATTN_NORM], &w->index_q_proj);
    linear_back(b, prepares(M3_TAP_ATTN_NORM), NULL, dk, kept->at[M3_TAP_ATTN_NORM], &w->index_k_proj);
    free(dq);
    free(dk);
}
