/* The items of gradients. Their operations are those of the forward pass, so that the share of its rate that they reach
 * is its time divided by theirs. */
#include "base/minmax.h"
#include "cli/bench/work.h"
#include "cli/cli.h"
#include "model/gradient.h"

void m3_bench_prepare_blocks_back(struct bench *m)
{
    m3_bench_prepare_blocks(m);
    m->a = m3_bench_numbers(m, m->T * Q * D, "d_o");
    m->b = m3_bench_need(m, (size_t)(m->T * Q * D), sizeof(real));
    m->c = m3_bench_need(m, (size_t)(m->T * G * D), sizeof(real));
    m->d = m3_bench_need(m, (size_t)(m->T * G * D), sizeof(real));
    if (m3_bench_attend_blocks(m)) m3_fail(m->error, M3_INTERNAL, "bench: %s", m->ctx.failure.what);
}

int m3_bench_blocks_back(struct bench *m)
{
    const struct m3_attend d = { .T = m->T, .Q = Q, .G = G, .D = D, .block = BLOCK, .N = N };
    const struct heads *h = &m->heads;
    return m->back->attend_blocks(&m->ctx, m->b, m->c, m->d, m->a, NULL, h->q, h->k, h->v, h->o, h->lse, h->blocks, &d);
}

/* Multiplications and additions of a forward pass: of the matrices that a token meets. */
static double operations_of(const struct m3_config *c)
{
    double sum = 0;
    for (int64_t l = 0; l < c->layers; l++) {
        const double attention = (double)(2 * (c->Q + c->G) * c->D + (m3_config_sparse(c, l) ? (c->G + 1) * c->X : 0));
        const int64_t widths = m3_config_moe(c, l) ? c->K * c->F + c->shared_intermediate : c->dense_intermediate;
        sum += 2 * (double)c->H * (attention + 3 * (double)widths);
    }
    return sum;
}

/* 512 tokens, each the label of the one before. */
void m3_bench_prepare_grad(struct bench *m)
{
    m->T = 512;
    m3_bench_open_model(m, "grad");
    if (!m->model) return;
    m->positions = m3_bench_need(m, (size_t)m->T, sizeof *m->positions);
    m->ids = m3_bench_need(m, (size_t)m->T, sizeof *m->ids);
    for (int64_t t = 0; t < m->T; t++) {
        m->positions[t] = t;
        m->ids[t] = (int32_t)((t * 197 + 31) % m->model->config.V);
    }
    m->operations = (double)m->T * operations_of(&m->model->config);
}

static struct m3_request request_of(const struct bench *m)
{
    return (struct m3_request){ .ids = m->ids,
                                .positions = m->positions,
                                .T = m->T,
                                .end_layer = m->model->config.layers,
                                .threads = (int)m->threads,
                                .semantics = &m->model->config.semantics };
}

int m3_bench_pass(struct bench *m)
{
    if (m->error->count) return (int)m->error->status;
    const struct m3_request request = request_of(m);
    return m3_engine_f32()->forward(m->model, &request, m->error);
}

int m3_bench_grad(struct bench *m)
{
    if (m->error->count) return (int)m->error->status;
    const struct m3_request sequence = request_of(m);
    struct m3_losses losses;
    const struct m3_gradient_request request = {
        .sequences = &sequence, .labels = &m->ids, .count = 1, .scored = m->T - 1, .weights = { .lm = 1 }
    };
    return m3_engine_f32()->gradient(m->model, &request, &losses, m->error);
}
