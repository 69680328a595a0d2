/* Judges dumps of several sequences: each sequence alone, and then all of them together. Of each tap, the sequence with
 * the worst verdict counts, and says so. SPEC 7.19. */
#ifndef M3_ORACLE_BATCH_SEVERAL_H
#define M3_ORACLE_BATCH_SEVERAL_H

#include "oracle/batch/split.h"
#include "oracle/blame/blame.h"
#include "oracle/judge/compare.h"

/* The parts of three files; those of the companions have no files if there are none. */
struct m3_compared_parts {
    const struct m3_parts *reference, *candidate, *companions;
    /* Called before each sequence, for what the options report to; or NULL. */
    void (*begin)(void *self, int64_t sequence);
    void *self;
};

/* As m3_compare. */
int m3_compare_several(struct m3_comparison *result, const struct m3_compared_parts *parts,
                       const struct m3_compare_options *options, struct m3_error *error);

/* Puts comparisons of sequences [count], of which it takes over the memory, together; `sides` [2 count] likewise. */
int m3_compare_together(struct m3_comparison *result, struct m3_comparison *parts, struct m3_side *sides, int64_t count,
                        struct m3_error *error);

/* Puts the results of the sequences [count], of which it takes over the memory, together. The verdict is that of all. */
int m3_blame_together(struct m3_blame *result, struct m3_blame *parts, int64_t count, struct m3_error *error);

/* Does the dump hold a tap? A sequence that it does not hold is not judged. */
int m3_holds_taps(const struct m3_safetensors *file);

#endif
