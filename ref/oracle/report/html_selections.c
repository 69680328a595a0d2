#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "model/taps.h"
#include "oracle/judge/judge.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/html.h"

/* Cells of a picture of blocks; ids drawn are below MOST_IDS; ids of a decision in the ledger; pixels of a load. */
enum { ROWS = 64, COLUMNS = 128, MOST_IDS = 1 << 16, IDS_SHOWN = 64, LOAD_HIGH = 96, LOAD_BASE = 112 };

/* One tap of ids and how to walk it. A decision has `width` ids, and a row has `groups` decisions. */
struct choices {
    const struct m3_finding *stage;
    enum m3_verdict verdict;
    const struct m3_tensor *want, *got;
    struct m3_row_walk walk;
    int64_t groups, width, ids;         /* ids: all are below it */
    int blocks;
};

static int64_t greatest_id(const struct m3_tensor *tensor)
{
    int64_t most = -1;
    for (int64_t i = 0; i < tensor->count; i++) {
        int64_t id = m3_id_at(tensor, i);
        if (id < MOST_IDS) most = m3_max(most, id);
    }
    return most;
}

/* Returns 0 if a stage has no judged decisions. */
static int begin(struct choices *c, const struct m3_html *html, const struct m3_finding *found)
{
    const struct m3_finding *stage = m3_html_numbers(found);
    if (!stage->selection || stage->rows == 0 || stage->verdict == M3_VERDICT_NOT_COMPARABLE) return 0;
    const struct m3_matched matched = m3_html_matched(html, found);
    *c = (struct choices){ .stage = stage,
                           .verdict = found->verdict,
                           .want = matched.want,
                           .got = matched.got,
                           .blocks = matched.tap == M3_TAP_INDEX_BLOCKS };
    if (m3_row_walk_begin(&c->walk, &matched) != NULL) return 0;
    c->groups = c->blocks ? c->want->shape[1] : 1;
    c->width = c->want->shape[c->want->rank - 1];
    c->ids = m3_id_limit(&matched);
    if (c->ids > MOST_IDS) c->ids = 1 + m3_max(greatest_id(c->want), greatest_id(c->got));
    return c->width > 0 && c->ids > 0;
}

static int holds(const struct m3_tensor *ids, int64_t decision, int64_t width, int64_t id)
{
    for (int64_t i = 0; i < width; i++)
        if (m3_id_at(ids, decision * width + i) == id) return 1;
    return 0;
}

/* The ids of one side, with those that the other side does not have underlined. */
static void print_ids(FILE *out, const struct m3_tensor *ids, int64_t decision, const struct m3_tensor *other,
                      int64_t other_decision, int64_t width)
{
    for (int64_t i = 0; i < m3_min(width, IDS_SHOWN); i++) {
        int64_t id = m3_id_at(ids, decision * width + i);
        fprintf(out, holds(other, other_decision, width, id) ? " %" PRId64 : " <b>%" PRId64 "</b>", id);
    }
    if (width > IDS_SHOWN) fputs(" ..", out);
}

/* Prints the decision at the stage's place: the first of the worst kind. */
static void print_decision(FILE *out, const struct choices *c)
{
    const struct m3_finding *s = c->stage;
    struct m3_row_walk walk = c->walk;
    struct m3_row_pair row;
    while (m3_row_walk_next(&walk, &row)) {
        if (row.number != s->index[0]) continue;
        int64_t group = c->blocks ? s->index[1] : 0, want = row.want * c->groups + group,
                got = row.got * c->groups + group;
        m3_print_place(out, s);
        fputs(" want <code>", out);
        print_ids(out, c->want, want, c->got, got, c->width);
        fputs("</code> got <code>", out);
        print_ids(out, c->got, got, c->want, want, c->width);
        fputs("</code>", out);
        if (s->note[0]) fprintf(out, " %s", s->note);
        if (!isnan(s->gap)) fprintf(out, "; gap %.3g, bound %.3g, scores of the %s", s->gap, s->bound, s->scores);
        return;
    }
}

static void print_ledger_row(FILE *out, const struct choices *c)
{
    const struct m3_finding *s = c->stage;
    fputs("<tr><td>", out);
    m3_html_verdict(out, c->verdict);
    fprintf(out, "</td><td><a href=\"#stage-%s\">%s</a></td><td class=\"number\">%" PRId64 "</td>", s->tap, s->tap,
            s->rows);
    for (int k = 0; k < M3_CHOICES; k++) fprintf(out, "<td class=\"number\">%" PRId64 "</td>", s->choices[k]);
    fputs("<td>", out);
    if (s->rank > 0) print_decision(out, c);
    fputs("</td></tr>\n", out);
}

static void print_ledger(const struct m3_html *html)
{
    const struct m3_judgement *all = html->subject->judgement;
    struct choices c;
    m3_html_note(html->out,
                 "A decision is the set that one row chooses; for blocks, one row and group. The table shows the "
                 "first decision of the worst kind; ids that are missing on the other side are underlined. A gap "
                 "below 0 means that the scores themselves choose another set; the candidate may choose as it "
                 "did only if its scores can be off by the bound.");
    fputs("<table class=\"ledger\"><thead><tr><th>verdict</th><th>tap</th><th class=\"number\">decisions</th>",
          html->out);
    for (int k = 0; k < M3_CHOICES; k++) fprintf(html->out, "<th class=\"number\">%s</th>", m3_choice_text(k));
    fputs("<th>first of the worst kind</th></tr></thead>\n<tbody>\n", html->out);
    for (int64_t i = 0; i < all->count; i++)
        if (begin(&c, html, &all->findings[i])) print_ledger_row(html->out, &c);
    fputs("</tbody></table>\n", html->out);
    if (all->next_token.tap == NULL) return;
    fputs("<p>Next token, of ", html->out);
    fprintf(html->out, "<a href=\"#stage-%s\">%s</a>: ", all->next_token.tap, all->next_token.tap);
    m3_print_choices(html->out, &all->next_token);
    fputs("</p>\n", html->out);
}

/* Cells of one group: which blocks each side selected, and where the sets differ. */
struct picture {
    int rows, columns;
    int64_t first, last;                /* row numbers */
    signed char want[ROWS * COLUMNS], got[ROWS * COLUMNS], differ[ROWS * COLUMNS];
};

/* Marks the ids of one decision in a row of cells, and those that the other side does not have in another. */
static void mark(signed char *chosen, signed char *differ, const struct m3_tensor *ids, int64_t decision,
                 const struct m3_tensor *other, int64_t other_decision, const struct choices *c, int columns)
{
    for (int64_t k = 0; k < c->width; k++) {
        int64_t id = m3_id_at(ids, decision * c->width + k);
        if (id < 0 || id >= c->ids) continue;
        chosen[id * columns / c->ids] = 1;
        if (!holds(other, other_decision, c->width, id)) differ[id * columns / c->ids] = 1;
    }
}

static void fill_picture(struct picture *p, const struct choices *c, int64_t group)
{
    struct m3_row_walk walk = c->walk;
    struct m3_row_pair row;
    int64_t rows = m3_row_walk_count(walk);
    *p = (struct picture){ .rows = (int)m3_min(rows, ROWS), .columns = (int)m3_min(c->ids, COLUMNS) };
    for (int64_t i = 0; m3_row_walk_next(&walk, &row); i++) {
        int64_t cells = i * p->rows / rows * p->columns;
        int64_t want = row.want * c->groups + group, got = row.got * c->groups + group;
        if (i == 0) p->first = row.number;
        p->last = row.number;
        mark(p->want + cells, p->differ + cells, c->want, want, c->got, got, c, p->columns);
        mark(p->got + cells, p->differ + cells, c->got, got, c->want, want, c, p->columns);
    }
}

static void draw_differences(FILE *out, const struct picture *p)
{
    int any = 0;
    for (int i = 0; i < p->rows * p->columns; i++) {
        if (!p->differ[i]) continue;
        if (!any++) fputs("<path class=\"differ\" d=\"", out);
        fprintf(out, "M%d %dh1v1h-1z", i % p->columns, i / p->columns);
    }
    if (any) fputs("\"/>\n", out);
}

static void draw_picture(FILE *out, const struct picture *p, const struct choices *c, int64_t group)
{
    int wide = (int)m3_max(3, m3_min(16, 480 / p->columns)), high = (int)m3_max(6, m3_min(16, 420 / p->rows));
    int width = 56 + p->columns * wide + 8, height = 20 + p->rows * high + 18;
    if (width < 120) width = 120;
    fprintf(out,
            "<svg class=\"blocks\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
            "aria-label=\"blocks of %s, group %" PRId64 "\">\n",
            width, height, width, height, c->stage->tap, group);
    fprintf(out,
            "<text x=\"56\" y=\"12\">group %" PRId64 "</text>\n<text class=\"end\" x=\"50\" y=\"30\">t=%" PRId64
            "</text>\n<text class=\"end\" x=\"50\" y=\"%d\">t=%" PRId64 "</text>\n",
            group, p->first, 16 + p->rows * high, p->last);
    fprintf(out,
            "<text x=\"56\" y=\"%d\">block 0 .. %" PRId64 "</text>\n<rect class=\"panel\" x=\"56\" y=\"20\" "
            "width=\"%d\" height=\"%d\"/>\n<g transform=\"translate(56 20) scale(%d %d)\">\n",
            34 + p->rows * high, c->ids - 1, p->columns * wide, p->rows * high, wide, high);
    m3_page_runs(out, "want", p->want, p->rows, p->columns, 1, 0.27);
    m3_page_runs(out, "got", p->got, p->rows, p->columns, 1, 0.73);
    draw_differences(out, p);
    fputs("</g></svg>\n", out);
}

static int print_blocks(FILE *out, const struct choices *c, struct m3_error *error)
{
    struct picture *p = malloc(sizeof *p);
    if (p == NULL) return m3_fail_memory(error, "picture of blocks", sizeof *p);
    fputs("<div class=\"side\">\n", out);
    for (int64_t group = 0; group < c->groups; group++) {
        fill_picture(p, c, group);
        draw_picture(out, p, c, group);
    }
    fputs("</div>\n", out);
    m3_html_note(out, "Rows of the sequence by blocks. Upper, grey line of a cell: chosen by the reference; lower, "
                      "blue line: chosen by the candidate; frame: sets of the cell differ.");
    free(p);
    return M3_OK;
}

static void count_row(int64_t *load, const struct m3_tensor *ids, int64_t row, const struct choices *c)
{
    for (int64_t k = 0; k < c->width; k++) {
        int64_t id = m3_id_at(ids, row * c->width + k);
        if (id >= 0 && id < c->ids) load[id]++;
    }
}

/* Counts the rows that selected each expert; returns the largest count, at least 1. */
static int64_t count_load(int64_t *want, int64_t *got, const struct choices *c)
{
    struct m3_row_walk walk = c->walk;
    struct m3_row_pair row;
    int64_t most = 1;
    while (m3_row_walk_next(&walk, &row)) {
        count_row(want, c->want, row.want, c);
        count_row(got, c->got, row.got, c);
    }
    for (int64_t e = 0; e < c->ids; e++) most = m3_max(most, m3_max(want[e], got[e]));
    return most;
}

/* The bar of the reference and the line of the candidate, `each` wide, `unit` high for a row. */
static void draw_expert(FILE *out, int64_t expert, int64_t want, int64_t got, double x, double each, double unit)
{
    if (want > 0)
        fprintf(out, "<path class=\"load\" stroke-width=\"%.1f\" d=\"M%.1f %dV%.1f\"/>", 0.8 * each, x + each / 2,
                LOAD_BASE, LOAD_BASE - unit * (double)want);
    fprintf(out,
            "<path class=\"%s\" d=\"M%.1f %.1fh%.1f\"><title>expert %" PRId64 ": reference %" PRId64
            ", candidate %" PRId64 "</title></path>\n",
            want == got ? "taken" : "moved", x, LOAD_BASE - unit * (double)got, each, expert, want, got);
}

static int print_load(FILE *out, const struct choices *c, struct m3_error *error)
{
    enum { LEFT = 56, WIDE = 960, WIDTH = LEFT + WIDE + 8, HEIGHT = LOAD_BASE + 22 };
    int64_t *want = calloc((size_t)c->ids, 2 * sizeof *want);
    if (want == NULL) return m3_fail_memory(error, "load of experts", (size_t)c->ids * 2 * sizeof *want);
    int64_t *got = want + c->ids, most = count_load(want, got, c);
    double each = fmin(40, (double)WIDE / (double)c->ids), unit = LOAD_HIGH / (double)most;
    fprintf(out,
            "<svg class=\"experts\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" "
            "aria-label=\"rows per expert of %s\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, c->stage->tap);
    fprintf(out,
            "<text class=\"end\" x=\"%d\" y=\"%d\">%" PRId64 "</text><text class=\"end\" x=\"%d\" y=\"%d\">0"
            "</text>\n",
            LEFT - 6, LOAD_BASE - LOAD_HIGH + 8, most, LEFT - 6, LOAD_BASE);
    fprintf(out, "<text x=\"%d\" y=\"%d\">expert 0 .. %" PRId64 "</text>\n<path class=\"axis\" d=\"M%d %dh%.1f\"/>\n",
            LEFT, LOAD_BASE + 16, c->ids - 1, LEFT, LOAD_BASE, each * (double)c->ids);
    for (int64_t e = 0; e < c->ids; e++) draw_expert(out, e, want[e], got[e], LEFT + each * (double)e, each, unit);
    fputs("</svg>\n", out);
    m3_html_note(out, "Rows that chose each expert. Bar: reference; line across it: candidate, in another colour "
                      "where the two counts differ.");
    free(want);
    return M3_OK;
}

/* Pictures of the first taps of a kind whose sets differ; if none does, of the first tap. */
static int print_pictures(const struct m3_html *html, int blocks, struct m3_error *error)
{
    const struct m3_judgement *all = html->subject->judgement;
    struct choices c;
    int64_t differing = 0, drawn = 0;
    int status = M3_OK;
    for (int64_t i = 0; i < all->count; i++)
        differing += begin(&c, html, &all->findings[i]) && c.blocks == blocks && c.stage->differing > 0;
    for (int64_t i = 0; i < all->count && status == M3_OK; i++) {
        if (!begin(&c, html, &all->findings[i]) || c.blocks != blocks) continue;
        if (differing > 0 && c.stage->differing == 0) continue;
        if (drawn++ == (differing > 0 ? M3_HTML_SELECTIONS : 1)) break;
        fprintf(html->out, "<h3>%s: %s</h3>\n", c.stage->tap, blocks ? "chosen blocks" : "expert load");
        status = blocks ? print_blocks(html->out, &c, error) : print_load(html->out, &c, error);
    }
    if (differing > M3_HTML_SELECTIONS)
        fprintf(html->out,
                "<p>%" PRId64 " more taps differ and have no picture here; <code>--taps</code> selects "
                "others.</p>\n",
                differing - M3_HTML_SELECTIONS);
    return status;
}

int m3_html_selections(const struct m3_html *html, struct m3_error *error)
{
    const struct m3_judgement *all = html->subject->judgement;
    int64_t i = 0;
    while (i < all->count && !all->findings[i].selection) i++;
    if (i == all->count) return M3_OK;
    fputs("<h2>Selections</h2>\n", html->out);
    print_ledger(html);
    int status = print_pictures(html, 1, error);
    return status ? status : print_pictures(html, 0, error);
}
