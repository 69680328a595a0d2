#include "estimate/private/parts.h"

const char *const m3_ratio_names[M3_RATIOS] = {
    "main_branch", "layer_qk_with_index", "layer_attention", "model_attention", "model_without_lm_head",
    "model_with_lm_head", "layer_attention_prefill_causal",
};

/* n(T): the blocks kept, of which the own one counts only up to the query. */
static int64_t keys_of_last(const struct m3_config *c, int64_t T)
{
    int64_t blocks = (T + c->block - 1) / c->block, last = T - (blocks - 1) * c->block;
    return ((blocks < c->N ? blocks : c->N) - 1) * c->block + last;
}

/* S(T), the sum of n(t) over t = 1 .. T. Behind N * block places every block of queries adds the same. */
static m3_wide keys_of_all(const struct m3_config *c, int64_t T)
{
    m3_wide kept = (m3_wide)c->N * c->block, block = c->block;
    if (T <= kept) return (m3_wide)T * (T + 1) / 2;
    m3_wide whole = (T - kept) / block, rest = (T - kept) % block;
    return kept * (kept + 1) / 2 + whole * (block * block * (c->N - 1) + block * (block + 1) / 2)
         + rest * block * (c->N - 1) + rest * (rest + 1) / 2;
}

/* `pairs` of query and key in a full layer, `kept` in the main branch of a sparse one; `tokens` go through the layers,
 * `heads` of them through lm_head. A multiply and an add are two. */
static void count(struct m3_estimate *e, struct m3_flops *f, m3_wide pairs, m3_wide kept, m3_wide tokens, m3_wide heads)
{
    const struct m3_config *c = e->config;
    f->full_attention = m3_exact(e, e->full * 4 * c->Q * c->D * pairs);
    f->msa_index = m3_exact(e, e->sparse * 2 * c->G * c->X * pairs);
    f->msa_main = m3_exact(e, e->sparse * 4 * c->Q * c->D * kept);
    f->projections = m3_exact(e, c->layers * 2 * (2 * c->H * c->Q * c->D + 2 * c->H * c->G * c->D) * tokens);
    f->index_projections = m3_exact(e, e->sparse * 2 * c->H * (c->G + 1) * c->X * tokens);
    f->dense_mlp = m3_exact(e, e->dense * 6 * c->H * c->dense_intermediate * tokens);
    f->moe_shared = m3_exact(e, e->moe * 6 * c->H * c->shared_intermediate * tokens);
    f->moe_routed = m3_exact(e, e->moe * c->K * 6 * c->H * c->F * tokens);
    f->moe_router = m3_exact(e, e->moe * 2 * c->H * c->E * tokens);
    f->moe = m3_exact(e, (m3_wide)f->moe_shared + f->moe_routed + f->moe_router);
    f->lm_head = m3_exact(e, 2 * c->H * c->V * heads);
    f->total = m3_exact(e, (m3_wide)f->full_attention + f->msa_index + f->msa_main + f->projections
                               + f->index_projections + f->dense_mlp + f->moe + f->lm_head);
}

static struct m3_fraction fraction(struct m3_estimate *e, m3_wide over, m3_wide under)
{
    m3_wide a = over, b = under;
    while (b) {
        m3_wide rest = a % b;
        a = b;
        b = rest;
    }
    return (struct m3_fraction){ m3_exact(e, over / a), m3_exact(e, under / a) };
}

static void count_ratios(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const m3_wide T = e->request.context, pairs = T * (T + 1) / 2;
    const m3_wide index = (m3_wide)2 * c->G * c->X, main = (m3_wide)4 * c->Q * c->D;
    const m3_wide sparse = e->sparse * (index * T + main * e->keys_main), head = e->decode.lm_head;
    struct m3_fraction *r = e->ratios;

    r[M3_RATIO_MAIN_BRANCH] = fraction(e, T, e->keys_main);
    r[M3_RATIO_LAYER_QK] = fraction(e, main / 2 * T, index * T + main / 2 * e->keys_main);
    r[M3_RATIO_LAYER] = fraction(e, main * T, index * T + main * e->keys_main);
    r[M3_RATIO_MODEL_ATTENTION] = fraction(e, c->layers * main * T, e->full * main * T + sparse);
    r[M3_RATIO_WITHOUT_LM_HEAD] = fraction(e, e->decode_all_full - head, e->decode.total - head);
    r[M3_RATIO_WITH_LM_HEAD] = fraction(e, e->decode_all_full, e->decode.total);
    r[M3_RATIO_LAYER_PREFILL] = fraction(e, main * pairs, index * pairs + main * e->keys_main_prefill);
}

void m3_estimate_flops(struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const m3_wide T = e->request.context;
    if (e->sparse) {
        e->keys_main = keys_of_last(c, e->request.context);
        e->keys_main_prefill = m3_exact(e, keys_of_all(c, e->request.context));
        e->block_maxima = m3_exact(e, c->G * T);
        e->candidates = m3_exact(e, c->G * ((T + c->block - 1) / c->block));
    }
    count(e, &e->decode, T, e->keys_main, 1, 1);
    count(e, &e->prefill, e->request.no_causal_skip ? T * T : T * (T + 1) / 2, e->keys_main_prefill, T,
          e->request.all_logits ? T : 1);
    e->decode_step = m3_exact(e, (m3_wide)e->decode.total * e->request.batch);

    m3_wide attention = (m3_wide)e->decode.full_attention + e->decode.msa_index + e->decode.msa_main;
    e->decode_linear = m3_exact(e, e->decode.total - attention);
    e->decode_all_full = m3_exact(e, (m3_wide)e->decode_linear - e->decode.index_projections
                                         + c->layers * 4 * c->Q * c->D * T);
    if (e->sparse && !e->overflow) count_ratios(e);
}
