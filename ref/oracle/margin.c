#include "oracle/margin.h"

#include <math.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "base/status.h"

enum mark { LEFT, CHOSEN, FORCED };

static double margin_of(const double *score, const unsigned char *marks, int64_t count)
{
    double least = INFINITY, greatest = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        if (marks[i] == CHOSEN) least = fmin(least, score[i]);
        if (marks[i] == LEFT) greatest = fmax(greatest, score[i]);
    }
    return isinf(least) || isinf(greatest) ? INFINITY : least - greatest;
}

int m3_margins_of_experts(double *margins, const double *s, const int32_t *ids, const struct m3_weight *bias, int64_t T,
                          int64_t K)
{
    const int64_t E = bias->cols;
    double *offset = malloc((size_t)E * 2 * sizeof *offset + 1), *score = offset ? offset + E : NULL;
    unsigned char *marks = malloc((size_t)E + 1);
    if (offset && marks) m3_expand_f64(offset, bias, 0, 0, E);
    for (int64_t t = 0; offset && marks && t < T; t++) {
        for (int64_t e = 0; e < E; e++) marks[e] = LEFT, score[e] = s[t * E + e] + offset[e];
        for (int64_t k = 0; k < K; k++) marks[ids[t * K + k]] = CHOSEN;
        margins[t] = margin_of(score, marks, E);
    }
    int status = offset && marks ? M3_OK : M3_INTERNAL;
    free(offset);
    free(marks);
    return status;
}

/* Own block, local blocks before it, initial blocks: as many as have room (SPEC 5.9). */
static void mark_forced(unsigned char *marks, const struct m3_semantics *s, int64_t own, int64_t N)
{
    const int64_t local = s->local_rule == M3_LOCAL_OWN ? m3_min(1, s->local_blocks) : s->local_blocks;
    int64_t left = N;
    for (int64_t b = own; b > own - local && b >= 0 && left > 0; b--, left--) marks[b] = FORCED;
    for (int64_t b = 0; b < s->init_blocks && b <= own && left > 0; b++) {
        if (marks[b] == FORCED) continue;
        marks[b] = FORCED;
        left--;
    }
}

/* The score that counts for a group: its own, or the largest of all. */
static double score_of(const double *m_t, const struct m3_semantics *s, int64_t G, int64_t B, int64_t g, int64_t b)
{
    double best = m_t[g * B + b];
    for (int64_t h = 0; s->selection == M3_SELECT_SHARED && h < G; h++) best = fmax(best, m_t[h * B + b]);
    return best;
}

int m3_margins_of_blocks(double *margins, const double *m, const int32_t *ids, const struct m3_config *config,
                         const struct m3_semantics *semantics, int64_t T, int64_t p0, int64_t B)
{
    const int64_t G = config->G, N = config->N;
    double *score = malloc((size_t)B * sizeof *score + 1);
    unsigned char *marks = malloc((size_t)B + 1);
    for (int64_t i = 0; score && marks && i < T * G; i++) {
        const int64_t t = i / G, own = (p0 + t) / config->block;
        for (int64_t b = 0; b <= own; b++) {
            marks[b] = LEFT;
            score[b] = score_of(m + t * G * B, semantics, G, B, i % G, b);
        }
        for (int64_t k = 0; k < N; k++)
            if (ids[i * N + k] >= 0) marks[ids[i * N + k]] = CHOSEN;
        mark_forced(marks, semantics, own, N);
        margins[i] = margin_of(score, marks, own + 1);
    }
    int status = score && marks ? M3_OK : M3_INTERNAL;
    free(score);
    free(marks);
    return status;
}
