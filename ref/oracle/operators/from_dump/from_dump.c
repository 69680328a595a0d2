#include "oracle/operators/from_dump/from_dump.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "io/json.h"
#include "model/files/origin.h"
#include "model/semantics.h"
#include "oracle/judge/batch/split.h"
#include "oracle/operators/fragment.h"
#include "oracle/operators/from_dump/private.h"
#include "oracle/operators/from_dump/rows.h"
#include "oracle/operators/own_graph.h"

static const uint64_t large_bytes = 1000000000;

struct cutting {
    const struct m3_from_dump *options;
    struct m3_cut_run run;
    struct m3_graph own;        /* the operator's */
    struct m3_cut *cuts;
    json_t *list;               /* the cases of the metadata */
    int64_t count, room, others, incomplete;
    struct m3_error *error;
};

/* ---- the run */

static int open_case(struct cutting *c)
{
    struct m3_cut_run *run = &c->run;
    const struct m3_config *config = &run->model->config;
    if (c->options->case_path) {
        run->has_case = 1;
        const int status = m3_case_read(&run->the_case, c->options->case_path, config, c->error);
        if (status) return status;
        return m3_case_check(&run->the_case, config, 1, c->options->case_path, M3_BAD_INPUT, c->error);
    }
    run->has_case = m3_safetensors_find(run->dump, "case.input_ids") != NULL;
    if (run->has_case) return m3_case_from_dump(&run->the_case, run->dump, config, c->error);
    if (m3_cut_needs_case(run->op))
        return m3_fail(c->error, M3_USAGE,
                       "--case: got none, expected the case of %s: %s reads its ids, positions, mask or pictures",
                       m3_safetensors_path(run->dump), run->op->name);
    return M3_OK;
}

/* The dump must be of this model and case. */
static int check_origin(struct cutting *c, struct m3_error *notes)
{
    struct m3_cut_run *run = &c->run;
    const struct m3_origin_use use = { .status = M3_BAD_INPUT };
    struct m3_origin origin;
    int status = m3_origin_of_model(&origin, run->model, &run->the_case, c->error);
    if (!run->has_case) origin.case_sha256 = m3_safetensors_metadata(run->dump, "case_sha256");
    return status ? status : m3_origin_check(run->dump, &origin, &use, notes, c->error);
}

static int open_run(struct cutting *c, struct m3_model **model, struct m3_safetensors **dump, struct m3_error *notes)
{
    struct m3_cut_run *run = &c->run;
    int status = m3_safetensors_open(dump, c->options->dump, c->error);
    if (!status && m3_is_dump_of_several(*dump))
        status = m3_fail(c->error, M3_BAD_INPUT, "%s: got several sequences, expected one", c->options->dump);
    if (!status) status = m3_model_open(model, c->options->model, NULL, c->error);
    if (status) return status;
    run->model = *model, run->dump = *dump;
    const char *semantics = m3_safetensors_metadata(*dump, "semantics");
    const char *precision = m3_safetensors_metadata(*dump, "precision");
    run->semantics = (*model)->config.semantics;
    if (semantics) m3_semantics_read(&run->semantics, semantics);
    run->is_f64 = precision && strcmp(precision, "f64") == 0;
    run->dtype = c->options->dtype;
    status = m3_operator_graph(&c->own, run->op, (int)run->semantics.mtp_join, c->error);
    if (!status) status = m3_side_begin(&run->side, *dump, c->error);
    if (!status) status = open_case(c);
    return status ? status : check_origin(c, notes);
}

/* ---- one tap */

static int has_tap(const struct cutting *c, enum m3_tap tap, int64_t layer)
{
    return m3_graph_find(m3_graph_of(c->run.model, &c->run.semantics), tap, layer) != NULL;
}

/* "got the operator linear, expected rms_norm or residual_norm". */
static int refuse(struct cutting *c, const char *name, enum m3_tap tap, int64_t layer)
{
    char makers[200] = "";
    struct m3_pairs pairs;
    if (!has_tap(c, tap, layer))
        return m3_fail(c->error, M3_USAGE, "--tap: got %s, expected a tap of %s", name, c->options->model);
    for (int i = 0; i < m3_operator_rows(); i++) {
        const struct m3_operator_row *op = m3_operator_at(i);
        const size_t length = strlen(makers);
        struct m3_graph own;
        if (op->outputs[0].role != M3_ROLE_TAP) continue;
        const int status = m3_operator_graph(&own, op, (int)c->run.semantics.mtp_join, c->error);
        if (!status && m3_pairs_find(&pairs, op, &own, c->run.model, &c->run.semantics, tap, layer))
            snprintf(makers + length, sizeof makers - length, "%s%s", length > 0 ? " or " : "", op->name);
        m3_graph_free(&own);
        if (status) return status;
    }
    return m3_fail(c->error, M3_USAGE, "--tap: got the operator %s for %s, expected %s", c->run.op->name, name,
                   makers[0] ? makers : "another tap, because no operator of op --list makes it");
}

static int take_operand(struct cutting *c, struct m3_cut *cut, int i)
{
    struct m3_cut_operand *x = &cut->operands[cut->count++];
    x->row = &c->run.op->operands[i];
    switch (x->row->role) {
    case M3_ROLE_TAP: return m3_cut_from_tap(x, &c->run, cut, &cut->pairs.operands[i], c->error);
    case M3_ROLE_WEIGHT:
    case M3_ROLE_SCALES:
    case M3_ROLE_EXPERTS: return m3_cut_from_weights(x, &c->run, cut, &cut->pairs.operands[i], c->error);
    default: break;
    }
    /* An operator that reads no tap has the rows of the dump. */
    if (cut->rows < 0) cut->rows = c->run.side.rows ? c->run.side.rows->count : c->run.the_case.T;
    const int status = m3_cut_input(x, &c->run, cut, c->error);
    cut->count -= !status && x->tensor.rank == 0;
    return status;
}

static int find(void *self, const char *operand, struct m3_tensor *tensor)
{
    const struct m3_cut *cut = self;
    for (int i = 0; i < cut->count; i++) {
        const struct m3_cut_operand *x = &cut->operands[i];
        if (strcmp(x->row->name, operand) != 0) continue;
        *tensor = x->tensor;
        /* Only shapes are read of values that are converted as they are written. */
        if (!tensor->data) tensor->data = x->numbers.data ? x->numbers.data : x->row;
        return 1;
    }
    return 0;
}

/* Which tap of the model each operand and output is. */
static json_t *taps_of(const struct m3_operator_row *op, const struct m3_pairs *pairs)
{
    json_t *taps = json_object();
    char name[96];
    for (int k = 0; taps && k < M3_OPERATOR_OPERANDS + M3_OPERATOR_OUTPUTS; k++) {
        const int is_output = k >= M3_OPERATOR_OPERANDS, i = is_output ? k - M3_OPERATOR_OPERANDS : k;
        const struct m3_operand_row *row = is_output ? &op->outputs[i] : &op->operands[i];
        const struct m3_pair *pair = is_output ? &pairs->outputs[i] : &pairs->operands[i];
        if (row->role != M3_ROLE_TAP || m3_tap_name(name, sizeof name, pair->tap, pair->layer)) continue;
        if (json_object_set_new(taps, row->name, json_string(name))) break;
    }
    return taps;
}

/* Adds the case to the list of the metadata. */
static int describe(struct cutting *c, const struct m3_cut *cut, const struct m3_fragment *call)
{
    const struct m3_operator_row *op = c->run.op;
    json_t *outputs = json_object(), *rows = NULL;
    char what[160];
    const int64_t each = m3_fragment_rows(call) / cut->rows;
    int status = m3_cut_rows(&rows, c->options->rows, cut->rows, each, c->run.model->config.block, c->error);
    for (int i = 0; outputs && i < M3_OPERATOR_OUTPUTS && op->outputs[i].role != M3_ROLE_NONE; i++) {
        int64_t sizes[M3_MAX_RANK];
        const int rank = m3_fragment_shape(sizes, call, &op->outputs[i]);
        json_t *shape = json_array();
        for (int k = 0; k < rank; k++) json_array_append_new(shape, json_integer(sizes[k]));
        json_object_set_new(outputs, op->outputs[i].name, shape);
    }
    const char *name = strrchr(c->options->dump, '/');
    snprintf(what, sizeof what, "%.60s of %.90s", cut->tap, name ? name + 1 : c->options->dump);
    json_t *entry = status ? NULL
                           : json_pack("{s:I, s:s, s:O, s:o, s:o, s:[], s:b, s:o}", "case", (json_int_t)c->count,
                                       "what", what, "params", cut->parameters, "outputs", outputs, "rows", rows,
                                       "catches", "exact", 0, "taps", taps_of(op, &cut->pairs));
    if (status) json_decref(outputs);
    if (!status && (!entry || json_array_append_new(c->list, entry)))
        status = m3_fail_memory(c->error, "a case", sizeof *cut);
    return status;
}

static int cut_tap(struct cutting *c, const struct m3_pairs *pairs)
{
    struct m3_cut *cut = &c->cuts[c->count];
    const struct m3_operator_row *op = c->run.op;
    struct m3_fragment *call = NULL;
    char name[512];
    int status = M3_OK;
    *cut = (struct m3_cut){ .pairs = *pairs, .module = m3_mtp_module_of(pairs->layer), .rows = -1 };
    m3_tap_name(cut->tap, sizeof cut->tap, pairs->tap, pairs->layer);
    for (int i = 0; !status && i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        status = take_operand(c, cut, i);
    if (!status && cut->weight_bytes > large_bytes && !c->options->allow_large)
        status =
            m3_fail(c->error, M3_USAGE, "%s: got weights of %.1f GB, expected at most 1 GB; --allow-large writes them",
                    cut->tap, (double)cut->weight_bytes / 1e9);
    if (!status && !(cut->parameters = m3_cut_parameters(&c->run))) status = m3_fail_memory(c->error, "parameters", 0);
    snprintf(name, sizeof name, "%s: %s", m3_safetensors_path(c->run.dump), cut->tap);
    const struct m3_operand_source source = { .self = cut, .find = find, .parameters = cut->parameters, .name = name };
    if (!status) status = m3_fragment_make(&call, op, &source, c->error);
    if (!status) status = describe(c, cut, call);
    m3_fragment_free(call);
    c->count++;
    return status;
}

/* ---- all taps */

static int cut_one(struct cutting *c)
{
    enum m3_tap tap;
    int64_t layer;
    struct m3_pairs pairs;
    if (m3_tap_parse(c->options->taps, &tap, &layer))
        return m3_fail(c->error, M3_USAGE, "--tap: got %s, expected a tap of SPEC 6", c->options->taps);
    if (m3_tap_table[tap].where < M3_WHERE_EVERY_LAYER && m3_tap_table[tap].where != M3_WHERE_EVERY_VISION_LAYER)
        layer = -1;
    if (!m3_pairs_find(&pairs, c->run.op, &c->own, c->run.model, &c->run.semantics, tap, layer))
        return refuse(c, c->options->taps, tap, layer);
    return cut_tap(c, &pairs);
}

/* Does the dump hold every tap that the operator reads? */
static int holds_operands(const struct cutting *c, const struct m3_pairs *pairs)
{
    char name[96];
    for (int i = 0; i < M3_OPERATOR_OPERANDS && c->run.op->operands[i].role != M3_ROLE_NONE; i++) {
        const struct m3_operand_row *row = &c->run.op->operands[i];
        const struct m3_pair *pair = &pairs->operands[i];
        if (row->role != M3_ROLE_TAP || m3_cut_may_lack(&c->run, row)) continue;
        m3_tap_name(name, sizeof name, pair->tap, pair->layer);
        if (!m3_safetensors_find(c->run.dump, name)) return 0;
    }
    return 1;
}

/* A tap that matches and is in the dump with its operands: a case, unless another output of the same call is one. */
static int cut_if(struct cutting *c, enum m3_tap tap, int64_t layer)
{
    struct m3_pairs pairs;
    char name[96];
    if (!has_tap(c, tap, layer) || m3_tap_name(name, sizeof name, tap, layer) ||
        !m3_tap_matches(c->options->taps, name) || !m3_safetensors_find(c->run.dump, name))
        return M3_OK;
    if (!m3_pairs_find(&pairs, c->run.op, &c->own, c->run.model, &c->run.semantics, tap, layer)) {
        c->others++;
        return M3_OK;
    }
    for (int64_t i = 0; i < c->count; i++) {
        const struct m3_pair *last = &c->cuts[i].pairs.last;
        if (last->tap == pairs.last.tap && last->layer == pairs.last.layer) return M3_OK;
    }
    if (holds_operands(c, &pairs)) return cut_tap(c, &pairs);
    c->incomplete++;
    return M3_OK;
}

static int cut_matching(struct cutting *c)
{
    const struct m3_config *config = &c->run.model->config;
    const int64_t modules = c->run.model->mtp_modules;
    int64_t most = config->layers + modules;
    int status = M3_OK;
    if (most < config->vision.layers) most = config->vision.layers;
    for (int64_t i = -1; !status && i < most; i++)
        for (int tap = 0; !status && tap < M3_TAPS; tap++) status = cut_if(c, tap, i);
    for (int64_t i = 0; !status && i < modules; i++)
        for (int tap = 0; !status && tap < M3_TAPS; tap++)
            if (m3_tap_table[tap].where >= M3_WHERE_EVERY_LAYER) status = cut_if(c, tap, M3_MTP_LAYER + i);
    if (!status && c->count == 0)
        status =
            m3_fail(c->error, M3_USAGE, "--tap: got %s, expected taps of %s that %s makes and whose operands are there",
                    c->options->taps, m3_safetensors_path(c->run.dump), c->run.op->name);
    return status;
}

/* ---- the file */

static int declare(struct cutting *c, struct m3_writer *writer, struct m3_from_dump_summary *summary)
{
    char *text = m3_json_dump(c->list, JSON_COMPACT);
    int status = text ? M3_OK : m3_fail_memory(c->error, "cases", 0);
    for (int64_t i = 0; !status && i < c->count; i++)
        for (int k = 0; !status && k < c->cuts[i].count; k++) {
            const struct m3_tensor *t = &c->cuts[i].operands[k].tensor;
            char name[96];
            snprintf(name, sizeof name, "%" PRId64 ".%s", i, t->name);
            status = m3_writer_tensor(writer, name, t->dtype, t->rank, t->shape, c->error);
            summary->bytes += t->bytes;
        }
    if (!status) status = m3_writer_metadata(writer, "format", "m3ref-cases", c->error);
    if (!status) status = m3_writer_metadata(writer, "format_version", "1", c->error);
    if (!status) status = m3_writer_metadata(writer, "producer", M3_PRODUCER, c->error);
    if (!status) status = m3_writer_metadata(writer, "operator", c->run.op->name, c->error);
    if (!status) status = m3_writer_metadata(writer, "cases", text, c->error);
    if (!status) status = m3_writer_seal(writer, c->error);
    free(text);
    return status;
}

static int write_file(struct cutting *c, const char *path, struct m3_from_dump_summary *summary)
{
    struct m3_writer *writer = NULL;
    int status = m3_writer_new(&writer, path, c->error);
    if (!status) status = declare(c, writer, summary);
    if (!status) status = m3_writer_begin(writer, c->error);
    for (int64_t i = 0; !status && i < c->count; i++)
        for (int k = 0; !status && k < c->cuts[i].count; k++)
            status = m3_cut_write(writer, &c->cuts[i].operands[k], c->error);
    if (!status) return m3_writer_commit(writer, c->error);
    m3_writer_abandon(writer);
    return status;
}

static void end(struct cutting *c, struct m3_model *model, struct m3_safetensors *dump)
{
    for (int64_t i = 0; i < c->count; i++) {
        for (int k = 0; k < M3_OPERATOR_OPERANDS; k++) free(c->cuts[i].operands[k].owned);
        json_decref(c->cuts[i].parameters);
    }
    free(c->cuts);
    m3_graph_free(&c->own);
    json_decref(c->list);
    m3_case_free(&c->run.the_case);
    m3_model_close(model);
    m3_safetensors_close(dump);
}

int m3_cases_from_dump(const struct m3_operator_row *op, const char *path, const struct m3_from_dump *options,
                       struct m3_from_dump_summary *summary, struct m3_error *notes, struct m3_error *error)
{
    struct cutting c = { .options = options, .run = { .op = op }, .error = error };
    struct m3_model *model = NULL;
    struct m3_safetensors *dump = NULL;
    *summary = (struct m3_from_dump_summary){ 0 };
    int status = open_run(&c, &model, &dump, notes);
    if (!status) {
        c.room = M3_TAPS * (model->config.layers + model->mtp_modules + model->config.vision.layers + 1);
        c.cuts = calloc((size_t)c.room, sizeof *c.cuts);
        c.list = json_array();
        if (!c.cuts || !c.list) status = m3_fail_memory(error, "cases", (size_t)c.room * sizeof *c.cuts);
    }
    if (!status) status = strpbrk(options->taps, "*?[,") ? cut_matching(&c) : cut_one(&c);
    if (!status) status = write_file(&c, path, summary);
    summary->cases = c.count;
    summary->others = c.others;
    summary->incomplete = c.incomplete;
    end(&c, model, dump);
    return status;
}
