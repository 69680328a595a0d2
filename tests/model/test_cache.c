/* The cache of keys, values and index keys: whatever the chunks in which tokens come, every tap is that of one call
 * over all of them without a cache, which the goldens confirm (test_forward.c).
 *
 * With ordered sums bit for bit; with BLAS, whose sums depend on the number of rows, the same selections, and reals as
 * near as the precision allows. */
#include "cache_watch.h"

#include "guard.h"
#include "slice.h"

TIMEOUT(300);
FIXTURE(make_folder, remove_folder);

enum { DRAWN = 331, STEP_EDGES = 0 };

/* ---- chunks */

static const struct {
    const char *model, *case_path;      /* NULL: DRAWN tokens */
    int64_t steps[4];                   /* 4096: all at once; -1: no more */
    int is_float;                       /* in double only the first */
    double jitter;
} chunked[] = {
    { TINY, "golden/tiny/case.safetensors", { 1, 7, 64, 4096 }, 0, 0 },
    { TINY, "golden/tiny/positions_case.safetensors", { 1, 7, 64, 4096 }, 0, 0 },
    { TINY, "golden/tiny/positions_case.safetensors", { 1, 7, 64, 4096 }, 0, 0.3 },
    { TINY, "golden/readings/mask_case.safetensors", { 1, 7, 64, 4096 }, 0, 0 },
    { TINY, NULL, { 1, 7, 64, 4096 }, 0, 0 },
    { "golden/block128/model", "golden/block128/case.safetensors", { STEP_EDGES, 7, 64, -1 }, 1, 0 },
};

enum { CHUNKED = sizeof chunked / sizeof *chunked };

/* STEP_EDGES: single tokens around the first block's end and around where selection starts (2,048), long chunks
 * between. */
static int64_t chunk_at(int64_t step, int64_t p0, int64_t T)
{
    int64_t next = p0 + step;
    if (step == STEP_EDGES) next = p0 < 120 ? 120 : p0 < 136 ? p0 + 1 : p0 < 2040 ? 2040 : p0 < 2056 ? p0 + 1 : T;
    return (next < T ? next : T) - p0;
}

static void in_chunks(struct m3_cache *cache, int64_t step)
{
    for (int64_t p0 = 0, n; p0 < tokens.T; p0 += n) call(cache, p0, n = chunk_at(step, p0, tokens.T));
}

/* Goal:  chunks of 1, 7, 64 and all at once are one call over everything; also where places and positions differ, and
 *        at 127, 128, 129, 2,047, 2,048 and 2,049.
 * Seen to fail with: blocks anchored at the chunk's start; scores over the chunk's index keys alone; a key, value or
 * index key written one place on; rotary angles of the place in the chunk; the causal bound of the place in the chunk;
 * the cached length counted in calls; noise by the row of the chunk. A slice has half of the chunks in each engine. */
LOOP_TEST(chunks_are_one_call, 4 * CHUNKED)
{
    int i = _i / 4;
    open_model(chunked[i].model, _i / 2 % 2 ? m3_engine_f64() : m3_engine_f32(),
               _i % 2 ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS);
    if (chunked[i].case_path) must(m3_case_read(&tokens, chunked[i].case_path, &model->config, &error));
    else draw_tokens(DRAWN, 1);
    model->config.semantics.jitter = chunked[i].jitter;
    record_whole();
    int all = chunked[i].is_float && engine == m3_engine_f64() ? 1 : 4;
    for (int s = 0; s < all && chunked[i].steps[s] >= 0; s++) {
        if (!in_slice(_i % 2 + s, 2)) continue;
        struct m3_cache *cache = new_cache();
        compare_from_now();
        in_chunks(cache, chunked[i].steps[s]);
        check_seen(0, 0, SLOTS);
        m3_cache_free(cache);
    }
    close_all();
}

/* Goal:  calls of fewer than 32 rows have the bits of calls of one row, with BLAS too: what greedy drafting rests on.
 * Seen to fail with BLAS for calls of 8 rows and more. */
LOOP_TEST(short_calls_are_single_rows, 4)
{
    static const int64_t steps[] = { 1, 2, 7, 31 };
    open_model(_i / 2 ? "golden/block128/model" : TINY, _i % 2 ? m3_engine_f64() : m3_engine_f32(), M3_LINEAR_BLAS);
    draw_tokens(DRAWN, 9);
    whole.T = tokens.T;
    for (int s = 0; s < 4; s++) {
        struct m3_cache *cache = new_cache();
        watch = (struct watch){ .whole = &whole, .records = s == 0, .exact = 1, .fail_layer = -1 };
        in_chunks(cache, steps[s]);
        check_seen(0, 0, SLOTS);
        m3_cache_free(cache);
    }
    close_all();
}

/* Rows [p0, p0 + n) of module m; hidden [T,H] holds what they take, and then what they hand on. */
static void module_rows(struct m3_cache *cache, char *hidden, int64_t m, int64_t p0, int64_t n)
{
    struct m3_request how = request_of(cache, 0, tokens.T);
    struct m3_mtp_request r = { .how = &how,
                                .module = m,
                                .T = n,
                                .ids = tokens.ids + p0 + m + 1,
                                .positions = tokens.positions + p0,
                                .hidden = hidden + (size_t)(p0 * model->config.H) * engine->real_bytes };
    watch.first = p0;
    watch.S = p0 + n;
    must(engine->mtp(model, &r, &error));
    ck_assert_int_eq(m3_cache_length(cache, m), p0 + n);
}

/* Goal:  the modules' own caches, in chunks, give the taps of one call without a cache. So does one call that fills an
 *        empty cache, which holds nothing of the modules then.
 * Seen to fail with: modules that share the main model's length; module 1 over the keys of module 0; no module beside
 * an empty cache. */
LOOP_TEST(modules_in_chunks, 2)
{
    static const int64_t steps[] = { 1, 7, 64, 4096 };
    open_model(MTP, _i ? m3_engine_f64() : m3_engine_f32(), M3_LINEAR_ORDERED);
    draw_tokens(DRAWN, 3);
    record_whole();
    size_t row = (size_t)model->config.H * engine->real_bytes;
    const int64_t layers = model->config.layers, T = tokens.T;
    char *hidden = malloc((size_t)T * row);
    for (int s = 0; s < 4; s++) {
        struct m3_cache *cache = new_cache();
        memcpy(hidden, whole.data[M3_TAP_FINAL_NORM][0], (size_t)T * row);
        compare_from_now();
        call(cache, 0, s == 3 ? T : 5);
        if (s == 3) check_seen(0, 0, SLOTS);
        for (int64_t m = 0; m < 2; m++) ck_assert_int_eq(m3_cache_length(cache, m), 0);
        compare_from_now();
        watch.of_module = 1;
        for (int64_t p0 = 0, n; p0 < T - 1; p0 += n) {
            n = chunk_at(steps[s], p0, T - 1);
            module_rows(cache, hidden, 0, p0, n);
            if (p0 < T - 2) module_rows(cache, hidden, 1, p0, chunk_at(n, p0, T - 2));
        }
        ck_assert_int_eq(m3_cache_length(cache, M3_CACHE_MAIN), s == 3 ? T : 5);
        check_seen(0, 1 + layers, SLOTS);
        m3_cache_free(cache);
    }
    free(hidden);
    close_all();
}

/* Goal:  1, 2 and 5 threads give the same bits after a cached prefix.
 * Seen to fail with attend_blocks that leaves a block out where it has several threads. */
LOOP_TEST(threads_change_no_bit, 4)
{
    static struct whole one;
    open_model("golden/block128/model", _i / 2 ? m3_engine_f64() : m3_engine_f32(),
               _i % 2 ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS);
    must(m3_case_read(&tokens, "golden/block128/case.safetensors", &model->config, &error));
    const int64_t prefix = 2000, T = 150;
    struct m3_cache *cache = new_cache();
    one.T = prefix + T;
    watch = (struct watch){ .whole = &one, .records = 1, .fail_layer = -1 };
    call(cache, 0, prefix);
    for (threads = 1; threads <= 5; threads += threads == 1 ? 1 : 3) {
        m3_cache_set_length(cache, M3_CACHE_MAIN, prefix);
        watch = (struct watch){ .whole = &one, .records = threads == 1, .exact = 1, .fail_layer = -1 };
        struct m3_request request = request_of(cache, prefix, T);
        watch.S = prefix + T;
        must(engine->forward(model, &request, &error));
        ck_assert_int_eq(watch.seen[M3_TAP_LOGITS][0], T);
    }
    m3_cache_free(cache);
    forget(&one);
    close_all();
}

/* Goal:  after cutting back, other tokens give what a fresh call over the shorter prefix and those tokens gives: of the
 *        forgotten tokens no key, value or index key is left. Cut inside a block, at its edge, to nothing; again and
 *        again, as rejected drafts do.
 * Seen to fail with: a length that never shrinks; index keys written after the longest length ever held (known bug
 * cache.index_key). */
LOOP_TEST(cutting_back, 2)
{
    static const int64_t cuts[] = { 0, 59, 60, 61, 99 };
    open_model(TINY, _i ? m3_engine_f64() : m3_engine_f32(), M3_LINEAR_ORDERED);
    struct m3_cache *cache = new_cache();
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        int32_t kept[100];
        m3_cache_set_length(cache, M3_CACHE_MAIN, 0);
        draw_tokens(100, 21);
        record_whole();
        compare_from_now();
        call(cache, 0, 100);
        memcpy(kept, tokens.ids, sizeof kept);

        draw_tokens(130, 22 + k);
        memcpy(tokens.ids, kept, (size_t)cuts[k] * sizeof *kept);
        record_whole();
        compare_from_now();
        m3_cache_set_length(cache, M3_CACHE_MAIN, cuts[k]);
        ck_assert_int_eq(m3_cache_length(cache, M3_CACHE_MAIN), cuts[k]);
        for (int64_t p0 = cuts[k]; p0 + 8 <= tokens.T; p0 += 3) {        /* 8 rows, of which 3 are kept */
            m3_cache_set_length(cache, M3_CACHE_MAIN, p0);
            call(cache, p0, 8);
        }
    }
    m3_cache_free(cache);
    close_all();
}

/* ---- failures */

enum { NAN_TOKEN = 7 };

/* The tiny model with NaN as the embedding of one token. */
static void make_nan_model(void)
{
    static const char *const names[] = { "config.json", "model.safetensors" };
    struct m3_safetensors *file;
    uint64_t header;
    size_t count, at = 0;
    must(m3_safetensors_open(&file, TINY "/model.safetensors", &error));
    const struct m3_tensor *embed = m3_safetensors_find(file, "language_model.model.embed_tokens.weight");
    ck_assert_ptr_nonnull(embed);
    at = (size_t)((const char *)embed->data - (const char *)m3_safetensors_header(file, &header)) +
         (size_t)(NAN_TOKEN * embed->shape[1]) * m3_dtype_bytes(embed->dtype);
    m3_safetensors_close(file);
    ck_assert_int_eq(mkdir(in_folder("model"), 0700), 0);
    for (int i = 0; i < 2; i++) {
        char from[100], to[100];
        snprintf(from, sizeof from, TINY "/%s", names[i]);
        snprintf(to, sizeof to, "model/%s", names[i]);
        unsigned char *bytes = read_bytes(from, &count);
        if (i == 1) memcpy(bytes + at, "\xC0\x7F", 2);
        write_bytes(in_folder(to), bytes, count);
        free(bytes);
    }
}

/* What makes the pass fail, and how. */
static const struct {
    const char *words;
    int32_t id;                 /* in place of the tenth, if not -1 */
    int64_t T, fail_layer;
    int logits, status;
} failures[] = {
    { "the watcher refuses", -1, 40, 3, 0, M3_IO },
    { "the watcher refuses", -1, 40, 0, 0, M3_IO },
    { "layers.0.out, token 10: got nan", NAN_TOKEN, 40, -1, 0, M3_WRONG },
    { "embed, token 10", 211, 40, -1, 0, M3_BAD_INPUT },
    { "T 0", -1, 0, -1, 0, M3_USAGE },
    { "41 rows of logits", -1, 40, -1, 41, M3_USAGE },
    { "0 rows of logits", -1, 40, -1, 0, M3_USAGE },
};

enum { FAILURES = sizeof failures / sizeof *failures };

/* Goal:  a pass that fails leaves the length, and what is after it has no part in the next pass.
 * Seen to fail with: the length set whatever the status; the length set before the pass; rows of logits unchecked. */
LOOP_TEST(a_failed_pass_holds_nothing, FAILURES)
{
    double *logits = malloc(41 * 211 * sizeof *logits);
    make_nan_model();
    open_model(in_folder("model"), m3_engine_f32(), M3_LINEAR_ORDERED);
    draw_tokens(150, 5);
    for (int64_t t = 0; t < 150; t++) tokens.ids[t] += tokens.ids[t] == NAN_TOKEN;
    record_whole();
    struct m3_cache *cache = new_cache();
    for (int64_t prefix = 0; prefix <= 61; prefix += 61) {
        compare_from_now();
        if (prefix) call(cache, 0, prefix);
        int32_t saved = tokens.ids[prefix + 10];
        if (failures[_i].id >= 0) tokens.ids[prefix + 10] = failures[_i].id;
        struct m3_request request = request_of(cache, prefix, failures[_i].T);
        if (failures[_i].status != M3_IO) request.sink = NULL;
        if (strstr(failures[_i].words, "logits")) request.logits = logits;
        request.logit_rows = failures[_i].logits;
        watch.first = prefix;
        watch.S = prefix + failures[_i].T;
        watch.fail_layer = failures[_i].fail_layer;
        ck_assert_int_eq(engine->forward(model, &request, &error), failures[_i].status);
        ck_assert(error_says(failures[_i].words));
        ck_assert_int_eq(m3_cache_length(cache, M3_CACHE_MAIN), prefix);

        tokens.ids[prefix + 10] = saved;
        compare_from_now();
        call(cache, prefix, 3);
        call(cache, prefix + 3, tokens.T - prefix - 3);
        check_seen(prefix, 0, SLOTS);
        m3_cache_set_length(cache, M3_CACHE_MAIN, 0);
    }
    m3_cache_free(cache);
    free(logits);
    close_all();
}

/* Goal: a cache holds every layer, so a call over some of them is refused, and holds nothing.
 * Seen to fail with the check taken out. */
TEST(some_layers_are_refused)
{
    open_tiny(m3_engine_f32(), M3_LINEAR_ORDERED, 9);
    struct m3_cache *cache = new_cache();
    struct m3_request request = request_of(cache, 0, 9);
    request.end_layer = 3;
    ck_assert_int_eq(engine->forward(model, &request, &error), M3_USAGE);
    ck_assert(error_says("cache"));
    request.first_layer = 3;
    request.end_layer = 5;
    request.hidden = whole.data[M3_TAP_OUT][1 + 2];
    ck_assert_int_eq(engine->forward(model, &request, &error), M3_USAGE);
    ck_assert(error_says("cache"));
    ck_assert_int_eq(m3_cache_length(cache, M3_CACHE_MAIN), 0);
    request.cache = NULL;
    watch.S = 9;
    must(engine->forward(model, &request, &error));
    m3_cache_free(cache);
    close_all();
}

/* Goal: numbers of the other engine, or of another model, are never taken for this one's.
 * Seen to fail with either check taken out. */
TEST(another_cache_is_refused)
{
    struct m3_cache *others[2];
    open_model(MTP, m3_engine_f64(), M3_LINEAR_BLAS);
    struct m3_model *mtp_model = model;
    draw_tokens(9, 1);
    others[0] = new_cache();
    model = NULL;
    open_model(TINY, m3_engine_f32(), M3_LINEAR_BLAS);
    others[1] = new_cache();
    struct m3_model *tiny_model = model;
    model = mtp_model;
    for (int i = 0; i < 2; i++) {
        const struct m3_engine *e = i ? m3_engine_f64() : m3_engine_f32();
        struct m3_request request = request_of(others[0], 0, 9);
        char hidden[9 * 32 * 8] = { 0 };
        struct m3_mtp_request r = {
            .how = &request, .T = 8, .ids = tokens.ids + 1, .positions = tokens.positions, .hidden = hidden
        };
        request.sink = NULL;
        request.cache = others[i];
        ck_assert_int_eq(e->forward(model, &request, &error), M3_USAGE);
        ck_assert(error_says("cache of another"));
        ck_assert_int_eq(e->mtp(model, &r, &error), M3_USAGE);
        ck_assert(error_says("cache of another"));
        ck_assert_int_eq(m3_cache_length(others[i], M3_CACHE_MAIN), 0);
        m3_cache_free(others[i]);
    }
    m3_model_close(tiny_model);
    close_all();
}

/* Goal: arrays that are large enough for large pages grow, and keep their numbers.
 * Seen to fail with large pages asked for in a part of an array only: then it cannot be remapped. */
TEST(large_arrays_grow)
{
    static const int64_t places[] = { 40001, 90001, 200003 };
    open_model("golden/block128/model", m3_engine_f32(), M3_LINEAR_BLAS);
    struct m3_cache *cache = new_cache();
    const int64_t width = model->config.G * model->config.D;
    const struct m3_cached *held = m3_cache_at(cache, 0);
    ck_assert_int_eq(width, 256);
    for (int i = 0; i < 3; i++) {
        must(m3_cache_reserve(cache, M3_CACHE_MAIN, places[i], &error));
        for (int before = 0; before < i; before++)
            ck_assert(((float *)held->v)[places[before] * width - 1] == (float)places[before]);
        ((float *)held->v)[places[i] * width - 1] = (float)places[i];
    }
    m3_cache_free(cache);
    close_all();
}

/* Goal:  the logits of the last n rows are those rows of the tap, whatever n, with a sink and without, cached or not.
 * Seen to fail with: rows counted from the first one wanted of each piece; rows from one before; pieces that begin at
 * the first row wanted. */
LOOP_TEST(last_rows_of_logits, 4)
{
    static const int64_t counts[] = { 1, 2, 35, 36, 37, 63, 64, 65, 100 };
    open_tiny(_i / 2 ? m3_engine_f64() : m3_engine_f32(), _i % 2 ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS, 100);
    const int64_t V = model->config.V;
    for (int how = 0; how < 4; how++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            struct guard zone;
            struct m3_cache *cache = how % 2 ? new_cache() : NULL;
            struct m3_request request = request_of(cache, 0, 100);
            if (how / 2) request.sink = NULL;
            compare_from_now();
            watch.S = 100;
            request.logit_rows = counts[k];
            double *logits = request.logits = guard_output(&zone, (size_t)(counts[k] * V) * sizeof *logits);
            must(engine->forward(model, &request, &error));
            for (int64_t i = 0; i < counts[k] * V; i++)
                if (!(logits[i] == number(whole.data[M3_TAP_LOGITS][0], (100 - counts[k]) * V + i)))
                    ck_abort_msg("%d rows: row %d", (int)counts[k], (int)(i / V));
            ck_assert(guard_intact(&zone));
            m3_cache_free(cache);
        }
    close_all();
}
