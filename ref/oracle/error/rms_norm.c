#include "oracle/error/private/recompute.h"

#include <math.h>

#include "oracle/error/tiers/tiers.h"

/* 1 + w in the weights' format is a hypothesis of its own; where it is not known whether it was rounded, an error. */
static int prepare(struct m3_recomputing *m)
{
    char name[96];
    const struct m3_setting *s = m->setting;
    if (!s->profile || !m->config->gemma_norm || m3_tap_name(name, sizeof name, m->tap, m->layer)) return m->status;
    const enum m3_dtype dtype = m3_profile_norm_weight(s->profile, name);
    if (dtype == M3_DTYPES || s->norm_scale == M3_SCALE_PLAIN) return m->status;
    if (s->norm_scale == M3_SCALE_EITHER) {
        m->stored[1] = m3_partials_roundoff(dtype);
        return m->status;
    }
    double *w = m3_recompute_scratch(m, m->w[0]->cols, sizeof *w);
    for (int64_t i = 0; w && i < m->w[0]->cols; i++)
        w[i] = m3_stored_as(1 + m3_stored_as(m->vector[0][i], dtype), dtype) - 1;
    m->vector[0] = w;
    return m->status;
}

/* Not by the engine's stage, which reads the model's weights: these may be those of a hypothesis. */
static int value(struct m3_recomputing *m)
{
    const struct m3_ops *ops = m3_engine_f64()->ops;
    const int64_t H = m->w[0]->cols;            /* heads are normalised separately */
    return (m->config->gemma_norm ? ops->rms_norm : ops->rms_norm_plain)(m->ctx, m->y, m->in[0].values, m->vector[0],
                                                                         m->count / H, H, m->config->eps);
}

/* A square root halves relative errors, hence half those of the sum.
 *
 *     B = |y|,  steps = ceil(H/2) + 4 + c (+ 1),  walk^2 = (H/12 + f) y^2 */
int m3_bound_rms_norm(struct m3_ctx *ctx, struct m3_bound *out, const double *x, const double *w, int64_t T, int64_t H,
                      double eps, int offset, const struct m3_arithmetic *how)
{
    out->n = (H + 1) / 2;
    out->f = 3 + how->c + offset;               /* mean and eps, halved; root; 1 + w; two products */
    double walk = sqrt((double)H / 12 + (double)out->f);

#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) {
        const double *x_t = x + t * H;
        double sum = 0;
        for (int64_t i = 0; i < H; i++) sum += x_t[i] * x_t[i];
        double scale = 1 / sqrt(sum / (double)H + eps);

        for (int64_t i = 0; i < H; i++) {
            double y = fabs(x_t[i] * scale * (offset + w[i]));
            out->bound[t * H + i] = y;
            if (out->walk) out->walk[t * H + i] = walk * y;
        }
    }
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    const int64_t H = m->w[0]->cols;
    return m3_bound_rms_norm(m->ctx, &m->bound, m->in[0].values, m->vector[0], m->count / H, H, m->config->eps,
                             m->config->gemma_norm != 0, &m->how);
}

/* One row. With r = 1 / sqrt(mean x^2 + eps):
 *
 *     dy_i/dx_j = g_i r (1[i = j] - x_i x_j r^2 / H)
 *
 * Thus x_i keeps 1 - x_i^2 r^2 / H of its slope, never less than 0, and the others contribute |x_i| |x_j| r^2 / H. */
static void rms_norm_row(struct m3_spread *out, int64_t at, const double *x, const struct m3_spread *of_x,
                         const double *w, int64_t H, double eps, int offset)
{
    const double *e = of_x->error + at, *v = of_x->variance + at;
    double squares = 0, errors = 0, variances = 0;
    for (int64_t i = 0; i < H; i++) {
        squares += x[i] * x[i];
        errors += fabs(x[i]) * e[i];
        variances += x[i] * x[i] * v[i];
    }
    double r = 1 / sqrt(squares / (double)H + eps), share = r * r / (double)H;

    for (int64_t i = 0; i < H; i++) {
        double size = fabs(x[i]), own = 1 - size * size * share, g = fabs(offset + w[i]) * r, far = size * share;
        double other_errors = errors - size * e[i], other_variances = variances - size * size * v[i];
        if (other_errors < 0) other_errors = 0;                     /* rounding */
        if (other_variances < 0) other_variances = 0;
        out->error[at + i] += g * (fabs(own) * e[i] + far * other_errors);
        out->variance[at + i] += g * g * (own * own * v[i] + far * far * other_variances);
    }
}

int m3_propagate_rms_norm(struct m3_ctx *ctx, struct m3_spread *out, const double *x, const struct m3_spread *of_x,
                          const double *w, int64_t T, int64_t H, double eps, int offset)
{
    if (m3_is_exact(of_x)) return M3_OK;
#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) rms_norm_row(out, t * H, x + t * H, of_x, w, H, eps, offset);
    return M3_OK;
}

static int propagate(struct m3_recomputing *m)
{
    const int64_t H = m->w[0]->cols;
    const double unit = m->stored[0], *w = m->vector[0];
    for (int64_t i = 0; i < m->count && unit > 0; i++) {        /* rounded before it is multiplied by w or 1 + w */
        const double floor = m->floor[0] * fabs((m->config->gemma_norm != 0) + w[i % H]);
        m3_propagate_store(&(struct m3_spread){ m->spread.error + i, m->spread.variance + i }, m->y + i, 1, unit,
                           floor);
    }
    if (m->stored[1] > 0) m3_propagate_store(&m->spread, m->y, m->count, m->stored[1], 0);      /* of 1 + w */
    return m3_propagate_rms_norm(m->ctx, &m->spread, m->in[0].values, &m->in[0].off, m->vector[0], m->count / H, H,
                                 m->config->eps, m->config->gemma_norm != 0);
}

const struct m3_error_operator m3_error_rms_norm = {
    .name = "rms_norm",
    .sections = { "5.2 rms_norm" },
    .value = value,
    .bound = bound,
    .propagate = propagate,
    .roundings = 7,
    .prepare = prepare,
    .points = { "norm.unit" },
    .functions = M3_FUNCTIONS_EXP,
};
