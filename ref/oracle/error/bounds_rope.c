#include <math.h>

#include "oracle/error/bounds.h"
#include "ops/math.h"

/* How far a rounded angle may be from `angle`, over |angle|. A float is off by the roundings of frequency, position and
 * product. In double, -2i/channels is exact only where channels is a power of two; else its rounding counts ln(theta)
 * times. */
static double angle_error(int64_t channels, double theta, const struct m3_arithmetic *how)
{
    if (how->angle == M3_ANGLE_F32) return 3 * 0x1p-24;
    int exact = (channels & (channels - 1)) == 0;
    return 0x1p-52 + (exact ? 0 : 0x1p-53 * fabs(m3_log(theta)));
}

/* `each` frequencies of an axis of `channels` channels; column i of row t is place pos[t * stride + i / each]. */
static int angles(struct m3_ctx *ctx, double *cos, double *sin, double *error, const int64_t *pos, int64_t stride,
                  int64_t T, int64_t half, int64_t each, double theta, const struct m3_arithmetic *how)
{
    int64_t channels = 2 * each;
    double relative = angle_error(channels, theta, how);
#pragma omp parallel for num_threads(m3_team(ctx, T * half * 32))
    for (int64_t i = 0; i < half; i++) {
        double frequency = m3_pow(theta, -2.0 * (double)(i % each) / (double)channels);
        for (int64_t t = 0; t < T; t++) {
            double angle = (double)pos[t * stride + i / each] * frequency;
            m3_sincos(sin + t * half + i, cos + t * half + i, angle);
            error[t * half + i] = relative * fabs(angle);
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

/* Rotary embedding.
 *
 *     B = |x_a cos| + |x_b sin| + e hypot(x_a, x_b) / (3 u),  steps = 3,  walk^2 = 3 B^2;  copied channels: 0
 *
 * The angle's error e grows with the position and is not a defect. */
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
