#include "oracle/error/private/recompute.h"

/* ---- pixels: B = 0 */

static int value(struct m3_recomputing *m)
{
    const float *pixels = m->setting->the_case->pictures.pixels;
    for (int64_t i = 0; i < m->count; i++) m->y[i] = (double)pixels[m->numbers[i / m->width] * m->width + i % m->width];
    return M3_OK;
}

static void rows(struct m3_recomputing *m)
{
    if (m->setting->the_case->pictures.pixels) m3_rows_in_common(m);
    else m3_recompute_missing(m->out, "pixels of the case");
}

const struct m3_error_operator m3_error_input = {
    .name = "input",
    .sections = { "10.5 Patches" },
    .value = value,
    .rows = rows,
};

/* ---- counts: the grid of the pictures */

static int grid(struct m3_recomputing *m)
{
    const struct m3_pictures *p = &m->setting->the_case->pictures;
    for (int64_t i = 0; i < m->count; i++) m->ids[i] = (int32_t)p->grid[m->numbers[i / 3]][i % 3];
    return M3_OK;
}

const struct m3_error_operator m3_error_counts = {
    .name = "none",
    .sections = { "10.5 Patches" },
    .value = grid,
};
