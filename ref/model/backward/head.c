/* Logits, cross-entropy and the final norm. */
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/backward/stages.h"

enum { LOGIT_ROWS = 64 };       /* rows at a time, as in the forward pass */

double m3_backward_logits(struct m3_backward *b, enum m3_tap tap, real *d_normed, const real *normed,
                          const int32_t *labels, double weight)
{
    struct m3_pass *f = &b->f;
    const struct m3_weight *w = &b->model->lm_head;
    const int64_t T = f->rows, H = f->config->H, V = f->config->V;
    real *z = m3_pass_need(f, m3_min(T, LOGIT_ROWS), V, sizeof *z);
    double loss = 0;
    for (f->row = 0; !f->status && f->row < T; f->row += LOGIT_ROWS) {
        f->rows = m3_min(LOGIT_ROWS, T - f->row);
        linear(f, prepares(tap), z, normed + f->row * H, w);
        cross_entropy_back(b, (int)tap, &loss, z, labels + f->row, weight);
        linear_back(b, prepares(tap), d_normed + f->row * H, z, normed + f->row * H, w);
    }
    f->row = 0;
    f->rows = T;
    free(z);
    return loss;
}

/* trace.d_given holds the gradient of the normed hidden states from the modules. */
void m3_backward_head(struct m3_backward *b)
{
    struct m3_pass *f = &b->f;
    const struct m3_weight *w = &b->model->final_norm;
    struct m3_trace *trace = &b->traces[b->b];
    const real *hidden = f->status ? NULL : trace->hidden[b->model->config.layers];
    const int64_t T = f->rows, H = f->config->H;
    real *normed = m3_pass_need(f, T, H, sizeof *normed), *d = m3_pass_need(f, T, H, sizeof *d);
    int32_t *labels = m3_pass_need(f, T, 1, sizeof *labels);
    for (int64_t t = 0; labels && t < T; t++) labels[t] = t + 1 < T ? b->request->labels[b->b][t + 1] : -1;
    f->layer = -1;
    if (b->request->weights.lm != 0) {
        rms_norm(f, prepares(M3_TAP_FINAL_NORM), normed, hidden, w);
        b->losses->lm += m3_backward_logits(b, M3_TAP_LOGITS, d, normed, labels, b->request->weights.lm);
        add(f, prepares(M3_TAP_FINAL_NORM), trace->d_given, trace->d_given, d);
    }
    shown(b, M3_TAP_FINAL_NORM, trace->d_given);
    rms_norm_back(b, prepares(M3_TAP_FINAL_NORM), trace->d, trace->d_given, hidden, w);
    free(normed);
    free(d);
    free(labels);
}
