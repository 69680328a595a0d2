/* Finds the scores by which ids were selected, decision by decision. Used only by selection.c. SPEC 7.6. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_SCORER_H
#define M3_ORACLE_JUDGE_PRIVATE_SCORER_H

#include "base/semantics.h"
#include "oracle/judge/judge.h"

enum m3_choice_of { M3_CHOICE_OF_BLOCKS, M3_CHOICE_OF_EXPERTS, M3_CHOICE_OF_TOKENS };

/* A tap of scores, [rows,groups,ids] or [rows,ids]; tensor NULL: the dump has none with the right shape. */
struct m3_score_tap {
    const struct m3_tensor *tensor;
    int logits;                     /* of experts: the sigmoid is still to be applied */
    double allowed;                 /* allowed distance of a candidate's score; NaN: not known */
    double dumped;                  /* unit roundoff of the dump only, by the profile */
};

struct m3_scorer {
    const struct m3_matched *matched;
    const struct m3_selection_rules *rules;
    enum m3_choice_of of;
    int64_t groups, ids, width;     /* ids 0: scores are not available */
    int ties_lowest;
    struct m3_router_arithmetic router;
    struct m3_score_tap want, got;
    const struct m3_tensor *bias, *margin;      /* of the reference; NULL: not there */
    struct m3_semantics semantics;              /* the reference's: how blocks are selected */
    double *numbers;                /* memory of the next fields, [ids] each */
    double *truth, *score, *bound, *proven, *moved, *biases;
    unsigned char *forced, *marks;
    /* of the decision scored last */
    const char *whose, *bounded_by; /* static text; NULL: no scores */
    int64_t own;                    /* of blocks: the row's own block; INT64_MAX: not known */
    int as_added;                   /* `moved` are the very scores to which the program added the bias */
    int tainted;                    /* and cannot be judged otherwise */
};

/* Finds the tensors and allocates memory; 0, M3_INTERNAL, M3_BAD_INPUT. Call m3_scorer_end after any of them. */
int m3_scorer_begin(struct m3_scorer *scorer, const struct m3_matched *matched, const struct m3_selection_rules *rules,
                    enum m3_choice_of of, int64_t limit, struct m3_error *error);
/* Sets scores, truth and marks of the decision, whose want and got are set and well-formed. */
void m3_scorer_score(struct m3_scorer *scorer, struct m3_decision *decision, const struct m3_row_pair *row,
                     int64_t group);
void m3_scorer_end(struct m3_scorer *scorer);

#endif
