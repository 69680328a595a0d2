#include "oracle/error/private/recompute.h"

/* Cosines and sines as the truth has them, and how far an angle may be off: [rows,R/2] each. */
struct tables {
    double *cos, *sin, *error;
};

static struct tables need_tables(struct m3_recomputing *m, int64_t R)
{
    const int64_t n = m->rows * R / 2;
    double *memory = m3_recompute_scratch(m, 3 * n, sizeof *memory);
    return (struct tables){ memory, memory ? memory + n : NULL, memory ? memory + 2 * n : NULL };
}

static void turn(struct m3_recomputing *m, const struct tables *t, int64_t D, int64_t R)
{
    const double u_turn = m3_recompute_store(m, "rope.cos"), u_product = m3_recompute_store(m, "rope.product");
    const double *x = m->in[0].x;
    const int64_t heads = m->width / D;
    struct m3_ctx *ctx = m->setting->ctx;
    struct m3_spread *extra = m3_is_off(&m->in[0]) || u_turn > 0 || u_product > 0 ? m3_recompute_extra(m) : NULL;
    if (m->status) return;
    m3_recompute_check(m, m->ops->rope(ctx, m->out->y, x, t->cos, t->sin, m->rows, heads, D, R));
    m3_recompute_check(m, m3_bound_rope(ctx, &m->bound, x, t->cos, t->sin, t->error, m->rows, heads, D, R, &m->how));
    if (extra)
        m3_recompute_check(m, m3_propagate_rope(ctx, extra, x, &m->in[0].off, t->cos, t->sin, m->rows, heads, D, R, u_turn,
                                      u_product));
}

void m3_recompute_rope(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const int index = m->tap == M3_TAP_INDEX_Q_ROPE || m->tap == M3_TAP_INDEX_K_ROPE;
    const struct tables t = need_tables(m, c->R);
    int64_t *positions = m3_recompute_scratch(m, m->rows, sizeof *positions);
    if (m->status) return;
    for (int64_t r = 0; r < m->rows; r++) positions[r] = m->setting->the_case->positions[m->numbers[r]];
    m3_recompute_check(m, m3_bound_angles(m->setting->ctx, t.cos, t.sin, t.error, positions, m->rows, c->R, c->rope_theta,
                                     &m->how));
    turn(m, &t, index ? c->X : c->D, c->R);
}

void m3_recompute_rope_3d(struct m3_recomputing *m)
{
    const struct m3_vision_config *v = &m->config->vision;
    const struct m3_pictures *pictures = &m->setting->the_case->pictures;
    const int64_t R = v->U / 6 * 6;
    const struct tables t = need_tables(m, R);
    int64_t *all = m3_recompute_scratch(m, 3 * pictures->P, sizeof *all);
    int64_t *places = m3_recompute_scratch(m, 3 * m->rows, sizeof *places);
    int64_t *ends = m3_recompute_scratch(m, pictures->P, sizeof *ends);
    if (m->status) return;
    m3_pictures_segments(ends, all, pictures, v, m->setting->semantics->vision_boundary);
    for (int64_t i = 0; i < 3 * m->rows; i++) places[i] = all[3 * m->numbers[i / 3] + i % 3];
    m3_recompute_check(m, m3_bound_angles_3d(m->setting->ctx, t.cos, t.sin, t.error, places, m->rows, R, v->rope_theta,
                                        &m->how));
    turn(m, &t, v->U, R);
}
