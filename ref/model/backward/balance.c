/* The balance loss of the router: over the rows of all MoE layers together. */
#include "model/backward/stages.h"
#include "train/losses.h"

void m3_backward_count(struct m3_backward *b, const real *logits, int64_t rows)
{
    b->routed +=
        m3_balance_count(b->chosen, b->mass, logits, b->how.seen, rows, b->model->config.E, b->model->config.K);
}

void m3_backward_balance_loss(struct m3_backward *b)
{
    if (!b->f.status && b->request->weights.aux != 0)
        b->losses->aux = m3_balance_loss(b->chosen, b->mass, b->routed, b->model->config.E);
}

void m3_backward_balance(struct m3_backward *b, real *d_logits)
{
    const double weight = b->request->weights.aux;
    if (b->f.status || weight == 0 || m3_mtp_module_of(b->f.layer) >= 0) return;
    m3_balance_gradient(d_logits, b->kept.at[M3_TAP_ROUTER_LOGITS], b->chosen, b->how.seen, b->f.rows,
                        b->model->config.E, b->routed, weight);
}
