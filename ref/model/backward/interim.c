#include "model/backward/interim.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ops/exp.h"
#include "ops/erf.h"
#include "ops/math.h"
static double wat(const struct m3_weight *w, int64_t r, int64_t c)
{
    double v;
    m3_expand_f64(&v, w, r, c, 1);
    return v;
}
int b_embed(struct m3_ctx *x, real *dw, const real *dy, const int32_t *ids, int64_t T, int64_t H)
{
    (void)x;
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < H; i++) dw[ids[t] * H + i] += dy[t * H + i];
    return 0;
}
int b_linear(struct m3_ctx *c, real *dx, real *dw, real *db, const real *dy, const real *x, const struct m3_weight *w,
             int64_t T)
{
    (void)c;
    const int64_t O = w->rows, I = w->cols;
    double *row = malloc((size_t)(I + 1) * 8), *acc = calloc((size_t)(T * I + 1), 8);
    if (!row || !acc) {
        free(row);
        free(acc);
        return m3_fail_at(c, M3_INTERNAL, "out of memory", -1, -1, -1);
    }
    for (int64_t o = 0; o < O; o++) {
        m3_expand_f64(row, w, o, 0, I);
        for (int64_t t = 0; dx && t < T; t++)
            for (int64_t i = 0; i < I; i++) acc[t * I + i] += (double)dy[t * O + o] * row[i];
        for (int64_t i = 0; i < I; i++) {
            double s = 0;
            for (int64_t t = 0; t < T; t++) s += (double)dy[t * O + o] * (double)x[t * I + i];
            dw[o * I + i] += (real)s;
        }
        if (db) {
            double s = 0;
            for (int64_t t = 0; t < T; t++) s += (double)dy[t * O + o];
            db[o] += (real)s;
        }
    }
    for (int64_t i = 0; dx && i < T * I; i++) dx[i] = (real)acc[i];
    free(row);
    free(acc);
    return 0;
}
int b_rms_norm(struct m3_ctx *c, real *dx, real *dw, const real *dy, const real *x, const real *w, int64_t T, int64_t H,
               real eps, int gemma)
{
    (void)c;
    double *g = malloc((size_t)H * 8), *a = calloc((size_t)H, 8);
    if (!g || !a) {
        free(g);
        free(a);
        return m3_fail_at(c, M3_INTERNAL, "out of memory", -1, -1, -1);
    }
    for (int64_t t = 0; t < T; t++) {
        double ms = 0, m = 0;
        for (int64_t i = 0; i < H; i++) ms += (double)x[t * H + i] * (double)x[t * H + i];
        const double r = 1 / sqrt(ms / (double)H + (double)eps);
        for (int64_t i = 0; i < H; i++) {
            double xh = (double)x[t * H + i] * r;
            g[i] = (double)dy[t * H + i] * ((gemma ? 1 : 0) + (double)w[i]);
            m += g[i] * xh;
            a[i] += (double)dy[t * H + i] * xh;
        }
        m /= (double)H;
        for (int64_t i = 0; i < H; i++) {
            double xh = (double)x[t * H + i] * r;
            dx[t * H + i] = (real)(r * (g[i] - xh * m));
        }
    }
    for (int64_t i = 0; i < H; i++) dw[i] += (real)a[i];
    free(g);
    free(a);
    return 0;
}
int b_layer_norm(struct m3_ctx *c, real *dx, real *dw, real *db, const real *dy, const real *x, const real *w,
                 int64_t T, int64_t H, real eps)
{
    (void)c;
    double *a = calloc((size_t)H, 8), *b = calloc((size_t)H, 8);
    if (!a || !b) {
        free(a);
        free(b);
        return m3_fail_at(c, M3_INTERNAL, "out of memory", -1, -1, -1);
    }
    for (int64_t t = 0; t < T; t++) {
        double m = 0, v = 0, mg = 0, mgx = 0;
        for (int64_t i = 0; i < H; i++) m += (double)x[t * H + i];
        m /= (double)H;
        for (int64_t i = 0; i < H; i++) v += ((double)x[t * H + i] - m) * ((double)x[t * H + i] - m);
        const double r = 1 / sqrt(v / (double)H + (double)eps);
        for (int64_t i = 0; i < H; i++) {
            double xh = ((double)x[t * H + i] - m) * r, g = (double)dy[t * H + i] * (double)w[i];
            mg += g;
            mgx += g * xh;
            a[i] += (double)dy[t * H + i] * xh;
            b[i] += (double)dy[t * H + i];
        }
        mg /= (double)H;
        mgx /= (double)H;
        for (int64_t i = 0; i < H; i++) {
            double xh = ((double)x[t * H + i] - m) * r, g = (double)dy[t * H + i] * (double)w[i];
            dx[t * H + i] = (real)(r * (g - mg - xh * mgx));
        }
    }
    for (int64_t i = 0; i < H; i++) dw[i] += (real)a[i], db[i] += (real)b[i];
    free(a);
    free(b);
    return 0;
}
int b_rope(struct m3_ctx *c, real *dx, const real *dy, const real *cos, const real *sin, int64_t T, int64_t heads,
           int64_t D, int64_t R)
{
    (void)c;
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++) {
            const real *y = dy + (t * heads + h) * D;
            real *x = dx + (t * heads + h) * D;
            for (int64_t i = 0; i < R / 2; i++) {
                real co = cos[t * (R / 2) + i], si = sin[t * (R / 2) + i], a = y[i], b = y[i + R / 2];
                x[i] = a * co + b * si;
                x[i + R / 2] = b * co - a * si;
            }
            for (int64_t i = R; i < D; i++) x[i] = y[i];
        }
    return 0;
}
static void one(double *dq, double *dk, double *dv, const real *dy, const real *q, const real *k, const real *v,
                const int64_t *J, int64_t n, int64_t D, int64_t stride, double c, double *z, double *dp)
{
    double mx = -INFINITY, S = 0, del = 0;
    for (int64_t a = 0; a < n; a++) {
        double s = 0, e = 0;
        for (int64_t d = 0; d < D; d++)
            s += (double)q[d] * (double)k[J[a] * stride + d], e += (double)dy[d] * (double)v[J[a] * stride + d];
        z[a] = s * c;
        dp[a] = e;
        if (z[a] > mx) mx = z[a];
    }
    for (int64_t a = 0; a < n; a++) z[a] = m3_exp(z[a] - mx), S += z[a];
    for (int64_t a = 0; a < n; a++) z[a] /= S, del += z[a] * dp[a];
    for (int64_t a = 0; a < n; a++) {
        double ds = z[a] * (dp[a] - del);
        for (int64_t d = 0; d < D; d++) {
            dq[d] += c * ds * (double)k[J[a] * stride + d];
            dk[J[a] * stride + d] += c * ds * (double)q[d];
            dv[J[a] * stride + d] += z[a] * (double)dy[d];
        }
    }
}
int b_attend(struct m3_ctx *x, real *dq, real *dk, real *dv, const real *dy, const real *q, const real *k,
             const real *v, const int32_t *blocks, const struct m3_attend *d)
{
    (void)x;
    const int64_t T = d->T, Q = d->Q, G = d->G, D = d->D;
    double *aq = calloc((size_t)(T * Q * D), 8), *ak = calloc((size_t)(T * G * D), 8),
           *av = calloc((size_t)(T * G * D), 8);
    double *z = malloc(((size_t)T + 1) * 16);
    int64_t *J = malloc((size_t)T * 8);
    if (!aq || !ak || !av || !J || !z) {
        free(aq);
        free(ak);
        free(av);
        free(J);
        free(z);
        return m3_fail_at(x, M3_INTERNAL, "out of memory", -1, -1, -1);
    }
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < Q; h++) {
            int64_t g = h / (Q / G), n = 0;
            for (int64_t j = 0; j <= t; j++) {
                int in = !blocks;
                for (int64_t gg = d->selection == M3_SELECT_UNION ? 0 : g; blocks && gg < G; gg++) {
                    for (int64_t m = 0; m < d->N; m++) in |= blocks[(t * G + gg) * d->N + m] == j / d->block;
                    if (d->selection != M3_SELECT_UNION) break;
                }
                if (in && (!d->seen || d->seen[j])) J[n++] = j;
            }
            if (n)
                one(aq + (t * Q + h) * D, ak + g * D, av + g * D, dy + (t * Q + h) * D, q + (t * Q + h) * D, k + g * D,
                    v + g * D, J, n, D, G * D, 1 / sqrt((double)D), z, z + T);
        }
    for (int64_t i = 0; i < T * Q * D; i++) dq[i] = (real)aq[i];
    for (int64_t i = 0; i < T * G * D; i++) dk[i] = (real)ak[i], dv[i] = (real)av[i];
    free(aq);
    free(ak);
    free(av);
    free(J);
    free(z);
    return 0;
}
int b_segments(struct m3_ctx *x, real *dq, real *dk, real *dv, const real *dy, const real *q, const real *k,
               const real *v, const int64_t *ends, int64_t segments, int64_t A, int64_t U)
{
    (void)x;
    const int64_t P = ends[segments - 1], n = P * A * U;
    double *aq = calloc((size_t)n, 8), *ak = calloc((size_t)n, 8), *av = calloc((size_t)n, 8);
    double *z = malloc(((size_t)P + 1) * 16);
    int64_t *J = malloc((size_t)P * 8), s = 0;
    if (!aq || !ak || !av || !J || !z) {
        free(aq);
        free(ak);
        free(av);
        free(J);
        free(z);
        return m3_fail_at(x, M3_INTERNAL, "out of memory", -1, -1, -1);
    }
    for (int64_t t = 0; t < P; t++) {
        while (ends[s] <= t) s++;
        int64_t m = 0;
        for (int64_t j = s ? ends[s - 1] : 0; j < ends[s]; j++) J[m++] = j;
        for (int64_t h = 0; h < A; h++)
            one(aq + (t * A + h) * U, ak + h * U, av + h * U, dy + (t * A + h) * U, q + (t * A + h) * U, k + h * U,
                v + h * U, J, m, U, A * U, 1 / sqrt((double)U), z, z + P);
    }
    for (int64_t i = 0; i < n; i++) dq[i] = (real)aq[i], dk[i] = (real)ak[i], dv[i] = (real)av[i];
    free(aq);
    free(ak);
    free(av);
    free(J);
    free(z);
    return 0;
}
static void gate1(double *dg, double *du, double dy, double g, double u, const struct m3_activation *act, double *y)
{
    const double L = (double)act->limit, al = (double)act->alpha;
    if (!act->oai) {
        double s = 1 / (1 + m3_exp(-g));
        *dg = dy * u * s * (1 + g * (1 - s));
        *du = dy * g * s;
        if (y) *y = g * s * u;
        return;
    }
    const int both = act->clamp == M3_GATE_CLAMP_BOTH;
    const int mg = g <= L && (!both || g >= -L), mu = u <= L && u >= -L;
    double gc = g > L ? L : both && g < -L ? -L : g, uc = u > L ? L : u < -L ? -L : u, s = 1 / (1 + m3_exp(-al * gc));
    *dg = mg ? dy * (uc + 1) * s * (1 + al * gc * (1 - s)) : 0;
    *du = mu ? dy * gc * s : 0;
    if (y) *y = (uc + 1) * gc * s;
}
int b_gated(struct m3_ctx *c, real *dg, real *du, const real *dy, const real *gate, const real *up, int64_t n,
            const struct m3_activation *act)
{
    (void)c;
    for (int64_t i = 0; i < n; i++) {
        double a, b;
        gate1(&a, &b, (double)dy[i], (double)gate[i], (double)up[i], act, NULL);
        dg[i] = (real)a;
        du[i] = (real)b;
    }
    return 0;
}
int b_gelu(struct m3_ctx *c, real *dx, const real *dy, const real *x, int64_t n)
{
    (void)c;
    for (int64_t i = 0; i < n; i++) {
        double v = (double)x[i];
        dx[i] = (real)((double)dy[i] * ((v < 0 ? m3_tail_body(v) : 1 - m3_tail_body(v)) +
                                        v * m3_exp(-v * v / 2) / sqrt(2 * 3.14159265358979323846)));
    }
    return 0;
}
int b_sigmoid(struct m3_ctx *c, real *dx, const real *dy, const real *y, int64_t n)
{
    (void)c;
    for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * y[i] * (1 - y[i]);
    return 0;
}
int b_route(struct m3_ctx *c, real *ds, const real *dp, const int32_t *ids, const real *s, int64_t T, int64_t E,
            int64_t K)
{
    (void)c;
    for (int64_t t = 0; t < T; t++) {
        double S = 0, m = 0;
        for (int64_t k = 0; k < K; k++) S += (double)s[t * E + ids[t * K + k]];
        for (int64_t k = 0; k < K; k++) m += (double)dp[t * K + k] * (double)s[t * E + ids[t * K + k]] / S;
        for (int64_t e = 0; e < E; e++) ds[t * E + e] = 0;
        for (int64_t k = 0; k < K; k++) ds[t * E + ids[t * K + k]] = (real)(((double)dp[t * K + k] - m) / S);
    }
    return 0;
}
int b_experts(struct m3_ctx *c, real *dx, real *dp, real *const *dw1, real *const *dw3, real *const *dw2,
              const real *dy, const real *x, const int32_t *ids, const real *p, const struct m3_expert *ex,
              const struct m3_activation *act, int64_t T, int64_t E, int64_t K, real factor)
{
    (void)c;
    const int64_t F = ex[0].w1.rows, H = ex[0].w1.cols;
    double *g = malloc((size_t)F * 8), *u = malloc((size_t)F * 8), *a = malloc((size_t)F * 8),
           *v = malloc((size_t)F * 8), *ax = calloc((size_t)(T * H), 8);
    if (!g || !u || !a || !v || !ax) {
        free(g);
        free(u);
        free(a);
        free(v);
        free(ax);
        return m3_fail_at(c, M3_INTERNAL, "out of memory", -1, -1, -1);
    }
    for (int64_t e = 0; e < E; e++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t k = 0; k < K; k++) {
                if (ids[t * K + k] != e) continue;
                const double w = (double)p[t * K + k];
                double s = 0;
                for (int64_t f = 0; f < F; f++) {
                    g[f] = u[f] = 0;
                    for (int64_t i = 0; i < H; i++)
                        g[f] += wat(&ex[e].w1, f, i) * (double)x[t * H + i],
                            u[f] += wat(&ex[e].w3, f, i) * (double)x[t * H + i];
                    v[f] = 0;
                    for (int64_t i = 0; i < H; i++)
                        v[f] += wat(&ex[e].w2, i, f) * (double)factor * (double)dy[t * H + i];
                }
                for (int64_t f = 0; f < F; f++) {
                    double q, r;
                    gate1(&q, &r, w * v[f], g[f], u[f], act, &a[f]);
                    s += v[f] * a[f];
                    g[f] = q;
                    u[f] = r;
                }
                dp[t * K + k] = (real)s;
                for (int64_t f = 0; f < F; f++)
                    for (int64_t i = 0; i < H; i++) {
                        dw2[e][i * F + f] += (real)(w * (double)factor * (double)dy[t * H + i] * a[f]);
                        dw1[e][f * H + i] += (real)(g[f] * (double)x[t * H + i]);
                        dw3[e][f * H + i] += (real)(u[f] * (double)x[t * H + i]);
                        ax[t * H + i] += wat(&ex[e].w1, f, i) * g[f] + wat(&ex[e].w3, f, i) * u[f];
                    }
            }
    for (int64_t i = 0; i < T * H; i++) dx[i] = (real)ax[i];
    free(g);
    free(u);
    free(a);
    free(v);
    free(ax);
    return 0;
}
