/* Mistakes in the MLP, the router and the experts. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
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

enum { TOGETHER = 32 };         /* slots of an expert, for which its matrices are read once */

/* Rows that chose one expert, and what it makes of them. */
struct chosen {
    int64_t slots[TOGETHER], n;
    real *x, *gate, *up, *y, *out;      /* [n, H], [n, F], [n, F], [n, F], [n, H] */
};

static int take_chosen(struct chosen *c, struct m3_ctx *ctx, int64_t H, int64_t F)
{
    c->x = m3_scratch_take(ctx, TOGETHER * (2 * H + 3 * F), sizeof *c->x);
    if (!c->x) return M3_INTERNAL;
    c->out = c->x + TOGETHER * H;
    c->gate = c->out + TOGETHER * H;
    c->up = c->gate + TOGETHER * F;
    c->y = c->up + TOGETHER * F;
    return M3_OK;
}

/* The next slots that chose expert e, from *slot on. */
static void choose(struct chosen *c, int64_t *slot, const real *x, const int32_t *ids, int64_t e, int64_t slots,
                   int64_t K, int64_t H)
{
    for (c->n = 0; *slot < slots && c->n < TOGETHER; ++*slot) {
        if (ids[*slot] != e) continue;
        memcpy(c->x + c->n * H, x + *slot / K * H, (size_t)H * sizeof *x);
        c->slots[c->n++] = *slot;
    }
}

/* Number i of a row's gate and up as one stack: up follows gate. */
static real stacked(const struct chosen *c, int64_t row, int64_t F, int64_t i)
{
    return i < F ? c->gate[row * F + i] : c->up[row * F + i - F];
}

static int activate(struct m3_ctx *ctx, struct chosen *c, const struct m3_activation *act, int64_t F)
{
    const struct m3_change *change = m3_run_of(ctx)->change;
    if (!change->gated)
        return act->oai ? m3_right()->swiglu_oai(ctx, c->y, c->gate, c->up, c->n, F, act)
                        : m3_right()->swiglu(ctx, c->y, c->gate, c->up, c->n, F);
    for (int64_t i = 0; i < c->n * F; i++) {
        const int64_t r = i / F, f = 2 * (i % F);
        c->y[i] = change->interleaved ? change->gated(stacked(c, r, F, f), stacked(c, r, F, f + 1), act)
                                      : change->gated(c->gate[i], c->up[i], act);
    }
    for (int64_t i = 0; i < c->n * F && change->is_half; i++)
        if (i % F >= (F + 1) / 2) c->y[i] = 0;
    return M3_OK;
}

static int apply_expert(struct m3_ctx *ctx, struct chosen *c, const struct m3_expert *e,
                        const struct m3_activation *act)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const struct m3_ops *last = run->reads_act ? &run->ops : m3_right();
    int status = m3_right()->linear(ctx, c->gate, c->x, &e->w1, NULL, c->n);
    if (!status) status = m3_right()->linear(ctx, c->up, c->x, &e->w3, NULL, c->n);
    if (!status) status = activate(ctx, c, act, e->w1.rows);
    return status ? status : last->linear(ctx, c->out, c->y, &e->w2, NULL, c->n);
}

int m3_mistaken_experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                        const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E,
                        int64_t K, real factor)
{
    const int64_t H = experts[0].w1.cols, F = experts[0].w1.rows;
    const size_t mark = m3_scratch_mark(ctx);
    struct chosen c = { .n = 0 };
    int status = take_chosen(&c, ctx, H, F);
    memset(routed, 0, (size_t)(T * H) * sizeof *routed);
    for (int64_t e = 0; e < E; e++)
        for (int64_t slot = 0; slot < T * K && !status;) {
            choose(&c, &slot, x, ids, e, T * K, K, H);
            if (c.n > 0) status = apply_expert(ctx, &c, &experts[e], act);
            for (int64_t i = 0; i < c.n * H && !status; i++) {
                const int64_t of = c.slots[i / H], h = i % H;
                routed[of / K * H + h] += factor * p[of] * c.out[i];
                if (each) each[of * H + h] = c.out[i];
            }
        }
    m3_scratch_release(ctx, mark);
    return status;
}

/* Outputs of experts are lost where the weight in `mine` is 0. */
static int some_experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids,
                        const real *mine, const struct m3_expert *experts, const struct m3_activation *act, int64_t T,
                        int64_t E, int64_t K, real factor)
{
    const int64_t H = experts[0].w1.cols;
    int status = m3_right()->experts(ctx, routed, each, x, ids, mine, experts, act, T, E, K, factor);
    for (int64_t i = 0; i < T * K && each && !status; i++)
        if (mine[i] == 0) memset(each + i * H, 0, (size_t)H * sizeof *each);
    return status;
}

/* An expert takes no more tokens than each would if all had as many. */
static int capped(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                  const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                  real factor)
{
    const int64_t most = (T * K + E - 1) / E;
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, T * K, sizeof *mine);
    int64_t *taken = m3_scratch_take(ctx, E, sizeof *taken);
    if (!mine || !taken) return M3_INTERNAL;
    memset(taken, 0, (size_t)E * sizeof *taken);
    for (int64_t i = 0; i < T * K; i++) mine[i] = taken[ids[i]]++ < most ? p[i] : 0;
    int status = some_experts(ctx, routed, each, x, ids, mine, experts, act, T, E, K, factor);
    m3_scratch_release(ctx, mark);
    return status;
}

/* One of two ranks has the first half of the experts. */
static int of_rank(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                   const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                   real factor)
{
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, T * K, sizeof *mine);
    if (!mine) return M3_INTERNAL;
    for (int64_t i = 0; i < T * K; i++) mine[i] = ids[i] < (E + 1) / 2 ? p[i] : 0;
    int status = some_experts(ctx, routed, each, x, ids, mine, experts, act, T, E, K, factor);
    m3_scratch_release(ctx, mark);
    return status;
}

/* The weights of expert e are those of expert e + by. */
static int later_expert(struct m3_mistaken_run *run, int64_t l, int64_t by, struct m3_error *error)
{
    const int64_t E = run->model.config.E;
    const struct m3_expert *stored = run->model.layers[l].experts;
    int status = m3_own_experts(run, l, error);
    for (int64_t e = 0; e < E && stored && !status; e++) run->model.layers[l].experts[e] = stored[(e + by) % E];
    return status;
}

static int next_expert_in(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    return later_expert(run, l, 1, error);
}

static int next_expert(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, next_expert_in);
}

static int other_rank_in(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    return later_expert(run, l, (run->model.config.E + 1) / 2, error);
}

static int other_rank(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, other_rank_in);
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

static const struct m3_mistake all[] = {
    { "act.silu", "SiLU(gate) up: alpha, the 1 and the clamps are lost",
      "*.mlp.act,*.moe.expert_out,*.moe.routed,*.moe.shared", M3_OP_ACTIVATION, M3_NEEDS_OAI, NULL, NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = silu) },
    { "act.params_dropped", "alpha and the 1 do not reach the experts' kernel", "*.moe.expert_out,*.moe.routed",
      M3_OP_EXPERT, M3_NEEDS_OAI | M3_NEEDS_EXPERTS, NULL, NULL,
      M3_CHANGE(.ops.experts = m3_mistaken_experts, .gated = no_alpha_no_one) },
    { "act.alpha", "alpha is 1", "*.mlp.act,*.moe.expert_out,*.moe.shared", M3_OP_ACTIVATION, M3_NEEDS_OAI, NULL, NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = no_alpha) },
    { "act.no_plus_one", "up, not up + 1", "*.mlp.act,*.moe.expert_out,*.moe.shared", M3_OP_ACTIVATION, M3_NEEDS_OAI,
      NULL, NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = no_one) },
    { "act.no_clamp", "gate and up are not clamped", "*.mlp.act,*.moe.expert_out,*.moe.shared", M3_OP_ACTIVATION,
      M3_NEEDS_OAI, "a gate or an up beyond the limit", NULL,
      M3_CHANGE(.ops.swiglu_oai = m3_mistaken_swiglu, .ops.experts = m3_mistaken_experts, .gated = no_clamp) },
    { "act.gate_lower", "the gate is clamped below too", "*.mlp.act,*.moe.expert_out,*.moe.shared", M3_OP_ACTIVATION,
      M3_NEEDS_OAI, "a gate below the limit", "gate_clamp=both", NULL },
    { "act.up_upper", "up is clamped above alone", "*.mlp.act,*.moe.expert_out,*.moe.shared", M3_OP_ACTIVATION,
      M3_NEEDS_OAI, "an up below the limit", NULL,
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
    { "moe.capacity", "an expert takes no more than T K / E tokens, later ones are dropped",
      "*.moe.expert_out,*.moe.routed", M3_OP_EXPERT, M3_NEEDS_EXPERTS, "experts chosen more often than others", NULL,
      M3_CHANGE(.ops.experts = capped) },
    { "moe.no_reduce", "the second half of the experts is lost: the sum over two ranks is missing",
      "*.moe.expert_out,*.moe.routed", M3_OP_EXPERT, M3_NEEDS_EXPERTS, NULL, NULL, M3_CHANGE(.ops.experts = of_rank) },
    { "moe.next_expert", "experts are numbered from 1: the weights of the next one are used", "*.moe.expert_out",
      M3_OP_EXPERT, M3_NEEDS_EXPERTS, NULL, NULL, M3_CHANGE(.prepare = next_expert) },
    { "moe.rank_order", "two ranks have each other's experts", "*.moe.expert_out", M3_OP_EXPERT, M3_NEEDS_EXPERTS, NULL,
      NULL, M3_CHANGE(.prepare = other_rank) },
    { "moe.half_expert", "the second half of each expert's rows is missing, as without another rank's shard",
      "*.moe.expert_out", M3_OP_EXPERT, M3_NEEDS_OAI | M3_NEEDS_EXPERTS, NULL, NULL,
      M3_CHANGE(.ops.experts = m3_mistaken_experts, .gated = right, .is_half = 1) },
    { "moe.scale_shared", "the shared expert gets the factor too", "*.mlp", M3_OP_ADD, M3_NEEDS_SHARED,
      "a factor other than 1", NULL, M3_CHANGE(.ops.add = scaled_shared) },
    { "moe.no_shared", "the shared expert is missing", "*.mlp", M3_OP_ADD, M3_NEEDS_SHARED, NULL, NULL,
      M3_CHANGE(.ops.add = no_shared) },
};

const struct m3_mistake_section m3_mistakes_mlp = { all, sizeof all / sizeof all[0] };
