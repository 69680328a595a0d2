/* A case of several sequences: input_ids [B,S], padded, or [T] with cu_seqlens [B+1], packed. SPEC 3.4. */
#ifndef M3_MODEL_FILES_BATCH_H
#define M3_MODEL_FILES_BATCH_H

#include "model/files/case.h"

/* Where the tokens of the sequences lie. */
struct m3_layout {
    int64_t count;                  /* sequences */
    int64_t slots;                  /* of each row of [count,slots]; 0: one sequence after another */
    int64_t *lengths, *before;      /* [count] tokens; slots of padding before them */
    int64_t block;                  /* keys of a block; 0: not known */
    int by_slot;                    /* blocks are anchored to slots (block_anchor) */
};

struct m3_batch {
    int is_several;                 /* 0: the file holds a case of one sequence, cases[0] */
    struct m3_layout layout;
    struct m3_case *cases;          /* [count] each alone */
    char sha256[65];
};

int64_t m3_layout_rows(const struct m3_layout *layout);        /* the tokens of all sequences */

/* Has the file the tensors of several sequences, even if it is only one? */
int m3_is_batch(const struct m3_safetensors *file);

/* Reads a case of one sequence or of several. M3_BAD_INPUT names the tensor and the sequence. Free it in any case. */
int m3_batch_read(struct m3_batch *batch, const char *path, const struct m3_config *config, struct m3_error *error);
/* Of sequences without padding; ids [count] of lengths [count]. */
int m3_batch_of_ids(struct m3_batch *batch, const int32_t *const *ids, const int64_t *lengths, int64_t count,
                    struct m3_error *error);
/* Takes over a case of one sequence, also on failure. */
int m3_batch_of_case(struct m3_batch *batch, struct m3_case *c, struct m3_error *error);
/* The layout and the cases of a file that m3ref run wrote, from its metadata. */
int m3_layout_of_dump(struct m3_layout *layout, const struct m3_safetensors *file, struct m3_error *error);
/* The layout as a JSON text, to be freed; NULL if memory is short. */
char *m3_layout_json(const struct m3_layout *layout);

/* Anchors the blocks of every sequence to the sequence or to the slots; may be called again. */
int m3_batch_anchor(struct m3_batch *batch, enum m3_block_anchor anchor, struct m3_error *error);
/* m3_case_check of every sequence. */
int m3_batch_check(const struct m3_batch *batch, const struct m3_config *config, int allow_long, const char *source,
                   enum m3_status status, struct m3_error *error);
void m3_layout_free(struct m3_layout *layout);
void m3_batch_free(struct m3_batch *batch);

#endif
