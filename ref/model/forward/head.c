#include "model/forward/head.h"

#include <stdlib.h>

#include "base/minmax.h"
#include "model/divided/part.h"
#include "model/forward/stages.h"

enum { LOGIT_ROWS = 64 };       /* rows at a time: one of the released model has 200,064 numbers */

/* Widens the asked rows of a piece, those from `first` on, into logits [T - first,V]. */
static void widen(const struct m3_pass *f, double *logits, const real *piece, int64_t first)
{
    const int64_t V = f->config->V;
    for (int64_t t = m3_max(f->row, first); !f->status && t < f->row + f->rows; t++)
        for (int64_t i = 0; i < V; i++) logits[(t - first) * V + i] = (double)piece[(t - f->row) * V + i];
}

void m3_head(struct m3_pass *f, real *normed, const real *hidden, const struct m3_weight *w, enum m3_tap norm_tap,
             enum m3_tap logits_tap, double *logits, int64_t rows)
{
    const int64_t T = f->rows, H = f->config->H, V = f->config->V, asked = f->share || logits ? rows : 0;
    const int64_t first = m3_rows_before(&f->own, f->T - asked);        /* of this process's rows */
    real *piece = m3_pass_need(f, m3_min(T, LOGIT_ROWS), V, sizeof *piece);
    double *own = f->share ? m3_pass_need(f, T - first, V, sizeof *own) : logits;
    rms_norm(f, norm_tap, normed, hidden, w);

    /* Pieces begin at multiples, so that a row is always computed with the same other rows, whichever rows are
     * wanted. */
    f->row = first < T ? first / LOGIT_ROWS * LOGIT_ROWS : T;
    if (m3_pass_shows(f, logits_tap)) f->row = 0;
    for (; !f->status && f->row < T; f->row += LOGIT_ROWS) {
        f->rows = m3_min(LOGIT_ROWS, T - f->row);
        linear(f, logits_tap, piece, normed + f->row * H, &f->model->lm_head);
        m3_pass_nan_free(f, logits_tap, piece);
        widen(f, own, piece, first);
    }
    f->row = 0;
    f->rows = T;
    if (f->share && asked > 0) m3_share_gather(f, logits, own, f->T - asked, (size_t)V * sizeof *own);
    if (f->share) free(own);
    free(piece);
}
