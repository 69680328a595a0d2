#include "oracle/error/private/recompute.h"

#include <math.h>

#include "base/minmax.h"
#include "ops/math.h"

/* The exact cosines and sines, which the engine's stage reads too, and the possible error of each angle: [rows,R/2]. */
struct tables {
    double *cos, *sin, *error;
    int64_t D, R;
};

static struct tables *take_tables(struct m3_recomputing *m, int64_t D, int64_t R)
{
    const int64_t n = m->rows * R / 2;
    struct tables *t = m3_recompute_scratch(m, 1, sizeof *t);
    double *memory = m3_recompute_scratch(m, 3 * n, sizeof *memory);
    if (!m->status) *t = (struct tables){ memory, memory + n, memory + 2 * n, D, R };
    m->in[1].values = memory, m->in[2].values = memory + n;
    return m->prepared = t;
}

/* How far a rounded frequency theta^-e may be from the true one, over it; e = 2i/channels.
 *
 * In float, programs form 1 / theta^e, or exp(-ln(theta) e), or the like. An error of the exponent is multiplied by
 * ln(theta) e: ln(theta) is off by an ulp (2 u) at most, the quotient and the product by u each. Then pow or exp (c u)
 * and perhaps a reciprocal (u). theta^0 is 1 in all of them.
 * M3_FREQUENCY_EXP2: the exponent is multiplied by log2(e) too: 2 more, for that constant and for the product.
 * M3_FREQUENCY_RATIO: the ratio theta^(-2/channels) is off by ln(theta) 2/channels u, for its exponent, and c u for pow.
 * Its power i has i times this error; i more products are rounded, the one with the position among them, or another
 * pow (c u) and two products.
 * In double, e is exact only if channels is a power of two. */
static double frequency_error(double e, int64_t channels, double theta, const struct m3_arithmetic *how)
{
    const double log_theta = fabs(m3_log(theta)), i = e * (double)channels / 2;
    if (how->angle != M3_ANGLE_F32) return 0x1p-53 + (m3_is_power_of_two((double)channels) ? 0 : 0x1p-53 * log_theta);
    double roundings = how->c + 1 + 4 * log_theta * e;
    if (how->frequency == M3_FREQUENCY_EXP2) roundings += 2 * log_theta * e;
    if (how->frequency == M3_FREQUENCY_RATIO) roundings = i * (how->c + 1) + log_theta * e + how->c + 1;
    const double sum = e > 0 ? 0x1p-24 * roundings : 0;
    return sum * (1 + sum);
}

/* The same of the angle: the product is rounded, and so is, in float, a position that has more than 24 bits. */
static double angle_error(double of_frequency, int64_t position, const struct m3_arithmetic *how)
{
    if (how->angle != M3_ANGLE_F32) return of_frequency + 0x1p-53;
    const int64_t exact = (int64_t)1 << 24;
    return of_frequency + (position > exact || position < -exact ? 2 : 1) * 0x1p-24 * (1 + of_frequency);
}

/* Tables with `each` frequencies per axis of `channels` channels; column i of row t is place pos[t * stride + i /
 * each]. */
static int angles(struct m3_ctx *ctx, double *cos, double *sin, double *error, const int64_t *pos, int64_t stride,
                  int64_t T, int64_t half, int64_t each, double theta, const struct m3_arithmetic *how)
{
    int64_t channels = 2 * each;
#pragma omp parallel for num_threads(m3_team(ctx, T * half * 32))
    for (int64_t i = 0; i < half; i++) {
        double e = 2.0 * (double)(i % each) / (double)channels, frequency = m3_pow(theta, -e);
        double of_frequency = frequency_error(e, channels, theta, how);
        for (int64_t t = 0; t < T; t++) {
            int64_t place = pos[t * stride + i / each];
            double angle = (double)place * frequency;
            m3_sincos(sin + t * half + i, cos + t * half + i, angle);
            error[t * half + i] = angle_error(of_frequency, place, how) * fabs(angle);
        }
    }
    return M3_OK;
}

int m3_bound_angles(struct m3_ctx *ctx, double *cos, double *sin, double *error, const int64_t *pos, int64_t T,
                    int64_t R, double theta, const struct m3_arithmetic *how)
{
    return angles(ctx, cos, sin, error, pos, 1, T, R / 2, R / 2, theta, how);
}

int m3_bound_angles_3d(struct m3_ctx *ctx, double *cos, double *sin, double *error, const int64_t *places, int64_t P,
                       int64_t R, double theta, const struct m3_arithmetic *how)
{
    if (R < 6 || R % 6) return m3_fail_at(ctx, M3_WRONG, "rotated channels that are no multiple of 6", -1, -1, -1);
    return angles(ctx, cos, sin, error, places, 3, P, R / 2, R / 6, theta, how);
}

static int prepare(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const int index = m->tap == M3_TAP_INDEX_Q_ROPE || m->tap == M3_TAP_INDEX_K_ROPE;
    const struct tables *t = take_tables(m, index ? c->X : c->D, c->R);
    int64_t *positions = m3_recompute_scratch(m, m->rows, sizeof *positions);
    if (m->status) return m->status;
    for (int64_t r = 0; r < m->rows; r++) positions[r] = m->setting->the_case->positions[m->numbers[r]];
    return m3_bound_angles(m->ctx, t->cos, t->sin, t->error, positions, m->rows, c->R, c->rope_theta, &m->how);
}

static int prepare_3d(struct m3_recomputing *m)
{
    const struct m3_vision_config *v = &m->config->vision;
    const struct m3_pictures *pictures = &m->setting->the_case->pictures;
    const struct tables *t = take_tables(m, v->U, v->U / 6 * 6);
    int64_t *all = m3_recompute_scratch(m, 3 * pictures->P, sizeof *all);
    int64_t *places = m3_recompute_scratch(m, 3 * m->rows, sizeof *places);
    int64_t *ends = m3_recompute_scratch(m, pictures->P, sizeof *ends);
    if (m->status) return m->status;
    m3_pictures_segments(ends, all, pictures, v, m->setting->semantics->vision_boundary);
    for (int64_t i = 0; i < 3 * m->rows; i++) places[i] = all[3 * m->numbers[i / 3] + i % 3];
    return m3_bound_angles_3d(m->ctx, t->cos, t->sin, t->error, places, m->rows, t->R, v->rope_theta, &m->how);
}

/* B = |x_a cos| + |x_b sin| + e hypot(x_a, x_b) / (3 u),  steps = 3,  walk^2 = 3 B^2;  copied channels: 0
 *
 * The angle's error e grows with the position, as expected of a correct implementation. */
int m3_bound_rope(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const double *cos, const double *sin,
                  const double *error, int64_t T, int64_t heads, int64_t D, int64_t R, const struct m3_arithmetic *how)
{
    int64_t half = R / 2;
    out->n = 0;
    out->f = 2 + how->c_turn;
    double over = how->u * (double)out->f;

#pragma omp parallel for num_threads(m3_team(ctx, T * heads * D))
    for (int64_t row = 0; row < T * heads; row++) {
        const double *x_h = x + row * D;
        double *bound = out->bound + row * D;
        for (int64_t i = 0; i < half; i++) {
            int64_t at = row / heads * half + i;
            double a = x_h[i], b = x_h[i + half], c = fabs(cos[at]), s = fabs(sin[at]);
            double of_angle = error ? error[at] * sqrt(a * a + b * b) / over : 0;
            bound[i] = fabs(a) * c + fabs(b) * s + of_angle;
            bound[i + half] = fabs(b) * c + fabs(a) * s + of_angle;
        }
        for (int64_t i = R; i < D; i++) bound[i] = 0;
        for (int64_t i = 0; i < D && out->walk; i++) out->walk[row * D + i] = sqrt((double)out->f) * bound[i];
    }
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    const struct tables *t = m->prepared;
    return m3_bound_rope(m->ctx, &m->bound, m->in[0].values, t->cos, t->sin, t->error, m->rows, m->width / t->D, t->D,
                         t->R, &m->how);
}

/* y = x_a c + x_b s (s with its sign): errors of the inputs and the table, and of two products and a sum. */
static void channel(struct m3_spread *out, int64_t at, const struct m3_spread *of_x, int64_t at_a, int64_t at_b,
                    double a, double b, double c, double s, double u_turn, double u_product)
{
    double products = fabs(a * c) + fabs(b * s), y = a * c + b * s;
    double squares = a * c * a * c + b * s * b * s;
    if (!m3_is_exact(of_x)) {
        out->error[at] += fabs(c) * of_x->error[at_a] + fabs(s) * of_x->error[at_b];
        out->variance[at] += c * c * of_x->variance[at_a] + s * s * of_x->variance[at_b];
    }
    out->error[at] += u_turn * products + u_product * (products + fabs(y));
    out->variance[at] += (u_turn * u_turn * squares + u_product * u_product * (squares + y * y)) / 3;
}

int m3_propagate_rope(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                      const double *cos, const double *sin, int64_t T, int64_t heads, int64_t D, int64_t R,
                      double u_turn, double u_product)
{
    int64_t half = R / 2;
    if (m3_is_exact(of_x) && u_turn == 0 && u_product == 0) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, T * heads * D))
    for (int64_t row = 0; row < T * heads; row++) {
        int64_t first = row * D;
        for (int64_t i = 0; i < half; i++) {
            double c = cos[row / heads * half + i], s = sin[row / heads * half + i];
            double a = x[first + i], b = x[first + i + half];
            channel(out, first + i, of_x, first + i, first + i + half, a, b, c, -s, u_turn, u_product);
            channel(out, first + i + half, of_x, first + i + half, first + i, b, a, c, s, u_turn, u_product);
        }
        for (int64_t i = first + R; i < first + D && !m3_is_exact(of_x); i++) {
            out->error[i] += of_x->error[i];
            out->variance[i] += of_x->variance[i];
        }
    }
    return M3_OK;
}

/* Half the smallest steps of the formats of cosine and sine, and of the products. */
static void propagate_floors(struct m3_recomputing *m, int64_t D, int64_t R)
{
    const double turn = m->floor[0], product = m->floor[1], *x = m->in[0].values;
    for (int64_t i = 0; i < m->count && (turn > 0 || product > 0); i++) {
        const int64_t c = i % D, half = R / 2, other = c < half ? i + half : i - half;
        if (c >= R) continue;
        const double squares = x[i] * x[i] + x[other] * x[other];
        m->spread.error[i] += turn * (fabs(x[i]) + fabs(x[other])) + 2 * product;
        m->spread.variance[i] += (turn * turn * squares + 2 * product * product) / 3;
    }
}

static int propagate(struct m3_recomputing *m)
{
    const struct tables *t = m->prepared;
    propagate_floors(m, t->D, t->R);
    return m3_propagate_rope(m->ctx, &m->spread, m->in[0].values, &m->in[0].off, t->cos, t->sin, m->rows,
                             m->width / t->D, t->D, t->R, m->stored[0], m->stored[1]);
}

const struct m3_error_operator m3_error_rope = {
    .name = "rope",
    .sections = { "5.6 rope" },
    .bound = bound,
    .propagate = propagate,
    .roundings = 3,
    .prepare = prepare,
    .points = { "rope.cos", "rope.product" },
    .functions = M3_FUNCTIONS_TURN,
};

const struct m3_error_operator m3_error_rope_3d = {
    .name = "rope_3d",
    .sections = { "5.6 rope" },
    .bound = bound,
    .propagate = propagate,
    .roundings = 3,
    .prepare = prepare_3d,
    .points = { "rope.cos", "rope.product" },
    .functions = M3_FUNCTIONS_TURN,
};
