/* What cuda_bench.cu measures with: sizes, memory, drawn inputs, checks of outputs, time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/kernels.h"

enum { SIZES = 2, TOKENS = 4, MOST_RUNS = 50, MOST_TAKEN = 64, MARKS = 3 };

struct sizes {
    int64_t G, X, Q, D, block, N, H, F, E, K;
    int64_t prefill[SIZES], decode[SIZES], tokens[TOKENS];
    int64_t scores;             /* bytes of block scores at a time */
    int64_t scratch;            /* bytes of scratch, at most */
    int64_t flush, copy;        /* bytes: more than the cache; what the limit copies */
    double seconds;             /* that a measurement should take */
    int runs;                   /* at least */
    int calls;                  /* of one decoded token, in a run */
};

struct bench {
    struct sizes z;
    cudaStream_t stream;
    cudaEvent_t marks[MARKS];
    void *taken[MOST_TAKEN], *flushed;
    int takes;
    uint64_t seed;
    unsigned long long *nan_at;
};

struct samples {
    double of[MOST_RUNS];
    int n;
};

/* ---- errors and memory */

static void ok(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "cuda_bench: %s: %s\n", what, cudaGetErrorString(error));
    exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 69 : 70);
}

static void demand(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "cuda_bench: wrong: %s\n", what);
    exit(1);
}

/* Every byte 0xFF, which is NaN. */
static void *take(struct bench *b, int64_t count, size_t size)
{
    void *memory = NULL;
    demand(b->takes < MOST_TAKEN, "too much memory at a time");
    ok(cudaMalloc(&memory, (size_t)count * size), "memory");
    ok(cudaMemsetAsync(memory, 0xFF, (size_t)count * size, b->stream), "memset");
    return b->taken[b->takes++] = memory;
}

static void free_taken(struct bench *b)
{
    ok(cudaStreamSynchronize(b->stream), "free");
    while (b->takes > 0) ok(cudaFree(b->taken[--b->takes]), "free");
}

static void fetch(struct bench *b, void *host, const void *device, int64_t bytes)
{
    ok(cudaMemcpyAsync(host, device, (size_t)bytes, cudaMemcpyDeviceToHost, b->stream), "fetch");
    ok(cudaStreamSynchronize(b->stream), "fetch");
}

/* ---- inputs and outputs */

static __device__ __forceinline__ void store(float *x, float value) { *x = value; }
static __device__ __forceinline__ void store(__nv_bfloat16 *x, float value) { *x = __float2bfloat16_rn(value); }

/* The sum of four uniform numbers: mean `mean`, deviation `deviation`. */
template <class Number>
static __global__ void draw_numbers(Number *x, int64_t n, uint64_t seed, float mean, float deviation)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint64_t z = seed + (uint64_t)i * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        float sum = 0;
        for (int part = 0; part < 64; part += 16) sum += (float)(z >> part & 0xffff) / 65536 - 0.5f;
        store(x + i, mean + deviation * 1.7320508f * sum);
    }
}

static __global__ void look_for_nan(unsigned *found, const float *x, int64_t n)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        if (isnan(x[i])) atomicOr(found, 1u);
}

static unsigned blocks_for(int64_t n) { return (unsigned)(n < 1024 * 256 ? m3_pieces(n, 256) : 1024); }

static void *drawn(struct bench *b, enum m3_cuda_type type, int64_t n, float mean, float deviation)
{
    const dim3 grid(blocks_for(n));
    b->seed += 0x5851f42d4c957f2du;
    if (type == M3_CUDA_F32) {
        float *x = (float *)take(b, n, sizeof *x);
        ok(m3_launch(b->stream, draw_numbers<float>, grid, 256, 0, x, n, b->seed, mean, deviation), "draw");
        return x;
    }
    __nv_bfloat16 *x = (__nv_bfloat16 *)take(b, n, sizeof *x);
    ok(m3_launch(b->stream, draw_numbers<__nv_bfloat16>, grid, 256, 0, x, n, b->seed, mean, deviation), "draw");
    return x;
}

static void demand_written(struct bench *b, const float *x, int64_t n, const char *what)
{
    unsigned found = 0, *there = NULL;
    ok(cudaMalloc(&there, sizeof *there), "memory");
    ok(cudaMemsetAsync(there, 0, sizeof *there, b->stream), "memset");
    ok(m3_launch(b->stream, look_for_nan, dim3(blocks_for(n)), 256, 0, there, x, n), "look_for_nan");
    fetch(b, &found, there, sizeof found);
    ok(cudaFree(there), "free");
    demand(!found, what);
}

static void demand_no_nan_met(struct bench *b)
{
    unsigned long long at = 0;
    fetch(b, &at, b->nan_at, sizeof at);
    demand(at == ~0ull, "a score is NaN");
}

/* ---- sampled outputs, against double */

/* A copy on the host, to be freed. */
static void *copied(struct bench *b, const void *device, int64_t bytes)
{
    void *host = malloc((size_t)bytes);
    demand(host != NULL, "no memory for a sample");
    fetch(b, host, device, bytes);
    return host;
}

/* Number i of those at x. */
static double value_of(const void *x, enum m3_dtype dtype, int64_t i)
{
    const uint32_t code = ((const unsigned char *)x)[dtype == M3_F8_E4M3 ? i : 0];
    if (dtype == M3_F32) return ((const float *)x)[i];
    if (dtype == M3_F8_E4M3) {
        const int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
        const double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
        return code & 128 ? -size : size;
    }
    const uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static enum m3_dtype dtype_of(enum m3_cuda_type type) { return type == M3_CUDA_F32 ? M3_F32 : M3_BF16; }

/* A sum of n products of x and y; *size: of their absolute values. */
static double dot(double *size, const void *x, enum m3_dtype x_dtype, const void *y, enum m3_dtype y_dtype, int64_t n)
{
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double term = value_of(x, x_dtype, i) * value_of(y, y_dtype, i);
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

/* A sum of n terms in float, each step cut off: 2^-23 of their sizes. */
static void demand_near(double got, double want, double size, double n, const char *what)
{
    if (fabs(got - want) <= (n + 4) * 0x1p-23 * size) return;
    fprintf(stderr, "cuda_bench: wrong: %s: got %.9g, want %.9g, allowed %.3g\n", what, got, want,
            (n + 4) * 0x1p-23 * size);
    exit(1);
}

static double bytes_of(enum m3_cuda_type type) { return type == M3_CUDA_F32 ? 4 : 2; }

/* ---- time */

/* Writes more than the cache holds; while the device does that, launches are queued. */
static void flush(struct bench *b)
{
    ok(cudaMemsetAsync(b->flushed, 0x5A, (size_t)b->z.flush, b->stream), "flush");
    ok(cudaEventRecord(b->marks[0], b->stream), "cudaEventRecord");
}

static void mark(struct bench *b, int i) { ok(cudaEventRecord(b->marks[i], b->stream), "cudaEventRecord"); }

/* Seconds from mark i to the next; all marks up to it are waited for. */
static double between(struct bench *b, int i)
{
    float milliseconds = 0;
    ok(cudaEventSynchronize(b->marks[i + 1]), "while it ran");
    ok(cudaEventElapsedTime(&milliseconds, b->marks[i], b->marks[i + 1]), "cudaEventElapsedTime");
    return (double)milliseconds / 1000;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Is another run wanted? The first one warms up, and is not kept. */
static int goes_on(const struct bench *b, struct samples *s, double seconds, double *all)
{
    if (s->n < 0) {
        s->n = 0;
        return 1;
    }
    s->of[s->n++] = seconds;
    *all += seconds;
    return s->n < b->z.runs || (s->n < MOST_RUNS && *all < b->z.seconds);
}

static void report(struct samples *s, const char *what, enum m3_cuda_type type, int64_t T, int64_t S, double flops,
                   double bytes, double moved)
{
    qsort(s->of, (size_t)s->n, sizeof *s->of, ascending);
    const double seconds = s->of[s->n / 2];
    printf("{\"what\": \"%s\", \"type\": \"%s\", \"T\": %lld, \"S\": %lld, \"seconds\": %.9g, \"least\": %.9g, "
           "\"runs\": %d, \"flops\": %.17g, \"bytes\": %.17g, \"moved\": %.17g, \"tflops\": %.6g, \"gbs\": %.6g}\n",
           what, type == M3_CUDA_F32 ? "f32" : "bf16", (long long)T, (long long)S, seconds, s->of[0], s->n, flops,
           bytes, bytes + moved, flops / seconds / 1e12, bytes / seconds / 1e9);
    fflush(stdout);
}

/* Runs of `calls` calls, one behind the other; samples are of one call. call(b, self, i) launches the i-th. */
static struct samples time_calls(struct bench *b, void (*call)(struct bench *, void *, int), void *self, int calls)
{
    struct samples s = {};
    double seconds = 0, all = 0;
    s.n = -1;
    do {
        flush(b);
        for (int i = 0; i < calls; i++) call(b, self, i);
        mark(b, 1);
        seconds = between(b, 0);
    } while (goes_on(b, &s, seconds, &all));
    for (int i = 0; i < s.n; i++) s.of[i] /= calls;
    return s;
}
