/* Layouts: what one card holds, against a count of every tensor on it; times against formulas in double.
 *
 * Seen to fail with: key/value heads divided without being repeated; index keys divided; experts divided by ep alone, or
 * by tp alone; the router divided; embedding and lm_head on each stage; a tied embedding missing from the last stage;
 * layers left over on the last stage; sequences rounded down; the largest batch of one replica only; pipeline stages that do not wait. */
#include "estimates.h"

#define TINY "golden/tiny/model/config.json"

struct heap {
    double weights, keys, activations;
};

/* Numbers of the matrices, vectors and caches of one card of stage s, one by one. */
static struct heap count_card(const struct m3_config *c, const struct m3_estimate_request *r, int64_t s)
{
    const struct m3_layout *l = &r->layout;
    const double tp = (double)l->tp, H = (double)c->H, D = (double)c->D, X = (double)c->X, T = (double)r->context;
    const double heads = (double)c->Q / tp, pairs = c->G > l->tp ? (double)c->G / tp : 1;
    const int64_t each = c->layers / l->pp, over = c->layers % l->pp;
    const double replicas = (double)l->dp, sequences = ceil((double)r->batch / replicas);
    struct heap card = { 0, 0, 0 };
    double widest = 0, wide_moe = 0, wide_dense = 0;
    int64_t first = 0;
    for (int64_t i = 0; i < s; i++) first += each + (i < over);
    for (int64_t i = first; i < first + each + (s < over); i++) {
        card.weights += heads * D * H + pairs * D * H + pairs * D * H + H * heads * D;      /* q, k, v, o */
        card.weights += H + H + (double)(m3_config_size(c, 'q') + m3_config_size(c, 'k'));  /* norms */
        card.keys += sequences * 2 * pairs * D * T;
        if (m3_config_sparse(c, i)) {
            card.weights += pairs * X * H + X * H + X + X;
            card.keys += sequences * X * T;
        }
        if (m3_config_moe(c, i)) {
            const double experts = (double)c->E / (double)l->ep, parts = l->ep < l->tp ? tp / (double)l->ep : 1;
            card.weights += experts * 3 * H * (double)c->F / parts + (double)c->E * H + (double)c->E;
            card.weights += 3 * H * (double)c->shared_intermediate / tp;
        } else card.weights += 3 * H * (double)c->dense_intermediate / tp;
    }
    if (s == 0) {
        const struct m3_vision_config *v = &c->vision;
        struct m3_census all;
        m3_census_of_config(&all, c, 0, M3_MTP_CONCAT);
        card.weights += (double)c->V * H / tp;
        if (v->present)
            card.weights +=
                (double)(all.of[M3_COMPONENT_VISION_TOWER].parameters + all.of[M3_COMPONENT_PROJECTOR].parameters);
    }
    if (s == l->pp - 1) {
        card.weights += H;
        if (!c->tied_embeddings || s > 0) card.weights += (double)c->V * H / tp;
        card.activations = sequences * 4 * ceil((double)c->V / tp);
    }
    for (int64_t i = 0; i < c->layers; i++) {
        const double parts = l->ep < l->tp ? tp / (double)l->ep : 1;
        if (m3_config_moe(c, i))
            wide_moe = replicas * (double)c->K / (double)l->ep * (2 * H + 3 * (double)c->F / parts) +
                       3 * (double)c->shared_intermediate / tp;
        else wide_dense = 3 * (double)c->dense_intermediate / tp;
    }
    widest = wide_moe > wide_dense ? wide_moe : wide_dense;
    card.activations += ceil((double)l->chunk * (2 * (3 * H + 2 * heads * D + 2 * pairs * D + widest) +
                                                 (c->N ? 4 * pairs * ceil(T / (double)c->block) : 0)));
    return card;
}

static const struct {
    const char *config;
    int64_t tp, pp, dp, ep, batch, context;
} layouts[] = {
    { M3, 1, 1, 1, 1, 1, 131072 },    { M3, 8, 1, 1, 8, 5, 131072 },    { M3, 8, 1, 1, 1, 3, 1000 },
    { M3, 16, 1, 1, 16, 7, 1 << 20 }, { M3, 4, 4, 2, 8, 9, 131072 },    { M3, 8, 2, 4, 32, 33, 65537 },
    { M3, 2, 7, 1, 2, 1, 4096 },      { M3, 1, 1, 16, 16, 40, 131072 }, { TINY, 2, 1, 1, 1, 3, 38 },
    { TINY, 1, 2, 11, 11, 20, 38 },   { TINY, 1, 5, 1, 1, 2, 17 },
};

static struct m3_estimate_request asked(int i)
{
    struct m3_estimate_request r = request(layouts[i].context, layouts[i].batch, "bf16", "bf16");
    r.layout = (struct m3_layout){ layouts[i].tp, layouts[i].pp, layouts[i].dp, layouts[i].ep, 4096 };
    r.gpus = layouts[i].tp * layouts[i].pp * layouts[i].dp;
    return r;
}

LOOP_TEST(a_card_holds, sizeof layouts / sizeof layouts[0])
{
    struct m3_config config;
    struct m3_error error = { 0 };
    read_config(&config, layouts[_i].config);
    for (int tied = 0; tied < 2; tied++) {
        config.tied_embeddings = tied;
        const struct m3_estimate_request r = asked(_i);
        struct heap card, fullest = { 0, 0, 0 };
        double most = 0;
        ck_assert_int_eq(m3_layout_check(&r.layout, &config, &error), M3_OK);
        for (int64_t s = 0; s < r.layout.pp; s++) {
            card = count_card(&config, &r, s);
            const double bytes = ceil(2 * card.weights) + 2 * card.keys + card.activations;
            if (bytes <= most) continue;
            most = bytes;
            fullest = card;
        }
        struct m3_estimate e = estimate(&config, &r);
        ck_assert_double_eq_tol(m3_quantity(&e, "layout.weight_bytes_per_card"), 2 * fullest.weights, 1);
        ck_assert_double_eq_tol(m3_quantity(&e, "layout.kv_bytes_per_card"), 2 * fullest.keys, 0.5);
        ck_assert_double_eq_tol(m3_quantity(&e, "layout.activation_bytes_per_card"), fullest.activations, 1);
        ck_assert_double_eq_tol(m3_quantity(&e, "layout.memory_bytes_per_card"), most, 2);
    }
    m3_config_free(&config);
}

/* All cards together hold the model once, except what the layout says is on several cards. */
TEST(one_card_holds_all)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = asked(0);
    struct m3_estimate e = estimate(&config, &r);
    ck_assert_int_eq(m3_whole(&e, "layout.weight_bytes_per_card"), 854080280320);
    ck_assert_int_eq(m3_whole(&e, "layout.kv_bytes_per_card"), m3_whole(&e, "kv_bytes.total"));
    ck_assert_double_eq_tol(m3_quantity(&e, "layout.read_bytes"), m3_quantity(&e, "decode_read_bytes.total"), 1);
    r.weights = m3_format_named("int4");
    e = estimate(&config, &r);
    ck_assert_int_eq(m3_whole(&e, "layout.weight_bytes_per_card"), m3_whole(&e, "weight_bytes"));
    m3_config_free(&config);
}

/* 8 cards of 141 GB with 64 heads: literals worked out by hand. */
TEST(eight_cards)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = asked(1);
    r.layout.chunk = 8192;
    r.gpu = m3_gpu_named("h200");
    r.card_bytes = r.gpu->vendor_bytes;
    struct m3_estimate e = estimate(&config, &r);
    static const struct literal literals[] = {
        { "layout.query_heads_per_card", 8 },
        { "layout.kv_heads_per_card", 1 },
        { "layout.experts_per_card", 16 },
        { "layout.kv_bytes_per_sequence", 131072 * (60 * 2 * 128 * 2 + 57 * 128 * 2LL) },
        { "layout.max_batch", 5 },
    };
    CHECK(&e, literals);
    ck_assert(m3_layout_fits(&e));
    const double seconds = m3_quantity(&e, "layout.read_bytes") / 4.8e12;
    ck_assert_double_eq_tol(m3_quantity(&e, "layout.step_seconds"), 2 * seconds, 1e-12);
    ck_assert_double_eq_tol(m3_quantity(&e, "layout.tokens_per_second"), 5 / (2 * seconds), 1e-6);
    r.batch = 6;
    e = estimate(&config, &r);
    ck_assert(!m3_layout_fits(&e));

    /* 141 - 31.11 GB of weights - 0.57 of activations leave room for 18 sequences of 5.94 GB on each of 4 replicas. */
    r.layout.dp = 4;
    r.layout.ep = 32;
    e = estimate(&config, &r);
    ck_assert_int_eq(m3_whole(&e, "layout.max_batch"), 4 * 18);
    m3_config_free(&config);
}

/* Two stages: the second waits for the first chunk, then both work. */
TEST(prefill_of_stages)
{
    struct m3_config config;
    read_config(&config, M3);
    struct m3_estimate_request r = asked(0);
    r.layout = (struct m3_layout){ 8, 2, 1, 8, 32768 };
    r.efficiency = 100;
    r.gpu = m3_gpu_named("b200");
    r.card_bytes = r.gpu->vendor_bytes;
    struct m3_estimate e = estimate(&config, &r);
    const double total = m3_quantity(&e, "flops_prefill.total") / (8 * 2.25e15), chunk_of_stage = total / 4 / 2;
    ck_assert_double_eq_tol(m3_quantity(&e, "layout.prefill_seconds"), 5 * chunk_of_stage, 1e-12);
    m3_config_free(&config);
}

static const struct {
    int64_t tp, pp, dp, ep;
    const char *says;
} wrong[] = {
    { 3, 1, 1, 3, "--tp: got 3, expected a divisor of the number of query heads, 64" },
    { 128, 1, 1, 1, "--tp: got 128, expected a divisor of the number of query heads, 64" },
    { 1, 61, 1, 1, "--pp: got 61, expected at most the number of layers, 60" },
    { 8, 1, 1, 3, "--ep: got 3, expected a divisor of the number of experts, 128" },
    { 8, 1, 1, 16, "--ep: got 16, expected a divisor of tp * dp, 8" },
};

LOOP_TEST(refused, sizeof wrong / sizeof wrong[0])
{
    struct m3_config config;
    struct m3_error error = { 0 };
    const struct m3_layout layout = { wrong[_i].tp, wrong[_i].pp, wrong[_i].dp, wrong[_i].ep, 1 };
    read_config(&config, M3);
    ck_assert_int_eq(m3_layout_check(&layout, &config, &error), M3_USAGE);
    ck_assert_ptr_nonnull(strstr(error.text, wrong[_i].says));
    m3_error_free(&error);
    m3_config_free(&config);
}
