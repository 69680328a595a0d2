#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/math.h"
#include "oracle/variants/private/honest.h"

/* Values pass through the engine's operators in float: each product and sum below is rounded. */

int m3_honest_rope(struct m3_ctx *ctx, float *y, const float *x, const float *cos, const float *sin, int64_t T,
                   int64_t heads, int64_t D, int64_t R)
{
    struct m3_honest *honest = ctx->plugin;
    char point[M3_POINT_NAME];
    const struct m3_rounder r = m3_honest_rounder(honest, m3_honest_point(honest, point, "rope.product"));
    int64_t half = R / 2;
#pragma omp parallel for num_threads(m3_team(ctx, T * heads * D * 16))
    for (int64_t row = 0; row < T * heads; row++) {
        const float *x_r = x + row * D, *cos_t = cos + row / heads * half, *sin_t = sin + row / heads * half;
        float *y_r = y + row * D;
        for (int64_t i = 0; i < half; i++) {
            uint64_t at = (uint64_t)(row * D + i) * 4;
            float a = x_r[i], b = x_r[i + half];
            y_r[i] = m3_rounded(&r, (double)(a * cos_t[i]), at) - m3_rounded(&r, (double)(b * sin_t[i]), at + 1);
            y_r[i + half] =
                m3_rounded(&r, (double)(b * cos_t[i]), at + 2) + m3_rounded(&r, (double)(a * sin_t[i]), at + 3);
        }
        for (int64_t i = R; i < D; i++) y_r[i] = x_r[i];
    }
    return M3_OK;
}

/* A copy of x [rows,n] with its columns in another order; NULL: memory is short. */
static float *reordered(struct m3_ctx *ctx, const float *x, const int64_t *order, int64_t rows, int64_t n)
{
    float *out = m3_scratch_take(ctx, rows * n, sizeof *out);
#pragma omp parallel for num_threads(m3_team(ctx, rows *n))
    for (int64_t r = 0; r < (out ? rows : 0); r++)
        for (int64_t i = 0; i < n; i++) out[r * n + i] = x[r * n + order[i]];
    return out;
}

static double largest_of(const float *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)x[i]));
    return largest;
}

/* What a cache in a format with a scale gives back: the scale is 1, or lets the largest number of the tensor reach the
 * largest code. */
static void read_scaled(const struct m3_honest *honest, float *out, const float *x, int64_t n,
                        const struct m3_read_rounding *rule, uint64_t key)
{
    struct m3_rounder r = m3_honest_rounder_of(honest, M3_F8_E4M3, key);
    if (rule->u == 0x1p-3) r.bits = 3, r.least = -16, r.normal = 0x1p-14f;      /* E5M2 */
    const double largest = largest_of(x, n), needed = largest / rule->largest;
    const double scale = needed > 1 || (largest > 0 && m3_draw(key, 0, 2)) ? (double)(float)needed : 1;
    for (int64_t i = 0; i < n; i++) {
        const double code = (double)m3_rounded(&r, (double)x[i] / scale, (uint64_t)i);
        out[i] = (float)(fmax(-rule->largest, fmin(rule->largest, code)) * scale);
    }
}

/* A copy of what attention reads, if the profile rounds it there and this implementation does; otherwise x itself. */
static const float *as_read(struct m3_ctx *ctx, const float *x, const char *tap, int64_t n)
{
    struct m3_honest *honest = ctx->plugin;
    char point[M3_POINT_NAME];
    const struct m3_read_rounding rule = m3_profile_read(honest->profile, m3_honest_point(honest, point, tap));
    if (rule.u == 0 || (rule.largest > 0 && m3_honest_skips(honest, "cache"))) return x;
    float *out = m3_scratch_take(ctx, n, sizeof *out);
    const uint64_t key = m3_honest_key(honest, tap);
    const struct m3_rounder r = m3_honest_rounder_like(honest, rule.u, rule.floor, key);
    honest->rounds = 1;
    if (out && rule.largest > 0) read_scaled(honest, out, x, n, &rule, key);
    else
        for (int64_t i = 0; i < (out ? n : 0); i++) out[i] = m3_rounded(&r, (double)x[i], (uint64_t)i);
    return out;
}

int m3_honest_block_scores(struct m3_ctx *ctx, float *m, const float *q, const float *k, const struct m3_index *d)
{
    struct m3_honest *honest = ctx->plugin;
    char point[M3_POINT_NAME];
    size_t mark = m3_scratch_mark(ctx);
    int64_t *order = m3_scratch_take(ctx, d->X, sizeof *order);
    if (order) m3_honest_shuffle(honest, order, d->X);
    if (order) q = as_read(ctx, q, "index.q_rope", d->T * d->G * d->X);
    if (order) k = as_read(ctx, k, "index.k_rope", (d->p0 + d->T) * d->X);
    float *q_o = order && q && k ? reordered(ctx, q, order, d->T * d->G, d->X) : NULL;
    float *k_o = q_o ? reordered(ctx, k, order, d->p0 + d->T, d->X) : NULL;
    int status = k_o ? honest->base->block_scores(ctx, m, q_o, k_o, d) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    if (!status) m3_honest_round(honest, ctx, m3_honest_point(honest, point, "index.scores"), m, d->T * d->G * d->B);
    return status;
}

/* ---- attention: one head of one row at a time */

/* The data of an attention call for all its rows. */
struct attention {
    const float *q, *k, *v;             /* channels of q and k in random order */
    int64_t D, q_heads, kv_heads;       /* rows of q are [q_heads,D], places of k and v [kv_heads,D] */
    struct m3_rounder logits, p, partial, sum;
    uint64_t order;                     /* key of the keys' orders */
    int most_parts;
};

/* A thread's buffers: places and logits of the keys of a row, and the output of a part. */
struct room {
    int64_t *keys;
    float *z, *part;
};

static void shuffle_keys(int64_t *keys, int64_t n, uint64_t key, uint64_t at)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)m3_draw(key, at + (uint64_t)i, (uint64_t)i + 1), other = keys[j];
        keys[j] = keys[i];
        keys[i] = other;
    }
}

/* Computes z [n], the scaled logits of the row's head with the listed keys; returns the largest. */
static float logits_of(const struct attention *a, float *z, const int64_t *keys, int64_t n, const float *q, int64_t g,
                       uint64_t at)
{
    const float scale = (float)(1 / sqrt((double)a->D));
    float largest = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        const float *k = a->k + (keys[i] * a->kv_heads + g) * a->D;
        float sum = 0;
        for (int64_t c = 0; c < a->D; c++) sum += q[c] * k[c];
        sum = m3_rounded(&a->logits, (double)sum, (at + (uint64_t)i) * 2);
        z[i] = m3_rounded(&a->logits, (double)(sum * scale), (at + (uint64_t)i) * 2 + 1);
        if (z[i] > largest) largest = z[i];
    }
    return largest;
}

/* out [D] := sum of p v over some keys, over the sum of p, which is returned; p = exp(z - largest). */
static float one_part(const struct attention *a, float *out, const float *z, const int64_t *keys, int64_t n,
                      float largest, int64_t g, uint64_t at)
{
    float sum = 0;
    for (int64_t c = 0; c < a->D; c++) out[c] = 0;
    for (int64_t i = 0; i < n; i++) {
        const float *v = a->v + (keys[i] * a->kv_heads + g) * a->D;
        float e = (float)m3_exp((double)(z[i] - largest)), p = m3_rounded(&a->p, (double)e, at + (uint64_t)i);
        sum += e;
        for (int64_t c = 0; c < a->D; c++)
            out[c] = m3_rounded(&a->sum, (double)(out[c] + p * v[c]), (at + (uint64_t)i) * 1024 + (uint64_t)c);
    }
    for (int64_t c = 0; c < a->D; c++) out[c] /= sum;
    return sum;
}

/* o [D], lse of head h of row t over room->keys [n]. Computed in parts, like split kernels. */
static void one_row(const struct attention *a, float *o, float *lse, int64_t t, int64_t h, int64_t n,
                    const struct room *room)
{
    const float *q = a->q + (t * a->q_heads + h) * a->D;
    const int64_t g = h / (a->q_heads / a->kv_heads);
    const uint64_t at = (uint64_t)(t * a->q_heads + h) << 24;
    for (int64_t c = 0; c < a->D; c++) o[c] = 0;
    *lse = -INFINITY;
    if (n == 0) return;
    shuffle_keys(room->keys, n, a->order, at);
    float largest = logits_of(a, room->z, room->keys, n, q, g, at), total = 0;
    int64_t parts = m3_min(n, 1 + (int64_t)m3_draw(a->order, ~at, (uint64_t)a->most_parts));
    const struct m3_rounder none = { 0 }, *partial = parts > 1 ? &a->partial : &none;
    for (int64_t p = 0; p < parts; p++) {
        int64_t first = n * p / parts, count = n * (p + 1) / parts - first;
        float sum =
            one_part(a, room->part, room->z + first, room->keys + first, count, largest, g, at + (uint64_t)first);
        for (int64_t c = 0; c < a->D; c++)
            o[c] += sum * m3_rounded(partial, (double)room->part[c], (at + (uint64_t)p) * 1024 + (uint64_t)c);
        total += sum;
    }
    for (int64_t c = 0; c < a->D; c++) o[c] /= total;
    *lse = largest + (float)m3_log((double)total);
}

static int begin(struct m3_ctx *ctx, struct attention *a, struct room *rooms, int team, int64_t rows, int64_t places,
                 int64_t longest)
{
    struct m3_honest *honest = ctx->plugin;
    char point[M3_POINT_NAME];
    int64_t *order = m3_scratch_take(ctx, a->D, sizeof *order);
    int64_t *keys = m3_scratch_take(ctx, team * longest, sizeof *keys);
    float *z = m3_scratch_take(ctx, team * (longest + a->D), sizeof *z);
    if (!order || !keys || !z) return M3_INTERNAL;
    *rooms = (struct room){ keys, z, z + team * longest };

    a->q = as_read(ctx, a->q, "q_rope", rows * a->q_heads * a->D);
    a->k = as_read(ctx, a->k, "k_rope", places * a->kv_heads * a->D);
    a->v = as_read(ctx, a->v, "v_proj", places * a->kv_heads * a->D);
    if (!a->q || !a->k || !a->v) return M3_INTERNAL;
    m3_honest_shuffle(honest, order, a->D);
    a->q = reordered(ctx, a->q, order, rows * a->q_heads, a->D);
    a->k = a->q ? reordered(ctx, a->k, order, places * a->kv_heads, a->D) : NULL;
    a->logits = m3_honest_rounder(honest, m3_honest_point(honest, point, "attn.logits"));
    a->p = m3_honest_rounder(honest, m3_honest_point(honest, point, "attn.p"));
    a->partial = m3_honest_rounder(honest, m3_honest_point(honest, point, "attn.partial"));
    a->sum = m3_honest_rounder(honest, m3_honest_point(honest, point, "attn.sum"));
    a->order = m3_honest_key(honest, "keys");
    a->most_parts = m3_draw(a->order, 0, 2) ? 1 : 16;
    return a->k ? M3_OK : M3_INTERNAL;
}

static struct room room_of(const struct room *rooms, int64_t thread, int64_t longest, int64_t D)
{
    return (struct room){ rooms->keys + thread * longest, rooms->z + thread * longest, rooms->part + thread * D };
}

/* Is the place in a block of the list, or with M3_SELECT_UNION in a block of any group's list? */
static int is_chosen(const int32_t *lists, const struct m3_attend *d, int64_t g, int64_t block)
{
    int64_t first = d->selection == M3_SELECT_UNION ? 0 : g, end = d->selection == M3_SELECT_UNION ? d->G : g + 1;
    for (int64_t i = first * d->N; i < end * d->N; i++)
        if (lists[i] == block) return 1;
    return 0;
}

static int64_t list_keys(int64_t *keys, const int32_t *lists, const struct m3_attend *d, int64_t t, int64_t g)
{
    int64_t n = 0;
    for (int64_t j = 0; j <= d->p0 + t; j++) {
        if (lists && j % d->block == 0 && !is_chosen(lists, d, g, j / d->block)) {
            j += d->block - 1;
            continue;
        }
        if (!d->seen || d->seen[j]) keys[n++] = j;
    }
    return n;
}

static int causal(struct m3_ctx *ctx, float *o, float *lse, const float *q, const float *k, const float *v,
                  const int32_t *blocks, const struct m3_attend *d)
{
    int64_t S = d->p0 + d->T;
    int team = m3_team(ctx, d->T * d->Q * d->D * S);
    struct attention a = { .q = q, .k = k, .v = v, .D = d->D, .q_heads = d->Q, .kv_heads = d->G };
    struct room rooms;
    size_t mark = m3_scratch_mark(ctx);
    int status = begin(ctx, &a, &rooms, team, d->T, S, S);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < (status ? 0 : d->T * d->Q); i++) {
        int64_t t = i / d->Q, h = i % d->Q, g = h / (d->Q / d->G);
        const struct room room = room_of(&rooms, omp_get_thread_num(), S, d->D);
        int64_t n = list_keys(room.keys, blocks ? blocks + t * d->G * d->N : NULL, d, t, g);
        one_row(&a, o + i * d->D, lse + i, t, h, n, &room);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

int m3_honest_attend_full(struct m3_ctx *ctx, float *o, float *lse, const float *q, const float *k, const float *v,
                          const struct m3_attend *d)
{
    return causal(ctx, o, lse, q, k, v, NULL, d);
}

int m3_honest_attend_blocks(struct m3_ctx *ctx, float *o, float *lse, const float *q, const float *k, const float *v,
                            const int32_t *blocks, const struct m3_attend *d)
{
    return causal(ctx, o, lse, q, k, v, blocks, d);
}

int m3_honest_attend_segments(struct m3_ctx *ctx, float *o, const float *q, const float *k, const float *v,
                              const int64_t *ends, int64_t segments, int64_t A, int64_t U)
{
    int64_t P = ends[segments - 1], longest = 0;
    for (int64_t s = 0; s < segments; s++) longest = m3_max(longest, ends[s] - (s ? ends[s - 1] : 0));
    int team = m3_team(ctx, P * longest * A * U);
    struct attention a = { .q = q, .k = k, .v = v, .D = U, .q_heads = A, .kv_heads = A };
    struct room rooms;
    size_t mark = m3_scratch_mark(ctx);
    int status = begin(ctx, &a, &rooms, team, P, P, longest);
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t i = 0; i < (status ? 0 : P * A); i++) {
        int64_t t = i / A, s = 0;
        while (ends[s] <= t) s++;
        int64_t first = s ? ends[s - 1] : 0, n = ends[s] - first;
        const struct room room = room_of(&rooms, omp_get_thread_num(), longest, U);
        float lse;
        for (int64_t j = 0; j < n; j++) room.keys[j] = first + j;
        one_row(&a, o + i * U, &lse, t, i % A, n, &room);
    }
    m3_scratch_release(ctx, mark);
    return status;
}
