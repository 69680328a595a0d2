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
#include "oracle/judge/finding/finding.h"

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
int m3_compare(struct m3_judgement *result, const struct m3_safetensors *reference,
               const struct m3_safetensors *candidate, const struct m3_compare_options *options,
               struct m3_error *error);
/* Was a float tap judged by what whole passes may differ, not by its operator alone? A small mistake can hide there. */
int m3_finding_is_lax(const struct m3_finding *finding);
/* States what the comparison is of: for reports that are later compared with others. The texts stay the arguments'. */
void m3_judgement_is_of(struct m3_judgement *result, const struct m3_safetensors *reference,
                        const struct m3_profile *profile);

#endif
