/* The cost of a model of the family: parameters, FLOPs, caches, memory, cards, a lower bound of the time. SPEC 14.
 * Each figure has one formula, in figures.c: --explain prints it, and the value is computed from it.
 *
 * Integers are exact: computed in 128 bits and refused if they exceed 63. Fractions are exact and reduced. Only
 * expectations and quotients are double. An unknown figure is M3_UNKNOWN, or NaN. Bytes are bytes; the printing code
 * converts to GB and GiB. Letters: SPEC 1; T is the context here: the places that the decoded token sees, including
 * its own. */
#ifndef M3_ESTIMATE_ESTIMATE_H
#define M3_ESTIMATE_ESTIMATE_H

#include <jansson.h>
#include <stdint.h>

#include "io/checkpoint.h"
#include "io/config.h"

#define M3_UNKNOWN ((int64_t)-1)

/* No product of sizes in range reaches 2^125: m3_config_read refuses more than 2^56 parameters. */
typedef __int128 m3_wide;

struct m3_value {
    enum { M3_VALUE_PENDING, M3_VALUE_UNKNOWN, M3_VALUE_EXACT, M3_VALUE_REAL } kind;
    m3_wide over, under;        /* an exact fraction: under > 0, and 1 for a whole number */
    double real;
};

enum m3_component {
    M3_COMPONENT_EMBEDDING,
    M3_COMPONENT_LM_HEAD,
    M3_COMPONENT_ATTENTION,
    M3_COMPONENT_INDEXER,
    M3_COMPONENT_DENSE_MLP,
    M3_COMPONENT_MOE_ROUTED,
    M3_COMPONENT_MOE_SHARED,
    M3_COMPONENT_MOE_ROUTER,
    M3_COMPONENT_MOE_ROUTER_BIAS,
    M3_COMPONENT_NORMS,
    M3_COMPONENT_VISION_TOWER,
    M3_COMPONENT_PROJECTOR,
    M3_COMPONENT_MTP_MODULES,
    M3_COMPONENTS,
};

extern const char *const m3_component_names[M3_COMPONENTS];    /* as in the JSON */

/* The tensors of a model, summed per component. */
struct m3_census {
    struct m3_census_row {
        int64_t tensors, parameters;    /* without scale tensors */
        int64_t scales;                 /* scale tensors */
        int64_t bytes;                  /* of both */
    } of[M3_COMPONENTS];
    int64_t scaled_parameters;          /* of the config: parameters in codes of 8 or 4 bits */
    int64_t code_bytes, scale_bytes;    /* their codes and scales, in bytes */
    int64_t other_modules;              /* tensors of MTP modules that are not counted */
};

/* Counts by the binding table, in the dtypes of a release: F32 where the table says F32, otherwise BF16, or with
 * matrix_scaling codes with scales. `modules` is the number of MTP modules to count; additive ones have [H,H] for
 * eh_proj, and no norms before it. */
void m3_census_of_config(struct m3_census *census, const struct m3_config *config, int64_t modules,
                         enum m3_mtp_join join);

/* Counts the tensors in the files. M3_BAD_INPUT if the name of one belongs to no component. */
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

/* Dense peaks, per second. 0 if the card does not support the format, or the figure is not known. */
struct m3_gpu {
    const char *name;
    int64_t bf16_flops, fp8_flops, bandwidth;
    int64_t vendor_bytes, reported_bytes;       /* nominal; reported by the driver */
};

/* A card of cards.tsv, in upper or lower case; NULL: none. */
const struct m3_gpu *m3_gpu_named(const char *name);
/* The name of the i-th card; NULL after the last. */
const char *m3_gpu_name(int i);

struct m3_foreign;

/* How the model is divided among tp * pp * dp cards: heads and widths among tp cards, layers among pp stages, sequences
 * among dp replicas, experts among ep groups of cards of a stage. SPEC 14.12 */
struct m3_layout {
    int64_t tp, pp, dp, ep;             /* tp 0: no layout is given */
    int64_t chunk;                      /* tokens of a prefill that a replica processes at a time */
};

/* M3_USAGE if the model cannot be divided in this way. */
int m3_layout_check(const struct m3_layout *layout, const struct m3_config *config, struct m3_error *error);

/* The layers of a stage of a layout, by kind. */
struct m3_stage {
    int64_t layers, sparse, dense, moe;
    int is_first, is_last;
};

struct m3_estimate_request {
    int64_t context, batch;             /* 1 .. M3_MOST_CONTEXT, 1 .. M3_MOST_BATCH. The context is M3_UNKNOWN where
                                         * nothing is known of attention */
    const struct m3_format *weights, *kv, *index_kv;
    int weights_asked;                  /* memory uses the nominal size, even if the stored one is known */
    int64_t mtp_modules;
    enum m3_mtp_join mtp_join;
    int all_logits;                     /* a prefill computes logits of every place, not only of the last */
    int no_causal_skip;                 /* its full attention and index scores compute the whole square, masked */
    const int64_t (*grids)[3];          /* [grid_count] of pictures: time, height, width in patches, 2^40 in all; the
                                         * sides are multiples of the merging; one of time 1 is an image */
    int64_t grid_count;
    enum m3_vision_boundary boundary;
    int64_t activation_bytes;           /* of one sequence: an assumption */
    const struct m3_gpu *gpu;           /* NULL: none */
    int64_t gpus, card_bytes;
    struct m3_layout layout;
    int64_t efficiency;                 /* percent of a card's rates that is reached: an assumption; 0: the default */
    const struct m3_census *config;     /* NULL: counted again, which takes most of the time */
    const struct m3_census *files;      /* NULL: stored sizes are not known */
    const struct m3_foreign *foreign;     /* a model of another family, with this config; NULL: none */
};

#define M3_MOST_CONTEXT ((int64_t)1 << 32)
#define M3_MOST_BATCH ((int64_t)1 << 31)

enum { M3_MOST_SPREAD = 128 };          /* largest number of experts per token for which their spread is computed */
#define M3_ACTIVATION_BYTES ((int64_t)5 << 30)
enum { M3_EFFICIENCY = 50, M3_CHUNK = 8192 };   /* defaults */

enum { M3_FIGURES = 180 };                /* rows of figures.c */

struct m3_estimate {
    const struct m3_config *config;
    struct m3_estimate_request request;
    int64_t full, sparse, dense, moe;   /* layers of each kind */
    int64_t cached, indexed;            /* layers with keys and values, with index keys; MTP modules included */
    struct m3_census census;            /* of the config */
    int64_t patches, squares;           /* of the pictures; sum over segments of their patches squared */
    struct m3_stage stage;              /* of the layout: the one that leaves room for the fewest sequences */

    int has_spread;
    double p_fullest[M3_MOST_SPREAD];   /* [K]: the fullest card holds j + 1 of a token's experts */

    unsigned conditions;                /* those rows of figures.c that apply */
    struct m3_value figures[M3_FIGURES];
    int overflow;                       /* a figure was too large; m3_estimate fails then */
};

/* Fills *e; it keeps pointers into the request and `config`. M3_USAGE if a figure exceeds 63 bits. */
int m3_estimate(struct m3_estimate *e, const struct m3_config *config, const struct m3_estimate_request *request,
                struct m3_error *error);

/* A figure by its key in the summary, "kv_bytes.main" or "expert_spread.p_fullest.0". M3_UNKNOWN, or NaN, if it is
 * unknown or does not exist; the whole-number form is M3_UNKNOWN for a fraction or a double. */
struct m3_value m3_estimate_figure(const struct m3_estimate *e, const char *key);
int64_t m3_whole(const struct m3_estimate *e, const char *key);
double m3_quantity(const struct m3_estimate *e, const char *key);

/* The key of the i-th ratio; NULL after the last. */
const char *m3_ratio_key(int i);

/* 1 if there are experts, and each card holds the same number. */
int m3_splits_experts(const struct m3_estimate *e);
/* 1 if a card has room for its share of caches and activations, if every card holds everything except the routed
 * experts. */
int m3_estimate_fits(const struct m3_estimate *e);
/* 1 if a card of the fullest stage has room for what the layout gives it. */
int m3_layout_fits(const struct m3_estimate *e);
/* 1 if the FLOPs of a step take at least as long as its reads; -1: not known. */
int m3_compute_bound(const struct m3_estimate *e);

/* The summary object: keys of SPEC 14. NULL if memory is short. */
json_t *m3_estimate_json(const struct m3_estimate *e);

/* Prints how a figure is computed, or every figure of a group: the formula, the formula with numbers, the value. "kv."
 * may stand for "kv_bytes.". M3_USAGE if there is no such key, or no value for it. */
int m3_estimate_explain(const struct m3_estimate *e, const char *key, FILE *out, struct m3_error *error);

/* A value of the summary by its dotted key, "kv_bytes.main" or "expert_spread.p_fullest.0"; NULL if there is none. */
const json_t *m3_estimate_value(const json_t *summary, const char *key);

#endif
