/* An envelope (variants/envelope_make.h), and the rank of a candidate among its runs. This is weak evidence, so it
 * never fails a candidate. SPEC 7.10. */
#ifndef M3_ORACLE_JUDGE_ENVELOPE_H
#define M3_ORACLE_JUDGE_ENVELOPE_H

#include "io/safetensors.h"
#include "model/files/origin.h"
#include "model/taps.h"
#include "oracle/error/profile.h"

/* The value of "format" in its metadata. */
extern const char m3_envelope_format[];

struct m3_envelope;

/* origin: that of the dump to be ranked; NULL, or a NULL hash in it, is not checked. M3_ABSENT, M3_IO; M3_BAD_INPUT:
 * not an envelope, or one of another model, case or profile. *envelope is NULL on failure. */
int m3_envelope_open(struct m3_envelope **envelope, const char *path, const struct m3_origin *origin,
                     const struct m3_profile *profile, struct m3_error *error);
void m3_envelope_close(struct m3_envelope *envelope);           /* NULL is fine */
int64_t m3_envelope_runs(const struct m3_envelope *envelope);
/* For the statistic of rows (rows/rows.h), which may stand in it. */
const struct m3_safetensors *m3_envelope_file(const struct m3_envelope *envelope);
/* A string of the file's metadata; NULL if there is none of that name. */
const char *m3_envelope_metadata(const struct m3_envelope *envelope, const char *key);
/* The number of selection taps that the pass has before this tap, in execution order. */
int64_t m3_envelope_choices_before(const struct m3_envelope *envelope, enum m3_tap tap, int64_t layer);

struct m3_envelope_rank {
    double percentile;              /* 0 to 100: share of the runs nearer to the truth, plus half of those as near */
    double median, largest;         /* of the runs */
    int suspect;                    /* more than twice the largest; never for NaN */
    int blind;                      /* twice the largest is 1 or more: zeros would pass, so the rank is meaningless */
};

/* The rank of a candidate at this relative L2 distance from the truth. Only taps that no differing selection of blocks
 * or experts has reached can be ranked, because the runs use the selections of the truth. Returns 0, or -1: no such
 * tap. */
int m3_envelope_rank(struct m3_envelope_rank *rank, const struct m3_envelope *envelope, const char *tap, double rel_l2);

#endif
