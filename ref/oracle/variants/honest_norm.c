#include <stdlib.h>
#include <string.h>

#include "model/graph/graph.h"
#include "oracle/error/tiers/tiers.h"
#include "oracle/variants/private/honest.h"

/* The norm that reads a sum of a text layer; 0: none does. */
static int norm_of(char *name, size_t size, const struct m3_honest *honest)
{
    const struct m3_graph *graph = m3_graph_of(honest->model, honest->semantics);
    const struct m3_node *sum = m3_graph_find(graph, honest->last, honest->layer);
    if (!sum || sum->op != M3_OP_ADD || sum->tap < M3_TAP_EMBED) return 0;
    const struct m3_node *norm = m3_graph_reader(graph, sum, M3_OP_RMS_NORM);
    return norm && m3_tap_name(name, size, norm->tap, norm->layer) == 0;
}

int m3_honest_norm_begin(struct m3_honest *honest, struct m3_error *error)
{
    const size_t count = (size_t)honest->T * (size_t)honest->model->config.H;
    if (!m3_profile_fused_norm(honest->profile, "final_norm") &&
        !m3_profile_fused_norm(honest->profile, "layers.0.mlp_norm"))
        return M3_OK;
    honest->sum = malloc(2 * count * sizeof *honest->sum + 1);
    if (!honest->sum) return m3_fail_memory(error, "a sum", 2 * count * sizeof *honest->sum);
    honest->stored = honest->sum + count;
    return M3_OK;
}

void m3_honest_keep_sum(struct m3_honest *honest, const float *data, int64_t row, int64_t rows, int stored)
{
    const int64_t H = honest->model->config.H;
    char name[M3_POINT_NAME];
    if (!honest->sum || !norm_of(name, sizeof name, honest) || !m3_profile_fused_norm(honest->profile, name)) return;
    if (!m3_draw(m3_draw_key(honest->key, "fused norms"), 0, 2)) return;
    honest->sum_rows = row + rows;
    memcpy((stored ? honest->stored : honest->sum) + row * H, data, (size_t)(rows * H) * sizeof *data);
}

/* What the norm reads of x: the sum that was kept, if x is that sum as it was stored. */
static const float *operand(const struct m3_honest *honest, const float *x, int64_t T, int64_t H)
{
    if (!honest->sum || honest->sum_rows != T || H != honest->model->config.H) return x;
    return memcmp(x, honest->stored, (size_t)(T * H) * sizeof *x) == 0 ? honest->sum : x;
}

/* y [T,H] := as a norm gives it that rounds x / root before it is multiplied, and 1 + w (offset 1). */
static void round_factors(struct m3_ctx *ctx, float *y, const float *w, int64_t T, int64_t H, int offset)
{
    struct m3_honest *honest = ctx->plugin;
    char point[M3_POINT_NAME];
    const struct m3_rounder unit = m3_honest_rounder(honest, m3_honest_point(honest, point, "norm.unit"));
    const enum m3_dtype of_sum = m3_profile_norm_weight(honest->profile, m3_honest_point(honest, point, "attn_norm"));
    const int rounds = offset && of_sum != M3_DTYPES && m3_draw(m3_draw_key(honest->key, "norm weights"), 0, 2);
    honest->rounds |= rounds;
    if (unit.bits == 0 && !rounds) return;
#pragma omp parallel for num_threads(m3_team(ctx, T * H * 16))
    for (int64_t i = 0; i < T * H; i++) {
        const double g = (double)offset + (double)w[i % H];
        if (g == 0) continue;
        const double x = (double)m3_rounded(&unit, (double)y[i] / g, (uint64_t)i);
        y[i] = (float)(x * (rounds ? m3_stored_as(1 + m3_stored_as((double)w[i % H], of_sum), of_sum) : g));
    }
}

int m3_honest_rms_norm(struct m3_ctx *ctx, float *y, const float *x, const float *w, int64_t T, int64_t H, float eps)
{
    const struct m3_honest *honest = ctx->plugin;
    int status = honest->base->rms_norm(ctx, y, operand(honest, x, T, H), w, T, H, eps);
    if (!status) round_factors(ctx, y, w, T, H, 1);
    return status;
}

int m3_honest_rms_norm_plain(struct m3_ctx *ctx, float *y, const float *x, const float *w, int64_t T, int64_t H,
                             float eps)
{
    const struct m3_honest *honest = ctx->plugin;
    int status = honest->base->rms_norm_plain(ctx, y, operand(honest, x, T, H), w, T, H, eps);
    if (!status) round_factors(ctx, y, w, T, H, 0);
    return status;
}
