#include <math.h>
#include <string.h>

#include "oracle/error/backward/backward.h"

/* One row's n = (x - mean) r and g = dy (offset + w), with their errors. */
struct normed {
    double *n, *e_n, *g, *e_g;  /* [H] */
    double r, of_r;             /* of_r: relative error of r */
};

struct norm {
    const double *w;
    int64_t H;
    double eps;
    int offset, centred;
    const struct m3_backward_arithmetic *how;
};

/* A sum of squares is a relative error, and the root halves it; the mean that was subtracted adds its own. */
static void normalise(struct normed *to, const struct norm *a, const double *dy, const double *x)
{
    const int64_t H = a->H;
    const double u = a->how->u, N = (double)H;
    double mean = 0, size = 0, squares = 0, off = 0;
    for (int64_t i = 0; i < H && a->centred; i++) mean += x[i] / N, size += fabs(x[i]) / N;
    const double e_mean = a->centred ? u * (N + 1) * size + a->how->unit * fabs(mean) : 0;
    for (int64_t i = 0; i < H; i++) {
        const double c = x[i] - mean, e = a->centred ? u * fabs(c) + e_mean : 0;
        squares += c * c;
        off += fabs(c) * e;
    }
    to->r = 1 / sqrt(squares / N + a->eps);
    to->of_r = u * ((N + 1) / 2 + 3 + a->how->c) + a->how->unit + off / (squares + N * a->eps);
    for (int64_t i = 0; i < H; i++) {
        const double c = x[i] - mean, e = a->centred ? u * fabs(c) + e_mean : 0;
        to->n[i] = c * to->r;
        to->e_n[i] = fabs(to->n[i]) * (to->of_r + u + a->how->unit) + to->r * e;
        to->g[i] = dy[i] * (a->offset + a->w[i]);
        to->e_g[i] = fabs(to->g[i]) * (2 * u + a->how->unit);
    }
}

/* dx = r (g - mean g - n mean(g n)); an rms norm has no mean g. */
static void input_row(double *dx, const struct normed *a, const struct norm *norm)
{
    const int64_t H = norm->H;
    const double u = norm->how->u, N = (double)H;
    double m = 0, size = 0, e_m = 0, mean = 0, e_mean = 0;
    for (int64_t i = 0; i < H; i++) {
        m += a->g[i] * a->n[i] / N;
        size += fabs(a->g[i] * a->n[i]) / N;
        e_m += (fabs(a->g[i]) * a->e_n[i] + fabs(a->n[i]) * a->e_g[i]) / N;
        if (norm->centred) mean += fabs(a->g[i]) / N, e_mean += a->e_g[i] / N;
    }
    e_m += u * (N + 2) * size;
    e_mean += u * (N + 1) * mean;
    for (int64_t i = 0; i < H; i++) {
        const double g = fabs(a->g[i]), n = fabs(a->n[i]), parts = g + mean + n * size;
        dx[i] = a->r * (a->e_g[i] + e_mean + n * e_m + a->e_n[i] * fabs(m) + (4 * u + a->of_r) * parts);
    }
}

static int norm_backward(struct m3_ctx *ctx, double *dx, double *dw, double *db, const double *dy, const double *x,
                         int64_t T, const struct norm *norm)
{
    const int64_t H = norm->H;
    /* PyTorch adds the rows of a layer norm's gradients in the format in which it stores them. */
    const double u = norm->how->u, sum = u + (norm->centred ? norm->how->stored : 0);
    size_t mark = m3_scratch_mark(ctx);
    double *memory = m3_scratch_take(ctx, 4 * H, sizeof *memory);
    if (!memory) return M3_INTERNAL;
    struct normed a = { .n = memory, .e_n = memory + H, .g = memory + 2 * H, .e_g = memory + 3 * H };
    if (dw) memset(dw, 0, (size_t)H * sizeof *dw);
    if (db) memset(db, 0, (size_t)H * sizeof *db);
    for (int64_t t = 0; t < T; t++) {
        normalise(&a, norm, dy + t * H, x + t * H);
        if (dx) input_row(dx + t * H, &a, norm);
        for (int64_t i = 0; i < H; i++) {
            const double d = fabs(dy[t * H + i]);
            if (dw) dw[i] += d * (a.e_n[i] + sum * (double)(T + 1) * fabs(a.n[i]));
            if (db && T > 1) db[i] += sum * (double)T * d;
        }
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

int m3_error_rms_norm_backward(struct m3_ctx *ctx, double *dx, double *dw, const double *dy, const double *x,
                               const double *w, int64_t T, int64_t H, double eps, int offset,
                               const struct m3_backward_arithmetic *how)
{
    const struct norm norm = { .w = w, .H = H, .eps = eps, .offset = offset, .how = how };
    return norm_backward(ctx, dx, dw, NULL, dy, x, T, &norm);
}

int m3_error_layer_norm_backward(struct m3_ctx *ctx, double *dx, double *dw, double *db, const double *dy,
                                 const double *x, const double *w, int64_t T, int64_t H, double eps,
                                 const struct m3_backward_arithmetic *how)
{
    const struct norm norm = { .w = w, .H = H, .eps = eps, .centred = 1, .how = how };
    return norm_backward(ctx, dx, dw, db, dy, x, T, &norm);
}
