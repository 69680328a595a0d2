/* The verdict on one tap. Each judge fills a stage whose tap, tensors and, for floats, allowances are set. */
#ifndef M3_ORACLE_JUDGE_JUDGE_H
#define M3_ORACLE_JUDGE_JUDGE_H

#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/judge/choices/certificate.h"
#include "oracle/judge/compare.h"
#include "oracle/judge/tolerance.h"

/* The rules for judging the floats of a tap, in addition to its allowance. */
struct m3_float_rules {
    enum m3_dtype stored;       /* the candidate's format, by the profile */
    int exact;                  /* values must equal the reference's, rounded to `stored` */
    int only_measures;          /* bounds judge: no verdict here, except on NaN and infinities */
    int any_grid;               /* they may all be values of a coarser format */
};

/* Floats (F64, F32, F16, BF16) are judged by relative L2 and by element; counts (I32, I64) by equality. `moe.weights`
 * and `moe.expert_out` are aligned by expert id if both dumps hold `moe.experts`; slots of experts that only one side
 * selected are left out, and so are rows that follow from other selections (matched->taint).
 *
 * NaN in the reference: not comparable. NaN in the candidate, in any row, or an infinity that only one side has: fail.
 * If the reference is zero, the candidate must be zero. Floats that are all values of a coarser format than the
 * profile and the file declare: fail (GRID, SPEC 7.2). Returns 0, or M3_INTERNAL if memory is short. */
int m3_judge_values(struct m3_finding *stage, const struct m3_matched *matched, const struct m3_float_rules *rules,
                    struct m3_error *error);

/* The error of one element of a judged float stage, in units of its allowance; infinite for NaN and for an infinity
 * that only one side has. */
double m3_share_of_allowed(const struct m3_finding *stage, double got, double want);

/* The pattern of the differences that are larger than such standard deviations explain: of all elements, or,
 * is_relative, of those of a row, over their root mean square. M3_INTERNAL. */
int m3_matched_pattern(struct m3_pattern *pattern, const struct m3_matched *matched, double deviation, int is_relative,
                       struct m3_error *error);

/* Scores of one decision from another source, to be filled in by id; those of experts include the bias. */
struct m3_given_scores {
    double *score, *bound;      /* [ids] */
    double *proven;             /* [ids] if `statistical`: the proven bound */
    int64_t ids;
    int statistical;            /* `bound` is probable, not proven */
    int reference;              /* they are the reference's, with bounds for what the candidate inherited; 0: they are
                                   recomputed from the candidate's inputs */
    const char *bounded_by;     /* static text: which bound */
};
/* Returns 1 if the scores of this decision are known. group: 0 for experts and the next token. */
typedef int m3_scores_giver(void *context, struct m3_given_scores *given, enum m3_tap tap, int64_t layer, int64_t row,
                            int64_t group);
/* Returns 1 if the decision follows from another selection before it: the reference's scores do not apply to it. */
typedef int m3_taint_teller(void *context, enum m3_tap tap, int64_t layer, int64_t row, int64_t group);

/* The rules for judging selections. Zeros: float arithmetic, and only the dumps. */
struct m3_selection_rules {
    const struct m3_profile *profile; /* NULL: float arithmetic, nothing coarser, ties go to the lowest ids */
    const struct m3_safetensors *companions; /* in a second file; NULL: in the reference, if anywhere */
    int slots_fixed; /* the slots of experts must descend by score */
    struct m3_coarseness coarse; /* of the tap of their scores */
    int no_tolerance; /* the tolerance from the reference's fp32 errors is no bound for the candidate */
    m3_scores_giver *give; /* NULL: only the dumps are known */
    void *give_context;
    m3_taint_teller *tainted; /* NULL: nothing is tainted */
    void *taint_context;
    const struct m3_decision_sink *decisions; /* NULL: none */
};
/* Ids (I32, I64): `index.blocks` [T,G,N], where -1 means no block, and `moe.experts` [T,K]; SPEC 7.6. The caller frees
 * stage->flips. Returns 0, M3_INTERNAL if memory is short, M3_BAD_INPUT for an invalid fp32 error. */
int m3_judge_selection(struct m3_finding *stage, const struct m3_matched *matched,
                       const struct m3_selection_rules *rules, struct m3_error *error);

/* Judges the token that each row of `logits` [T,V] selects. `floats` is the stage of the same tap: if it could not be
 * judged, stage->tap stays NULL. Statuses as above. */
int m3_judge_next_token(struct m3_finding *stage, const struct m3_matched *logits, const struct m3_finding *floats,
                        const struct m3_selection_rules *rules, struct m3_error *error);

/* The number of ids among which such a tap selects, from the last dimension of a tap of their scores; INT64_MAX if
 * unknown. */
int64_t m3_id_limit(const struct m3_matched *matched);

/* Sets the verdict and its reason. */
void m3_judge_not_comparable(struct m3_finding *stage, const char *why);

#endif
