/* What every report and page shares. Used by the rooms that print. */
#ifndef M3_ORACLE_REPORT_PAGE_H
#define M3_ORACLE_REPORT_PAGE_H

#include <stdio.h>

#include "base/status.h"

/* A self-contained page, light and dark as the reader's system is; `line` stands above everything. The texts may hold
 * any byte. The page is also XML. */
void m3_page_begin(FILE *out, const char *title, const char *line);
void m3_page_end(FILE *out);

/* The style alone, in an element of its own: for pictures too. */
void m3_page_style(FILE *out);
/* <path class="NAME"> of all runs of `value` in rows of cells: a cell is one unit wide and high, and the line runs at
 * the height `at`, 0 to 1. Prints nothing if there is no run. */
void m3_page_runs(FILE *out, const char *name, const signed char *cells, int rows, int columns, int value, double at);

/* Flushes a report; `what` names it in the error. M3_IO. */
int m3_report_end(FILE *out, const char *what, struct m3_error *error);

#endif
