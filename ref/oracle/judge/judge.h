/* The verdict on one tap. Each judge fills a stage whose tap, tensors and, for floats, allowances are set. */
#ifndef M3_ORACLE_JUDGE_JUDGE_H
#define M3_ORACLE_JUDGE_JUDGE_H

#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/judge/certificate.h"
#include "oracle/judge/compare.h"
#include "oracle/judge/tolerance.h"

/* By what the floats of a tap are judged, beside what is allowed to it. */
struct m3_float_rules {
    enum m3_dtype stored;       /* the candidate's values are numbers of it, by the profile */
    int exact;                  /* and are the reference's, rounded to it */
    int by_bounds;              /* somebody else judges: only measure, but for NaN and infinities */
};

/* Floats (F64, F32, F16, BF16), by relative L2 and by element; counts (I32, I64), by equality. `moe.weights` and
 * `moe.expert_out` are aligned by expert id where both dumps hold `moe.experts`; slots of experts that only one side
 * chose are left out, and rows that follow from other choices (matched->taint).
 *
 * NaN in the reference: not comparable. NaN in the candidate, in any row, or an infinity that only one side has: fail.
 * A reference of zeros: the candidate must be zero. Floats that are all numbers of a coarser format than the profile
 * and the file declare: fail (GRID, SPEC 7.2). 0, or M3_INTERNAL if memory is short. */
int m3_judge_values(struct m3_stage *stage, const struct m3_matched *matched, const struct m3_float_rules *rules,
                    struct m3_error *error);

/* How far one element of a judged stage of floats is off, in units of what is allowed there; infinite for NaN and for
 * an infinity that only one side has. */
double m3_share_of_allowed(const struct m3_stage *stage, double got, double want);

/* Scores of one decision from elsewhere, to be filled in by id: those of experts with the bias. */
struct m3_given_scores {
    double *score, *bound;      /* [ids] */
    double *proven;             /* [ids] if `statistical`: the bound that is proven */
    int64_t ids;
    int statistical;            /* `bound` is probable, not proven */
    int reference;              /* they are the reference's, with bounds for what the candidate inherited; 0: they are
                                   recomputed from the candidate's inputs */
    const char *bounded_by;     /* static text: which bound */
};
/* 1 if the scores of this decision are known. group: 0 of experts and the next token. */
typedef int m3_scores_giver(void *context, struct m3_given_scores *given, enum m3_tap tap, int64_t layer, int64_t row,
                            int64_t group);
/* 1 if the decision follows from another choice before it: the reference's scores say nothing of it. */
typedef int m3_taint_teller(void *context, enum m3_tap tap, int64_t layer, int64_t row, int64_t group);

/* By what selections are judged. Zeros: float arithmetic and the dumps alone. */
struct m3_selection_rules {
    const struct m3_profile *profile; /* NULL: float arithmetic, nothing stored coarser, ties go to the lowest ids */
    const struct m3_safetensors *companions; /* beside the reference; NULL: in it, if anywhere */
    int slots_fixed; /* the slots of experts descend by score */
    struct m3_coarseness coarse; /* of the tap of their scores */
    int no_tolerance; /* what taps are allowed by the reference's fp32 errors is no bound for the candidate */
    m3_scores_giver *give; /* NULL: nothing is known but the dumps */
    void *give_context;
    m3_taint_teller *tainted; /* NULL: nothing is */
    void *taint_context;
    const struct m3_decision_sink *decisions; /* NULL: none */
};
/* Ids (I32, I64): `index.blocks` [T,G,N], where -1 is no block, and `moe.experts` [T,K]; SPEC 7.6. stage->flips is to
 * be freed. 0, M3_INTERNAL if memory is short, M3_BAD_INPUT for a stated fp32 error that is none. */
int m3_judge_selection(struct m3_stage *stage, const struct m3_matched *matched, const struct m3_selection_rules *rules,
                       struct m3_error *error);

/* The token that each row of `logits` [T,V] would choose. `floats` is the stage of the same tap: a tap that could not
 * be judged leaves stage->tap NULL. Statuses as above. */
int m3_judge_next_token(struct m3_stage *stage, const struct m3_matched *logits, const struct m3_stage *floats,
                        const struct m3_selection_rules *rules, struct m3_error *error);

/* How many ids such a tap can choose among, by the last dimension of a tap of their scores; INT64_MAX if unknown. */
int64_t m3_id_limit(const struct m3_matched *matched);

/* Sets the verdict and its reason, and returns. */
void m3_judge_not_comparable(struct m3_stage *stage, const char *why);

#endif
