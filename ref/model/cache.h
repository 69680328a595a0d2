/* What a model remembers of the tokens behind it: keys after norm and RoPE, values, and index keys after norm and RoPE,
 * of every layer. SPEC 11.
 *
 * It has parts of their own length: the main model, and every MTP module. Growing moves pages, not numbers. */
#ifndef M3_MODEL_CACHE_H
#define M3_MODEL_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/model.h"

/* One layer, from place 0 on, in the numbers of the engine. */
struct m3_cached {
    void *k, *v; /* [S,G,D] */
    void *index_k; /* [S,X]; NULL if the layer is not sparse */
};

struct m3_cache;

enum { M3_CACHE_MAIN = -1 }; /* the part of the main model; that of module m is m */

/* Empty. real_bytes: of the engine that will use it. */
int m3_cache_new(struct m3_cache **cache, const struct m3_model *model, size_t real_bytes, struct m3_error *error);
void m3_cache_free(struct m3_cache *cache); /* NULL is fine */

size_t m3_cache_real_bytes(const struct m3_cache *cache);
/* Was it made for the model of this config, and for numbers of this size? */
int m3_cache_is_for(const struct m3_cache *cache, const struct m3_config *config, size_t real_bytes);
int64_t m3_cache_length(const struct m3_cache *cache, int64_t part);

/* Layer l of model->layers, for as many places as the last m3_cache_reserve of its part. */
const struct m3_cached *m3_cache_at(const struct m3_cache *cache, int64_t l);

/* Room for `places` places in all layers of the part; what is held stays as it is, also on failure (M3_INTERNAL). */
int m3_cache_reserve(struct m3_cache *cache, int64_t part, int64_t places, struct m3_error *error);

/* The first `length` places hold tokens: more of them once a pass has filled them, fewer to forget the last ones.
 * At most what was reserved. */
void m3_cache_set_length(struct m3_cache *cache, int64_t part, int64_t length);

#endif
