#include "ops/expand.h"
#include "ops/operators.h"

/* Embedding rows. SPEC 5.1
 *
 *     y[t] = w[ids[t]]
 *
 * y [T,H]; ids [T]; w [V,H].  Often wrong: a factor sqrt(H), copied from Gemma with its norm. M3 has none. */
int m3_embed(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    int64_t H = w->cols;

    for (int64_t t = 0; t < T; t++)
        if (ids[t] < 0 || ids[t] >= w->rows)
            return m3_fail_at(ctx, M3_BAD_INPUT, "id outside the vocabulary", t, -1, -1);

#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) m3_expand_row(y + t * H, w, ids[t]);
    return M3_OK;
}
