#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

/* Copies of stored rows: B = 0, or |y| and one step where a stored number is rounded. walk = B */
int m3_bound_embed(struct m3_ctx *ctx, struct m3_bound *out, const int32_t *ids, const struct m3_weight *w, int64_t T,
                   const struct m3_arithmetic *how)
{
    int64_t H = w->cols;
    out->n = 0;
    out->f = m3_bound_weight_roundings(w, how->u);
    for (int64_t t = 0; t < T; t++)
        if (ids[t] < 0 || ids[t] >= w->rows) return m3_fail_at(ctx, M3_BAD_INPUT, "id out of range", t, -1, -1);

#pragma omp parallel for num_threads(m3_team(ctx, T *H))
    for (int64_t t = 0; t < T; t++) {
        double *y = out->bound + t * H;
        m3_expand_f64(y, w, ids[t], 0, H);
        for (int64_t i = 0; i < H; i++) y[i] = out->f ? fabs(y[i]) : 0;
        if (out->walk) memcpy(out->walk + t * H, y, (size_t)H * sizeof *y);
    }
    return M3_OK;
}

static int bound(struct m3_recomputing *m)
{
    const int32_t *ids = m->setting->the_case->ids + m->numbers[0];
    return m3_bound_embed(m->ctx, &m->bound, ids, m->w[0], m->rows, &m->how);
}

const struct m3_error_operator m3_error_embed = {
    .name = "embed",
    .sections = { "5.1 embed" },
    .bound = bound,
};
