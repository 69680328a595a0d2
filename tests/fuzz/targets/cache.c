#include "model/files/cache_file.h"

#include "world.h"

const int fuzz_parts = 1;
void fuzz_begin(void) { fuzz_world(); }

void fuzz_one(const struct fuzz_bytes *parts)
{
    const struct fuzz_world *w = fuzz_world();
    const struct m3_engine *engine = m3_engine_f32();
    struct m3_error error = { 0 };
    struct m3_cache *cache;
    int64_t places;
    const char *path = fuzz_file("cache.safetensors", parts[0]);
    int status = m3_cache_new(&cache, w->model, engine->real_bytes, &error);
    if (!status) status = m3_cache_load(cache, path, w->model, engine, &w->semantics, &error);
    m3_cache_free(cache);
    fuzz_check(status, &error);
    status = m3_cache_places(&places, path, &error);
    if (!status && places < 1) fuzz_broken("a cache without places");
    fuzz_check(status, &error);
}
