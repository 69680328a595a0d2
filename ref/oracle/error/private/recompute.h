/* A tap while it is recomputed, and the interface between its operator and m3_recompute. */
#ifndef M3_ORACLE_ERROR_PRIVATE_RECOMPUTE_H
#define M3_ORACLE_ERROR_PRIVATE_RECOMPUTE_H

#define M3_REAL_IS_DOUBLE       /* operators are called in double: include this first */
#include "model/engine.h"
#include "ops/ops.h"

#include "oracle/error/private/operators.h"
#include "oracle/error/recompute.h"

struct m3_recomputing {
    const struct m3_setting *setting;
    const struct m3_config *config;
    struct m3_ctx *ctx;
    enum m3_tap tap;
    int64_t layer;
    const struct m3_node *node;
    const struct m3_error_operator *op;
    const struct m3_tap_values *const *operands;
    int64_t first, end;                 /* of the wanted rows */
    struct m3_tap_values in[M3_OPERANDS]; /* views of their rows, one for each where the tap reads them row by row */
    const struct m3_weight *w[M3_NODE_WEIGHTS];
    const double *vector[M3_NODE_WEIGHTS];     /* weights of one row, expanded; NULL: none */
    int64_t *numbers;                   /* [rows] which rows are recomputed */
    int64_t rows, width, count;         /* count = rows width */
    double *y;                          /* [rows,width] of *out, as are the three below */
    int32_t *ids;
    struct m3_bound bound;
    struct m3_spread spread;
    struct m3_arithmetic how;
    double stored[M3_POINTS];           /* unit roundoff of storing at op->points; 0: not coarser */
    double floor[M3_POINTS];            /* half the smallest step of the format there */
    double weight_floor;                /* of the format to which weights may be rounded */
    struct m3_input_rounding act_input; /* gated MLPs: of the last product; */
    double largest;                     /* the largest |act| */
    struct m3_partials partials;        /* of op->in_parts; ranks 0: computed in one part */
    void *prepared;                     /* the result of op->prepare for value, bound and propagate */
    struct m3_recomputed *out;
    struct m3_error *error;
    int status;
};

static inline int m3_is_off(const struct m3_tap_values *operand) { return operand->off.error != NULL; }

/* ---- recompute.c */

/* Uninitialised memory; that of value and bound is released when they return, the rest when m3_recompute returns. NULL
 * if m->status is set already, or on failure, which sets it. */
void *m3_recompute_scratch(struct m3_recomputing *m, int64_t count, size_t size);
/* Ends a call of an operator or a bound; returns m->status. */
int m3_recompute_check(struct m3_recomputing *m, int status);
/* Calls a stage of the engine with the request's inputs; its rows follow each other, from row `first` of the call on. */
int m3_recompute_stage(struct m3_recomputing *m, struct m3_tap_request *request, int64_t first);
/* Says why there is no y. */
__attribute__((format(printf, 2, 3))) void m3_recompute_missing(struct m3_recomputed *out, const char *what, ...);

/* ---- rows.c: which rows can be recomputed, and the rows of the operands for them. Sets m->out->missing if none
 * can. */

void m3_recompute_choose_rows(struct m3_recomputing *m);
/* For op->rows: rows that all operands have; rows with every place up to their own; all rows of a picture. */
void m3_rows_in_common(struct m3_recomputing *m);
void m3_rows_with_keys(struct m3_recomputing *m);
void m3_rows_of_pictures(struct m3_recomputing *m);
/* Is operand i read at the row itself? True for all except keys and values. */
static inline int m3_is_by_row(const struct m3_recomputing *m, int i) { return i == 0 || i > m->op->keys; }
/* The number of consecutive rows from row i on. */
int64_t m3_recompute_span(const struct m3_recomputing *m, int64_t i);
/* Reports that there is no row because rows of operand i are missing from `first` on; none from `end` on is read. */
void m3_recompute_missing_rows(struct m3_recomputing *m, int i, int64_t first, int64_t end);

/* ---- changes to operand 0 before a linear operator, an expert or the shared expert reads it */

/* jitter.c: the noise of `jitter`; and its roundings as a spread. Both do nothing without jitter. */
void m3_recompute_jitter(struct m3_recomputing *m);
void m3_recompute_jitter_spread(struct m3_recomputing *m);
/* input_rounding.c: how the profile rounds the inputs of a linear operator, which is named like its tap or like a
 * point in an expert; and this rounding as a spread of operand 0. */
struct m3_input_rounding m3_recompute_input_rounding(const struct m3_recomputing *m, const char *point);
void m3_recompute_round_input(struct m3_recomputing *m, const char *point);
/* input_rounding.c: how the profile rounds operand i of attention or block scores when it is read: keys and values come
 * from a cache, operands of products may be rounded; as a spread of it. */
void m3_recompute_round_read(struct m3_recomputing *m, int i);
/* input_rounding.c: the profile's rounding of the weights w of the linear operator `point`, as errors of operand 0. */
/* m3_recompute_weight_roundoff: the unit roundoff alone, 0 if every weight is such a number already. */
double m3_recompute_weight_roundoff(struct m3_recomputing *m, const struct m3_weight *w, const char *point);
void m3_recompute_round_weights(struct m3_recomputing *m, const struct m3_weight *w, const char *point);
/* Moves the contents of *off to newly allocated memory for n numbers; 0 if memory is short. */
int m3_recompute_own_spread(struct m3_recomputing *m, struct m3_spread *off, int64_t n);
/* route.c: M3_BAD_INPUT if an id in ids [count], K per row, is not an expert. */
int m3_check_experts(struct m3_ctx *, const int32_t *ids, int64_t count, int64_t E, int64_t K);
/* Rows of a gated MLP at a time: bounds the scratch memory. */
enum { M3_MLP_ROWS = 192 };
/* gated_mlp.c: all of these, also for experts; and what the last propagation needs. */
int m3_prepare_gated_mlp(struct m3_recomputing *m);
struct m3_mlp_storage m3_mlp_storage_of(const struct m3_recomputing *m);

#endif
