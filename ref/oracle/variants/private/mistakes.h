/* Declarations shared by the sections of mistakes. Operators of this folder are in double. */
#ifndef M3_ORACLE_VARIANTS_PRIVATE_MISTAKES_H
#define M3_ORACLE_VARIANTS_PRIVATE_MISTAKES_H

#define M3_REAL_IS_DOUBLE
#include "ops/ops.h"
#include "oracle/variants/mistakes.h"

/* A key that a row's head may attend to. */
struct m3_query {
    const struct m3_attend *d;
    const int32_t *blocks;              /* [N] of the head's group; NULL: a dense layer */
    int64_t p, keys, places;            /* place of the row; number of keys; that of the whole sequence */
};

/* How often the row counts key j: 0, 1, or more for a mistake that counts twice. */
typedef int64_t m3_times(const struct m3_query *query, int64_t j);

/* The place whose key or value stands at place j of a sequence of so many, in blocks of so many; -1: zeros. */
typedef int64_t m3_place(int64_t j, int64_t places, int64_t block);

/* m [B] := block scores of a row at place p, from its scores s [keys], later keys included. */
typedef void m3_pool_row(double *m, const double *s, int64_t p, int64_t keys, const struct m3_index *d);

typedef double m3_gated(double gate, double up, const struct m3_activation *act);

/* mine [T,cols] := what a matrix reads instead of x. */
typedef int m3_reads(struct m3_ctx *ctx, double *mine, const double *x, int64_t T, int64_t cols);

/* w [rows,cols] := the numbers of a matrix stored like this; on entry w holds the right ones. */
typedef void m3_expands(double *w, const struct m3_weight *stored);

/* The row of a fused matrix that stands in place of row n of member `place`. Its `count` members start at `starts`,
 * which ends with the number of its rows. */
typedef int64_t m3_row_at(const struct m3_config *c, const int64_t *starts, int count, int place, int64_t n);

/* mine [down,across] := the scales of a matrix, which are stored as `scales`, each of so many bytes. */
typedef void m3_rescales(unsigned char *mine, const unsigned char *scales, int64_t down, int64_t across, size_t bytes);

/* Frequencies theta^(-2i/dim), i < count, multiplied by coordinate a: time 0, row 1, column 2. */
struct m3_axis {
    int a;
    int64_t count, dim;
};

/* How a run differs from a correct one. All fields may be zero. */
struct m3_change {
    struct m3_ops ops;                  /* entries that replace the reference's; NULL: the reference's */
    int (*prepare)(struct m3_mistaken_run *run, struct m3_error *error);        /* changes run->model, semantics */
    int (*force)(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                 struct m3_error *error);                                       /* changes a tap after it was made */
    m3_times *times;                    /* of m3_mistaken_attend_blocks, m3_mistaken_attend_full */
    m3_place *key_at, *value_at;        /* of the operators of cache.c; NULL: each stands at its own */
    m3_pool_row *pool;                  /* of m3_mistaken_scores */
    m3_gated *gated;                    /* of m3_mistaken_swiglu, m3_mistaken_experts; NULL: the right one */
    int interleaved;                    /* of m3_mistaken_experts: rows of w1 and w3 alternate, as one stack; */
    int is_half;                        /* the second half of the rows is missing */
    int factors;                        /* how many times the routed factor is applied to experts; */
    int has_factors;                    /* 0: once, as is right */
    enum m3_tap keeps; /* INDEX_BLOCKS of the first sparse layer, OUT of the last layer; 0: nothing */
    m3_reads *reads; /* of m3_mistaken_linear, for the tap `reader` */
    enum m3_tap reader;
    m3_expands *expands; /* of matrices with a scale per 32 columns */
    m3_rescales *rescales; /* of matrices with a scale per block */
    m3_row_at *row_at; /* of fused matrices */
    void (*borrows)(struct m3_layer *mine, const struct m3_layer *next); /* weights of the next layer */
    int64_t (*channels)(const struct m3_config *c); /* by which logits are scaled */
    int (*axes)(struct m3_axis axes[3], int64_t U); /* of m3_mistaken_vision_rope */
};

struct m3_mistaken_run {
    const struct m3_mistake *mistake;
    const struct m3_change *change; /* the mistake's; an empty one if there is none */
    struct m3_model model; /* a copy */
    const struct m3_semantics *claimed; /* the semantics stated in its dump: a mistake is not declared */
    struct m3_semantics semantics;
    const struct m3_case *the_case;
    const struct m3_profile *profile; /* NULL: taps are stored as floats */
    struct m3_request request;
    struct m3_ops ops, exact; /* exact: those that `ops` call with quantised inputs */
    int reads_act; /* the last product of m3_mistaken_experts is that of `ops` */
    double largest; /* of the tensor that the tap reads; 0: that of the rows at hand */
    int64_t later; /* rows of the sequence after those of the case */
    struct m3_replacement replacement;
    struct m3_force force;
    enum m3_tap last; /* the last computed tap, and its layer; M3_TAPS: none yet */
    int64_t layer;
    void *kept; /* data that a mistake keeps from one tap or operator for a later one */
    struct m3_owned *owned;
};

/* Operators find their run in ctx->plugin. */
static inline struct m3_mistaken_run *m3_run_of(const struct m3_ctx *ctx) { return ctx->plugin; }

static inline const struct m3_ops *m3_right(void) { return m3_engine_f64()->ops; }

/* The tap that the running operator will compute, within a layer or module, where taps are consecutive. */
static inline enum m3_tap m3_tap_being_made(const struct m3_ctx *ctx)
{
    return m3_run_of(ctx)->last == M3_TAPS ? M3_TAP_VISION_PIXELS : m3_run_of(ctx)->last + 1;
}

/* The heads of a row of the norm that is being made: an operator may receive some rows of the case only. */
static inline int64_t m3_normed_heads(const struct m3_ctx *ctx)
{
    const struct m3_config *c = &m3_run_of(ctx)->model.config;
    const enum m3_tap tap = m3_tap_being_made(ctx);
    if (tap == M3_TAP_Q_NORM) return c->Q;
    return tap == M3_TAP_K_NORM || tap == M3_TAP_INDEX_Q_NORM ? c->G : 1;
}

/* The current MTP module; -1: the main model. */
static inline int64_t m3_module_of(const struct m3_mistaken_run *run) { return m3_mtp_module_of(run->layer); }

/* Rows of the text taps being computed. */
static inline int64_t m3_rows_of(const struct m3_mistaken_run *run)
{
    return m3_layer_rows(run->layer, run->the_case->T);
}

/* The number of keys, of an operator whose rows end here: it receives rows in pieces, but the keys of all rows. */
static inline int64_t m3_keys_of(const struct m3_mistaken_run *run, int64_t end)
{
    const int64_t all = m3_rows_of(run);
    return end > all ? end : all;
}

/* The same, of the whole sequence. */
static inline int64_t m3_places_of(const struct m3_mistaken_run *run, int64_t end)
{
    return m3_keys_of(run, end) + run->later;
}

/* x rounded to this many significant bits, ties to even: BF16 has 8, F16 11. */
double m3_round_bits(double x, int bits);
void m3_round_all(double *x, int64_t n, int bits);

/* Memory owned by the run, zeroed, freed with it. NULL if memory is short. */
void *m3_own(struct m3_mistaken_run *run, int64_t count, size_t size, struct m3_error *error);
/* Make the run's own copies of layers, of the experts of a layer, of the tower's layers. Return 0 or M3_INTERNAL. */
int m3_own_layers(struct m3_mistaken_run *run, struct m3_error *error);
int m3_own_experts(struct m3_mistaken_run *run, int64_t l, struct m3_error *error);
/* Changes each layer of the run's copy, modules included. */
int m3_each_layer(struct m3_mistaken_run *run, struct m3_error *error,
                  int (*change)(struct m3_mistaken_run *run, int64_t l, struct m3_error *error));
/* Rounds a weight of the run's copy. */
int m3_round_weight(struct m3_mistaken_run *run, struct m3_weight *w, int bits, struct m3_error *error);
/* The numbers [rows,cols] of a weight of the run's copy, for writing; it is an F64 matrix from then on. */
double *m3_own_weight(struct m3_mistaken_run *run, struct m3_weight *w, struct m3_error *error);

/* ---- operators with a part that the change supplies */

/* times: for lists that may hold later blocks or invalid ids; these functions also apply the causal mask. */
int m3_mistaken_attend_blocks(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                              const int32_t *blocks, const struct m3_attend *d);
int m3_mistaken_attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                            const struct m3_attend *d);
/* Attention without a mistake; blocks NULL: of a dense layer. */
int m3_right_attend(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                    const int32_t *blocks, const struct m3_attend *d);
/* How often a block is in the row's list, and the visible keys of the listed blocks, once each. */
int64_t m3_listed(const struct m3_query *query, int64_t block);
m3_times m3_as_listed;
/* The right norm, of Gemma's form or plain, as the model has it. */
int m3_right_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps);
/* RoPE whose pairs are channels 2i and 2i + 1. */
void m3_rope_neighbours(real *y, const real *x, const real *cos, const real *sin, int64_t T, int64_t heads, int64_t D,
                        int64_t R);
int m3_mistaken_scores(struct m3_ctx *ctx, real *m, const real *q, const real *k, const struct m3_index *d);
int m3_mistaken_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias,
                       int64_t T);
int m3_mistaken_swiglu(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                       const struct m3_activation *act);
int m3_mistaken_experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                        const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E,
                        int64_t K, real factor);

/* ---- sections */

#define M3_CHANGE(...) &(const struct m3_change){ __VA_ARGS__ }

struct m3_mistake_section {
    const struct m3_mistake *all;
    int count;
};
extern const struct m3_mistake_section m3_mistakes_select, m3_mistakes_index, m3_mistakes_attend, m3_mistakes_cache,
    m3_mistakes_rope, m3_mistakes_norm, m3_mistakes_mlp, m3_mistakes_weights, m3_mistakes_load, m3_mistakes_vision,
    m3_mistakes_mtp;

#endif
