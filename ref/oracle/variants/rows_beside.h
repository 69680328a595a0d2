/* Honest implementations, row by row, beside the taps of a dump: `run --bounds --profile P`. SPEC 7.10, 7.13. */
#ifndef M3_ORACLE_VARIANTS_ROWS_BESIDE_H
#define M3_ORACLE_VARIANTS_ROWS_BESIDE_H

#include "oracle/variants/envelope_make.h"

struct m3_rows_beside;

/* Runs plan->row_runs implementations, which are compared with a run of the double engine that this makes too.
 * Meanwhile they are in temporary files beside `path`. *rows is NULL on failure; errors as for m3_envelope_make. */
int m3_rows_beside_make(struct m3_rows_beside **rows, const struct m3_envelope_plan *plan, const char *path,
                        struct m3_error *error);
/* Declares their tensors in a file, and names the profile. To be followed by m3_rows_beside_write after the file has
 * begun. */
int m3_rows_beside_declare(struct m3_rows_beside *rows, struct m3_writer *writer, struct m3_error *error);
int m3_rows_beside_write(const struct m3_rows_beside *rows, struct m3_error *error);
void m3_rows_beside_free(struct m3_rows_beside *rows);          /* NULL is fine */

#endif
