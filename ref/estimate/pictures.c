#include "estimate/private/parts.h"

/* Sum over segments of their patches squared, where no segment of a video exceeds its limit of time steps. */
static m3_wide squares_of_segments(const int64_t grid[3], int64_t limit)
{
    m3_wide plane = (m3_wide)grid[1] * grid[2], t = grid[0];
    if (t == 1 || !limit) return plane * t * plane * t;
    m3_wide whole = plane * limit, rest = plane * (t % limit);
    return t / limit * whole * whole + rest * rest;
}

/* Without boundaries all images are one segment, and all videos another. */
static m3_wide squares_of_all(const struct m3_estimate_request *r)
{
    m3_wide images = 0, videos = 0;
    for (int64_t i = 0; i < r->grid_count; i++) {
        const int64_t *grid = r->grids[i];
        m3_wide patches = (m3_wide)grid[0] * grid[1] * grid[2];
        if (grid[0] == 1) images += patches;
        else videos += patches;
    }
    return images * images + videos * videos;
}

void m3_estimate_pictures(struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    m3_wide squares = 0;
    for (int64_t i = 0; i < r->grid_count; i++) {
        e->patches += r->grids[i][0] * r->grids[i][1] * r->grids[i][2];
        squares += squares_of_segments(r->grids[i], e->config->vision.segment_max_frames);
    }
    if (r->boundary == M3_BOUNDARY_NONE) squares = squares_of_all(r);
    e->overflow |= squares > INT64_MAX;
    e->squares = (int64_t)squares;
}
