/* What a model of the family costs: parameters, FLOPs, caches, memory, cards, a lower bound of the time. SPEC 14.
 *
 * Integers are exact: formed in 128 bits and refused where 63 do not hold them. Fractions are exact and reduced. Only
 * expectations and quotients are double. Bytes are bytes; GB and GiB are the business of who prints. Letters: SPEC 1;
 * T is the context here: the places that the decoded token sees, itself included. */
#ifndef M3_ESTIMATE_ESTIMATE_H
#define M3_ESTIMATE_ESTIMATE_H

#include <jansson.h>
#include <stdint.h>

#include "io/checkpoint.h"
#include "io/config.h"

enum m3_component {
    M3_EMBEDDING, M3_LM_HEAD, M3_ATTENTION, M3_INDEXER, M3_DENSE_MLP, M3_MOE_ROUTED, M3_MOE_SHARED, M3_MOE_ROUTER,
    M3_MOE_ROUTER_BIAS, M3_NORMS, M3_VISION_TOWER, M3_PROJECTOR, M3_MTP_MODULES, M3_COMPONENTS,
};

extern const char *const m3_component_names[M3_COMPONENTS];    /* as in the JSON */

/* The tensors of a model, summed over each component. */
struct m3_census {
    struct m3_census_row {
        int64_t tensors, parameters;    /* without scale tensors */
        int64_t scales;                 /* scale tensors */
        int64_t bytes;                  /* of both */
    } of[M3_COMPONENTS];
    int64_t other_modules;              /* tensors of MTP modules that were not asked for */
};

/* By the binding table, in the dtypes of a release: F32 where it asks for F32, else BF16, or with matrix_scaling E4M3
 * with scales. `modules` is how many MTP modules are counted. */
void m3_census_of_config(struct m3_census *census, const struct m3_config *config, int64_t modules);

/* By the tensors that the files hold. M3_BAD_INPUT if one has a name that belongs to no component. */
int m3_census_of_files(struct m3_census *census, const struct m3_checkpoint *files, const struct m3_config *config,
                       int64_t modules, struct m3_error *error);

/* M3_BAD_INPUT, with a line for each component whose tensors or parameters differ. */
int m3_census_agree(const struct m3_census *files, const struct m3_census *config, const char *path,
                    struct m3_error *error);

/* A format of numbers, by its bits. */
struct m3_format {
    const char *name;
    int bits;
};

const struct m3_format *m3_format_named(const char *name);     /* NULL: none; f32 bf16 f16 fp8 int4 fp4 */

/* Dense peaks, per second. 0 where the card has none, or the figure is not known. */
struct m3_gpu {
    const char *name;
    int64_t bf16_flops, fp8_flops, bandwidth;
    int64_t vendor_bytes, reported_bytes;       /* on the box; by the driver */
};

const struct m3_gpu *m3_gpu_named(const char *name);            /* NULL: none; a100 h100 h200 b200 */

struct m3_estimate_request {
    int64_t context, batch;             /* 1 .. M3_MOST_CONTEXT, 1 .. M3_MOST_BATCH */
    const struct m3_format *weights, *kv, *index_kv;
    int weights_asked;                  /* the nominal size counts for memory, even if the stored one is known */
    int64_t mtp_modules;
    int64_t activation_bytes;           /* of one sequence: an assumption */
    const struct m3_gpu *gpu;           /* NULL: none */
    int64_t gpus, card_bytes;
    const struct m3_census *config;     /* NULL: counted anew, which takes longer than all the rest */
    const struct m3_census *files;      /* NULL: stored sizes are not known */
};

#define M3_MOST_CONTEXT ((int64_t)1 << 32)
#define M3_MOST_BATCH ((int64_t)1 << 31)

enum { M3_MOST_SPREAD = 128 };          /* experts per token up to which their spread over cards is computed */
#define M3_ACTIVATION_BYTES ((int64_t)5 << 30)

struct m3_flops {
    int64_t full_attention, msa_index, msa_main, projections, index_projections, dense_mlp, moe, lm_head, total;
    int64_t moe_shared, moe_routed, moe_router;     /* add up to moe */
};

struct m3_fraction {
    int64_t over, under;                /* reduced; under > 0 */
};

enum m3_ratio {
    M3_RATIO_MAIN_BRANCH, M3_RATIO_LAYER_QK, M3_RATIO_LAYER, M3_RATIO_MODEL_ATTENTION, M3_RATIO_WITHOUT_LM_HEAD,
    M3_RATIO_WITH_LM_HEAD, M3_RATIO_LAYER_PREFILL, M3_RATIOS,
};

extern const char *const m3_ratio_names[M3_RATIOS];             /* as in the JSON */

struct m3_estimate {
    const struct m3_config *config;
    struct m3_estimate_request request;
    int64_t full, sparse, dense, moe;   /* layers of each kind */
    int64_t cached, indexed;            /* layers that hold keys and values, index keys; MTP modules with them */

    struct m3_census census;            /* of the config */
    int64_t tensors, tensors_unquantised, params_total;
    int64_t active_layers, active_head, active_embedding, active_vision;

    int64_t keys_main, keys_main_prefill;       /* of a sparse layer: n(T), S(T) = sum of n(t) */
    struct m3_flops decode, prefill;
    int64_t decode_step, decode_all_full;
    struct m3_fraction ratios[M3_RATIOS];       /* only with sparse layers */

    int64_t kv_main, kv_index, kv_total;        /* bytes of one sequence */
    int64_t kv_batch_main, kv_batch_index, kv_batch_total;
    int64_t weight_bytes, weight_bytes_released;
    int64_t weight_bytes_stored;                /* -1: not known */
    int64_t weight_bytes_in_memory;             /* one of the three */
    int64_t memory_without_activations, memory;
    int64_t min_cards_weights, min_cards, max_batch;

    double experts_read;                /* distinct experts of a layer that a step touches, expected */
    double read_weights, read_total;    /* bytes of a step */
    int64_t read_kv_full, read_kv_selected, read_index_keys;
    double intensity;                   /* FLOP per byte */
    int64_t peak_flops;                 /* this and the next ones: only with a GPU */
    double bandwidth_seconds, compute_seconds;
    int compute_bound;

    int has_spread;
    double p_fullest[M3_MOST_SPREAD];   /* [K]: the fullest card holds j + 1 of a token's experts */
    double expected_fullest, expected_cards_hit;

    int overflow;                       /* a figure did not fit; m3_estimate fails then */
};

/* Fills *e; it borrows what the request and `config` point to. M3_USAGE if a figure exceeds 63 bits. */
int m3_estimate(struct m3_estimate *e, const struct m3_config *config, const struct m3_estimate_request *request,
                struct m3_error *error);

/* The summary object: keys of SPEC 14. NULL if memory is short. */
json_t *m3_estimate_json(const struct m3_estimate *e);

/* Prints how a figure comes about, or every figure of a group: formula, the same with numbers, value. `summary` is
 * that of m3_estimate_json. M3_USAGE if there is no such key, or no value for it. */
int m3_estimate_explain(const struct m3_estimate *e, const json_t *summary, const char *key, FILE *out,
                        struct m3_error *error);

/* A value of the summary by its dotted key, "kv_bytes.main" or "expert_spread.p_fullest.0"; NULL if there is none. */
const json_t *m3_estimate_value(const json_t *summary, const char *key);

#endif
