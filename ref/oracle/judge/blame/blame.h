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
#include "oracle/judge/finding/finding.h"
#include "oracle/variants/mistakes.h"

struct m3_kept;

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
    struct m3_kept *kept; /* findings of the same call that was stopped, and its own; or NULL */
    int names_mistakes; /* looks for known mistakes that explain the taps that fail */
};

/* Runs the case once in the double engine, to compute what is inherited; taps are judged meanwhile, layer by layer.
 * Returns 0 if taps were judged or could not be, whatever the verdict in result->status. M3_NOT_COMPARABLE: nothing
 * matched, or another model or case without `force`; M3_BAD_INPUT: not a dump; M3_INTERNAL; M3_IO from what else receives
 * the taps. The result points into `candidate`; free it in any case. */
int m3_blame(struct m3_judgement *result, const struct m3_setting *setting, const struct m3_safetensors *candidate,
             const struct m3_blame_options *options, struct m3_error *error);

/* The same for taps that are given one by one, of which the first `operands` are not judged: results in the order of
 * execution, and no distance from a run of the model, because there is none. The values, which were read from the
 * tensors, are used up; `result` points into the tensors. M3_INTERNAL; M3_USAGE for a tap that the call does not have. */
int m3_blame_given(struct m3_judgement *result, const struct m3_setting *setting, struct m3_tap_values *values,
                   const struct m3_tensor *const *tensors, int operands, int count, struct m3_error *error);

#endif
