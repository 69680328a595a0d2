/* How far honest implementations are from the truth at the end of a whole pass: N of them, drawn at random (noise.h),
 * their distances kept per tap. Weak evidence, and so it never fails a candidate. SPEC 7.10. */
#ifndef M3_ORACLE_VARIANTS_ENVELOPE_H
#define M3_ORACLE_VARIANTS_ENVELOPE_H

#include "model/files/case.h"
#include "model/engine.h"
#include "model/taps.h"
#include "oracle/error/profile.h"

enum { M3_ENVELOPE_RUNS = 32 };         /* fewer say little */

struct m3_envelope_plan {
    const struct m3_model *model;
    const struct m3_case *c;            /* from place 0 */
    const struct m3_semantics *semantics;
    const struct m3_profile *profile;
    enum m3_linear linear;
    int threads;
    int64_t runs;                       /* >= 1 */
    uint64_t seed;                      /* the same seed gives the same bytes, whatever the threads */
    const char *taps;                   /* patterns; NULL: all */
    const char *command;                /* for the file's metadata */
    void (*progress)(void *self, int64_t run, int64_t runs);        /* before each; run 0: the reference. Or NULL */
    void *progress_self;
};

/* Writes `path`; the truth's taps are kept in a file beside it meanwhile. M3_BAD_INPUT: a profile that cannot be drawn
 * from (noise.h); M3_USAGE: no tap matches; else what the passes and the files give. */
int m3_envelope_make(const struct m3_envelope_plan *plan, const char *path, struct m3_error *error);

struct m3_envelope;

/* model_sha256, case_sha256: of what is to be ranked; NULL: not checked. M3_ABSENT, M3_IO; M3_BAD_INPUT: no envelope,
 * one of another model, case or profile. *envelope is NULL on failure. */
int m3_envelope_open(struct m3_envelope **envelope, const char *path, const char *model_sha256,
                     const char *case_sha256, const struct m3_profile *profile, struct m3_error *error);
void m3_envelope_close(struct m3_envelope *envelope);           /* NULL is fine */
int64_t m3_envelope_runs(const struct m3_envelope *envelope);
/* A string of the file; NULL: it has none of that name. */
const char *m3_envelope_metadata(const struct m3_envelope *envelope, const char *key);
/* How many taps of choices the pass has before this tap, in execution order. */
int64_t m3_envelope_choices_before(const struct m3_envelope *envelope, enum m3_tap tap, int64_t layer);

struct m3_envelope_rank {
    double percentile;              /* 0 to 100: of the runs, those nearer to the truth, and half of those as near */
    double median, largest;         /* of the runs */
    int suspect;                    /* not within twice the largest; NaN never is */
    int blind;                      /* twice the largest is 1 or more: zeros would pass, so nothing is said */
};

/* Where a candidate stands whose relative L2 distance from the truth is that. Only taps that no other choice of blocks
 * or experts has reached can be ranked: the runs follow the truth's. Returns 0, or -1: no such tap. */
int m3_envelope_rank(struct m3_envelope_rank *rank, const struct m3_envelope *envelope, const char *tap,
                     double rel_l2);

#endif
