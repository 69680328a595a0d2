#include <string.h>

#include "base/minmax.h"
#include "ops/math.h"
#include "oracle/variants/private/honest.h"

enum { PANEL_VALUES = 1 << 20 };

/* ---- inputs in E4M3 */

/* The scale of a group of values: from the largest. */
static double scale_of(const float *x, int64_t n, const struct m3_input_rounding *rule)
{
    double largest = 0;
    int exponent;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)x[i]));
    if (largest == 0) return 1;
    if (rule->scaling == M3_SCALE_128X128) return (double)(float)(largest / 448);
    if (rule->exponent_down) {
        frexp(largest, &exponent);
        return ldexp(1, exponent - 1 - 8);
    }
    double mantissa = frexp(largest / 448, &exponent);
    return ldexp(1, mantissa == 0.5 ? exponent - 1 : exponent);
}

/* out [T,cols] := x, each group of a row with its own scale. */
static void quantise(struct m3_honest *honest, struct m3_ctx *ctx, float *out, const float *x, int64_t T, int64_t cols,
                     const struct m3_input_rounding *rule)
{
    const struct m3_rounder r = m3_honest_rounder_of(honest, M3_F8_E4M3, m3_honest_key(honest, "input"));
    const int64_t group = rule->scaling == M3_SCALE_MX32 ? 32 : 128;
    honest->rounds = 1;
#pragma omp parallel for num_threads(m3_team(ctx, T * cols * 16))
    for (int64_t t = 0; t < T; t++)
        for (int64_t k0 = 0; k0 < cols; k0 += group) {
            const float *from = x + t * cols + k0;
            int64_t n = m3_min(group, cols - k0);
            double scale = scale_of(from, n, rule);
            for (int64_t k = 0; k < n; k++) {
                double code = (double)m3_rounded(&r, (double)from[k] / scale, (uint64_t)(t * cols + k0 + k));
                out[t * cols + k0 + k] = (float)(fmax(-448, fmin(448, code)) * scale);
            }
        }
}

/* ---- sums in random order */

/* Columns in random order, cut into parts: those of part p are order[cut[p]] to order[cut[p + 1] - 1]. */
struct cuts {
    int64_t *order, cut[M3_MOST_PARTS + 1];
    int parts;
};

static void draw_cuts(struct m3_honest *honest, struct cuts *cuts, int64_t cols)
{
    uint64_t key = m3_honest_key(honest, "parts");
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

/* y [T,rows], columns [n0, n0 + n): the parts' products, added one after the other. */
static int add_parts(struct m3_honest *honest, struct m3_ctx *ctx, float *y, int64_t rows, float *part, const float *x,
                     const float *panel, int64_t n0, int64_t n, int64_t T, const struct cuts *cuts)
{
    int status = M3_OK;
    for (int p = 0; p < cuts->parts && !status; p++) {
        int64_t first = cuts->cut[p], k = cuts->cut[p + 1] - first;
        const struct m3_weight w = { .data = panel + n * first, .dtype = M3_F32, .rows = n, .cols = k };
        status = honest->base->linear(ctx, part, x + T * first, &w, NULL, T);
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = 0; i < n; i++) {
                float *to = y + t * rows + n0 + i;
                *to = p == 0 ? part[t * n + i] : *to + part[t * n + i];
            }
    }
    return status;
}

static int product(struct m3_ctx *ctx, float *y, const float *x, const struct m3_weight *w, const float *bias,
                   int64_t T, const char *name)
{
    struct m3_honest *honest = ctx->plugin;
    const struct m3_input_rounding rule = m3_profile_input(honest->profile, name);
    const struct m3_rounder of_weights = m3_honest_weights(honest, name);
    int64_t cols = w->cols, rows = w->rows, panel = m3_max(1, m3_min(rows, PANEL_VALUES / cols));
    size_t mark = m3_scratch_mark(ctx);
    struct cuts cuts = { .order = m3_scratch_take(ctx, cols, sizeof *cuts.order) };
    float *quantised = m3_scratch_take(ctx, T * cols, sizeof *x), *arranged = m3_scratch_take(ctx, T * cols, sizeof *x);
    float *weights = m3_scratch_take(ctx, panel * cols, sizeof *x), *part = m3_scratch_take(ctx, T * panel, sizeof *x);
    float *row = m3_scratch_take(ctx, panel * cols, sizeof *x);
    int status = cuts.order && quantised && arranged && weights && row && part ? M3_OK : M3_INTERNAL;
    if (!status) {
        draw_cuts(honest, &cuts, cols);
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
#pragma omp parallel for num_threads(m3_team(ctx, T * F * 64))
    for (int64_t i = 0; i < T * F; i++) {
        uint64_t at = (uint64_t)i * 4;
        float g = gate[i] > act->limit ? act->limit : both && gate[i] < -act->limit ? -act->limit : gate[i];
        float u = up[i] > act->limit ? act->limit : up[i] < -act->limit ? -act->limit : up[i];
        float a = m3_rounded(&r, (double)(act->alpha * g), at);
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
