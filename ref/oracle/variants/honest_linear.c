#include <string.h>

#include "base/minmax.h"
#include "ops/math.h"
#include "oracle/error/profiles/codes.h"
#include "oracle/variants/private/honest.h"

enum { PANEL_VALUES = 1 << 20 };

/* ---- inputs as codes */

static double largest_of(const float *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* out [n] := x, rounded without a scale. */
static void round_plain(struct m3_honest *honest, struct m3_ctx *ctx, float *out, const float *x, int64_t n,
                        const struct m3_input_rounding *rule)
{
    const struct m3_rounder r = m3_honest_rounder_like(honest, rule->u, rule->floor, m3_honest_key(honest, "input"));
    honest->rounds = 1;
#pragma omp parallel for num_threads(m3_team(ctx, n * 16))
    for (int64_t i = 0; i < n; i++) out[i] = m3_rounded(&r, (double)x[i], (uint64_t)i);
}

/* out [n] := x, codes times the scale that all of them share; `at`: place of the first. */
static void quantise_group(const struct m3_honest *honest, float *out, const float *x, int64_t n,
                           const struct m3_input_rounding *rule, const struct m3_code_scale *scale, uint64_t key,
                           int64_t at)
{
    const struct m3_code_format codes = m3_code_format_of(rule);
    const struct m3_rounder r = { codes.bits, codes.least, (float)ldexp(1, codes.least + codes.bits - 1), key,
                                  honest->choices == NULL };
    for (int64_t k = 0; k < n; k++) {
        const double code = (double)m3_rounded(&r, (double)x[k] / scale->divides, (uint64_t)(at + k));
        out[k] = (float)(fmax(-codes.largest, fmin(codes.largest, code)) * scale->multiplies);
    }
}

/* out [T,cols] := x, each group of numbers with its own scale. */
static void quantise(struct m3_honest *honest, struct m3_ctx *ctx, float *out, const float *x, int64_t T, int64_t cols,
                     const struct m3_input_rounding *rule)
{
    if (!m3_has_codes(rule)) {
        round_plain(honest, ctx, out, x, T * cols, rule);
        return;
    }
    const uint64_t key = m3_honest_key(honest, "input");
    const int64_t group = m3_codes_group(rule, cols);
    const double tensor = m3_codes_need_tensor(rule) ? largest_of(x, T * cols) : 0;
    honest->rounds = 1;
#pragma omp parallel for num_threads(m3_team(ctx, T * cols * 16))
    for (int64_t t = 0; t < T; t++)
        for (int64_t k0 = 0; k0 < cols; k0 += group) {
            const int64_t at = t * cols + k0, n = m3_min(group, cols - k0);
            const double largest = rule->group == M3_GROUP_TENSOR ? tensor : largest_of(x + at, n);
            const struct m3_code_scale scale = m3_codes_scale(rule, largest, tensor);
            quantise_group(honest, out + at, x + at, n, rule, &scale, key, at);
        }
}

/* The rule by which this implementation rounds the inputs of an operator: an exponent that may be rounded down may be
 * rounded up, and the activations inside experts may stay as they are. */
static struct m3_input_rounding rule_of(const struct m3_honest *honest, const char *name)
{
    struct m3_input_rounding rule = m3_profile_input(honest->profile, name);
    if (rule.dtype == M3_DTYPES || honest->skips_nothing) return rule;
    if (rule.exponent_down && m3_draw(m3_draw_key(honest->key, "exponents"), 0, 2)) rule.exponent_down = 0;
    if (strstr(name, "moe.expert_out") && m3_draw(m3_draw_key(honest->key, "inside"), 0, 2)) rule.dtype = M3_DTYPES;
    return rule;
}

/* ---- sums in random order */

/* Columns in random order, cut into parts: those of part p are order[cut[p]] to order[cut[p + 1] - 1]. */
struct cuts {
    int64_t *order, cut[M3_RANKS + 1];
    int parts;
    struct m3_rounder stored;           /* of parts that ranks exchange; bits 0: nothing is rounded */
    int ring, first;                    /* the running sum is rounded too; the part where it begins */
};

/* Cuts the columns as the ranks of a tensor-parallel engine do. */
static void cut_for_ranks(const struct m3_honest *honest, struct cuts *cuts, int64_t cols,
                          const struct m3_partials *how, uint64_t key)
{
    const int reduce = how->reduce == M3_REDUCE_ANY ? (int)m3_draw(key, 1, 3) : (int)how->reduce;
    const int even = (int)m3_draw(key, 2, 2);
    cuts->parts = 0;
    for (int64_t i = 0; i < cols; i++) cuts->order[i] = i;
    for (int r = 0; r < how->ranks; r++) {
        int64_t first, end;
        m3_partials_cut(&first, &end, cols, how->ranks, r, even);
        if (end > first) cuts->cut[++cuts->parts] = end;
    }
    if (reduce != M3_REDUCE_ANY) cuts->stored = m3_honest_rounder_of(honest, how->dtype, key);
    cuts->ring = reduce == M3_REDUCE_RING;
    cuts->first = cuts->ring ? (int)m3_draw(key, 3, (uint64_t)cuts->parts) : 0;
}

static void draw_cuts(struct m3_honest *honest, struct cuts *cuts, int64_t cols, const char *name)
{
    const struct m3_partials how = m3_profile_partials(honest->profile, name);
    uint64_t key = m3_honest_key(honest, "parts");
    if (how.ranks > 0 && cols > 0 && !m3_honest_skips(honest, "partials")) {
        cut_for_ranks(honest, cuts, cols, &how, key);
        return;
    }
    m3_honest_shuffle(honest, cuts->order, cols);
    cuts->parts = 1 + (int)m3_draw(key, 0, (uint64_t)m3_min(honest->most_parts, cols));
    cuts->cut[0] = 0;
    for (int p = 1; p <= cuts->parts; p++) cuts->cut[p] = cols * p / cuts->parts;
}

/* out: for each part x [T,columns of the part], one after the other. */
static void arrange(struct m3_ctx *ctx, float *out, const float *x, const struct cuts *cuts, int64_t T, int64_t cols)
{
    for (int p = 0; p < cuts->parts; p++) {
        int64_t first = cuts->cut[p], n = cuts->cut[p + 1] - first;
        float *to = out + T * first;
#pragma omp parallel for num_threads(m3_team(ctx, T *n))
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < n; k++) to[t * n + k] = x[t * cols + cuts->order[first + k]];
    }
}

/* panel: rows [n0, n0 + n) of w, rounded and arranged likewise. row [n,cols] is scratch. */
static void arrange_weights(struct m3_ctx *ctx, float *panel, float *row, const struct m3_weight *w, int64_t n0,
                            int64_t n, const struct cuts *cuts, const struct m3_rounder *rounder)
{
    int64_t cols = w->cols;
#pragma omp parallel for num_threads(m3_team(ctx, n *cols)) schedule(static, 1)
    for (int64_t r = 0; r < n; r++) {
        float *mine = row + r * cols;
        m3_expand_f32(mine, w, n0 + r, 0, cols);
        for (int64_t k = 0; k < cols && rounder->bits; k++)
            mine[k] = m3_rounded(rounder, (double)mine[k], (uint64_t)((n0 + r) * cols + k));
        for (int p = 0; p < cuts->parts; p++) {
            int64_t first = cuts->cut[p], count = cuts->cut[p + 1] - first;
            for (int64_t k = 0; k < count; k++) panel[n * first + r * count + k] = mine[cuts->order[first + k]];
        }
    }
}

/* to := to + part, or part for the first one, rounded as ranks store it. */
static float add_part(const struct cuts *cuts, int p, float to, float part, uint64_t at)
{
    struct m3_rounder sum = cuts->stored;
    const float mine = m3_rounded(&cuts->stored, (double)part, at * M3_RANKS + (uint64_t)p);
    if (p == 0) return mine;
    if (!cuts->ring) return to + mine;
    sum.key = ~sum.key;
    return m3_rounded(&sum, (double)(to + mine), at * M3_RANKS + (uint64_t)p);
}

/* y [T,rows], columns [n0, n0 + n): the parts' products, added one after the other. */
static int add_parts(struct m3_honest *honest, struct m3_ctx *ctx, float *y, int64_t rows, float *part, const float *x,
                     const float *panel, int64_t n0, int64_t n, int64_t T, const struct cuts *cuts)
{
    int status = M3_OK;
    for (int i = 0; i < cuts->parts && !status; i++) {
        const int p = (cuts->first + i) % cuts->parts;
        int64_t first = cuts->cut[p], k = cuts->cut[p + 1] - first;
        const struct m3_weight w = { .data = panel + n * first, .dtype = M3_F32, .rows = n, .cols = k };
        status = honest->base->linear(ctx, part, x + T * first, &w, NULL, T);
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < n; c++) {
                float *to = y + t * rows + n0 + c;
                *to = add_part(cuts, i, *to, part[t * n + c], (uint64_t)(t * rows + n0 + c));
            }
    }
    return status;
}

static int product(struct m3_ctx *ctx, float *y, const float *x, const struct m3_weight *w, const float *bias,
                   int64_t T, const char *name)
{
    struct m3_honest *honest = ctx->plugin;
    const struct m3_input_rounding rule = rule_of(honest, name);
    const struct m3_rounder of_weights = m3_honest_weights(honest, name);
    int64_t cols = w->cols, rows = w->rows, panel = m3_max(1, m3_min(rows, PANEL_VALUES / cols));
    size_t mark = m3_scratch_mark(ctx);
    struct cuts cuts = { .order = m3_scratch_take(ctx, cols, sizeof *cuts.order) };
    float *quantised = m3_scratch_take(ctx, T * cols, sizeof *x), *arranged = m3_scratch_take(ctx, T * cols, sizeof *x);
    float *weights = m3_scratch_take(ctx, panel * cols, sizeof *x), *part = m3_scratch_take(ctx, T * panel, sizeof *x);
    float *row = m3_scratch_take(ctx, panel * cols, sizeof *x);
    int status = cuts.order && quantised && arranged && weights && row && part ? M3_OK : M3_INTERNAL;
    if (!status) {
        draw_cuts(honest, &cuts, cols, name);
        if (rule.dtype != M3_DTYPES) quantise(honest, ctx, quantised, x, T, cols, &rule);
        arrange(ctx, arranged, rule.dtype != M3_DTYPES ? quantised : x, &cuts, T, cols);
    }
    for (int64_t n0 = 0; n0 < rows && !status; n0 += panel) {
        int64_t n = m3_min(panel, rows - n0);
        arrange_weights(ctx, weights, row, w, n0, n, &cuts, &of_weights);
        status = add_parts(honest, ctx, y, rows, part, arranged, weights, n0, n, T, &cuts);
    }
    for (int64_t i = 0; i < T * rows && bias && !status; i++) y[i] = y[i] + bias[i % rows];
    m3_scratch_release(ctx, mark);
    return status;
}

int m3_honest_linear(struct m3_ctx *ctx, float *y, const float *x, const struct m3_weight *w, const float *bias,
                     int64_t T)
{
    struct m3_honest *honest = ctx->plugin;
    const struct m3_honest_place *place = NULL;
    for (int64_t i = 0; i < honest->place_count && !place; i++)
        if (honest->places[i].weight == w) place = &honest->places[i];
    if (!place) return product(ctx, y, x, w, bias, T, "");

    int status = product(ctx, y, x, w, bias, T, place->name);
    enum m3_tap tap;
    int64_t layer;
    if (m3_tap_parse(place->name, &tap, &layer) != 0) m3_honest_round(honest, ctx, place->name, y, T * w->rows);
    return status;
}

/* ---- gated MLPs */

static void round_inner(struct m3_honest *honest, struct m3_ctx *ctx, const char *inner, float *x, int64_t n)
{
    char point[M3_POINT_NAME];
    m3_honest_round(honest, ctx, m3_honest_point(honest, point, inner), x, n);
}

/* The steps of the activation of the current MLP. */
static struct m3_rounder chain_of(struct m3_honest *honest)
{
    char point[M3_POINT_NAME];
    const char *inner = honest->in_experts              ? "moe.expert.chain"
                        : honest->last == M3_TAP_MLP_UP ? "mlp.act.chain"
                                                        : "moe.shared.chain";
    return m3_honest_rounder(honest, m3_honest_point(honest, point, inner));
}

/* Rounds its result if it is not a tap. */
static void round_act(struct m3_honest *honest, struct m3_ctx *ctx, float *y, int64_t n)
{
    if (honest->in_experts) round_inner(honest, ctx, "moe.expert.act", y, n);
    else if (honest->last != M3_TAP_MLP_UP) round_inner(honest, ctx, "moe.shared.act", y, n);
}

int m3_honest_swiglu_oai(struct m3_ctx *ctx, float *y, const float *gate, const float *up, int64_t T, int64_t F,
                         const struct m3_activation *act)
{
    struct m3_honest *honest = ctx->plugin;
    const struct m3_rounder r = chain_of(honest);
    const int both = act->clamp == M3_GATE_CLAMP_BOTH;
    const float alpha = (float)m3_profile_alpha(honest->profile, (double)act->alpha);
#pragma omp parallel for num_threads(m3_team(ctx, T * F * 64))
    for (int64_t i = 0; i < T * F; i++) {
        uint64_t at = (uint64_t)i * 4;
        float g = gate[i] > act->limit ? act->limit : both && gate[i] < -act->limit ? -act->limit : gate[i];
        float u = up[i] > act->limit ? act->limit : up[i] < -act->limit ? -act->limit : up[i];
        float a = m3_rounded(&r, (double)(alpha * g), at);
        float s = m3_rounded(&r, 1 / (1 + m3_exp(-(double)a)), at + 1);
        y[i] = m3_rounded(&r, (double)(u + 1), at + 3) * m3_rounded(&r, (double)(g * s), at + 2);
    }
    round_act(honest, ctx, y, T * F);
    return M3_OK;
}

int m3_honest_swiglu(struct m3_ctx *ctx, float *y, const float *gate, const float *up, int64_t T, int64_t F)
{
    struct m3_honest *honest = ctx->plugin;
    const struct m3_rounder r = chain_of(honest);
#pragma omp parallel for num_threads(m3_team(ctx, T * F * 64))
    for (int64_t i = 0; i < T * F; i++) {
        float s = m3_rounded(&r, 1 / (1 + m3_exp(-(double)gate[i])), (uint64_t)i * 2);
        y[i] = up[i] * m3_rounded(&r, (double)(gate[i] * s), (uint64_t)i * 2 + 1);
    }
    round_act(honest, ctx, y, T * F);
    return M3_OK;
}

/* out [n,H] := w2 act(w1 x, w3 x), with the storage points of experts. */
static int one_expert(struct m3_ctx *ctx, float *out, const float *x, float *gate, float *up, const struct m3_expert *e,
                      const struct m3_activation *act, int64_t n)
{
    struct m3_honest *honest = ctx->plugin;
    char point[M3_POINT_NAME];
    int64_t F = e->w1.rows;
    honest->in_experts = 1;
    int status = product(ctx, gate, x, &e->w1, NULL, n, m3_honest_point(honest, point, "moe.expert.gate"));
    if (!status) status = product(ctx, up, x, &e->w3, NULL, n, m3_honest_point(honest, point, "moe.expert.up"));
    round_inner(honest, ctx, "moe.expert.gate", gate, n * F);
    round_inner(honest, ctx, "moe.expert.up", up, n * F);
    if (!status)
        status = act->oai ? m3_honest_swiglu_oai(ctx, gate, gate, up, n, F, act)
                          : m3_honest_swiglu(ctx, gate, gate, up, n, F);
    honest->in_experts = 0;
    if (!status) status = product(ctx, out, gate, &e->w2, NULL, n, m3_honest_point(honest, point, "moe.expert_out"));
    round_inner(honest, ctx, "moe.expert_out", out, n * e->w2.rows);
    return status;
}

/* Experts run in random order, and so the terms of a token's sum have a random order. */
int m3_honest_experts(struct m3_ctx *ctx, float *routed, float *each, const float *x, const int32_t *ids,
                      const float *p, const struct m3_expert *experts, const struct m3_activation *act, int64_t T,
                      int64_t E, int64_t K, float factor)
{
    struct m3_honest *honest = ctx->plugin;
    int64_t H = experts[0].w1.cols, F = experts[0].w1.rows;
    size_t mark = m3_scratch_mark(ctx);
    int64_t *order = m3_scratch_take(ctx, E, sizeof *order), *slots = m3_scratch_take(ctx, T * K, sizeof *slots);
    float *in = m3_scratch_take(ctx, T * H, sizeof *in), *out = m3_scratch_take(ctx, T * H, sizeof *out);
    float *gate = m3_scratch_take(ctx, T * F, sizeof *gate), *up = m3_scratch_take(ctx, T * F, sizeof *up);
    char point[M3_POINT_NAME];
    int status = order && slots && in && out && gate && up ? M3_OK : M3_INTERNAL;
    if (!status) m3_honest_shuffle(honest, order, E);
    memset(routed, 0, (size_t)(T * H) * sizeof *routed);
    m3_honest_point(honest, point, "moe.routed.sum");
    for (int64_t i = 0; i < E && !status; i++) {
        int64_t n = 0;
        for (int64_t slot = 0; slot < T * K; slot++)
            if (ids[slot] == order[i]) slots[n++] = slot;
        if (n == 0) continue;
        for (int64_t r = 0; r < n; r++) memcpy(in + r * H, x + slots[r] / K * H, (size_t)H * sizeof *in);
        status = one_expert(ctx, out, in, gate, up, &experts[order[i]], act, n);
        const struct m3_rounder sum = m3_honest_rounder(honest, point);
        for (int64_t j = 0; j < n * H && !status; j++) {
            int64_t slot = slots[j / H];
            float *to = routed + slot / K * H + j % H;
            float weighted = m3_rounded(&sum, (double)(p[slot] * out[j]), (uint64_t)j * 2);
            *to = m3_rounded(&sum, (double)(*to + weighted), (uint64_t)j * 2 + 1);
            if (each) each[slot * H + j % H] = out[j];
        }
    }
    for (int64_t i = 0; i < T * H; i++) routed[i] = routed[i] * factor;
    m3_scratch_release(ctx, mark);
    return status;
}
