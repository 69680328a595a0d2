/* The parts of the HTML page of a comparison. Used only by html*.c.
 *
 * The page is also XML: every element is closed. Colours are classes of page.c, light and dark; every colour is
 * accompanied by a shape or a size with the same meaning. */
#ifndef M3_ORACLE_REPORT_PRIVATE_HTML_H
#define M3_ORACLE_REPORT_PRIVATE_HTML_H

#include "model/graph/graph.h"
#include "oracle/judge/align.h"
#include "oracle/report/report.h"

struct m3_html {
    FILE *out;
    const struct m3_report_subject *subject;
    struct m3_side reference, candidate;
    struct m3_graph every_tap;          /* for the sections of SPEC.md */
};

/* These print the parts in the order of the page. M3_INTERNAL if memory is short. */
int m3_html_stages(const struct m3_html *html, struct m3_error *error);
int m3_html_heat_maps(const struct m3_html *html, struct m3_error *error);
int m3_html_selections(const struct m3_html *html, struct m3_error *error);
void m3_html_sections(const struct m3_html *html);
/* A link to a section of the specification: in the page itself, or where the reader has said. */
void m3_html_link(const struct m3_html *html, const char *heading);
#define M3_HTML_TIERS "7.2 Tiers"
/* Markdown as markup. */
void m3_html_markdown(FILE *out, const char *text, size_t length);

/* The numbers of heat maps and pictures: of the first failing stages, or of the first differing ones. */
enum { M3_HTML_FINE_MAPS = 12, M3_HTML_COARSE_MAPS = 88, M3_HTML_SELECTIONS = 12 };

/* "x fail": a symbol and a text. */
void m3_html_verdict(FILE *out, enum m3_verdict verdict);
/* A paragraph of explanation; `text` is markup. */
void m3_html_note(FILE *out, const char *text);
/* Prints the finding of a stage that does not pass. M3_INTERNAL. */
int m3_html_finding(FILE *out, const struct m3_finding *stage, struct m3_error *error);
/* The finding that has the tensors of both sides and their distance: the comparison with the truth, or itself. */
const struct m3_finding *m3_html_numbers(const struct m3_finding *stage);
/* The tensors of a stage, with the data that aligns them. */
struct m3_matched m3_html_matched(const struct m3_html *html, const struct m3_finding *stage);

#endif
