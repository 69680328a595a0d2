/* One tap while it is recomputed, and what an operator says of itself. */
#ifndef M3_ORACLE_ERROR_PRIVATE_RECOMPUTE_H
#define M3_ORACLE_ERROR_PRIVATE_RECOMPUTE_H

#define M3_REAL_IS_DOUBLE       /* operators are called in double: include this first */
#include "model/engine.h"
#include "ops/ops.h"

#include "oracle/error/private/operators.h"
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
    struct m3_ctx *ctx;
    enum m3_tap tap;
    int64_t layer;
    const struct m3_graph_row *row;
    const struct m3_error_operator *op;
    const struct m3_value *const *operands;
    int64_t first, end;                 /* of the rows that are wanted */
    struct m3_given in[M3_OPERANDS];
    const struct m3_weight *w[M3_GRAPH_WEIGHTS];
    const double *vector[M3_GRAPH_WEIGHTS];     /* weights of one row, expanded; NULL: none */
    int64_t *numbers;                   /* [rows] which rows are recomputed */
    int64_t rows, width, count;         /* count = rows width */
    double *y;                          /* [rows,width] of *out, as are the three below */
    int32_t *ids;
    struct m3_bound bound;
    struct m3_spread spread;
    struct m3_arithmetic how;
    double stored[M3_POINTS];           /* unit roundoff of storing at op->points; 0: not coarser */
    void *prepared;                     /* what op->prepare has for value, bound and propagate */
    struct m3_recomputed *out;
    struct m3_error *error;
    int status;
};

static inline int m3_is_off(const struct m3_given *given) { return given->off.error != NULL; }

/* ---- recompute.c */

/* Uninitialised; value and bound give theirs back at their end, the others at that of m3_recompute. NULL sets
 * m->status, and follows from one that is set. */
void *m3_recompute_scratch(struct m3_recomputing *m, int64_t count, size_t size);
/* The end of a call of an operator or a bound: m->status. */
int m3_recompute_check(struct m3_recomputing *m, int status);
/* Says why there is no y. */
__attribute__((format(printf, 2, 3))) void m3_recompute_missing(struct m3_recomputed *out, const char *what, ...);

/* ---- rows.c: which rows can be recomputed, and the operands' rows for them. Sets m->out->missing if none can. */

void m3_recompute_choose_rows(struct m3_recomputing *m);
/* m3_graph_operand of this call: without pictures `fused` reads no features. */
int m3_setting_operand(enum m3_tap *operand, int64_t *operand_layer, const struct m3_setting *, enum m3_tap tap,
                       int64_t layer, int i);
/* For op->rows: every row that all operands have; those with every place up to their own; all of a picture's. */
void m3_rows_in_common(struct m3_recomputing *m);
void m3_rows_with_keys(struct m3_recomputing *m);
void m3_rows_of_pictures(struct m3_recomputing *m);
/* Operands that are read at the row itself: all, but keys and values. */
static inline int m3_is_by_row(const struct m3_recomputing *m, int i) { return i == 0 || i > m->op->keys; }
/* How many rows from row i on follow each other without a hole. */
int64_t m3_recompute_span(const struct m3_recomputing *m, int64_t i);
/* There is no row, for rows of operand i are missing from `first` on; `end` is the first that nobody reads. */
void m3_recompute_missing_rows(struct m3_recomputing *m, int i, int64_t first, int64_t end);

/* ---- what changes operand 0 before a linear operator, an expert or the shared expert reads it */

/* jitter.c: the noise of `jitter`; and its roundings as a spread. Nothing without jitter. */
void m3_recompute_jitter(struct m3_recomputing *m);
void m3_recompute_jitter_spread(struct m3_recomputing *m);
/* input_rounding.c: how the profile rounds the inputs of a linear operator, which is called like its tap or like a
 * point in an expert; and that as a spread of operand 0. */
struct m3_input_rounding m3_recompute_input_rounding(const struct m3_recomputing *m, const char *point);
double m3_input_roundoff(const struct m3_input_rounding *rule);         /* at most, relative; 0: none */
void m3_recompute_round_input(struct m3_recomputing *m, const char *point);
/* Gives *off memory of its own for n numbers, with what it holds; 0 if memory is short. */
int m3_recompute_own_spread(struct m3_recomputing *m, struct m3_spread *off, int64_t n);
/* route.c: M3_BAD_INPUT where an id of ids [count], K to a row, is no expert. */
int m3_check_experts(struct m3_ctx *, const int32_t *ids, int64_t count, int64_t E, int64_t K);
/* gated_mlp.c: all of these, for experts too. */
int m3_prepare_gated_mlp(struct m3_recomputing *m);

#endif
