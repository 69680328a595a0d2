/* The verdicts on a tap, from good to bad, then those without a judgement, and the verdict on a whole run. SPEC 7. */
#ifndef M3_ORACLE_ERROR_VERDICT_H
#define M3_ORACLE_ERROR_VERDICT_H

#include <stdint.h>

#include "base/status.h"

enum m3_verdict {
    M3_VERDICT_PASS,
    M3_VERDICT_SUSPECT,
    M3_VERDICT_FAIL,
    M3_VERDICT_NOT_JUDGED,
    M3_VERDICT_NOT_COMPARABLE,
    M3_VERDICT_PARTIAL,         /* of a run: nothing is wrong, but not everything was judged */
};

static inline int m3_is_judged(enum m3_verdict verdict) { return verdict <= M3_VERDICT_FAIL; }

/* The stages that the candidate holds and that were asked for, counted by verdict. */
struct m3_tally {
    int64_t judged, failed, suspect;    /* judged includes the other two */
    int64_t not_comparable;
    int64_t unjudged;                   /* nothing could judge them */
};

/* The verdict on the whole run; compare and blame have no other rule. A run passes only if everything was judged. */
static inline enum m3_verdict m3_run_verdict(const struct m3_tally *tally)
{
    if (tally->failed > 0) return M3_VERDICT_FAIL;
    if (tally->not_comparable > 0 || tally->judged == 0) return M3_VERDICT_NOT_COMPARABLE;
    if (tally->suspect > 0) return M3_VERDICT_SUSPECT;
    return tally->unjudged > 0 ? M3_VERDICT_PARTIAL : M3_VERDICT_PASS;
}

/* The exit status of such a run. */
static inline enum m3_status m3_run_status(enum m3_verdict verdict)
{
    switch (verdict) {
    case M3_VERDICT_PASS: return M3_OK;
    case M3_VERDICT_FAIL: return M3_WRONG;
    case M3_VERDICT_SUSPECT:
    case M3_VERDICT_PARTIAL: return M3_SUSPECT;
    default: return M3_NOT_COMPARABLE;
    }
}

#endif
