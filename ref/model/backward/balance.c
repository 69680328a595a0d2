/* The balance loss of the router: over the rows of all MoE layers together. */
#include "model/backward/stages.h"
#include "ops/math.h"

static double sum_of(const real *z, int64_t E, double *largest)
{
    double sum = 0;
    *largest = (double)z[0];
    for (int64_t e = 1; e < E; e++)
        if ((double)z[e] > *largest) *largest = (double)z[e];
    for (int64_t e = 0; e < E; e++) sum += m3_exp((double)z[e] - *largest);
    return sum;
}

void m3_backward_count(struct m3_backward *b, const real *logits, int64_t rows)
{
    const int64_t E = b->model->config.E, K = b->model->config.K;
    for (int64_t t = 0; t < rows; t++) {
        const real *z = logits + t * E;
        double largest, sum = sum_of(z, E, &largest);
        for (int64_t e = 0; e < E; e++) {
            int64_t ahead = 0;
            b->mass[e] += m3_exp((double)z[e] - largest) / sum;
            for (int64_t o = 0; o < E; o++) ahead += z[o] > z[e] || (z[o] == z[e] && o < e);
            b->chosen[e] += ahead < K;
        }
    }
    b->routed += rows;
}

void m3_backward_balance_loss(struct m3_backward *b)
{
    const int64_t E = b->model->config.E;
    const double M = (double)b->routed;
    for (int64_t e = 0; b->request->weights.aux != 0 && e < E; e++)
        b->losses->aux += (double)E * b->chosen[e] / M * b->mass[e] / M;
}

void m3_backward_balance(struct m3_backward *b, real *d_logits)
{
    const int64_t E = b->model->config.E;
    const double M = (double)b->routed, w = b->request->weights.aux;
    const real *logits = b->kept.at[M3_TAP_ROUTER_LOGITS];
    if (b->f.status || w == 0 || m3_mtp_module_of(b->f.layer) >= 0) return;
    for (int64_t t = 0; t < b->f.rows; t++) {
        const real *z = logits + t * E;
        double largest, sum = sum_of(z, E, &largest), mean = 0;
        for (int64_t e = 0; e < E; e++) mean += b->chosen[e] / M * m3_exp((double)z[e] - largest) / sum;
        for (int64_t e = 0; e < E; e++)
            d_logits[t * E + e] +=
                (real)(w * (double)E / M * m3_exp((double)z[e] - largest) / sum * (b->chosen[e] / M - mean));
    }
}
