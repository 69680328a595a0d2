#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/picture/private/picturing.h"

enum { SHOWN_PICTURES = 6, MOST_SIDE = 4096 };

/* The pictures of a dump. */
struct patches {
    const struct m3_tensor *grid, *pixels, *features, *fused, *blocks;
    int64_t merge, layer, block;
    int64_t *row;               /* [M] the text row of a merged token; -1: unknown */
};

/* The mean of a colour channel of a patch as a byte. SPEC 10.4. */
static int byte_of(const struct m3_tensor *pixels, int64_t patch, int channel)
{
    static const double mean[3] = { 0.48145466, 0.4578275, 0.40821073 };
    static const double deviation[3] = { 0.26862954, 0.26130258, 0.27577711 };
    const int64_t C = pixels->shape[1], n = C / 3;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += m3_picture_at(pixels, patch * C + channel * n + i);
    const double value = (sum / (double)n * deviation[channel] + mean[channel]) * 255;
    return isfinite(value) ? (int)fmin(255, fmax(0, value + 0.5)) : 0;
}

/* Place of patch i of a step: groups of merge x merge patches, row by row. SPEC 6.2. */
static void place_of(int64_t *row, int64_t *column, int64_t i, int64_t width, int64_t merge)
{
    const int64_t each = merge * merge, group = i / each, across = width / merge;
    *row = group / across * merge + i % each / merge;
    *column = group % across * merge + i % each % merge;
}

/* The text rows that hold the features, by their equal numbers. */
static void find_rows(struct patches *a)
{
    const int64_t H = a->features->shape[1], M = a->features->shape[0], T = a->fused ? a->fused->shape[0] : 0;
    for (int64_t k = 0; k < M; k++) a->row[k] = -1;
    for (int64_t k = 0; k < M; k++)
        for (int64_t t = 0; t < T && a->row[k] < 0; t++) {
            int64_t i = 0;
            while (i < H && m3_picture_at(a->fused, t * H + i) == m3_picture_at(a->features, k * H + i)) i++;
            if (i == H) a->row[k] = t;
        }
}

/* The share of the later decisions, of all groups, that chose the block of a text row; NaN if there are none. */
static double chosen(const struct patches *a, int64_t row)
{
    const struct m3_tensor *ids = a->blocks;
    const int64_t T = ids->shape[0], each = ids->shape[1] * ids->shape[2], own = row / a->block;
    double count = 0, decisions = 0;
    for (int64_t t = row + 1; t < T; t++) {
        if (t / a->block == own) continue;      /* its own block is forced */
        decisions += (double)ids->shape[1];
        for (int64_t i = 0; i < each; i++) count += m3_picture_at(ids, t * each + i) == (double)own;
    }
    return decisions > 0 ? count / decisions : NAN;
}

static int draw_patches(FILE *out, const struct patches *a, int64_t first, int64_t height, int64_t width, int cell)
{
    for (int64_t i = 0; i < height * width; i++) {
        int64_t r, c;
        place_of(&r, &c, i, width, a->merge);
        fprintf(out, "<rect x=\"%" PRId64 "\" y=\"%" PRId64 "\" width=\"%d\" height=\"%d\" fill=\"#%02x%02x%02x\"/>\n",
                8 + c * cell, 20 + r * cell, cell, cell, byte_of(a->pixels, first + i, 0),
                byte_of(a->pixels, first + i, 1), byte_of(a->pixels, first + i, 2));
    }
    return 8 + (int)width * cell + 40;
}

static void draw_choices(FILE *out, const struct patches *a, int64_t first, int64_t height, int64_t width, int x,
                         int cell)
{
    const int64_t merged = a->merge * a->merge, across = width / a->merge;
    for (int64_t k = 0; k < height * width / merged; k++) {
        const int64_t row = a->row[first / merged + k];
        const double share = row < 0 ? NAN : chosen(a, row);
        const signed char level = m3_level_of(share);
        const int side = cell * (int)a->merge;
        m3_draw_grid(out, &(struct m3_grid){ x + (int)(k % across) * side, 20 + (int)(k / across) * side, side - 1,
                                             side - 1, 1, 1, &level });
    }
}

static void draw_picture(struct m3_picturing *p, const struct patches *a, int64_t i, int64_t first)
{
    const int64_t height = (int64_t)m3_picture_at(a->grid, 3 * i + 1),
                  width = (int64_t)m3_picture_at(a->grid, 3 * i + 2);
    const int cell = (int)m3_max(2, m3_min(16, 440 / m3_max(height, width)));
    const int has_choices = a->row && a->blocks && a->block > 0;
    char title[128], name[64];
    snprintf(title, sizeof title, "patches of picture %" PRId64, i);
    FILE *out = m3_panel_begin(p, M3_PANEL_WIDTH, 28 + (int)height * cell, title);
    if (!out) return;
    const int x = draw_patches(out, a, first, height, width, cell);
    m3_picture_layer_name(name, sizeof name, a->layer);
    if (has_choices) draw_choices(out, a, first, height, width, x, cell);
    m3_panel_note(p, "%" PRId64 " x %" PRId64 " patches in their average colours%s.%s%s%s", height, width,
                  m3_picture_at(a->grid, 3 * i) > 1 ? ", of the first step" : "",
                  has_choices
                      ? " Beside them the merged tokens: the bar grows with the share of later rows outside the "
                        "token's own block that chose this block in "
                      : "",
                  has_choices ? name : "", has_choices ? ", over all groups." : "");
    m3_panel_end(p);
}

/* Do the grids fit the patches? */
static int fits(struct m3_picturing *p, const struct patches *a)
{
    int64_t all = 0;
    for (int64_t i = 0; i < a->grid->shape[0]; i++) {
        int64_t patches = 1;
        for (int k = 0; k < 3; k++) {
            const double side = m3_picture_at(a->grid, 3 * i + k);
            if (!(side >= 1 && side <= MOST_SIDE)) return 0;
            patches *= (int64_t)side;
        }
        if ((int64_t)m3_picture_at(a->grid, 3 * i + 1) % a->merge ||
            (int64_t)m3_picture_at(a->grid, 3 * i + 2) % a->merge)
            return 0;
        all += patches;
    }
    return !p->status && all == a->pixels->shape[0] && a->pixels->shape[1] >= 3;
}

void m3_picture_patches(struct m3_picturing *p)
{
    int64_t layers[M3_PICTURE_LAYERS], first = 0;
    struct patches a = { .grid = m3_picture_tap(p, M3_TAP_VISION_GRID, -1),
                         .pixels = m3_picture_tap(p, M3_TAP_VISION_PIXELS, -1),
                         .features = m3_picture_tap(p, M3_TAP_PROJECTOR_OUT, -1),
                         .fused = m3_picture_tap(p, M3_TAP_FUSED, -1) };
    const int count = m3_picture_layers(p, M3_TAP_INDEX_BLOCKS, layers);
    if (!a.grid || !a.pixels || a.grid->shape[1] != 3) return;
    const int64_t P = a.pixels->shape[0], M = a.features ? a.features->shape[0] : P;
    a.merge = (int64_t)lround(sqrt((double)P / (double)M));
    if (a.merge < 1 || !fits(p, &a)) return;
    if (count > 0) {
        a.layer = layers[0];
        a.blocks = m3_picture_tap(p, M3_TAP_INDEX_BLOCKS, a.layer);
        a.block = m3_picture_block(p, a.layer);
    }
    const int knows_rows =
        a.features && a.fused && a.fused->shape[1] == a.features->shape[1] && M * a.merge * a.merge == P;
    if (knows_rows) a.row = malloc((size_t)M * sizeof *a.row);
    if (knows_rows && !a.row) p->status = m3_fail_memory(p->error, "patches", (size_t)M * sizeof *a.row);
    if (a.row) find_rows(&a);
    for (int64_t i = 0; i < a.grid->shape[0] && i < SHOWN_PICTURES; i++) {
        draw_picture(p, &a, i, first);
        first += (int64_t)(m3_picture_at(a.grid, 3 * i) * m3_picture_at(a.grid, 3 * i + 1) *
                           m3_picture_at(a.grid, 3 * i + 2));
    }
    free(a.row);
}
