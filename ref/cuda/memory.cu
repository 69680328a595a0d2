#include "cuda/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t ALIGNED = 256, CHUNK = 16 << 20;    /* the smallest allocation for operands */

/* Memory for operands: filled from its start, one call after the other. */
struct m3_cuda_chunk {
    struct m3_cuda_chunk *next;
    char *memory;
    size_t bytes, used;
};

struct m3_cuda_kept {
    uint64_t id;                /* 0: the slot is free */
    const void *host;           /* its address in host memory */
    void *data, *scales;
    int64_t call;               /* the last call that used it */
};

/* ---- errors */

int m3_cuda_ok(struct m3_cuda_state *s, cudaError_t error)
{
    if (s->error == cudaSuccess) s->error = error;
    return s->error == cudaSuccess;
}

int m3_cuda_end(struct m3_cuda_state *s, struct m3_ctx *ctx)
{
    m3_cuda_ok(s, cudaGetLastError());
    m3_cuda_ok(s, cudaStreamSynchronize(s->stream));
    if (s->error == cudaSuccess) return M3_OK;
    if (s->error == cudaErrorMemoryAllocation && s->wanted == 0)
        snprintf(s->why, sizeof s->why, "%s: out of device memory", s->op);
    else if (s->error == cudaErrorMemoryAllocation)
        snprintf(s->why, sizeof s->why, "%s: out of device memory for another %zu bytes", s->op, s->wanted);
    else if (s->error == cudaErrorNotSupported && s->is_packed)
        snprintf(s->why, sizeof s->why, "%s: no kernel reads weights in codes of 4 bits: run without --ops cuda", s->op);
    else if (s->error == cudaErrorNotSupported)
        snprintf(s->why, sizeof s->why, "%s: no kernel takes these sizes (a head has at most %d channels)", s->op,
                 M3_CUDA_HEAD);
    else
        snprintf(s->why, sizeof s->why, "%s on the device: %s", s->op, cudaGetErrorString(s->error));
    return m3_fail_at(ctx, M3_UNAVAILABLE, s->why, -1, -1, -1);
}

/* ---- weights that stay */

/* The slot of an id, or the free slot for it. room is a power of two; the table is never full. */
static struct m3_cuda_kept *place_of(struct m3_cuda_kept *kept, int64_t room, uint64_t id)
{
    uint64_t at = id * UINT64_C(0x9e3779b97f4a7c15) >> 20;
    while (kept[at & (uint64_t)(room - 1)].id != 0 && kept[at & (uint64_t)(room - 1)].id != id) at++;
    return &kept[at & (uint64_t)(room - 1)];
}

static int make_room(struct m3_cuda_state *s)
{
    if (2 * (s->keeps + 1) <= s->room) return 1;
    int64_t room = s->room ? 2 * s->room : 256;
    struct m3_cuda_kept *kept = (struct m3_cuda_kept *)calloc((size_t)room, sizeof *kept);
    if (!kept) return m3_cuda_ok(s, cudaErrorMemoryAllocation);
    for (int64_t i = 0; i < s->room; i++)
        if (s->kept[i].id) *place_of(kept, room, s->kept[i].id) = s->kept[i];
    free(s->kept);
    s->kept = kept;
    s->room = room;
    return 1;
}

static void free_kept(struct m3_cuda_kept *k)
{
    cudaFree(k->data);
    cudaFree(k->scales);
    k->data = k->scales = NULL;
}

/* Frees the weights of all other calls. Their slots stay, without memory. */
static void forget_others(struct m3_cuda_state *s)
{
    cudaStreamSynchronize(s->stream);
    for (int64_t i = 0; i < s->room; i++)
        if (s->kept[i].id && s->kept[i].call != s->call) free_kept(&s->kept[i]);
}

static void *allocate(struct m3_cuda_state *s, size_t bytes)
{
    void *memory = NULL;
    if (s->error != cudaSuccess) return NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        forget_others(s);
        error = cudaMalloc(&memory, bytes);
    }
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();             /* otherwise it would end a later call */
        s->wanted = bytes;
    }
    return m3_cuda_ok(s, error) ? memory : NULL;
}

static void send_to(struct m3_cuda_state *s, void *device, const void *host, size_t bytes)
{
    if (device && bytes) m3_cuda_ok(s, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, s->stream));
}

static size_t scale_bytes(const struct m3_weight *w)
{
    switch (w->scaling) {
    case M3_SCALE_128X128: return (size_t)((w->rows + 127) / 128 * ((w->cols + 127) / 128)) * sizeof(float);
    case M3_SCALE_MX32: return (size_t)(w->rows * ((w->cols + 31) / 32));
    default: break;
    }
    return 0;
}

struct m3_weight m3_cuda_weight(struct m3_cuda_state *s, const struct m3_weight *w)
{
    struct m3_weight there = *w;
    size_t bytes = (size_t)(w->rows * w->cols) * m3_dtype_bytes(w->dtype), scales = scale_bytes(w);
    there.data = there.scales = NULL;
    if (m3_weight_is_packed(w)) {
        s->is_packed = 1;
        m3_cuda_ok(s, cudaErrorNotSupported);
        return there;
    }
    if (w->id == 0) {
        there.data = m3_cuda_send(s, w->data, (int64_t)bytes, 1);
        there.scales = scales ? m3_cuda_send(s, w->scales, (int64_t)scales, 1) : NULL;
        return there;
    }
    if (!make_room(s)) return there;
    struct m3_cuda_kept *k = place_of(s->kept, s->room, w->id);
    if (k->data && k->host != w->data) free_kept(k);
    s->keeps += k->id == 0;
    k->id = w->id;
    k->host = w->data;
    k->call = s->call;
    if (!k->data) {
        k->data = allocate(s, bytes);
        k->scales = scales ? allocate(s, scales) : NULL;
        send_to(s, k->data, w->data, bytes);
        send_to(s, k->scales, w->scales, scales);
        if (s->error != cudaSuccess) free_kept(k);
    }
    there.data = k->data;
    there.scales = k->scales;
    return there;
}

/* ---- operands of a call */

static void free_chunks(struct m3_cuda_state *s)
{
    for (struct m3_cuda_chunk *next; s->chunks; s->chunks = next) {
        next = s->chunks->next;
        cudaFree(s->chunks->memory);
        free(s->chunks);
    }
}

static struct m3_cuda_chunk *add_chunk(struct m3_cuda_state *s, size_t bytes)
{
    struct m3_cuda_chunk *chunk = (struct m3_cuda_chunk *)calloc(1, sizeof *chunk);
    if (!chunk) m3_cuda_ok(s, cudaErrorMemoryAllocation);
    else chunk->memory = (char *)allocate(s, bytes);
    if (!chunk || !chunk->memory) {
        free(chunk);
        return NULL;
    }
    chunk->bytes = bytes;
    chunk->next = s->chunks;
    s->chunks = chunk;
    return chunk;
}

void m3_cuda_begin(struct m3_cuda_state *s, const char *op)
{
    size_t all = 0;
    s->op = op;
    s->call++;
    s->wanted = 0;
    s->error = cudaSuccess;
    for (struct m3_cuda_chunk *c = s->chunks; c; c = c->next) {
        all += c->bytes;
        c->used = 0;
    }
    if (!s->chunks || !s->chunks->next) return;
    free_chunks(s);                     /* several become one, so that similar calls allocate no more */
    add_chunk(s, all);
    s->error = cudaSuccess;
    s->wanted = 0;
}

void *m3_cuda_take(struct m3_cuda_state *s, int64_t count, size_t size)
{
    if (s->error != cudaSuccess) return NULL;
    if (count < 0 || (size && (uint64_t)count > (SIZE_MAX - ALIGNED) / size)) {
        m3_cuda_ok(s, cudaErrorInvalidValue);
        return NULL;
    }
    size_t bytes = ((size_t)count * size + ALIGNED) / ALIGNED * ALIGNED;
    struct m3_cuda_chunk *chunk = s->chunks;
    if (!chunk || chunk->bytes - chunk->used < bytes) chunk = add_chunk(s, bytes > CHUNK ? bytes : CHUNK);
    if (!chunk) return NULL;
    void *memory = chunk->memory + chunk->used;
    chunk->used += bytes;
    return memory;
}

size_t m3_cuda_left(struct m3_cuda_state *s, size_t wanted)
{
    size_t free_bytes = 0, all = 0, here = s->chunks ? s->chunks->bytes - s->chunks->used : 0;
    if (s->error != cudaSuccess) return 0;
    here -= here < ALIGNED ? here : ALIGNED;
    if (wanted <= here) return here;
    m3_cuda_ok(s, cudaMemGetInfo(&free_bytes, &all));
    if (free_bytes / 2 < wanted && free_bytes < all / 4) {
        forget_others(s);
        m3_cuda_ok(s, cudaMemGetInfo(&free_bytes, &all));
    }
    return free_bytes / 2 > here ? free_bytes / 2 : here;
}

void *m3_cuda_send(struct m3_cuda_state *s, const void *host, int64_t count, size_t size)
{
    if (!host) return NULL;
    void *device = m3_cuda_take(s, count, size);
    send_to(s, device, host, (size_t)count * size);
    return device;
}

void *m3_cuda_send_typed(struct m3_cuda_state *s, const float *host, int64_t count)
{
    float *x = (float *)m3_cuda_send(s, host, count, sizeof *x);
    if (s->type == M3_CUDA_F32) return x;
    __nv_bfloat16 *rounded = (__nv_bfloat16 *)m3_cuda_take(s, count, sizeof *rounded);
    if (rounded && count) m3_cuda_ok(s, m3_cuda_round(s->stream, rounded, x, count));
    return rounded;
}

void m3_cuda_fetch(struct m3_cuda_state *s, void *host, const void *device, int64_t count, size_t size)
{
    if (s->error == cudaSuccess && count)
        m3_cuda_ok(s, cudaMemcpyAsync(host, device, (size_t)count * size, cudaMemcpyDeviceToHost, s->stream));
}

void m3_cuda_free_all(struct m3_cuda_state *s)
{
    s->call++;
    forget_others(s);
    free(s->kept);
    free_chunks(s);
    s->kept = NULL;
    s->keeps = s->room = 0;
}
