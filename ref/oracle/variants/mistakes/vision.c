/* Mistakes in the tower and the projector. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <string.h>

#include "ops/math.h"

/* ---- rope of the tower: other axes, counts and denominators */

static int in_tower(const struct m3_ctx *ctx)
{
    return m3_tap_being_made(ctx) == M3_TAP_VISION_Q_ROPE || m3_tap_being_made(ctx) == M3_TAP_VISION_K_ROPE;
}

/* cos, sin [P, half] of the axes, `half` angles of a patch. */
static int tables(struct m3_ctx *ctx, real *cos, real *sin, const struct m3_axis *axes, int count, int64_t P,
                  int64_t half)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const struct m3_vision_config *v = &run->model.config.vision;
    const size_t mark = m3_scratch_mark(ctx);
    int64_t *places = m3_scratch_take(ctx, 4 * P, sizeof *places);
    if (!places) return M3_INTERNAL;
    m3_pictures_segments(places + 3 * P, places, &run->the_case->pictures, v, run->semantics.vision_boundary);
    for (int64_t p = 0; p < P; p++) {
        int64_t at = p * half;
        for (int a = 0; a < count; a++)
            for (int64_t i = 0; i < axes[a].count; i++, at++) {
                const double frequency = m3_pow(v->rope_theta, -2.0 * (double)i / (double)axes[a].dim);
                m3_sincos(sin + at, cos + at, (double)places[3 * p + axes[a].a] * frequency);
            }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

static int other_axes(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                      int64_t heads, int64_t D, int64_t R)
{
    struct m3_axis axes[3];
    if (!in_tower(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    const int count = m3_run_of(ctx)->change->axes(axes, D);
    int64_t half = 0;
    for (int a = 0; a < count; a++) half += axes[a].count;
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, 2 * T * half, sizeof *mine);
    if (!mine) return M3_INTERNAL;
    int status = tables(ctx, mine, mine + T * half, axes, count, T, half);
    if (!status) status = m3_right()->rope(ctx, y, x, mine, mine + T * half, T, heads, D, 2 * half);
    m3_scratch_release(ctx, mark);
    return status;
}

static int time_and_row(struct m3_axis axes[3], int64_t U)
{
    axes[0] = (struct m3_axis){ 0, U / 4, U / 2 };
    axes[1] = (struct m3_axis){ 1, U / 4, U / 2 };
    return 2;
}

static int row_and_column(struct m3_axis axes[3], int64_t U)
{
    axes[0] = (struct m3_axis){ 1, U / 4, U / 2 };
    axes[1] = (struct m3_axis){ 2, U / 4, U / 2 };
    return 2;
}

/* 26 + 26 + 28 channels of 80: the last axis takes the rest. */
static int whole_head(struct m3_axis axes[3], int64_t U)
{
    const int64_t each = U / 6, left = U / 2 - 2 * each;
    axes[0] = (struct m3_axis){ 0, each, 2 * each };
    axes[1] = (struct m3_axis){ 1, each, 2 * each };
    axes[2] = (struct m3_axis){ 2, left, 2 * left };
    return 3;
}

static int time_last(struct m3_axis axes[3], int64_t U)
{
    const int64_t each = U / 6;
    axes[0] = (struct m3_axis){ 1, each, 2 * each };
    axes[1] = (struct m3_axis){ 2, each, 2 * each };
    axes[2] = (struct m3_axis){ 0, each, 2 * each };
    return 3;
}

/* Rows and columns as if patches were ordered line by line, not in groups of 2x2. */
static int raster(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R, double theta,
                  enum m3_rope_angle angle)
{
    const struct m3_pictures *pictures = &m3_run_of(ctx)->the_case->pictures;
    const size_t mark = m3_scratch_mark(ctx);
    int64_t *mine = m3_scratch_take(ctx, 3 * P, sizeof *mine), p = 0;
    if (!mine) return M3_INTERNAL;
    for (int64_t i = 0; i < pictures->images + pictures->videos; i++) {
        const int64_t *grid = pictures->grid[i];
        for (int64_t k = 0; k < grid[0] * grid[1] * grid[2]; k++, p++) {
            mine[3 * p] = places[3 * p];
            mine[3 * p + 1] = k % (grid[1] * grid[2]) / grid[2];
            mine[3 * p + 2] = k % grid[2];
        }
    }
    int status = m3_right()->rope_table_3d(ctx, cos, sin, mine, P, R, theta, angle);
    m3_scratch_release(ctx, mark);
    return status;
}

/* ---- channels of a head of q and k in another order, 0, U/2, 1, U/2 + 1, ..: attention does not change */

static void shuffle(real *y, const real *x, int64_t heads, int64_t U, int back)
{
    for (int64_t i = 0; i < heads * U / 2 * 2; i++) {
        const int64_t h = i / U, n = i % U, from = h * U + n % 2 * (U / 2) + n / 2;
        y[back ? from : i] = x[back ? i : from];
    }
}

static int shuffled_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias,
                           int64_t T)
{
    const struct m3_vision_config *v = &m3_run_of(ctx)->model.config.vision;
    const enum m3_tap tap = m3_tap_being_made(ctx);
    int status = m3_right()->linear(ctx, y, x, w, bias, T);
    if (status || (tap != M3_TAP_VISION_Q_PROJ && tap != M3_TAP_VISION_K_PROJ)) return status;
    const size_t mark = m3_scratch_mark(ctx);
    real *copy = m3_scratch_take(ctx, T * v->W, sizeof *copy);
    if (!copy) return M3_INTERNAL;
    memcpy(copy, y, (size_t)(T * v->W) * sizeof *copy);
    shuffle(y, copy, T * v->A, v->U, 0);
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

static int shuffled_rope(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                         int64_t heads, int64_t D, int64_t R)
{
    if (!in_tower(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    const size_t mark = m3_scratch_mark(ctx);
    real *copy = m3_scratch_take(ctx, T * heads * D, sizeof *copy);
    if (!copy) return M3_INTERNAL;
    shuffle(copy, x, T * heads, D, 1);
    int status = m3_right()->rope(ctx, copy, copy, cos, sin, T, heads, D, R);
    shuffle(y, copy, T * heads, D, 0);
    m3_scratch_release(ctx, mark);
    return status;
}

/* ---- GELU */

static int gelu_tanh(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++) {
        const double a = 0.79788456080286535588 * (x[i] + 0.044715 * x[i] * x[i] * x[i]);      /* sqrt(2 / pi) */
        y[i] = x[i] / (1 + m3_exp(-2 * a));             /* (1 + tanh a) / 2 */
    }
    return M3_OK;
}

static int gelu_quick(struct m3_ctx *ctx, real *y, const real *x, int64_t n)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / (1 + m3_exp(-1.702 * x[i]));
    return M3_OK;
}

/* ---- inputs of matrices */

int m3_mistaken_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias,
                       int64_t T)
{
    const struct m3_change *change = m3_run_of(ctx)->change;
    if (m3_tap_being_made(ctx) != change->reader) return m3_right()->linear(ctx, y, x, w, bias, T);
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, T * w->cols, sizeof *mine);
    if (!mine) return M3_INTERNAL;
    int status = change->reads(ctx, mine, x, T, w->cols);
    if (!status) status = m3_right()->linear(ctx, y, mine, w, bias, T);
    m3_scratch_release(ctx, mark);
    return status;
}

/* A norm after the last layer, with weights 1 and biases 0. */
static int normalised(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    const size_t mark = m3_scratch_mark(ctx);
    real *ones = m3_scratch_take(ctx, 2 * cols, sizeof *ones);
    if (!ones) return M3_INTERNAL;
    for (int64_t i = 0; i < 2 * cols; i++) ones[i] = i < cols;
    int status =
        m3_right()->layer_norm(ctx, mine, x, ones, ones + cols, T, cols, m3_run_of(ctx)->model.config.vision.eps);
    m3_scratch_release(ctx, mark);
    return status;
}

/* A patch is (channel, time, row, column); here it is read as (time, channel, ..). */
static int time_before_channel(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    const struct m3_vision_config *v = &m3_run_of(ctx)->model.config.vision;
    const int64_t times = v->temporal_patch, planes = v->channels * times, area = cols / planes;
    for (int64_t i = 0; i < T * planes; i++) {
        const int64_t c = i % planes / times, t = i % times;
        memcpy(mine + i * area, x + (i - i % planes + t * v->channels + c) * area, (size_t)area * sizeof *mine);
    }
    return M3_OK;
}

static int frame_zero(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const struct m3_vision_config *v = &run->model.config.vision;
    const int64_t planes = v->channels * v->temporal_patch, area = cols / planes;
    for (int64_t i = 0; i < T * cols; i++)
        mine[i] = i / cols < run->the_case->pictures.image_P && i % cols / area % v->temporal_patch > 0 ? 0 : x[i];
    return M3_OK;
}

static int pixels_bf16(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    (void)ctx;
    memcpy(mine, x, (size_t)(T * cols) * sizeof *mine);
    m3_round_all(mine, T * cols, 8);
    return M3_OK;
}

static int weights_bf16(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_round_weight(run, &run->model.vision.patch_embed, 8, error);
}

/* Exchanges the second and the third of four neighbours. */
static int by_columns(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row,
                      int64_t rows, struct m3_error *error)
{
    const int64_t H = run->model.config.H;
    double *merged = data;
    (void)layer, (void)row, (void)error;
    for (int64_t i = 0; tap == M3_TAP_MERGED && i < rows * H; i++) {
        double *second = &merged[i / H * 4 * H + H + i % H], *third = second + H, other = *second;
        *second = *third;
        *third = other;
    }
    return M3_OK;
}

static const struct m3_mistake all[] = {
    { "vision.rope_lost_w", "half of the channels turn by time, half by row; the column is lost",
      "vision.layers.0.q_rope", M3_OP_ROPE_3D, M3_NEEDS_PICTURES, "a grid of 2x2 or more", NULL,
      M3_CHANGE(.ops.rope = other_axes, .axes = time_and_row) },
    { "vision.rope_2axis", "half of the channels turn by row, half by column, none by time", "vision.layers.0.q_rope",
      M3_OP_ROPE_3D, M3_NEEDS_PICTURES, "a grid of 2x2 or more", NULL,
      M3_CHANGE(.ops.rope = other_axes, .axes = row_and_column) },
    { "vision.rope_262628", "the column's axis takes the two channels that should pass", "vision.layers.0.q_rope",
      M3_OP_ROPE_3D, M3_NEEDS_PICTURES, "a grid of 2x2 or more", NULL,
      M3_CHANGE(.ops.rope = other_axes, .axes = whole_head) },
    { "vision.axis_order", "axes in the order row, column, time", "vision.layers.0.q_rope", M3_OP_ROPE_3D,
      M3_NEEDS_PICTURES, "a grid of 2x2 or more", NULL, M3_CHANGE(.ops.rope = other_axes, .axes = time_last) },
    { "vision.raster", "rows and columns as if patches came line by line", "vision.layers.0.q_rope", M3_OP_ROPE_3D,
      M3_NEEDS_PICTURES, "a grid wider than 2", NULL, M3_CHANGE(.ops.rope_table_3d = raster) },
    { "vision.no_boundary", "patches of all pictures see each other", "vision.layers.0.attn,vision.layers.0.q_rope",
      M3_OP_ATTEND_SEGMENTS, M3_NEEDS_SEGMENTS, NULL, "vision_boundary=none", NULL },
    { "vision.gelu_tanh", "GELU in its tanh form", "vision.layers.0.act", M3_OP_GELU, M3_NEEDS_PICTURES, NULL, NULL,
      M3_CHANGE(.ops.gelu = gelu_tanh) },
    { "vision.gelu_quick", "GELU as x sig(1.702 x)", "vision.layers.0.act", M3_OP_GELU, M3_NEEDS_PICTURES, NULL, NULL,
      M3_CHANGE(.ops.gelu = gelu_quick) },
    { "vision.post_ln", "a norm after the last layer, which the weights do not have", "projector.linear_1",
      M3_OP_LINEAR, M3_NEEDS_PICTURES, NULL, NULL,
      M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = normalised, .reader = M3_TAP_LINEAR_1) },
    { "vision.content_order", "a patch is read as (time, channel, ..)", "vision.patch_embed", M3_OP_LINEAR,
      M3_NEEDS_PICTURES, NULL, NULL,
      M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = time_before_channel, .reader = M3_TAP_PATCH_EMBED) },
    { "vision.frame_repeat", "the second frame of a still is zero", "vision.patch_embed", M3_OP_LINEAR, M3_NEEDS_STILL,
      NULL, NULL, M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = frame_zero, .reader = M3_TAP_PATCH_EMBED) },
    { "vision.conv_precision", "pixels and patch weights are rounded to bf16", "vision.patch_embed", M3_OP_LINEAR,
      M3_NEEDS_PICTURES, NULL, NULL,
      M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = pixels_bf16, .reader = M3_TAP_PATCH_EMBED,
                .prepare = weights_bf16) },
    { "vision.merge_order", "four neighbours are joined by columns", "projector.merged", M3_OP_COPY, M3_NEEDS_PICTURES,
      NULL, NULL, M3_CHANGE(.force = by_columns) },
    { "vision.qk_permuted", "channels of q and k in another order, which attention does not notice",
      "vision.layers.0.q_proj", M3_OP_LINEAR, M3_NEEDS_PICTURES, NULL, NULL,
      M3_CHANGE(.ops.linear = shuffled_linear, .ops.rope = shuffled_rope) },
};

const struct m3_mistake_section m3_mistakes_vision = { all, sizeof all / sizeof all[0] };
