#include "model/head.h"

#include <stdlib.h>

#include "base/minmax.h"

enum { LOGIT_ROWS = 64 };       /* rows at a time: one of the released model has 200,064 numbers */

int m3_head(struct m3_pass *f, real *h, const real *x, const struct m3_weight *w, enum m3_tap norm_tap,
            enum m3_tap logits_tap, double *logits, int64_t rows)
{
    int64_t T = f->rows, H = f->config->H, V = f->config->V, first_wanted = logits ? T - rows : T;
    real *scale = m3_pass_need(f, 1, H, sizeof *scale);
    real *piece = m3_pass_need(f, m3_min(T, LOGIT_ROWS), V, sizeof *piece);
    if (!f->status) m3_pass_vector(scale, w);
    if (!f->status) did(f, norm_tap, h, f->norm(&f->ctx, h, x, scale, T, H, (real)f->config->eps));

    /* Pieces begin at multiples, so that a row is computed with the same others whoever wants it. */
    int64_t first = first_wanted < T ? first_wanted / LOGIT_ROWS * LOGIT_ROWS : T;
    if (!f->status && m3_pass_shows(f, logits_tap)) first = 0;
    for (int64_t t0 = first; !f->status && t0 < T; t0 += LOGIT_ROWS) {
        int64_t n = m3_min(LOGIT_ROWS, T - t0);
        m3_pass_show(f, logits_tap, piece, t0, n,
                     f->ops.linear(&f->ctx, piece, h + t0 * H, &f->model->lm_head, NULL, n));
        if (!f->status) m3_pass_nan_free(f, logits_tap, piece, t0, n, V);
        for (int64_t t = m3_max(t0, first_wanted); !f->status && t < t0 + n; t++)
            for (int64_t i = 0; i < V; i++) logits[(t - first_wanted) * V + i] = (double)piece[(t - t0) * V + i];
    }
    free(scale);
    free(piece);
    return f->status;
}
