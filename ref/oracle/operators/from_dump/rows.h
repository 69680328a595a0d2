/* Which rows of a call are judged. */
#ifndef M3_ORACLE_OPERATORS_FROM_DUMP_ROWS_H
#define M3_ORACLE_OPERATORS_FROM_DUMP_ROWS_H

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

/* `count`: rows of the tap; `each`: rows of the call for every one of them (the heads, where a norm takes every head as
 * a row). *rows: ascending numbers of the call, or JSON null for all. `given` is "all", or numbers and ranges A:B (B
 * excluded), separated by commas; NULL: all, but 24 rows of 4,096 and more: the first and the last, both sides of edges
 * of blocks, and drawn ones. M3_USAGE: no row of the tap. */
int m3_cut_rows(json_t **rows, const char *given, int64_t count, int64_t each, int64_t block, struct m3_error *error);

#endif
