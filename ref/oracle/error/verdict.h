/* The verdicts on a tap, from good to bad, then those without a judgement. SPEC 7. */
#ifndef M3_ORACLE_ERROR_VERDICT_H
#define M3_ORACLE_ERROR_VERDICT_H

/* clang-format off */
enum m3_verdict {
    M3_VERDICT_PASS, M3_VERDICT_SUSPECT, M3_VERDICT_FAIL, M3_VERDICT_NOT_JUDGED, M3_VERDICT_NOT_COMPARABLE,
};
/* clang-format on */

static inline int m3_is_judged(enum m3_verdict verdict) { return verdict <= M3_VERDICT_FAIL; }

#endif
