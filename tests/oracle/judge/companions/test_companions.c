/* What is read beside the taps of a dump (SPEC 7.8, 7.13): the model without its matrices, the case, the numbers. */
#include "program.h"

#include <math.h>
#include <stdint.h>

#include "base/context.h"
#include "oracle/judge/companions/companions.h"
#include "oracle/error/operators.h"
#include "oracle/error/recompute.h"

TIMEOUT(120);

static struct m3_error error;

static struct m3_safetensors *opened(const char *name)
{
    struct m3_safetensors *file;
    ck_assert_msg(m3_safetensors_open(&file, in_folder(name), &error) == M3_OK, "%s", error.text);
    return file;
}

static const struct {
    const char *model, *the_case, *set;
} runs[] = {
    { "golden/tiny/model", "golden/tiny/case.safetensors", "pool=max" },
    { "golden/tiny/model", "golden/vision/two_case.safetensors", "index_scale=rsqrt" },
    { "golden/tiny/model", "golden/readings/mask_case.safetensors", "pool=lse" },
    { "golden/mtp/model", "golden/mtp/case.safetensors", "mtp_join=additive" },
    { "golden/m2/model", "golden/m2/case.safetensors", "local_blocks=2" },
};

/* ---- a model and its companions */

static struct m3_model *model;
static struct m3_case the_case;
static struct m3_safetensors *dump, *second;
static struct m3_companions *companions;
static struct m3_ctx ctx;

static void begin(int run, int apart)
{
    struct m3_error notes = { 0 };
    make_folder();
    const int status = m3ref("run %s --case %s --set %s --linear ordered --dump %s %s%s", runs[run].model,
                             runs[run].the_case, runs[run].set, in_folder("dump.safetensors"),
                             apart ? "--companions " : "--bounds", apart ? in_folder("beside.safetensors") : "");
    ck_assert_int_eq(status, 0);
    dump = opened("dump.safetensors");
    second = apart ? opened("beside.safetensors") : NULL;
    ck_assert_int_eq(m3_model_open(&model, runs[run].model, &notes, &error), 0);
    ck_assert_int_eq(m3_case_read(&the_case, runs[run].the_case, &model->config, &error), 0);
    ck_assert_int_eq(m3_ctx_init(&ctx, 2, M3_LINEAR_BLAS), 0);
    m3_error_free(&notes);
    ck_assert(m3_companions_in(apart ? second : dump) && (!apart || !m3_companions_in(dump)));
    ck_assert_msg(m3_companions_load(&companions, dump, second, &error) == 0, "%s", error.text);
}

static void end(void)
{
    m3_companions_free(companions);
    m3_safetensors_close(dump);
    m3_safetensors_close(second);
    m3_model_close(model);
    m3_case_free(&the_case);
    m3_ctx_free(&ctx);
    m3_error_free(&error);
    remove_folder();
}

/* Same shape; a vector that norms or sums need has the same numbers, anything else no data. */
static void same_weight(const char *what, const struct m3_weight *got, const struct m3_weight *want, int is_vector)
{
    ck_assert_msg(got->rows == want->rows && got->cols == want->cols, "%s: another shape", what);
    ck_assert_msg((got->data != NULL) == (is_vector && want->data != NULL), "%s: data", what);
    for (int64_t i = 0; is_vector && i < want->cols; i++)
        ck_assert(m3_decode(got->dtype, got->data, i) == m3_decode(want->dtype, want->data, i));
}

/* Goal:  model and case come back, all but matrices and pixels.
 * Given: companions in the dump or in a second file, by turns, of five models and cases: sparse, with pictures, masked,
 *        with modules, M2.
 * Claim: the config's sizes; every weight's shape, norms and biases with their numbers, matrices without data; ids,
 *        positions, mask, grids, hash; the reading.
 * Seen to fail with the dtype not taken over, router biases or modules not known, the matrix's shape for its bias's,
 * all shapes [1], the hash of the ids alone. */
LOOP_TEST(model_and_case, 5)
{
    begin(_i, _i % 2);
    const struct m3_model *got = m3_companions_model(companions);
    const struct m3_config *a = &got->config, *b = &model->config;
    ck_assert(a->H == b->H && a->layers == b->layers && a->eps == b->eps && a->block == b->block && a->K == b->K);
    ck_assert(a->vision.present == b->vision.present && a->vision.W == b->vision.W && a->gemma_norm == b->gemma_norm);
    ck_assert_int_eq(got->mtp_modules, model->mtp_modules);
    same_weight("embed", &got->embed, &model->embed, 0);
    same_weight("lm_head", &got->lm_head, &model->lm_head, 0);
    same_weight("final_norm", &got->final_norm, &model->final_norm, 1);
    for (int64_t l = 0; l < b->layers + model->mtp_modules; l++) {
        const struct m3_layer *x = &got->layers[l], *y = &model->layers[l];
        same_weight("attn_norm", &x->attn_norm, &y->attn_norm, 1);
        same_weight("mlp_norm", &x->mlp_norm, &y->mlp_norm, 1);
        same_weight("q_norm", &x->q_norm, &y->q_norm, 1);
        same_weight("k_norm", &x->k_norm, &y->k_norm, 1);
        same_weight("index_q_norm", &x->index_q_norm, &y->index_q_norm, 1);
        same_weight("index_k_norm", &x->index_k_norm, &y->index_k_norm, 1);
        same_weight("router_bias", &x->router_bias, &y->router_bias, 1);
        same_weight("q_proj", &x->q_proj, &y->q_proj, 0);
        same_weight("o_proj", &x->o_proj, &y->o_proj, 0);
        same_weight("router", &x->router, &y->router, 0);
        same_weight("gate", &x->gate, &y->gate, 0);
        ck_assert((x->experts != NULL) == (y->experts != NULL));
        for (int64_t e = 0; x->experts && e < b->E; e++) same_weight("w2", &x->experts[e].w2, &y->experts[e].w2, 0);
    }
    const int additive = m3_companions_semantics(companions)->mtp_join == M3_MTP_ADDITIVE;
    for (int64_t m = 0; m < model->mtp_modules; m++) {
        same_weight("enorm", &got->mtp[m].embed_norm, &model->mtp[m].embed_norm, !additive);
        same_weight("final", &got->mtp[m].final_norm, &model->mtp[m].final_norm, 1);
        same_weight("eh_proj", &got->mtp[m].eh_proj, &model->mtp[m].eh_proj, 0);
    }
    for (int64_t v = 0; v < b->vision.layers && the_case.pictures.P; v++) {
        const struct m3_vision_layer *x = &got->vision.layers[v], *y = &model->vision.layers[v];
        same_weight("norm1", &x->norm1, &y->norm1, 1);
        same_weight("norm2 bias", &x->norm2_bias, &y->norm2_bias, 1);
        same_weight("fc1", &x->fc1, &y->fc1, 0);
        same_weight("fc1 bias", &x->fc1_bias, &y->fc1_bias, 1);
    }

    const struct m3_case *c = m3_companions_case(companions), *d = &the_case;
    ck_assert(c->T == d->T && c->p0 == 0 && strcmp(c->sha256, d->sha256) == 0);
    ck_assert((c->seen != NULL) == (d->seen != NULL));
    ck_assert(memcmp(c->ids, d->ids, (size_t)d->T * sizeof *d->ids) == 0);
    ck_assert(memcmp(c->positions, d->positions, (size_t)d->T * sizeof *d->positions) == 0);
    if (d->seen) ck_assert(c->places == d->places && memcmp(c->seen, d->seen, (size_t)d->places) == 0);
    const struct m3_pictures *p = &c->pictures, *q = &d->pictures;
    ck_assert(p->P == q->P && p->image_P == q->image_P && p->images == q->images && p->videos == q->videos);
    ck_assert(!p->pixels && (q->P == 0 || memcmp(p->grid, q->grid, (size_t)(q->images + q->videos) * 24) == 0));

    struct m3_semantics semantics;
    memcpy(&semantics, m3_companions_semantics(companions), sizeof semantics);
    ck_assert_int_eq(semantics.pool, _i == 2 ? M3_POOL_LSE : M3_POOL_MAX);
    ck_assert_int_eq(semantics.index_scale, _i == 1 ? M3_INDEX_SCALE_RSQRT : M3_INDEX_SCALE_1);
    ck_assert_int_eq(semantics.local_blocks, _i == 4 ? 2 : 1);
    ck_assert_int_eq(additive, _i == 3);
    end();
}

/* The whole of a tap of the dump, as doubles or ids; rows 0 if the dump does not hold it. */
static struct m3_tap_values value_of(enum m3_tap tap, int64_t layer)
{
    struct m3_tap_values value = { .tap = tap, .layer = layer };
    char name[128];
    if (m3_tap_name(name, sizeof name, tap, layer)) return value;
    const struct m3_tensor *t = m3_safetensors_find(dump, name);
    if (!t) return value;
    value.rows = t->shape[0], value.width = t->count / t->shape[0];
    value.data = calloc((size_t)t->count + 1, m3_tap_number_bytes(tap, sizeof(double)));
    for (int64_t i = 0; i < t->count; i++)
        if (m3_tap_ids(&value)) value.ids[i] = (int32_t)m3_decode(t->dtype, t->data, i);
        else value.values[i] = m3_decode(t->dtype, t->data, i);
    return value;
}

/* Does the tap need a matrix? */
static int needs_matrix(const struct m3_node *node)
{
    return node->op == M3_OP_LINEAR || node->op == M3_OP_EMBED || node->op == M3_OP_EXPERT ||
           node->op == M3_OP_GATED_MLP;
}

/* Goal:  without its matrices a model makes the same taps again, and its companions are those of the taps.
 * Given: as above, in a second file where they were in the dump.
 * Claim: every tap that needs no matrix: the same bits as with all weights; every tap that does: says what is missing.
 *        Bounds and walks of every float tap with rows and width, finite and not below 0; n + f of the graph where the
 *        allowance has steps; a gain of every tap that needs a matrix, that of a linear one the lengths of its rows;
 *        what rounding intermediates costs, of experts and the shared expert alone; margins one for each decision.
 * Seen to fail with the dtype not taken over, one gain for all rows taken for one of each. */
LOOP_TEST(taps, 5)
{
    begin(_i, _i % 2 == 0);
    const struct m3_semantics *semantics = m3_companions_semantics(companions);
    const struct m3_setting whole = { .model = model, .semantics = semantics, .the_case = &the_case, .ctx = &ctx };
    const struct m3_setting bare = { .model = m3_companions_model(companions),
                                     .semantics = semantics,
                                     .the_case = m3_companions_case(companions),
                                     .ctx = &ctx };
    const struct m3_arithmetic how = m3_arithmetic_f32();
    struct m3_trace *traces[2];
    ck_assert_int_eq(m3_trace_new(&traces[0], &whole, &error), 0);
    ck_assert_int_eq(m3_trace_new(&traces[1], &bare, &error), 0);
    enum m3_tap tap;
    int64_t layer, made = 0, missing = 0, gains = 0, margins = 0;
    for (int64_t i = 0; m3_trace_tap(&bare, i, &tap, &layer); i++) {
        const struct m3_node *node = m3_graph_node(model, semantics, tap, layer);
        struct m3_tap_values value = value_of(tap, layer);
        ck_assert_int_eq(value.rows, m3_tap_rows(&bare, tap, layer));
        ck_assert_int_eq(value.width, m3_tap_width(&bare, tap, layer));
        const int choice = m3_tap_table[tap].kind == M3_KIND_CHOICES, input = node->op == M3_OP_INPUT;
        struct m3_recomputed a, b;
        ck_assert_int_eq(m3_trace_recompute(&a, traces[0], tap, layer, &error), 0);
        ck_assert_msg(m3_trace_recompute(&b, traces[1], tap, layer, &error) == 0, "%s", error.text);
        if (needs_matrix(node) || input) {
            ck_assert_msg(b.missing[0] != 0, "%s was made without weights", m3_tap_table[tap].name);
            missing++;
        } else if (m3_tap_doubles(&a.y) && !a.missing[0]) {
            ck_assert_msg(!b.missing[0], "%s: %s", m3_tap_table[tap].name, b.missing);
            const size_t size = (size_t)(a.y.rows * a.y.width) * sizeof *a.y.values;
            ck_assert(a.y.rows == b.y.rows && a.y.width == b.y.width && memcmp(a.y.values, b.y.values, size) == 0);
            ck_assert(memcmp(a.bound, b.bound, size) == 0);
            made++;
        }
        m3_recomputed_free(&a);
        m3_recomputed_free(&b);

        struct m3_companion beside;
        ck_assert_msg(m3_companion_read(&beside, companions, tap, layer, &error) == 0, "%s", error.text);
        ck_assert(beside.rows == value.rows && beside.width == value.width);
        ck_assert((beside.margin != NULL) == choice);
        ck_assert((beside.bound != NULL) == (m3_tap_table[tap].kind == M3_KIND_REALS));
        ck_assert((beside.walk != NULL) == (beside.bound != NULL));
        for (int64_t j = 0; beside.bound && j < value.rows * value.width; j++)
            ck_assert(isfinite(beside.bound[j]) && beside.bound[j] >= 0 && beside.walk[j] >= 0);
        if (beside.bound) {
            int64_t n, f;
            m3_steps(&n, &f, model, semantics, tap, layer, &how);
            ck_assert(beside.n == n && beside.f == f);
        }
        if (choice) {
            const int64_t each = tap == M3_TAP_EXPERTS ? 1 : model->config.G;
            ck_assert_int_eq(beside.decisions, value.rows * each);
            margins++;
        }
        const int gated = node->op == M3_OP_EXPERT || node->op == M3_OP_GATED_MLP;
        ck_assert((beside.gain != NULL) == (node->op == M3_OP_LINEAR || gated));
        ck_assert((beside.intermediates != NULL) == gated && (beside.intermediates_walk != NULL) == gated);
        for (int64_t j = 0; gated && j < value.rows * value.width; j++)
            ck_assert(isfinite(beside.intermediates[j]) && beside.intermediates[j] > 0 &&
                      beside.intermediates_walk[j] > 0);
        if (beside.gain) ck_assert_int_eq(beside.gain_stride, gated ? value.width : 0);
        const struct m3_weight *w = m3_graph_weight(model, semantics, tap, layer, 0);
        const int join = tap == M3_TAP_MTP_EH_PROJ && semantics->mtp_join == M3_MTP_ADDITIVE;
        for (int64_t o = 0; node->op == M3_OP_LINEAR && !join && o < w->rows; o++) {
            double squares = 0, *weights = calloc((size_t)w->cols, sizeof *weights);
            m3_expand_f64(weights, w, o, 0, w->cols);
            for (int64_t k = 0; k < w->cols; k++) squares += weights[k] * weights[k];
            ck_assert(fabs(beside.gain[o] - sqrt(squares)) <= 1e-12 * sqrt(squares));
            free(weights);
            gains++;
        }
        m3_companion_free(&beside);
        for (int k = 0; k < 2; k++) ck_assert_int_eq(m3_trace_put(traces[k], &value, &error), 0);
        m3_tap_values_free(&value);
    }
    ck_assert(made >= 20 && missing >= 10 && gains > 100 && margins > 0);
    m3_trace_free(traces[0]);
    m3_trace_free(traces[1]);
    end();
}

/* ---- files that are none */

struct change {
    const char *key, *value;            /* of the metadata; value NULL: left out */
    const char *tensor;                 /* whose shape becomes [1], of dtype; or that is added */
    enum m3_dtype dtype;
    int status;
    const char *says;
};

static const char *const kept_keys[] = { "model_sha256", "case_sha256",           "semantics",
                                         "config",       "case.cached",           "case.shift",
                                         "final_norm.n", "final_norm.f",          "logits.n",
                                         "logits.f",     "layers.3.moe.shared.n", "layers.3.moe.shared.f" };

/* The second file again, except for the change. */
static void rewrite(const char *path, const struct change *change)
{
    struct m3_writer *writer;
    const int64_t one = 1, count = m3_safetensors_count(second);
    const double zero = 0;
    const int adds = change->tensor && !m3_safetensors_find(second, change->tensor);
    ck_assert_int_eq(m3_writer_new(&writer, path, &error), 0);
    for (size_t i = 0; i < sizeof kept_keys / sizeof *kept_keys; i++) {
        const char *value = m3_safetensors_metadata(second, kept_keys[i]);
        if (change->key && strcmp(change->key, kept_keys[i]) == 0) value = change->value;
        if (value) ck_assert_int_eq(m3_writer_metadata(writer, kept_keys[i], value, &error), 0);
    }
    for (int64_t i = 0; i < count; i++) {
        const struct m3_tensor *t = m3_safetensors_at(second, i);
        const int changed = change->tensor && strcmp(change->tensor, t->name) == 0;
        ck_assert_int_eq(m3_writer_tensor(writer, t->name, changed ? change->dtype : t->dtype, changed ? 1 : t->rank,
                                          changed ? &one : t->shape, &error),
                         0);
    }
    if (adds) ck_assert_int_eq(m3_writer_tensor(writer, change->tensor, change->dtype, 1, &one, &error), 0);
    ck_assert_int_eq(m3_writer_begin(writer, &error), 0);
    for (int64_t i = 0; i < count; i++) {
        const struct m3_tensor *t = m3_safetensors_at(second, i);
        const int changed = change->tensor && strcmp(change->tensor, t->name) == 0;
        ck_assert_int_eq(m3_writer_write(writer, changed ? (const void *)&zero : t->data,
                                         changed ? m3_dtype_bytes(change->dtype) : t->bytes, &error),
                         0);
    }
    if (adds) ck_assert_int_eq(m3_writer_write(writer, &zero, m3_dtype_bytes(change->dtype), &error), 0);
    ck_assert_int_eq(m3_writer_commit(writer, &error), 0);
}

/* Goal:  companions that cannot be those of the dump are refused, with tensor or field.
 * Given: one change at a time; the dump itself, which has none.
 * Claim: status and text; nothing is left over; the unchanged file is read.
 * Seen to fail with hashes that need not be equal, the shapes of vectors, bounds, `.inside` and margins not checked,
 * steps that are no number. */
TEST(refused)
{
    static const struct change changes[] = {
        { NULL, NULL, NULL, M3_F64, 0, NULL },
        { "config", NULL, NULL, M3_F64, M3_BAD_INPUT, "no companions" },
        { "config", "{ \"model_type\"", NULL, M3_F64, M3_BAD_INPUT, "line 1" },
        { "config", "[]", NULL, M3_F64, M3_BAD_INPUT, "expected an object" },
        { "case_sha256", "00", NULL, M3_F64, M3_NOT_COMPARABLE, "case_sha256" },
        { "model_sha256", NULL, NULL, M3_F64, M3_NOT_COMPARABLE, "model_sha256" },
        { "semantics", "{\"pool\":\"lse\"}", NULL, M3_F64, M3_NOT_COMPARABLE, "semantics" },
        { "case.cached", "-1", NULL, M3_F64, M3_BAD_INPUT, "cached places" },
        { "case.cached", "3x", NULL, M3_F64, M3_BAD_INPUT, "cached places" },
        { "case.cached", "9007199254740993", NULL, M3_F64, M3_BAD_INPUT, "at most 9007199254740992" },
        { "case.shift", "1", NULL, M3_F64, M3_BAD_INPUT, "case.shift: got 1, expected a number of cached places" },
        { "case.shift", "0x", NULL, M3_F64, M3_BAD_INPUT, "case.shift: got 0x" },
        { NULL, NULL, "case.input_ids", M3_F32, M3_BAD_INPUT, "case.input_ids" },
        { NULL, NULL, "case.position_ids", M3_I64, M3_BAD_INPUT, "case.position_ids: got 1 values" },
        { NULL, NULL, "case.attention_mask", M3_U8, M3_BAD_INPUT, "case.attention_mask: got 1 values" },
        { NULL, NULL, "case.image_grid_thw", M3_I64, M3_BAD_INPUT, "case.image_grid_thw" },
        { NULL, NULL, "final_norm.weight", M3_F64, M3_BAD_INPUT, "final_norm.weight: got [1] F64, expected [" },
        { NULL, NULL, "final_norm.weight", M3_I64, M3_BAD_INPUT, "final_norm.weight: got [1] I64" },
        { NULL, NULL, "layers.77.attn_norm.weight", M3_F64, M3_BAD_INPUT, "no tap of the config" },
        { NULL, NULL, "layers.0.q_proj.weight", M3_F64, M3_BAD_INPUT, "no tap of the config" },
        { NULL, NULL, "nonsense.bias", M3_F64, M3_BAD_INPUT, "no tap of the config" },
        /* found when the tap is read */
        { "final_norm.n", NULL, NULL, M3_F64, M3_BAD_INPUT, "final_norm.n: got none" },
        { "final_norm.f", "x", NULL, M3_F64, M3_BAD_INPUT, "final_norm.f: got x" },
        { NULL, NULL, "final_norm.bound", M3_F64, M3_BAD_INPUT, "final_norm.bound: got [1] F64, expected [" },
        { NULL, NULL, "final_norm.walk", M3_I64, M3_BAD_INPUT, "final_norm.walk" },
        { NULL, NULL, "logits.gain", M3_F64, M3_BAD_INPUT, "logits.gain" },
        { NULL, NULL, "layers.3.moe.shared.inside", M3_F64, M3_BAD_INPUT, "layers.3.moe.shared.inside: got [1] F64" },
        { NULL, NULL, "layers.3.moe.shared.inside_walk", M3_F64, M3_BAD_INPUT, "layers.3.moe.shared.inside_walk" },
        { NULL, NULL, "layers.3.moe.experts.margin", M3_F64, M3_BAD_INPUT, "layers.3.moe.experts.margin" },
    };
    begin(0, 1);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        static const enum m3_tap read_taps[] = { M3_TAP_FINAL_NORM, M3_TAP_LOGITS, M3_TAP_SHARED, M3_TAP_EXPERTS };
        struct m3_companions *got;
        struct m3_error e = { 0 };
        struct m3_companion beside;
        rewrite(in_folder("changed.safetensors"), &changes[i]);
        struct m3_safetensors *file = opened("changed.safetensors");
        int status = m3_companions_load(&got, dump, file, &e);
        ck_assert((got == NULL) == (status != 0));
        for (int k = 0; k < 4 && !status; k++) {
            status = m3_companion_read(&beside, got, read_taps[k], k < 2 ? -1 : 3, &e);
            m3_companion_free(&beside);
        }
        ck_assert_msg(status == changes[i].status && (!status || strstr(e.text, changes[i].says)), "change %zu: %d, %s",
                      i, status, e.text ? e.text : "");
        m3_companions_free(got);
        m3_safetensors_close(file);
        m3_error_free(&e);
    }
    struct m3_companions *none;
    ck_assert_int_eq(m3_companions_load(&none, dump, NULL, &error), M3_BAD_INPUT);
    ck_assert_ptr_null(none);
    end();
}
