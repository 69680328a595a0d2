/* How far legitimate implementations are from the truth at the end of a whole pass: N of them are drawn at random
 * (honest.h), and their distances are stored per tap. SPEC 7.10. */
#ifndef M3_ORACLE_VARIANTS_ENVELOPE_MAKE_H
#define M3_ORACLE_VARIANTS_ENVELOPE_MAKE_H

#include "base/progress.h"
#include "model/files/case.h"
#include "model/engine.h"
#include "model/taps.h"
#include "oracle/error/profile.h"

enum { M3_ENVELOPE_RUNS = 32 };         /* fewer are not conclusive */

struct m3_envelope_plan {
    const struct m3_model *model;
    const struct m3_case *c;            /* from place 0 */
    const struct m3_semantics *semantics;
    const struct m3_profile *profile;
    int64_t first_layer, end_layer;     /* the layers that run; end 0: all */
    const double *hidden;               /* [T,H] input of first_layer, if that is not 0 */
    enum m3_linear linear;
    int threads;
    int64_t runs;                       /* 0: nothing but rows */
    int64_t row_runs;                   /* for judging rows (honest_rows.h); 0: none, otherwise >= 2 */
    int rows_are_spare; /* a truth that another command made may lack them */
    const struct m3_safetensors *follow; /* the runs go on from this dump's layer outputs (follow.h); or NULL */
    struct m3_safetensors **truth; /* receives the double engine's taps, which the caller closes; or NULL */
    uint64_t seed; /* the same seed gives the same bytes, whatever the number of threads */
    const char *taps; /* patterns; NULL: all */
    const char *command; /* for the file's metadata */
    struct m3_progress progress;
};

/* Writes `path`; meanwhile the truth's taps are in a temporary file in the same folder. M3_BAD_INPUT: a profile from
 * which nothing can be drawn (honest.h); M3_USAGE: no tap matches; otherwise the errors of passes and files. */
int m3_envelope_make(const struct m3_envelope_plan *plan, const char *path, struct m3_error *error);

/* The request of a pass of the double engine over the plan's case. */
struct m3_request m3_envelope_request(const struct m3_envelope_plan *plan);

#endif
