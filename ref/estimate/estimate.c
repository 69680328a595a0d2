#include <inttypes.h>
#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"

int64_t m3_exact(struct m3_estimate *e, m3_wide value)
{
    if (value >= 0 && value <= INT64_MAX) return (int64_t)value;
    e->overflow = 1;
    return 0;
}

m3_wide m3_packed_bytes(m3_wide count, const struct m3_format *format) { return (count * format->bits + 7) / 8; }

const struct m3_format *m3_format_named(const char *name)
{
    static const struct m3_format formats[] = {
        { "f32", 32 }, { "bf16", 16 }, { "f16", 16 }, { "fp8", 8 }, { "int4", 4 }, { "fp4", 4 },
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(name, formats[i].name) == 0) return &formats[i];
    return NULL;
}

int m3_splits_experts(const struct m3_estimate *e) { return e->moe && e->config->E % e->request.gpus == 0; }

/* The kinds of attention and of MLP are independent of each other. */
static void count_layers(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    for (int64_t l = 0; l < c->layers; l++) {
        e->sparse += m3_config_sparse(c, l);
        e->moe += m3_config_moe(c, l);
    }
    e->full = c->layers - e->sparse;
    e->dense = c->layers - e->moe;
    e->cached = c->layers + e->request.mtp_modules;
    e->indexed = e->sparse + (m3_config_sparse(c, c->layers) ? e->request.mtp_modules : 0);
}

/* The model's limit is the context unless another one is asked for. */
static int refuse(const struct m3_estimate *e, struct m3_error *error)
{
    const struct m3_estimate_request *r = &e->request;
    const int64_t most = e->config->max_positions;
    const int limit = r->context == (most < M3_MOST_CONTEXT ? most : M3_MOST_CONTEXT);
    return m3_fail(error, M3_USAGE, "estimate: got a figure beyond 2^63 with a context of %" PRId64 "%s and a batch "
                   "of %" PRId64 "%s, expected smaller ones", r->context,
                   limit ? " (max_position_embeddings)" : "", r->batch, r->grid_count ? " and the pictures" : "");
}

int m3_estimate(struct m3_estimate *e, const struct m3_config *config, const struct m3_estimate_request *request,
                struct m3_error *error)
{
    *e = (struct m3_estimate){ .config = config, .request = *request };
    if (request->foreign && request->foreign->few) {
        m3_estimate_few(e);
    } else {
        count_layers(e);
        m3_estimate_parameters(e);
        m3_estimate_flops(e);
        m3_estimate_pictures(e);
        m3_estimate_caches(e);
        m3_estimate_reads(e);
    }
    m3_estimate_memory(e);
    m3_estimate_time(e);
    m3_estimate_spread(e);
    return e->overflow ? refuse(e, error) : M3_OK;
}
