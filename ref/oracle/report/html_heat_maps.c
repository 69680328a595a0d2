#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/taps.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/heat_map.h"
#include "oracle/report/private/html.h"

/* Pixels of a map: the margins left, above and below; the key under it. */
enum { LEFT = 56, ABOVE = 6, BELOW = 34, KEY = 62, STEP = 78, KEY_WIDTH = 10 * STEP };

struct map {
    FILE *out;
    const struct m3_heat *heat;
    int wide, high;             /* of a cell */
};

static double x_of(const struct map *m, double column) { return LEFT + column * m->wide; }
static double y_of(const struct map *m, double row) { return ABOVE + row * m->high; }

static void draw_cells(const struct map *m)
{
    const struct m3_heat *heat = m->heat;
    signed char levels[M3_HEAT_ROWS * M3_HEAT_COLUMNS];
    for (int i = 0; i < heat->rows * heat->columns; i++) levels[i] = (signed char)m3_heat_level(heat, heat->cells[i]);
    fprintf(m->out,
            "<rect class=\"panel\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n<g transform=\"translate(%d "
            "%d) scale(%d %d)\">\n",
            LEFT, ABOVE, heat->columns * m->wide, heat->rows * m->high, LEFT, ABOVE, m->wide, m->high);
    for (int k = 0; k <= M3_HEAT_LEVELS; k++) {
        char name[8];
        snprintf(name, sizeof name, "h%d", k);
        m3_page_runs(m->out, name, levels, heat->rows, heat->columns, k, 0.5);
    }
    fputs("</g>\n", m->out);
}

/* Numbers of rows on the left, of channels below: each of the first in its cell. */
static void draw_axes(const struct map *m, char letter)
{
    const struct m3_heat *heat = m->heat;
    int row_step = (16 + m->high - 1) / m->high, column_step = (48 + m->wide - 1) / m->wide;
    for (int r = 0; r < heat->rows; r += row_step)
        fprintf(m->out, "<text class=\"end\" x=\"%d\" y=\"%.1f\">%c=%" PRId64 "</text>\n", LEFT - 5,
                y_of(m, r + 0.5) + 4, letter, heat->first[r]);
    for (int c = 0; c < heat->columns; c += column_step) {
        int64_t channel = (c * heat->channels + heat->columns - 1) / heat->columns;
        fprintf(m->out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/><text x=\"%.1f\" y=\"%.1f\">%" PRId64 "</text>\n",
                x_of(m, c), y_of(m, heat->rows), x_of(m, c), y_of(m, heat->rows) + 15, channel);
    }
    fprintf(m->out, "<text x=\"%d\" y=\"%.1f\">channel</text>\n", LEFT, y_of(m, heat->rows) + 29);
}

static void draw_worst(const struct map *m)
{
    double x = x_of(m, m->heat->worst_column + 0.5), y = y_of(m, m->heat->worst_row + 0.5);
    double radius = fmax(7, 0.7 * fmax(m->wide, m->high));
    for (int i = 0; i < 2; i++)
        fprintf(m->out, "<circle class=\"ring%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>\n", i ? "" : " halo", x, y,
                radius);
}

/* Draws the levels with the largest share of each. */
static void draw_key(const struct map *m)
{
    double y = y_of(m, m->heat->rows) + BELOW + 10;
    for (int k = 0; k <= M3_HEAT_LEVELS; k++) {
        double x = k * STEP;
        fprintf(m->out, "<rect class=\"panel\" x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"16\"/>", x, y, STEP - 8);
        fprintf(m->out, "<g transform=\"translate(%.1f %.1f) scale(%d 16)\"><path class=\"h%d\" d=\"M0 .5h1\"/></g>", x,
                y, STEP - 8, k);
        fprintf(m->out, "<text x=\"%.1f\" y=\"%.1f\">", x, y + 30);
        if (k == M3_HEAT_LEVELS) fputs("NaN, infinite", m->out);
        else fprintf(m->out, "&#8804; %.3g%s", m->heat->edges[k], k == 1 ? " (allowed)" : "");
        fputs("</text>\n", m->out);
    }
}

static void draw_map(FILE *out, const struct m3_heat *heat, const struct m3_finding *stage, char letter)
{
    struct map m = { .out = out,
                     .heat = heat,
                     .wide = (int)m3_min(24, 960 / heat->columns),
                     .high = (int)m3_max(5, m3_min(16, 320 / heat->rows)) };
    int width = LEFT + heat->columns * m.wide + 16, height = ABOVE + heat->rows * m.high + BELOW + KEY;
    if (width < KEY_WIDTH) width = KEY_WIDTH;
    fprintf(out,
            "<svg class=\"heat\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
            "aria-label=\"error of %s over rows and channels\">\n",
            width, height, width, height, stage->tap);
    draw_cells(&m);
    draw_axes(&m, letter);
    draw_worst(&m);
    draw_key(&m);
    fputs("</svg>\n", out);
}

/* "Row t, channel q * 20 + d. 67 x 160 elements in 64 x 128 cells." */
static void describe(FILE *out, const struct m3_heat *heat, const struct m3_finding *stage, const char *letters)
{
    fputs("<p class=\"quiet\">", out);
    if (strlen(letters) == 3)
        fprintf(out, "channel = %c * %" PRId64 " + %c. ", letters[1] | 32, stage->reference->shape[2], letters[2] | 32);
    fprintf(out, "%" PRId64 " %s x %" PRId64 " %s in %d x %d cells; a cell shows its worst element.</p>\n",
            heat->tokens, m3_plural(heat->tokens, "rows"), heat->channels, m3_plural(heat->channels, "channels"),
            heat->rows, heat->columns);
}

static int print_map(const struct m3_html *html, struct m3_heat *heat, const struct m3_finding *stage, int coarse,
                     struct m3_error *error)
{
    const struct m3_finding *numbers = m3_html_numbers(stage);
    const struct m3_matched matched = m3_html_matched(html, stage);
    const char *letters = m3_tap_table[matched.tap].shape;
    m3_heat_fill(heat, numbers, stage->index, &matched, M3_HEAT_ROWS / (coarse ? 4 : 1),
                 M3_HEAT_COLUMNS / (coarse ? 4 : 1));
    if (heat->rows == 0 || heat->columns == 0) return M3_OK;
    fprintf(html->out,
            "<h3 id=\"heat-%s\"><a href=\"#stage-%s\">%s</a></h3>\n<p class=\"bits\">worst, in the ring: ", stage->tap,
            stage->tap, stage->tap);
    int status = m3_html_finding(html->out, stage, error);
    fputs("</p>\n", html->out);
    draw_map(html->out, heat, numbers, (char)(letters[0] | 32));
    describe(html->out, heat, numbers, letters);
    return status;
}

static void print_heading(FILE *out)
{
    fputs("<h2>Where the error is</h2>\n", out);
    m3_html_note(out,
                 "|got - want| of each element divided by its tolerance, over rows and channels, for the stages "
                 "that fail. A worse cell is darker on a light background and brighter on a dark one, and its line is "
                 "higher. Nothing is drawn where got equals want.");
}

int m3_html_heat_maps(const struct m3_html *html, struct m3_error *error)
{
    const struct m3_judgement *c = html->subject->judgement;
    struct m3_heat *heat = malloc(sizeof *heat);
    if (heat == NULL) return m3_fail_memory(error, "heat map", sizeof *heat);
    int status = M3_OK;
    int64_t maps = 0;
    for (int64_t i = 0; i < c->count && status == M3_OK; i++) {
        const struct m3_finding *s = &c->findings[i];
        if (!(m3_html_numbers(s)->off.allowed_max > 0) || !m3_finding_is_wrong(s)) continue;
        if (maps == 0) print_heading(html->out);
        if (maps++ < M3_HTML_FINE_MAPS + M3_HTML_COARSE_MAPS)
            status = print_map(html, heat, s, maps > M3_HTML_FINE_MAPS, error);
    }
    if (maps > M3_HTML_FINE_MAPS + M3_HTML_COARSE_MAPS)
        fprintf(html->out,
                "<p>%" PRId64 " more stages fail and have no map here; <code>--taps</code> selects others."
                "</p>\n",
                maps - M3_HTML_FINE_MAPS - M3_HTML_COARSE_MAPS);
    free(heat);
    return status;
}
