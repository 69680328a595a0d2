/* The sections of SPEC.md and VERDICTS.md to which the page links, so that it can be read without them. */
#include <ctype.h>
#include <string.h>

#include "io/markup.h"
#include "model/taps.h"
#include "oracle/error/operators.h"
#include "oracle/report/private/html.h"

extern const char m3_specification[], m3_specification_end[], m3_verdicts[], m3_verdicts_end[];

enum { MOST_SECTIONS = 64 };

struct sections {
    const char *headings[MOST_SECTIONS];
    int count;
};

static void add(struct sections *all, const char *heading)
{
    for (int i = 0; i < all->count; i++)
        if (strcmp(all->headings[i], heading) == 0) return;
    if (all->count < MOST_SECTIONS) all->headings[all->count++] = heading;
}

/* The level of a heading, 1 for "# ..": 0 for any other line. */
static int level_of(const char *line, const char *end)
{
    int level = 0;
    while (line + level < end && line[level] == '#') level++;
    return level > 0 && line + level < end && line[level] == ' ' ? level : 0;
}

static const char *next_line(const char *at, const char *end)
{
    const char *line = memchr(at, '\n', (size_t)(end - at));
    return line ? line + 1 : end;
}

/* The text of a section without its heading, up to the next of its level; NULL: not in this document. */
static const char *find(size_t *length, const char *heading, const char *begin, const char *end)
{
    const size_t size = strlen(heading);
    for (const char *at = begin, *next; at < end; at = next) {
        next = next_line(at, end);
        const int level = level_of(at, end);
        if (level == 0 || (size_t)(next - at) != (size_t)level + 2 + size) continue;
        if (memcmp(at + level + 1, heading, size) != 0) continue;
        const char *stop = next;
        for (int other = 0; stop < end && (other == 0 || other > level);) {
            other = level_of(stop, end);
            if (other == 0 || other > level) stop = next_line(stop, end);
        }
        *length = (size_t)(stop - next);
        return next;
    }
    return NULL;
}

static void print_section(FILE *out, const char *heading)
{
    size_t length;
    const char *text = find(&length, heading, m3_specification, m3_specification_end), *document = "SPEC.md";
    if (!text) {
        text = find(&length, heading, m3_verdicts, m3_verdicts_end);
        document = "VERDICTS.md";
    }
    if (!text) return;
    fputs("<details class=\"section\"><summary>", out);
    m3_print_markup(out, heading);
    fprintf(out, " <span class=\"quiet\">%s</span></summary>\n<div id=\"spec-", document);
    m3_print_anchor(out, heading);
    fputs("\">\n", out);
    m3_html_markdown(out, text, length);
    fputs("</div></details>\n", out);
}

void m3_html_link(const struct m3_html *html, const char *heading)
{
    fputs("<a href=\"", html->out);
    if (html->subject->spec) m3_print_markup(html->out, html->subject->spec);
    fputs(html->subject->spec ? "#" : "#spec-", html->out);
    m3_print_anchor(html->out, heading);
    fputs("\">", html->out);
    m3_print_markup(html->out, heading);
    fputs("</a>", html->out);
}

void m3_html_sections(const struct m3_html *html)
{
    const struct m3_judgement *c = html->subject->judgement;
    struct sections all = { .count = 0 };
    if (html->subject->spec) return;
    if (html->subject->cause.section) add(&all, html->subject->cause.section);
    for (int64_t i = 0; i < c->count; i++) {
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(c->findings[i].tap, &tap, &layer) != 0) continue;
        const char *const *headings = m3_tap_sections(m3_graph_last(&html->every_tap, tap));
        for (int k = 0; k < 2 && headings[k]; k++) add(&all, headings[k]);
    }
    add(&all, M3_HTML_TIERS);
    fputs("<h2 id=\"sections\">The sections that this page links to</h2>\n", html->out);
    for (int i = 0; i < all.count; i++) print_section(html->out, all.headings[i]);
}
