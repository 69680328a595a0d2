/* Mistakes in reading stored weights and the config. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <string.h>

/* ---- 8-bit weights */

/* Replaces the numbers of a matrix with a scale per 32 columns. */
static int expand(struct m3_mistaken_run *run, struct m3_weight *w, struct m3_error *error)
{
    const struct m3_weight stored = *w;
    if (w->scaling != M3_SCALE_MX32) return M3_OK;
    double *numbers = m3_own_weight(run, w, error);
    if (!numbers) return M3_INTERNAL;
    run->change->expands(numbers, &stored);
    return M3_OK;
}

/* Replaces the scales of a matrix with a scale per block; its codes stay where they are. */
static int rescale(struct m3_mistaken_run *run, struct m3_weight *w, struct m3_error *error)
{
    const int is_mx = w->scaling == M3_SCALE_MX32;
    const int64_t down = is_mx ? w->rows : (w->rows + 127) / 128,
                  across = is_mx ? (w->cols + 31) / 32 : (w->cols + 127) / 128;
    const size_t bytes = is_mx ? 1 : sizeof(float);
    if (!w->scales || (!is_mx && w->scaling != M3_SCALE_128X128)) return M3_OK;
    unsigned char *mine = m3_own(run, down * across, bytes, error);
    if (!mine) return M3_INTERNAL;
    run->change->rescales(mine, w->scales, down, across, bytes);
    w->scales = mine;
    return M3_OK;
}

typedef int change_one(struct m3_mistaken_run *run, struct m3_weight *w, struct m3_error *error);

static int each_matrix(struct m3_mistaken_run *run, int64_t l, struct m3_error *error, change_one *change)
{
    struct m3_layer *at = &run->model.layers[l];
    struct m3_weight *all[] = { &at->q_proj,       &at->k_proj, &at->v_proj, &at->o_proj, &at->index_q_proj,
                                &at->index_k_proj, &at->gate,   &at->up,     &at->down };
    int status = M3_OK;
    for (size_t i = 0; i < sizeof all / sizeof all[0] && !status; i++) status = change(run, all[i], error);
    return status;
}

static int each_expert(struct m3_mistaken_run *run, int64_t l, struct m3_error *error, change_one *change)
{
    int status = m3_own_experts(run, l, error);
    struct m3_expert *e = run->model.layers[l].experts;
    for (int64_t i = 0; e && i < run->model.config.E && !status; i++) {
        status = change(run, &e[i].w1, error);
        if (!status) status = change(run, &e[i].w3, error);
        if (!status) status = change(run, &e[i].w2, error);
    }
    return status;
}

static int expand_layer(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    int status = each_matrix(run, l, error, expand);
    return status ? status : each_expert(run, l, error, expand);
}

static int rescale_layer(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    return each_matrix(run, l, error, rescale);
}

static int rescale_all(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, rescale_layer);
}

static int rescale_experts_of(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    return each_expert(run, l, error, rescale);
}

static int rescale_experts(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, rescale_experts_of);
}

/* The scales were stored by columns. */
static void transposed(unsigned char *mine, const unsigned char *scales, int64_t down, int64_t across, size_t bytes)
{
    for (int64_t r = 0; r < down; r++)
        for (int64_t c = 0; c < across; c++)
            memcpy(mine + (size_t)(r * across + c) * bytes, scales + (size_t)(c * down + r) * bytes, bytes);
}

/* A block has the scale of the one before. */
static void one_late(unsigned char *mine, const unsigned char *scales, int64_t down, int64_t across, size_t bytes)
{
    memcpy(mine, scales, bytes);
    memcpy(mine + bytes, scales, (size_t)(down * across - 1) * bytes);
}

static int unscaled_in(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    struct m3_weight *w = &run->model.layers[l].o_proj;
    (void)error;
    w->scaling = M3_UNSCALED, w->scales = NULL;
    return M3_OK;
}

static int unscaled(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, unscaled_in);
}

static int expand_all(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, expand_layer);
}

/* Rounds to the nearest E4M3 number: 4 significant bits; below 2^-6 a grid of 2^-9. */
static double to_e4m3(double x)
{
    const double grid = 0x1p-9;
    return fabs(x) < 0x1p-6 ? nearbyint(x / grid) * grid : fmax(-448, fmin(448, m3_round_bits(x, 4)));
}

/* One scale per 128x128 numbers, which maps the largest of them to the largest code. */
static void requantise(double *w, const struct m3_weight *stored)
{
    for (int64_t r0 = 0; r0 < stored->rows; r0 += 128)
        for (int64_t c0 = 0; c0 < stored->cols; c0 += 128) {
            double most = 0;
            for (int pass = 0; pass < 2; pass++)
                for (int64_t r = r0; r < stored->rows && r < r0 + 128; r++)
                    for (int64_t c = c0; c < stored->cols && c < c0 + 128; c++) {
                        double *x = &w[r * stored->cols + c];
                        if (pass == 0) most = fmax(most, fabs(*x));
                        else if (most > 0) *x = to_e4m3(*x / (most / 448)) * (most / 448);
                    }
        }
}

/* The scales are read as if there were one per 128x128 codes. */
static void wrong_blocks(double *w, const struct m3_weight *stored)
{
    const struct m3_weight codes = {
        .data = stored->data, .dtype = stored->dtype, .rows = stored->rows, .cols = stored->cols
    };
    const unsigned char *scales = stored->scales;
    const int64_t across = (stored->cols + 127) / 128;
    for (int64_t r = 0; r < stored->rows; r++) {
        m3_expand_f64(w + r * stored->cols, &codes, r, 0, stored->cols);
        for (int64_t c = 0; c < stored->cols; c++)
            w[r * stored->cols + c] *= ldexp(1, scales[r / 128 * across + c / 128] - 127);
    }
}

static int all_dense(struct m3_mistaken_run *run, struct m3_error *error)
{
    unsigned char *none = m3_own(run, run->model.config.layers, 1, error);
    if (!none) return M3_INTERNAL;
    run->model.config.sparse = none;
    return M3_OK;
}

static const struct m3_mistake all[] = {
    { "quant.requant", "scales per 32 columns are replaced by scales per 128x128, codes rounded again", "*.q_proj",
      M3_OP_LINEAR, M3_NEEDS_MX32, NULL, NULL, M3_CHANGE(.prepare = expand_all, .expands = requantise) },
    { "quant.block_shape", "scales per 32 columns are read as scales per 128x128", "*.q_proj", M3_OP_LINEAR,
      M3_NEEDS_MX32, NULL, NULL, M3_CHANGE(.prepare = expand_all, .expands = wrong_blocks) },
    { "quant.transposed", "the scales of blocks are read transposed", "*.q_proj", M3_OP_LINEAR, M3_NEEDS_SCALES, NULL,
      NULL, M3_CHANGE(.prepare = rescale_all, .rescales = transposed) },
    { "quant.transposed:experts", "the scales of the experts' blocks are read transposed", "*.moe.expert_out",
      M3_OP_EXPERT, M3_NEEDS_SCALES | M3_NEEDS_EXPERTS, NULL, NULL,
      M3_CHANGE(.prepare = rescale_experts, .rescales = transposed) },
    { "quant.one_late", "a block has the scale of the block before it", "*.q_proj", M3_OP_LINEAR, M3_NEEDS_SCALES, NULL,
      NULL, M3_CHANGE(.prepare = rescale_all, .rescales = one_late) },
    { "quant.unscaled", "o_proj is read without its scales", "*.attn_out", M3_OP_LINEAR, M3_NEEDS_SCALES, NULL, NULL,
      M3_CHANGE(.prepare = unscaled) },
    { "config.dense_default", "no layer is sparse, for the map of layers is not read", "*.attn_lse", M3_OP_ATTEND,
      M3_NEEDS_CHOICE, NULL, NULL, M3_CHANGE(.prepare = all_dense) },
};

const struct m3_mistake_section m3_mistakes_weights = { all, sizeof all / sizeof all[0] };
