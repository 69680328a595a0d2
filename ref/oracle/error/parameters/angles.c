#include "ops/math.h"
#include "oracle/error/parameters/private/derivatives.h"

/* With angle a = position theta^-h, h = 2i / R, of channels i and i + R/2:
 *
 *     y_1 = x_1 cos a - x_2 sin a     y_2 = x_2 cos a + x_1 sin a     da / dln(theta) = -h a
 *     dy_1 = h a y_2                  dy_2 = -h a y_1
 *
 * Angles depend on ln(theta) / R alone: another width of the same channels looks like another theta. */
static void turn(double *dy, const double *x, int64_t i, int64_t half, double place, double h, double theta)
{
    const double angle = place * m3_pow(theta, -h), a = x[i], b = x[i + half];
    double sine, cosine;
    m3_sincos(&sine, &cosine, angle);
    dy[i] = h * angle * (b * cosine + a * sine);
    dy[i + half] = -h * angle * (a * cosine - b * sine);
}

/* Rows of heads of D channels; each of the `axes` places of a row turns half / axes pairs. */
static void derive(struct m3_recomputing *m, const int64_t *places, int64_t axes, int64_t D, int64_t half, double theta)
{
    const int64_t heads = m->width / D, each = half / axes;
    for (int64_t row = 0; row < m->rows * heads; row++) {
        const double *x = m->in[0].values + row * D;
        double *dy = m->y + row * D;
        for (int64_t i = 0; i < D; i++) dy[i] = 0;
        for (int64_t i = 0; i < half; i++) {
            const int64_t place = places[row / heads * axes + i / each];
            turn(dy, x, i, half, (double)place, (double)(i % each) / (double)each, theta);
        }
    }
}

static int of_pictures(struct m3_recomputing *m)
{
    const struct m3_vision_config *v = &m->config->vision;
    const struct m3_pictures *pictures = &m->setting->the_case->pictures;
    int64_t *ends = m3_recompute_scratch(m, pictures->P, sizeof *ends);
    int64_t *all = m3_recompute_scratch(m, 3 * pictures->P, sizeof *all);
    int64_t *places = m3_recompute_scratch(m, 3 * m->rows, sizeof *places);
    if (m->status) return m->status;
    m3_pictures_segments(ends, all, pictures, v, m->setting->semantics->vision_boundary);
    for (int64_t i = 0; i < 3 * m->rows; i++) places[i] = all[3 * m->numbers[i / 3] + i % 3];
    derive(m, places, 3, v->U, v->U / 6 * 3, v->rope_theta);
    return M3_OK;
}

int m3_by_theta(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const int index = m->tap == M3_TAP_INDEX_Q_ROPE || m->tap == M3_TAP_INDEX_K_ROPE;
    if (m->tap == M3_TAP_VISION_Q_ROPE || m->tap == M3_TAP_VISION_K_ROPE) return of_pictures(m);
    int64_t *places = m3_recompute_scratch(m, m->rows, sizeof *places);
    if (m->status) return m->status;
    for (int64_t r = 0; r < m->rows; r++) places[r] = m->setting->the_case->positions[m->numbers[r]];
    derive(m, places, 1, index ? c->X : c->D, c->R / 2, c->rope_theta);
    return M3_OK;
}
