#include "model/head.h"

#include <stdlib.h>

#include "base/minmax.h"
#include "model/stages.h"

enum { LOGIT_ROWS = 64 };       /* rows at a time: one of the released model has 200,064 numbers */

void m3_head(struct m3_pass *f, real *normed, const real *hidden, const struct m3_weight *w, enum m3_tap norm_tap,
             enum m3_tap logits_tap, double *logits, int64_t rows)
{
    int64_t T = f->rows, H = f->config->H, V = f->config->V, first_wanted = logits ? T - rows : T;
    real *piece = m3_pass_need(f, m3_min(T, LOGIT_ROWS), V, sizeof *piece);
    rms_norm(f, norm_tap, normed, hidden, w);

    /* Pieces begin at multiples, so that a row is always computed with the same other rows, whichever rows are
     * wanted. */
    f->row = first_wanted < T ? first_wanted / LOGIT_ROWS * LOGIT_ROWS : T;
    if (m3_pass_shows(f, logits_tap)) f->row = 0;
    for (; !f->status && f->row < T; f->row += LOGIT_ROWS) {
        f->rows = m3_min(LOGIT_ROWS, T - f->row);
        linear(f, logits_tap, piece, normed + f->row * H, &f->model->lm_head);
        m3_pass_nan_free(f, logits_tap, piece);
        for (int64_t t = m3_max(f->row, first_wanted); !f->status && t < f->row + f->rows; t++)
            for (int64_t i = 0; i < V; i++) logits[(t - first_wanted) * V + i] = (double)piece[(t - f->row) * V + i];
    }
    f->row = 0;
    f->rows = T;
    free(piece);
}
