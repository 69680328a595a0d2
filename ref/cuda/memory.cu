#include "cuda/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t ALIGNED = 256, CHUNK = 16 << 20;    /* the smallest allocation for operands */
static const size_t MOST_SCRATCH = (size_t)4 << 30;

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
    int64_t call, uses;         /* the last call that used it; how many did, also before it was freed */
};

/* ---- errors */

int m3_cuda_ok(struct m3_cuda_state *s, cudaError_t error)
{
    if (s->error == cudaSuccess) s->error = error;
    return s->error == cudaSuccess;
}

int m3_cuda_refuse(struct m3_cuda_state *s, const char *what)
{
    if (what && s->error == cudaSuccess) s->refused = what;
    return m3_cuda_ok(s, what ? cudaErrorNotSupported : cudaSuccess);
}

int m3_cuda_end(struct m3_cuda_state *s, struct m3_ctx *ctx)
{
    m3_cuda_ok(s, cudaGetLastError());
    m3_cuda_ok(s, cudaStreamSynchronize(s->stream));
    if (s->error == cudaSuccess) return M3_OK;
    if (s->error == cudaErrorMemoryAllocation)
        snprintf(s->why, sizeof s->why, "%s: out of device memory for another %zu bytes", s->op, s->wanted);
    else if (s->error == cudaErrorNotSupported)
        snprintf(s->why, sizeof s->why, "%s: no kernel computes %s: run without --ops cuda", s->op,
                 s->refused ? s->refused : "these sizes");
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

/* Frees a weight of another call, if there is one. Its slot stays, without memory. */
static int forget_one(struct m3_cuda_state *s)
{
    struct m3_cuda_kept *least = NULL;
    for (int64_t i = 0; i < s->room; i++) {
        struct m3_cuda_kept *k = &s->kept[i];
        if (!k->data || k->call == s->call) continue;
        if (!least || k->uses < least->uses || (k->uses == least->uses && k->call > least->call)) least = k;
    }
    if (!least) return 0;
    cudaStreamSynchronize(s->stream);
    free_kept(least);
    return 1;
}

static void *allocate(struct m3_cuda_state *s, size_t bytes)
{
    void *memory = NULL;
    if (s->error != cudaSuccess) return NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    while (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();             /* otherwise it would end a later call */
        s->wanted = bytes;
        if (!forget_one(s)) break;
        error = cudaMalloc(&memory, bytes);
    }
    return m3_cuda_ok(s, error) ? memory : NULL;
}

static void send_to(struct m3_cuda_state *s, void *device, const void *host, size_t bytes)
{
    if (device && bytes) m3_cuda_ok(s, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, s->stream));
}

/* Rows of n numbers, at their pitch, zeros between. */
static void send_rows(struct m3_cuda_state *s, void *device, const void *host, int64_t rows, int64_t n, size_t size)
{
    const size_t wide = (size_t)n * size, pitch = (size_t)m3_cuda_pitch(n) * size;
    if (!device || rows == 0 || !m3_cuda_ok(s, cudaSuccess)) return;
    if (wide == pitch) return send_to(s, device, host, (size_t)rows * pitch);
    m3_cuda_ok(s, cudaMemsetAsync(device, 0, (size_t)rows * pitch, s->stream));
    m3_cuda_ok(s, cudaMemcpy2DAsync(device, pitch, host, wide, wide, (size_t)rows, cudaMemcpyHostToDevice, s->stream));
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
    const size_t size = m3_dtype_bytes(w->dtype), scales = scale_bytes(w);
    const size_t bytes = (size_t)(w->rows * m3_cuda_pitch(w->cols)) * size;
    there.data = there.scales = NULL;
    if (!m3_cuda_refuse(s, m3_cuda_no_weight(w))) return there;
    if (w->id == 0) {
        void *data = m3_cuda_take(s, (int64_t)bytes, 1);
        send_rows(s, data, w->data, w->rows, w->cols, size);
        there.data = data;
        there.scales = scales ? m3_cuda_send(s, w->scales, (int64_t)scales, 1) : NULL;
        return there;
    }
    if (!make_room(s)) return there;
    struct m3_cuda_kept *k = place_of(s->kept, s->room, w->id);
    if (k->data && k->host != w->data) free_kept(k);
    s->keeps += k->id == 0;
    k->id = w->id;
    k->host = w->data;
    k->uses += k->call != s->call;
    k->call = s->call;
    if (!k->data) {
        k->data = allocate(s, bytes);
        k->scales = scales ? allocate(s, scales) : NULL;
        send_rows(s, k->data, w->data, w->rows, w->cols, size);
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
    s->refused = NULL;
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
    if (wanted > MOST_SCRATCH) wanted = MOST_SCRATCH;
    here -= here < ALIGNED ? here : ALIGNED;
    if (wanted <= here) return wanted;
    do m3_cuda_ok(s, cudaMemGetInfo(&free_bytes, &all));
    while (free_bytes / 2 < wanted && free_bytes < all / 4 && forget_one(s));
    const size_t left = free_bytes / 2 > here ? free_bytes / 2 : here;
    return left < wanted ? left : wanted;
}

void *m3_cuda_send(struct m3_cuda_state *s, const void *host, int64_t count, size_t size)
{
    if (!host) return NULL;
    void *device = m3_cuda_take(s, count, size);
    send_to(s, device, host, (size_t)count * size);
    return device;
}

void *m3_cuda_send_rows(struct m3_cuda_state *s, const float *host, int64_t rows, int64_t n, enum m3_cuda_type type)
{
    const int64_t count = rows * m3_cuda_pitch(n);
    float *x = (float *)m3_cuda_take(s, count, sizeof *x);
    send_rows(s, x, host, rows, n, sizeof *x);
    if (type == M3_CUDA_F32) return x;
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
    while (forget_one(s)) continue;
    free(s->kept);
    free_chunks(s);
    s->kept = NULL;
    s->keeps = s->room = 0;
}
