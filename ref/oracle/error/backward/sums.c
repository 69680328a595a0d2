#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/backward/backward.h"

/* A sum of n terms: u n sum |terms|, where u may be that of storing. A row that no other row shares is copied. */
int m3_error_embed_backward(struct m3_ctx *ctx, double *dw, const double *dy, const int32_t *ids, int64_t T, int64_t V,
                            int64_t H, const struct m3_backward_arithmetic *how)
{
    size_t mark = m3_scratch_mark(ctx);
    const double unit = how->u + how->stored;
    int64_t *count = m3_scratch_take(ctx, V, sizeof *count);
    if (!count) return M3_INTERNAL;
    memset(count, 0, (size_t)V * sizeof *count);
    memset(dw, 0, (size_t)(V * H) * sizeof *dw);
    for (int64_t t = 0; t < T; t++) count[ids[t]]++;
    for (int64_t t = 0; t < T; t++) {
        const int64_t n = count[ids[t]];
        for (int64_t i = 0; i < H && n > 1; i++) dw[ids[t] * H + i] += unit * (double)n * fabs(dy[t * H + i]);
    }
    m3_scratch_release(ctx, mark);
    return M3_OK;
}

/* What a thread does of it: columns [first, end), at most PIECE. */
enum { PIECE = 256 };

struct product {
    double *dx, *dw;
    const double *dy, *x;
    const struct m3_weight *w;
    int64_t T;
    double of_dx, of_dw;
};

static void some_columns(const struct product *a, int64_t first, int64_t n)
{
    const int64_t rows = a->w->rows, cols = a->w->cols;
    double row[PIECE];
    for (int64_t o = 0; o < rows; o++) {
        if (a->dx) m3_expand_f64(row, a->w, o, first, n);
        for (int64_t t = 0; t < a->T; t++) {
            const double d = fabs(a->dy[t * rows + o]);
            for (int64_t i = 0; a->dx && i < n; i++) a->dx[t * cols + first + i] += a->of_dx * d * fabs(row[i]);
            for (int64_t i = 0; a->dw && i < n; i++)
                a->dw[o * cols + first + i] += a->of_dw * d * fabs(a->x[t * cols + first + i]);
        }
    }
}

/* dx: u (rows + 1) sum |dy w|;  dw: u (T + 1) sum |dy x|;  dbias: u T sum |dy| */
int m3_error_linear_backward(struct m3_ctx *ctx, double *dx, double *dw, double *dbias, const double *dy,
                             const double *x, const struct m3_weight *w, int64_t T,
                             const struct m3_backward_arithmetic *how)
{
    const int64_t rows = w->rows, cols = w->cols;
    const double u = how->u;
    const struct product a = { .dx = dx,
                               .dw = dw,
                               .dy = dy,
                               .x = x,
                               .w = w,
                               .T = T,
                               .of_dx = u * (double)(rows + 1 + m3_bound_weight_roundings(w, u)),
                               .of_dw = u * (double)(T + 1) };
    if (dx) memset(dx, 0, (size_t)(T * cols) * sizeof *dx);
    if (dw) memset(dw, 0, (size_t)(rows * cols) * sizeof *dw);
#pragma omp parallel for num_threads(m3_team(ctx, T * rows * cols))
    for (int64_t first = 0; first < (dx || dw ? cols : 0); first += PIECE)
        some_columns(&a, first, m3_min(PIECE, cols - first));
    for (int64_t o = 0; dbias && o < rows; o++) {
        dbias[o] = 0;
        for (int64_t t = 0; t < T && T > 1; t++) dbias[o] += u * (double)T * fabs(dy[t * rows + o]);
    }
    return M3_OK;
}

/* 3 u (|dy cos| + |dy sin|), and the products as they are stored. Channels from R on are copied. */
int m3_error_rope_backward(struct m3_ctx *ctx, double *dx, const double *dy, const double *cos, const double *sin,
                           int64_t T, int64_t heads, int64_t D, int64_t R, const struct m3_backward_arithmetic *how)
{
    const double unit = 3 * how->u + 2 * how->product;
    (void)ctx;
    memset(dx, 0, (size_t)(T * heads * D) * sizeof *dx);
    for (int64_t i = 0; i < T * heads; i++) {
        const double *c = cos + i / heads * (R / 2), *s = sin + i / heads * (R / 2), *d = dy + i * D;
        for (int64_t j = 0; j < R / 2; j++) {
            dx[i * D + j] = unit * (fabs(d[j] * c[j]) + fabs(d[j + R / 2] * s[j]));
            dx[i * D + j + R / 2] = unit * (fabs(d[j + R / 2] * c[j]) + fabs(d[j] * s[j]));
        }
    }
    return M3_OK;
}

/* With c the chosen scores and S their sum: u (2 K + 6) (|dp_k| + sum |dp p|) / S, which also covers dp / S - sum of
 * dp c / S^2. Experts that are not chosen have 0. */
int m3_error_route_backward(struct m3_ctx *ctx, double *ds, const double *dp, const int32_t *ids, const double *s,
                            int64_t T, int64_t E, int64_t K, const struct m3_backward_arithmetic *how)
{
    (void)ctx;
    memset(ds, 0, (size_t)(T * E) * sizeof *ds);
    for (int64_t t = 0; t < T; t++) {
        double sum = 0, mean = 0;
        for (int64_t k = 0; k < K; k++) sum += s[t * E + ids[t * K + k]];
        for (int64_t k = 0; k < K; k++) mean += fabs(dp[t * K + k]) * s[t * E + ids[t * K + k]] / sum;
        for (int64_t k = 0; k < K; k++)
            ds[t * E + ids[t * K + k]] = how->u * (double)(2 * K + 6) * (fabs(dp[t * K + k]) + mean) / sum;
    }
    return M3_OK;
}
