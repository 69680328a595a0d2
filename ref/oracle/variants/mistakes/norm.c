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
    const int64_t heads = m3_normed_heads(ctx), width = heads * H;
    const enum m3_tap tap = m3_tap_being_made(ctx);
    if (tap != M3_TAP_Q_NORM && tap != M3_TAP_K_NORM) return m3_right()->rms_norm(ctx, y, x, w, T, H, eps);
    const size_t mark = m3_scratch_mark(ctx);
    real *repeated = m3_scratch_take(ctx, width, sizeof *repeated);
    if (!repeated) return M3_INTERNAL;
    for (int64_t i = 0; i < width; i++) repeated[i] = w[i % H];
    int status = m3_right()->rms_norm(ctx, y, x, repeated, T / heads, width, eps);
    m3_scratch_release(ctx, mark);
    return status;
}

static int heads_plain(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const enum m3_tap tap = m3_tap_being_made(ctx);
    return (tap == M3_TAP_Q_NORM || tap == M3_TAP_K_NORM ? m3_right()->rms_norm_plain
                                                         : m3_right()->rms_norm)(ctx, y, x, w, T, H, eps);
}

int m3_right_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return (m3_run_of(ctx)->model.config.gemma_norm ? m3_right()->rms_norm : m3_right()->rms_norm_plain)(ctx, y, x, w,
                                                                                                         T, H, eps);
}

static int every_second_head(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    int status = M3_OK;
    if (m3_tap_being_made(ctx) != M3_TAP_Q_NORM) return m3_right_norm(ctx, y, x, w, T, H, eps);
    const int64_t heads = m3_normed_heads(ctx);
    for (int64_t i = 0; i < T && !status; i++) {
        if (i % heads % 2 == 0) status = m3_right_norm(ctx, y + i * H, x + i * H, w, 1, H, eps);
        else memmove(y + i * H, x + i * H, (size_t)H * sizeof *y);
    }
    return status;
}

/* Each of two parts of a row is normalised by its own mean: the first has `first` channels. */
static int in_two_parts(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps,
                        int64_t first)
{
    int status = M3_OK;
    for (int64_t i = 0; i < 2 * T && !status; i++) {
        const int64_t from = i % 2 * first, at = i / 2 * H + from;
        status = m3_right_norm(ctx, y + at, x + at, w + from, 1, i % 2 ? H - first : first, eps);
    }
    return status;
}

/* Two ranks have half a key head each. */
static int half_heads(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return m3_tap_being_made(ctx) == M3_TAP_K_NORM && H > 1 ? in_two_parts(ctx, y, x, w, T, H, eps, H / 2)
                                                            : m3_right_norm(ctx, y, x, w, T, H, eps);
}

/* Two ranks have half of the heads each, of a norm over all heads. */
static int heads_of_rank(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const struct m3_config *c = &m3_run_of(ctx)->model.config;
    const enum m3_tap tap = m3_tap_being_made(ctx);
    const int is_whole = c->qk_norm_whole && (tap == M3_TAP_Q_NORM || tap == M3_TAP_K_NORM);
    const int64_t first = is_whole ? H / c->D / 2 * c->D : 0;
    return first > 0 ? in_two_parts(ctx, y, x, w, T, H, eps, first) : m3_right_norm(ctx, y, x, w, T, H, eps);
}

static int larger_eps(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    (void)eps;
    return m3_right_norm(ctx, y, x, w, T, H, 1e-5);
}

/* The mean of squares is their sum by the next power of two. */
static int padded_width(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    real padded = 1;
    while (padded < (real)H) padded *= 2;
    const real by = padded / (real)H;
    int status = m3_right_norm(ctx, y, x, w, T, H, eps * by);
    for (int64_t i = 0; i < T * H && !status; i++) y[i] *= sqrt(by);
    return status;
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
    { "norm.head_missing", "every second query head is not normalised", "*.q_norm", M3_OP_RMS_NORM, M3_NEEDS_HEAD_NORM,
      "a second query head", NULL,
      M3_CHANGE(.ops.rms_norm = every_second_head, .ops.rms_norm_plain = every_second_head) },
    { "norm.half_head", "half a key head is normalised by its own mean, as on a rank that has no more", "*.k_norm",
      M3_OP_RMS_NORM, M3_NEEDS_HEAD_NORM, NULL, NULL,
      M3_CHANGE(.ops.rms_norm = half_heads, .ops.rms_norm_plain = half_heads) },
    { "norm.rank_heads", "half of the heads are normalised by their own mean, as on one of two ranks", "*.q_norm",
      M3_OP_RMS_NORM, M3_NEEDS_WHOLE_NORM, NULL, NULL,
      M3_CHANGE(.ops.rms_norm = heads_of_rank, .ops.rms_norm_plain = heads_of_rank) },
    { "norm.eps", "epsilon is 1e-5", "layers.0.attn_norm", M3_OP_RMS_NORM, 0, "small values, another epsilon", NULL,
      M3_CHANGE(.ops.rms_norm = larger_eps, .ops.rms_norm_plain = larger_eps) },
    { "norm.padded_width", "the mean of squares counts channels of padding, up to a power of two",
      "layers.0.attn_norm,*.q_norm", M3_OP_RMS_NORM, 0, "a width that is no power of two", NULL,
      M3_CHANGE(.ops.rms_norm = padded_width, .ops.rms_norm_plain = padded_width) },
    { "norm.early_round", "normalised values are rounded to bf16 before the weight", "layers.0.attn_norm",
      M3_OP_RMS_NORM, M3_NEEDS_GEMMA, NULL, NULL, M3_CHANGE(.ops.rms_norm = early_round) },
    { "embed.sqrt", "embeddings times H^(1/2)", "embed", M3_OP_EMBED, 0, NULL, NULL,
      M3_CHANGE(.ops.embed = times_root) },
};

const struct m3_mistake_section m3_mistakes_norm = { all, sizeof all / sizeof all[0] };
