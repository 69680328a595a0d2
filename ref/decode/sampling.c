#define _GNU_SOURCE         /* qsort_r */
#include "decode/sampling.h"

#include <math.h>
#include <stdlib.h>

#include "base/generator.h"
#include "ops/math.h"

double m3_uniform(uint64_t seed, enum m3_draw_use use, int64_t place)
{
    static const char *const names[] = { "token", "draft", "accept", "instead" };
    uint64_t key = m3_draw_key(seed, names[use]), i = 2 * (uint64_t)place;
    return (double)(m3_draw(key, i, 1 << 27) << 26 | m3_draw(key, i + 1, 1 << 26)) * 0x1p-53;
}

int32_t m3_argmax(const double *logits, int64_t V)
{
    int64_t best = 0;
    for (int64_t i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

int m3_logits_good(const double *logits, int64_t V)
{
    double best = -INFINITY;
    for (int64_t i = 0; i < V; i++) {
        if (isnan(logits[i])) return 0;
        if (logits[i] > best) best = logits[i];
    }
    return isfinite(best);
}

/* More likely first, then the lower id. */
static int by_probability(const void *a, const void *b, void *p)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    double p_x = ((const double *)p)[x], p_y = ((const double *)p)[y];
    return p_x != p_y ? (p_x < p_y ? 1 : -1) : (x > y) - (x < y);
}

static double total_of(const double *p, int64_t V)
{
    double sum = 0;
    for (int64_t i = 0; i < V; i++) sum += p[i];
    return sum;
}

/* Applies top_k and top_p to p [V], which need not add up to 1. */
static void cut(double *p, int32_t *order, int64_t V, int64_t top_k, double top_p)
{
    for (int64_t i = 0; i < V; i++) order[i] = (int32_t)i;
    qsort_r(order, (size_t)V, sizeof *order, by_probability, p);

    int64_t n = top_k > 0 && top_k < V ? top_k : V, kept = 0;
    double all = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) all += p[order[i]];
    while (kept < n && (kept == 0 || top_p == 1 || sum < top_p * all)) sum += p[order[kept++]];
    for (int64_t i = kept; i < V; i++) p[order[i]] = 0;
}

void m3_distribution(double *p, int32_t *order, const double *logits, int64_t V, const struct m3_sampling *how)
{
    int32_t best = m3_argmax(logits, V);
    if (how->temperature == 0) {
        for (int64_t i = 0; i < V; i++) p[i] = i == best;
        return;
    }
    for (int64_t i = 0; i < V; i++) p[i] = m3_exp((logits[i] - logits[best]) / how->temperature);
    if ((how->top_k > 0 && how->top_k < V) || how->top_p < 1) cut(p, order, V, how->top_k, how->top_p);
    double sum = total_of(p, V);
    for (int64_t i = 0; i < V; i++) p[i] = p[i] / sum;
}

int32_t m3_pick(const double *p, int64_t V, double u)
{
    double sum = 0;
    int32_t last = 0;                   /* used if rounding leaves the sum below u */
    for (int64_t i = 0; i < V; i++) {
        if (!(p[i] > 0)) continue;
        sum += p[i];
        last = (int32_t)i;
        if (sum > u) break;
    }
    return last;
}

int32_t m3_accept(int *kept, int32_t draft, const double *p, const double *q, double *rest, int64_t V, uint64_t seed,
                  int64_t place)
{
    *kept = m3_uniform(seed, M3_DRAW_ACCEPT, place) * q[draft] < p[draft];
    if (*kept) return draft;

    for (int64_t i = 0; i < V; i++) rest[i] = p[i] > q[i] ? p[i] - q[i] : 0;
    double sum = total_of(rest, V);     /* 0 only if p and q differ just by their rounding */
    for (int64_t i = 0; i < V; i++) rest[i] = sum > 0 ? rest[i] / sum : p[i];
    return m3_pick(rest, V, m3_uniform(seed, M3_DRAW_INSTEAD, place));
}

double m3_logprob(const double *logits, int64_t V, int32_t id)
{
    double best = logits[m3_argmax(logits, V)], sum = 0;
    for (int64_t i = 0; i < V; i++) sum += m3_exp(logits[i] - best);
    return logits[id] - best - m3_log(sum);
}

double m3_margin(const double *logits, int64_t V, int32_t id)
{
    double other = -INFINITY;
    for (int64_t i = 0; i < V; i++)
        if (i != id && logits[i] > other) other = logits[i];
    return logits[id] - other;
}
