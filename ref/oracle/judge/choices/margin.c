#include "oracle/judge/choices/margin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/status.h"
#include "oracle/judge/choices/certificate.h"

/* Memory for one decision of `width` ids among `ids`. */
struct decision {
    struct m3_scores scores;
    double *score;                      /* [ids] */
    unsigned char *forced, *marks;      /* [ids] */
    int64_t *chosen;                    /* [width] */
};

static int need_decision(struct decision *d, int64_t ids, int64_t width)
{
    d->score = malloc((size_t)ids * sizeof *d->score + 1);
    d->forced = calloc((size_t)ids + 1, 2);
    d->chosen = malloc((size_t)width * sizeof *d->chosen + 1);
    if (!d->score || !d->forced || !d->chosen) return M3_INTERNAL;
    d->marks = d->forced + ids;
    d->scores = (struct m3_scores){ .score = d->score, .forced = d->forced, .ids = ids };
    return M3_OK;
}

static void free_decision(struct decision *d)
{
    free(d->score);
    free(d->forced);
    free(d->chosen);
}

int m3_margins_of_experts(double *margins, const double *s, const int32_t *ids, const struct m3_weight *bias, int64_t T,
                          int64_t K)
{
    const int64_t E = bias->cols;
    double *offset = malloc((size_t)E * sizeof *offset + 1);
    struct decision d;
    int status = need_decision(&d, E, K);
    if (!offset) status = M3_INTERNAL;
    if (!status) m3_expand_f64(offset, bias, 0, 0, E);
    for (int64_t t = 0; !status && t < T; t++) {
        for (int64_t e = 0; e < E; e++) d.score[e] = s[t * E + e] + offset[e];
        for (int64_t k = 0; k < K; k++) d.chosen[k] = ids[t * K + k];
        margins[t] = m3_margin_of(&d.scores, d.chosen, K, d.marks);
    }
    free_decision(&d);
    free(offset);
    return status;
}

void m3_forced_blocks(unsigned char *forced, int64_t own, int64_t N, const struct m3_semantics *s)
{
    const int64_t local = s->local_rule == M3_LOCAL_OWN ? m3_min(1, s->local_blocks) : s->local_blocks;
    int64_t left = N;
    for (int64_t b = own; b > own - local && b >= 0 && left > 0; b--, left--) forced[b] = 1;
    for (int64_t b = 0; b < s->init_blocks && b <= own && left > 0; b++) {
        if (forced[b]) continue;
        forced[b] = 1;
        left--;
    }
}

/* The score used for a group: its own, or the largest of all groups. */
static double ranked_score(const double *m_t, const struct m3_semantics *s, int64_t G, int64_t B, int64_t g, int64_t b)
{
    double best = m_t[g * B + b];
    for (int64_t h = 0; s->selection == M3_SELECT_SHARED && h < G; h++) best = fmax(best, m_t[h * B + b]);
    return best;
}

int m3_margins_of_blocks(double *margins, const double *m, const int32_t *ids, const struct m3_config *config,
                         const struct m3_semantics *semantics, int64_t T, int64_t p0, int64_t B)
{
    const int64_t G = config->G, N = config->N;
    struct decision d;
    int status = need_decision(&d, B, N);
    for (int64_t i = 0; !status && i < T * G; i++) {
        const int64_t t = i / G, own = (p0 + t) / config->block;
        int64_t chosen = 0;
        memset(d.forced, 0, (size_t)B);
        for (int64_t b = 0; b < B; b++)
            d.score[b] = b <= own ? ranked_score(m + t * G * B, semantics, G, B, i % G, b) : -INFINITY;
        for (int64_t k = 0; k < N; k++)
            if (ids[i * N + k] >= 0) d.chosen[chosen++] = ids[i * N + k];
        m3_forced_blocks(d.forced, own, N, semantics);
        margins[i] = m3_margin_of(&d.scores, d.chosen, chosen, d.marks);
    }
    free_decision(&d);
    return status;
}
