/* The truth of a case, with companions and with honest implementations of a profile: what `run --precision f64 --bounds
 * --profile P --dump F` writes, made or reused. SPEC 7.13. */
#ifndef M3_ORACLE_CHECK_TRUTH_H
#define M3_ORACLE_CHECK_TRUTH_H

#include "oracle/variants/envelope_make.h"

struct m3_truth {
    struct m3_safetensors *file;
    int reused;
};

/* `plan` as for envelopes; row_runs 0: no honest implementations. `path` NULL: a file without a name. A file that is
 * the truth of this model, case, reading and profile is reused; one of another is replaced, with a note. M3_BAD_INPUT:
 * the file is no truth; otherwise the errors of passes and files. Close it in any case. */
int m3_truth_open(struct m3_truth *truth, const struct m3_envelope_plan *plan, const char *path, struct m3_error *notes,
                  struct m3_error *error);
void m3_truth_close(struct m3_truth *truth);

#endif
