#include "oracle/report/private/heat_map.h"

#include <math.h>

#include "base/minmax.h"
#include "base/weight.h"
#include "oracle/judge/judge.h"
#include "oracle/judge/spans.h"

/* The largest share of the allowance among n elements. */
static double worst_share(const struct m3_finding *stage, int64_t want_at, int64_t got_at, int64_t n)
{
    enum { PIECE = 256 };
    const struct m3_tensor *want = stage->reference, *got = stage->candidate;
    const struct m3_weight w = { .data = want->data, .dtype = want->dtype, .rows = 1, .cols = want->count };
    const struct m3_weight g = { .data = got->data, .dtype = got->dtype, .rows = 1, .cols = got->count };
    double wants[PIECE], gots[PIECE], worst = 0;
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t piece = m3_min(PIECE, n - i);
        m3_expand_f64(wants, &w, 0, want_at + i, piece);
        m3_expand_f64(gots, &g, 0, got_at + i, piece);
        for (int64_t j = 0; j < piece; j++) {
            if (wants[j] == gots[j]) continue;
            double share = m3_share_of_allowed(stage, gots[j], wants[j]);
            if (share > worst) worst = share;
        }
    }
    return worst;
}

/* The first of `total` items in cell number `cell` of `cells`. */
static int64_t first_in(int64_t cell, int64_t cells, int64_t total) { return (cell * total + cells - 1) / cells; }

static void fill_cells(struct m3_heat *heat, const struct m3_finding *stage, struct m3_span_walk walk)
{
    struct m3_span span;
    while (m3_span_walk_next(&walk, &span)) {
        double *row = heat->cells + span.nth * heat->rows / heat->tokens * heat->columns;
        int64_t begin = span.want % heat->channels, end = begin + span.length;
        for (int64_t at = begin, next; at < end; at = next) {
            int64_t c = at * heat->columns / heat->channels;
            next = m3_min(end, first_in(c + 1, heat->columns, heat->channels));
            double share = worst_share(stage, span.want + at - begin, span.got + at - begin, next - at);
            if (!(share <= row[c])) row[c] = share;         /* also where it is NaN: empty so far */
        }
    }
}

/* Numbers the rows of cells, and finds the one with the stage's place. */
static void number_rows(struct m3_heat *heat, const struct m3_finding *stage, const int64_t *index,
                        struct m3_row_walk walk)
{
    struct m3_row_pair row;
    for (int64_t i = 0; m3_row_walk_next(&walk, &row); i++) {
        int64_t r = i * heat->rows / heat->tokens;
        if (first_in(r, heat->rows, heat->tokens) == i) heat->first[r] = row.number;
        if (row.number == index[0]) heat->worst_row = (int)r;
    }
    int64_t channel = 0;
    for (int i = 1; i < stage->reference->rank; i++) channel = channel * stage->reference->shape[i] + index[i];
    heat->worst_column = (int)(channel * heat->columns / heat->channels);
}

static void set_edges(struct m3_heat *heat)
{
    double most = 1;
    for (int i = 0; i < heat->rows * heat->columns; i++)
        if (heat->cells[i] > most && !isinf(heat->cells[i])) most = heat->cells[i];
    double top = fmax(1, ceil(log10(most))), step = fmin(0.5, top / (M3_HEAT_LEVELS - 2));
    heat->edges[0] = 0.1;
    heat->edges[1] = 1;
    for (int k = 2; k < M3_HEAT_LEVELS; k++) heat->edges[k] = pow(10, top - (M3_HEAT_LEVELS - 1 - k) * step);
}

void m3_heat_fill(struct m3_heat *heat, const struct m3_finding *stage, const int64_t *index,
                  const struct m3_matched *matched, int rows, int columns)
{
    struct m3_span_walk walk;
    *heat = (struct m3_heat){ .channels = 1 };
    if (m3_span_walk_begin(&walk, matched) != NULL) return;
    heat->tokens = m3_row_walk_count(walk.rows);
    for (int i = 1; i < matched->want->rank; i++) heat->channels *= matched->want->shape[i];
    heat->rows = (int)m3_min(heat->tokens, rows);
    heat->columns = (int)m3_min(heat->channels, columns);
    for (int i = 0; i < heat->rows * heat->columns; i++) heat->cells[i] = NAN;
    number_rows(heat, stage, index, walk.rows);
    fill_cells(heat, stage, walk);
    set_edges(heat);
}

int m3_heat_level(const struct m3_heat *heat, double share)
{
    if (!(share > 0)) return -1;
    int k = 0;
    while (k < M3_HEAT_LEVELS && !(share <= heat->edges[k])) k++;
    return k;
}
