/* Mistakes in the norms and the embedding. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <string.h>

static int no_plus_one(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return m3_right()->rms_norm_plain(ctx, y, x, w, T, H, eps);
}

static int double_plus_one(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const size_t mark = m3_scratch_mark(ctx);
    real *more = m3_scratch_take(ctx, H, sizeof *more);
    if (!more) return M3_INTERNAL;
    for (int64_t i = 0; i < H; i++) more[i] = w[i] + 1;
    int status = m3_right()->rms_norm(ctx, y, x, more, T, H, eps);
    m3_scratch_release(ctx, mark);
    return status;
}

/* One mean over all heads of a row. */
static int whole_vector(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const int64_t rows = m3_rows_of(m3_run_of(ctx)), width = T / rows * H;
    const enum m3_tap tap = m3_tap_being_made(ctx);
    if (tap != M3_TAP_Q_NORM && tap != M3_TAP_K_NORM) return m3_right()->rms_norm(ctx, y, x, w, T, H, eps);
    const size_t mark = m3_scratch_mark(ctx);
    real *repeated = m3_scratch_take(ctx, width, sizeof *repeated);
    if (!repeated) return M3_INTERNAL;
    for (int64_t i = 0; i < width; i++) repeated[i] = w[i % H];
    int status = m3_right()->rms_norm(ctx, y, x, repeated, rows, width, eps);
    m3_scratch_release(ctx, mark);
    return status;
}

static int heads_plain(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const enum m3_tap tap = m3_tap_being_made(ctx);
    return (tap == M3_TAP_Q_NORM || tap == M3_TAP_K_NORM ? m3_right()->rms_norm_plain
                                                         : m3_right()->rms_norm)(ctx, y, x, w, T, H, eps);
}

/* Rounds to bf16 before the multiplication by the weight. */
static int early_round(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const size_t mark = m3_scratch_mark(ctx);
    real *zeros = m3_scratch_take(ctx, H, sizeof *zeros);
    if (!zeros) return M3_INTERNAL;
    memset(zeros, 0, (size_t)H * sizeof *zeros);
    int status = m3_right()->rms_norm(ctx, y, x, zeros, T, H, eps);
    m3_round_all(y, T * H, 8);
    for (int64_t i = 0; i < T * H; i++) y[i] *= 1 + w[i % H];
    m3_scratch_release(ctx, mark);
    return status;
}

static int times_root(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    int status = m3_right()->embed(ctx, y, ids, w, T);
    for (int64_t i = 0; i < T * w->cols; i++) y[i] *= sqrt((double)w->cols);
    return status;
}

enum { HEADS = M3_NEEDS_HEAD_NORM | M3_NEEDS_GEMMA };

static const struct m3_mistake all[] = {
    { "norm.no_plus_one", "the stored weight is taken for the whole factor, not for what is added to 1",
      "layers.0.attn_norm", M3_OP_RMS_NORM, M3_NEEDS_GEMMA, NULL, NULL, M3_CHANGE(.ops.rms_norm = no_plus_one) },
    { "norm.double_plus_one", "1 is added to a weight that holds it already", "layers.0.attn_norm", M3_OP_RMS_NORM,
      M3_NEEDS_GEMMA, NULL, NULL, M3_CHANGE(.ops.rms_norm = double_plus_one) },
    { "norm.qk_full_vector", "q and k are normalised over all heads together", "*.q_norm", M3_OP_RMS_NORM, HEADS, NULL,
      NULL, M3_CHANGE(.ops.rms_norm = whole_vector) },
    { "norm.qk_plain", "the norms of q and k lack the 1", "*.q_norm", M3_OP_RMS_NORM, HEADS, NULL, NULL,
      M3_CHANGE(.ops.rms_norm = heads_plain) },
    { "norm.early_round", "normalised values are rounded to bf16 before the weight", "layers.0.attn_norm",
      M3_OP_RMS_NORM, M3_NEEDS_GEMMA, NULL, NULL, M3_CHANGE(.ops.rms_norm = early_round) },
    { "embed.sqrt", "embeddings times H^(1/2)", "embed", M3_OP_EMBED, 0, NULL, NULL,
      M3_CHANGE(.ops.embed = times_root) },
};

const struct m3_mistake_section m3_mistakes_norm = { all, sizeof all / sizeof all[0] };
