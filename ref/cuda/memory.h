/* The state of a run on the device: a stream, weights by id, and memory for the operands of one call. */
#ifndef M3_CUDA_MEMORY_H
#define M3_CUDA_MEMORY_H

#include "cuda/kernels.h"

struct m3_cuda_chunk;
struct m3_cuda_kept;

struct m3_cuda_state {
    cudaStream_t stream;
    enum m3_cuda_type type;             /* in which linear, block_scores, attend_blocks and experts multiply */
    enum m3_cuda_type partials;         /* of attention with BF16 */
    struct m3_cuda_chunk *chunks;       /* operands of the call */
    struct m3_cuda_kept *kept;          /* [room] weights, by id; an open hash table */
    int64_t keeps, room;
    int64_t call;                       /* number of calls: weights of the current call are kept */
    const char *op;                     /* the call's operator */
    cudaError_t error;                  /* the first of the call; later steps then do nothing */
    size_t wanted;                      /* size of the allocation that failed */
    const char *refused;                /* what of the call no kernel computes */
    char why[200];
};

void m3_cuda_begin(struct m3_cuda_state *s, const char *op);
/* Waits for the stream. Returns 0, or M3_UNAVAILABLE with the reason in ctx. */
int m3_cuda_end(struct m3_cuda_state *s, struct m3_ctx *ctx);
/* Records an error unless there is one already; returns whether there is none. */
int m3_cuda_ok(struct m3_cuda_state *s, cudaError_t error);

/* The same for what no kernel computes; NULL: nothing. */
int m3_cuda_refuse(struct m3_cuda_state *s, const char *what);

/* Device memory until the next call; NULL after an error. `count` may be 0. Weights of other calls are freed if
 * necessary, one after the other: the least used first, of those the one used last, for a model uses them in turn. */
void *m3_cuda_take(struct m3_cuda_state *s, int64_t count, size_t size);
/* How many bytes of scratch a call may take, of which it can use `wanted`: at most 4 GB. Weights of other calls are
 * freed as long as they leave less than that and little of the device's memory. */
size_t m3_cuda_left(struct m3_cuda_state *s, size_t wanted);
/* A copy of [count] on the device, likewise; NULL for NULL. */
void *m3_cuda_send(struct m3_cuda_state *s, const void *host, int64_t count, size_t size);
/* The same for rows of n floats, at their pitch (kernels.h), as `type`. */
void *m3_cuda_send_rows(struct m3_cuda_state *s, const float *host, int64_t rows, int64_t n, enum m3_cuda_type type);
void m3_cuda_fetch(struct m3_cuda_state *s, void *host, const void *device, int64_t count, size_t size);

/* The weight with data and scales on the device: kept under its id, or copied for this call if it has no id. */
struct m3_weight m3_cuda_weight(struct m3_cuda_state *s, const struct m3_weight *w);

void m3_cuda_free_all(struct m3_cuda_state *s);

#endif
