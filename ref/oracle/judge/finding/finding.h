/* What a judge finds: one finding for each tap that it looked at, and the verdict on all of them. `compare`, `blame`,
 * `check` and `op --check` make findings; reports print them. SPEC 7. */
#ifndef M3_ORACLE_JUDGE_FINDING_FINDING_H
#define M3_ORACLE_JUDGE_FINDING_FINDING_H

#include <stdint.h>

#include "base/status.h"
#include "io/safetensors.h"
#include "model/taps.h"
#include "oracle/error/tiers/tiers.h"
#include "oracle/error/tiers/verdict.h"
#include "oracle/judge/pattern/pattern.h"

struct m3_logits;
struct m3_mistake;
struct m3_side;
struct m3_text;

/* From good to bad. */
enum m3_choice {
    M3_CHOICE_IDENTICAL,
    M3_CHOICE_PERMUTED,
    M3_CHOICE_TIE,
    M3_CHOICE_ADMISSIBLE,
    M3_CHOICE_INADMISSIBLE,
    M3_CHOICES,
};

/* By what a tap was judged. */
enum m3_basis {
    M3_BY_NOTHING,
    M3_BY_EQUALITY,
    M3_BY_SETS,
    M3_BY_CERTIFICATES,             /* sets, by their scores in the candidate */
    M3_BY_PIXELS,
    M3_BY_GRADIENT,                 /* its relative L2 */
    M3_BY_STATED,                   /* the error of public fp32 code that the reference states */
    M3_BY_PARTLY_STATED,            /* bounds, and that error for rows whose inputs are missing */
    M3_BY_DRIFT,                    /* bounds, and the measured drift of the inputs */
    M3_BY_OPERATOR,                 /* the operator, from the candidate's own inputs */
    M3_BY_BOUNDS,                   /* the same of an operator that was called alone */
    M3_BY_ROWS,                     /* honest implementations of the profile, row by row */
    M3_BY_ENVELOPE,
    M3_BY_COMPARISON,               /* the comparison with the truth: nothing else could judge it */
    M3_BASES,
};
const char *m3_basis_text(enum m3_basis basis);         /* NULL: by nothing */

/* Shares of the elements. */
enum { M3_QUANTILES = 4 };
extern const double m3_quantiles[M3_QUANTILES];

/* How far the values are from what they are compared with. NaN: not measured. */
struct m3_distance {
    double rel_l2, max_rel;         /* |d| / |r| in L2; max |d| / max |r|; over elements finite on both sides */
    double peak;                    /* largest finite |r| of the elements compared */
    double max_abs;                 /* |got - want| at the place: NaN or infinite if that is */
    double allowed_l2, allowed_max;
    double quantiles[M3_QUANTILES]; /* of |d| over the rms of the reference */
    char effective[96];             /* effective precision; "": not known */
};

/* A decision with another set than the reference's: all that follows from it is another computation. */
struct m3_flip {
    int64_t layer;                  /* as in model/taps.h */
    int64_t row;                    /* its number in the sequence */
    int64_t group;                  /* of blocks; -1: experts, the next token */
};

/* One tap. Floats: the place is the element with the largest error beside what is allowed, NaN first, then infinities
 * that only one side has. Ids: a decision is one row, of one group for blocks; the place is the first decision of the
 * worst kind; got and want are the first ids by which the sets differ, -1 if one side has none. */
struct m3_finding {
    const char *tap;                /* its name in the candidate: "layers.3.attn"; of a case: "3.y" */
    enum m3_tap id;                 /* M3_TAPS: no tap of a pass */
    int64_t layer;
    const char *letters;            /* of its dimensions; NULL: those of the tap's row in model/taps.h */
    const struct m3_tensor *reference, *candidate; /* recomputed: both are the candidate's */
    const struct m3_logits *logits; /* `candidate` is one of these, not a tensor of the file; or NULL */
    enum m3_verdict verdict;
    enum m3_basis judged_by;
    int64_t in_sequence;            /* of several sequences: the number of the one with the place, plus 1; 0:
                                     * there is one */
    int excused;                    /* not judged, and not counted as unjudged (SPEC 7, exit status) */
    char note[512];                 /* why not comparable, not judged or wrong; or empty */
    int is_in_part;                 /* `note` names values that are wrong unlike others, or a factor: no rounding */
    struct m3_pattern pattern;      /* of what is wrong */
    int rank;                       /* of `index`; 0: there is no place */
    int64_t index[M3_MAX_RANK];     /* the first is the row's number in the sequence; of the reference's expert
                                     * slot */
    double got, want;
    int64_t rows, rows_left_out; /* judged; not judged, because inputs are missing or other selections came before */
    int64_t elements, violations;

    struct m3_tier_result tiers; /* headroom: the largest share of what is allowed, 1 is all of it */
    int tiers_off; /* of enum m3_tier: those that do not apply here */
    int64_t n, f; /* steps of the operator; -1: not known */
    struct m3_distance off;
    double percentile; /* of off.rel_l2 among legitimate implementations (envelope); NaN: not ranked */
    double envelope_median, envelope_largest; /* their rel_l2; NaN likewise */
    int beyond_envelope; /* more than twice the largest: suspect, unless it is worse already */

    /* Among honest implementations of the profile (judge/rows/rows.h): 75 % of the rows are off by at most this, and the
     * most of an honest one; the same of the distance to the nearest of them. NaN: not compared with them. */
    double row_error, row_error_largest;
    double row_nearest, row_nearest_largest;
    int64_t first_bad, bad_rows; /* only these rows are off, which decided the verdict; 0: all count */

    int selection; /* ids: the fields below apply, not the numbers above */
    enum m3_choice choice; /* the worst */
    int64_t choices[M3_CHOICES]; /* of the decisions in `rows`, or in `elements` where it was recomputed */
    int64_t differing; /* decisions whose sets differ */
    int64_t certified; /* decisions that every conforming result takes in the same way */
    int64_t tainted; /* decisions left out: inherited, and without scores to judge them */
    struct m3_flip *flips; /* [differing], in order; NULL if none */
    double gap, bound; /* of the decision at the place, as in struct m3_certificate; NaN: unknown */
    double least_gap; /* the smallest gap / bound of all decisions; NaN: no scores */
    const char *scores; /* static text: whose scores judged the decision at the place, or the first; */
    const char *bounded_by; /* what bounds them; NULL: no scores */

    /* Where the operator was recomputed from the candidate's own inputs. */
    const char *made_by; /* static: its operator, "rope"; NULL: it was not recomputed */
    const char *section; /* static: the heading of SPEC.md that describes it */
    char since[64]; /* the first recomputed (not dumped) tap on which it depends; or empty */
    int64_t operators; /* judged together: 1 if all inputs were dumped */
    /* Relative to |reference| in L2, the truth for the whole model; for selections: shares of all decisions. */
    double inherited; /* recomputed - reference; decisions that differ legitimately */
    double created; /* candidate - recomputed; inadmissible decisions */
    double allowed; /* standard deviation of a legitimate error; 0 */
    const char
        *blind_to; /* static: "zeros", another pattern, or the id of a known mistake that would pass too; or NULL */
    int is_blind_to_pattern; /* that is no known mistake */
    int is_blind; /* and nothing else judged it */
    const struct m3_finding *compared; /* the comparison of the same tap with the truth (settle.h); NULL: none */

    const struct m3_mistake *mistake; /* the known mistake that explains the tap (SPEC 7.12); NULL: none does */
    double from_mistake, from_right; /* the candidate, from its results and from the right ones: |d| / |result| in
                                             * L2, or the share of sets that differ */
    char same_results[160]; /* ids of mistakes with the same results here */
    double share, share_error; /* of the errors, that what the mistake adds makes up: 1 is all of it; 0: it was not
                                     * named by its direction (cause/score.c) */
    int is_first_named; /* no earlier tap was explained by it */
    int mistakes_tried; /* those of this operator with other results than the right ones */
};

/* A finding of which nothing is known yet: not judged. */
struct m3_finding m3_finding_of(const char *tap, enum m3_tap id, int64_t layer, const struct m3_tensor *reference,
                                const struct m3_tensor *candidate);
/* The same of a tap whose operator is recomputed from the candidate's own inputs; both texts are static. */
struct m3_finding m3_finding_recomputed(const struct m3_tensor *candidate, enum m3_tap id, int64_t layer,
                                        const char *made_by, const char *section);
/* Sets the note, cut where there is no room for it. */
void m3_finding_note(struct m3_finding *finding, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Makes element `rest` of row `number` of a tensor of this shape the place. */
void m3_finding_place(struct m3_finding *finding, const struct m3_tensor *tensor, int64_t number, int64_t rest,
                      int rank);
/* "sequence 2, row 17, head 3, channel 8"; numbers alone where dimensions have no names; nothing without a place. */
void m3_finding_say_place(struct m3_text *text, const struct m3_finding *finding);
/* How far its rows are among honest implementations, by the distance that is farther beyond theirs. */
void m3_finding_say_rows(struct m3_text *text, const struct m3_finding *finding);
/* Does it fail, or is it suspect? */
static inline int m3_finding_is_wrong(const struct m3_finding *finding)
{
    return finding->verdict == M3_VERDICT_FAIL || finding->verdict == M3_VERDICT_SUSPECT;
}

/* All findings on one candidate. */
/* What a map of another program's names left over. */
struct m3_name_gaps {
    int64_t unknown,
        unmatched; /* tensors of the candidate that no tap uses; taps of the map of which nothing is there */
    struct m3_error unknown_first, unmatched_first; /* the first of them, one per line */
};

struct m3_judgement {
    struct m3_finding *findings; /* [count] in execution order: taps that the candidate holds and that match */
    int64_t count;
    int64_t judged, failed, suspect, not_judged, not_comparable; /* of the findings; judged includes the next two */
    int64_t excused; /* findings of `not_judged` that do not count as unjudged (SPEC 7, exit status) */
    int64_t missing, extra; /* taps that only the other side holds; that only the candidate holds */
    int64_t unjudged; /* findings that nothing could judge, and those of `extra` that should be judged */
    const struct m3_finding *first; /* in execution order that fails or is suspect; or NULL */
    const struct m3_finding *tightest; /* the judged floats with the largest headroom, or NULL */
    struct m3_finding next_token; /* the choices that `logits` make, one of V; tap NULL: there is none. It is
                                     * in no count */
    enum m3_verdict verdict; /* of the whole */
    enum m3_status status; /* M3_OK, M3_WRONG, M3_SUSPECT, M3_NOT_COMPARABLE */
    struct m3_error notes; /* for the reader, one per line */
    const char *next; /* what to do about a failure; NULL: run blame */
    const char *mistake; /* the id of the first known mistake that explains a tap; NULL: none */
    char explained_by[32]; /* the word of a profile with which every tap that does not pass would; or "" */
    char (*missing_taps)[64]; /* [missing] names, in execution order; NULL: not listed */
    char missing_names[200]; /* the first of them: "embed, fused .." */
    struct m3_logits *logits; /* of the candidate, where it stores them in another shape (logits.h) */
    int is_recomputed; /* the findings are on operators recomputed from the candidate's own inputs */
    const struct m3_judgement *compared; /* the comparison of the same candidate with the truth; NULL: none */
    int64_t double_passes; /* over the weights: runs of the model in double */
    struct m3_taint *taint; /* taps that differing selections exclude from judgement by value */
    struct {
        int64_t runs; /* 0: there is no envelope, and the fields below are unset */
        const char *profile;
        int64_t ranked, blind; /* findings; blind: zeros would be within twice the largest distance */
        double percentile; /* the median of the ranked ones; NaN: none */
        const struct m3_finding *farthest; /* the ranked one with the largest rel_l2 / envelope_largest, or NULL */
    } envelope;
    int64_t rows_judged, rows; /* some of the candidate's rows, and all of them; 0: all were judged */
    const struct m3_name_gaps *gaps; /* NULL: the candidate has m3ref's names */
    struct {
        const char *model_sha256, *case_sha256, *profile_sha256; /* NULL: unknown */
    } of; /* what was judged, and how; m3_judgement_is_of sets it */
    struct m3_judgement *parts; /* [part_count] of each sequence (together.c); NULL: there is one sequence */
    struct m3_side *sides; /* [2 part_count] reference and candidate of each; or NULL */
    int64_t part_count;
};

/* Counts the findings; the first wrong one, the tightest, the verdict and the status follow. `more_unjudged`: taps
 * without a finding that should have been judged. */
void m3_judgement_settle(struct m3_judgement *judgement, int64_t more_unjudged);
/* "only rows 96 to 117, in every layer; the wrong values are zeros": of one of the findings; what its note says if there
 * is no pattern. Nothing if nothing is known. */
void m3_judgement_say_pattern(struct m3_text *text, const struct m3_judgement *judgement,
                              const struct m3_finding *finding);
/* Notes a tap that the candidate does not hold; `missing_taps` has room for it. */
void m3_judgement_miss(struct m3_judgement *judgement, const char *tap);
/* The findings on several sequences as one, which owns them, and `sides` (NULL: none). Of each tap the worst counts,
 * and numbers of rows and elements add up. M3_INTERNAL. */
int m3_judgement_together(struct m3_judgement *all, struct m3_judgement *parts, struct m3_side *sides, int64_t count,
                          struct m3_error *error);
void m3_judgement_free(struct m3_judgement *judgement);

#endif
