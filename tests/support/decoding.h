/* Shared by the tests of generation and of drafts: a model, one call of m3_generate with its results, the golden, and
 * whole passes without a cache for comparison. */
#ifndef M3_TESTS_DECODING_H
#define M3_TESTS_DECODING_H

#include "files.h"

#include <jansson.h>
#include <stdint.h>

#include "decode/generate.h"
#include "model/semantics.h"
#include "model/weights/synth.h"

#define MTP "golden/mtp/model"

enum { MOST = 64 };

static struct m3_error notes, error;
static struct m3_model *model;
static struct m3_semantics semantics;

static inline void must(int status)
{
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
}

static inline void open_model(const char *path, const char *reading)
{
    must(m3_model_open(&model, path, &notes, &error));
    semantics = model->config.semantics;
    if (reading) must(m3_semantics_set(&semantics, reading, &error));
}

static inline void open_synthetic(int64_t modules)
{
    struct m3_synth_totals totals;
    must(m3_synth_write("golden/tiny/model/config.json", in_folder("synthetic"), 1, M3_SYNTH_BF16, modules, &totals,
                        NULL, &notes, &error));
    open_model(in_folder("synthetic"), NULL);
    ck_assert_int_eq(model->mtp_modules, modules);
}

static inline struct m3_case case_of(const int64_t *ids, int64_t T)
{
    struct m3_case c;
    must(m3_case_from_ids(&c, ids, T, NULL, &model->config, &error));
    return c;
}

/* The results of one call. */
struct run {
    struct m3_generated result;
    struct m3_token tokens[MOST];
    int64_t count;
};

static inline void keep_token(void *self, const struct m3_token *token)
{
    struct run *run = self;
    ck_assert_int_lt(run->count, MOST);
    ck_assert_int_eq(token->index, run->count);
    run->tokens[run->count++] = *token;
}

static inline struct m3_generation greedy(int64_t max_new, int speculative)
{
    return (struct m3_generation){ .engine = m3_engine_f32(),
                                   .semantics = &semantics,
                                   .threads = 1,
                                   .sampling = { .top_p = 1 },
                                   .max_new = max_new,
                                   .speculative = speculative };
}

static inline void generate(struct run *run, const struct m3_case *c, struct m3_generation how)
{
    memset(run, 0xFF, sizeof *run);
    run->count = 0;
    how.token = keep_token;
    how.self = run;
    must(m3_generate(&run->result, model, c, &how, &error));
    ck_assert_int_eq(run->count, run->result.tokens);
}

/* Both runs have the same tokens, and the same bits for each of them. */
static inline void same_tokens(const struct run *a, const struct run *b)
{
    ck_assert_int_eq(a->count, b->count);
    for (int64_t i = 0; i < a->count; i++) {
        const struct m3_token *x = &a->tokens[i], *y = &b->tokens[i];
        ck_assert_msg(x->id == y->id, "token %lld: %d and %d", (long long)i, x->id, y->id);
        ck_assert_msg(memcmp(&x->logprob, &y->logprob, sizeof x->logprob) == 0 &&
                          memcmp(&x->margin, &y->margin, sizeof x->margin) == 0,
                      "token %lld: logprob %.17g and %.17g, margin %.17g and %.17g", (long long)i, x->logprob,
                      y->logprob, x->margin, y->margin);
    }
}

/* The counts are consistent. */
static inline void check_counts(const struct m3_generated *g)
{
    int64_t calls = 0, kept = 0;
    for (int64_t k = 0; k <= M3_MOST_DRAFTS; k++) calls += g->steps[k], kept += k * g->steps[k];
    ck_assert_int_eq(calls, g->main_calls);
    ck_assert_int_eq(kept, g->accepted);
    ck_assert_int_le(g->accepted, g->drafted);
}

/* ---- golden/mtp/generate.json */

static inline json_t *read_golden(void)
{
    json_error_t where;
    json_t *golden = json_load_file("golden/mtp/generate.json", 0, &where);
    ck_assert_msg(golden != NULL, "generate.json: %s", where.text);
    return golden;
}

static inline int64_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_integer(value), "generate.json lacks %s", key);
    return json_integer_value(value);
}

static inline int64_t integer_at(const json_t *object, const char *key, size_t i)
{
    const json_t *value = json_array_get(json_object_get(object, key), i);
    ck_assert_msg(json_is_integer(value), "generate.json lacks %s[%zu]", key, i);
    return json_integer_value(value);
}

/* Engine and body, threads, speculative. */
static inline struct m3_generation setting(int i)
{
    struct m3_generation how = greedy(32, i / 6);
    how.engine = i % 3 == 2 ? m3_engine_f64() : m3_engine_f32();
    how.linear = i % 3 == 1 ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS;
    how.threads = 1 + i / 3 % 2;
    return how;
}

static const int64_t prompts[][40] = {
    { 7 },
    { 1, 2 },
    { 92, 38, 73, 73, 7, 78, 72, 68, 8, 54, 39, 37, 11, 9, 19 },
    { 5,  80, 33, 44, 18, 57, 42, 64, 50, 86, 14, 45, 82, 36, 46, 95, 24, 19, 20,
      79, 16, 6,  60, 92, 23, 13, 43, 37, 53, 72, 49, 62, 27, 66, 61, 3,  11 },
};
static const int64_t prompt_lengths[] = { 1, 2, 15, 37 };

enum { PROMPTS = sizeof prompt_lengths / sizeof *prompt_lengths };

static const char *const readings[] = { NULL, "mtp_handover=post_norm", "mtp_zero_position0=true", "mtp_join=additive",
                                        "mtp_embed=fused" };

/* ---- passes of the main model and the modules over a whole sequence, without a cache */

struct watched {
    size_t real_bytes;
    int64_t V, rows[MOST];              /* of module m's logits */
    double *logits[MOST];               /* [rows,V] */
};

static inline int wants_logits(void *self, enum m3_tap tap, int64_t layer)
{
    (void)self, (void)layer;
    return tap == M3_TAP_MTP_LOGITS;
}

static inline int write_logits(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                               struct m3_error *e)
{
    struct watched *w = self;
    int64_t m = layer - M3_MTP_LAYER;
    (void)tap, (void)e;
    ck_assert(m >= 0 && m < MOST);
    w->logits[m] = realloc(w->logits[m], (size_t)((row + rows) * w->V) * sizeof(double));
    for (int64_t i = 0; i < rows * w->V; i++)
        w->logits[m][row * w->V + i] =
            w->real_bytes == sizeof(double) ? ((const double *)data)[i] : (double)((const float *)data)[i];
    w->rows[m] = row + rows;
    return M3_OK;
}

/* Logits [V] of the last token, and the taps of the modules in `watched` unless it is NULL. */
static inline void whole_pass(double *logits, struct watched *watched, const struct m3_request *like,
                              const struct m3_engine *engine, const int32_t *ids, const int64_t *positions, int64_t T,
                              const struct m3_pictures *pictures)
{
    const struct m3_sink sink = { .self = watched, .wants = wants_logits, .write = write_logits };
    struct m3_request request = *like;
    request.ids = ids;
    request.positions = positions;
    request.T = T;
    request.pictures = pictures;
    request.cache = NULL;
    request.final_norm = request.embedded = NULL;
    request.logits = logits;
    request.logit_rows = 1;
    request.sink = watched ? &sink : NULL;
    if (watched) *watched = (struct watched){ .real_bytes = engine->real_bytes, .V = model->config.V };
    must(engine->forward(model, &request, &error));
}

static inline void forget(struct watched *w)
{
    for (int m = 0; m < MOST; m++) free(w->logits[m]);
}

#endif
