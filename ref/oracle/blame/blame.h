/* Which operator is wrong? Every tap of a candidate's dump is recomputed in double from the candidate's own inputs and
 * selections: the remaining difference was created there, the rest is inherited. SPEC 7.7.
 *
 * A value that is not in the dump is recomputed from earlier taps, together with its possible error; a tap after
 * several such operators is judged as all of them together, and under a coarse profile among honest implementations
 * too. */
#ifndef M3_ORACLE_BLAME_BLAME_H
#define M3_ORACLE_BLAME_BLAME_H

#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "io/safetensors.h"
#include "oracle/error/recompute.h"
#include "oracle/error/tiers.h"
#include "oracle/judge/compare.h"
#include "oracle/variants/mistakes.h"

/* One tap of the candidate. Floats: the place is the element with the largest |created| / allowed. Selections: the
 * place is the first decision of the worst kind; got and want are the first ids by which the sets differ. */
struct m3_blamed {
    char name[224];
    enum m3_tap tap;
    int64_t layer;
    const struct m3_tensor *candidate;
    const char *operator;           /* static: "rope" */
    const char *section;            /* static: the heading of SPEC.md that describes it */
    enum m3_verdict verdict;
    int64_t in_sequence;            /* as in struct m3_stage */
    char note[192];                 /* why not judged, what is wrong with a selection; or empty */
    int rank;                       /* of `index`; 0: there is no place */
    int64_t index[M3_MAX_RANK];     /* the first is the row's number in the sequence */
    double got, want;               /* want: y, recomputed */
    int64_t rows, left_out;         /* judged rows; rows in the dump that were not judged */
    char since[64];                 /* the first recomputed (not dumped) tap on which it depends; or empty */
    int64_t operators;              /* judged together: 1 if all inputs were dumped */

    /* Relative to |reference| in L2, the truth for the whole model; for selections: shares of all decisions. */
    double inherited;               /* y - reference; decisions that differ legitimately */
    double created;                 /* candidate - y; inadmissible decisions */
    double allowed;                 /* standard deviation of a legitimate error; 0 */
    int64_t elements;
    struct m3_tier_result tiers;    /* for floats, as are the next three */
    int64_t n, f;                   /* steps of the bound */
    double max_rel;                 /* largest |got - want| over the largest finite |want| */

    int selection;                  /* the fields below apply */
    enum m3_choice choice;          /* the worst */
    int64_t choices[M3_CHOICES];
    const char *scores;             /* static: "dumped", "recomputed" or "none" */
    double gap;                     /* at the place, in units of the bounds of its scores; NaN if unknown */

    /* Among honest implementations, row by row (judge/rows/rows.h); NaN where not compared. */
    double row_error, row_error_largest, row_nearest, row_nearest_largest;
    const char *blind_to;           /* static: "zeros", or the id of a mistake that bounds would pass too; or NULL */
    int is_blind;                   /* and nothing else judged it */
    const char *judged_by;          /* static, if these decided: created and allowed are the first two; or NULL */

    const struct m3_mistake *mistake;       /* the known mistake that explains the tap; NULL: none does */
    double from_mistake, from_right; /* the candidate, from its results and from the right ones: |d| / |result| in
                                             * L2, or the share of sets that differ */
    char same_results[160]; /* ids of mistakes with the same results here */
    int is_first_named; /* no earlier tap was explained by it */
    int mistakes_tried; /* those of this operator with other results than the right ones */
};

struct m3_blame {
    struct m3_blamed *taps; /* in execution order: those of the dump that match */
    int64_t count;
    int64_t judged, failed, suspect, not_judged, not_comparable;
    const struct m3_blamed *culprit; /* the first that fails, otherwise the first suspect; or NULL */
    enum m3_status status; /* M3_OK, M3_WRONG, M3_SUSPECT, M3_NOT_COMPARABLE */
    struct m3_error notes; /* notes for the reader, one per line */
    enum m3_verdict verdict; /* of the whole: `status` in more detail */
    int64_t unjudged; /* taps that nothing could judge, and those that this model does not produce */
    int64_t missing; /* taps of the call that were asked for and are not in the dump */
    char (*missing_taps)[64]; /* [missing] names, in execution order */
    char missing_names[200]; /* the first of them: "embed, fused .." */
    struct m3_logits *logits; /* of the candidate, where it stores them in another shape (judge/logits.h) */
    int64_t extra; /* the latter */
    int64_t double_passes; /* over the weights: runs of the model in double */
    char explained_by[32]; /* the word of a profile with which every tap that does not pass would; or "" */
    const char *mistake; /* the id of the first known mistake that explains a tap; NULL: none */
    struct m3_blame *parts; /* [part_count] of each sequence (batch/several.h); NULL: there is one sequence */
    int64_t part_count;
};

struct m3_blame_options {
    const char *taps; /* patterns of the taps to judge, NULL: all; operands are taken from all */
    int64_t first_row, end_row; /* of the call: only these are judged; end 0: all */
    int force; /* the dump may be of another model or case */
    const char *profile; /* the text that names setting->profile; NULL: nothing is explained */
    struct m3_progress progress;
    /* Runs honest implementations that go on from the candidate's layer outputs, and the double engine, for the taps of
     * these names; the caller closes both (judge/rows/rows.h). Called at most once, and only if taps remain that bounds
     * cannot judge or can judge only together with operators before them. NULL: none are run. */
    int (*honest)(void *self, const struct m3_setting *setting, struct m3_safetensors **truth,
                  struct m3_safetensors **rows, const struct m3_safetensors *candidate, const char *taps,
                  struct m3_error *error);
    void *honest_self;
    int is_alone; /* without the truth: nothing is inherited */
    const struct m3_safetensors *truth; /* taps of a run in double that was kept; NULL: the case is run */
    const struct m3_request *request; /* of that run, whose sink receives its taps too; NULL: as the setting says */
    int names_mistakes; /* looks for known mistakes that explain the taps that fail */
};

/* Runs the case once in the double engine, to compute what is inherited; taps are judged meanwhile, layer by layer.
 * Returns 0 if taps were judged or could not be, whatever the verdict in result->status. M3_NOT_COMPARABLE: nothing
 * matched, or another model or case without `force`; M3_BAD_INPUT: not a dump; M3_INTERNAL; M3_IO from what else receives
 * the taps. The result points into `candidate`; free it in any case. */
int m3_blame(struct m3_blame *result, const struct m3_setting *setting, const struct m3_safetensors *candidate,
             const struct m3_blame_options *options, struct m3_error *error);
void m3_blame_free(struct m3_blame *result);
/* Counts the taps; the culprit, the verdict and the status follow. `extra` is there. */
void m3_blame_find_culprit(struct m3_blame *result);

/* Values of one tap that are not in a dump. */
struct m3_given_tap {
    enum m3_tap tap;
    int64_t layer;
    const struct m3_tensor *tensor; /* of the tap's shape; its rows may be fewer or more than those of the call */
    const int64_t *at, *numbers; /* [rows] rows of the tensor to read, and which rows of the call they are,
                                         * ascending; keys and values after cached places begin at -p0 */
    int64_t rows;
    int is_judged; /* otherwise an operand, taken as it is */
};

/* Puts it into a trace. */
int m3_given_put(struct m3_trace *trace, const struct m3_given_tap *given, const struct m3_setting *setting,
                 struct m3_error *error);

/* The same for taps that are given one by one: results in the order of execution, and no distance from a run of the
 * model, because there is none. `result` points into the tensors. M3_INTERNAL; M3_USAGE for a tap that the call does
 * not have. */
int m3_blame_given(struct m3_blame *result, const struct m3_setting *setting, const struct m3_given_tap *given,
                   int count, struct m3_error *error);

#endif
