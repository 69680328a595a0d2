/* The gradient of one module of multi-token prediction, against the order of model/mtp.c: head, layer, join. */
#include <stdlib.h>
#include <string.h>

#include "model/backward/stages.h"

/* The columns of one half of joined [rows,2H]; half 0 is the embedding's. */
static void take_half(const struct m3_pass *f, real *x, const real *joined, int half)
{
    const int64_t H = f->config->H;
    for (int64_t t = 0; !f->status && t < f->rows; t++)
        memcpy(x + t * H, joined + (2 * t + half) * H, (size_t)H * sizeof *x);
}

/* The buffers of a module. */
struct module {
    real *e, *h;                /* [rows,H] embeddings that are joined, and the norms of a side */
    real *joined, *d_joined;    /* [rows,2H] */
    real *x, *normed;           /* [rows,H] input of the layer, and the norm of its output */
    real *d, *part;             /* [rows,H] */
};

static void make(struct m3_pass *f, struct module *a)
{
    const int64_t H = f->config->H, rows = f->rows;
    real **of[] = { &a->e, &a->h, &a->x, &a->normed, &a->d, &a->part };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) *of[i] = m3_pass_need(f, rows, H, sizeof(real));
    a->joined = m3_pass_need(f, rows, 2 * H, sizeof(real));
    a->d_joined = m3_pass_need(f, rows, 2 * H, sizeof(real));
}

static void release(struct module *a)
{
    void *all[] = { a->e, a->h, a->joined, a->d_joined, a->x, a->normed, a->d, a->part };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* What the layer of the module reads, computed again. */
static void join(struct m3_backward *b, struct module *a, const struct m3_mtp *w, const int32_t *ids,
                 const real *hidden)
{
    struct m3_pass *f = &b->f;
    embed(f, prepares(M3_TAP_MTP_EMBED_NORM), a->e, ids);
    rms_norm(f, prepares(M3_TAP_MTP_EMBED_NORM), a->h, a->e, &w->embed_norm);
    put_half(f, prepares(M3_TAP_MTP_EH_PROJ), a->joined, a->h, 0);
    rms_norm(f, prepares(M3_TAP_MTP_HIDDEN_NORM), a->h, hidden, &w->hidden_norm);
    put_half(f, prepares(M3_TAP_MTP_EH_PROJ), a->joined, a->h, 1);
    linear(f, prepares(M3_TAP_MTP_EH_PROJ), a->x, a->joined, &w->eh_proj);
}

/* a->d := the gradient of the layer's output: of its own logits, and of what the next module was given. */
static void head(struct m3_backward *b, struct module *a, const struct m3_mtp *w, int64_t m, int64_t rows)
{
    struct m3_pass *f = &b->f;
    const int64_t H = f->config->H, T = b->how.T;
    const int post = b->how.semantics->mtp_handover == M3_HANDOVER_POST_NORM;
    const real *given = b->traces[b->b].d_given;
    const real *y = b->kept.at[M3_TAP_OUT];
    int32_t *labels = m3_pass_need(f, rows, 1, sizeof *labels);
    rms_norm(f, prepares(M3_TAP_MTP_FINAL_NORM), a->normed, y, &w->final_norm);
    for (int64_t t = 0; labels && t < rows; t++) labels[t] = t + m + 2 < T ? b->request->labels[b->b][t + m + 2] : -1;
    const double weight = b->request->weights.mtp / (double)b->modules;
    b->losses->module[m] += m3_backward_logits(b, M3_TAP_MTP_LOGITS, a->d, a->normed, labels, weight);
    if (post) add(f, prepares(M3_TAP_MTP_FINAL_NORM), a->d, a->d, given);
    shown(b, M3_TAP_MTP_FINAL_NORM, a->d);
    rms_norm_back(b, prepares(M3_TAP_MTP_FINAL_NORM), a->part, a->d, y, &w->final_norm);
    if (!f->status) memcpy(a->d, a->part, (size_t)(rows * H) * sizeof *a->d);
    if (!post) add(f, prepares(M3_TAP_MTP_FINAL_NORM), a->d, a->d, given);
    free(labels);
}

/* d_given := the gradient of the hidden state that the module was given, 0 in rows that it does not have. */
static void split(struct m3_backward *b, struct module *a, const struct m3_mtp *w, const int32_t *ids,
                  const real *hidden)
{
    struct m3_pass *f = &b->f;
    const int64_t H = f->config->H;
    real *given = b->traces[b->b].d_given;
    shown(b, M3_TAP_MTP_EH_PROJ, a->d);
    linear_back(b, prepares(M3_TAP_MTP_EH_PROJ), a->d_joined, a->d, a->joined, &w->eh_proj);
    take_half(f, a->part, a->d_joined, 0);
    shown(b, M3_TAP_MTP_EMBED_NORM, a->part);
    rms_norm_back(b, prepares(M3_TAP_MTP_EMBED_NORM), a->h, a->part, a->e, &w->embed_norm);
    embed_back(b, a->h, ids);
    take_half(f, a->part, a->d_joined, 1);
    shown(b, M3_TAP_MTP_HIDDEN_NORM, a->part);
    if (!f->status) memset(given, 0, (size_t)(b->how.T * H) * sizeof *given);
    rms_norm_back(b, prepares(M3_TAP_MTP_HIDDEN_NORM), given, a->part, hidden, &w->hidden_norm);
}

void m3_backward_module(struct m3_backward *b, int64_t m)
{
    struct m3_pass *f = &b->f;
    const struct m3_mtp *w = &b->model->mtp[m];
    const int64_t rows = m3_layer_rows(M3_MTP_LAYER + m, b->how.T);
    const int32_t *ids = b->how.ids + m + 1;
    const real *hidden = b->traces[b->b].module[m];
    struct module a = { 0 };
    if (f->status || rows < 1) return;
    m3_backward_take(b, b->b, rows);
    f->layer = M3_MTP_LAYER + m;
    make(f, &a);
    join(b, &a, w, ids, hidden);
    m3_keep_layer(b, f->layer, a.x);
    head(b, &a, w, m, rows);
    m3_backward_layer(b, f->layer, a.x, a.d);
    split(b, &a, w, ids, hidden);
    release(&a);
    f->layer = -1;
}
