/* Declarations shared by the files of blame. */
#ifndef M3_ORACLE_BLAME_PRIVATE_BLAME_H
#define M3_ORACLE_BLAME_PRIVATE_BLAME_H

#include "oracle/judge/blame/blame.h"
#include "oracle/judge/align.h"
#include "oracle/judge/tolerance.h"

/* One tap of the call. */
struct m3_blame_item {
    enum m3_tap tap;
    int64_t layer, rows, width;         /* rows of the call */
    char name[64];
    const struct m3_tensor *dumped;     /* the candidate's, of the tap's shape; NULL: none */
    const struct m3_side *side;         /* the candidate, or its logits as the tap has them: for row numbers */
    struct m3_finding *blamed;           /* its result if it is judged; or NULL */
    int needed;                         /* a judged tap reads it, or it is judged itself */
    int counted;                        /* counted among the operators that are judged together */
    int wants_truth, is_lent;           /* lent: `truth` is not freed */
    void *truth;                        /* [rows,width] doubles or int32_t, while it is judged; NULL: none */
    int64_t arrived, expected;          /* rows of it */
};

/* Known mistakes that explain taps, so far. */
enum { M3_MOST_NAMED = 16 };
struct m3_blame_named {
    const struct m3_mistake *mistakes[M3_MOST_NAMED];
    int count;
    int64_t budget;                     /* operators for which all known mistakes may still be tried */
};

struct m3_blaming {
    const struct m3_setting *setting;
    struct m3_coarse_table coarse;      /* of the profile of `setting` */
    const struct m3_blame_options *options;
    struct m3_side side;
    struct m3_blame_item *items;        /* in execution order */
    int64_t count;
    struct m3_trace *trace;
    int64_t next;                       /* items before this one have been judged */
    const struct m3_sink *beside;       /* also receives the taps of the pass; or NULL */
    int64_t double_passes;
    struct m3_blame_named *named;       /* NULL: none is looked for */
    struct m3_error *error;
};

/* The item of a tap, or NULL. */
struct m3_blame_item *m3_blame_find(const struct m3_blaming *b, enum m3_tap tap, int64_t layer);

/* Operand i of a tap, or NULL. */
struct m3_blame_item *m3_blame_operand(const struct m3_blaming *b, const struct m3_blame_item *item, int i);

/* ---- blame.c */

/* Lists all taps of the call in execution order, none of them dumped. */
int m3_blame_list_items(struct m3_blaming *b);
/* Begins the result of a tap of the candidate; `why` it is not comparable, or NULL. */
void m3_blame_begin_tap(struct m3_blaming *b, struct m3_blame_item *item, struct m3_finding *out,
                        const struct m3_tensor *t, const char *why);
/* Marks the operands of judged taps, and the taps needed to recompute operands that were not dumped. */
void m3_blame_mark_needed(struct m3_blaming *b);
/* Judges a tap whose values have been read, and puts them into the trace. */
int m3_blame_judge_tap(const struct m3_blaming *b, struct m3_blame_item *item, struct m3_tap_values *dumped);
/* Reads an item, judges it if it is one of these, and puts it into the trace. */
int m3_blame_take(const struct m3_blaming *b, struct m3_blame_item *item);

/* ---- candidate.c */

/* A row's lists of blocks [width] may name blocks that come after the row: -1 in their place. */
void m3_blame_drop_unseen(int32_t *ids, int64_t width, const struct m3_blaming *b, const struct m3_blame_item *item,
                          int64_t number);
/* Reads the candidate's tensor of an item. The caller frees `values`, also on failure. */
int m3_blame_read(struct m3_tap_values *values, const struct m3_blaming *b, const struct m3_blame_item *item);

/* ---- reference.c: the truth */

/* Judges all items, beside a pass in double or a truth that was kept. */
int m3_blame_all(struct m3_blaming *b);
void m3_blame_drop_truth(struct m3_blaming *b);
/* A row of the truth, NULL: it is not there. */
static inline const double *m3_blame_truth_row(const struct m3_blame_item *item, int64_t number)
{
    return item && item->truth ? (const double *)item->truth + number * item->width : NULL;
}
static inline const int32_t *m3_blame_truth_ids(const struct m3_blame_item *item, int64_t number)
{
    return item && item->truth ? (const int32_t *)item->truth + number * item->width : NULL;
}

/* ---- the judges: fill item->blamed */

/* values.c */
int m3_blame_judge_values(const struct m3_blaming *b, const struct m3_blame_item *item,
                          const struct m3_tap_values *dumped, const struct m3_recomputed *recomputed);

/* choices.c: judges by the scores that the trace knows; without scores, or if `recomputed` has no row, only sets that
 * no scores can select are detected. Lists of blocks are sorted and unusable rows marked, also if nothing is judged. */
int m3_blame_judge_choices(const struct m3_blaming *b, const struct m3_blame_item *item, struct m3_tap_values *dumped,
                           const struct m3_recomputed *recomputed);
/* reduced_once.c: the sum of an MoE block as ranks make it that add its two terms before they round them; `missing` if
 * the profile has no ranks. */
int m3_blame_reduced_once(struct m3_recomputed *made, const struct m3_blaming *b, const struct m3_blame_item *item);
/* For selections that are not in the dump: puts the rows that allow only one selection into the trace. */
int m3_blame_certain_rows(const struct m3_blaming *b, const struct m3_blame_item *item,
                          const struct m3_recomputed *recomputed);

/* outputs.c: after the tiers: outputs that are lost, or that are multiplied by a factor. u: the unit roundoff of sums.
 * M3_INTERNAL. */
struct m3_side_by_side;
int m3_blame_judge_outputs(const struct m3_blaming *b, const struct m3_blame_item *item,
                           const struct m3_side_by_side *s, double u);
/* operands.c: the same for one term of a sum: an operand of an addition, an expert. *is_found: one is lost, or has a
 * factor of its own. A tap that fails keeps its verdict. M3_INTERNAL. */
int m3_blame_judge_operands(int *is_found, const struct m3_blaming *b, const struct m3_blame_item *item,
                            const struct m3_side_by_side *s, double u);
/* spread.c: after those: outputs, heads, experts and channels whose errors are larger than those of the rest, and a tap
 * whose errors are larger than roundings explain. M3_INTERNAL. */
int m3_blame_judge_spread(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_side_by_side *s,
                          double u);
/* few_bits.c: after those: rows, heads and taps whose numbers all lack bits. */
void m3_blame_judge_bits(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_side_by_side *s);
/* pattern.c: after those: where the wrong values are, and what they are. M3_INTERNAL. */
int m3_blame_find_pattern(const struct m3_blaming *b, const struct m3_blame_item *item,
                          const struct m3_tap_values *dumped, const struct m3_side_by_side *s, double u);
/* Is it a sum of products, in which a mistake can hide among the roundings of codes? */
int m3_blame_is_product(const struct m3_blaming *b, const struct m3_blame_item *item);

/* ---- settle.c: asks honest implementations, after all other judges, and settles the verdicts */

int m3_blame_settle(struct m3_judgement *result, const struct m3_blaming *b);

/* ---- gradients.c: appends what the candidate holds of gradients, backwards, then those of parameters */

int m3_blame_gradients(struct m3_judgement *result, const struct m3_blaming *b);

/* ---- culprit.c */

/* Counts the operators judged together with that of a tap, because no tap between them was dumped. */
void m3_blame_count_together(const struct m3_blaming *b, struct m3_blame_item *item);

#endif
