/* The cache of the main model in a file, so that a long prefix is computed once. A safetensors file: layers.l.k and .v
 * [S,G,D], layers.l.index_k [S,X]; its metadata says of which model, precision and reading they are, and the SHA-256 of
 * the numbers. SPEC 11. */
#ifndef M3_MODEL_FILES_CACHE_FILE_H
#define M3_MODEL_FILES_CACHE_FILE_H

#include "io/safetensors.h"
#include "model/cache.h"
#include "model/engine.h"

/* Into a writer that was only just made, and commits it; so the file's place can be tried before a long pass. Takes the
 * writer, also on failure. */
int m3_cache_save(const struct m3_cache *cache, struct m3_writer *writer, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error);

/* Into an empty cache. A file of another model, precision or reading, or with numbers that are not those that were
 * saved, is M3_BAD_INPUT. */
int m3_cache_load(struct m3_cache *cache, const char *path, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error);

#endif
