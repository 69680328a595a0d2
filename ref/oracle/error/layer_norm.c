#include "oracle/error/private/recompute.h"

#include <math.h>

/* One row. With mean m, r = 1 / sqrt(var + eps), d = |x - m|, x1 = mean |x|, a = |w| r:
 *
 *     B = a (x1 + d) + |b| + u (H r x1)^2 a d / (2 (H + 8)),  steps = H + 4 + c
 *     walk^2 = a^2 (mean x^2 / 6 + (H/3 + 1) m^2) + (H/12 + 8) (a d)^2 + y^2
 *
 * The last term of B is the error of the variance caused by that of the mean. It assumes two passes. */
static void layer_norm_row(const struct m3_bound *out, int64_t at, const double *x, const double *w, const double *b,
                           int64_t H, double eps, double u)
{
    double n = (double)H, sum = 0, mass = 0, squares = 0, var = 0;
    for (int64_t i = 0; i < H; i++) {
        sum += x[i];
        mass += fabs(x[i]);
        squares += x[i] * x[i];
    }
    double mean = sum / n, x1 = mass / n;
    for (int64_t i = 0; i < H; i++) var += (x[i] - mean) * (x[i] - mean);
    double r = 1 / sqrt(var / n + eps), of_mean = n * r * x1;
    double of_sum = squares / n / 6 + (n / 3 + 1) * mean * mean;

    for (int64_t i = 0; i < H; i++) {
        double a = fabs(w[i]) * r, d = fabs(x[i] - mean), y = w[i] * r * (x[i] - mean) + b[i];
        double of_variance = u * of_mean * of_mean * a * d / 2;
        out->bound[at + i] = a * (x1 + d) + fabs(b[i]) + of_variance / (double)(out->n + out->f);
        if (out->walk) out->walk[at + i] = sqrt(a * a * of_sum + (n / 12 + (double)out->f) * (a * d) * (a * d) + y * y);
    }
}

int m3_bound_layer_norm(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const double *w, const double *b,
                        int64_t T, int64_t H, double eps, const struct m3_arithmetic *how)
{
    out->n = H;
    out->f = 4 + how->c;
#pragma omp parallel for num_threads(m3_team(ctx, T * H * 4))
    for (int64_t t = 0; t < T; t++) layer_norm_row(out, t * H, x + t * H, w, b, H, eps, how->u);
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    const int64_t H = m->w[0]->cols;
    return m3_bound_layer_norm(m->ctx, &m->bound, m->in[0].values, m->vector[0], m->vector[1], m->count / H, H,
                               m->config->vision.eps, &m->how);
}

/* One row. With d = x - mean, r = 1 / sqrt(var + eps):
 *
 *     dy_i/dx_j = g_i r (1[i = j] - (1 + d_i d_j r^2) / H)
 *
 * The absolute values do not separate into a factor of i and a factor of j; the squares do. */
static void layer_norm_spread(struct m3_spread *out, int64_t at, const double *x, const struct m3_spread *of_x,
                              const double *w, int64_t H, double eps)
{
    const double *e = of_x->error + at, *v = of_x->variance + at;
    double n = (double)H, sum = 0, squares = 0, errors = 0, v0 = 0, v1 = 0, v2 = 0;
    for (int64_t i = 0; i < H; i++) sum += x[i];
    double mean = sum / n;
    for (int64_t i = 0; i < H; i++) {
        double d = x[i] - mean;
        squares += d * d;
        errors += e[i];
        v0 += v[i];
        v1 += d * v[i];
        v2 += d * d * v[i];
    }
    if (errors == 0 && v0 == 0) return;
    double r = 1 / sqrt(squares / n + eps);

    for (int64_t i = 0; i < H; i++) {
        double d = x[i] - mean, a = d * r * r, self = (1 + a * d) / n, own = 1 - self, g = w[i] * r, far = 0;
#pragma omp simd reduction(+ : far)
        for (int64_t j = 0; j < H; j++) far += fabs(1 + a * (x[j] - mean)) * e[j];
        double all = (v0 + 2 * a * v1 + a * a * v2) / (n * n);
        out->error[at + i] += fabs(g) * (far / n + (fabs(own) - fabs(self)) * e[i]);
        out->variance[at + i] += g * g * (all + (1 - 2 * self) * v[i]);     /* own^2 - self^2 */
    }
}

int m3_propagate_layer_norm(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                            const double *w, int64_t T, int64_t H, double eps)
{
    if (m3_is_exact(of_x)) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, T * H * H))
    for (int64_t t = 0; t < T; t++) layer_norm_spread(out, t * H, x + t * H, of_x, w, H, eps);
    return M3_OK;
}

static int propagate(struct m3_recomputing *m)
{
    const int64_t H = m->w[0]->cols;
    return m3_propagate_layer_norm(m->ctx, &m->spread, m->in[0].values, &m->in[0].off, m->vector[0], m->count / H, H,
                                   m->config->vision.eps);
}

const struct m3_error_operator m3_error_layer_norm = {
    .name = "layer_norm",
    .sections = { "5.17 layer_norm" },
    .bound = bound,
    .propagate = propagate,
    .roundings = 8,
    .functions = M3_FUNCTIONS_EXP,
};
