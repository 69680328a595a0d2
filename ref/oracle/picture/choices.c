#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/picture/private/picturing.h"

enum { ROWS = 256, COLUMNS = 128, EXPERTS = 256, MOST_BLOCKS = 1 << 20, SHOWN_LAYERS = 64, SHOWN_GROUPS = 8 };

/* ---- which blocks each token chose */

static int64_t greatest(const struct m3_tensor *ids)
{
    int64_t most = 0;
    for (int64_t i = 0; i < ids->count; i++) most = m3_max(most, m3_min(m3_picture_id(ids, i), MOST_BLOCKS));
    return most;
}

/* What was chosen in each cell of tokens and blocks. */
struct cells {
    int rows, columns;
    double chosen[ROWS * COLUMNS], decisions[ROWS];
    signed char levels[ROWS * COLUMNS];
};

/* The share of the decisions of a cell that chose one of its blocks. */
static void fill(struct cells *c, const struct m3_tensor *ids, int64_t g, int64_t blocks)
{
    const int64_t T = ids->shape[0], G = ids->shape[1], N = ids->shape[2];
    const double in_a_cell = (double)blocks / (double)c->columns;
    memset(c->chosen, 0, sizeof c->chosen);
    memset(c->decisions, 0, sizeof c->decisions);
    for (int64_t t = 0; t < T; t++) {
        const int64_t r = t * c->rows / T;
        c->decisions[r]++;
        for (int64_t n = 0; n < N; n++) {
            const int64_t id = m3_picture_id(ids, (t * G + g) * N + n);
            if (id >= 0 && id < blocks) c->chosen[r * c->columns + id * c->columns / blocks]++;
        }
    }
    for (int i = 0; i < c->rows * c->columns; i++)
        c->levels[i] = m3_level_of(c->chosen[i] / c->decisions[i / c->columns] / in_a_cell);
}

static void draw_layer(struct m3_picturing *p, const struct m3_tensor *ids, int64_t layer)
{
    const int64_t T = ids->shape[0], G = m3_min(ids->shape[1], SHOWN_GROUPS), blocks = greatest(ids) + 1;
    const int rows = (int)m3_min(T, ROWS), columns = (int)m3_min(blocks, COLUMNS);
    const int wide = (int)m3_max(2, m3_min(16, 220 / columns)), high = (int)m3_max(2, m3_min(12, 400 / rows));
    const int each = columns * wide + 20;
    char name[64], title[128];
    m3_picture_layer_name(name, sizeof name, layer);
    snprintf(title, sizeof title, "blocks that each token chose, %s", name);
    struct cells *cells = malloc(sizeof *cells);
    if (!cells && !p->status) p->status = m3_fail_memory(p->error, title, sizeof *cells);
    FILE *out = cells ? m3_panel_begin(p, (int)m3_max(60 + G * each, 420), rows * high + 44, title) : NULL;
    if (!out) {
        free(cells);
        return;
    }
    cells->rows = rows;
    cells->columns = columns;
    m3_panel_note(p,
                  "%" PRId64 " tokens from top to bottom, blocks 0 to %" PRId64 " from left to right, once for each "
                  "group. A cell stands for %s; the larger and darker its bar, the more often it was chosen.",
                  T, blocks - 1, T > rows || blocks > columns ? "several tokens or blocks" : "one token and block");
    fprintf(out, "<text class=\"end\" x=\"50\" y=\"32\">t=%" PRId64 "</text>\n", m3_picture_row(p, 0));
    fprintf(out, "<text class=\"end\" x=\"50\" y=\"%d\">t=%" PRId64 "</text>\n", 20 + rows * high,
            m3_picture_row(p, T - 1));
    for (int64_t g = 0; g < G; g++) {
        const int x = 56 + (int)g * each;
        fill(cells, ids, g, blocks);
        fprintf(out, "<text x=\"%d\" y=\"14\">group %" PRId64 "</text>\n", x, g);
        m3_draw_grid(out, &(struct m3_grid){ x, 20, columns * wide, rows * high, rows, columns, cells->levels });
    }
    m3_panel_end(p);
    free(cells);
}

void m3_picture_blocks(struct m3_picturing *p)
{
    int64_t layers[M3_PICTURE_LAYERS];
    const int count = m3_picture_layers(p, M3_TAP_INDEX_BLOCKS, layers);
    for (int i = 0; i < count && i < SHOWN_LAYERS; i++)
        draw_layer(p, m3_picture_tap(p, M3_TAP_INDEX_BLOCKS, layers[i]), layers[i]);
    if (count > SHOWN_LAYERS)
        m3_fail(&p->picture->notes, M3_OK, "Blocks are drawn for the first %d of %d layers.", SHOWN_LAYERS, count);
}

/* ---- which experts work how much */

/* The load of the experts of one layer, as a share of four times the average. */
static void count_load(signed char *levels, double *busiest, int64_t *unused, const struct m3_tensor *ids, int columns)
{
    double load[EXPERTS] = { 0 };
    const double average = (double)ids->count / (double)columns;
    for (int64_t i = 0; i < ids->count; i++) {
        const int64_t id = m3_picture_id(ids, i);
        if (id >= 0 && id < columns) load[id]++;
    }
    for (int e = 0; e < columns; e++) {
        levels[e] = m3_level_of(load[e] / average / 4);
        if (load[e] / average > *busiest) *busiest = load[e] / average;
        *unused += load[e] == 0;
    }
}

void m3_picture_experts(struct m3_picturing *p)
{
    int64_t layers[M3_PICTURE_LAYERS], E = 1, unused = 0;
    const int count = m3_picture_layers(p, M3_TAP_EXPERTS, layers);
    double busiest = 0;
    if (count == 0) return;
    for (int i = 0; i < count; i++) {
        const struct m3_tensor *scores = m3_picture_tap(p, M3_TAP_ROUTER_SCORES, layers[i]);
        E = m3_max(E, scores ? scores->shape[1] : greatest(m3_picture_tap(p, M3_TAP_EXPERTS, layers[i])) + 1);
    }
    const int columns = (int)m3_min(E, EXPERTS), wide = (int)m3_max(3, 880 / columns < 24 ? 880 / columns : 24),
              high = 14;
    const size_t cells = (size_t)count * (size_t)columns;
    signed char *levels = malloc(cells);
    FILE *out = levels ? m3_panel_begin(p, 110 + columns * wide, 36 + count * high, "load of the experts") : NULL;
    if (!levels) p->status = m3_fail_memory(p->error, "load of the experts", cells);
    if (!out) {
        free(levels);
        return;
    }
    for (int i = 0; i < count; i++) {
        char name[64];
        count_load(levels + (size_t)i * (size_t)columns, &busiest, &unused,
                   m3_picture_tap(p, M3_TAP_EXPERTS, layers[i]), columns);
        m3_picture_layer_name(name, sizeof name, layers[i]);
        fprintf(out, "<text class=\"end\" x=\"98\" y=\"%d\">%s</text>\n", 31 + i * high, name);
    }
    fprintf(out, "<text x=\"104\" y=\"14\">expert 0 .. %d</text>\n", columns - 1);
    m3_draw_grid(out, &(struct m3_grid){ 104, 20, columns * wide, count * high, count, columns, levels });
    m3_panel_note(
        p,
        "A row is a layer, a column an expert. The bar grows with the number of tokens: up to 1, 2, 3, nearly 4 "
        "and more times the average. The busiest takes %.3g times the average; %" PRId64
        " of %d are not chosen at all.",
        busiest, unused, count * columns);
    m3_panel_end(p);
    free(levels);
}
