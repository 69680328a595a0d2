/* The balance loss of the router: over the rows of all MoE layers together; with aux=sigmoid a sum over layers. */
#include "model/backward/stages.h"
#include "train/losses.h"

static int by_layer(const struct m3_backward *b) { return b->request->readings.aux == M3_AUX_SIGMOID; }

static struct m3_router_counts *counts_of(struct m3_backward *b, int64_t layer)
{
    return &b->counts[by_layer(b) ? layer : 0];
}

void m3_backward_count(struct m3_backward *b, int64_t layer, const real *logits, const int32_t *ids, int64_t row,
                       int64_t rows)
{
    const int64_t E = b->model->config.E, K = b->model->config.K;
    const unsigned char *seen = b->how.seen ? b->how.seen + row : NULL;
    struct m3_router_counts *c = counts_of(b, layer);
    if (!by_layer(b)) c->rows += m3_balance_count(c->chosen, c->mass, logits, seen, rows, E, K);
    else if (logits) c->rows += m3_balance_sigmoid_mass(c->mass, logits, seen, rows, E);
    else m3_balance_sigmoid_chosen(c->chosen, ids, seen, rows, K);
}

void m3_backward_balance_loss(struct m3_backward *b)
{
    const int64_t E = b->model->config.E, K = b->model->config.K;
    if (b->f.status || b->request->weights.aux == 0) return;
    for (int64_t l = 0; l < (by_layer(b) ? b->model->config.layers : 1); l++) {
        const struct m3_router_counts *c = &b->counts[l];
        if (c->rows == 0) continue;             /* not a MoE layer */
        b->losses->aux += by_layer(b) ? m3_balance_sigmoid_loss(c->chosen, c->mass, c->rows, E, K)
                                      : m3_balance_loss(c->chosen, c->mass, c->rows, E);
    }
}

void m3_backward_balance(struct m3_backward *b, real *d_logits)
{
    const double weight = b->request->weights.aux;
    const int64_t E = b->model->config.E, K = b->model->config.K, rows = b->f.rows;
    if (b->f.status || weight == 0 || m3_mtp_module_of(b->f.layer) >= 0) return;
    const struct m3_router_counts *c = counts_of(b, b->f.layer);
    const real *logits = b->kept.at[M3_TAP_ROUTER_LOGITS];
    if (by_layer(b)) m3_balance_sigmoid_gradient(d_logits, logits, c->chosen, b->how.seen, rows, E, K, c->rows, weight);
    else m3_balance_gradient(d_logits, logits, c->chosen, b->how.seen, rows, E, c->rows, weight);
}
