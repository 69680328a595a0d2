#include "model/mtp.h"

#include <stdlib.h>
#include <string.h>

#include "model/head.h"

/* Half of every row of joined [T,2H] := x [T,H]; the embedding's is half 0. */
static void put_half(real *joined, const real *x, int64_t T, int64_t H, int half)
{
    for (int64_t t = 0; t < T; t++) memcpy(joined + (2 * t + half) * H, x + t * H, (size_t)H * sizeof *x);
}

/* e [T,H] := the embeddings that the rows join. */
static int embed(struct m3_pass *f, real *e, const struct m3_mtp_request *r)
{
    const struct m3_semantics *s = r->how->semantics;
    int64_t H = f->config->H;
    m3_pass_prepared(f, M3_TAP_MTP_EMBED_NORM, 0, f->ops.embed(&f->ctx, e, r->ids, &f->model->embed, f->rows));
    if (r->embedded) memcpy(e, r->embedded, (size_t)(r->embedded_rows * H) * sizeof *e);
    for (int64_t t = 0; t < f->rows; t++)
        if (s->mtp_zero_position0 == M3_MTP_ZERO_POSITION0 && r->positions[t] == 0)
            memset(e + t * H, 0, (size_t)H * sizeof *e);
    return f->status;
}

/* x := eh_proj [norm(e) ; norm(h)]. Scratch: joined [T,2H], scale [H], b->h. */
static int concat(struct m3_pass *f, struct m3_activations *b, real *joined, real *scale,
                  const struct m3_mtp_request *r, const struct m3_mtp *w)
{
    int64_t T = f->rows, H = f->config->H;
    real eps = (real)f->config->eps;
    m3_pass_vector(scale, &w->embed_norm);
    if (did(f, M3_TAP_MTP_EMBED_NORM, b->h, f->norm(&f->ctx, b->h, b->x, scale, T, H, eps))) return f->status;
    put_half(joined, b->h, T, H, 0);
    m3_pass_vector(scale, &w->hidden_norm);
    if (did(f, M3_TAP_MTP_HIDDEN_NORM, b->h, f->norm(&f->ctx, b->h, r->hidden, scale, T, H, eps))) return f->status;
    put_half(joined, b->h, T, H, 1);
    return did(f, M3_TAP_MTP_EH_PROJ, b->x, f->ops.linear(&f->ctx, b->x, joined, &w->eh_proj, NULL, T));
}

/* x := e + (hidden half of eh_proj) h, without norms: the reading of one document. */
static int additive(struct m3_pass *f, struct m3_activations *b, real *joined, const struct m3_mtp_request *r,
                    const struct m3_mtp *w)
{
    int64_t T = f->rows, H = f->config->H;
    memset(joined, 0, (size_t)(2 * T * H) * sizeof *joined);
    put_half(joined, r->hidden, T, H, 1);
    return m3_pass_prepared(f, M3_TAP_MTP_EH_PROJ, 0, f->ops.linear(&f->ctx, b->h, joined, &w->eh_proj, NULL, T))
        || did(f, M3_TAP_MTP_EH_PROJ, b->x, f->ops.add(&f->ctx, b->x, b->x, b->h, T * H));
}

int m3_mtp_module(struct m3_pass *f, struct m3_activations *b, const struct m3_mtp_request *r)
{
    const struct m3_mtp *w = &f->model->mtp[r->module];
    const struct m3_semantics *s = r->how->semantics;
    int64_t T = f->rows, H = f->config->H;
    size_t bytes = (size_t)(T * H) * sizeof(real);
    real *joined = m3_pass_need(f, T, 2 * H, sizeof *joined), *scale = m3_pass_need(f, 1, H, sizeof *scale);

    f->layer = M3_MTP_LAYER + r->module;
    if (!f->status) embed(f, b->x, r);
    if (!f->status && s->mtp_join == M3_MTP_ADDITIVE) additive(f, b, joined, r, w);
    else if (!f->status) concat(f, b, joined, scale, r, w);
    if (!f->status) m3_layer_angles(f, b, r->positions);
    if (!f->status) m3_layer_run(f, b, f->config->layers + r->module);
    if (!f->status)
        m3_head(f, b->h, b->x, &w->final_norm, M3_TAP_MTP_FINAL_NORM, M3_TAP_MTP_LOGITS, r->logits, r->logit_rows);
    if (!f->status) memcpy(r->hidden, s->mtp_handover == M3_HANDOVER_POST_NORM ? b->h : b->x, bytes);
    free(joined);
    free(scale);
    f->layer = -1;
    return f->status;
}

/* Does somebody watch a tap of this module? */
static int shows_module(struct m3_pass *f, int64_t m)
{
    int shows = 0;
    f->layer = M3_MTP_LAYER + m;
    for (int tap = 0; tap < M3_TAPS && f->request->sink; tap++) {
        enum m3_tap_where where = m3_tap_table[tap].where;
        shows |= where >= M3_WHERE_EVERY_LAYER && where != M3_WHERE_AFTER_LAYERS && m3_pass_shows(f, tap);
    }
    f->layer = -1;
    return shows;
}

/* How many modules a pass runs: those up to the last that is shown. */
static int64_t modules_shown(struct m3_pass *f)
{
    int64_t count = 0;
    for (int64_t m = 0; m < m3_request_modules(f->model, f->request); m++)
        if (shows_module(f, m)) count = m + 1;
    return count;
}

int m3_mtp_takes_rows(const struct m3_pass *f)
{
    return f->request->semantics->mtp_embed == M3_MTP_EMBED_FUSED && m3_request_modules(f->model, f->request) > 0;
}

int m3_mtp_forward(struct m3_pass *f, struct m3_activations *b, const real *hidden, const real *embedded)
{
    int64_t modules = modules_shown(f), H = f->config->H, T = f->rows;
    if (modules == 0) return f->status;
    f->cache = NULL;
    m3_activations_keys(f, b);
    real *state = m3_pass_need(f, T, H, sizeof *state);
    if (!f->status) memcpy(state, hidden, (size_t)(T * H) * sizeof *state);
    for (int64_t m = 0; !f->status && m < modules; m++) {
        const struct m3_mtp_request r = {
            .how = f->request, .module = m, .T = T - m - 1, .ids = f->request->ids + m + 1,
            .embedded = m3_mtp_takes_rows(f) ? embedded + (m + 1) * H : NULL, .embedded_rows = T - m - 1,
            .positions = f->request->positions,
            .hidden = state,
        };
        if (f->request->progress) f->request->progress(f->request->progress_self, "module", m, modules);
        f->rows = r.T;
        m3_mtp_module(f, b, &r);
    }
    f->rows = T;
    free(state);
    return f->status;
}
