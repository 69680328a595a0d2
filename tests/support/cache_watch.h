/* For tests of the cache: a sink that compares every tap of a call with the taps of one call over all tokens without a
 * cache, bit for bit or, with BLAS, approximately; and calls over parts of the tokens. Each test runs in its own
 * process, so the state here belongs to one test. Include in one test file. */
#ifndef M3_TESTS_CACHE_WATCH_H
#define M3_TESTS_CACHE_WATCH_H

#include "files.h"

#include <math.h>
#include <stdint.h>

#include "model/files/cache_file.h"
#include "model/files/case.h"
#include "model/engine.h"
#include "model/model.h"

enum { SLOTS = 16 };

/* Every tap of one call over all tokens. Slot 0: outside layers; 1 + l: layer l, those of MTP modules last. */
struct whole {
    void *data[M3_TAPS][SLOTS];
    int64_t rows[M3_TAPS][SLOTS];
    int64_t T;
};

/* A sink that records taps, or compares them with the recorded ones. */
struct watch {
    struct whole *whole;
    int records, exact;
    int64_t first, S;               /* place of the call's row 0; places after its last row */
    int of_module;                  /* the call runs a module separately */
    int64_t fail_layer;             /* refuse to continue after this layer; -1: never */
    int64_t seen[M3_TAPS][SLOTS];
    double apart[M3_TAPS][SLOTS], size[M3_TAPS][SLOTS];     /* sums of squares */
};

static struct m3_error notes, error;
static struct m3_model *model;
static const struct m3_engine *engine;
static enum m3_linear linear;
static int threads = 1;                 /* many short calls: a team would cost more than it saves */
static struct m3_case tokens;
static struct whole whole;
static struct watch watch;

static inline void must(int status)
{
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
}

static inline int error_says(const char *words)
{
    int says = error.text && strstr(error.text, words) && error.count == 1;
    if (!says) fprintf(stderr, "lacks \"%s\", or one line alone: %s\n", words, error.text ? error.text : "nothing");
    m3_error_free(&error);
    return says;
}

/* ---- the watcher */

static inline int64_t slot_of(int64_t layer)
{
    return layer < 0 ? 0 : layer >= M3_MTP_LAYER ? 1 + model->config.layers + layer - M3_MTP_LAYER : 1 + layer;
}

static inline int is_real(enum m3_tap tap) { return m3_tap_table[tap].kind == M3_KIND_REALS; }

static inline size_t element_bytes(enum m3_tap tap) { return is_real(tap) ? engine->real_bytes : sizeof(int32_t); }

static inline double number(const void *data, int64_t i)
{
    return engine->real_bytes == sizeof(double) ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* Sets the score of a later block. */
static inline void set_ahead(void *scores, int64_t i)
{
    if (engine->real_bytes == sizeof(double)) ((double *)scores)[i] = -INFINITY;
    else ((float *)scores)[i] = -INFINITY;
}

static inline int64_t blocks_of(int64_t S) { return (S + model->config.block - 1) / model->config.block; }

/* Blocks of the whole call; module m has m + 1 rows fewer. */
static inline int64_t whole_blocks(int64_t slot)
{
    int64_t layers = model->config.layers;
    return blocks_of(watch.whole->T - (slot > layers ? slot - layers : 0));
}

/* Blocks of this call. */
static inline int64_t call_blocks(int64_t slot)
{
    int64_t layers = model->config.layers;
    return blocks_of(watch.S - (slot > layers && !watch.of_module ? slot - layers : 0));
}

/* The number of values in a row, with B blocks. */
static inline int64_t width_of(enum m3_tap tap, int64_t B)
{
    int64_t width = 1;
    for (const char *s = m3_tap_table[tap].shape + 1; *s; s++)
        width *= *s == 'B' ? B : m3_config_size(&model->config, *s);
    return width;
}

/* Block scores [G,B] have one run per group; a call before the end has fewer blocks. */
static inline int64_t runs_of(enum m3_tap tap) { return tap == M3_TAP_INDEX_BLOCK_SCORES ? model->config.G : 1; }

static inline void record_row(enum m3_tap tap, int64_t slot, const char *data, int64_t place)
{
    size_t size = element_bytes(tap);
    int64_t runs = runs_of(tap), count = width_of(tap, call_blocks(slot)) / runs;
    int64_t wide = width_of(tap, whole_blocks(slot)) / runs;
    void **all = &watch.whole->data[tap][slot];
    if (!*all) *all = malloc((size_t)(watch.whole->T * runs * wide) * size);
    ck_assert_ptr_nonnull(*all);
    for (int64_t i = 0; is_real(tap) && i < runs * count; i++)
        if (isnan(number(data, i))) ck_abort_msg("%s, slot %d: nan", m3_tap_table[tap].name, (int)slot);
    for (int64_t g = 0; g < runs; g++) {
        char *to = (char *)*all + (size_t)((place * runs + g) * wide) * size;
        memcpy(to, data + (size_t)(g * count) * size, (size_t)count * size);
        for (int64_t b = count; b < wide; b++) set_ahead(to, b);
    }
    watch.whole->rows[tap][slot] = place + 1;
}

/* Compares a run of numbers that both calls have. */
static inline void compare_run(enum m3_tap tap, int64_t slot, const char *got, const char *want, int64_t count,
                               int64_t place)
{
    if (watch.exact || !is_real(tap)) {
        if (memcmp(got, want, (size_t)count * element_bytes(tap)) != 0)
            ck_abort_msg("%s, slot %d, place %lld: other bits than in one call", m3_tap_table[tap].name, (int)slot,
                         (long long)place);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double a = number(got, i), b = number(want, i);
        if (a == b && isinf(a)) continue;
        watch.apart[tap][slot] += (a - b) * (a - b);
        watch.size[tap][slot] += b * b;
    }
}

/* Compares a row; blocks that only the whole call has come after the row. */
static inline void compare_row(enum m3_tap tap, int64_t slot, const char *got, int64_t place)
{
    int64_t runs = runs_of(tap), count = width_of(tap, call_blocks(slot)) / runs;
    int64_t wide = width_of(tap, whole_blocks(slot)) / runs;
    const char *want = watch.whole->data[tap][slot];
    if (!want || place >= watch.whole->rows[tap][slot]) ck_abort_msg("%s: not in one call", m3_tap_table[tap].name);
    for (int64_t g = 0; g < runs; g++) {
        const char *run = want + (size_t)((place * runs + g) * wide) * element_bytes(tap);
        compare_run(tap, slot, got + (size_t)(g * count) * element_bytes(tap), run, count, place);
        for (int64_t b = count; b < wide; b++)
            if (number(run, b) != -INFINITY) ck_abort_msg("slot %d, place %d: a score ahead", (int)slot, (int)place);
    }
}

static inline int wants(void *self, enum m3_tap tap, int64_t layer)
{
    (void)self, (void)tap, (void)layer;
    return 1;
}

static inline int take(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                       struct m3_error *e)
{
    int64_t slot = slot_of(layer), width = width_of(tap, call_blocks(slot));
    (void)self;
    ck_assert_int_lt(slot, SLOTS);
    for (int64_t r = 0; r < rows; r++)
        (watch.records ? record_row : compare_row)(
            tap, slot, (const char *)data + (size_t)(r * width) * element_bytes(tap), watch.first + row + r);
    watch.seen[tap][slot] += rows;
    if (tap == M3_TAP_OUT && layer == watch.fail_layer) return m3_fail(e, M3_IO, "the watcher refuses");
    return M3_OK;
}

static const struct m3_sink sink = { .wants = wants, .write = take };

/* Checks that every row of every tap of these slots was compared once, and that inexact ones are near. */
static inline void check_seen(int64_t from, int64_t first_slot, int64_t end_slot)
{
    double allowed = engine->real_bytes == sizeof(double) ? 1e-13 : 1e-5;
    for (int tap = 0; tap < M3_TAPS; tap++)
        for (int64_t slot = first_slot; slot < end_slot; slot++) {
            int64_t rows = watch.whole->rows[tap][slot];
            double apart = sqrt(watch.apart[tap][slot]), size = sqrt(watch.size[tap][slot]);
            ck_assert_msg(watch.seen[tap][slot] == (rows ? rows - from : 0), "%s, slot %d: %lld rows of %lld",
                          m3_tap_table[tap].name, (int)slot, (long long)watch.seen[tap][slot], (long long)rows);
            if (!(apart <= allowed * size))
                ck_abort_msg("%s, slot %d: relative L2 %g, allowed %g", m3_tap_table[tap].name, (int)slot, apart / size,
                             allowed);
        }
}

/* ---- calls */

/* Over tokens [first, first + T) of the case. */
static inline struct m3_request request_of(struct m3_cache *cache, int64_t first, int64_t T)
{
    return (struct m3_request){ .ids = tokens.ids + first,
                                .positions = tokens.positions + first,
                                .T = T,
                                .seen = tokens.seen,
                                .end_layer = model->config.layers,
                                .semantics = &model->config.semantics,
                                .linear = linear,
                                .threads = threads,
                                .cache = cache,
                                .sink = &sink };
}

static inline void call(struct m3_cache *cache, int64_t first, int64_t T)
{
    struct m3_request request = request_of(cache, first, T);
    watch.first = first;
    watch.S = first + T;
    must(engine->forward(model, &request, &error));
    if (cache) ck_assert_int_eq(m3_cache_length(cache, M3_CACHE_MAIN), first + T);
}

static inline void forget(struct whole *w)
{
    for (int tap = 0; tap < M3_TAPS; tap++)
        for (int slot = 0; slot < SLOTS; slot++) free(w->data[tap][slot]);
    memset(w, 0, sizeof *w);
}

/* Records one call over all tokens, without a cache; from then on taps are compared with it. */
static inline void record_whole(void)
{
    forget(&whole);
    whole.T = tokens.T;
    watch = (struct watch){ .whole = &whole, .records = 1, .fail_layer = -1 };
    call(NULL, 0, tokens.T);
}

static inline void compare_from_now(void)
{
    watch = (struct watch){ .whole = &whole, .exact = linear == M3_LINEAR_ORDERED, .fail_layer = -1 };
}

static inline struct m3_cache *new_cache(void)
{
    struct m3_cache *cache;
    must(m3_cache_new(&cache, model, engine->real_bytes, &error));
    ck_assert_uint_eq(m3_cache_real_bytes(cache), engine->real_bytes);
    ck_assert_int_eq(m3_cache_length(cache, M3_CACHE_MAIN), 0);
    return cache;
}

static inline void open_model(const char *folder_path, const struct m3_engine *e, enum m3_linear body)
{
    must(m3_model_open(&model, folder_path, &notes, &error));
    engine = e;
    linear = body;
}

/* Draws T ids from the whole vocabulary; another seed gives others. */
static inline void draw_tokens(int64_t T, uint64_t seed)
{
    int64_t *ids = malloc((size_t)T * sizeof *ids);
    ck_assert_ptr_nonnull(ids);
    for (int64_t t = 0; t < T; t++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ids[t] = (int64_t)((seed >> 33) % (uint64_t)model->config.V);
    }
    m3_case_free(&tokens);
    must(m3_case_from_ids(&tokens, ids, T, NULL, &model->config, &error));
    free(ids);
}

static inline void close_all(void)
{
    forget(&whole);
    m3_case_free(&tokens);
    m3_model_close(model);
    model = NULL;
}

#define TINY "golden/tiny/model"
#define MTP "golden/mtp/model"

/* Opens a tiny model, draws tokens, and records the call over all of them. */
static inline void open_tiny(const struct m3_engine *e, enum m3_linear body, int64_t T)
{
    open_model(TINY, e, body);
    draw_tokens(T, 7);
    record_whole();
    compare_from_now();
}

#endif
