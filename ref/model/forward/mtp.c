#include "model/forward/mtp.h"

#include <stdlib.h>
#include <string.h>

#include "model/divided/part.h"
#include "model/forward/head.h"

/* hidden [T,H] := the embeddings that are combined with the rows. */
static void embed_joined(struct m3_pass *f, real *hidden, const struct m3_mtp_request *r)
{
    const int zero_first = r->how->semantics->mtp_zero_position0 == M3_MTP_ZERO_POSITION0;
    const int64_t H = f->config->H;
    embed(f, prepares(M3_TAP_MTP_EMBED_NORM), hidden, r->ids);
    if (f->status) return;
    put_rows(f, prepares(M3_TAP_MTP_EMBED_NORM), hidden, r->embedded, r->embedded_rows);
    for (int64_t t = 0; zero_first && t < f->rows; t++)
        if (r->positions[t] == 0) memset(hidden + t * H, 0, (size_t)H * sizeof *hidden);
}

/* a->hidden := eh_proj [norm(a->hidden) ; norm(r->hidden)] */
static void concat(struct m3_pass *f, struct m3_activations *a, real *joined, const struct m3_mtp_request *r,
                   const struct m3_mtp *w)
{
    rms_norm(f, M3_TAP_MTP_EMBED_NORM, a->normed, a->hidden, &w->embed_norm);
    put_half(f, prepares(M3_TAP_MTP_EH_PROJ), joined, a->normed, 0);
    rms_norm(f, M3_TAP_MTP_HIDDEN_NORM, a->normed, r->hidden, &w->hidden_norm);
    put_half(f, prepares(M3_TAP_MTP_EH_PROJ), joined, a->normed, 1);
    linear(f, M3_TAP_MTP_EH_PROJ, a->hidden, joined, &w->eh_proj);
}

/* a->hidden := a->hidden + (hidden half of eh_proj) r->hidden, without norms, as one document describes it. */
static void additive(struct m3_pass *f, struct m3_activations *a, real *joined, const struct m3_mtp_request *r,
                     const struct m3_mtp *w)
{
    put_half(f, prepares(M3_TAP_MTP_EH_PROJ), joined, NULL, 0);
    put_half(f, prepares(M3_TAP_MTP_EH_PROJ), joined, r->hidden, 1);
    linear(f, prepares(M3_TAP_MTP_EH_PROJ), a->branch, joined, &w->eh_proj);
    add(f, M3_TAP_MTP_EH_PROJ, a->hidden, a->hidden, a->branch);
}

void m3_mtp_module(struct m3_pass *f, struct m3_activations *a, const struct m3_mtp_request *r)
{
    const struct m3_mtp *w = &f->model->mtp[r->module];
    const struct m3_semantics *s = r->how->semantics;
    real *joined = m3_pass_need(f, f->rows, 2 * f->config->H, sizeof *joined);

    f->layer = M3_MTP_LAYER + r->module;
    embed_joined(f, a->hidden, r);
    if (s->mtp_join == M3_MTP_ADDITIVE) additive(f, a, joined, r, w);
    else concat(f, a, joined, r, w);
    rope_table(f, prepares(M3_TAP_Q_ROPE), &a->angles, r->positions);
    m3_layer_run(f, a);
    m3_head(f, a->normed, a->hidden, &w->final_norm, M3_TAP_MTP_FINAL_NORM, M3_TAP_MTP_LOGITS, r->logits,
            r->logit_rows);
    m3_pass_copy(f, r->hidden, s->mtp_handover == M3_HANDOVER_POST_NORM ? a->normed : a->hidden);
    free(joined);
    f->layer = -1;
}

/* Does the sink want a tap of this module? */
static int shows_module(struct m3_pass *f, int64_t m)
{
    int shows = 0;
    f->layer = M3_MTP_LAYER + m;
    for (int tap = 0; tap < M3_TAPS && (f->request->sink || f->request->recorder); tap++) {
        enum m3_tap_where where = m3_tap_table[tap].where;
        shows |= where >= M3_WHERE_EVERY_LAYER && where != M3_WHERE_AFTER_LAYERS && m3_pass_shows(f, tap);
    }
    f->layer = -1;
    return shows;
}

int64_t m3_mtp_shown(struct m3_pass *f)
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

void m3_mtp_forward(struct m3_pass *f, struct m3_activations *a, const real *hidden, const real *embedded)
{
    const struct m3_request *how = f->request;
    const int64_t H = f->config->H, T = f->T;
    const int64_t modules = f->status ? 0 : f->share ? m3_share_modules(f) : m3_mtp_shown(f);
    if (modules == 0) return;
    f->cache = NULL;
    m3_activations_keys(f, a);
    real *state = m3_pass_need(f, f->rows, H, sizeof *state);
    m3_pass_copy(f, state, hidden);
    for (int64_t m = 0; m < modules; m++) {
        const int64_t rows = m3_layer_rows(M3_MTP_LAYER + m, T), first = T - rows;
        m3_pass_take_rows(f, T, rows);
        const struct m3_mtp_request r = {
            .how = how,
            .module = m,
            .T = f->rows,
            .ids = f->share ? m3_share_ids(f, first) : how->ids + first,
            .positions = how->positions,
            .embedded = m3_mtp_takes_rows(f) ? embedded + first * H : NULL,
            .embedded_rows = f->rows,
            .hidden = state,
        };
        m3_pass_progress(f, "module", m, modules);
        m3_mtp_module(f, a, &r);
    }
    m3_pass_take_rows(f, T, T);
    free(state);
}
