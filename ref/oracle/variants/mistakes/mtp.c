/* Mistakes in multi-token prediction. */
#include "oracle/variants/private/mistakes.h"

#include <string.h>

/* Keeps the hidden state of the last layer. */
static int keep_last_out(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row,
                         int64_t rows, struct m3_error *error)
{
    const struct m3_config *c = &run->model.config;
    (void)row;
    if (tap != M3_TAP_OUT || layer != c->layers - 1) return M3_OK;
    run->kept = m3_own(run, rows * c->H, sizeof(double), error);
    if (!run->kept) return M3_INTERNAL;
    memcpy(run->kept, data, (size_t)(rows * c->H) * sizeof(double));
    return M3_OK;
}

/* Module 0 normalises the hidden state before the main model's norm. */
static int before_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    if (m3_tap_being_made(ctx) == M3_TAP_MTP_HIDDEN_NORM && m3_module_of(run) == 0) x = run->kept;
    if (!x) return m3_fail_at(ctx, M3_WRONG, "the hidden state before the final norm is not known", -1, -1, -1);
    return m3_right_norm(ctx, y, x, w, T, H, eps);
}

/* Row 0 has its own. */
static int row_before(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, T * H, sizeof *mine);
    if (!mine) return M3_INTERNAL;
    memcpy(mine, x, (size_t)(T * H) * sizeof *mine);
    if (m3_tap_being_made(ctx) == M3_TAP_MTP_HIDDEN_NORM) memcpy(mine + H, x, (size_t)((T - 1) * H) * sizeof *mine);
    int status = m3_right_norm(ctx, y, mine, w, T, H, eps);
    m3_scratch_release(ctx, mark);
    return status;
}

static int doubled(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    (void)ctx;
    for (int64_t i = 0; i < T * cols; i++) mine[i] = 2 * x[i];
    return M3_OK;
}

static int hidden_first(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    const int64_t H = cols / 2;
    (void)ctx;
    for (int64_t i = 0; i < 2 * T; i++) memcpy(mine + i * H, x + (i ^ 1) * H, (size_t)H * sizeof *mine);
    return M3_OK;
}

/* A module receives the ids after its rows; the id before the first of them is its row's own. */
static int own_token(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    return m3_right()->embed(ctx, y, m3_tap_being_made(ctx) > M3_TAP_EMBED ? ids - 1 : ids, w, T);
}

static int place_of_token(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R,
                          double theta, enum m3_rope_angle angle)
{
    const int64_t module = m3_module_of(m3_run_of(ctx));
    const size_t mark = m3_scratch_mark(ctx);
    int64_t *later = m3_scratch_take(ctx, T, sizeof *later);
    if (!later) return M3_INTERNAL;
    for (int64_t t = 0; t < T; t++) later[t] = pos[t] + (module > 0 ? module : 0);
    int status = m3_right()->rope_table(ctx, cos, sin, later, T, R, theta, angle);
    m3_scratch_release(ctx, mark);
    return status;
}

static const struct m3_mistake all[] = {
    { "mtp.handover", "a module gets the hidden state after the final norm of the one before", "mtp.1.hidden_norm",
      M3_OP_RMS_NORM, M3_NEEDS_TWO_MODULES, "a final norm of unequal weights", "mtp_handover=post_norm", NULL },
    { "mtp.row0", "the embedding of position 0 is zero", "mtp.0.embed_norm", M3_OP_RMS_NORM, M3_NEEDS_MODULE, NULL,
      "mtp_zero_position0=true", NULL },
    { "mtp.main_hidden", "module 0 gets the hidden state before the main model's norm", "mtp.0.hidden_norm",
      M3_OP_RMS_NORM, M3_NEEDS_MODULE, "a final norm of unequal weights", NULL,
      M3_CHANGE(.ops.rms_norm = before_norm, .ops.rms_norm_plain = before_norm, .force = keep_last_out,
                .keeps = M3_TAP_OUT) },
    { "mtp.concat_order", "the hidden state is joined before the embedding", "mtp.0.eh_proj", M3_OP_LINEAR,
      M3_NEEDS_MODULE, NULL, NULL,
      M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = hidden_first, .reader = M3_TAP_MTP_EH_PROJ) },
    { "mtp.hidden_row", "a row joins the hidden state of the row before", "mtp.0.hidden_norm", M3_OP_RMS_NORM,
      M3_NEEDS_MODULE, NULL, NULL, M3_CHANGE(.ops.rms_norm = row_before, .ops.rms_norm_plain = row_before) },
    { "mtp.eh_scale", "the scale of eh_proj is one exponent too large", "mtp.0.eh_proj", M3_OP_LINEAR, M3_NEEDS_MODULE,
      NULL, NULL, M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = doubled, .reader = M3_TAP_MTP_EH_PROJ) },
    { "mtp.no_shift", "a row joins the embedding of token t + m, not of the next one", "mtp.0.embed_norm",
      M3_OP_RMS_NORM, M3_NEEDS_MODULE, NULL, NULL, M3_CHANGE(.ops.embed = own_token) },
    { "mtp.position", "rows of module m are turned by position t + m", "mtp.1.layer.q_rope", M3_OP_ROPE,
      M3_NEEDS_TWO_MODULES, NULL, NULL, M3_CHANGE(.ops.rope_table = place_of_token) },
};

const struct m3_mistake_section m3_mistakes_mtp = { all, sizeof all / sizeof all[0] };
