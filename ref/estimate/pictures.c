#include "estimate/private/parts.h"

/* Sum over segments of their patches squared, where no segment of a video reaches over its limit of time steps. */
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
    const struct m3_config *c = e->config;
    const struct m3_vision_config *v = &c->vision;
    struct m3_vision_flops *f = &e->vision;
    m3_wide P = 0, squares = 0;
    if (!r->grid_count) return;
    for (int64_t i = 0; i < r->grid_count; i++) {
        P += (m3_wide)r->grids[i][0] * r->grids[i][1] * r->grids[i][2];
        squares += squares_of_segments(r->grids[i], v->segment_max_frames);
    }
    if (r->boundary == M3_BOUNDARY_NONE) squares = squares_of_all(r);

    const m3_wide merged = P / (v->spatial_merge * v->spatial_merge), Y = v->projector_hidden;
    f->patches = m3_exact(e, P);
    f->tokens = m3_exact(e, merged);
    f->squares = m3_exact(e, squares);
    f->patch_embed = m3_exact(e, P * 2 * m3_config_size(c, 'C') * v->W);
    f->linears = m3_exact(e, v->layers * 2 * (4 * v->W * v->W + 2 * v->W * v->intermediate) * P);
    f->attention = m3_exact(e, v->layers * 4 * v->W * squares);
    f->projector = m3_exact(e, 2 * (v->W * Y + Y * c->H) * P + 2 * (m3_config_size(c, 'Z') * Y + Y * c->H) * merged);
    f->total = m3_exact(e, (m3_wide)f->patch_embed + f->linears + f->attention + f->projector);
}
