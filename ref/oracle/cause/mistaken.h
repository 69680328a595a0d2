/* What a known mistake (SPEC 7.12) would make of one tap of the candidate, from the candidate's own values. */
#ifndef M3_ORACLE_BLAME_PRIVATE_MISTAKEN_H
#define M3_ORACLE_BLAME_PRIVATE_MISTAKEN_H

#include "model/graph/evaluate.h"
#include "oracle/judge/blame/private/blame.h"
#include "oracle/variants/mistakes.h"

/* One tap, or its rows [first, first + rows), and the candidate's values that were read for it so far. */
struct m3_mistaken;

/* Does the mistake first show in this tap, or in one before it that the dump does not hold? */
int m3_mistaken_reaches(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_mistake *mistake);
/* The number of operators from what the dump holds up to this tap, roughly: 1 if it holds all that the tap reads. */
int64_t m3_mistaken_depth(const struct m3_blaming *b, struct m3_blame_item *item);

/* Only some rows of a large tap are computed: `near` is one of them. Where rows do not depend on each other, they have
 * about so many numbers; 0: many. M3_INTERNAL. Call m3_mistaken_free in any case. */
int m3_mistaken_new(struct m3_mistaken **mistaken, const struct m3_blaming *b, const struct m3_blame_item *item,
                    int64_t near, int64_t numbers);
void m3_mistaken_free(struct m3_mistaken *mistaken);    /* NULL is fine */
/* The rows of the tap that are computed. */
void m3_mistaken_rows(int64_t *first, int64_t *rows, const struct m3_mistaken *mistaken);

/* *applies is 0 if the mistake cannot be made here: the model or the dump lacks what it needs, or an operator refuses
 * it. The caller frees `out`, also on failure. M3_INTERNAL. */
int m3_mistaken_make(struct m3_tap_values *out, int *applies, struct m3_mistaken *mistaken,
                     const struct m3_mistake *mistake);

/* What an engine rounds as it reads it. */
struct m3_emulation {
    const struct m3_profile *profile;
    double largest[M3_OPERANDS];    /* of each operand, in all rows; 0: not known */
    int is_scaled;                  /* caches have a scale that brings the largest number to the largest code */
};

/* What an engine makes of them that has no mistake, and that rounds what it reads. */
int m3_mistaken_emulate(struct m3_tap_values *out, int *applies, struct m3_mistaken *mistaken,
                        const struct m3_emulation *how);

#endif
