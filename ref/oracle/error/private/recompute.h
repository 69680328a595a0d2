/* What the parts of remake.c share: one tap in the making. Inside the oracle. */
#ifndef M3_ORACLE_ERROR_PRIVATE_RECOMPUTE_H
#define M3_ORACLE_ERROR_PRIVATE_RECOMPUTE_H

#define M3_REAL_IS_DOUBLE       /* operators are called in double: include this first */
#include "model/engine.h"
#include "ops/ops.h"

#include "oracle/error/recompute.h"

/* An operand, row by row where the tap reads it. */
struct m3_given {
    const double *x;                    /* [rows,width]; NULL for ids */
    const int32_t *ids;
    struct m3_spread off;               /* NULLs: exact */
    int64_t width;
};

struct m3_recomputing {
    const struct m3_setting *setting;
    const struct m3_config *config;
    const struct m3_ops *ops;
    enum m3_tap tap;
    int64_t layer;
    const struct m3_graph_row *row;
    const struct m3_value *const *operands;
    int64_t first, end;                 /* of the rows that are wanted */
    struct m3_given in[M3_OPERANDS];
    int64_t *numbers;                   /* [rows] which rows are made */
    int64_t rows, width, count;         /* count = rows width */
    struct m3_arithmetic how;
    struct m3_bound bound;              /* of *out */
    struct m3_recomputed *out;
    struct m3_error *error;
    int status;
};

/* ---- remake.c */

/* m3_recompute of rows [first, end) alone, where rows are made one by one; fused, and attention and copies of pictures,
 * are made as a whole. */
int m3_recompute_rows(struct m3_recomputed *out, const struct m3_setting *setting, enum m3_tap tap, int64_t layer,
                   const struct m3_value *const operands[M3_OPERANDS], int64_t first, int64_t end,
                   struct m3_error *error);

/* Scratch, given back at the end of m3_recompute, uninitialised; NULL sets m->status, and follows from one that is set. */
void *m3_recompute_scratch(struct m3_recomputing *m, int64_t count, size_t size);
/* The end of a call of an operator or a bound: m->status. */
int m3_recompute_check(struct m3_recomputing *m, int status);
/* Where what is pushed adds up; NULL if there is no memory. */
struct m3_spread *m3_recompute_extra(struct m3_recomputing *m);
/* A stored vector, expanded; NULL if the tap has no weight i. */
double *m3_recompute_vector(struct m3_recomputing *m, int i);
const struct m3_weight *m3_recompute_weight(const struct m3_recomputing *m, int i);
/* A point of the layer's or module's folder ("attn.p") by its whole name. */
void m3_recompute_point(char *name, size_t size, const struct m3_recomputing *m, const char *point);
/* The unit roundoff of storing there; 0: not coarser. */
double m3_recompute_store(const struct m3_recomputing *m, const char *point);
/* Half the least step of a format, what a value may be off beside its share. */
double m3_store_floor(enum m3_dtype dtype);

static inline int m3_is_off(const struct m3_given *given) { return given->off.error != NULL; }

/* Says why there is no y. */
__attribute__((format(printf, 2, 3))) void m3_recompute_missing(struct m3_recomputed *out, const char *what, ...);

/* ---- remake_rows.c: which rows can be made, and the operands' rows for them. Sets m->out->missing if none can. */
void m3_recompute_choose_rows(struct m3_recomputing *m);
/* How many rows from row i on follow each other without a hole. */
int64_t m3_recompute_span(const struct m3_recomputing *m, int64_t i);
/* There is no row, for operand i lacks rows from `first` on; `end` is the first that nobody reads. */
void m3_recompute_missing_rows(struct m3_recomputing *m, int i, int64_t first, int64_t end);

/* remake_copy.c: the rows of `fused`. */
void m3_scatter_rows(struct m3_recomputing *m);

/* ---- remake_*.c: y, bound, walk, extra of one operator each */
void m3_recompute_grid(struct m3_recomputing *m);
void m3_recompute_pixels(struct m3_recomputing *m);
void m3_recompute_embed(struct m3_recomputing *m);
void m3_recompute_copy(struct m3_recomputing *m);
void m3_recompute_scatter(struct m3_recomputing *m);
void m3_recompute_linear(struct m3_recomputing *m);
void m3_recompute_rms_norm(struct m3_recomputing *m);
void m3_recompute_layer_norm(struct m3_recomputing *m);
void m3_recompute_rope(struct m3_recomputing *m);
void m3_recompute_rope_3d(struct m3_recomputing *m);
void m3_recompute_attend(struct m3_recomputing *m);
void m3_recompute_attend_segments(struct m3_recomputing *m);
void m3_recompute_block_scores(struct m3_recomputing *m);
void m3_recompute_activation(struct m3_recomputing *m);
void m3_recompute_sigmoid(struct m3_recomputing *m);
void m3_recompute_gelu(struct m3_recomputing *m);
void m3_recompute_add(struct m3_recomputing *m);
void m3_recompute_gated_mlp(struct m3_recomputing *m);
void m3_recompute_expert(struct m3_recomputing *m);
void m3_recompute_route(struct m3_recomputing *m);
void m3_recompute_routed(struct m3_recomputing *m);
void m3_recompute_select_blocks(struct m3_recomputing *m);
void m3_recompute_select_experts(struct m3_recomputing *m);

/* remake_linear.c: operand 0 of the experts, the shared expert and the router with the noise of `jitter`; and the
 * noise's roundings as a spread of it. Nothing without jitter. */
void m3_recompute_jitter(struct m3_recomputing *m);
void m3_recompute_jitter_spread(struct m3_recomputing *m);
/* remake_linear.c: how the profile rounds the inputs of a linear operator, which is called like its tap or like a point
 * in an expert; and the spread of such an input x [rows,width] with it. */
struct m3_input_rounding m3_recompute_input_rounding(const struct m3_recomputing *m, const char *point);
double m3_input_roundoff(const struct m3_input_rounding *rule);         /* at most, relative; 0: none */
void m3_recompute_round_input(struct m3_recomputing *m, struct m3_spread *off, const char *point, const double *x, int64_t rows,
                     int64_t width);

#endif
