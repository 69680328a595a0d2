#include <string.h>

#include "estimate/foreign.h"
#include "estimate/private/parts.h"

static void add_symbols(struct m3_symbols *s, const struct m3_symbol *more, size_t count)
{
    memcpy(s->list + s->count, more, count * sizeof *more);
    s->count += (int)count;
}

/* A size that is 0 in a model with only a few numbers is unknown. */
static void add_sizes(struct m3_symbols *s, const struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const struct m3_foreign *few = m3_few_numbers(e);
    const int own = !e->request.foreign;
    const int64_t none = few ? M3_UNKNOWN : 0;
    const struct m3_symbol sizes[] = {
        { "H", "hidden size", few ? M3_UNKNOWN : c->H },
        { "Q", "query heads", c->Q ? c->Q : none },
        { "G", "key/value heads, index heads", c->G ? c->G : none },
        { "D", "channels of a head", c->D ? c->D : none },
        { "X", "channels of an index head", few && !few->cached_numbers ? M3_UNKNOWN : c->X },
        { "V", "vocabulary", few ? M3_UNKNOWN : c->V },
        { "untied", "1 unless lm_head is the embedding", !c->tied_embeddings },
        { "q", "width of the norm of queries", own ? m3_config_size(c, 'q') : 0 },
        { "k", "width of the norm of keys", own ? m3_config_size(c, 'k') : 0 },
        { "qk_norms", "norms of queries and keys in a layer", own ? 2 : 0 },
        { "I", "width of a dense MLP", few ? M3_UNKNOWN : c->dense_intermediate },
        { "E", "routed experts", c->E },
        { "K", "experts per token", few ? M3_UNKNOWN : c->K },
        { "F", "width of a routed expert", c->F },
        { "J", "width of the shared expert", c->shared_intermediate },
        { "shared", "1 if there is a shared expert", c->shared_intermediate > 0 },
        { "N", "blocks kept", c->N },
        { "block", "keys in a block", c->block },
    };
    add_symbols(s, sizes, sizeof sizes / sizeof sizes[0]);
}

static void add_layers(struct m3_symbols *s, const struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const int additive = e->request.mtp_join == M3_MTP_ADDITIVE;
    const struct m3_symbol layers[] = {
        { "layers", "layers", c->layers },
        { "full", "layers of full attention", e->full },
        { "sparse", "layers of sparse attention", e->sparse },
        { "dense", "layers with a dense MLP", e->dense },
        { "moe", "layers with experts", e->moe },
        { "any_sparse", "1 if there are sparse layers", e->sparse > 0 },
        { "last_sparse", "1 if the last layer is sparse", c->layers && m3_config_sparse(c, c->layers) },
        { "last_moe", "1 if the last layer has experts", c->layers && m3_config_moe(c, c->layers) },
        { "mtp", "MTP modules", e->request.mtp_modules },
        { "params_mtp", "parameters of MTP modules", e->census.of[M3_COMPONENT_MTP_MODULES].parameters },
        { "halves", "widths H in a row of a module's eh_proj", additive ? 1 : 2 },
        { "module_norms", "norms of a module outside its layer", additive ? 1 : 3 },
        { "cached", "layers with keys and values, MTP modules with them", e->cached },
        { "indexed", "layers with index keys, MTP modules with them", e->indexed },
    };
    add_symbols(s, layers, sizeof layers / sizeof layers[0]);
}

static void add_request(struct m3_symbols *s, const struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const struct m3_estimate_request *r = &e->request;
    const int64_t T = r->context, kept = c->N * c->block;
    const struct m3_symbol asked[] = {
        { "T", "context", T },
        { "last", "keys of the own block", c->block ? (T - 1) % c->block + 1 : 0 },
        { "rest", "(T - N block) mod block", c->block && T > kept ? (T - kept) % c->block : 0 },
        { "batch", "sequences", r->batch },
        { "weight_bits", "bits of a weight", r->weights->bits },
        { "kv_bits", "bits of a cached number", r->kv->bits },
        { "index_bits", "bits of a number of an index key", r->index_kv->bits },
        { "activations", "an assumption, --activations", r->activation_bytes },
        { "gpus", "cards", r->gpu ? r->gpus : M3_UNKNOWN },
        { "efficiency", "an assumption, --efficiency, in percent", r->gpu ? r->efficiency : M3_UNKNOWN },
        { "card_memory", "of a card, as --card-memory reads it", r->gpu ? r->card_bytes : M3_UNKNOWN },
        { "card_peak", "dense peak of a card for such weights, SPEC 14.5",
          !r->gpu                                      ? M3_UNKNOWN
          : r->weights->bits == 8 && r->gpu->fp8_flops ? r->gpu->fp8_flops
                                                       : r->gpu->bf16_flops },
        { "card_bandwidth", "of a card's memory, SPEC 14.5", r->gpu ? r->gpu->bandwidth : M3_UNKNOWN },
    };
    add_symbols(s, asked, sizeof asked / sizeof asked[0]);
}

static int64_t of_picture(const struct m3_config *c, char letter)
{
    return c->vision.present ? m3_config_size(c, letter) : 0;
}

static void add_pictures(struct m3_symbols *s, const struct m3_estimate *e)
{
    const struct m3_config *c = e->config;
    const struct m3_symbol pictures[] = {
        { "vision", "1 if there is a tower", c->vision.present },
        { "tower", "layers of the tower", c->vision.present ? c->vision.layers : 0 },
        { "W", "hidden size of the tower", of_picture(c, 'W') },
        { "L", "width of the tower's MLP", of_picture(c, 'L') },
        { "C", "numbers in a patch", of_picture(c, 'C') },
        { "Y", "inner width of the projector", of_picture(c, 'Y') },
        { "Z", "merge^2 H", of_picture(c, 'Z') },
        { "P", "patches", e->patches },
        { "squares", "sum over segments of their patches squared", e->squares },
        { "merge", "side of the patches merged to a token", c->vision.present ? c->vision.spatial_merge : 0 },
    };
    add_symbols(s, pictures, sizeof pictures / sizeof pictures[0]);
}

/* Bytes of the text model except the routed experts, and except the embedding unless it is also lm_head. */
static int64_t always_read(const struct m3_estimate *e, const struct m3_census *census)
{
    const int left_out[] = { M3_COMPONENT_MOE_ROUTED, M3_COMPONENT_VISION_TOWER, M3_COMPONENT_PROJECTOR,
                             M3_COMPONENT_MTP_MODULES, M3_COMPONENT_EMBEDDING };
    int64_t bytes = m3_census_bytes(census);
    for (int i = 0; i < 4 + !e->config->tied_embeddings; i++) bytes -= census->of[left_out[i]].bytes;
    return bytes;
}

/* The sizes of files, real or hypothetical, and published numbers. */
static void add_counts(struct m3_symbols *s, const struct m3_estimate *e)
{
    const struct m3_foreign *few = m3_few_numbers(e);
    const struct m3_census *files = e->request.files, *census = files ? files : &e->census;
    int64_t scales = 0;
    for (int i = 0; i < M3_COMPONENTS; i++) scales += census->of[i].scales;
    const struct m3_symbol counts[] = {
        { "scales", "scale tensors, of matrices in codes", scales },
        { "matrix_params", "parameters in codes", e->census.scaled_parameters },
        { "code_bytes", "bytes of these codes", e->census.code_bytes },
        { "scale_bytes", "bytes of their scales", e->census.scale_bytes },
        { "file_bytes", "bytes of the tensors in the files", files ? m3_census_bytes(files) : M3_UNKNOWN },
        { "routed", "parameters of routed experts", census->of[M3_COMPONENT_MOE_ROUTED].parameters },
        { "routed_bytes", "bytes of routed experts, as stored", census->of[M3_COMPONENT_MOE_ROUTED].bytes },
        { "always_bytes", "bytes of the other weights that a token is multiplied by, as stored",
          few ? M3_UNKNOWN : always_read(e, census) },
        { "published", "parameters, as published", few ? few->parameters : M3_UNKNOWN },
        { "published_active", "active parameters, as published", few ? few->active : M3_UNKNOWN },
        { "numbers", "numbers in the cache for a token and layer",
          few && few->cached_numbers ? few->cached_numbers : M3_UNKNOWN },
    };
    add_symbols(s, counts, sizeof counts / sizeof counts[0]);
}

/* Bytes of a component in memory: as stored, if that counts, otherwise nominal. */
static int64_t in_memory(const struct m3_estimate *e, enum m3_component component)
{
    const struct m3_estimate_request *r = &e->request;
    if (r->files && !r->weights_asked) return r->files->of[component].bytes;
    return (e->census.of[component].parameters * r->weights->bits + 7) / 8;
}

/* What one card of a stage holds is a part of these. */
static void add_layout(struct m3_symbols *s, const struct m3_estimate *e)
{
    const struct m3_layout *l = &e->request.layout;
    const struct m3_stage *stage = &e->stage;
    const int own_head = !e->config->tied_embeddings, copy = stage->is_last && !stage->is_first;
    const enum m3_component head = own_head ? M3_COMPONENT_LM_HEAD : M3_COMPONENT_EMBEDDING;
    const struct m3_symbol layout[] = {
        { "tp", "cards that share the heads and widths of a layer", l->tp },
        { "pp", "stages that the layers are divided into", l->pp },
        { "dp", "replicas, each with its own sequences", l->dp },
        { "ep", "groups of cards that the experts are divided into", l->ep },
        { "chunk", "tokens that a replica processes at a time", l->chunk },
        { "stage_layers", "layers of the fullest stage", stage->layers },
        { "stage_sparse", "sparse layers of the fullest stage", stage->sparse },
        { "stage_dense", "its layers with a dense MLP", stage->dense },
        { "stage_moe", "its layers with experts", stage->moe },
        { "stage_last", "1 if it computes logits", stage->is_last },
        { "stage_embedding", "bytes of the embedding in it",
          stage->is_first ? in_memory(e, M3_COMPONENT_EMBEDDING) : 0 },
        { "stage_vision", "bytes of tower and projector in it",
          stage->is_first ? in_memory(e, M3_COMPONENT_VISION_TOWER) + in_memory(e, M3_COMPONENT_PROJECTOR) : 0 },
        { "stage_head", "bytes of lm_head in it",
          own_head ? stage->is_last * in_memory(e, head) : copy * in_memory(e, head) },
        { "bytes_head", "bytes of lm_head", in_memory(e, head) },
        { "bytes_attention", "bytes of the projections q, k, v, o", in_memory(e, M3_COMPONENT_ATTENTION) },
        { "bytes_indexer", "bytes of the index projections", in_memory(e, M3_COMPONENT_INDEXER) },
        { "bytes_dense", "bytes of the dense MLPs", in_memory(e, M3_COMPONENT_DENSE_MLP) },
        { "bytes_routed", "bytes of the routed experts", in_memory(e, M3_COMPONENT_MOE_ROUTED) },
        { "bytes_shared", "bytes of the shared experts", in_memory(e, M3_COMPONENT_MOE_SHARED) },
        { "bytes_router", "bytes of the routers",
          in_memory(e, M3_COMPONENT_MOE_ROUTER) + in_memory(e, M3_COMPONENT_MOE_ROUTER_BIAS) },
        { "bytes_norms", "bytes of the norms of the text model", in_memory(e, M3_COMPONENT_NORMS) },
    };
    if (l->tp) add_symbols(s, layout, sizeof layout / sizeof layout[0]);
}

struct m3_symbols m3_symbols_of(const struct m3_estimate *e)
{
    struct m3_symbols symbols = { .count = 0 };
    add_sizes(&symbols, e);
    add_layers(&symbols, e);
    add_request(&symbols, e);
    add_pictures(&symbols, e);
    add_counts(&symbols, e);
    add_layout(&symbols, e);
    return symbols;
}

const struct m3_symbol *m3_symbol_named(const struct m3_symbols *symbols, const char *name, size_t length)
{
    for (int i = 0; i < symbols->count; i++)
        if (strlen(symbols->list[i].name) == length && strncmp(symbols->list[i].name, name, length) == 0)
            return &symbols->list[i];
    return NULL;
}
