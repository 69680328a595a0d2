/* Joins the dumps of several sequences, each run alone, into one: the rows of a tap follow each other, `sequences` and
 * `rows` say which they are, and tensors that are no taps of rows are kept for each sequence. SPEC 3.5. */
#ifndef M3_ORACLE_BATCH_JOIN_H
#define M3_ORACLE_BATCH_JOIN_H

#include "model/files/batch.h"

/* parts [batch->layout.count]. The file appears when all is written. M3_IO, M3_INTERNAL. */
int m3_batch_join(const char *path, const struct m3_batch *batch, struct m3_safetensors *const *parts, int sealed,
                  struct m3_error *error);

#endif
