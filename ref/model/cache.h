/* The state that a model keeps about earlier tokens: for every layer, keys after norm and RoPE, values, and index keys
 * after norm and RoPE. SPEC 11.
 *
 * The main model and every MTP module have a part each, with its own length. Growing moves pages, not numbers. */
#ifndef M3_MODEL_CACHE_H
#define M3_MODEL_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"

/* One layer, from place 0 on, in the engine's `real`. */
struct m3_cached {
    void *k, *v; /* [S,G,D] */
    void *index_k; /* [S,X]; NULL if the layer is not sparse */
};

struct m3_cache;

enum { M3_CACHE_MAIN = -1 }; /* the part of the main model; the part of module m is m */

/* Makes an empty cache. real_bytes: sizeof(real) of the engine that will use it. */
int m3_cache_new(struct m3_cache **cache, const struct m3_model *model, size_t real_bytes, struct m3_error *error);
void m3_cache_free(struct m3_cache *cache); /* NULL is fine */

size_t m3_cache_real_bytes(const struct m3_cache *cache);
/* Does the cache fit a model of this config and numbers of this size? */
int m3_cache_is_for(const struct m3_cache *cache, const struct m3_config *config, size_t real_bytes);
int64_t m3_cache_length(const struct m3_cache *cache, int64_t part);

/* Layer l of model->layers, with room for as many places as the last m3_cache_reserve of its part asked for. */
const struct m3_cached *m3_cache_at(const struct m3_cache *cache, int64_t l);

/* Makes room for `places` places in all layers of the part. Held values stay as they are, also on failure
 * (M3_INTERNAL). */
int m3_cache_reserve(struct m3_cache *cache, int64_t part, int64_t places, struct m3_error *error);

/* Declares that the first `length` places hold tokens: more after a pass has filled them, fewer to forget the last
 * ones. At most the reserved number. */
void m3_cache_set_length(struct m3_cache *cache, int64_t part, int64_t length);

#endif
