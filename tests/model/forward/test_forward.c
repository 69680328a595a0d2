/* The whole model, both engines and both bodies of linear, against goldens that public PyTorch code made.
 *
 * Seen to fail with: the +1 of the norm dropped; the groups in another order; the own block not forced; another
 * scale of attention; the bias left in the expert weights; logits of the row before; positions that count from 0; in
 * the modules, the halves of eh_proj exchanged; the token at t + m joined; positions t + m + 1; module 1 fed with
 * module 0's normed state; no zeros at position 0; mtp_embed=fused that takes the ids' embeddings; in M2, the norm of q
 * per head, Gemma norms, the other activation, a factor of 2; noise on the experts alone, one key for all layers, rows
 * counted from position; a mask forgotten by attend_full, by attend_blocks, by block_scores. */
#include "files.h"
#include "goldens.h"

#include <math.h>
#include <stdint.h>

#include "model/files/case.h"
#include "model/files/dump.h"
#include "model/engine.h"
#include "model/model.h"
#include "model/semantics.h"
#include "oracle/judge/compare.h"
#include "same_tensors.h"
#include "slice.h"

TIMEOUT(300);
FIXTURE(make_folder, remove_folder);

static struct m3_error notes, error;

static void must(int status)
{
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
}

struct setting {
    const char *model, *case_path;
    const struct m3_engine *engine;
    enum m3_linear linear;
    int threads;
    const char *reading;
    int64_t T;                  /* only the first T tokens; 0: all */
    const char *taps;           /* patterns; NULL: all */
};

/* Every FIELD=VALUE of a reading. */
static void set_all(struct m3_semantics *semantics, const char *reading)
{
    char text[100], *rest = NULL;
    snprintf(text, sizeof text, "%s", reading ? reading : "");
    for (char *one = strtok_r(text, " ", &rest); one; one = strtok_r(NULL, " ", &rest))
        must(m3_semantics_set(semantics, one, &error));
}

/* Runs and dumps to `path`. Returns the number of positions: 1 + the largest. */
static int64_t run(const char *path, const struct setting *s)
{
    struct m3_model *model;
    struct m3_case c, first;
    struct m3_dump *dump;
    struct m3_sink sink;
    int64_t ids[4096];

    must(m3_model_open(&model, s->model, &notes, &error));
    must(m3_case_read(&c, s->case_path, &model->config, &error));
    if (s->T) {
        for (int64_t t = 0; t < s->T; t++) ids[t] = c.ids[t];
        must(m3_case_from_ids(&first, ids, s->T, NULL, &model->config, &error));
        m3_case_free(&c);
        c = first;
    }
    must(m3_case_check(&c, &model->config, 0, s->case_path, M3_BAD_INPUT, &error));
    struct m3_semantics semantics = model->config.semantics;
    set_all(&semantics, s->reading);
    struct m3_request request = { .ids = c.ids,
                                  .positions = c.positions,
                                  .T = c.T,
                                  .seen = c.seen,
                                  .end_layer = model->config.layers,
                                  .semantics = &semantics,
                                  .linear = s->linear,
                                  .threads = s->threads,
                                  .pictures = c.pictures.P ? &c.pictures : NULL };
    must(m3_dump_open(&dump, &sink, path, s->taps, model, s->engine, &c, &request, "test_forward", &error));
    must(m3_dump_begin(dump, &error));
    request.sink = &sink;
    must(s->engine->forward(model, &request, &error));
    must(m3_dump_commit(dump, &error));
    int64_t positions = 0;
    for (int64_t t = 0; t < c.T; t++)
        if (c.positions[t] >= positions) positions = c.positions[t] + 1;
    m3_case_free(&c);
    m3_model_close(model);
    return positions;
}

/* Loop index: case, engine, body of linear. */
static struct setting setting_of(int i)
{
    const struct golden *g = &cases[i / 4];
    return (struct setting){ g->model,
                             g->case_path,
                             i / 2 % 2 ? m3_engine_f64() : m3_engine_f32(),
                             i % 2 ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS,
                             2,
                             g->reading,
                             0,
                             NULL };
}

/* The tolerance with angles as this model forms them, where the golden has it: public code's float angles are
 * rougher. */
static double yardstick(const struct m3_safetensors *golden, const char *tap, const char *which)
{
    char key[200];
    snprintf(key, sizeof key, "%s.f32_angle64_%s", tap, which);
    const char *text = m3_safetensors_metadata(golden, key);
    snprintf(key, sizeof key, "%s.f32_%s", tap, which);
    if (!text) text = m3_safetensors_metadata(golden, key);
    ck_assert_msg(text != NULL, "%s: the golden has no yardstick", tap);
    return strtod(text, NULL);
}

static int after_rope(const char *tap)
{
    enum m3_tap id;
    int64_t layer;
    return m3_tap_parse(tap, &id, &layer) == 0 && m3_tap_order(id, layer, M3_TAP_Q_ROPE, 0) >= 0;
}

static void judge(const struct m3_judgement *result, const struct m3_safetensors *golden, int is_double,
                  int64_t positions)
{
    ck_assert_int_eq(result->status, M3_OK);
    for (int64_t i = 0; i < result->count; i++) {
        const struct m3_finding *stage = &result->findings[i];
        if (stage->selection) {
            ck_assert_msg(stage->choice == M3_CHOICE_IDENTICAL, "%s: a selection differs", stage->tap);
            continue;
        }
        if (strcmp(stage->tap, "vision.grid") == 0) {
            ck_assert_int_eq(stage->verdict, M3_VERDICT_PASS);
            continue;
        }
        double l2 = 1e-12 + (after_rope(stage->tap) ? 1e-15 * (double)positions : 0), max = INFINITY;
        if (!is_double) {
            l2 = 4 * yardstick(golden, stage->tap, "rel_l2") + 1e-7;
            max = 4 * yardstick(golden, stage->tap, "max") + 1e-7;
        }
        ck_assert_msg(stage->off.rel_l2 <= l2, "%s: relative L2 %g, allowed %g", stage->tap, stage->off.rel_l2, l2);
        ck_assert_msg(stage->off.max_rel <= max, "%s: max %g, allowed %g", stage->tap, stage->off.max_rel, max);
    }
}

/* Goal:  every tap within 4 times the error of public fp32 code, plus 1e-7; in double within 1e-12 and 1e-15 a
 *        position of the case; every selection the same.
 * Claim: and no tap of the golden is missing. */
LOOP_TEST(agrees_with_golden, 4 * CASES)
{
    struct setting s = setting_of(_i);
    struct m3_safetensors *golden, *dump;
    struct m3_judgement result;
    struct m3_compare_options options = { 0 };

    const int64_t positions = run(in_folder("dump.safetensors"), &s);
    must(m3_safetensors_open(&golden, cases[_i / 4].golden, &error));
    must(m3_safetensors_open(&dump, in_folder("dump.safetensors"), &error));
    must(m3_compare(&result, golden, dump, &options, &error));
    ck_assert_int_eq(result.missing, 0);
    ck_assert_int_ge(result.judged, cases[_i / 4].stages);
    judge(&result, golden, s.engine == m3_engine_f64(), positions);
    m3_judgement_free(&result);
    m3_safetensors_close(golden);
    m3_safetensors_close(dump);
}

/* Goal:  positions that start at 1,000,000 turn RoPE, and nothing else is asked of them.
 * Given: goldens of q_rope, k_rope and of the index branch by a PyTorch fp64 formula on the tapped norms. */
LOOP_TEST(positions_from_a_million, 2)
{
    struct m3_safetensors *golden, *dump;
    struct m3_judgement result;
    struct m3_compare_options options = { .force = 1 };
    int is_double = _i;
    struct setting s = { "golden/tiny/model",
                         "golden/tiny/positions_case.safetensors",
                         is_double ? m3_engine_f64() : m3_engine_f32(),
                         M3_LINEAR_BLAS,
                         2,
                         NULL,
                         0,
                         NULL };

    const int64_t positions = run(in_folder("dump.safetensors"), &s);
    must(m3_safetensors_open(&golden, "golden/tiny/positions.safetensors", &error));
    must(m3_safetensors_open(&dump, in_folder("dump.safetensors"), &error));
    must(m3_compare(&result, golden, dump, &options, &error));
    ck_assert_int_eq(result.judged, 8);
    judge(&result, golden, is_double, positions);
    m3_judgement_free(&result);
    m3_safetensors_close(golden);
    m3_safetensors_close(dump);
}

/* Goal:  the same bits for 1, 2 and more threads than there are processors.
 * Given: every golden's model with one body of linear for each engine, with the other one in the next slice.
 * Seen to fail with a scale in rms_norm that depends on the number of threads. */
LOOP_TEST(threads_change_no_bit, 5 + 2 * (CASES - MTP))
{
    const int chosen = _i < 4 ? _i : _i == 4 ? 2 * VIDEO : 2 * MTP + _i - 5;
    const int g = chosen / 2, is_double = chosen % 2;
    for (int linear = 0; linear < 2; linear++) {
        if (!in_slice(g + is_double + linear, 2)) continue;
        struct setting s = setting_of(4 * g + 2 * is_double + linear);
        s.threads = 1;
        run(in_folder("1.safetensors"), &s);
        s.threads = 2;
        run(in_folder("2.safetensors"), &s);
        s.threads = 13;
        run(in_folder("13.safetensors"), &s);
        same_tensors(in_folder("1.safetensors"), in_folder("2.safetensors"));
        same_tensors(in_folder("1.safetensors"), in_folder("13.safetensors"));
    }
}

/* m of "mtp.m.", -1 of the main model. */
/* And not what accompanies one. */
static int is_tap(const char *name)
{
    enum m3_tap tap;
    int64_t layer;
    return m3_tap_parse(name, &tap, &layer) == 0;
}

static int64_t module_of(const char *tap) { return strncmp(tap, "mtp.", 4) == 0 ? tap[4] - '0' : -1; }

/* Rows of `part` are the first rows of `whole`, bit for bit; block scores have fewer columns. */
static void is_prefix(const char *part_path, const char *whole_path, int64_t T)
{
    struct m3_safetensors *part, *whole;
    must(m3_safetensors_open(&part, part_path, &error));
    must(m3_safetensors_open(&whole, whole_path, &error));
    for (int64_t i = 0; i < m3_safetensors_count(part); i++) {
        const struct m3_tensor *x = m3_safetensors_at(part, i), *y = m3_safetensors_find(whole, x->name);
        ck_assert_ptr_nonnull(y);
        if (!is_tap(x->name)) continue;
        ck_assert_int_eq(x->shape[0], T - (module_of(x->name) + 1));
        int64_t columns = x->rank == 3 ? x->shape[2] : x->shape[1], wide = x->rank == 3 ? y->shape[2] : y->shape[1];
        size_t row = (size_t)columns * m3_dtype_bytes(x->dtype), wide_row = (size_t)wide * m3_dtype_bytes(y->dtype);
        for (int64_t r = 0; r < x->count / columns; r++)
            ck_assert_msg(
                memcmp((const char *)x->data + (size_t)r * row, (const char *)y->data + (size_t)r * wide_row, row) == 0,
                "%s: row %lld of a call with %lld tokens", x->name, (long long)r, (long long)T);
    }
    m3_safetensors_close(part);
    m3_safetensors_close(whole);
}

/* Goal:  right at one token, at as many as there are query heads or groups, around a block's edge and where selection
 *        starts (2,048).
 * Claim: with ordered sums the rows of a short call are those of the long call, whose rows at these places the goldens
 *        confirm. Future tokens reach nothing. Seen to fail with future keys of the own block let in. */
TEST(short_calls_are_prefixes)
{
    static const int64_t lengths[] = { 1, 2, 4, 127, 128, 129, 2047, 2048, 2049 };
    struct setting s = setting_of(4 * BLOCK128);
    s.linear = M3_LINEAR_ORDERED;
    run(in_folder("whole.safetensors"), &s);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        s.T = lengths[i];
        run(in_folder("part.safetensors"), &s);
        is_prefix(in_folder("part.safetensors"), in_folder("whole.safetensors"), lengths[i]);
    }
}

/* Goal:  the modules are causal, and right at every length from one token on.
 * Claim: the taps of the first T tokens are the first rows of those of all, bit for bit (15 rows are too few for blas
 *        to sum otherwise); module m has T - m - 1 rows, and no taps where that is none.
 * Seen to fail with the last row of the embeddings joined in every row, and with the taps of a module without rows. */
LOOP_TEST(modules_of_prefixes, 4)
{
    struct setting s = setting_of(4 * MTP + _i);
    run(in_folder("whole.safetensors"), &s);
    for (s.T = 1; s.T <= 14; s.T++) {
        struct m3_safetensors *part;
        int64_t taps[3] = { 0 };
        run(in_folder("part.safetensors"), &s);
        must(m3_safetensors_open(&part, in_folder("part.safetensors"), &error));
        for (int64_t i = 0; i < m3_safetensors_count(part); i++)
            taps[module_of(m3_safetensors_at(part, i)->name) + 1] += is_tap(m3_safetensors_at(part, i)->name);
        ck_assert_int_eq(taps[0], 52);
        ck_assert_int_eq(taps[1], s.T > 1 ? 35 : 0);
        ck_assert_int_eq(taps[2], s.T > 2 ? 35 : 0);
        m3_safetensors_close(part);
        is_prefix(in_folder("part.safetensors"), in_folder("whole.safetensors"), s.T);
    }
}

/* Goal: what is watched changes nothing: one tap alone has the bits that it has among all.
 * Seen to fail with a module that runs only if a tap of its own is shown. */
LOOP_TEST(one_tap_of_a_module, 4 * (M2 - MTP))
{
    static const char *const taps[] = { "mtp.1.logits", "mtp.0.logits", "mtp.1.embed_norm",
                                        "mtp.0.layer.moe.expert_out" };
    struct setting s = setting_of(4 * (MTP + _i / 4) + _i % 4);
    run(in_folder("all.safetensors"), &s);
    for (size_t i = 0; i < sizeof taps / sizeof *taps; i++) {
        struct m3_safetensors *all, *one;
        s.taps = taps[i];
        if (s.reading && strcmp(s.reading, "mtp_join=additive") == 0 && strstr(taps[i], "embed_norm")) continue;
        run(in_folder("one.safetensors"), &s);
        must(m3_safetensors_open(&all, in_folder("all.safetensors"), &error));
        must(m3_safetensors_open(&one, in_folder("one.safetensors"), &error));
        const struct m3_tensor *x = m3_safetensors_at(one, 0), *y = m3_safetensors_find(all, taps[i]);
        ck_assert_int_eq(m3_safetensors_count(one), 1);
        ck_assert_str_eq(x->name, taps[i]);
        ck_assert_msg(y && x->bytes == y->bytes && memcmp(x->data, y->data, x->bytes) == 0, "%s differs", x->name);
        m3_safetensors_close(all);
        m3_safetensors_close(one);
    }
}
