#include "oracle/judge/choices/decisions.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/origin.h"
#include "oracle/judge/align.h"

struct m3_decisions {
    struct m3_safetensors *file;
    struct m3_side side;
    const struct m3_config *config;
    int64_t p0;
    size_t real_bytes;
    int64_t blocks, experts;            /* layers */
    struct m3_force force;
};

static int bad(const struct m3_tensor *tensor, const struct m3_decisions *d, const char *what, struct m3_error *error)
{
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: %s", m3_safetensors_path(d->file), tensor->name, what);
}

/* Checks that model and case are the same, as far as the dump states them. */
static int check_origin(const struct m3_decisions *d, const struct m3_model *model, const struct m3_case *c,
                        struct m3_error *notes, struct m3_error *error)
{
    const struct m3_origin_use use = { .status = M3_BAD_INPUT };
    struct m3_origin expected;
    int status = m3_origin_of_model(&expected, model, c, error);
    return status ? status : m3_origin_check(d->file, &expected, &use, notes, error);
}

/* The shapes: [rows,G,N] ids, [rows,K] ids, [rows,K] numbers. */
static int check_shape(const struct m3_decisions *d, const struct m3_tensor *tensor, enum m3_tap tap, int64_t layer,
                       int64_t T, struct m3_error *error)
{
    const struct m3_config *c = d->config;
    const int blocks = tap == M3_TAP_INDEX_BLOCKS, ids = tap != M3_TAP_EXPERT_WEIGHTS;
    const int64_t own = m3_layer_rows(layer, T);
    const int64_t rows = d->side.rows ? d->side.rows->count : own;
    const int64_t shape[3] = { rows, blocks ? c->G : c->K, c->N };
    const int rank = blocks ? 3 : 2;
    char what[160];
    int same = tensor->rank == rank && (ids ? m3_holds_ids(tensor) : !m3_holds_ids(tensor));
    for (int i = 0; same && i < rank; i++) same = tensor->shape[i] == shape[i];
    if (same) return M3_OK;
    if (blocks)
        snprintf(what, sizeof what, "got another shape or dtype, expected ids [%" PRId64 ",%" PRId64 ",%" PRId64 "]",
                 shape[0], shape[1], shape[2]);
    else
        snprintf(what, sizeof what, "got another shape or dtype, expected %s [%" PRId64 ",%" PRId64 "]",
                 ids ? "ids" : "numbers", shape[0], shape[1]);
    return bad(tensor, d, what, error);
}

/* Experts and their weights must both be present, or neither. */
static int check_pair(const struct m3_decisions *d, const struct m3_tensor *tensor, enum m3_tap tap, int64_t layer,
                      struct m3_error *error)
{
    char name[96];
    if (tap == M3_TAP_INDEX_BLOCKS) return M3_OK;
    m3_tap_name(name, sizeof name, tap == M3_TAP_EXPERTS ? M3_TAP_EXPERT_WEIGHTS : M3_TAP_EXPERTS, layer);
    if (m3_safetensors_find(d->file, name)) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got no such tensor, expected it together with %s",
                   m3_safetensors_path(d->file), name, tensor->name);
}

static int is_decision(enum m3_tap tap)
{
    return tap == M3_TAP_INDEX_BLOCKS || tap == M3_TAP_EXPERTS || tap == M3_TAP_EXPERT_WEIGHTS;
}

static int check_tensors(struct m3_decisions *d, int64_t T, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < m3_safetensors_count(d->file); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(d->file, i);
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(tensor->name, &tap, &layer) || !is_decision(tap)) continue;
        int wrong = check_shape(d, tensor, tap, layer, T, error);
        if (!wrong) wrong = check_pair(d, tensor, tap, layer, error);
        if (wrong) status = wrong;
        d->blocks += tap == M3_TAP_INDEX_BLOCKS;
        d->experts += tap == M3_TAP_EXPERTS;
    }
    if (!status && d->blocks + d->experts == 0)
        status = m3_fail(error, M3_BAD_INPUT, "%s: got no index.blocks and no moe.experts, expected choices to follow",
                         m3_safetensors_path(d->file));
    return status;
}

/* The index in the tensors of a row of the sequence; -1: none. */
static int64_t find_row(const struct m3_decisions *d, int64_t number)
{
    int64_t low = 0, high = d->side.rows ? d->side.rows->count : 0;
    if (!d->side.rows) return number - d->p0;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (m3_id_at(d->side.rows, middle) < number) low = middle + 1;
        else high = middle;
    }
    return low < d->side.rows->count && m3_id_at(d->side.rows, low) == number ? low : -1;
}

/* Lists [G,N] of the row at place `number`. */
static const char *take_blocks(const struct m3_decisions *d, int32_t *to, const struct m3_tensor *from, int64_t at,
                               int64_t number)
{
    const struct m3_config *c = d->config;
    for (int64_t g = 0; g < c->G; g++) {
        int64_t last = -1, ended = 0;
        for (int64_t n = 0; n < c->N; n++) {
            int64_t id = m3_id_at(from, (at * c->G + g) * c->N + n);
            if (id == -1) ended = 1;
            else if (ended || id <= last || id > number / c->block)
                return "expected visible blocks, strictly ascending, then -1";
            else last = id;
            to[g * c->N + n] = (int32_t)id;
        }
    }
    return NULL;
}

static const char *take_experts(const struct m3_decisions *d, int32_t *to, const struct m3_tensor *from, int64_t at)
{
    const int64_t K = d->config->K;
    for (int64_t k = 0; k < K; k++) {
        int64_t id = m3_id_at(from, at * K + k);
        if (id < 0 || id >= d->config->E) return "expected experts from 0 to E-1";
        for (int64_t i = 0; i < k; i++)
            if (to[i] == id) return "expected no expert twice";
        to[k] = (int32_t)id;
    }
    return NULL;
}

static const char *take_weights(const struct m3_decisions *d, char *to, const struct m3_tensor *from, int64_t at)
{
    for (int64_t k = 0; k < d->config->K; k++) {
        double p = m3_decode(from->dtype, from->data, at * d->config->K + k);
        float narrow = (float)p;
        if (!isfinite(narrow)) return "expected finite weights";
        if (d->real_bytes == sizeof p) memcpy(to + k * (int64_t)sizeof p, &p, sizeof p);
        else memcpy(to + k * (int64_t)sizeof narrow, &narrow, sizeof narrow);
    }
    return NULL;
}

static int replace(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                   struct m3_error *error)
{
    const struct m3_decisions *d = self;
    const struct m3_config *c = d->config;
    char name[96];
    if (!is_decision(tap)) return M3_OK;
    m3_tap_name(name, sizeof name, tap, layer);
    const struct m3_tensor *from = m3_safetensors_find(d->file, name);
    if (!from) return M3_OK;

    for (int64_t i = 0; i < rows; i++) {
        int64_t number = d->p0 + row + i, at = find_row(d, number);
        const char *wrong = NULL;
        if (at < 0) continue;
        if (tap == M3_TAP_INDEX_BLOCKS) wrong = take_blocks(d, (int32_t *)data + i * c->G * c->N, from, at, number);
        else if (tap == M3_TAP_EXPERTS) wrong = take_experts(d, (int32_t *)data + i * c->K, from, at);
        else wrong = take_weights(d, (char *)data + (size_t)(i * c->K) * d->real_bytes, from, at);
        if (wrong)
            return m3_fail(error, M3_BAD_INPUT, "%s: %s: row %" PRId64 ": got others, %s", m3_safetensors_path(d->file),
                           name, number, wrong);
    }
    return M3_OK;
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    (void)self;
    (void)layer;
    return is_decision(tap);
}

int m3_decisions_open(struct m3_decisions **decisions, const char *path, const struct m3_model *model,
                      const struct m3_case *c, const struct m3_engine *engine, struct m3_error *notes,
                      struct m3_error *error)
{
    struct m3_decisions *d = *decisions = calloc(1, sizeof *d);
    if (!d) return m3_fail_memory(error, "decisions", sizeof *d);
    *d = (struct m3_decisions){
        .config = &model->config, .p0 = c->p0, .real_bytes = engine->real_bytes, .force = { d, replace, wants }
    };
    int status = m3_safetensors_open(&d->file, path, error);
    if (!status) status = m3_side_begin(&d->side, d->file, error);
    if (!status) status = check_origin(d, model, c, notes, error);
    if (!status) status = check_tensors(d, c->T, error);
    if (status) {
        m3_decisions_close(d);
        *decisions = NULL;
    }
    return status;
}

const struct m3_force *m3_decisions_force(const struct m3_decisions *d) { return &d->force; }

void m3_decisions_layers(const struct m3_decisions *d, int64_t *blocks, int64_t *experts)
{
    *blocks = d->blocks;
    *experts = d->experts;
}

void m3_decisions_close(struct m3_decisions *d)
{
    if (!d) return;
    m3_safetensors_close(d->file);
    free(d);
}
