/* Shared by the files that put the verdicts of sequences together. */
#ifndef M3_ORACLE_BATCH_PRIVATE_H
#define M3_ORACLE_BATCH_PRIVATE_H

#include "oracle/batch/several.h"

/* A verdict by how much it weighs against the others of its tap: the greatest counts. */
int m3_weight_of_verdict(enum m3_verdict verdict, int is_excused);
/* Adds the notes of the sequences: once what all of them say, otherwise with the sequence. `notes` [count]. */
void m3_notes_together(struct m3_error *all, const struct m3_error *const *notes, int64_t count);

#endif
