/* Takes a dump apart into its sequences: each becomes a dump of one sequence, as if it had been run alone. Padding is
 * left out, dimensions of 1 before a tap's own are dropped. SPEC 3.5, 7.19. */
#ifndef M3_ORACLE_BATCH_SPLIT_H
#define M3_ORACLE_BATCH_SPLIT_H

#include "model/files/batch.h"

/* A tensor of a dump that m3_steps_unroll has numbered: where it holds each row that `rows` lists. */
#define M3_UNROLLED "unrolled"

struct m3_parts {
    int64_t count;
    struct m3_safetensors **files;      /* [count], views of the dump, which must stay open longer */
};

/* `hashes` [count]: the case_sha256 of each sequence, for a dump that states that of all; NULL: as the dump says. A tap
 * may be [B,S,..] with the case's padding or without any; [B S,..]; [T,..] of all sequences, one after another; the last
 * rows alone, [B,..]; or as the dump's `sequences` and `rows` say. A tap of another shape stays as it is, with a note.
 * M3_BAD_INPUT: `sequences` or `rows` name no row of the case. M3_NOT_COMPARABLE: no tap has rows of it. M3_INTERNAL.
 * Free the parts in any case. */
int m3_batch_split(struct m3_parts *parts, const struct m3_layout *layout, const char *const *hashes,
                   const struct m3_safetensors *file, struct m3_error *notes, struct m3_error *error);
void m3_parts_free(struct m3_parts *parts);

/* Drops dimensions of 1 before a tap's own, and takes logits [1,V] of a longer case for its last row: replaces *file by
 * a file without a name that keeps it open. `rows`: of the case, 0 if not known. */
int64_t m3_batch_longest(const struct m3_safetensors *file);     /* the rows of its longest tap of rows */
int m3_batch_drop_ones(struct m3_safetensors **file, int64_t rows, struct m3_error *notes, struct m3_error *error);

/* Is it a dump of several sequences: does it number them, or say how long they are? */
int m3_is_dump_of_several(const struct m3_safetensors *file);
/* The layout that a dump states, or that its `sequences` and `rows` show. */
int m3_layout_from_dump(struct m3_layout *layout, const struct m3_safetensors *file, struct m3_error *error);

#endif
