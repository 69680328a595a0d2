/* What a wrong shape or a wrong tap looks like, for compare and for blame. Hints are static text and change no
 * verdict. SPEC 7.0. */
#ifndef M3_ORACLE_JUDGE_HINTS_H
#define M3_ORACLE_JUDGE_HINTS_H

#include <stdint.h>

#include "io/safetensors.h"

/* `tap`: of enum m3_tap. */
int m3_is_logits(int tap);
/* A more helpful reason than `why` for a tensor that has not the shape [rank] of the tap, or `why`. */
const char *m3_shape_hint(int rank, const int64_t *shape, const struct m3_tensor *got, const char *why);
/* Do the rows [rows,V] look like log-softmax of the logits `want`? NULL: no. At most 64 rows are looked at. */
enum { M3_HINT_ROWS = 64 };
const char *m3_value_hint(const double *got, const double *want, int64_t rows, int64_t V);

#endif
