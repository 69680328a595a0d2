#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include "oracle/explain/explain.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "oracle/explain/private/explaining.h"

/* ---- what is asked for */

int64_t m3_explain_end_layer(const struct m3_config *config, enum m3_tap tap, int64_t layer)
{
    const enum m3_tap_where where = m3_tap_table[tap].where;
    if (where < M3_WHERE_EVERY_LAYER) return 1;         /* pictures and embeddings; a pass has one layer at least */
    return layer < 0 || m3_mtp_module_of(layer) >= 0 ? config->layers : layer + 1;
}

static int no_such_layer(const char *name, int64_t layers, struct m3_error *error)
{
    return m3_fail(error, M3_USAGE, "--tap: got %s, expected a layer from 0 to %" PRId64, name, layers - 1);
}

int m3_explain_open(struct m3_explain_how *how, struct m3_model **model, const char *folder, const char *name,
                    struct m3_error *notes, struct m3_error *error)
{
    struct m3_config config = { 0 };
    struct m3_error unsaid = { 0 };
    char *path;
    if (m3_tap_parse(name, &how->tap, &how->layer))
        return m3_fail(error, M3_USAGE,
                       "--tap: got %s, expected the name of a tap, such as layers.3.moe.weights (SPEC 6)", name);
    if (asprintf(&path, "%s/config.json", folder) < 0) return m3_fail_memory(error, folder, 0);
    int status = m3_config_read(&config, path, &unsaid, error);
    free(path);
    m3_error_free(&unsaid);
    if (status) return status;
    const int64_t end = m3_explain_end_layer(&config, how->tap, how->layer);
    if (end > config.layers) status = no_such_layer(name, config.layers, error);
    else if (end < config.layers) status = m3_model_open_layers(model, folder, 0, end, notes, error);
    else status = m3_model_open(model, folder, notes, error);
    m3_config_free(&config);
    how->model = *model;
    return status;
}

/* Has the model the layer of the tap, and the layer the tap? */
static int check_tap(const struct m3_explaining *e)
{
    const struct m3_config *c = e->config;
    const enum m3_tap_where where = m3_tap_table[e->tap].where;
    const int64_t module = m3_mtp_module_of(e->layer), modules = e->how->model->mtp_modules;
    const char *name = e->to->name;
    if (where <= M3_WHERE_AFTER_VISION_LAYERS && !c->vision.present)
        return m3_fail(e->error, M3_USAGE, "--tap: got %s, but the model has no vision part", name);
    if (!m3_case_makes(e->how->the_case, e->tap))
        return m3_fail(e->error, M3_USAGE, "--tap: got %s, but the case has no picture", name);
    if (where == M3_WHERE_EVERY_VISION_LAYER && e->layer >= c->vision.layers)
        return no_such_layer(name, c->vision.layers, e->error);
    if (module >= modules)
        return m3_fail(e->error, M3_USAGE, "--tap: got %s, but the model has %" PRId64 " MTP modules", name, modules);
    if (where >= M3_WHERE_EVERY_LAYER && module < 0 && e->layer >= c->layers)
        return no_such_layer(name, c->layers, e->error);
    if (where >= M3_WHERE_EVERY_LAYER && where < M3_WHERE_AFTER_LAYERS && !m3_layer_has_tap(c, e->tap, e->layer))
        return m3_fail(e->error, M3_USAGE, "--tap: got %s, but the layer has %s attention and %s, and no such tap",
                       name, m3_config_sparse(c, m3_layer_index(c, e->layer)) ? "sparse" : "full",
                       m3_config_moe(c, m3_layer_index(c, e->layer)) ? "experts" : "a dense MLP");
    return M3_OK;
}

static int check_row(struct m3_explaining *e)
{
    const int64_t rows = m3_tap_rows(&e->setting, e->tap, e->layer);
    if (rows < 1) return m3_fail(e->error, M3_USAGE, "--tap: got %s, of which this case has no row", e->to->name);
    if (e->row < 0 || e->row >= rows)
        return m3_fail(e->error, M3_USAGE, "--token: got %" PRId64 ", expected a row of %s from 0 to %" PRId64, e->row,
                       e->to->name, rows - 1);
    return M3_OK;
}

/* The dimensions that --channel is about. Of choices it is a candidate: a block or an expert. */
static const char *letters_of(const struct m3_explaining *e)
{
    if (e->tap == M3_TAP_INDEX_BLOCKS) return "TGB";
    return e->tap == M3_TAP_EXPERTS ? "TE" : m3_tap_table[e->tap].shape;
}

static int64_t size_of(const struct m3_explaining *e, char letter)
{
    const struct m3_config *c = e->config;
    const int64_t places = m3_tap_rows(&e->setting, e->tap, e->layer);
    return letter == 'B' ? (places + c->block - 1) / c->block : m3_config_size(c, letter);
}

static int out_of_range(struct m3_explaining *e, const char *text)
{
    const char *letters = letters_of(e) + 1;
    char ranges[160] = "";
    struct m3_text out = { ranges, sizeof ranges, 0 };
    int64_t all = 1;
    for (int i = 0; letters[i]; i++) {
        const int64_t size = size_of(e, letters[i]);
        m3_text_add(&out, "%s0 to %" PRId64, i ? ", " : "", size - 1);
        all *= size;
    }
    if (strlen(letters) < 2)
        return m3_fail(e->error, M3_USAGE, "--channel: got %s, expected a number from 0 to %" PRId64, text, all - 1);
    return m3_fail(e->error, M3_USAGE, "--channel: got %s, expected a number from 0 to %" PRId64 ", or indices %s",
                   text, all - 1, ranges);
}

/* One number for the whole row, or an index for each dimension. */
static int read_channel(struct m3_explaining *e, const char *text)
{
    const char *letters = letters_of(e) + 1;
    int64_t given[M3_TAP_DIMENSIONS], all = 1;
    int dimensions = (int)strlen(letters), count = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        if (count == dimensions) return out_of_range(e, text);
        given[count++] = strtoll(at, &end, 10);
        if (errno || end == at || (*end && *end != ',')) return out_of_range(e, text);
        if (!*end) break;
        at = end;
    }
    for (int i = 0; i < dimensions; i++) all *= size_of(e, letters[i]);
    if (count == 1) {
        e->channel = given[0];
        return given[0] >= 0 && given[0] < all ? M3_OK : out_of_range(e, text);
    }
    if (count < dimensions) return out_of_range(e, text);
    e->channel = 0;
    for (int i = 0; i < dimensions; i++) {
        const int64_t size = size_of(e, letters[i]);
        if (given[i] < 0 || given[i] >= size) return out_of_range(e, text);
        e->channel = e->channel * size + given[i];
    }
    return M3_OK;
}

/* The largest element of the row, by size; of logits, scores and the like by value. */
static void choose_channel(struct m3_explaining *e)
{
    const struct m3_tap_values *own = &e->kept[0];
    const int by_value = e->tap == M3_TAP_LOGITS || e->tap == M3_TAP_MTP_LOGITS || e->tap == M3_TAP_INDEX_BLOCK_SCORES;
    if (m3_tap_table[e->tap].kind != M3_KIND_REALS) {
        e->channel = m3_tap_table[e->tap].kind == M3_KIND_COUNTS ? 0 : -1;
        return;
    }
    const float *x = own->data;
    double most = -INFINITY;
    e->channel = 0;
    for (int64_t i = 0; i < own->width; i++) {
        const double size = by_value ? (double)x[i] : fabs((double)x[i]);
        if (size > most) most = size, e->channel = i;
    }
}

/* ---- the place and the origin of the element, in words */

static void say_place(struct m3_explaining *e)
{
    struct m3_explanation *to = e->to;
    to->letters = letters_of(e);
    to->row = e->row;
    const int is_list = e->tap == M3_TAP_INDEX_BLOCKS, is_choice = m3_tap_table[e->tap].kind == M3_KIND_CHOICES;
    int64_t rest = e->channel;
    to->rank = is_list ? 1 : is_choice ? 0 : (int)strlen(to->letters) - 1;
    if (is_list) to->index[0] = e->group;
    for (int i = is_choice ? 0 : to->rank; i > 0; i--) {
        const int64_t size = size_of(e, to->letters[i]);
        to->index[i - 1] = rest % size;
        rest /= size;
    }
}

static void say_from(struct m3_explaining *e)
{
    struct m3_text out = { e->to->from, sizeof e->to->from, 0 };
    for (int i = 0; i < M3_OPERANDS; i++) {
        char name[96] = "";
        enum m3_tap tap;
        int64_t layer, row;
        if (m3_explain_operand(e, i, &tap, &layer, &row)) continue;
        m3_tap_name(name, sizeof name, tap, layer);
        m3_text_add(&out, "%s%s", out.length ? ", " : "", name);
    }
}

/* ---- do the steps give what the pass gave? */

static int check_result(struct m3_explaining *e)
{
    const struct m3_tap_values *own = &e->kept[0];
    const struct m3_explained_step *result = e->to->result >= 0 ? &e->steps->list[e->to->result] : NULL;
    if (e->steps->status || !result) return m3_explain_failed(e, "a step has failed");
    for (int64_t i = 0; i < result->count; i++) {
        const int64_t at = e->tap == M3_TAP_INDEX_BLOCKS ? e->group * e->config->N + i
                           : e->tap == M3_TAP_EXPERTS    ? i
                                                         : e->channel;
        const float single = (float)result->values[i];
        const int32_t id = (int32_t)result->values[i];
        const void *got = m3_tap_table[e->tap].kind == M3_KIND_REALS ? (const void *)&single : (const void *)&id;
        if (memcmp(got, (const char *)own->data + (size_t)at * sizeof single, sizeof single) != 0)
            return m3_explain_failed(e, "the steps give other bits than the pass");
    }
    return M3_OK;
}

static int explain(struct m3_explaining *e)
{
    int status = check_row(e);
    if (!status && e->how->channel) status = read_channel(e, e->how->channel);
    if (!status) status = m3_explain_pass(e);
    if (status) return status;
    if (!e->how->channel) choose_channel(e);
    if (e->tap == M3_TAP_INDEX_BLOCKS && e->channel >= 0) e->group = e->channel / size_of(e, 'B');
    say_place(e);
    say_from(e);
    e->to->result = m3_explainers[e->node->op].steps(e);
    status = check_result(e);
    return status ? status : m3_explain_one_row(e);
}

int m3_explain_tap(struct m3_explanation *to, const struct m3_explain_how *how, struct m3_error *error)
{
    struct m3_explaining e = { .how = how, .config = &how->model->config, .tap = how->tap, .layer = how->layer };
    *to = (struct m3_explanation){ .words = m3_tap_table[how->tap].what, .result = -1 };
    e.to = to;
    e.steps = &to->steps;
    e.error = error;
    e.row = e.p0 = how->row;
    e.channel = -1;
    e.changed = "";
    e.setting = (struct m3_setting){
        .model = how->model, .semantics = how->semantics, .the_case = how->the_case, .ctx = &e.ctx
    };
    m3_tap_name(to->name, sizeof to->name, e.tap, e.layer);
    if (m3_ctx_init(&e.ctx, how->threads, M3_LINEAR_ORDERED)) return m3_fail_memory(error, "explain", 0);
    to->steps.ctx = &e.ctx;
    to->steps.error = error;
    int status = check_tap(&e);
    if (!status) e.node = m3_graph_node(how->model, how->semantics, e.tap, e.layer);
    if (!status && e.node->op == M3_OP_NONE && m3_tap_table[e.tap].kind != M3_KIND_COUNTS)
        status = m3_fail(error, M3_USAGE, "--tap: got %s, expected a tap that this reading computes", to->name);
    if (!status) status = explain(&e);
    for (int i = 0; i < e.kept_count; i++) m3_tap_values_free(&e.kept[i]);
    m3_ctx_free(&e.ctx);
    to->steps.ctx = NULL;
    return status;
}

void m3_explanation_free(struct m3_explanation *to)
{
    m3_steps_free(&to->steps);
    for (int i = 0; i < to->table_count; i++) free(to->tables[i].cells);
    m3_error_free(&to->notes);
    to->table_count = 0;
}
