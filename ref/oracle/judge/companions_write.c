#include "oracle/judge/companions_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/open.h"
#include "io/safetensors.h"
#include "oracle/error/gain.h"
#include "oracle/error/intermediates.h"
#include "oracle/judge/margin.h"
#include "oracle/error/recompute.h"

enum field { BOUND, WALK, GAIN, INSIDE, INSIDE_WALK, MARGIN, WEIGHT, BIAS, FIELDS };
static const char *const field_names[FIELDS] = { "bound", "walk", "gain", "inside", "inside_walk", "margin", "weight",
                                                 "bias" };

/* A tap of the call. */
struct watched {
    enum m3_tap tap;
    int64_t layer;
    int is_dumped, is_read;                 /* read: by what a companion is made of */
    int64_t index[FIELDS];                  /* of its companions in the file; -1: none */
    int64_t n, f;                           /* steps of its bound */
    enum m3_gain_kind gain;
};

struct m3_companions_writer {
    struct m3_writer *file, *own;           /* own: NULL if it is the dump's */
    struct m3_sink dump_sink;
    const struct m3_dump *dump;
    const struct m3_request *request;
    const struct m3_case *the_case;
    size_t real_bytes;
    struct m3_ctx ctx;
    struct m3_setting setting;
    struct m3_trace *trace;
    struct watched *taps;                   /* in execution order */
    int64_t count, at;                      /* at: the tap that came last */
    int64_t first_case;                     /* index of the first tensor of the case */
    double *pending;                        /* a tap that comes in pieces: its rows so far */
};

/* ---- which taps, and what beside each */

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

static struct watched *find(struct m3_companions_writer *c, enum m3_tap tap, int64_t layer)
{
    for (int64_t i = 0; i < c->count; i++) {
        struct watched *w = &c->taps[(c->at + i) % c->count];
        if (w->tap != tap || w->layer != layer) continue;
        c->at = (c->at + i) % c->count;
        return w;
    }
    return NULL;
}

static int is_dumped(struct m3_companions_writer *c, enum m3_tap tap, int64_t layer)
{
    const struct watched *w = find(c, tap, layer);
    return w && w->is_dumped;
}

/* The outputs of the experts are made by the pass only if they are dumped; else they are made again. */
static int is_made_again(const struct watched *w) { return w->tap == M3_TAP_EXPERT_OUT && !w->is_dumped; }

/* From the last tap to the first: what those with companions read, and what is made again reads. */
static void mark_operands(struct m3_companions_writer *c)
{
    for (int64_t i = c->count - 1; i >= 0; i--) {
        const struct watched *w = &c->taps[i];
        enum m3_tap tap;
        int64_t layer;
        if (!w->is_dumped && !(is_made_again(w) && w->is_read)) continue;
        for (int j = 0; j < M3_OPERANDS; j++) {
            if (m3_graph_operand(&tap, &layer, c->setting.model, c->setting.semantics, w->tap, w->layer, j)) continue;
            struct watched *operand = find(c, tap, layer);
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
        struct watched *w = &c->taps[i];
        m3_trace_tap(&c->setting, i, &w->tap, &w->layer);
        w->is_dumped = is_run(c, w->tap, w->layer) && m3_dump_wants(c->dump, w->tap, w->layer);
        for (int field = 0; field < FIELDS; field++) w->index[field] = -1;
    }
    mark_operands(c);
    return M3_OK;
}

/* ---- declarations */

static int declare_as(struct m3_companions_writer *c, struct watched *w, enum field field, enum m3_dtype dtype,
                      int rank, const int64_t *shape, struct m3_error *error)
{
    char name[128];
    if (m3_tap_name(name, sizeof name - 16, w->tap, w->layer)) return M3_INTERNAL;
    snprintf(name + strlen(name), 16, ".%s", field_names[field]);
    w->index[field] = m3_writer_declared(c->file);
    return m3_writer_tensor(c->file, name, dtype, rank, shape, error);
}

static int declare(struct m3_companions_writer *c, struct watched *w, enum field field, int rank, const int64_t *shape,
                   struct m3_error *error)
{
    return declare_as(c, w, field, M3_F64, rank, shape, error);
}

static int declare_steps(struct m3_companions_writer *c, const struct watched *w, struct m3_error *error)
{
    const int64_t values[] = { w->n, w->f };
    char name[128], text[32];
    int status = M3_OK;
    for (int i = 0; !status && i < 2; i++) {
        if (m3_tap_name(name, sizeof name - 16, w->tap, w->layer)) return M3_INTERNAL;
        snprintf(name + strlen(name), 16, i ? ".f" : ".n");
        snprintf(text, sizeof text, "%" PRId64, values[i]);
        status = m3_writer_metadata(c->file, name, text, error);
    }
    return status;
}

/* Bounds, and what stands for the weights. */
static int declare_floats(struct m3_companions_writer *c, struct watched *w, struct m3_error *error)
{
    const struct m3_setting *s = &c->setting;
    const enum m3_operator op = m3_graph_row_of(s->model, s->semantics, w->tap, w->layer)->op;
    const struct m3_arithmetic how = m3_setting_arithmetic(s, 1);
    const int knows_each = is_dumped(c, M3_TAP_EXPERT_OUT, w->layer);
    const int64_t width = m3_tap_width(s, w->tap, w->layer);
    int64_t shape[M3_MAX_RANK];
    const int rank = m3_dump_shape(shape, c->dump, w->tap, w->layer);
    m3_graph_steps(&w->n, &w->f, s->model, s->semantics, w->tap, w->layer, &how);
    if (w->tap == M3_TAP_ROUTED && !knows_each) w->n = 0, w->f = 1;        /* the whole allowance */
    w->gain = m3_gain_kind_of(s, w->tap, w->layer, knows_each);

    int status = declare_steps(c, w, error);
    if (!status) status = declare(c, w, BOUND, rank, shape, error);
    if (!status) status = declare(c, w, WALK, rank, shape, error);
    if (!status && w->gain == M3_GAIN_ROWS) status = declare(c, w, GAIN, 1, &width, error);
    if (!status && w->gain == M3_GAIN_PROBED) status = declare(c, w, GAIN, rank, shape, error);
    if (!status && m3_has_intermediates(s, w->tap, w->layer)) status = declare(c, w, INSIDE, rank, shape, error);
    if (!status && w->index[INSIDE] >= 0) status = declare(c, w, INSIDE_WALK, rank, shape, error);
    const struct m3_weight *scale = m3_graph_weight(s->model, s->semantics, w->tap, w->layer, 0);
    const struct m3_weight *bias = m3_graph_weight(s->model, s->semantics, w->tap, w->layer, 1);
    const int is_norm = op == M3_OP_RMS_NORM || op == M3_OP_LAYER_NORM;
    if (!status && is_norm) status = declare(c, w, WEIGHT, 1, &scale->cols, error);
    if (!status && bias && (is_norm || op == M3_OP_LINEAR)) status = declare(c, w, BIAS, 1, &bias->cols, error);
    return status;
}

/* A margin for each decision; the bias by which experts are chosen. */
static int declare_choices(struct m3_companions_writer *c, struct watched *w, struct m3_error *error)
{
    int64_t shape[M3_MAX_RANK];
    const int rank = m3_dump_shape(shape, c->dump, w->tap, w->layer);
    int status = declare(c, w, MARGIN, rank - 1, shape, error);
    if (status || w->tap != M3_TAP_EXPERTS || c->file == m3_dump_writer(c->dump)) return status;    /* a dump has it */
    return declare_as(c, w, BIAS, M3_F32, 1, &c->setting.model->config.E, error);
}

/* One tensor of the case. `data` NULL: the case has none. */
struct case_tensor {
    const char *name;
    enum m3_dtype dtype;
    const void *data;
    int rank;
    int64_t shape[2];
};

enum { CASE_TENSORS = 5 };

static void case_tensors(struct case_tensor out[CASE_TENSORS], const struct m3_case *c)
{
    const struct m3_pictures *p = &c->pictures;
    const struct case_tensor all[CASE_TENSORS] = {
        { "case.input_ids", M3_I32, c->ids, 1, { c->T, 0 } },
        { "case.position_ids", M3_I64, c->positions, 1, { c->T, 0 } },
        { "case.attention_mask", M3_U8, c->seen, 1, { c->seen ? c->p0 + c->T : 0, 0 } },
        { "case.image_grid_thw", M3_I64, p->images > 0 ? p->grid : NULL, 2, { p->images, 3 } },
        { "case.video_grid_thw", M3_I64, p->videos > 0 ? p->grid + p->images : NULL, 2, { p->videos, 3 } },
    };
    memcpy(out, all, sizeof all);
}

static int declare_case(struct m3_companions_writer *c, struct m3_error *error)
{
    struct case_tensor all[CASE_TENSORS];
    char text[32];
    int status = M3_OK;
    case_tensors(all, c->the_case);
    c->first_case = m3_writer_declared(c->file);
    for (int i = 0; !status && i < CASE_TENSORS; i++)
        if (all[i].data)
            status = m3_writer_tensor(c->file, all[i].name, all[i].dtype, all[i].rank, all[i].shape, error);
    snprintf(text, sizeof text, "%" PRId64, c->the_case->p0);
    return status ? status : m3_writer_metadata(c->file, "case.cached", text, error);
}

/* The text of config.json, byte for byte. */
static int declare_config(struct m3_companions_writer *c, struct m3_error *error)
{
    const char *path = m3_checkpoint_config_path(c->setting.model->checkpoint);
    FILE *file;
    char *text = NULL;
    size_t length = 0;
    int status = m3_open_stream(&file, path, error);
    if (status) return status;
    status = getdelim(&text, &length, '\0', file) < 0 ? m3_fail(error, M3_IO, "%s: cannot be read again", path)
                                                      : m3_writer_metadata(c->file, "config", text, error);
    free(text);
    fclose(file);
    return status;
}

static int declare_all(struct m3_companions_writer *c, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; !status && i < c->count; i++) {
        struct watched *w = &c->taps[i];
        if (!w->is_dumped || m3_tap_table[w->tap].kind == M3_KIND_COUNTS) continue;
        status = m3_tap_table[w->tap].kind == M3_KIND_REALS ? declare_floats(c, w, error)
                                                            : declare_choices(c, w, error);
    }
    if (!status) status = declare_case(c, error);
    return status ? status : declare_config(c, error);
}

/* ---- while the pass runs */

static int append(struct m3_companions_writer *c, const struct watched *w, enum field field, const double *values,
                  int64_t n, struct m3_error *error)
{
    return m3_writer_append(c->file, w->index[field], values, (uint64_t)n * sizeof *values, error);
}

/* What is allowed in all, as one bound and one walk, where a bound and a spread add up. */
static void whole_allowance(struct m3_recomputed *made, double u)
{
    const double steps = (double)(made->n + made->f);
    for (int64_t i = 0; i < made->rows * made->width; i++) {
        made->bound[i] = (m3_bound_allowed(made->bound[i], steps, u) + made->extra.error[i]) / u;
        made->walk[i] = sqrt(made->walk[i] * made->walk[i] + 3 * made->extra.variance[i] / (u * u));
    }
    made->n = 0, made->f = 1;
}

static int write_bounds(struct m3_companions_writer *c, const struct watched *w, int64_t row, int64_t rows,
                        struct m3_error *error)
{
    struct m3_recomputed made;
    char name[96] = "";
    m3_tap_name(name, sizeof name, w->tap, w->layer);
    int status = m3_trace_recompute_rows(&made, c->trace, w->tap, w->layer, row, row + rows, error);
    if (!status && made.extra.error) whole_allowance(&made, m3_setting_arithmetic(&c->setting, 1).u);
    if (!status && (made.missing[0] || made.rows != rows || made.n != w->n || made.f != w->f))
        status = m3_fail(error, M3_INTERNAL, "%s: bounds of %" PRId64 " rows with %" PRId64 " + %" PRId64
                         " steps, expected %" PRId64 " with %" PRId64 " + %" PRId64 "; missing: %s", name, made.rows,
                         made.n, made.f, rows, w->n, w->f, made.missing[0] ? made.missing : "nothing");
    if (!status) status = append(c, w, BOUND, made.bound, rows * made.width, error);
    if (!status) status = append(c, w, WALK, made.walk, rows * made.width, error);
    m3_recomputed_free(&made);
    return status;
}

/* Where a probed tap has its input, choices and weights. */
static int write_probed(struct m3_companions_writer *c, const struct watched *w, int64_t T, struct m3_error *error)
{
    const struct m3_value *x = m3_trace_get(c->trace, M3_TAP_MLP_NORM, w->layer);
    const struct m3_value *ids = m3_trace_get(c->trace, M3_TAP_EXPERTS, w->layer);
    const struct m3_value *p = m3_trace_get(c->trace, M3_TAP_EXPERT_WEIGHTS, w->layer);
    const int64_t n = T * m3_tap_width(&c->setting, w->tap, w->layer);
    double *gain = malloc((size_t)n * sizeof *gain + 1);
    double *ones = malloc((size_t)(T * c->setting.model->config.K) * sizeof *ones + 1);
    int status = gain && ones ? M3_OK : m3_fail_memory(error, "gain", (size_t)n * sizeof *gain);
    for (int64_t i = 0; !status && i < T * c->setting.model->config.K; i++) ones[i] = 1;
    if (!status)
        status = m3_gain_probed(gain, &c->setting, w->tap, w->layer, x->values, ids ? ids->ids : NULL,
                                p ? p->values : ones, T, error);
    if (!status) status = append(c, w, GAIN, gain, n, error);
    free(gain);
    free(ones);
    return status;
}

/* Of the same taps, but for the sum of experts. */
static int write_intermediates(struct m3_companions_writer *c, const struct watched *w, int64_t T, struct m3_error *error)
{
    const struct m3_value *x = m3_trace_get(c->trace, M3_TAP_MLP_NORM, w->layer);
    const struct m3_value *ids = m3_trace_get(c->trace, M3_TAP_EXPERTS, w->layer);
    const int64_t n = T * m3_tap_width(&c->setting, w->tap, w->layer);
    double *values = malloc((size_t)(2 * n) * sizeof *values + 1);
    int status = values ? m3_intermediates(values, values + n, &c->setting, w->tap, w->layer, x->values,
                                    ids ? ids->ids : NULL, T, error)
                        : m3_fail_memory(error, "inside", (size_t)(2 * n) * sizeof *values);
    if (!status) status = append(c, w, INSIDE, values, n, error);
    if (!status) status = append(c, w, INSIDE_WALK, values + n, n, error);
    free(values);
    return status;
}

static int write_rows_gain(struct m3_companions_writer *c, const struct watched *w, struct m3_error *error)
{
    const int64_t n = m3_tap_width(&c->setting, w->tap, w->layer);
    double *gain = malloc((size_t)n * sizeof *gain + 1);
    int status = gain ? m3_gain_rows(gain, &c->setting, w->tap, w->layer, error)
                      : m3_fail_memory(error, "gain", (size_t)n * sizeof *gain);
    if (!status) status = append(c, w, GAIN, gain, n, error);
    free(gain);
    return status;
}

static int write_vector(struct m3_companions_writer *c, const struct watched *w, enum field field, int i,
                        struct m3_error *error)
{
    const struct m3_weight *v = m3_graph_weight(c->setting.model, c->setting.semantics, w->tap, w->layer, i);
    double *values = malloc((size_t)v->cols * sizeof *values + 1);
    if (!values) return m3_fail_memory(error, field_names[field], (size_t)v->cols * sizeof *values);
    m3_expand_f64(values, v, 0, 0, v->cols);
    int status = append(c, w, field, values, v->cols, error);
    free(values);
    return status;
}

/* As a dump has it. */
static int write_experts_bias(struct m3_companions_writer *c, const struct watched *w, struct m3_error *error)
{
    const struct m3_weight *bias = m3_graph_weight(c->setting.model, c->setting.semantics, w->tap, w->layer, 0);
    const size_t bytes = (size_t)bias->cols * sizeof(float);
    float *values = malloc(bytes + 1);
    if (!values) return m3_fail_memory(error, field_names[BIAS], bytes);
    m3_expand_f32(values, bias, 0, 0, bias->cols);
    int status = m3_writer_append(c->file, w->index[BIAS], values, bytes, error);
    free(values);
    return status;
}

static int write_margins(struct m3_companions_writer *c, const struct watched *w, const int32_t *ids, int64_t rows,
                         struct m3_error *error)
{
    const enum m3_tap of = w->tap == M3_TAP_EXPERTS ? M3_TAP_ROUTER_SCORES : M3_TAP_INDEX_BLOCK_SCORES;
    const struct m3_value *scores = m3_trace_get(c->trace, of, w->layer);
    const struct m3_config *config = &c->setting.model->config;
    const int64_t decisions = rows * (w->tap == M3_TAP_EXPERTS ? 1 : config->G);
    const struct m3_weight *bias = m3_graph_weight(c->setting.model, c->setting.semantics, w->tap, w->layer, 0);
    double *margins = malloc((size_t)decisions * sizeof *margins + 1);
    int status = margins ? M3_OK : m3_fail_memory(error, "margin", (size_t)decisions * sizeof *margins);
    if (!status && bias) status = m3_margins_of_experts(margins, scores->values, ids, bias, rows, config->K);
    else if (!status)
        status = m3_margins_of_blocks(margins, scores->values, ids, config, c->setting.semantics, rows,
                                      c->the_case->p0, scores->width / config->G);
    if (!status) status = append(c, w, MARGIN, margins, decisions, error);
    free(margins);
    return status;
}

/* The companions of rows that have just been made, from the taps before them. */
static int write_beside(struct m3_companions_writer *c, const struct watched *w, const int32_t *ids, int64_t row,
                        int64_t rows, struct m3_error *error)
{
    int status = M3_OK;
    if (w->index[BOUND] >= 0) status = write_bounds(c, w, row, rows, error);
    if (!status && w->index[MARGIN] >= 0) status = write_margins(c, w, ids, rows, error);
    if (status || row > 0) return status;
    if (w->gain == M3_GAIN_ROWS && w->index[GAIN] >= 0) status = write_rows_gain(c, w, error);
    if (!status && w->gain == M3_GAIN_PROBED && w->index[GAIN] >= 0) status = write_probed(c, w, rows, error);
    if (!status && w->index[INSIDE] >= 0) status = write_intermediates(c, w, rows, error);
    if (!status && w->index[WEIGHT] >= 0) status = write_vector(c, w, WEIGHT, 0, error);
    if (w->index[BIAS] < 0 || status) return status;
    return w->tap == M3_TAP_EXPERTS ? write_experts_bias(c, w, error) : write_vector(c, w, BIAS, 1, error);
}

static void widen(double *out, const void *reals, int64_t n, size_t real_bytes)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = real_bytes == sizeof(double) ? ((const double *)reals)[i] : (double)((const float *)reals)[i];
}

/* The places of the cache that a tap of keys or values stands behind; NULL: the tap is none. */
static const void *cached_places(const struct m3_companions_writer *c, const struct watched *w)
{
    if (c->the_case->p0 == 0) return NULL;
    const struct m3_cached *held = w->layer >= 0 ? m3_cache_at(c->request->cache, w->layer) : NULL;
    switch (w->tap) {
    case M3_TAP_K_ROPE: return held->k;
    case M3_TAP_V_PROJ: return held->v;
    case M3_TAP_INDEX_K_ROPE: return held->index_k;
    default: return NULL;
    }
}

/* Puts a whole tap, with the cached places before it. */
static int put(struct m3_companions_writer *c, const struct watched *w, const double *values, const int32_t *ids,
               int64_t rows, struct m3_error *error)
{
    const int64_t width = m3_tap_width(&c->setting, w->tap, w->layer), p0 = c->the_case->p0, all = p0 + rows;
    const void *cached = cached_places(c, w);
    struct m3_value value = { .values = values, .ids = ids, .rows = rows, .width = width, .complete = 1 };
    if (!cached) return m3_trace_put(c->trace, w->tap, w->layer, &value, error);
    double *places = malloc((size_t)(all * width) * sizeof *places + 1);
    int64_t *numbers = malloc((size_t)all * sizeof *numbers + 1);
    int status = places && numbers ? M3_OK : m3_fail_memory(error, "keys", (size_t)(all * width) * sizeof *places);
    if (!status) {
        widen(places, cached, p0 * width, c->real_bytes);
        memcpy(places + p0 * width, values, (size_t)(rows * width) * sizeof *places);
        for (int64_t i = 0; i < all; i++) numbers[i] = i - p0;
        value.values = places, value.numbers = numbers, value.rows = all;
        status = m3_trace_put(c->trace, w->tap, w->layer, &value, error);
    }
    free(places);
    free(numbers);
    return status;
}

/* Collects the pieces of a tap that later ones read, and puts it when it is whole. */
static int keep(struct m3_companions_writer *c, const struct watched *w, const void *data, int64_t row, int64_t rows,
                struct m3_error *error)
{
    const int64_t width = m3_tap_width(&c->setting, w->tap, w->layer);
    const int64_t total = m3_tap_rows(&c->setting, w->tap, w->layer);
    if (!w->is_read) return M3_OK;
    if (m3_tap_table[w->tap].kind != M3_KIND_REALS) return put(c, w, NULL, data, rows, error);
    double *all = realloc(c->pending, (size_t)(total * width) * sizeof *all + 1);
    if (!all) return m3_fail_memory(error, m3_tap_table[w->tap].name, (size_t)(total * width) * sizeof *all);
    c->pending = all;
    widen(all + row * width, data, rows * width, c->real_bytes);
    return row + rows < total ? M3_OK : put(c, w, all, NULL, total, error);
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    struct m3_companions_writer *c = self;
    const struct watched *w = find(c, tap, layer);
    return m3_dump_wants(c->dump, tap, layer) || (w && w->is_read && !is_made_again(w));
}

static int watch(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                 struct m3_error *error)
{
    struct m3_companions_writer *c = self;
    int status = M3_OK;
    if (m3_dump_wants(c->dump, tap, layer))
        status = c->dump_sink.write(c->dump_sink.self, tap, layer, data, row, rows, error);
    const struct watched *w = find(c, tap, layer);
    if (!w) return status;
    if (!status) status = write_beside(c, w, data, row, rows, error);
    return status ? status : keep(c, w, data, row, rows, error);
}

/* ---- begin and end */

/* A run from a later layer was given what enters it. */
static int put_hidden(struct m3_companions_writer *c, struct m3_error *error)
{
    const int64_t T = c->the_case->T, H = c->setting.model->config.H;
    if (c->request->first_layer == 0) return M3_OK;
    double *values = malloc((size_t)(T * H) * sizeof *values + 1);
    if (!values) return m3_fail_memory(error, "--hidden", (size_t)(T * H) * sizeof *values);
    widen(values, c->request->hidden, T * H, c->real_bytes);
    const struct m3_value value = { .values = values, .rows = T, .width = H, .complete = 1 };
    int status = m3_trace_put(c->trace, M3_TAP_OUT, c->request->first_layer - 1, &value, error);
    free(values);
    return status;
}

int m3_companions_open(struct m3_companions_writer **writer, struct m3_sink *sink, const char *path,
                       const struct m3_dump *dump, const struct m3_model *model, const struct m3_engine *engine,
                       const struct m3_case *c, const struct m3_request *request, const char *command,
                       struct m3_error *error)
{
    struct m3_companions_writer *made = *writer = calloc(1, sizeof *made);
    if (!made) return m3_fail_memory(error, "companions", sizeof *made);
    *made = (struct m3_companions_writer){ .dump_sink = *sink, .dump = dump, .request = request, .the_case = c,
                                           .real_bytes = engine->real_bytes, .file = m3_dump_writer(dump) };
    made->setting = (struct m3_setting){ model, request->semantics, c, NULL, &made->ctx };
    int status = m3_ctx_init(&made->ctx, request->threads, M3_LINEAR_BLAS)
               ? m3_fail_memory(error, "companions", sizeof made->ctx) : M3_OK;
    if (!status && path) status = m3_writer_new(&made->own, path, error);
    if (!status && path) made->file = made->own;
    if (!status && path) status = m3_dump_describe(made->own, model, engine, c, request, command, error);
    if (!status) status = m3_trace_new(&made->trace, &made->setting, error);
    if (!status) status = list_taps(made, error);
    if (!status) status = declare_all(made, error);
    if (!status) status = put_hidden(made, error);
    if (status) {
        m3_companions_abandon(made);
        *writer = NULL;
        return status;
    }
    *sink = (struct m3_sink){ made, wants, watch };
    return M3_OK;
}

int m3_companions_begin(struct m3_companions_writer *c, struct m3_error *error)
{
    struct case_tensor all[CASE_TENSORS];
    int64_t index = c->first_case;
    int status = c->own ? m3_writer_begin(c->own, error) : M3_OK;
    case_tensors(all, c->the_case);
    for (int i = 0; !status && i < CASE_TENSORS; i++) {
        if (!all[i].data) continue;
        int64_t n = all[i].shape[0] * (all[i].rank == 2 ? all[i].shape[1] : 1);
        status = m3_writer_append(c->file, index++, all[i].data, (uint64_t)n * m3_dtype_bytes(all[i].dtype), error);
    }
    return status;
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
