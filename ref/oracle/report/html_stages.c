#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "io/markup.h"
#include "model/taps.h"
#include "oracle/error/operators.h"
#include "oracle/report/private/format.h"
#include "oracle/report/private/html.h"

/* Pixels: the picture of all stages; the bars of a row. */
enum { LEFT = 56, WIDTH = 1000, HEIGHT = 190, ABOVE = 18, BELOW = 44, BARS = 280 };

/* Decades of relative error, one scale for the whole page. */
struct scale {
    int low, high;
};

static int has_numbers(const struct m3_finding *stage) { return !stage->selection && m3_is_judged(stage->verdict); }

/* Does the whole error have a limit? Not if the stage is judged by its operator's bounds: most of it may be
 * inherited. */
static int has_limit(const struct m3_finding *stage) { return stage->n < 0; }

/* Covers all errors and allowances that are above 0 and finite, but at most the 18 largest decades. */
static struct scale scale_of(const struct m3_judgement *comparison)
{
    double least = INFINITY, most = 0;
    for (int64_t i = 0; i < comparison->count; i++) {
        const struct m3_finding *s = &comparison->findings[i];
        const struct m3_distance *off = &m3_html_numbers(s)->off;
        const double values[] = { off->rel_l2, off->max_rel, off->allowed_l2, off->allowed_max };
        for (int k = 0; has_numbers(s) && k < (has_limit(s) ? 4 : 2); k++) {
            if (!(values[k] > 0) || isinf(values[k])) continue;
            least = fmin(least, values[k]);
            most = fmax(most, values[k]);
        }
    }
    if (most == 0) return (struct scale){ -8, 0 };
    struct scale scale = { (int)floor(log10(least)), (int)ceil(log10(most)) };
    if (scale.high < scale.low + 2) scale.high = scale.low + 2;
    if (scale.low < scale.high - 18) scale.low = scale.high - 18;
    return scale;
}

/* The place of a value on the scale, 0 to 1; 0 is at its start, infinity and NaN are at its end. */
static double place(const struct scale *scale, double value)
{
    if (value == 0) return 0;
    if (!(value < INFINITY)) return 1;
    return fmin(1, fmax(0, (log10(value) - scale->low) / (scale->high - scale->low)));
}

static double y_of(const struct scale *scale, double value) { return ABOVE + HEIGHT * (1 - place(scale, value)); }

static double x_of(const struct m3_judgement *c, int64_t i)
{
    return LEFT + WIDTH * ((double)i + 0.5) / (double)c->count;
}

static void draw_decades(FILE *out, const struct scale *scale)
{
    int step = (scale->high - scale->low + 5) / 6;
    for (int e = scale->low; e <= scale->high; e += step) {
        double y = ABOVE + HEIGHT * (1 - (double)(e - scale->low) / (scale->high - scale->low));
        fprintf(out, "<path class=\"grid\" d=\"M%d %.1fh%d\"/><text class=\"end\" x=\"%d\" y=\"%.1f\">1e%d</text>\n",
                LEFT, y, WIDTH, LEFT - 6, y + 4, e);
    }
}

static int same_group(const struct m3_finding *a, const struct m3_finding *b)
{
    size_t length = m3_group_length(a->tap);
    return length == m3_group_length(b->tap) && strncmp(a->tap, b->tap, length) == 0;
}

static void print_group(FILE *out, const struct m3_finding *stage)
{
    size_t length = m3_group_length(stage->tap);
    m3_print_markup_part(out, length > 0 ? stage->tap : "model", length > 0 ? length : strlen("model"));
}

/* A line before each layer, and its name where there is room. */
static void draw_groups(FILE *out, const struct m3_judgement *c)
{
    double named = -1e9;
    for (int64_t i = 0; i < c->count; i++) {
        if (i > 0 && same_group(&c->findings[i - 1], &c->findings[i])) continue;
        double x = x_of(c, i) - WIDTH / 2.0 / (double)c->count;
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %dv%d\"/>", x, ABOVE, HEIGHT + 22);
        if (x < named || x > LEFT + WIDTH - 40) continue;
        fprintf(out, "<text x=\"%.1f\" y=\"%d\">", x + 3, ABOVE + HEIGHT + 34);
        print_group(out, &c->findings[i]);
        fputs("</text>\n", out);
        named = x + 96;
    }
}

/* One path of marks for all stages with a verdict: M x y, then `mark`. Stages without numbers are below the axis. */
static void draw_marks(FILE *out, const struct m3_judgement *c, const struct scale *scale, enum m3_verdict verdict,
                       const char *name, const char *mark)
{
    fprintf(out, "<path class=\"%s\" d=\"M0 0", name);
    for (int64_t i = 0; i < c->count; i++) {
        const struct m3_finding *s = &c->findings[i];
        if (s->verdict != verdict) continue;
        double y = has_numbers(s) && !isnan(m3_html_numbers(s)->off.rel_l2)
                       ? y_of(scale, m3_html_numbers(s)->off.rel_l2)
                       : ABOVE + HEIGHT + 14;
        fprintf(out, "M%.1f %.1f%s", x_of(c, i), y, mark);
    }
    fputs("\"/>\n", out);
}

static void draw_limits(FILE *out, const struct m3_judgement *c, const struct scale *scale)
{
    double half = fmax(1.5, 0.4 * WIDTH / (double)c->count);
    fputs("<path class=\"limit\" d=\"M0 0", out);
    for (int64_t i = 0; i < c->count; i++)
        if (has_numbers(&c->findings[i]) && has_limit(&c->findings[i]))
            fprintf(out, "M%.1f %.1fh%.1f", x_of(c, i) - half,
                    y_of(scale, m3_html_numbers(&c->findings[i])->off.allowed_l2), 2 * half);
    fputs("\"/>\n", out);
}

/* Relative L2 of all stages against their allowances. */
static void draw_all(FILE *out, const struct m3_judgement *c, const struct scale *scale)
{
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"relative L2 error of every stage\">\n",
            LEFT + WIDTH + 8, ABOVE + HEIGHT + BELOW);
    draw_decades(out, scale);
    draw_groups(out, c);
    draw_limits(out, c, scale);
    draw_marks(out, c, scale, M3_VERDICT_PASS, "dots", "h0");
    draw_marks(out, c, scale, M3_VERDICT_SUSPECT, "cross", "m-4 3l4 -7l4 7z");
    draw_marks(out, c, scale, M3_VERDICT_FAIL, "cross", "m-3 -3l6 6m0 -6l-6 6");
    draw_marks(out, c, scale, M3_VERDICT_NOT_JUDGED, "axis", "m-3 0h6");
    draw_marks(out, c, scale, M3_VERDICT_NOT_COMPARABLE, "axis", "m-3 -3h6v6h-6z");
    fputs("</svg>\n", out);
    m3_html_note(out, "Relative L2 of each stage, in the order of execution. Dot: pass; cross: fail; triangle: "
                      "suspect; short horizontal line: the tolerance. Below the axis: selections, and stages "
                      "without a verdict (line: not judged; square: not comparable).");
}

/* One bar from the start of the scale, in another colour beyond the allowance. */
static void draw_bar(FILE *out, const struct scale *scale, double value, double allowed, int y)
{
    double end = BARS * place(scale, value), limit = BARS * place(scale, allowed);
    if (isnan(value)) return;
    if (value != 0) fprintf(out, "<path class=\"bar\" d=\"M0 %dh%.1f\"/>", y, fmax(1, fmin(end, limit)));
    if (end > limit) fprintf(out, "<path class=\"over\" d=\"M%.1f %dH%.1f\"/>", limit, y, end);
    if (allowed > 0 && allowed < INFINITY) fprintf(out, "<path class=\"limit\" d=\"M%.1f %dv6\"/>", limit, y - 3);
}

static void print_links(const struct m3_html *html, const char *tap_name)
{
    enum m3_tap tap;
    int64_t layer;
    if (m3_tap_parse(tap_name, &tap, &layer) != 0) return;
    const char *const *headings = m3_tap_sections(m3_graph_last(&html->every_tap, tap));
    for (int i = 0; i < 2 && headings[i] != NULL; i++) {
        fputs(i > 0 ? ", " : "", html->out);
        m3_html_link(html, headings[i]);
    }
}

/* A number, under which all its digits are shown, and what is allowed where that is known. */
static void print_number(FILE *out, double value, double allowed, const char *more)
{
    if (isnan(value)) {
        fputs("<td class=\"number\" title=\"not measured\">-</td>", out);
        return;
    }
    fprintf(out, "<td class=\"number\" title=\"%.17g", value);
    if (!isnan(allowed)) fprintf(out, " of %.17g", allowed);
    fprintf(out, "%s\">%.3g</td>", more, value);
}

static void print_numbers(FILE *out, const struct m3_finding *s, const struct scale *scale)
{
    const struct m3_distance *off = &m3_html_numbers(s)->off;
    char rank[40] = "";
    if (!isnan(s->percentile)) snprintf(rank, sizeof rank, ", percentile %.3g", s->percentile);
    print_number(out, off->rel_l2, off->allowed_l2, rank);
    print_number(out, off->max_rel, off->allowed_max, "");
    fputs("<td class=\"number\">", out);
    m3_print_share(out, s->tiers.headroom, 0);
    fprintf(out, "</td><td class=\"bars\"><svg viewBox=\"0 0 %d 16\" width=\"%d\" height=\"16\">", BARS, BARS);
    draw_bar(out, scale, off->rel_l2, has_limit(s) ? off->allowed_l2 : INFINITY, 4);
    draw_bar(out, scale, off->max_rel, has_limit(s) ? off->allowed_max : INFINITY, 12);
    fputs("</svg></td>", out);
}

/* By what the stage was judged, and what the words of its tiers mean. */
static void print_tooltip(FILE *out, const struct m3_finding *s)
{
    if (s->judged_by == M3_BY_NOTHING && s->tiers.tiers == 0) return;
    fputs(" title=\"", out);
    if (s->judged_by != M3_BY_NOTHING) fprintf(out, "judged by: %s", m3_basis_text(s->judged_by));
    for (int bit = 0; bit < M3_TIERS && !s->selection; bit++) {
        if (!(s->tiers.tiers & 1 << bit)) continue;
        fputs("; ", out);
        m3_print_tiers(out, 1 << bit, "");
        fprintf(out, ": %s", m3_tier_words((enum m3_tier)(1 << bit)));
    }
    fputs("\"", out);
}

static int print_row(const struct m3_html *html, const struct m3_finding *s, const struct scale *scale,
                     struct m3_error *error)
{
    FILE *out = html->out;
    int status = M3_OK;
    fprintf(out, "<tr id=\"stage-%s\"><td", s->tap);
    print_tooltip(out, s);
    fputs(">", out);
    m3_html_verdict(out, s->verdict);
    fprintf(out, "</td><td title=\"%s\">%s</td><td class=\"small\">", s->tap, s->tap);
    print_links(html, s->tap);
    fputs("</td>", out);
    if (has_numbers(s)) {
        print_numbers(out, s, scale);
    } else if (s->selection && m3_is_judged(s->verdict)) {
        const struct m3_finding *sets = m3_html_numbers(s);
        const int64_t decisions = m3_decisions(sets);
        fprintf(out, "<td class=\"words\" colspan=\"4\">%s: %" PRId64 " of %" PRId64 " %s</td>",
                m3_choice_text(s->choice), m3_differing(sets), decisions,
                decisions == 1 ? "set differs" : "sets differ");
    } else {
        fputs("<td class=\"words\" colspan=\"4\">", out);
        status = m3_html_finding(out, s, error);
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
    return status;
}

/* What the words mean with which a stage fails or is suspect. */
static void print_words(const struct m3_html *html)
{
    const struct m3_judgement *c = html->subject->judgement;
    int tiers = 0;
    for (int64_t i = 0; i < c->count; i++)
        if (m3_is_judged(c->findings[i].verdict) && !c->findings[i].selection) tiers |= c->findings[i].tiers.tiers;
    if (tiers == 0) return;
    fputs("<dl class=\"small\">\n", html->out);
    for (int bit = 0; bit < M3_TIERS; bit++) {
        if (!(tiers & 1 << bit)) continue;
        fputs("<dt>", html->out);
        m3_print_tiers(html->out, 1 << bit, "");
        fprintf(html->out, "</dt><dd>%s</dd>\n", m3_tier_words((enum m3_tier)(1 << bit)));
    }
    fputs("</dl>\n<p class=\"quiet\">These words are explained in ", html->out);
    m3_html_link(html, M3_HTML_TIERS);
    fputs(".</p>\n", html->out);
}

/* The taps of the reference that the candidate lacks. */
static void print_missing(const struct m3_html *html)
{
    const struct m3_judgement *c = html->subject->judgement;
    if (c->missing == 0) return;
    fprintf(html->out, "<details><summary>Not held by the candidate: %" PRId64 " %s</summary>\n<p class=\"small\">",
            c->missing, m3_plural(c->missing, "taps"));
    for (int64_t i = 0; c->missing_taps != NULL && i < c->missing; i++) {
        fputs(i > 0 ? ", " : "", html->out);
        m3_print_markup(html->out, c->missing_taps[i]);
    }
    fputs("</p></details>\n", html->out);
}

/* Prints the decades above the bars of a group; their gridlines are a background. */
static void print_head(FILE *out, const struct scale *scale)
{
    int decades = scale->high - scale->low, step = (decades + 5) / 6;
    fprintf(out,
            "<table class=\"stages\"><colgroup><col style=\"width:120px\"/><col/><col style=\"width:240px\"/>"
            "<col style=\"width:84px\"/><col style=\"width:84px\"/><col style=\"width:104px\"/>"
            "<col style=\"width:%dpx\"/></colgroup>\n<thead><tr><th>verdict</th><th>tap</th><th>SPEC</th>"
            "<th class=\"number\" title=\"|got - want| / |want| in L2\">rel L2</th>"
            "<th class=\"number\" title=\"largest |got - want| over the largest |want|\">max</th>"
            "<th class=\"number\" title=\"the largest share of what is allowed that an element uses; above "
            "100 %% the stage fails\">of allowed</th>"
            "<th><svg viewBox=\"0 0 %d 14\" width=\"%d\" height=\"14\">",
            BARS + 16, BARS, BARS);
    for (int e = scale->low; e < scale->high; e += step)
        fprintf(out, "<text x=\"%.1f\" y=\"11\">1e%d</text>", (double)BARS * (e - scale->low) / decades, e);
    fputs("</svg></th></tr></thead>\n<tbody>\n", out);
}

/* The line shown for a folded layer. */
static void print_group_line(FILE *out, const struct m3_finding *stages, int64_t count)
{
    const struct m3_finding *worst = NULL;
    int64_t of[M3_VERDICT_NOT_COMPARABLE + 1] = { 0 };
    for (int64_t i = 0; i < count; i++) {
        of[stages[i].verdict]++;
        if (has_numbers(&stages[i]) && (worst == NULL || stages[i].tiers.headroom > worst->tiers.headroom))
            worst = &stages[i];
    }
    enum m3_verdict verdict = of[M3_VERDICT_FAIL] > 0             ? M3_VERDICT_FAIL
                              : of[M3_VERDICT_SUSPECT] > 0        ? M3_VERDICT_SUSPECT
                              : of[M3_VERDICT_NOT_COMPARABLE] > 0 ? M3_VERDICT_NOT_COMPARABLE
                              : of[M3_VERDICT_PASS] > 0           ? M3_VERDICT_PASS
                                                                  : M3_VERDICT_NOT_JUDGED;
    fputs("<summary>", out);
    m3_html_verdict(out, verdict);
    fputs(" <strong>", out);
    print_group(out, stages);
    fprintf(out, "</strong> <span class=\"quiet\">%" PRId64 " of %" PRId64 " %s pass", of[M3_VERDICT_PASS], count,
            m3_plural(count, "stages"));
    if (worst != NULL && isfinite(worst->tiers.headroom))
        fprintf(out, "; worst %.3g%% of what is allowed, at %s", 100 * worst->tiers.headroom, worst->tap);
    else if (worst != NULL) fprintf(out, "; worst at %s, where nothing is allowed", worst->tap);
    fputs("</span></summary>\n", out);
}

static int print_groups(const struct m3_html *html, const struct scale *scale, struct m3_error *error)
{
    enum { UNFOLDED = 300 };            /* a comparison with at most so many stages is unfolded */
    const struct m3_judgement *c = html->subject->judgement;
    int status = M3_OK;
    for (int64_t i = 0, end; i < c->count && status == M3_OK; i = end) {
        for (end = i + 1; end < c->count && same_group(&c->findings[i], &c->findings[end]);) end++;
        int first = c->first != NULL && c->first >= c->findings + i && c->first < c->findings + end;
        fprintf(html->out, "<details%s>", first || c->count <= UNFOLDED ? " open=\"open\"" : "");
        print_group_line(html->out, c->findings + i, end - i);
        print_head(html->out, scale);
        for (int64_t k = i; k < end && status == M3_OK; k++) status = print_row(html, &c->findings[k], scale, error);
        fputs("</tbody></table></details>\n", html->out);
    }
    return status;
}

int m3_html_stages(const struct m3_html *html, struct m3_error *error)
{
    const struct m3_judgement *c = html->subject->judgement;
    if (c->count == 0) return M3_OK;
    const struct scale scale = scale_of(c);
    FILE *out = html->out;
    fputs("<h2>Stages</h2>\n", out);
    draw_all(out, c, &scale);
    fprintf(out,
            "<style>.bars svg { background: repeating-linear-gradient(to right, var(--grid) 0 1px, transparent "
            "1px %.3fpx) }</style>\n",
            (double)BARS / (scale.high - scale.low));
    m3_html_note(out,
                 "rel L2: |got - want| / |want| in L2. max: the largest |got - want| over the largest |want|. "
                 "The bars are on a logarithmic scale, rel L2 above max. The vertical mark is the tolerance; the part "
                 "of a bar beyond it has another colour. Point at a number to see all its digits, and at a verdict to "
                 "see by what it was reached.");
    print_words(html);
    print_missing(html);
    return print_groups(html, &scale, error);
}
