/* Mistakes in the index branch, up to its scores. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <string.h>

static int in_index_branch(const struct m3_ctx *ctx)
{
    return m3_tap_being_made(ctx) >= M3_TAP_INDEX_Q_PROJ && m3_tap_being_made(ctx) <= M3_TAP_INDEX_K_ROPE;
}

/* All index heads have the weights of the first. */
static int one_head_in(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    const struct m3_config *c = &run->model.config;
    if (!m3_config_sparse(c, l)) return M3_OK;
    double *w = m3_own_weight(run, &run->model.layers[l].index_q_proj, error);
    for (int64_t g = 1; w && g < c->G; g++) memcpy(w + g * c->X * c->H, w, (size_t)(c->X * c->H) * sizeof *w);
    return w ? M3_OK : M3_INTERNAL;
}

static int one_head(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, one_head_in);
}

static int scale_missing_in(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    struct m3_weight *both[] = { &run->model.layers[l].index_q_proj, &run->model.layers[l].index_k_proj };
    (void)error;
    for (int i = 0; i < 2; i++) both[i]->scaling = M3_UNSCALED, both[i]->scales = NULL;
    return M3_OK;
}

static int scale_missing(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, scale_missing_in);
}

static int no_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    if (!in_index_branch(ctx)) return m3_right()->rms_norm(ctx, y, x, w, T, H, eps);
    memmove(y, x, (size_t)(T * H) * sizeof *y);
    return M3_OK;
}

static int no_rope(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                   int64_t heads, int64_t D, int64_t R)
{
    if (!in_index_branch(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    memmove(y, x, (size_t)(T * heads * D) * sizeof *y);
    return M3_OK;
}

static int relu(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    int status = m3_right()->block_scores(ctx, m, q, k, d);
    for (int64_t i = 0; i < d->T * d->G * d->B && !status; i++)
        if (isfinite(m[i])) m[i] = fmax(m[i], 0);
    return status;
}

static int half_precision(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    int status = m3_right()->block_scores(ctx, m, q, k, d);
    if (!status) m3_round_all(m, d->T * d->G * d->B, 11);
    return status;
}

/* ---- rotations of the branch alone */

/* Channels 2i and 2i + 1 are a pair. */
static int interleaved(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                       int64_t heads, int64_t D, int64_t R)
{
    if (!in_index_branch(ctx)) return m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    m3_rope_neighbours(y, x, cos, sin, T, heads, D, R);
    return M3_OK;
}

/* Hadamard's matrix, normalised, on each run of as many channels as the largest power of two that divides X. */
static void hadamard(real *y, int64_t count, int64_t X)
{
    const int64_t n = X & -X;
    for (int64_t at = 0; at < count; at += n) {
        for (int64_t step = 1; step < n; step *= 2)
            for (int64_t i = 0; i < n; i++) {
                if (i & step) continue;
                const real a = y[at + i], b = y[at + i + step];
                y[at + i] = a + b;
                y[at + i + step] = a - b;
            }
        for (int64_t i = 0; i < n; i++) y[at + i] /= sqrt((double)n);
    }
}

static int query_hadamard(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                          int64_t heads, int64_t D, int64_t R)
{
    const int is_query = m3_tap_being_made(ctx) == M3_TAP_INDEX_Q_ROPE;
    int status = m3_right()->rope(ctx, y, x, cos, sin, T, heads, D, R);
    if (!status && is_query) hadamard(y, T * heads * D, D);
    return status;
}

static int hadamard_inside(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d)
{
    const int64_t count = d->T * d->G * d->X;
    const size_t mark = m3_scratch_mark(ctx);
    real *mine = m3_scratch_take(ctx, count, sizeof *mine);
    if (!mine) return M3_INTERNAL;
    memcpy(mine, q, (size_t)count * sizeof *mine);
    hadamard(mine, count, d->X);
    int status = m3_right()->block_scores(ctx, m, mine, k, d);
    m3_scratch_release(ctx, mark);
    return status;
}

static const struct m3_mistake all[] = {
    { "select.quantised", "scores of blocks are stored in half precision", "*.index.block_scores", M3_OP_BLOCK_SCORES,
      M3_NEEDS_SPARSE, NULL, NULL, M3_CHANGE(.ops.block_scores = half_precision) },
    { "index.one_head", "one index query head for all groups", "*.index.q_proj", M3_OP_LINEAR,
      M3_NEEDS_SPARSE | M3_NEEDS_GROUPS, NULL, NULL, M3_CHANGE(.prepare = one_head) },
    { "index.no_norm", "index queries and keys are not normalised", "*.index.q_norm", M3_OP_RMS_NORM, M3_NEEDS_SPARSE,
      NULL, NULL, M3_CHANGE(.ops.rms_norm = no_norm, .ops.rms_norm_plain = no_norm) },
    { "index.no_rope", "index queries and keys are not turned", "*.index.q_rope", M3_OP_ROPE, M3_NEEDS_SPARSE,
      "a position other than 0", NULL, M3_CHANGE(.ops.rope = no_rope) },
    { "index.interleaved", "index queries and keys are turned as pairs of neighbours, q and k are not",
      "*.index.q_rope", M3_OP_ROPE, M3_NEEDS_SPARSE, "a position other than 0", NULL,
      M3_CHANGE(.ops.rope = interleaved) },
    { "index.hadamard", "index queries are turned by Hadamard's matrix, index keys are not", "*.index.q_rope",
      M3_OP_ROPE, M3_NEEDS_SPARSE, NULL, NULL, M3_CHANGE(.ops.rope = query_hadamard) },
    { "index.hadamard:inside", "the same, inside the kernel of the scores", "*.index.block_scores", M3_OP_BLOCK_SCORES,
      M3_NEEDS_SPARSE, NULL, NULL, M3_CHANGE(.ops.block_scores = hadamard_inside) },
    { "index.relu", "negative scores are raised to 0, as in another model's indexer", "*.index.block_scores",
      M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE, "a block whose best score is negative", NULL,
      M3_CHANGE(.ops.block_scores = relu) },
    { "index.scale", "scores times X^(-1/2)", "*.index.block_scores", M3_OP_BLOCK_SCORES, M3_NEEDS_SPARSE, NULL,
      "index_scale=rsqrt", NULL },
    { "index.scale_missing", "index matrices of 8 bits are read without their scales", "*.index.q_proj", M3_OP_LINEAR,
      M3_NEEDS_SPARSE | M3_NEEDS_MX32, NULL, NULL, M3_CHANGE(.prepare = scale_missing) },
};

const struct m3_mistake_section m3_mistakes_index = { all, sizeof all / sizeof all[0] };
