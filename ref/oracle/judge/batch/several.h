/* Compares dumps of several sequences: each sequence alone, and then all of them together (judge/finding). SPEC 7.19. */
#ifndef M3_ORACLE_BATCH_SEVERAL_H
#define M3_ORACLE_BATCH_SEVERAL_H

#include "oracle/judge/batch/split.h"
#include "oracle/judge/compare.h"

/* The parts of three files; those of the companions have no files if there are none. */
struct m3_compared_parts {
    const struct m3_parts *reference, *candidate, *companions;
    /* Called before each sequence, for what the options report to; or NULL. */
    void (*begin)(void *self, int64_t sequence);
    void *self;
};

/* As m3_compare. */
int m3_compare_several(struct m3_judgement *result, const struct m3_compared_parts *parts,
                       const struct m3_compare_options *options, struct m3_error *error);

/* Does the dump hold a tap? A sequence that it does not hold is not judged. */
int m3_holds_taps(const struct m3_safetensors *file);

#endif
