/* What the reference gives for a file of cases. */
#ifndef M3_ORACLE_OPERATORS_RESULTS_H
#define M3_ORACLE_OPERATORS_RESULTS_H

#include "model/engine.h"
#include "oracle/operators/case_file.h"

/* Writes tensors "i.OUTPUT" of every case; only the sampled rows where a case lists them. With `bounds`, also
 * "i.OUTPUT.allowed" (F64): how far an implementation of the profile fp32 may be from the true value (SPEC 7.1). */
int m3_write_results(const struct m3_case_file *cases, const char *path, const struct m3_engine *engine,
                     const struct m3_replacement *replacement, int threads, int bounds, struct m3_error *error);

#endif
