/* The parts of the HTML page of a comparison. Used by html*.c alone.
 *
 * All of it is XML too: every element is closed. Colours are classes of html_style.c, light and dark; what a colour
 * says a shape or a size says as well. */
#ifndef M3_ORACLE_REPORT_PRIVATE_HTML_H
#define M3_ORACLE_REPORT_PRIVATE_HTML_H

#include "oracle/judge/align.h"
#include "oracle/report/report.h"

struct m3_html {
    FILE *out;
    const struct m3_report_subject *subject;
    struct m3_side reference, candidate;
};

/* In the order of the page. M3_INTERNAL if memory is short. */
void m3_html_style(FILE *out);
int m3_html_stages(const struct m3_html *html, struct m3_error *error);
int m3_html_heat_maps(const struct m3_html *html, struct m3_error *error);
int m3_html_selections(const struct m3_html *html, struct m3_error *error);

/* Which heat maps and pictures there are: those of the first failing stages, or of the first differing ones. */
enum { M3_HTML_FINE_MAPS = 12, M3_HTML_COARSE_MAPS = 88, M3_HTML_SELECTIONS = 12 };

/* "x fail": a sign and a text. */
void m3_html_verdict(FILE *out, enum m3_verdict verdict);
/* A paragraph of explanation; `text` is markup. */
void m3_html_note(FILE *out, const char *text);
/* What a stage that does not pass has to say. M3_INTERNAL. */
int m3_html_finding(FILE *out, const struct m3_stage *stage, struct m3_error *error);
/* The tensors of a stage, with what aligns them. */
struct m3_matched m3_html_matched(const struct m3_html *html, const struct m3_stage *stage);
/* <path class="NAME"> of all runs of `value` in rows of cells: a cell is a unit wide and high, and its line runs
 * through the height `at`, 0 to 1. Nothing if there is none. */
void m3_html_runs(FILE *out, const char *name, const signed char *cells, int rows, int columns, int value, double at);

#endif
