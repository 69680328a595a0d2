#include <inttypes.h>
#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"

const struct m3_format *m3_format_named(const char *name)
{
    static const struct m3_format formats[] = {
        { "f32", 32 }, { "bf16", 16 }, { "f16", 16 }, { "fp8", 8 }, { "int4", 4 }, { "fp4", 4 },
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(name, formats[i].name) == 0) return &formats[i];
    return NULL;
}

const struct m3_foreign *m3_few_numbers(const struct m3_estimate *e)
{
    return e->request.foreign && e->request.foreign->few ? e->request.foreign : NULL;
}

int m3_splits_experts(const struct m3_estimate *e) { return e->moe && e->config->E % e->request.gpus == 0; }

/* Counts layers by kind; the kinds of attention and of MLP are independent. */
static void count_layers(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    e->full = c->layers;
    if (m3_few_numbers(e)) return;
    for (int64_t l = 0; l < c->layers; l++) {
        e->sparse += m3_config_sparse(c, l);
        e->moe += m3_config_moe(c, l);
    }
    e->full -= e->sparse;
    e->dense = c->layers - e->moe;
    e->cached = c->layers + e->request.mtp_modules;
    e->indexed = e->sparse + (m3_config_sparse(c, c->layers) ? e->request.mtp_modules : 0);
}

/* The context is the model's limit unless another one is requested. */
static int refuse(const struct m3_estimate *e, struct m3_error *error)
{
    const struct m3_estimate_request *r = &e->request;
    const int64_t most = e->config->max_positions;
    const int limit = r->context == (most < M3_MOST_CONTEXT ? most : M3_MOST_CONTEXT);
    return m3_fail(error, M3_USAGE,
                   "estimate: got a figure beyond 2^63 with a context of %" PRId64 "%s and a batch "
                   "of %" PRId64 "%s, expected smaller ones",
                   r->context, limit ? " (max_position_embeddings)" : "", r->batch,
                   r->grid_count ? " and the pictures" : "");
}

int m3_estimate(struct m3_estimate *e, const struct m3_config *config, const struct m3_estimate_request *request,
                struct m3_error *error)
{
    *e = (struct m3_estimate){ .config = config, .request = *request };
    if (!e->request.efficiency) e->request.efficiency = M3_EFFICIENCY;
    count_layers(e);
    e->has_spread = request->gpu && m3_splits_experts(e) && config->K <= M3_MOST_SPREAD;
    e->conditions = m3_figure_conditions(e);
    m3_estimate_parameters(e);
    m3_estimate_pictures(e);
    m3_estimate_experts(e);
    int status = request->layout.tp ? m3_estimate_layout(e, error) : m3_estimate_figures(e, error);
    return !status && e->overflow ? refuse(e, error) : status;
}
