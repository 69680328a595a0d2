/* The parts of the HTML page of a comparison. Used by the page_*.c and report_html.c alone.
 *
 * All of it is XML too: every element is closed. Colours are classes of page_style.c, light and dark; what a colour
 * says a shape or a size says as well. */
#ifndef M3_ORACLE_PAGE_H
#define M3_ORACLE_PAGE_H

#include "oracle/align.h"
#include "oracle/report.h"

struct m3_page {
    FILE *out;
    const struct m3_report_subject *subject;
    struct m3_side reference, candidate;
};

/* In the order of the page. M3_INTERNAL if memory is short. */
void m3_page_style(FILE *out);
int m3_page_stages(const struct m3_page *page, struct m3_error *error);
int m3_page_heat_maps(const struct m3_page *page, struct m3_error *error);
int m3_page_selections(const struct m3_page *page, struct m3_error *error);

/* Which heat maps and pictures there are: those of the first failing stages, or of the first differing ones. */
enum { M3_PAGE_FINE_MAPS = 12, M3_PAGE_COARSE_MAPS = 88, M3_PAGE_SELECTIONS = 12 };

/* "x fail": a sign and a word. */
void m3_page_verdict(FILE *out, enum m3_verdict verdict);
/* A paragraph of explanation; `text` is markup. */
void m3_page_note(FILE *out, const char *text);
/* What a stage that does not pass has to say. M3_INTERNAL. */
int m3_page_finding(FILE *out, const struct m3_stage *stage, struct m3_error *error);
/* The tensors of a stage, with what aligns them. */
struct m3_matched m3_page_matched(const struct m3_page *page, const struct m3_stage *stage);
/* <path class="NAME"> of all runs of `value` in rows of cells: a cell is a unit wide and high, and its line runs
 * through the height `at`, 0 to 1. Nothing if there is none. */
void m3_page_runs(FILE *out, const char *name, const signed char *cells, int rows, int columns, int value, double at);

#endif
