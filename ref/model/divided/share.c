#include "model/divided/share.h"

#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/forward/layer.h"
#include "model/forward/mtp.h"
#include "ops/operators.h"

/* The plain definitions are on every rank. */
static int is_plain(const struct m3_request *r) { return r->replacement && r->replacement->ops == &m3_plain_ops; }

int m3_share_divides(const struct m3_model *model, const struct m3_request *r)
{
    return model->ranks && m3_ranks_shares(model->ranks, model) && (!r->replacement || is_plain(r)) &&
           (!r->force || r->force->wants) && !r->resume;
}

static int64_t mark_index(const struct m3_config *c, enum m3_tap tap, int64_t layers, int64_t layer)
{
    return (int64_t)tap * (1 + layers) + (layer < 0 ? 0 : 1 + m3_layer_index(c, layer));
}

static int64_t layers_of(const struct m3_model *model) { return model->config.layers + model->mtp_modules; }

static int64_t marks_of(const struct m3_model *model) { return M3_TAPS * (1 + layers_of(model)); }

int m3_share_mark(const struct m3_pass *f, enum m3_tap tap)
{
    return f->share->marks ? f->share->marks[mark_index(f->config, tap, layers_of(f->model), f->layer)] : 0;
}

/* Rank 0 marks the taps that it wants to see, or to change. */
static void mark(struct m3_pass *f, struct m3_share *s)
{
    const struct m3_request *r = f->request;
    const int64_t all = layers_of(f->model), main = f->config->layers;
    for (int tap = 0; !f->status && tap < M3_TAPS; tap++)
        for (int64_t i = -1; i < all; i++) {
            const int64_t layer = i < main ? i : M3_MTP_LAYER + i - main;
            const int shown = r->sink && r->sink->wants(r->sink->self, tap, layer);
            const int forced = r->force && r->force->wants(r->force->self, tap, layer);
            s->marks[mark_index(f->config, tap, all, layer)] =
                (unsigned char)((shown ? M3_MARK_SHOWN : 0) | (forced ? M3_MARK_FORCED : 0));
        }
}

static void set_status(struct m3_pass *f, int status)
{
    if (!f->status) f->status = status;
}

/* Sends from rank 0, receives on the others. */
static void send(struct m3_pass *f, void *data, int64_t count, size_t size)
{
    if (!f->status) set_status(f, m3_order_send(f->share->ranks, data, (uint64_t)count * size, f->error));
}

int m3_share_splits(const struct m3_pass *f) { return f->share && f->share->division.T > 0; }

int64_t m3_share_p0(const struct m3_pass *f) { return f->share->order.p0; }
int m3_share_gives_embedded(const struct m3_pass *f) { return f->share->order.gives_embedded; }
int m3_share_gives_final_norm(const struct m3_pass *f) { return f->share->order.gives_final_norm; }

struct m3_rows m3_share_rows(struct m3_pass *f, int64_t T, int64_t rows)
{
    struct m3_share *s = f->share;
    s->division = (struct m3_division){ s->order.is_divided ? T : 0, rows, s->count };
    return m3_division_rows(&s->division, s->rank);
}

int m3_share_is_step(const struct m3_pass *f) { return f->share->order.is_step != 0; }

int64_t m3_share_modules(const struct m3_pass *f) { return f->share->order.modules; }

const int32_t *m3_share_all_ids(const struct m3_pass *f) { return f->share->all_ids; }

const int32_t *m3_share_ids(struct m3_pass *f, int64_t shift)
{
    struct m3_share *s = f->share;
    for (int64_t i = 0; i < f->rows; i++) s->ids[i] = s->all_ids[m3_rows_row(&f->own, i) + shift];
    return s->ids;
}

/* The request of this rank's rows: their ids and positions instead of all. */
static void take_own(struct m3_pass *f, const int64_t *positions)
{
    struct m3_share *s = f->share;
    m3_pass_take_rows(f, s->order.T, s->order.T);
    s->ids = m3_pass_need(f, f->rows, 1, sizeof *s->ids);
    s->positions = m3_pass_need(f, f->rows, 1, sizeof *s->positions);
    if (f->status) return;
    s->request.ids = m3_share_ids(f, 0);
    for (int64_t i = 0; i < f->rows; i++) s->positions[i] = positions[m3_rows_row(&f->own, i)];
    s->request.positions = s->positions;
}

static void start(struct m3_pass *f, struct m3_share *s, struct m3_ranks *ranks)
{
    s->ranks = ranks;
    s->rank = m3_ranks_rank(ranks);
    s->count = m3_ranks_count(ranks);
    f->share = s;
}

static void start_whole(struct m3_pass *f, struct m3_share *s)
{
    *s = (struct m3_share){ .whole = f->request, .request = *f->request };
    start(f, s, f->model->ranks);
    s->marks = m3_pass_need(f, marks_of(f->model), 1, 1);
    mark(f, s);
}

/* What follows an order of which rows are divided. */
static void send_call(struct m3_pass *f, int32_t *ids, int64_t *positions, unsigned char *seen,
                      struct m3_features *features)
{
    const struct m3_order *o = &f->share->order;
    if (!o->is_divided) return;
    send(f, ids, o->T, sizeof *ids);
    send(f, positions, o->T, sizeof *positions);
    if (o->has_seen) send(f, seen, o->p0 + o->T, 1);
    if (o->has_features) send(f, features->rows, (o->images + o->videos) * f->config->H, sizeof(real));
    send(f, f->share->marks, marks_of(f->model), 1);
}

static struct m3_order order_of(struct m3_pass *f, const struct m3_features *features)
{
    const struct m3_request *r = f->request;
    const int64_t p0 = r->cache ? m3_cache_length(r->cache, M3_CACHE_MAIN) : r->shift, modules = m3_mtp_shown(f);
    const int is_step = r->cache && r->T <= M3_ALONE_ROWS;
    const int reads_rows = modules > 0 && r->semantics->mtp_embed == M3_MTP_EMBED_FUSED;        /* of other ranks */
    /* clang-format off */
    return (struct m3_order){
        .kind = M3_ORDER_FORWARD, .first_layer = r->first_layer, .end_layer = r->end_layer, .real_bytes = sizeof(real),
        .plain = is_plain(r), .linear = r->linear, .threads = r->threads, .T = r->T, .p0 = p0, .shift = r->shift,
        .is_divided = !is_step && !reads_rows && r->T >= INT64_C(2) * f->share->count, .is_step = is_step, .modules = modules,
        .has_seen = r->seen != NULL, .has_features = features->rows != NULL, .images = features->images,
        .videos = features->videos, .gives_final_norm = r->final_norm != NULL, .gives_embedded = r->embedded != NULL,
        .logit_rows = r->logits ? r->logit_rows : 0, .semantics = *r->semantics,
    };
    /* clang-format on */
}

void m3_share_begin(struct m3_pass *f, struct m3_share *s, struct m3_features *features)
{
    const struct m3_request *whole = f->request;
    start_whole(f, s);
    if (f->status) return;
    s->order = order_of(f, features);
    s->request.logit_rows = s->order.logit_rows;
    s->all_ids = (int32_t *)(uintptr_t)whole->ids;
    send(f, &s->order, 1, sizeof s->order);
    send_call(f, s->all_ids, (int64_t *)(uintptr_t)whole->positions, (unsigned char *)(uintptr_t)whole->seen, features);
    f->request = &s->request;
    take_own(f, whole->positions);
}

void m3_share_begin_module(struct m3_pass *f, struct m3_share *s, const struct m3_mtp_request *r)
{
    start_whole(f, s);
    s->order = (struct m3_order){
        .kind = M3_ORDER_MTP,
        .real_bytes = sizeof(real),
        .plain = is_plain(f->request),
        .linear = f->request->linear,
        .threads = f->request->threads,
        .T = r->T,
        .is_step = f->cache && r->T <= M3_ALONE_ROWS,
        .module = r->module,
        .semantics = *f->request->semantics,
    };
    send(f, &s->order, 1, sizeof s->order);
}

void m3_share_end(struct m3_pass *f)
{
    struct m3_share *s = f->share;
    if (!s) return;
    if (f->status) m3_ranks_fail(s->ranks, f->error);
    m3_ranks_work(s->ranks)->rows += f->status ? 0 : m3_rows_count(&f->own);
    free(s->ids);
    free(s->positions);
    free(s->marks);
    if (!s->whole) {
        free(s->all_ids);
        free(s->all_positions);
        free(s->seen);
        free(s->features);
    }
}

/* Receives what the rank's rows need, into memory of the share. */
static void receive_call(struct m3_pass *f, struct m3_features *features)
{
    struct m3_share *s = f->share;
    const struct m3_order *o = &s->order;
    *features = (struct m3_features){ NULL, o->images, o->videos };
    if (!o->is_divided) return;
    s->all_ids = m3_pass_need(f, o->T, 1, sizeof *s->all_ids);
    s->all_positions = m3_pass_need(f, o->T, 1, sizeof *s->all_positions);
    if (o->has_seen) s->seen = m3_pass_need(f, o->p0 + o->T, 1, 1);
    if (o->has_features) s->features = m3_pass_need(f, o->images + o->videos, f->config->H, sizeof(real));
    s->marks = m3_pass_need(f, marks_of(f->model), 1, 1);
    features->rows = s->features;
    send_call(f, s->all_ids, s->all_positions, s->seen, features);
    s->request.seen = s->seen;
}

static void run_module(struct m3_pass *f)
{
    struct m3_activations a = { 0 };
    f->layer = M3_MTP_LAYER + f->share->order.module;
    m3_pass_take_rows(f, f->share->order.T, f->share->order.T);
    m3_activations_make(f, &a);
    m3_layer_run(f, &a);
    m3_activations_free(&a);
}

int m3_share_obey(const struct m3_model *model, struct m3_ranks *ranks, const struct m3_order *o,
                  struct m3_error *error)
{
    const struct m3_replacement plain = { &m3_plain_ops, NULL };
    struct m3_features features;
    struct m3_pass f;
    struct m3_share s = { .order = *o };
    if (!model) return m3_fail(error, M3_INTERNAL, "got an order without a model");
    s.request = (struct m3_request){
        .T = o->T,
        .shift = o->shift,
        .first_layer = o->first_layer,
        .end_layer = o->end_layer,
        .semantics = &s.order.semantics,
        .linear = (enum m3_linear)o->linear,
        .threads = (int)o->threads,
        .replacement = o->plain ? &plain : NULL,
        .logit_rows = o->logit_rows,
    };
    m3_pass_open(&f, model, &s.request, error);
    start(&f, &s, ranks);
    if (o->kind == M3_ORDER_MTP) {
        run_module(&f);
    } else {
        receive_call(&f, &features);
        take_own(&f, s.all_positions);
        if (!f.status) m3_text_forward(&f, &features);
    }
    m3_share_end(&f);
    return m3_pass_close(&f);
}
