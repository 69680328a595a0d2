#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/error/tiers/effective_precision.h"
#include "oracle/judge/private/values.h"

struct measuring {
    struct m3_errors errors;
    struct m3_precision_sums sums;
};

int m3_stage_precision(struct m3_finding *stage, const struct m3_pieces *pieces, struct m3_error *error)
{
    struct measuring *at = calloc(1, sizeof *at);
    if (at == NULL) return m3_fail_memory(error, stage->tap, sizeof *at);
    enum { RUN = 64 };
    const int64_t step = m3_max(1, pieces->elements / M3_PRECISION_ELEMENTS);
    double want[RUN], got[RUN];
    int64_t run = 0;
    for (int64_t p = 0; p < pieces->count; p++) {
        const struct m3_piece *piece = &pieces->all[p];
        for (int64_t i = 0; i < piece->length; i += RUN) {
            const int64_t n = m3_min(RUN, piece->length - i);
            if (run++ % step != 0) continue;
            m3_piece_read(want, got, stage, piece, i, n);
            m3_errors_add(&at->errors, want, got, n);
            m3_precision_add(&at->sums, want, got, NULL, NULL, n);
        }
    }
    for (int k = 0; k < M3_QUANTILES; k++) stage->off.quantiles[k] = m3_errors_quantile(&at->errors, m3_quantiles[k]);
    struct m3_precision precision;
    m3_precision_of(&precision, &at->sums);
    /* Other results are meaningful only for a single operator: here errors are inherited. */
    if (precision.effective == M3_EFFECTIVE_EXACT || precision.effective == M3_EFFECTIVE_FLOAT ||
        precision.grid != M3_DTYPES)
        snprintf(stage->off.effective, sizeof stage->off.effective, "%s", precision.words);
    free(at);
    return M3_OK;
}
