/* The cache's memory and its files: growing loses nothing, memory that is not to be had changes nothing, a file gives
 * back the bits that went into it. */
#include "cache_watch.h"

#include <sys/resource.h>

#include "model/files/cache_file.h"

TIMEOUT(300);
FIXTURE(make_folder, remove_folder);

enum { DRAWN = 331 };

static int save(const struct m3_cache *cache, const char *path, const struct m3_engine *its,
                const struct m3_semantics *semantics)
{
    struct m3_writer *writer;
    int status = m3_writer_new(&writer, path, &error);
    return status ? status : m3_cache_save(cache, writer, model, its, semantics, &error);
}

/* ---- memory */

/* What the arrays of a layer hold, in a row: k and v [S,GD], index_k [S,X]. */
static size_t held_bytes(int64_t l, int kind, int64_t S)
{
    const struct m3_config *c = &model->config;
    if (kind == 2 && !m3_config_sparse(c, l)) return 0;
    return (size_t)(S * (kind == 2 ? c->X : c->G * c->D)) * engine->real_bytes;
}

static void *held_array(const struct m3_cache *cache, int64_t l, int kind)
{
    const struct m3_cached *held = m3_cache_at(cache, l);
    return kind == 2 ? held->index_k : kind ? held->v : held->k;
}

/* Byte i of an array, other in each layer and kind. */
static unsigned char mark(int64_t l, int kind, size_t i)
{
    return (unsigned char)((size_t)(l * 3 + kind) * 37 + i * 7 + i / 251);
}

static void fill(const struct m3_cache *cache, int64_t l, int64_t S)
{
    for (int kind = 0; kind < 3; kind++) {
        unsigned char *bytes = held_array(cache, l, kind);
        for (size_t i = 0; i < held_bytes(l, kind, S); i++) bytes[i] = mark(l, kind, i);
    }
}

static void check_filled(const struct m3_cache *cache, int64_t l, int64_t S)
{
    for (int kind = 0; kind < 3; kind++) {
        const unsigned char *bytes = held_array(cache, l, kind);
        for (size_t i = 0; i < held_bytes(l, kind, S); i++)
            if (bytes[i] != mark(l, kind, i)) ck_abort_msg("layer %d, kind %d, byte %zu", (int)l, kind, i);
    }
}

/* Goal:  parts grow one by one, by small steps and great leaps, and none loses what it or another holds; a layer that
 *        is not sparse has no index keys.
 * Seen to fail with: growth by fresh pages; a part that grows the layers of another. */
LOOP_TEST(growth_keeps_what_is_held, 2)
{
    static const int64_t sizes[] = { 1, 2, 255, 256, 257, 300, 511, 513, 1025, 5000, 5001, 40000 };
    open_model(MTP, _i ? m3_engine_f64() : m3_engine_f32(), M3_LINEAR_BLAS);
    const int64_t layers = model->config.layers;
    int64_t filled[3] = { 0 };
    struct m3_cache *cache = new_cache();
    for (size_t k = 0; k < 3 * sizeof sizes / sizeof *sizes; k++) {
        int64_t part = (int64_t)(k % 3) - 1, size = sizes[k / 3] + part;       /* from 0 on */
        must(m3_cache_reserve(cache, part, size, &error));
        for (int64_t p = 0; p < 3; p++)
            for (int64_t l = p ? layers + p - 1 : 0; l < (p ? layers + p : layers); l++)
                check_filled(cache, l, filled[p]);
        for (int64_t l = part < 0 ? 0 : layers + part; l < (part < 0 ? layers : layers + part + 1); l++)
            fill(cache, l, size);
        m3_cache_set_length(cache, part, size);
        filled[part + 1] = size;
        for (int64_t p = 0; p < 3; p++) ck_assert_int_eq(m3_cache_length(cache, p - 1), filled[p]);
    }
    must(m3_cache_reserve(cache, M3_CACHE_MAIN, 1, &error));        /* never less */
    check_filled(cache, 0, filled[0]);
    ck_assert_ptr_null(m3_cache_at(cache, 0)->index_k);
    ck_assert_ptr_nonnull(m3_cache_at(cache, 1)->index_k);
    m3_cache_free(cache);
    m3_cache_free(NULL);
    close_all();
}

/* Pages of address space that the process holds. */
static int64_t address_pages(void)
{
    long long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%lld", &pages), 1);
    fclose(file);
    return pages;
}

/* Goal:  memory that is not to be had is M3_INTERNAL, and all is as it was: too many places for the arithmetic, too
 *        many for the system, and room for some of the arrays but not for the last.
 * Seen to fail with: products unchecked; the arrays that had grown left grown (the address space tells); the new number
 * of places kept. */
LOOP_TEST(no_memory_changes_nothing, 2)
{
    /* The last one times 160 and 64 bytes is 160 and 64, modulo 2^64. */
    static const int64_t absurd[] = { INT64_MAX / 4,    INT64_MAX / 2,    INT64_MAX,
                                      INT64_C(1) << 55, INT64_C(1) << 46, (INT64_C(1) << 59) + 1 };
    const int64_t prefix = 40, array = INT64_C(1) << 29;
    open_tiny(m3_engine_f32(), M3_LINEAR_ORDERED, 90);
    const int64_t places = array / (model->config.G * model->config.D * (int64_t)engine->real_bytes);
    struct m3_cache *cache = new_cache();
    if (_i) call(cache, 0, prefix);
    for (size_t k = 0; k < sizeof absurd / sizeof *absurd; k++) {
        ck_assert_int_eq(m3_cache_reserve(cache, M3_CACHE_MAIN, absurd[k], &error), M3_INTERNAL);
        ck_assert(error_says("cache"));
    }
    /* Two and a half, or ten and a half, arrays of k and v more; all layers have ten. */
    for (int64_t halves = 5; halves <= 21; halves += 16) {
        int64_t before = address_pages(), page = sysconf(_SC_PAGESIZE);
        struct rlimit limit, old;
        ck_assert_int_eq(getrlimit(RLIMIT_AS, &old), 0);
        limit = old;
        limit.rlim_cur = (rlim_t)(before * page + halves * array / 2);
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
        int status = m3_cache_reserve(cache, M3_CACHE_MAIN, places, &error);
        ck_assert_int_eq(setrlimit(RLIMIT_AS, &old), 0);
        ck_assert_int_eq(status, M3_INTERNAL);
        ck_assert(error_says("cache"));
        ck_assert_int_lt(labs(address_pages() - before) * page, array / 8);
    }
    ck_assert_int_eq(m3_cache_length(cache, M3_CACHE_MAIN), _i ? prefix : 0);
    call(cache, _i ? prefix : 0, 90 - (_i ? prefix : 0));
    check_seen(0, 0, SLOTS);
    must(m3_cache_reserve(cache, M3_CACHE_MAIN, 1000, &error));
    m3_cache_free(cache);
    close_all();
}

/* ---- files */

static struct m3_cache *load(const char *path)
{
    struct m3_cache *cache = new_cache();
    must(m3_cache_load(cache, path, model, engine, &model->config.semantics, &error));
    return cache;
}

/* Goal:  a saved and loaded cache continues bit for bit, in both precisions, also compressed; it is the main model's
 *        alone.
 * Seen to fail with: the length off by one; index keys not written. */
LOOP_TEST(saved_and_loaded, 8)
{
    const char *name = _i % 2 ? "cache.safetensors.gz" : "cache.safetensors";
    open_model(_i / 4 ? MTP : TINY, _i / 2 % 2 ? m3_engine_f64() : m3_engine_f32(), M3_LINEAR_ORDERED);
    draw_tokens(DRAWN, 11);
    record_whole();
    compare_from_now();
    struct m3_cache *cache = new_cache();
    const int64_t prefix = 131, layers = model->config.layers;
    call(cache, 0, prefix + 40);
    m3_cache_set_length(cache, M3_CACHE_MAIN, prefix);
    must(save(cache, in_folder(name), engine, &model->config.semantics));
    ck_assert_int_eq(file_count(), 1);

    struct m3_cache *loaded = load(in_folder(name));
    ck_assert_int_eq(m3_cache_length(loaded, M3_CACHE_MAIN), prefix);
    for (int64_t l = 0; l < layers; l++)
        for (int kind = 0; kind < 3; kind++) {
            size_t bytes = held_bytes(l, kind, prefix);
            ck_assert(bytes == 0 || memcmp(held_array(loaded, l, kind), held_array(cache, l, kind), bytes) == 0);
        }
    for (int64_t m = 0; m < model->mtp_modules; m++) ck_assert_int_eq(m3_cache_length(loaded, m), 0);
    compare_from_now();
    call(loaded, prefix, 1);
    call(loaded, prefix + 1, tokens.T - prefix - 1);
    check_seen(prefix, 0, 1 + layers);
    for (int64_t m = 0; m < model->mtp_modules; m++) ck_assert_int_eq(watch.seen[M3_TAP_OUT][1 + layers + m], 0);
    m3_cache_free(loaded);
    m3_cache_free(cache);
    close_all();
}

/* Goal:  the file has the names, shapes and dtype that its header promises, in which any reader finds the keys of the
 *        taps.
 * Seen to fail with k and v exchanged in the file. */
LOOP_TEST(the_file_holds_the_taps, 2)
{
    static const struct {
        const char *kind;
        enum m3_tap tap;
        int sparse;
    } kinds[] = {
        { "k", M3_TAP_K_ROPE, 0 },
        { "v", M3_TAP_V_PROJ, 0 },
        { "index_k", M3_TAP_INDEX_K_ROPE, 1 },
    };
    struct m3_safetensors *file;
    int64_t found = 0;
    open_tiny(_i ? m3_engine_f64() : m3_engine_f32(), M3_LINEAR_BLAS, 70);
    const struct m3_config *c = &model->config;
    struct m3_cache *cache = new_cache();
    call(cache, 0, 70);
    must(save(cache, in_folder("cache"), engine, &c->semantics));
    must(m3_safetensors_open(&file, in_folder("cache"), &error));
    for (int64_t l = 0; l < c->layers; l++)
        for (int i = 0; i < 3; i++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d.%s", (int)l, kinds[i].kind);
            const struct m3_tensor *t = m3_safetensors_find(file, name);
            ck_assert_int_eq(t != NULL, !kinds[i].sparse || c->sparse[l]);
            if (!t) continue;
            ck_assert_int_eq(t->dtype, _i ? M3_F64 : M3_F32);
            ck_assert_int_eq(t->rank, kinds[i].sparse ? 2 : 3);
            ck_assert_int_eq(t->shape[0], 70);
            ck_assert_int_eq(t->shape[1], kinds[i].sparse ? c->X : c->G);
            if (t->rank == 3) ck_assert_int_eq(t->shape[2], c->D);
            ck_assert_int_eq(memcmp(t->data, whole.data[kinds[i].tap][1 + l], t->bytes), 0);
            found++;
        }
    ck_assert_int_eq(m3_safetensors_count(file), found);
    m3_safetensors_close(file);
    m3_cache_free(cache);
    close_all();
}

/* Goal:  a file that cannot be written leaves none; one that is not there, of the other precision, of another reading,
 *        or with a bit changed leaves the cache empty, and fit for use.
 *        The same for one whose numbers are saved as they were, but are no numbers.
 * Seen to fail with: the precision unchecked; the reading unchecked; the length set before the checks; infinity
 * taken. */
TEST(files_that_are_refused)
{
    open_tiny(m3_engine_f32(), M3_LINEAR_ORDERED, 70);
    struct m3_semantics other = model->config.semantics;
    other.selection = M3_SELECT_UNION;
    struct m3_cache *cache = new_cache(), *empty = new_cache();
    call(cache, 0, 40);
    ck_assert_int_eq(save(cache, in_folder("no/folder"), engine, &other), M3_IO);
    m3_error_free(&error);
    ck_assert_int_eq(file_count(), 0);
    must(save(cache, in_folder("cache"), engine, &model->config.semantics));

    ck_assert_int_eq(m3_cache_load(empty, in_folder("absent"), model, engine, &other, &error), M3_ABSENT);
    m3_error_free(&error);
    ck_assert_int_eq(m3_cache_load(empty, in_folder("cache"), model, engine, &other, &error), M3_BAD_INPUT);
    ck_assert(error_says("semantics"));
    ck_assert_int_eq(m3_cache_load(empty, in_folder("cache"), model, m3_engine_f64(), &model->config.semantics, &error),
                     M3_BAD_INPUT);
    ck_assert(error_says("precision"));
    size_t count;
    unsigned char *bytes = read_bytes(in_folder("cache"), &count);
    bytes[count - 1] ^= 1;
    write_bytes(in_folder("cache"), bytes, count);
    free(bytes);
    ck_assert_int_eq(m3_cache_load(empty, in_folder("cache"), model, engine, &model->config.semantics, &error),
                     M3_BAD_INPUT);
    ck_assert(error_says("data_sha256"));
    ((float *)m3_cache_at(cache, 2)->v)[17] = INFINITY;
    must(save(cache, in_folder("cache"), engine, &model->config.semantics));
    ck_assert_int_eq(m3_cache_load(empty, in_folder("cache"), model, engine, &model->config.semantics, &error),
                     M3_BAD_INPUT);
    ck_assert(error_says("layers.2.v: element 17: got inf"));
    ck_assert_int_eq(m3_cache_length(empty, M3_CACHE_MAIN), 0);
    compare_from_now();
    call(empty, 0, 70);
    check_seen(0, 0, SLOTS);
    m3_cache_free(cache);
    m3_cache_free(empty);
    close_all();
}
