#include "model/forward/activations.h"

#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/divided/part.h"

void m3_activations_make(struct m3_pass *f, struct m3_activations *a)
{
    const struct m3_config *c = f->config;
    int64_t T = f->rows, S = f->p0 + f->T, wide = m3_max(c->dense_intermediate, c->shared_intermediate);
    int64_t B = c->block > 0 ? (S + c->block - 1) / c->block : 0;     /* 0: no layer is sparse */

    a->hidden = m3_pass_need(f, T, c->H, sizeof(real));
    a->normed = m3_pass_need(f, T, c->H, sizeof(real));
    a->branch = m3_pass_need(f, T, c->H, sizeof(real));
    a->q = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    a->attn = m3_pass_need(f, T, c->Q * c->D, sizeof(real));
    a->lse = m3_pass_need(f, T, c->Q, sizeof(real));
    a->index_q = m3_pass_need(f, T, c->G * c->X, sizeof(real));
    a->block_scores = m3_pass_need(f, m3_min(T, M3_SCORE_ROWS), c->G * B, sizeof(real));
    a->blocks = m3_pass_need(f, T, c->G * c->N, sizeof(int32_t));
    a->gate = m3_pass_need(f, T, wide, sizeof(real));
    a->up = m3_pass_need(f, T, wide, sizeof(real));
    a->router = m3_pass_need(f, T, c->E, sizeof(real));
    a->ids = m3_pass_need(f, T, c->K, sizeof(int32_t));
    a->p = m3_pass_need(f, T, c->K, sizeof(real));
    a->routed = m3_pass_need(f, T, c->H, sizeof(real));
    a->angles.cos = m3_pass_need(f, T, c->R / 2, sizeof(real));
    a->angles.sin = m3_pass_need(f, T, c->R / 2, sizeof(real));
    a->angles.R = c->R;
    if (!f->cache) m3_activations_keys(f, a);
    if (!m3_share_splits(f)) return;
    a->own.k = m3_pass_need(f, T, c->G * c->D, sizeof(real));
    a->own.v = m3_pass_need(f, T, c->G * c->D, sizeof(real));
    a->own.index_k = m3_pass_need(f, T, c->X, sizeof(real));
}

/* Room for the keys of the places that the rows see; zeros for those without a token. */
static real *keys(struct m3_pass *f, int64_t width)
{
    const int64_t shift = f->request->shift, rows = m3_rows_seen(&f->own);
    real *memory = rows ? m3_pass_need(f, f->p0 + rows, width, sizeof(real)) : NULL;
    if (memory) memset(memory, 0, (size_t)(shift * width) * sizeof(real));
    return memory;
}

void m3_activations_keys(struct m3_pass *f, struct m3_activations *a)
{
    const struct m3_config *c = f->config;
    if (a->keys.k) return;
    a->keys = (struct m3_keys){ keys(f, c->G * c->D), keys(f, c->G * c->D), keys(f, c->X) };
}

void m3_activations_free(struct m3_activations *a)
{
    void *all[] = { a->keys.k,      a->keys.v, a->keys.index_k, a->own.k,        a->own.v,
                    a->own.index_k, a->hidden, a->normed,       a->branch,       a->q,
                    a->attn,        a->lse,    a->index_q,      a->block_scores, a->blocks,
                    a->gate,        a->up,     a->router,       a->ids,          a->p,
                    a->expert_out,  a->routed, a->angles.cos,   a->angles.sin };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
