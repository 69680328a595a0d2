/* Compares two dumps, tap by tap in execution order. SPEC 7.
 *
 * Floats pass if relative L2 and max |d| / max |r| stay within 4 times the error of public fp32 code, which the
 * reference states in its metadata, plus 1e-7; within 1e-5 if it states none; within more under a profile that stores
 * values more coarsely (tolerance.h). If the reference has companions, floats are judged by the bounds of their
 * operators (operator_check.h).
 * Selections are compared as sets: another set fails unless scores within their bounds select it (certificate.h), and
 * the taps that follow from it are not judged by value (taint.h). With an envelope floats are also ranked among
 * legitimate implementations (ranking.h). */
#ifndef M3_ORACLE_JUDGE_COMPARE_H
#define M3_ORACLE_JUDGE_COMPARE_H

#include <stdint.h>

#include "base/progress.h"
#include "base/status.h"
#include "io/safetensors.h"
#include "oracle/error/tiers.h"
#include "oracle/error/verdict.h"

struct m3_logits;
struct m3_side;

/* From good to bad. */
enum m3_choice {
    M3_CHOICE_IDENTICAL,
    M3_CHOICE_PERMUTED,
    M3_CHOICE_TIE,
    M3_CHOICE_ADMISSIBLE,
    M3_CHOICE_INADMISSIBLE,
    M3_CHOICES,
};

/* Shares of the elements. */
enum { M3_QUANTILES = 4 };
extern const double m3_quantiles[M3_QUANTILES];

/* A decision with another set than the reference's: all that follows from it is another computation. */
struct m3_flip {
    int64_t layer;                  /* as in model/taps.h */
    int64_t row;                    /* its number in the sequence */
    int64_t group;                  /* of blocks; -1: experts, the next token */
};

/* One tap of both files. Floats: the place is the element with the largest |got - want|, NaN first, then infinities
 * that only one side has. Ids: a decision is one row, of one group for blocks; the place is the first decision of the
 * worst kind; got and want are the first ids by which the sets differ, -1 if one side has none. */
struct m3_stage {
    const char *tap;
    const char *letters;            /* of its dimensions; NULL: those of the tap's row in model/taps.h */
    const struct m3_tensor *reference, *candidate;
    enum m3_verdict verdict;
    int64_t in_sequence;            /* of several sequences: the number of the one with the place, plus 1; 0:
                                     * there is one */
    int excused;                    /* not judged, and not counted as unjudged (SPEC 7, exit status) */
    const char *note;               /* static text or NULL: why not comparable, not judged or wrong */
    int rank;                       /* of `index`; 0: there is no place */
    int64_t index[M3_MAX_RANK];     /* the first is the row's number in the sequence; of the reference's expert
                                     * slot */
    double got, want;

    double rel_l2, max_rel;         /* |d| / |r| in L2; max |d| / max |r|; both over elements finite on both
                                     * sides */
    double peak;                    /* largest finite |reference| of the elements compared */
    double max_abs;                 /* |got - want| at the place: NaN or infinite if that is */
    double allowed_l2, allowed_max;
    double headroom;                /* largest share of the allowance: 1 is all of it */
    int64_t elements, violations;
    int64_t rows_left_out;          /* not judged by value: they follow from other selections (taint.h) */
    const char *judged_by;          /* static text; NULL: not judged */
    int tiers, tiers_off;           /* of enum m3_tier: those that fail, those that do not apply here */
    int64_t n, f;                   /* steps of the operator; -1: not known */
    double z2;                      /* mean d^2 / sigma^2; NaN: not known */
    struct m3_parameter parameter;  /* name NULL: no parameter of the model looks off */
    enum m3_dtype grid;             /* the coarser format to which all values belong; M3_DTYPES: none */
    double quantiles[M3_QUANTILES]; /* of |d| over the rms of the reference; NaN: not known */
    char effective[96];             /* effective precision; "": not known */
    double percentile;              /* of rel_l2 among legitimate implementations (envelope); NaN: not ranked */
    double envelope_median, envelope_largest; /* their rel_l2; NaN likewise */
    int beyond_envelope;            /* more than twice the largest: suspect, unless it is worse already */

    int selection;                  /* ids: the fields below apply, not those above */
    enum m3_choice choice;          /* the worst */
    int64_t rows, differing;        /* decisions; those whose sets differ */
    int64_t choices[M3_CHOICES];
    int64_t certified;              /* decisions that every conforming result takes in the same way */
    int64_t tainted;                /* decisions left out: inherited, and without scores to judge them */
    struct m3_flip *flips;          /* [differing], in order; NULL if none */
    double gap, bound;              /* of the decision at the place, as in struct m3_certificate; NaN: unknown */
    double least_gap;               /* the smallest gap / bound of all decisions; NaN: no scores */
    const char *scores;             /* static text: whose scores judged the decision at the place, or the first; */
    const char *bounded_by;         /* what bounds them; NULL: no scores */

    /* Among honest implementations of the profile (rows/rows.h): 75 % of the rows are off by at most this, and the most
     * of an honest one; the same of the distance to the nearest of them. NaN: not compared with them. */
    double row_error, row_error_largest;
    double row_nearest, row_nearest_largest;
    const struct m3_logits *logits; /* `candidate` is one of these, not a tensor of the file; or NULL */
    const char *finding;            /* what is wrong, or why there is no verdict, in words of the judge; NULL:
                                     * see the fields */
};

struct m3_comparison {
    struct m3_stage *stages;        /* in execution order; only taps that both files hold and that match the
                                     * patterns */
    int64_t count;
    int64_t judged, failed, suspects, not_judged, not_comparable; /* of the stages; judged includes the next two */
    int64_t missing, extra;         /* taps that only the reference holds, only the candidate holds */
    const struct m3_stage *divergence; /* the first stage that fails, otherwise the first suspect, or NULL */
    const struct m3_stage *tightest; /* the judged float stage with the largest headroom, or NULL */
    struct m3_stage next_token;     /* the choices that `logits` make, one of V; tap NULL: there is none. It is
                                     * in no count of stages */
    enum m3_status status;          /* M3_OK, M3_WRONG, M3_SUSPECT, M3_NOT_COMPARABLE */
    struct m3_taint *taint;         /* taps that differing selections exclude from judgement by value */
    struct {
        int64_t runs; /* 0: there is no envelope, and the fields below are unset */
        const char *profile;
        int64_t ranked, blind; /* stages; blind: zeros would be within twice the largest distance */
        double percentile; /* the median of the ranked stages; NaN: none */
        const struct m3_stage *farthest; /* the ranked stage with the largest rel_l2 / envelope_largest, or NULL */
    } envelope;
    struct {
        const char *model_sha256, *case_sha256, *profile_sha256; /* NULL: unknown */
    } of;                           /* what was compared, and how; m3_comparison_is_of sets it */
    struct m3_error notes;          /* notes for the reader, one per line */
    const char *next;               /* what to do about a failure; NULL: run blame */
    const char *mistake;            /* the known mistake that explains it (SPEC 7.12); NULL: none, or not looked
                                     * for */
    enum m3_verdict verdict;        /* of the whole: `status` in more detail */
    int64_t unjudged;               /* stages that nothing could judge, and taps that only the candidate holds */
    const char **missing_taps;      /* [missing] names, in execution order; NULL: none */
    char missing_names[200];        /* the first of the taps that only the reference holds: "embed, fused .." */
    struct m3_logits *logits;       /* of the candidate, where it stores them in another shape (logits.h) */
    char explained_by[32];          /* the word of a profile with which every stage that does not pass would; or
                                     * "" */
    int64_t excused;                /* stages of `not_judged` that do not count as unjudged (SPEC 7, exit status) */
    struct m3_comparison *parts;    /* [part_count] of each sequence (batch/several.h); NULL: there is one
                                     * sequence */
    struct m3_side *sides;          /* [2 part_count] reference and candidate of each */
    int64_t part_count;
};

struct m3_profile;
struct m3_envelope;
struct m3_judged_decision; /* certificate.h */

struct m3_decision_sink {
    void *self;
    int (*write)(void *self, const struct m3_judged_decision *decision, struct m3_error *error);
};

struct m3_compare_options {
    const char *taps;               /* patterns, NULL: all */
    int force;                      /* compare dumps of different models or cases */
    const struct m3_profile *profile; /* NULL: fp32, and no tap is exact */
    const char *profile_text;       /* the text that names it; NULL: nothing is explained */
    int stop;                       /* at the first stage that does not pass */
    const struct m3_safetensors *companions; /* of the reference, in their own file; NULL: in the reference, if
                                              * any */
    const struct m3_envelope *envelope; /* of the profile, for the reference's model and case; NULL: no ranks */
    const struct m3_decision_sink *decisions; /* receives every decision (report/ledger.h); NULL: none */
    struct m3_progress progress;
};

/* Returns 0 if taps were compared; the verdict is in result->status. M3_NOT_COMPARABLE: nothing matched, or another
 * model or case without `force`; `error` says which, and the result can be reported. M3_BAD_INPUT: another format, or
 * an invalid `rows` or stated fp32 error. M3_INTERNAL: out of memory. The result points into both files and the
 * envelope; free it in any case. */
int m3_compare(struct m3_comparison *result, const struct m3_safetensors *reference,
               const struct m3_safetensors *candidate, const struct m3_compare_options *options,
               struct m3_error *error);
/* The verdict and the status of a run, from the counts of its stages and its next token. */
void m3_compare_settle(struct m3_comparison *result);
/* Was a float stage judged by what whole passes may differ, not by its operator alone? A small mistake can hide there.
 */
int m3_stage_is_lax(const struct m3_stage *stage);
/* States what the comparison is of: for reports that are later compared with others. The texts stay the arguments'. */
void m3_comparison_is_of(struct m3_comparison *result, const struct m3_safetensors *reference,
                         const struct m3_profile *profile);
void m3_comparison_free(struct m3_comparison *result);

#endif
