/* blame with honest implementations of the profile, for taps that bounds cannot judge alone. SPEC 7.10. */
#ifndef M3_ORACLE_CHECK_BLAME_HONEST_H
#define M3_ORACLE_CHECK_BLAME_HONEST_H

#include "oracle/judge/blame/blame.h"

/* Can honest implementations be drawn for this profile, and run over this case? */
int m3_honest_can_run(const struct m3_setting *setting);

/* The number of them that a truth needs for this profile; 0: none can be drawn. */
int64_t m3_honest_runs_of(const struct m3_profile *profile);

/* As m3_blame; row_runs: how many implementations, 0: none, -1: as many as the profile needs. */
int m3_blame_honest(struct m3_judgement *result, const struct m3_setting *setting,
                    const struct m3_safetensors *candidate, const struct m3_blame_options *options, int64_t row_runs,
                    struct m3_error *error);

#endif
