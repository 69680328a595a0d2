#include "oracle/variants/honest_margins.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/judge/choices/margin.h"

/* The margins of one choice, over the runs. */
struct margin {
    float runs, sum, squares;
};

struct m3_honest_margins {
    const struct m3_model *model;
    const struct m3_semantics *semantics;
    int64_t T, groups;                  /* choices of blocks in a row */
    struct margin *experts, *blocks;    /* [layers,T] [layers,T,groups] */
};

static struct margin *margins_new(int64_t n)
{
    struct margin *margins = malloc((size_t)n * sizeof *margins + 1);
    for (int64_t i = 0; margins && i < n; i++) margins[i] = (struct margin){ 0 };
    return margins;
}

int m3_honest_margins_new(struct m3_honest_margins **out, const struct m3_model *model,
                          const struct m3_semantics *semantics, int64_t T, struct m3_error *error)
{
    struct m3_honest_margins *m = *out = calloc(1, sizeof *m);
    const int64_t rows = model->config.layers * T;
    if (!m) return m3_fail_memory(error, "margins", sizeof *m);
    *m = (struct m3_honest_margins){ .model = model, .semantics = semantics, .T = T, .groups = model->config.G };
    m->experts = margins_new(rows);
    m->blocks = margins_new(rows * m->groups);
    if (m->experts && m->blocks) return M3_OK;
    m3_honest_margins_free(m);
    *out = NULL;
    return m3_fail_memory(error, "margins", (size_t)rows * sizeof *m->experts);
}

void m3_honest_margins_free(struct m3_honest_margins *m)
{
    if (!m) return;
    free(m->experts);
    free(m->blocks);
    free(m);
}

int m3_honest_margins_wants(enum m3_tap tap, int64_t layer)
{
    return (tap == M3_TAP_ROUTER_SCORES || tap == M3_TAP_INDEX_BLOCK_SCORES) && m3_mtp_module_of(layer) < 0;
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Between the k-th and the next of n scores, which it sorts; nothing if there is no choice. */
static void add(struct margin *margin, double *scores, int64_t n, int64_t k)
{
    qsort(scores, (size_t)n, sizeof *scores, descending);
    if (k <= 0 || k >= n || isinf(scores[k])) return;
    const float gap = isnan(scores[k - 1] - scores[k]) ? 0 : (float)(scores[k - 1] - scores[k]);
    margin->runs++;
    margin->sum += gap;
    margin->squares += gap * gap;
}

static int take_experts(struct m3_honest_margins *m, int64_t layer, const float *scores, int64_t row, int64_t count)
{
    const int64_t E = m->model->config.E;
    const struct m3_weight *bias = &m->model->layers[layer].router_bias;
    double *offset = calloc((size_t)E + 1, 2 * sizeof *offset), *sums = offset + E;
    if (!offset) return M3_INTERNAL;
    if (bias->cols == E) m3_expand_f64(offset, bias, 0, 0, E);
    for (int64_t t = 0; t < count; t++) {
        for (int64_t e = 0; e < E; e++) sums[e] = (double)scores[t * E + e] + offset[e];
        add(&m->experts[layer * m->T + row + t], sums, E, m->model->config.K);
    }
    free(offset);
    return M3_OK;
}

/* The candidates among the blocks of one group; returns how many, and how many places the forced ones leave. */
static int64_t list_blocks(double *sums, unsigned char *forced, int64_t *left, const struct m3_honest_margins *m,
                           const float *scores, int64_t t, int64_t group, int64_t B)
{
    const struct m3_config *c = &m->model->config;
    const int64_t own = t / c->block;
    int64_t n = 0;
    for (int64_t b = 0; b < B; b++) forced[b] = 0;
    m3_forced_blocks(forced, own, c->N, m->semantics);
    *left = c->N;
    for (int64_t b = 0; b <= m3_min(own, B - 1); b++) {
        double score = (double)scores[group * B + b];
        for (int64_t h = 0; m->semantics->selection == M3_SELECT_SHARED && h < c->G; h++)
            score = fmax(score, (double)scores[h * B + b]);
        *left -= forced[b];
        if (!forced[b]) sums[n++] = score;
    }
    return n;
}

static int take_blocks(struct m3_honest_margins *m, int64_t layer, const float *scores, int64_t row, int64_t count)
{
    const int64_t G = m->groups, block = m->model->config.block, B = (m->T + block - 1) / block;
    double *sums = malloc((size_t)B * sizeof *sums + 1);
    unsigned char *forced = malloc((size_t)B + 1);
    for (int64_t i = 0; sums && forced && i < count * G; i++) {
        const int64_t t = row + i / G, group = i % G;
        int64_t left;
        const int64_t n = list_blocks(sums, forced, &left, m, scores + (i / G) * G * B, t, group, B);
        add(&m->blocks[(layer * m->T + t) * G + group], sums, n, left);
    }
    const int status = sums && forced ? M3_OK : M3_INTERNAL;
    free(sums);
    free(forced);
    return status;
}

int m3_honest_margins_take(struct m3_honest_margins *m, enum m3_tap tap, int64_t layer, const float *scores,
                           int64_t row, int64_t count, struct m3_error *error)
{
    const int status = tap == M3_TAP_ROUTER_SCORES ? take_experts(m, layer, scores, row, count)
                                                   : take_blocks(m, layer, scores, row, count);
    return status ? m3_fail_memory(error, "margins", (size_t)count * sizeof(double)) : M3_OK;
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float deviation_of(const struct margin *m)
{
    const float mean = m->sum / m->runs;
    return sqrtf(fmaxf(0, m->squares / m->runs - mean * mean));
}

/* How much the runs' margins vary at most in nine of ten choices of a layer: few runs show less in some rows by chance,
 * because they share most of their roundings. Infinite, so that nothing is sure, if memory is short. */
static float usual_deviation(const struct margin *margins, int64_t n)
{
    float *room = malloc((size_t)n * sizeof *room + 1), usual = INFINITY;
    int64_t count = 0;
    for (int64_t i = 0; room && i < n; i++)
        if (margins[i].runs > 0) room[count++] = deviation_of(&margins[i]);
    if (room) qsort(room, (size_t)count, sizeof *room, ascending);
    if (room) usual = count > 0 ? room[(count - 1) * 9 / 10] : 0;
    free(room);
    return usual;
}

/* Adds to others [T] how probably a program chooses otherwise in one layer, which has `each` choices in a row. */
static void add_choices(double *others, const struct margin *margins, int64_t T, int64_t each)
{
    const float usual = usual_deviation(margins, T * each);
    for (int64_t i = 0; i < T * each; i++) {
        const struct margin *m = &margins[i];
        if (m->runs == 0) continue;
        const double deviation = fmaxf(usual, deviation_of(m)), mean = m->sum / m->runs;
        others[i / each] += erfc(mean / fmax(deviation, DBL_MIN) * M_SQRT1_2) / 2;
    }
}

void m3_honest_margins_others(double *others, const struct m3_honest_margins *m, enum m3_tap tap, int64_t layer,
                              int64_t first)
{
    for (int64_t t = 0; t < m->T; t++) others[t] = 0;
    for (int64_t l = first; l < m->model->config.layers; l++) {
        if (m3_tap_order(M3_TAP_INDEX_BLOCKS, l, tap, layer) < 0)
            add_choices(others, m->blocks + l * m->T * m->groups, m->T, m->groups);
        if (m3_tap_order(M3_TAP_EXPERTS, l, tap, layer) < 0) add_choices(others, m->experts + l * m->T, m->T, 1);
    }
}
