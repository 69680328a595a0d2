/* The alignment loss of a sparse layer's index branch, and its gradient: of the index branch alone. */
#include <stdlib.h>

#include "model/backward/stages.h"

/* The rows that the loss is divided by. Rows of padding add nothing to it. */
static int64_t rows_of(const struct m3_gradient_request *r)
{
    const int all = r->readings.kl_rows == M3_KL_EVERY;
    int64_t rows = all ? r->padding : 0;
    for (int64_t i = 0; i < r->count; i++)
        for (int64_t t = 0; t < r->sequences[i].T; t++) rows += all || !r->sequences[i].seen || r->sequences[i].seen[t];
    return rows;
}

void m3_backward_index(struct m3_backward *b, const struct m3_layer *w)
{
    struct m3_pass *f = &b->f;
    const struct m3_config *c = f->config;
    const struct m3_kept *kept = &b->kept;
    const int64_t rows = rows_of(b->request);
    real *dq = m3_pass_need(f, f->rows, c->G * c->X, sizeof *dq), *dk = m3_pass_need(f, f->rows, c->X, sizeof *dk);
    index_loss_back(b, &b->losses->kl, dq, dk, rows, b->request->weights.kl);
    rope_back(b, M3_TAP_INDEX_Q_NORM, dq, dq, &b->angles);
    rope_back(b, M3_TAP_INDEX_K_NORM, dk, dk, &b->angles);
    rms_norm_back(b, M3_TAP_INDEX_Q_PROJ, dq, dq, kept->at[M3_TAP_INDEX_Q_PROJ], &w->index_q_norm);
    rms_norm_back(b, M3_TAP_INDEX_K_PROJ, dk, dk, kept->at[M3_TAP_INDEX_K_PROJ], &w->index_k_norm);
    linear_back(b, prepares(M3_TAP_ATTN_NORM), NULL, dq, kept->at[M3_TAP_ATTN_NORM], &w->index_q_proj);
    linear_back(b, prepares(M3_TAP_ATTN_NORM), NULL, dk, kept->at[M3_TAP_ATTN_NORM], &w->index_k_proj);
    free(dq);
    free(dk);
}
