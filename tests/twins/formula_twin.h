/* The operators once more as plain formulas in long double, written from SPEC 5, for the tests of operators and those of
 * `m3ref op`. They use nothing of ref/. Where the tolerance needs the terms of a sum, it comes with the value; u is the
 * unit roundoff of the operator. */
#ifndef M3_TESTS_FORMULA_TWIN_H
#define M3_TESTS_FORMULA_TWIN_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* ---- one row of a norm */

static inline void twin_rms(long double *y, const double *x, const double *w, int64_t H, double eps, int offset)
{
    long double squares = 0;
    for (int64_t i = 0; i < H; i++) squares += (long double)x[i] * x[i];
    for (int64_t i = 0; i < H; i++) y[i] = x[i] / sqrtl(squares / H + eps) * ((long double)w[i] + offset);
}

struct twin_moments {
    long double mean, scale, size; /* scale: 1 / sqrt(var + eps); size: mean of |x| */
};

static inline struct twin_moments twin_layer_norm(long double *y, const double *x, const double *w, const double *b,
                                                  int64_t H, double eps)
{
    struct twin_moments m = { 0, 0, 0 };
    long double squares = 0;
    for (int64_t i = 0; i < H; i++) {
        m.mean += (long double)x[i] / H;
        m.size += fabsl(x[i]) / H;
    }
    for (int64_t i = 0; i < H; i++) squares += (x[i] - m.mean) * (x[i] - m.mean);
    m.scale = 1 / sqrtl(squares / H + eps);
    for (int64_t i = 0; i < H; i++) y[i] = (x[i] - m.mean) * m.scale * w[i] + b[i];
    return m;
}

/* ---- activations */

/* oai 0: swiglu. both: the gate is clamped below, too. */
struct twin_gates {
    int oai, both;
    double alpha, limit;
};

static inline long double twin_sigmoid(long double x) { return 1 / (1 + expl(-x)); }

/* x/2 (1 + erf(x / sqrt 2)) without cancelling, for 1 + erf(a) = erfc(-a). */
static inline long double twin_gelu(long double x) { return x * erfcl(-x / sqrtl(2)) / 2; }

/* NaN passes, because every comparison with it is false. */
static inline long double twin_clamped(long double x, long double low, long double high)
{
    return x < low ? low : x > high ? high : x;
}

static inline long double twin_gated(long double gate, long double up, const struct twin_gates *a)
{
    if (!a->oai) return up * gate * twin_sigmoid(gate);
    const long double g = twin_clamped(gate, a->both ? -a->limit : -INFINITY, a->limit);
    return (twin_clamped(up, -a->limit, a->limit) + 1) * g * twin_sigmoid(a->alpha * g);
}

/* ---- products and turns: the value, and the size of its terms */

static inline long double twin_dot(long double *size, const double *a, const double *b, int64_t n)
{
    long double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (long double)a[i] * b[i];
        *size += fabsl((long double)a[i] * b[i]);
    }
    return sum;
}

/* Channel i of a head x, turned with its partner by the R/2 angles of its row; from R on a copy. */
static inline long double twin_turned(long double *size, const double *x, const double *cos, const double *sin,
                                      int64_t i, int64_t R)
{
    const int64_t half = R / 2;
    *size = 0;
    if (i >= R) return x[i];
    const long double a = (long double)x[i] * cos[i % half],
                      b = (long double)x[i < half ? i + half : i - half] * sin[i % half];
    *size = fabsl(a) + fabsl(b);
    return i < half ? a - b : a + b;
}

/* ---- angles, noise */

/* As "Order" forms it: in float, rope_angle=f32, frequency, position and product are each rounded. */
static inline double twin_angle(double place, double frequency, int is_f32)
{
    volatile float product = (float)place * (float)frequency;
    return is_f32 ? (double)product : place * frequency;
}

/* mix and draw of SPEC 3.6 */
static inline uint64_t twin_mixed(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* 1 + eps (2 u - 1) of number i */
static inline double twin_noise(uint64_t key, uint64_t i, double eps)
{
    const double u = (double)(twin_mixed(key + (i + 1) * UINT64_C(0x9E3779B97F4A7C15)) >> 32) / 4294967296.0;
    return 1 + eps * (2 * u - 1);
}

/* ---- attention */

/* Which keys a row of a group sees. ends: segments, and nothing else; lists NULL: all that came before. */
struct twin_view {
    int64_t p0, G, N, block;
    int any_group;
    const unsigned char *seen;
    const int32_t *lists; /* [T,G,N] */
    const int64_t *ends;
};

static inline int twin_sees(const struct twin_view *v, int64_t row, int64_t g, int64_t j)
{
    if (v->ends) {
        int64_t own = 0, other = 0;
        while (v->ends[own] <= row) own++;
        while (v->ends[other] <= j) other++;
        return own == other;
    }
    if (j > v->p0 + row || (v->seen && !v->seen[j])) return 0;
    for (int64_t i = 0; v->lists && i < v->G * v->N; i++)
        if ((v->any_group || i / v->N == g) && v->lists[row * v->G * v->N + i] == j / v->block) return 1;
    return !v->lists;
}

enum { TWIN_MAX_D = 512, TWIN_MAX_KEYS = 32768 };

struct twin_head {
    long double o[TWIN_MAX_D], o_allowed[TWIN_MAX_D], lse, lse_allowed;
};

/* q [D]; k, v: place j of this group begins at j * stride; keys: the L places, ascending. First-order bounds: the
 * logits stay below some hundreds wherever they are used. tiny: the least normal number. */
static inline void twin_attend(struct twin_head *w, const double *q, const double *k, const double *v,
                               const int64_t *keys, int64_t L, int64_t D, int64_t stride, long double u,
                               long double tiny)
{
    static long double z[TWIN_MAX_KEYS], a[TWIN_MAX_KEYS], weight[TWIN_MAX_KEYS];
    long double top = -INFINITY, z_most = 0, sum = 0, spread = 0;
    for (int64_t i = 0; i < L; i++) {
        z[i] = a[i] = 0;
        for (int64_t d = 0; d < D; d++) {
            long double term = (long double)q[d] * k[keys[i] * stride + d] / sqrtl(D);
            z[i] += term;
            a[i] += fabsl(term);
        }
        top = fmaxl(top, z[i]);
        z_most = fmaxl(z_most, fabsl(z[i]));
    }
    for (int64_t i = 0; i < L; i++) sum += expl(z[i] - top);
    w->lse = L > 0 ? top + logl(sum) : -INFINITY;

    const long double C = (L + 15) / 16, Z = fabsl(w->lse) + z_most;
    for (int64_t i = 0; i < L; i++) {
        weight[i] = expl(z[i] - w->lse);
        a[i] = (D + 4) * a[i] + (top - z[i]) + 4 * (C + 1); /* now eps_j */
        spread += weight[i] * a[i];
    }
    w->lse_allowed = L > 0 ? u * (spread + 2 * L + 2 * C + 4 + 4 * logl(L + 1) + Z + fabsl(w->lse) + 4) : 0;
    for (int64_t d = 0; d < D; d++) {
        long double o = 0, apart = 0, mass = 0, v_most = 0;
        for (int64_t i = 0; i < L; i++) o += weight[i] * v[keys[i] * stride + d];
        for (int64_t i = 0; i < L; i++) {
            long double v_id = v[keys[i] * stride + d];
            apart += weight[i] * a[i] * fabsl(v_id - o);
            mass += weight[i] * fabsl(v_id);
            v_most = fmaxl(v_most, fabsl(v_id));
        }
        w->o[d] = o;
        w->o_allowed[d] = L > 0 ? u * (apart + (2 * L + 2 * C + 2 * Z + 12) * mass) + L * tiny * v_most : 0;
    }
}

/* The keys of row `row` and group g among S, ascending; returns how many. */
static inline int64_t twin_keys(int64_t *keys, const struct twin_view *view, int64_t row, int64_t g, int64_t S)
{
    int64_t L = 0;
    for (int64_t j = 0; j < S; j++)
        if (twin_sees(view, row, g, j)) keys[L++] = j;
    return L;
}

/* ---- the index branch */

struct twin_score {
    long double value, allowed;
    int64_t seen;
};

/* The score of a block, keys [first, end) of width X, pooled. The bound of SPEC is that of a maximum. The logarithm
 * passes on a weighted mean of the scores' errors, so the largest covers it; to that come the last rounding, and a sum of
 * exponentials in double, or (rough, SPEC 7.1) in float. */
static inline struct twin_score twin_block_score(const double *q, const double *k, const unsigned char *seen,
                                                 int64_t first, int64_t end, int64_t X, int rsqrt, int lse, int rough,
                                                 long double u)
{
    const int64_t n = end > first ? end - first : 0;
    long double *s = malloc(2 * (size_t)(n + 1) * sizeof *s), *a = s + n + 1;
    long double top = -INFINITY, low = -INFINITY, sum = 0;
    struct twin_score m = { 0, 0, 0 };
    for (int64_t j = 0; j < n; j++) {
        s[j] = -INFINITY;
        a[j] = 0;
        if (seen && !seen[first + j]) continue;
        m.seen++;
        s[j] = 0;
        for (int64_t i = 0; i < X; i++) {
            long double term = (long double)q[i] * k[(first + j) * X + i];
            if (rsqrt) term /= sqrtl(X);
            s[j] += term;
            a[j] += fabsl(term);
        }
        a[j] *= (X + 2) * u; /* now what the score is allowed */
        top = fmaxl(top, s[j]);
        low = fmaxl(low, s[j] - a[j]);
    }
    for (int64_t j = 0; j < n; j++) {
        if (s[j] + a[j] >= low || lse) m.allowed = fmaxl(m.allowed, a[j]); /* within its error of the maximum */
        sum += m.seen ? expl(s[j] - top) : 0;
    }
    m.value = top;
    if (m.seen > 0 && lse) {
        m.value += logl(sum);
        m.allowed += u * fabsl(m.value) + (n + 4) * 0x1p-53L;
        for (int64_t j = 0; j < n && rough; j++)
            if (isfinite(s[j])) m.allowed += u * expl(s[j] - m.value) * (top - s[j]);
        if (rough) m.allowed += u * (m.seen + 4 + 4 * logl(m.seen + 1));
    }
    free(s);
    return m;
}

struct twin_candidate {
    int64_t id, forced; /* forced: 1, 2, .. in the order of the forced list; 0: not forced */
    double score;
};

/* Forced ones in their order, then by score from the largest, then by id. */
static inline int twin_before(const void *x, const void *y)
{
    const struct twin_candidate *a = x, *b = y;
    if (a->forced != b->forced) return a->forced == 0 ? 1 : b->forced == 0 ? -1 : a->forced < b->forced ? -1 : 1;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static inline int twin_ascending(const void *x, const void *y)
{
    return *(const int32_t *)x < *(const int32_t *)y ? -1 : 1;
}

/* shared: the maximum over groups. own_rule: of the local blocks, the own one alone. */
struct twin_rules {
    int shared, own_rule;
    int64_t local, init;
};

/* ids [N] of group g from m [G,B] of a row whose own block is `own`. */
static inline void twin_select(int32_t *ids, const double *m, int64_t g, int64_t G, int64_t B, int64_t own, int64_t N,
                               const struct twin_rules *rules)
{
    struct twin_candidate *all = malloc((size_t)(own + 1) * sizeof *all);
    const int64_t local = rules->own_rule && rules->local > 1 ? 1 : rules->local;
    int64_t turn = 1, n = 0;
    for (int64_t b = 0; b <= own; b++) {
        all[b] = (struct twin_candidate){ b, 0, m[g * B + b] };
        for (int64_t other = 0; other < G && rules->shared; other++)
            all[b].score = fmax(all[b].score, m[other * B + b]);
    }
    for (int64_t i = 0; i < local && own - i >= 0; i++) all[own - i].forced = turn++;
    for (int64_t b = 0; b < rules->init && b <= own; b++)
        if (all[b].forced == 0) all[b].forced = turn++;
    qsort(all, (size_t)own + 1, sizeof *all, twin_before);
    for (int64_t i = 0; i <= own && n < N; i++)
        if (all[i].forced > 0 || all[i].score > -INFINITY) ids[n++] = (int32_t)all[i].id;
    qsort(ids, (size_t)n, sizeof *ids, twin_ascending);
    while (n < N) ids[n++] = -1;
    free(all);
}

/* ---- the router: ids [K], the best of E choices, as rounded; the lower id wins */

static inline void twin_choose(int32_t *ids, const double *choices, int64_t E, int64_t K)
{
    for (int64_t k = 0; k < K; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < E; e++) {
            int taken = 0;
            for (int64_t j = 0; j < k; j++) taken |= ids[j] == e;
            if (!taken && (best < 0 || choices[e] > choices[best])) best = e;
        }
        ids[k] = (int32_t)best;
    }
}

#endif
