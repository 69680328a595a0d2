/* An envelope (variants/envelope_make.h), and where a candidate stands among its runs. Weak evidence, and so it never
 * fails a candidate. SPEC 7.10. */
#ifndef M3_ORACLE_JUDGE_ENVELOPE_H
#define M3_ORACLE_JUDGE_ENVELOPE_H

#include "io/safetensors.h"
#include "model/files/origin.h"
#include "model/taps.h"
#include "oracle/error/profile.h"

/* What its metadata say under "format". */
extern const char m3_envelope_format[];

struct m3_envelope;

/* origin: of what is to be ranked; NULL, or a hash that is NULL: not checked. M3_ABSENT, M3_IO; M3_BAD_INPUT: no
 * envelope, one of another model, case or profile. *envelope is NULL on failure. */
int m3_envelope_open(struct m3_envelope **envelope, const char *path, const struct m3_origin *origin,
                     const struct m3_profile *profile, struct m3_error *error);
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
int m3_envelope_rank(struct m3_envelope_rank *rank, const struct m3_envelope *envelope, const char *tap, double rel_l2);

#endif
