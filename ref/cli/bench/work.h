/* What the files of this folder share: the state of an item that is being measured, the items, and the limits of the
 * machine that they are compared with. */
#ifndef M3_CLI_BENCH_WORK_H
#define M3_CLI_BENCH_WORK_H

#include "base/context.h"
#include "cli/bench/items.h"
#include "model/engine.h"
#include "model/model.h"
#include "ops/backward.h"

/* The released sizes. */
enum { H = 6144, Q = 64, G = 4, D = 128, X = 128, R = 64, F = 3072, K = 4, BLOCK = 128, N = 16, EXPERTS = 16 };

struct heads {
    real *q, *k, *v, *index_q, *index_k, *scores, *o, *lse, *cos, *sin, *norm;
    int32_t *blocks;
};

enum { MOST_BLOCKS = 128 };
struct bench {
    void *taken[MOST_BLOCKS];   /* memory of the item and of its limit */
    int taken_count;
    const struct m3_ops *op;
    const struct m3_backward_ops *back;
    struct m3_ctx ctx;
    int64_t T, threads;
    int64_t keys;               /* of the items that decode one token: places that it sees */
    double operations;          /* of one run; or bytes, for items measured by bytes */
    real *a, *b, *c, *d, *e;    /* operands, as the item needs them */
    int64_t *positions;
    int32_t *ids;
    struct m3_weight w[8];
    struct m3_expert experts[EXPERTS];
    struct heads heads;
    const char *folder;         /* `vision` and `grad`: the model */
    struct m3_model *model;
    struct m3_pictures pictures;
    int64_t anonymous;          /* largest seen between layers */
    struct m3_error *error;
};

enum limit { NONE, SGEMM, READ, COPY, FORWARD };

struct item {
    const char *name;
    void (*prepare)(struct bench *);
    int (*run)(struct bench *);
    int by_bytes;               /* GB/s instead of GFLOP/s */
    enum limit limit;
    double goal;                /* 0: none */
    int (*forward)(struct bench *);     /* the limit FORWARD: the same without the backward pass */
};

/* NULL: there is no item of this name. */
const struct item *m3_bench_item(const char *name);

/* Opens m->folder. Otherwise m->model stays NULL, and m->error says why. */
void m3_bench_open_model(struct bench *m, const char *item);

/* Sparse attention at T = 4096: operands with chosen blocks, and the operator. */
void m3_bench_prepare_blocks(struct bench *m);
int m3_bench_attend_blocks(struct bench *m);

/* backward.c: its derivative; and the gradient of a model beside its forward pass. */
void m3_bench_prepare_blocks_back(struct bench *m);
int m3_bench_blocks_back(struct bench *m);
void m3_bench_prepare_grad(struct bench *m);
int m3_bench_grad(struct bench *m);
int m3_bench_pass(struct bench *m);

/* Memory of the item, for `count` elements of `size` bytes; the program ends if there is none. */
void *m3_bench_need(struct bench *m, size_t count, size_t size);
/* The same small multiples of 1/64 for the same name. */
real *m3_bench_numbers(struct bench *m, int64_t count, const char *name);

/* y [T,N] := x [T,H] w' [N,H] by BLAS alone: a share of the outputs for each thread. */
void m3_bench_sgemm(real *y, const real *x, const real *w, int64_t T, int64_t N, int64_t threads);
/* The sum of x [n], an even number of floats, as words. */
uint64_t m3_bench_read(const real *x, int64_t n, int64_t threads);
/* y := x + 1: what is read once and written once. */
void m3_bench_copy(real *y, const real *x, int64_t n, int64_t threads);

/* The operands of a limit, and the operations or bytes of one run. */
struct limit_run {
    enum limit limit;
    real *x, *w, *y;
    int64_t n;
    double operations;
    uint64_t sum;
};

void m3_bench_prepare_limit(struct limit_run *l, struct bench *m, enum limit limit);
void m3_bench_run_limit(struct limit_run *l, const struct bench *m);

#endif
