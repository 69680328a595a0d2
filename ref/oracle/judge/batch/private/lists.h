/* Which rows a dump holds, by its own numbers. */
#ifndef M3_ORACLE_JUDGE_BATCH_PRIVATE_LISTS_H
#define M3_ORACLE_JUDGE_BATCH_PRIVATE_LISTS_H

#include "io/safetensors.h"
#include "model/files/batch.h"

/* A row that the dump's `sequences` and `rows` name. */
struct m3_listed_row {
    int64_t sequence, row, at;
};

/* The rows that the dump numbers, by sequence, then row. */
struct m3_row_list {
    struct m3_listed_row *all; /* [count]; NULL: it numbers none */
    int64_t count, held; /* held: rows of the dump; a row that sequences share is listed for each */
    const char *of, *rows; /* the tensors */
};

/* Fills the list, whose tensors are named, and sorts it; it stays empty if the dump has none of them. M3_BAD_INPUT: a row that
 * the layout does not have, or one that is there twice; M3_INTERNAL. Free list->all in any case. */
int m3_row_list_take(struct m3_row_list *list, const struct m3_layout *layout, const struct m3_safetensors *file,
                     struct m3_error *error);

#endif
