/* Mistakes in reading stored weights and the config. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <string.h>

/* ---- 8-bit weights */

/* Replaces the numbers of each matrix with a scale per 32 columns. */
static int expand_layer(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    struct m3_layer *at = &run->model.layers[l];
    int status = m3_own_experts(run, l, error);
    struct m3_weight *of_layer[] = { &at->q_proj,       &at->k_proj, &at->v_proj, &at->o_proj, &at->index_q_proj,
                                     &at->index_k_proj, &at->gate,   &at->up,     &at->down };
    const int64_t count = 9 + (at->experts ? 3 * run->model.config.E : 0);
    for (int64_t i = 0; i < count && !status; i++) {
        struct m3_expert *e = i < 9 ? NULL : &at->experts[(i - 9) / 3];
        struct m3_weight *w = !e ? of_layer[i] : (i - 9) % 3 == 0 ? &e->w1 : (i - 9) % 3 == 1 ? &e->w3 : &e->w2;
        const struct m3_weight stored = *w;
        if (w->scaling != M3_SCALE_MX32) continue;
        double *numbers = m3_own_weight(run, w, error);
        if (!numbers) return M3_INTERNAL;
        run->change->expands(numbers, &stored);
    }
    return status;
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
    { "config.dense_default", "no layer is sparse, for the map of layers is not read", "*.attn_lse", M3_OP_ATTEND,
      M3_NEEDS_CHOICE, NULL, NULL, M3_CHANGE(.prepare = all_dense) },
};

const struct m3_mistake_section m3_mistakes_weights = { all, sizeof all / sizeof all[0] };
