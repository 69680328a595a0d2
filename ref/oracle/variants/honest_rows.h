/* What honest implementations give, row by row, written beside the truth: dumps that hold layer outputs or logits alone
 * are judged among them (judge/rows/rows.h). SPEC 7.10. */
#ifndef M3_ORACLE_VARIANTS_HONEST_ROWS_H
#define M3_ORACLE_VARIANTS_HONEST_ROWS_H

#include "oracle/variants/envelope_make.h"

struct m3_honest_rows;

/* The runs that a profile needs: E4M3 inputs make runs differ so much that few of them do not show how far. */
int64_t m3_honest_rows_needed(const struct m3_profile *profile);

/* Declares the tensors of `runs` implementations of plan->profile that choose for themselves. `truth`: a dump of the
 * double engine; the taps that it holds and that match plan->taps are written. All arguments must outlive the result.
 * *rows is NULL on failure; errors as for m3_envelope_make. */
int m3_honest_rows_declare(struct m3_honest_rows **rows, const struct m3_envelope_plan *plan, int64_t runs,
                           const struct m3_safetensors *truth, struct m3_writer *writer, struct m3_error *error);
/* Runs them and appends what they give; after m3_writer_begin. */
int m3_honest_rows_write(struct m3_honest_rows *rows, struct m3_error *error);
void m3_honest_rows_free(struct m3_honest_rows *rows); /* NULL is fine */

#endif
