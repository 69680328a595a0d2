/* Mistakes in the rotary embedding. */
#include "oracle/variants/private/mistakes.h"

#include <string.h>

#include "ops/math.h"

static int in_text(const struct m3_ctx *ctx) { return m3_tap_being_made(ctx) > M3_TAP_PROJECTOR_OUT; }

/* ---- rope: that of the tower stays correct */

/* cos, sin [T,R/2] of the current rows, in scratch memory; 0 or M3_INTERNAL. */
static int tables(struct m3_ctx *ctx, real **cos, real **sin, int64_t T, int64_t R)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    *cos = m3_scratch_take(ctx, T * R, sizeof **cos);
    if (!*cos) return M3_INTERNAL;
    *sin = *cos + T * R / 2;
    return m3_right()->rope_table(ctx, *cos, *sin, run->the_case->positions, T, R, run->model.config.rope_theta,
                                  run->semantics.rope_angle);
}

static int all_channels(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                        int64_t heads, int64_t D, int64_t R)
{
    const size_t mark = m3_scratch_mark(ctx);
    real *mine, *my_sin;
    if (!in_text(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    int status = tables(ctx, &mine, &my_sin, T, D / 2 * 2);
    if (!status) status = m3_right()->rope(ctx, y, x, mine, my_sin, T, heads, D, D / 2 * 2);
    m3_scratch_release(ctx, mark);
    return status;
}

static int last_channels(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                         int64_t heads, int64_t D, int64_t R)
{
    int status = M3_OK;
    if (!in_text(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    memmove(y, x, (size_t)(T * heads * D) * sizeof *y);
    for (int64_t i = 0; i < T * heads && !status; i++) {
        const int64_t at = i * D + D - R, angle = i / heads * (R / 2);
        status = m3_right()->rope(ctx, y + at, y + at, cos + angle, sin + angle, 1, 1, R, R);
    }
    return status;
}

void m3_rope_neighbours(real *y, const real *x, const real *cos, const real *sin, int64_t T, int64_t heads, int64_t D,
                        int64_t R)
{
    memmove(y, x, (size_t)(T * heads * D) * sizeof *y);
    for (int64_t th = 0; th < T * heads; th++)
        for (int64_t i = 0; i < R / 2; i++) {
            real *pair = y + th * D + 2 * i, a = pair[0], b = pair[1];
            const int64_t angle = th / heads * (R / 2) + i;
            pair[0] = a * cos[angle] - b * sin[angle];
            pair[1] = b * cos[angle] + a * sin[angle];
        }
}

static int interleaved(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                       int64_t heads, int64_t D, int64_t R)
{
    if (!in_text(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    m3_rope_neighbours(y, x, cos, sin, T, heads, D, R);
    return M3_OK;
}

/* theta^(-2i/D), which equals the right form with base theta^(R/D). */
static int exponent_by_head(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R,
                            double theta, enum m3_rope_angle angle)
{
    const double D = (double)m3_run_of(ctx)->model.config.D;
    return m3_right()->rope_table(ctx, cos, sin, pos, T, R, m3_pow(theta, (double)R / D), angle);
}

/* The factor R/D is applied to R again; at least two channels turn. */
static int factor_twice(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                        int64_t heads, int64_t D, int64_t R)
{
    const int64_t fewer = R * R / D / 2 * 2, channels = fewer > 2 ? fewer : 2;
    const size_t mark = m3_scratch_mark(ctx);
    real *mine, *my_sin;
    if (!in_text(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    int status = tables(ctx, &mine, &my_sin, T, channels);
    if (!status) status = m3_right()->rope(ctx, y, x, mine, my_sin, T, heads, D, channels);
    m3_scratch_release(ctx, mark);
    return status;
}

static int default_base(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R,
                        double theta, enum m3_rope_angle angle)
{
    (void)theta;
    return m3_right()->rope_table(ctx, cos, sin, pos, T, R, 10000, angle);
}

static int moved_table(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                       enum m3_rope_angle angle, int64_t by)
{
    const size_t mark = m3_scratch_mark(ctx);
    int64_t *moved = m3_scratch_take(ctx, T, sizeof *moved);
    if (!moved) return M3_INTERNAL;
    for (int64_t t = 0; t < T; t++) moved[t] = pos[t] + by;
    int status = m3_right()->rope_table(ctx, cos, sin, moved, T, R, theta, angle);
    m3_scratch_release(ctx, mark);
    return status;
}

static int one_later(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                     enum m3_rope_angle angle)
{
    return moved_table(ctx, cos, sin, pos, T, R, theta, angle, 1);
}

static int one_earlier(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                       enum m3_rope_angle angle)
{
    return moved_table(ctx, cos, sin, pos, T, R, theta, angle, -1);
}

/* ---- the norm of q and k after their rotation: the two steps are exchanged, each in the other's tap */

static int is_head_norm(enum m3_tap tap)
{
    return tap == M3_TAP_Q_NORM || tap == M3_TAP_K_NORM || tap == M3_TAP_INDEX_Q_NORM || tap == M3_TAP_INDEX_K_NORM;
}

/* The weights of both norms are pending when q is rotated. */
static int turn_first(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const int64_t heads = m3_normed_heads(ctx), R = m3_run_of(ctx)->model.config.R;
    const size_t mark = m3_scratch_mark(ctx);
    real *cos, *sin;
    if (!is_head_norm(m3_tap_being_made(ctx))) return m3_right()->rms_norm(ctx, y, x, w, T, H, eps);
    int status = tables(ctx, &cos, &sin, T / heads, R);
    if (!status) status = m3_right()->rope(ctx, y, x, cos, sin, T / heads, heads, H, R);
    m3_scratch_release(ctx, mark);
    return status;
}

static int norm_then(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                     int64_t heads, int64_t D, int64_t R)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const struct m3_config *c = &run->model.config;
    const enum m3_tap tap = m3_tap_being_made(ctx);
    if (!in_text(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    const int64_t l = m3_layer_index(c, run->layer);
    const struct m3_layer *layer = &run->model.layers[l];
    const struct m3_weight *w = tap == M3_TAP_Q_ROPE         ? &layer->q_norm
                                : tap == M3_TAP_K_ROPE       ? &layer->k_norm
                                : tap == M3_TAP_INDEX_Q_ROPE ? &layer->index_q_norm
                                                             : &layer->index_k_norm;
    const size_t mark = m3_scratch_mark(ctx);
    real *numbers = m3_scratch_take(ctx, D, sizeof *numbers);
    if (!numbers) return M3_INTERNAL;
    m3_expand_f64(numbers, w, 0, 0, D);
    int status = m3_right()->rms_norm(ctx, y, x, numbers, T * heads, D, c->eps);
    m3_scratch_release(ctx, mark);
    return status;
}

enum { HEADS = M3_NEEDS_HEAD_NORM | M3_NEEDS_GEMMA };

static const struct m3_mistake all[] = {
    { "rope.full", "all channels of a head are turned", "*.q_rope", M3_OP_ROPE, 0, "a position other than 0", NULL,
      M3_CHANGE(.ops.rope = all_channels) },
    { "rope.last", "the last R channels of a head are turned, not the first", "*.q_rope", M3_OP_ROPE, 0,
      "a position other than 0", NULL, M3_CHANGE(.ops.rope = last_channels) },
    { "rope.interleaved", "neighbours (2i, 2i+1) are turned as pairs", "*.q_rope", M3_OP_ROPE, 0,
      "a position other than 0", NULL, M3_CHANGE(.ops.rope = interleaved) },
    { "rope.freq_dim", "frequencies theta^(-2i/D), not by the rotated channels R", "*.q_rope", M3_OP_ROPE, 0,
      "a position other than 0", NULL, M3_CHANGE(.ops.rope_table = exponent_by_head) },
    { "rope.factor_twice", "the rotated share R/D of a head is taken twice: fewer channels are turned", "*.q_rope",
      M3_OP_ROPE, 0, "a position other than 0", NULL, M3_CHANGE(.ops.rope = factor_twice) },
    { "rope.theta", "frequencies of base 10,000, the default of libraries", "*.q_rope", M3_OP_ROPE, 0,
      "a position other than 0, another base", NULL, M3_CHANGE(.ops.rope_table = default_base) },
    { "rope.position", "every row is turned by the position after its own", "*.q_rope", M3_OP_ROPE, 0, NULL, NULL,
      M3_CHANGE(.ops.rope_table = one_later) },
    { "rope.position:before", "every row is turned by the position before its own", "*.q_rope", M3_OP_ROPE, 0, NULL,
      NULL, M3_CHANGE(.ops.rope_table = one_earlier) },
    { "rope.fp32_angle", "angles are formed in float", "*.q_rope", M3_OP_ROPE, M3_NEEDS_FAR, NULL, "rope_angle=f32",
      NULL },
    { "rope.after_norm_swap", "q and k are turned first and normalised then", "*.q_norm", M3_OP_RMS_NORM, HEADS,
      "a position other than 0", NULL, M3_CHANGE(.ops.rms_norm = turn_first, .ops.rope = norm_then) },
};

const struct m3_mistake_section m3_mistakes_rope = { all, sizeof all / sizeof all[0] };
