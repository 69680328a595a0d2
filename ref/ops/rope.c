#include "ops/backward.h"
#include "ops/math.h"
#include "ops/operators.h"

static void turn(real *cos, real *sin, int64_t place, double frequency, enum m3_rope_angle angle)
{
    double a = (double)place * frequency, s, c;
    if (angle == M3_ANGLE_F32) a = (double)((float)place * (float)frequency);
    m3_sincos(&s, &c, a);
    *cos = (real)c;
    *sin = (real)s;
}

/* Angles of the rotary embedding. SPEC 5.5
 *
 *     angle = pos[t] * theta^(-2i/R),  cos[t,i] and sin[t,i] of this angle, i < R/2
 *
 * cos, sin [T,R/2]; pos [T].  Computed in double and rounded once, in both builds. Often wrong: the exponent's
 * denominator is R, not D; a float angle is up to 0.05 rad off below a position of 2^20. */
int m3_rope_table(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                  enum m3_rope_angle angle)
{
    int64_t half = R / 2;

#pragma omp parallel for num_threads(m3_team(ctx, T * R * 16))
    for (int64_t i = 0; i < half; i++) {
        double frequency = m3_pow(theta, -2.0 * (double)i / (double)R);

        for (int64_t t = 0; t < T; t++) turn(cos + t * half + i, sin + t * half + i, pos[t], frequency, angle);
    }
    return M3_OK;
}

/* Angles of the vision tower's rotary embedding: the axes side by side. SPEC 5.18
 *
 *     angle = places[p,a] * theta^(-2i/(R/3)),  cos[p, a R/6 + i] and sin of it, i < R/6, a = time, row, column
 *
 * cos, sin [P,R/2]; places [P,3]; R is a multiple of 6.  Computed in double and rounded once, in both builds.
 * Often wrong: the time axis of a still picture omitted (its angles are 0, but its channels exist); row and column
 * swapped; the denominator R or U instead of the R/3 channels of an axis. */
int m3_rope_table_3d(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R,
                     double theta, enum m3_rope_angle angle)
{
    int64_t half = R / 2, each = R / 6;
    if (R < 6 || R % 6) return m3_fail_at(ctx, M3_WRONG, "rotated channels that are no multiple of 6", -1, -1, -1);

#pragma omp parallel for num_threads(m3_team(ctx, P * R * 16))
    for (int64_t i = 0; i < half; i++) {
        int64_t axis = i / each;
        double frequency = m3_pow(theta, -2.0 * (double)(i % each) / ((double)R / 3));

        for (int64_t p = 0; p < P; p++)
            turn(cos + p * half + i, sin + p * half + i, places[p * 3 + axis], frequency, angle);
    }
    return M3_OK;
}

/* Rotary embedding applied to the first R channels of every head. SPEC 5.6
 *
 *     y[i]       = x[i] cos[i] - x[i+R/2] sin[i]
 *     y[i + R/2] = x[i+R/2] cos[i] + x[i] sin[i]        i < R/2; channels from R on are copied
 *
 * y [T,heads,D] may be x; cos, sin [T,R/2].
 * Often wrong: all D channels rotated; the last R instead of the first; neighbours (2i, 2i+1) paired. */
int m3_rope(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T, int64_t heads,
            int64_t D, int64_t R)
{
    int64_t half = R / 2;

#pragma omp parallel for num_threads(m3_team(ctx, T * heads * D))
    for (int64_t t = 0; t < T; t++) {
        const real *cos_t = cos + t * half, *sin_t = sin + t * half;

        for (int64_t h = 0; h < heads; h++) {
            const real *x_th = x + (t * heads + h) * D;
            real *y_th = y + (t * heads + h) * D;

            for (int64_t i = 0; i < half; i++) {
                real a = x_th[i], b = x_th[i + half];
                y_th[i] = a * cos_t[i] - b * sin_t[i];
                y_th[i + half] = b * cos_t[i] + a * sin_t[i];
            }
            for (int64_t i = R; i < D; i++) y_th[i] = x_th[i];
        }
    }
    return M3_OK;
}

/* Gradient of the rotary embedding: the gradient is turned back. TRAINING 19.5
 *
 *     dx[i]       = dy[i] cos[i] + dy[i+R/2] sin[i]
 *     dx[i + R/2] = dy[i+R/2] cos[i] - dy[i] sin[i]      i < R/2; channels from R on are copied
 *
 * dx [T,heads,D] may be dy; cos, sin [T,R/2].  Often wrong: turned the same way again; zeros from R on. */
int m3_rope_backward(struct m3_ctx *ctx, real *dx, const real *dy, const real *cos, const real *sin, int64_t T,
                     int64_t heads, int64_t D, int64_t R)
{
    int64_t half = R / 2;

#pragma omp parallel for num_threads(m3_team(ctx, T * heads * D))
    for (int64_t t = 0; t < T; t++) {
        const real *cos_t = cos + t * half, *sin_t = sin + t * half;

        for (int64_t h = 0; h < heads; h++) {
            const real *dy_th = dy + (t * heads + h) * D;
            real *dx_th = dx + (t * heads + h) * D;

            for (int64_t i = 0; i < half; i++) {
                real a = dy_th[i], b = dy_th[i + half];
                dx_th[i] = a * cos_t[i] + b * sin_t[i];
                dx_th[i + half] = b * cos_t[i] - a * sin_t[i];
            }
            for (int64_t i = R; i < D; i++) dx_th[i] = dy_th[i];
        }
    }
    return M3_OK;
}
