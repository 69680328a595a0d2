/* The cache of the main model in a file, so that a long prefix is computed once. A safetensors file: layers.l.k and .v
 * [S,G,D], layers.l.index_k [S,X]; its metadata says of which model, precision and reading they are, and the SHA-256 of
 * the numbers. SPEC 11. */
#ifndef M3_MODEL_CACHE_FILE_H
#define M3_MODEL_CACHE_FILE_H

#include "model/cache.h"
#include "model/engine.h"

/* With the safeguards of a dump: a temporary name, synced, renamed. */
int m3_cache_save(const struct m3_cache *cache, const char *path, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error);

/* Into an empty cache. A file of another model, precision or reading, or with numbers that are not those that were
 * saved, is M3_BAD_INPUT. */
int m3_cache_load(struct m3_cache *cache, const char *path, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error);

#endif
