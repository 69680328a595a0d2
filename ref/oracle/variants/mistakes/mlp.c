/* Mistakes in the MLP, the router, the experts and stored weights. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/math.h"

/* ---- the activation */

static double sig(double x) { return 1 / (1 + m3_exp(-x)); }
static double clamp_gate(double gate, const struct m3_activation *act) { return gate > act->limit ? act->limit : gate; }
static double clamp_up(double up, const struct m3_activation *act)
{
    return up > act->limit ? act->limit : up < -act->limit ? -act->limit : up;
}

static double right(double gate, double up, const struct m3_activation *act)
{
    const double g = clamp_gate(gate, act);
    return (clamp_up(up, act) + 1) * g * sig(act->alpha * g);
}

static double silu(double gate, double up, const struct m3_activation *act)
{
    (void)act;
    return up * gate * sig(gate);
}

static double no_alpha_no_one(double gate, double up, const struct m3_activation *act)
{
    const double g = clamp_gate(gate, act);
    return clamp_up(up, act) * g * sig(g);
}

static double no_alpha(double gate, double up, const struct m3_activation *act)
{
    const double g = clamp_gate(gate, act);
    return (clamp_up(up, act) + 1) * g * sig(g);
}

static double no_one(double gate, double up, const struct m3_activation *act)
{
    const double g = clamp_gate(gate, act);
    return clamp_up(up, act) * g * sig(act->alpha * g);
}

static double no_clamp(double gate, double up, const struct m3_activation *act)
{
    return (up + 1) * gate * sig(act->alpha * gate);
}

static double up_from_above(double gate, double up, const struct m3_activation *act)
{
    const double g = clamp_gate(gate, act), u = up > act->limit ? act->limit : up;
    return (u + 1) * g * sig(act->alpha * g);
}

static double swapped(double gate, double up, const struct m3_activation *act) { return right(up, gate, act); }

int m3_mistaken_swiglu(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                       const struct m3_activation *act)
{
    for (int64_t i = 0; i < T * F; i++) y[i] = m3_run_of(ctx)->change->gated(gate[i], up[i], act);
    return M3_OK;
}

/* ---- experts */

int m3_mistaken_experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                        const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E,
                        int64_t K, real factor)
{
    const struct m3_change *change = m3_run_of(ctx)->change;
    const int64_t H = experts[0].w1.cols, F = experts[0].w1.rows;
    const size_t mark = m3_scratch_mark(ctx);
    real *gate = m3_scratch_take(ctx, 3 * F + H, sizeof *gate);
    if (!gate) return M3_INTERNAL;
    real *up = gate + F, *y = up + F, *out = y + F;
    int status = M3_OK;
    memset(routed, 0, (size_t)(T * H) * sizeof *routed);
    for (int64_t i = 0; i < E * T * K && !status; i++) {        /* ordered by expert, then by slot */
        const int64_t e = i / (T * K), slot = i % (T * K), t = slot / K;
        if (ids[slot] != e) continue;
        status = m3_right()->linear(ctx, gate, x + t * H, &experts[e].w1, NULL, 1) ||
                 m3_right()->linear(ctx, up, x + t * H, &experts[e].w3, NULL, 1);
        for (int64_t f = 0; f < F; f++)         /* up follows gate: the two are one stack */
            y[f] = change->interleaved ? change->gated(gate[2 * f], gate[2 * f + 1], act)
                                       : change->gated(gate[f], up[f], act);
        if (!status) status = m3_right()->linear(ctx, out, y, &experts[e].w2, NULL, 1);
        for (int64_t h = 0; h < H; h++) routed[t * H + h] += factor * p[slot] * out[h];
        if (each) memcpy(each + slot * H, out, (size_t)H * sizeof *each);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

static int other_factor(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                        const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E,
                        int64_t K, real factor)
{
    real all = 1;
    for (int i = 0; i < m3_run_of(ctx)->change->factors; i++) all *= factor;
    return m3_right()->experts(ctx, routed, each, x, ids, p, experts, act, T, E, K, all);
}

/* y := routed + factor * shared, in place of their sum. */
static int scaled_shared(struct m3_ctx *ctx, real *y, const real *routed, const real *shared, int64_t n)
{
    if (m3_tap_being_made(ctx) != M3_TAP_MLP) return m3_right()->add(ctx, y, routed, shared, n);
    for (int64_t i = 0; i < n; i++) y[i] = routed[i] + m3_run_of(ctx)->model.config.routed_scaling * shared[i];
    return M3_OK;
}

static int no_shared(struct m3_ctx *ctx, real *y, const real *routed, const real *shared, int64_t n)
{
    if (m3_tap_being_made(ctx) != M3_TAP_MLP) return m3_right()->add(ctx, y, routed, shared, n);
    memmove(y, routed, (size_t)n * sizeof *y);
    return M3_OK;
}

/* ---- router */

static int router_bf16_in(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    struct m3_weight *both[] = { &run->model.layers[l].router, &run->model.layers[l].router_bias };
    int status = M3_OK;
    for (int i = 0; i < 2 && both[i]->data && !status; i++) status = m3_round_weight(run, both[i], 8, error);
    return status;
}

static int router_bf16(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, router_bf16_in);
}

/* p := scores of the right experts, with `more` of the bias; divided by their sum or not. */
static int weigh(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                 int64_t K, double more, int divided)
{
    int status = m3_right()->route(ctx, ids, p, s, bias, T, E, K);
    for (int64_t t = 0; t < T && !status; t++) {
        double sum = 0;
        for (int64_t i = t * K; i < t * K + K; i++) sum += p[i] = s[t * E + ids[i]] + more * bias[ids[i]];
        for (int64_t i = t * K; i < t * K + K && divided; i++) p[i] /= sum;
    }
    return status;
}

static int bias_in_weights(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T,
                           int64_t E, int64_t K)
{
    return weigh(ctx, ids, p, s, bias, T, E, K, 1, 1);
}

static int no_renorm(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                     int64_t K)
{
    return weigh(ctx, ids, p, s, bias, T, E, K, 0, 0);
}

static int no_bias(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                   int64_t K)
{
    const size_t mark = m3_scratch_mark(ctx);
    real *zeros = m3_scratch_take(ctx, E, sizeof *zeros);
    (void)bias;
    if (!zeros) return M3_INTERNAL;
    memset(zeros, 0, (size_t)E * sizeof *zeros);
    int status = m3_right()->route(ctx, ids, p, s, zeros, T, E, K);
    m3_scratch_release(ctx, mark);
    return status;
}

static int softmax_scores(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    const int64_t E = m3_run_of(ctx)->model.config.E;
    for (int64_t t = 0; t < n / E; t++) {
        double max = -(double)INFINITY, sum = 0;
        for (int64_t i = t * E; i < t * E + E; i++) max = fmax(max, x[i]);
        for (int64_t i = t * E; i < t * E + E; i++) sum += y[i] = m3_exp(x[i] - max);
        for (int64_t i = t * E; i < t * E + E; i++) y[i] /= sum;
    }
    return M3_OK;
}

/* ---- 8-bit weights */

/* Replaces the numbers of each matrix with a scale per 32 columns. */
static int expand_layer(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    struct m3_layer *at = &run->model.layers[l];
    int status = m3_own_experts(run, l, error);
    struct m3_weight *of_layer[] = { &at->q_proj,       &at->k_proj, &at->v_proj, &at->o_proj, &at->index_q_proj,
                                     &at->index_k_proj, &at->gate,   &at->up,     &at->down };
    const int64_t count = 9 + (at->experts ? 3 * run->model.config.E : 0);
    for (int64_t i = 0; i < count && !status; i++) {
        struct m3_expert *e = i < 9 ? NULL : &at->experts[(i - 9) / 3];
        struct m3_weight *w = !e ? of_layer[i] : (i - 9) % 3 == 0 ? &e->w1 : (i - 9) % 3 == 1 ? &e->w3 : &e->w2;
        const struct m3_weight stored = *w;
        if (w->scaling != M3_SCALE_MX32) continue;
        double *numbers = m3_own_weight(run, w, error);
        if (!numbers) return M3_INTERNAL;
        run->change->expands(numbers, &stored);
    }
    return status;
}

static int expand_all(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, expand_layer);
}

/* Rounds to the nearest E4M3 number: 4 significant bits; below 2^-6 a grid of 2^-9. */
static double to_e4m3(double x)
{
    const double grid = 0x1p-9;
    return fabs(x) < 0x1p-6 ? nearbyint(x / grid) * grid : fmax(-448, fmin(448, m3_round_bits(x, 4)));
}

/* One scale per 128x128 numbers, which maps the largest of them to the largest code. */
static void requantise(double *w, const struct m3_weight *stored)
{
    for (int64_t r0 = 0; r0 < stored->rows; r0 += 128)
        for (int64_t c0 = 0; c0 < stored->cols; c0 += 128) {
            double most = 0;
            for (int pass = 0; pass < 2; pass++)
                for (int64_t r = r0; r < stored->rows && r < r0 + 128; r++)
                    for (int64_t c = c0; c < stored->cols && c < c0 + 128; c++) {
                        double *x = &w[r * stored->cols + c];
                        if (pass == 0) most = fmax(most, fabs(*x));
                        else if (most > 0) *x = to_e4m3(*x / (most / 448)) * (most / 448);
                    }
        }
}

/* The scales are read as if there were one per 128x128 codes. */
static void wrong_blocks(double *w, const struct m3_weight *stored)
{
    const struct m3_weight codes = {
        .data = stored->data, .dtype = stored->dtype, .rows = stored->rows, .cols = stored->cols
    };
    const unsigned char *scales = stored->scales;
    const int64_t across = (stored->cols + 127) / 128;
    for (int64_t r = 0; r < stored->rows; r++) {
        m3_expand_f64(w + r * stored->cols, &codes, r, 0, stored->cols);
        for (int64_t c = 0; c < stored->cols; c++)
            w[r * stored->cols + c] *= ldexp(1, scales[r / 128 * across + c / 128] - 127);
    }
}

static int all_dense(struct m3_mistaken_run *run, struct m3_error *error)
{
    unsigned char *none = m3_own(run, run->model.config.layers, 1, error);
    if (!none) return M3_INTERNAL;
    run->model.config.sparse = none;
    return M3_OK;
}

static const struct m3_mistake all[] = {
    { "act.silu", "SiLU(gate) up: alpha, the 1 and the clamps are lost", "*.mlp.act,*.moe.expert_out,*.moe.routed",
      M3_OP_ACTIVATION, M3_NEEDS_OAI, NULL, NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = silu) },
    { "act.params_dropped", "alpha and the 1 do not reach the experts' kernel", "*.moe.expert_out,*.moe.routed",
      M3_OP_EXPERT, M3_NEEDS_OAI | M3_NEEDS_EXPERTS, NULL, NULL,
      M3_CHANGE(.ops.experts = m3_mistaken_experts, .gated = no_alpha_no_one) },
    { "act.alpha", "alpha is 1", "*.mlp.act,*.moe.expert_out", M3_OP_ACTIVATION, M3_NEEDS_OAI, NULL, NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = no_alpha) },
    { "act.no_plus_one", "up, not up + 1", "*.mlp.act,*.moe.expert_out", M3_OP_ACTIVATION, M3_NEEDS_OAI, NULL, NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = no_one) },
    { "act.no_clamp", "gate and up are not clamped", "*.mlp.act,*.moe.expert_out", M3_OP_ACTIVATION, M3_NEEDS_OAI,
      "a gate or an up beyond the limit", NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = no_clamp) },
    { "act.gate_lower", "the gate is clamped below too", "*.mlp.act,*.moe.expert_out", M3_OP_ACTIVATION, M3_NEEDS_OAI,
      "a gate below the limit", "gate_clamp=both", NULL },
    { "act.up_upper", "up is clamped above alone", "*.mlp.act,*.moe.expert_out", M3_OP_ACTIVATION, M3_NEEDS_OAI,
      "an up below the limit", NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = up_from_above) },
    { "act.swap", "w1 and w3 of the experts are exchanged", "*.moe.expert_out", M3_OP_EXPERT,
      M3_NEEDS_OAI | M3_NEEDS_EXPERTS, NULL, NULL, M3_CHANGE(.ops.experts = m3_mistaken_experts, .gated = swapped) },
    { "act.interleaved", "rows of w1 and w3 are read in turn, as one stack", "*.moe.expert_out", M3_OP_EXPERT,
      M3_NEEDS_OAI | M3_NEEDS_EXPERTS, NULL, NULL,
      M3_CHANGE(.ops.experts = m3_mistaken_experts, .gated = right, .interleaved = 1) },
    { "router.bf16", "weights and bias of the router are rounded to bf16", "*.moe.router_logits", M3_OP_LINEAR,
      M3_NEEDS_EXPERTS, "router weights finer than bf16", NULL, M3_CHANGE(.prepare = router_bf16) },
    { "router.bias_in_weights", "weights are taken with the bias", "*.moe.weights", M3_OP_ROUTE, M3_NEEDS_EXPERTS,
      "a bias other than 0", NULL, M3_CHANGE(.ops.route = bias_in_weights) },
    { "router.no_bias", "experts are chosen without the bias", "*.moe.experts,*.moe.weights", M3_OP_NONE,
      M3_NEEDS_EXPERTS, "a bias that changes a choice", NULL, M3_CHANGE(.ops.route = no_bias) },
    { "router.softmax", "scores by softmax, not by sigmoid", "*.moe.router_scores", M3_OP_SIGMOID, M3_NEEDS_EXPERTS,
      NULL, NULL, M3_CHANGE(.ops.sigmoid = softmax_scores) },
    { "router.no_renorm", "weights are not divided by their sum", "*.moe.weights", M3_OP_ROUTE, M3_NEEDS_EXPERTS, NULL,
      NULL, M3_CHANGE(.ops.route = no_renorm) },
    { "moe.no_scale", "the routed experts' factor is missing", "*.moe.routed", M3_OP_ROUTED, M3_NEEDS_EXPERTS,
      "a factor other than 1", NULL, M3_CHANGE(.ops.experts = other_factor, .has_factors = 1) },
    { "moe.no_scale:twice", "the routed experts' factor is given twice", "*.moe.routed", M3_OP_ROUTED, M3_NEEDS_EXPERTS,
      "a factor other than 1", NULL, M3_CHANGE(.ops.experts = other_factor, .factors = 2, .has_factors = 1) },
    { "moe.scale_shared", "the shared expert gets the factor too", "*.mlp", M3_OP_ADD, M3_NEEDS_SHARED,
      "a factor other than 1", NULL, M3_CHANGE(.ops.add = scaled_shared) },
    { "moe.no_shared", "the shared expert is missing", "*.mlp", M3_OP_ADD, M3_NEEDS_SHARED, NULL, NULL,
      M3_CHANGE(.ops.add = no_shared) },
    { "quant.requant", "scales per 32 columns are replaced by scales per 128x128, codes rounded again", "*.q_proj",
      M3_OP_LINEAR, M3_NEEDS_MX32, NULL, NULL, M3_CHANGE(.prepare = expand_all, .expands = requantise) },
    { "quant.block_shape", "scales per 32 columns are read as scales per 128x128", "*.q_proj", M3_OP_LINEAR,
      M3_NEEDS_MX32, NULL, NULL, M3_CHANGE(.prepare = expand_all, .expands = wrong_blocks) },
    { "config.dense_default", "no layer is sparse, for the map of layers is not read", "*.attn_lse", M3_OP_ATTEND,
      M3_NEEDS_CHOICE, NULL, NULL, M3_CHANGE(.prepare = all_dense) },
};

const struct m3_mistake_section m3_mistakes_mlp = { all, sizeof all / sizeof all[0] };
