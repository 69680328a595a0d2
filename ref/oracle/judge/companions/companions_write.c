#include "oracle/judge/companions/companions_write.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/judge/companions/private/companions_write.h"

/* ---- which taps have companions, and which companions */

/* Is it a tap of this run, which may have fewer layers than the model? */
static int is_run(const struct m3_companions_writer *c, enum m3_tap tap, int64_t layer)
{
    const struct m3_request *r = c->request;
    const enum m3_tap_where where = m3_tap_table[tap].where;
    if (m3_mtp_module_of(layer) >= 0) return m3_mtp_module_of(layer) < m3_request_modules(c->setting.model, r);
    if (where == M3_WHERE_AFTER_LAYERS) return r->end_layer == c->setting.model->config.layers;
    if (where < M3_WHERE_EVERY_LAYER) return r->first_layer == 0;
    return layer >= r->first_layer && layer < r->end_layer;
}

struct m3_watched *m3_companions_find(struct m3_companions_writer *c, enum m3_tap tap, int64_t layer)
{
    for (int64_t i = 0; i < c->count; i++) {
        struct m3_watched *w = &c->taps[(c->at + i) % c->count];
        if (w->tap != tap || w->layer != layer) continue;
        c->at = (c->at + i) % c->count;
        return w;
    }
    return NULL;
}

/* The pass computes the outputs of the experts only if they are dumped; otherwise they are recomputed. */
static int is_recomputed(const struct m3_watched *w) { return w->tap == M3_TAP_EXPERT_OUT && !w->is_dumped; }

/* Marks, from the last tap to the first, the taps that are read by taps with companions or by recomputed taps. */
static void mark_operands(struct m3_companions_writer *c)
{
    for (int64_t i = c->count - 1; i >= 0; i--) {
        const struct m3_watched *w = &c->taps[i];
        enum m3_tap tap;
        int64_t layer;
        if (!w->is_dumped && !(is_recomputed(w) && w->is_read)) continue;
        for (int j = 0; j < M3_OPERANDS; j++) {
            if (m3_graph_operand(&tap, &layer, c->setting.model, c->setting.semantics, w->tap, w->layer, j)) continue;
            struct m3_watched *operand = m3_companions_find(c, tap, layer);
            if (operand) operand->is_read = 1;
        }
    }
}

static int list_taps(struct m3_companions_writer *c, struct m3_error *error)
{
    enum m3_tap tap;
    int64_t layer;
    while (m3_trace_tap(&c->setting, c->count, &tap, &layer)) c->count++;
    c->taps = calloc((size_t)c->count + 1, sizeof *c->taps);
    if (!c->taps) return m3_fail_memory(error, "companions", (size_t)c->count * sizeof *c->taps);
    for (int64_t i = 0; i < c->count; i++) {
        struct m3_watched *w = &c->taps[i];
        m3_trace_tap(&c->setting, i, &w->tap, &w->layer);
        w->is_dumped = is_run(c, w->tap, w->layer) && m3_dump_wants(c->dump, w->tap, w->layer);
        for (int field = 0; field < M3_COMPANION_FIELDS; field++) w->index[field] = -1;
    }
    mark_operands(c);
    return M3_OK;
}

/* ---- while the pass runs */

static void widen(double *out, const void *reals, int64_t n, size_t real_bytes)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = real_bytes == sizeof(double) ? ((const double *)reals)[i] : (double)((const float *)reals)[i];
}

/* The cached places that precede a tap of keys or values; NULL for another tap. */
static const void *cached_places(const struct m3_companions_writer *c, const struct m3_watched *w)
{
    if (!c->request->cache || c->the_case->p0 == 0) return NULL;
    switch (w->tap) {
    case M3_TAP_K_ROPE: return m3_cache_at(c->request->cache, w->layer)->k;
    case M3_TAP_V_PROJ: return m3_cache_at(c->request->cache, w->layer)->v;
    case M3_TAP_INDEX_K_ROPE: return m3_cache_at(c->request->cache, w->layer)->index_k;
    default: return NULL;
    }
}

/* Puts a whole tap and the cached places before it into the trace. */
static int put(struct m3_companions_writer *c, const struct m3_watched *w, const void *data, int64_t rows,
               struct m3_error *error)
{
    const int64_t width = m3_tap_width(&c->setting, w->tap, w->layer), p0 = c->the_case->p0;
    const void *cached = cached_places(c, w);
    struct m3_tap_values value = { .tap = w->tap, .layer = w->layer, .rows = rows, .width = width };
    value.data = (void *)(uintptr_t)data;
    if (!cached) return m3_trace_put(c->trace, &value, error);
    value.rows += p0, value.data = NULL;
    int status = m3_tap_values_room(&value, sizeof(double), error);
    value.numbers = malloc((size_t)value.rows * sizeof *value.numbers + 1);
    if (!status && !value.numbers) status = m3_fail_memory(error, "keys", (size_t)value.rows * sizeof *value.numbers);
    if (!status) {
        widen(value.values, cached, p0 * width, c->real_bytes);
        memcpy(value.values + p0 * width, data, (size_t)(rows * width) * sizeof *value.values);
        for (int64_t i = 0; i < value.rows; i++) value.numbers[i] = i - p0;
        status = m3_trace_take(c->trace, &value, error);
    }
    m3_tap_values_free(&value);
    return status;
}

/* Collects the pieces of a tap that later taps read, and puts it when it is complete. */
static int keep(struct m3_companions_writer *c, const struct m3_watched *w, const void *data, int64_t row, int64_t rows,
                struct m3_error *error)
{
    const int64_t width = m3_tap_width(&c->setting, w->tap, w->layer);
    const int64_t total = m3_tap_rows(&c->setting, w->tap, w->layer);
    if (!w->is_read) return M3_OK;
    if (m3_tap_table[w->tap].kind != M3_KIND_REALS) return put(c, w, data, rows, error);
    double *all = realloc(c->pending, (size_t)(total * width) * sizeof *all + 1);
    if (!all) return m3_fail_memory(error, m3_tap_table[w->tap].name, (size_t)(total * width) * sizeof *all);
    c->pending = all;
    widen(all + row * width, data, rows * width, c->real_bytes);
    return row + rows < total ? M3_OK : put(c, w, all, total, error);
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    struct m3_companions_writer *c = self;
    const struct m3_watched *w = m3_companions_find(c, tap, layer);
    return m3_dump_wants(c->dump, tap, layer) || (w && w->is_read && !is_recomputed(w));
}

static int watch(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                 struct m3_error *error)
{
    struct m3_companions_writer *c = self;
    int status = M3_OK;
    if (m3_dump_wants(c->dump, tap, layer))
        status = c->dump_sink.write(c->dump_sink.self, tap, layer, data, row, rows, error);
    const struct m3_watched *w = m3_companions_find(c, tap, layer);
    if (!w) return status;
    if (!status) status = m3_companions_write_rows(c, w, data, row, rows, error);
    return status ? status : keep(c, w, data, row, rows, error);
}

/* ---- begin and end */

/* Puts a tap [T,H] that the pass does not compute. */
static int put_hidden(struct m3_companions_writer *c, enum m3_tap tap, int64_t layer, const void *hidden,
                      struct m3_error *error)
{
    const int64_t T = c->the_case->T, H = c->setting.model->config.H;
    struct m3_tap_values value = { .tap = tap, .layer = layer, .rows = T, .width = H };
    const int status = m3_tap_values_room(&value, sizeof(double), error);
    if (status) return status;
    widen(value.values, hidden, T * H, c->real_bytes);
    return m3_trace_take(c->trace, &value, error);
}

static int is_read(struct m3_companions_writer *c, enum m3_tap tap, int64_t layer)
{
    const struct m3_watched *w = m3_companions_find(c, tap, layer);
    return w && w->is_read;
}

/* MTP modules read the embeddings of the ids. */
static int put_embed(struct m3_companions_writer *c, const struct m3_engine *engine, struct m3_error *error)
{
    const int64_t T = c->the_case->T, H = c->setting.model->config.H;
    void *rows = malloc((size_t)(T * H) * c->real_bytes + 1);
    if (!rows) return m3_fail_memory(error, "embeddings", (size_t)(T * H) * c->real_bytes);
    struct m3_request how = *c->request;
    how.sink = NULL;            /* the pass that was interrupted has shown it */
    const struct m3_tap_request request = {
        .how = &how, .tap = M3_TAP_EMBED, .layer = -1, .rows = T, .places = T, .y = rows
    };
    int status = engine->tap(c->setting.model, &request, error);
    if (!status) status = put_hidden(c, M3_TAP_EMBED, -1, rows, error);
    free(rows);
    return status;
}

int m3_companions_go_on(struct m3_companions_writer *c, const struct m3_engine *engine, struct m3_error *error)
{
    const struct m3_resume *from = c->request->resume;
    const int begins = c->request->first_layer == 0;
    int status = M3_OK;
    if (!from || !from->hidden) return M3_OK;
    if (begins && is_read(c, M3_TAP_EMBED, -1)) status = put_embed(c, engine, error);
    const void *fused = from->layer == 0 ? from->hidden : from->embedded;
    if (!status && begins && fused && is_read(c, M3_TAP_FUSED, -1))
        status = put_hidden(c, M3_TAP_FUSED, -1, fused, error);
    if (!status && from->layer > 0) status = put_hidden(c, M3_TAP_OUT, from->layer - 1, from->hidden, error);
    return status;
}

int m3_companions_open(struct m3_companions_writer **writer, struct m3_sink *sink, const char *path,
                       const struct m3_dump *dump, const struct m3_model *model, const struct m3_engine *engine,
                       const struct m3_case *c, const struct m3_request *request, const char *command,
                       struct m3_error *error)
{
    struct m3_companions_writer *made = *writer = calloc(1, sizeof *made);
    if (!made) return m3_fail_memory(error, "companions", sizeof *made);
    *made = (struct m3_companions_writer){ .dump_sink = *sink,
                                           .dump = dump,
                                           .request = request,
                                           .the_case = c,
                                           .real_bytes = engine->real_bytes,
                                           .file = m3_dump_writer(dump) };
    made->setting =
        (struct m3_setting){ .model = model, .semantics = request->semantics, .the_case = c, .ctx = &made->ctx };
    int status = m3_ctx_init(&made->ctx, request->threads, M3_LINEAR_BLAS)
                     ? m3_fail_memory(error, "companions", sizeof made->ctx)
                     : M3_OK;
    if (!status && path) status = m3_writer_new(&made->own, path, error);
    if (!status && path) made->file = made->own;
    if (!status && path) status = m3_dump_describe(made->own, model, engine, c, request, command, error);
    if (!status) status = m3_trace_new(&made->trace, &made->setting, error);
    if (!status) status = list_taps(made, error);
    if (!status) status = m3_companions_declare(made, error);
    if (!status && request->first_layer > 0)     /* which has an input */
        status = put_hidden(made, M3_TAP_OUT, request->first_layer - 1, request->hidden, error);
    if (status) {
        m3_companions_abandon(made);
        *writer = NULL;
        return status;
    }
    *sink = (struct m3_sink){ .self = made, .wants = wants, .write = watch, .takes_whole = 1 };
    return M3_OK;
}

struct m3_writer *m3_companions_file(const struct m3_companions_writer *c) { return c->file; }

int m3_companions_begin(struct m3_companions_writer *c, struct m3_error *error)
{
    int status = c->own ? m3_writer_begin(c->own, error) : M3_OK;
    return status ? status : m3_companions_write_case(c, error);
}

int m3_companions_commit(struct m3_companions_writer *c, struct m3_error *error)
{
    int status = c->own ? m3_writer_commit(c->own, error) : M3_OK;
    c->own = NULL;
    m3_companions_abandon(c);
    return status;
}

void m3_companions_abandon(struct m3_companions_writer *c)
{
    if (!c) return;
    m3_writer_abandon(c->own);
    m3_trace_free(c->trace);
    m3_ctx_free(&c->ctx);
    free(c->taps);
    free(c->pending);
    free(c);
}
