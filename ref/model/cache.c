#define _GNU_SOURCE         /* mremap */
#include "model/cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/minmax.h"

enum {
    LEAST_PLACES = 256,
    LARGE = 32 << 20, /* bytes of an array that gets large pages: a part of one, 2 MiB, hardly counts beside them */
};

struct part {
    int64_t length, places;
};        /* tokens held, and room for them */

struct m3_cache {
    const struct m3_config *config;
    size_t real_bytes;
    int64_t layers;                             /* of the main model and of all modules */
    struct m3_cached *held;                     /* [layers] */
    struct part *parts;                         /* [1 + modules] */
};

int m3_cache_new(struct m3_cache **cache, const struct m3_model *model, size_t real_bytes, struct m3_error *error)
{
    int64_t modules = model->mtp_modules, layers = model->config.layers + modules;
    struct m3_cache *c = calloc(1, sizeof *c);
    *cache = NULL;
    if (c) {
        *c = (struct m3_cache){ &model->config, real_bytes, layers, calloc((size_t)layers, sizeof *c->held),
                                calloc((size_t)(1 + modules), sizeof *c->parts) };
        if (c->held && c->parts) {
            *cache = c;
            return M3_OK;
        }
        m3_cache_free(c);
    }
    return m3_fail_memory(error, "a cache", (size_t)layers * sizeof *c->held);
}

/* Bytes per place in an array that has `width` numbers per place. */
static size_t row_bytes(const struct m3_cache *c, int64_t width) { return (size_t)width * c->real_bytes; }

static void unmap(void *memory, int64_t places, size_t row)
{
    if (memory) munmap(memory, (size_t)places * row);
}

void m3_cache_free(struct m3_cache *cache)
{
    if (!cache) return;
    size_t kv = row_bytes(cache, cache->config->G * cache->config->D), index = row_bytes(cache, cache->config->X);
    for (int64_t l = 0; cache->held && cache->parts && l < cache->layers; l++) {
        int64_t places = cache->parts[m3_max(0, l - cache->config->layers + 1)].places;
        unmap(cache->held[l].k, places, kv);
        unmap(cache->held[l].v, places, kv);
        unmap(cache->held[l].index_k, places, index);
    }
    free(cache->held);
    free(cache->parts);
    free(cache);
}

size_t m3_cache_real_bytes(const struct m3_cache *cache) { return cache->real_bytes; }

int m3_cache_is_for(const struct m3_cache *cache, const struct m3_config *config, size_t real_bytes)
{
    return cache->config == config && cache->real_bytes == real_bytes;
}

int64_t m3_cache_length(const struct m3_cache *cache, int64_t part) { return cache->parts[part + 1].length; }

const struct m3_cached *m3_cache_at(const struct m3_cache *cache, int64_t l) { return &cache->held[l]; }

/* Resizes an array from `from` to `to` places by remapping its pages: places that both hold keep their values, nothing
 * is copied. Returns 0; or -1 with nothing changed. */
static int resize(void **memory, int64_t from, int64_t to, size_t row)
{
    size_t bytes;
    void *pages = NULL;
    if (__builtin_mul_overflow((size_t)to, row, &bytes)) return -1;
    if (to == 0) unmap(*memory, from, row);
    else if (from == 0) pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    else pages = mremap(*memory, (size_t)from * row, bytes, MREMAP_MAYMOVE);
    if (pages == MAP_FAILED) return -1;
    /* All of the array, or else a later call could not remap it. Where this fails, small pages serve. */
    if (pages && bytes >= LARGE) madvise(pages, bytes, MADV_HUGEPAGE);
    *memory = pages;
    return 0;
}

/* Resizes the i-th array of the layers from `first` on, counting k, v and index_k of each. */
static int resize_one(struct m3_cache *cache, int64_t first, int64_t i, int64_t from, int64_t to)
{
    const struct m3_config *c = cache->config;
    struct m3_cached *held = &cache->held[first + i / 3];
    int index = i % 3 == 2;
    if (index && !m3_config_sparse(c, first + i / 3)) return 0;
    if (index) return resize(&held->index_k, from, to, row_bytes(cache, c->X));
    return resize(i % 3 ? &held->v : &held->k, from, to, row_bytes(cache, c->G * c->D));
}

int m3_cache_reserve(struct m3_cache *cache, int64_t part, int64_t places, struct m3_error *error)
{
    struct part *p = &cache->parts[part + 1];
    int64_t layers = cache->config->layers, first = part < 0 ? 0 : layers + part, i = 0;
    int64_t arrays = part < 0 ? 3 * layers : 3;
    if (places <= p->places) return M3_OK;

    /* Double the room, so that adding tokens one at a time does not cost a system call each; untouched pages take no
     * memory. */
    places = m3_max(m3_max(places, LEAST_PLACES), p->places < INT64_MAX / 2 ? 2 * p->places : places);
    while (i < arrays && !resize_one(cache, first, i, p->places, places)) i++;
    if (i == arrays) {
        p->places = places;
        return M3_OK;
    }
    while (i-- > 0) resize_one(cache, first, i, places, p->places);
    return m3_fail(error, M3_INTERNAL, "out of memory: got none for a cache of %" PRId64 " places", places);
}

void m3_cache_set_length(struct m3_cache *cache, int64_t part, int64_t length)
{
    cache->parts[part + 1].length = length;
}
