/* The main model's cache in a file, so that a long prefix is computed once. It is a safetensors file: layers.l.k and
 * .v [S,G,D], layers.l.index_k [S,X]. Its metadata names the model, precision and reading, and the SHA-256 of the
 * numbers. SPEC 11. */
#ifndef M3_MODEL_FILES_CACHE_FILE_H
#define M3_MODEL_FILES_CACHE_FILE_H

#include "io/safetensors.h"
#include "model/cache.h"
#include "model/engine.h"

/* Writes the cache into a new writer and commits it; the caller can thus try to create the file before a long pass.
 * Takes over the writer, also on failure. */
int m3_cache_save(const struct m3_cache *cache, struct m3_writer *writer, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error);

/* Reads a file into an empty cache. M3_BAD_INPUT if the file is of another model, precision or reading, or if its
 * numbers are not those that were saved. */
int m3_cache_load(struct m3_cache *cache, const char *path, const struct m3_model *model,
                  const struct m3_engine *engine, const struct m3_semantics *semantics, struct m3_error *error);

/* The number of places in a cache file, without its numbers being read. M3_BAD_INPUT if it is no cache file. */
int m3_cache_places(int64_t *places, const char *path, struct m3_error *error);

/* The SHA-256 of the numbers of the first S places. */
int m3_cache_sha256(char sha256[65], const struct m3_cache *cache, const struct m3_config *config, int64_t S,
                    struct m3_error *error);

#endif
