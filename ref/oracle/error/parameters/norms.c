#include <math.h>

#include "oracle/error/parameters/private/derivatives.h"

/* y = w (x - mean) r + bias, r = 1 / sqrt(mean (x - mean)^2 + eps):  dy/deps = -w (x - mean) r^3 / 2
 *
 * RMS norms have no mean and no bias, and w may be 1 + w. */
static void derive(double *dy, const double *x, const double *w, int64_t H, int offset, int centred, double eps)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < H && centred; i++) mean += x[i] / (double)H;
    for (int64_t i = 0; i < H; i++) squares += (x[i] - mean) * (x[i] - mean);
    const double r = 1 / sqrt(squares / (double)H + eps);
    for (int64_t i = 0; i < H; i++) dy[i] = -(offset + w[i]) * (x[i] - mean) * r * r * r / 2;
}

int m3_by_eps(struct m3_recomputing *m)
{
    const int64_t H = m->w[0]->cols;            /* heads are normalised separately */
    const int centred = m->node->op == M3_OP_LAYER_NORM, offset = !centred && m->config->gemma_norm;
    const double eps = centred ? m->config->vision.eps : m->config->eps;
    for (int64_t at = 0; at < m->count; at += H)
        derive(m->y + at, m->in[0].values + at, m->vector[0], H, offset, centred, eps);
    return M3_OK;
}
