/* Pages of the weight files: a pass requests those of a layer before it runs, and releases them afterwards. */
#ifndef M3_MODEL_PAGES_H
#define M3_MODEL_PAGES_H

#include "io/safetensors.h"
#include "model/forward/pass.h"

/* Request all matrices of a text layer except the routed experts; then the experts in `ids` [count]; then release them
 * all. A short pass on a cache is one of many: its weights stay mapped. */
void m3_pass_ask_layer(const struct m3_pass *f, const struct m3_layer *w);
void m3_pass_ask_experts(const struct m3_pass *f, const struct m3_expert *experts, const int32_t *ids, int64_t count);
void m3_pass_release_layer(const struct m3_pass *f, const struct m3_layer *w);

/* `give` is m3_pages_ask or m3_pages_release. */
void m3_pass_tower_pages(const struct m3_pass *f, const struct m3_vision_layer *w,
                         void (*give)(const void *, uint64_t));
void m3_pass_projector_pages(const struct m3_pass *f, const struct m3_vision *w, void (*give)(const void *, uint64_t));

#endif
