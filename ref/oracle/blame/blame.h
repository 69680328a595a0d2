/* Which operator is wrong? Every tap of a candidate's dump is recomputed in double from the candidate's own inputs and
 * choices: what differs was created there, the rest is inherited. SPEC 7.7.
 *
 * A value that is not in the dump is recomputed from what comes before it, with how far it may be off; a tap after
 * several such operators is judged as all of them together. */
#ifndef M3_ORACLE_BLAME_BLAME_H
#define M3_ORACLE_BLAME_BLAME_H

#include <stdint.h>

#include "base/status.h"
#include "io/safetensors.h"
#include "oracle/error/recompute.h"
#include "oracle/error/tiers.h"
#include "oracle/judge/compare.h"

/* One tap of the candidate. Floats: the place is the element of the largest |created| / allowed. Choices: the first
 * decision of the worst kind, got and want the first ids by which the sets differ. */
struct m3_blamed {
    char name[64];
    enum m3_tap tap;
    int64_t layer;
    const struct m3_tensor *candidate;
    const char *operator;           /* static: "rope" */
    const char *section;            /* static: the heading of SPEC.md that describes it */
    enum m3_verdict verdict;
    char note[192];                 /* why not judged, what is wrong with a choice; empty: nothing to say */
    int rank;                       /* of `index`; 0: no place to show */
    int64_t index[M3_MAX_RANK];     /* the first is the row's number in the sequence */
    double got, want;               /* want: y, recomputed */
    int64_t rows, left_out;         /* judged; in the dump, but not judged */
    char since[64];                 /* the first tap that was recomputed, not dumped, on the way here; or empty */
    int64_t operators;              /* judged together: 1 if all inputs were dumped */

    /* Relative to |reference| in L2, the truth for the whole model; of choices: shares of all decisions. */
    double inherited;               /* y - reference; decisions that differ and may */
    double created;                 /* candidate - y; decisions that must not be */
    double allowed;                 /* standard deviation of an honest error; 0 */
    int64_t elements;
    struct m3_tier_result tiers;    /* of floats */

    int selection;                  /* the fields below hold */
    enum m3_choice choice;          /* the worst */
    int64_t choices[M3_CHOICES];
    const char *scores;             /* static: "dumped", "made again" or "none" */
    double gap;                     /* of the place, in units of the bounds of its scores; NaN if unknown */
};

struct m3_blame {
    struct m3_blamed *taps;         /* in execution order: those of the dump that match */
    int64_t count;
    int64_t judged, failed, suspect, not_judged, not_comparable;
    const struct m3_blamed *culprit;        /* the first that fails, else the first suspect; or NULL */
    enum m3_status status;          /* M3_OK, M3_WRONG, M3_SUSPECT, M3_NOT_COMPARABLE */
    struct m3_error notes;          /* what the reader should know, a line each */
};

struct m3_blame_options {
    const char *taps;               /* patterns of the taps to judge, NULL: all; operands are taken from all */
    int force;                      /* the dump may be of another model or case */
    /* Of the run in double, as in m3_request; or NULL. */
    void (*progress)(void *self, const char *part, int64_t layer, int64_t layers);
    void *progress_self;
};

/* The double engine runs the case once, for what is inherited. 0 if taps were judged or could not be, whatever the
 * verdict in result->status. M3_NOT_COMPARABLE: nothing matched, or another model or case without `force`;
 * M3_BAD_INPUT: no dump; M3_IO: no room for the run's taps in the folder for temporary files; M3_INTERNAL. The result
 * refers into `candidate`; free it in any case. */
int m3_blame(struct m3_blame *result, const struct m3_setting *setting, const struct m3_safetensors *candidate,
             const struct m3_blame_options *options, struct m3_error *error);
void m3_blame_free(struct m3_blame *result);

#endif
