/* The plug-in: entries of the operator table that copy their operands to the device, run the kernels of kernels.h, and
 * copy the results back. Weights stay on the device; keys, values and activations are copied in every call, because
 * the table's operands are in host memory. There is no fallback: an operation that is not supported here is
 * M3_UNAVAILABLE. SPEC 15 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device.cuh"
#include "cuda/memory.h"
#include "ops/lists.h"

static struct m3_cuda_state *begin(struct m3_ctx *ctx, const char *op)
{
    struct m3_cuda_state *s = (struct m3_cuda_state *)ctx->plugin;
    m3_cuda_begin(s, op);
    return s;
}

static int linear(struct m3_ctx *ctx, float *y, const float *x, const struct m3_weight *w, const float *bias, int64_t T)
{
    struct m3_cuda_state *s = begin(ctx, "linear");
    if (ctx->linear == M3_LINEAR_ORDERED)
        return m3_fail_at(ctx, M3_UNAVAILABLE, "linear: sums on the device are not ordered", -1, -1, -1);
    /* A router in float stays in float: its scores select experts. */
    const enum m3_cuda_type type = w->dtype == M3_F32 ? M3_CUDA_F32 : s->type;
    struct m3_weight there = m3_cuda_weight(s, w);
    const void *x_there = m3_cuda_send_rows(s, x, T, w->cols, type);
    const float *bias_there = (const float *)m3_cuda_send(s, bias, w->rows, sizeof *bias);
    float *y_there = (float *)m3_cuda_take(s, T * w->rows, sizeof *y);
    if (m3_cuda_ok(s, cudaSuccess))
        m3_cuda_ok(s, m3_cuda_linear(s->stream, y_there, x_there, type, &there, bias_there, T));
    m3_cuda_fetch(s, y, y_there, T * w->rows, sizeof *y);
    return m3_cuda_end(s, ctx);
}

/* The end of a call with block scores. */
static int end_scores(struct m3_cuda_state *s, struct m3_ctx *ctx, const unsigned long long *nan_at,
                      const struct m3_index *d)
{
    int status = m3_cuda_end(s, ctx);
    if (status || *nan_at == ULLONG_MAX) return status;
    const int64_t at = (int64_t)*nan_at, pair = at / d->B;
    return m3_fail_at(ctx, M3_WRONG, "NaN in a block score", pair / d->G, pair % d->G, at % d->B);
}

static int block_scores(struct m3_ctx *ctx, float *m, const float *q, const float *k, const struct m3_index *d)
{
    struct m3_cuda_state *s = begin(ctx, "block_scores");
    struct m3_index there = *d;
    unsigned long long nan_at = ULLONG_MAX;
    m3_cuda_refuse(s, m3_cuda_no_scores(d));
    there.seen = (const unsigned char *)m3_cuda_send(s, d->seen, d->p0 + d->T, 1);
    const void *q_there = m3_cuda_send_rows(s, q, d->T * d->G, d->X, s->type);
    const void *k_there = m3_cuda_send_rows(s, k, d->p0 + d->T, d->X, s->type);
    float *m_there = (float *)m3_cuda_take(s, d->T * d->G * d->B, sizeof *m);
    unsigned long long *nan_there = (unsigned long long *)m3_cuda_take(s, 1, sizeof *nan_there);
    if (m3_cuda_ok(s, cudaSuccess))
        m3_cuda_ok(s, m3_cuda_block_scores(s->stream, m_there, nan_there, q_there, k_there, s->type, &there));
    m3_cuda_fetch(s, m, m_there, d->T * d->G * d->B, sizeof *m);
    m3_cuda_fetch(s, &nan_at, nan_there, 1, sizeof nan_at);
    return end_scores(s, ctx, &nan_at, d);
}

static int select_blocks(struct m3_ctx *ctx, int32_t *ids, const float *m, const struct m3_index *d)
{
    struct m3_cuda_state *s = begin(ctx, "select_blocks");
    unsigned long long nan_at = ULLONG_MAX;
    const float *m_there = (const float *)m3_cuda_send(s, m, d->T * d->G * d->B, sizeof *m);
    int32_t *ids_there = (int32_t *)m3_cuda_take(s, d->T * d->G * d->N, sizeof *ids);
    unsigned long long *nan_there = (unsigned long long *)m3_cuda_take(s, 1, sizeof *nan_there);
    if (m3_cuda_ok(s, cudaSuccess))
        m3_cuda_ok(s, m3_cuda_select_blocks(s->stream, ids_there, nan_there, m_there, d));
    m3_cuda_fetch(s, ids, ids_there, d->T * d->G * d->N, sizeof *ids);
    m3_cuda_fetch(s, &nan_at, nan_there, 1, sizeof nan_at);
    return end_scores(s, ctx, &nan_at, d);
}

static int attend_blocks(struct m3_ctx *ctx, float *o, float *lse, const float *q, const float *k, const float *v,
                         const int32_t *blocks, const struct m3_attend *d)
{
    for (int64_t i = 0; i < d->T * d->G; i++)
        if (m3_list_length(blocks + i * d->N, d->N, (d->p0 + i / d->G) / d->block) < 0)
            return m3_fail_at(ctx, M3_WRONG, "block list not strictly ascending visible ids, then -1", i / d->G,
                              i % d->G, -1);
    struct m3_cuda_state *s = begin(ctx, "attend_blocks");
    struct m3_attend there = *d;
    const int64_t rows = d->T * d->Q, keys = (d->p0 + d->T) * d->G;
    size_t bytes = 0;
    m3_cuda_refuse(s, m3_cuda_no_attention(d));
    there.seen = (const unsigned char *)m3_cuda_send(s, d->seen, d->p0 + d->T, 1);
    const void *q_there = m3_cuda_send_rows(s, q, rows, d->D, s->type);
    const void *k_there = m3_cuda_send_rows(s, k, keys, d->D, s->type);
    const void *v_there = m3_cuda_send_rows(s, v, keys, d->D, s->type);
    const int32_t *blocks_there = (const int32_t *)m3_cuda_send(s, blocks, d->T * d->G * d->N, sizeof *blocks);
    float *o_there = (float *)m3_cuda_take(s, rows * d->D, sizeof *o);
    float *lse_there = (float *)m3_cuda_take(s, rows, sizeof *lse);
    if (s->type == M3_CUDA_BF16) {
        const size_t wanted = m3_cuda_attend_scratch(d, s->partials, SIZE_MAX);
        bytes = m3_cuda_attend_scratch(d, s->partials, m3_cuda_left(s, wanted));
        if (bytes == 0) m3_cuda_ok(s, cudaErrorMemoryAllocation);
    }
    void *scratch = m3_cuda_take(s, (int64_t)bytes, 1);
    if (m3_cuda_ok(s, cudaSuccess))
        m3_cuda_ok(s, m3_cuda_attend_blocks(s->stream, o_there, lse_there, q_there, k_there, v_there, blocks_there,
                                            s->type, &there, s->partials, scratch, bytes));
    m3_cuda_fetch(s, o, o_there, rows * d->D, sizeof *o);
    m3_cuda_fetch(s, lse, lse_there, rows, sizeof *lse);
    return m3_cuda_end(s, ctx);
}

static int route(struct m3_ctx *ctx, int32_t *ids, float *p, const float *scores, const float *bias, int64_t T,
                 int64_t E, int64_t K)
{
    struct m3_cuda_state *s = begin(ctx, "route");
    unsigned long long bad[2] = { ULLONG_MAX, ULLONG_MAX };
    const float *scores_there = (const float *)m3_cuda_send(s, scores, T * E, sizeof *scores);
    const float *bias_there = (const float *)m3_cuda_send(s, bias, E, sizeof *bias);
    int32_t *ids_there = (int32_t *)m3_cuda_take(s, T * K, sizeof *ids);
    float *p_there = (float *)m3_cuda_take(s, T * K, sizeof *p);
    unsigned long long *bad_there = (unsigned long long *)m3_cuda_take(s, 2, sizeof *bad_there);
    if (m3_cuda_ok(s, cudaSuccess))
        m3_cuda_ok(s, m3_cuda_route(s->stream, ids_there, p_there, bad_there, bad_there + 1, scores_there, bias_there,
                                    T, E, K));
    m3_cuda_fetch(s, ids, ids_there, T * K, sizeof *ids);
    m3_cuda_fetch(s, p, p_there, T * K, sizeof *p);
    m3_cuda_fetch(s, bad, bad_there, 2, sizeof *bad);
    int status = m3_cuda_end(s, ctx);
    if (status) return status;
    /* The reference stops at the first row that fails. */
    if (bad[0] != ULLONG_MAX && (int64_t)bad[0] / E <= (int64_t)(bad[1] == ULLONG_MAX ? LLONG_MAX : bad[1]))
        return m3_fail_at(ctx, M3_WRONG, "NaN in an expert's score", (int64_t)bad[0] / E, -1, (int64_t)bad[0] % E);
    if (bad[1] == ULLONG_MAX) return M3_OK;
    return m3_fail_at(ctx, M3_WRONG, "scores of the chosen experts sum to 0", (int64_t)bad[1], -1, -1);
}

/* [E] on the device: the experts that some token selected, with their weights, of one dtype, on the device. */
static const struct m3_expert *send_experts(struct m3_cuda_state *s, const struct m3_expert *experts,
                                            const int32_t *ids, int64_t chosen, int64_t E)
{
    const enum m3_dtype dtype = experts[0].w1.dtype;
    struct m3_expert *table = (struct m3_expert *)calloc((size_t)E, sizeof *table);
    if (!table) m3_cuda_ok(s, cudaErrorMemoryAllocation);
    for (int64_t i = 0; table && i < chosen; i++) {
        struct m3_expert *e = &table[ids[i]];
        if (e->w1.data || !m3_cuda_ok(s, cudaSuccess)) continue;
        if (experts[ids[i]].w1.dtype != dtype || experts[ids[i]].w3.dtype != dtype || experts[ids[i]].w2.dtype != dtype)
            m3_cuda_refuse(s, "experts of several stored types");
        e->w1 = m3_cuda_weight(s, &experts[ids[i]].w1);
        e->w3 = m3_cuda_weight(s, &experts[ids[i]].w3);
        e->w2 = m3_cuda_weight(s, &experts[ids[i]].w2);
    }
    const struct m3_expert *there = (const struct m3_expert *)m3_cuda_send(s, table, E, sizeof *table);
    m3_cuda_ok(s, cudaStreamSynchronize(s->stream));    /* the table is read until here */
    free(table);
    return there;
}

static int experts(struct m3_ctx *ctx, float *routed, float *each, const float *x, const int32_t *ids, const float *p,
                   const struct m3_expert *all, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                   float factor)
{
    int64_t bad = m3_bad_experts(ids, T, E, K);
    if (bad >= 0) return m3_fail_at(ctx, M3_WRONG, "ids are not distinct experts", bad, -1, -1);
    struct m3_cuda_state *s = begin(ctx, "experts");
    if (ctx->linear == M3_LINEAR_ORDERED)
        return m3_fail_at(ctx, M3_UNAVAILABLE, "experts: sums on the device are not ordered", -1, -1, -1);
    struct m3_cuda_experts d = {};
    d.T = T, d.E = E, d.K = K, d.H = all[0].w1.cols, d.F = all[0].w1.rows;
    d.factor = factor;
    d.dtype = all[0].w1.dtype;
    d.type = d.dtype == M3_F32 ? M3_CUDA_F32 : s->type;
    d.act = *act;
    const struct m3_expert *all_there = send_experts(s, all, ids, T * K, E);
    const void *x_there = m3_cuda_send_rows(s, x, T, d.H, d.type);
    const int32_t *ids_there = (const int32_t *)m3_cuda_send(s, ids, T * K, sizeof *ids);
    const float *p_there = (const float *)m3_cuda_send(s, p, T * K, sizeof *p);
    float *routed_there = (float *)m3_cuda_take(s, T * d.H, sizeof *routed);
    float *each_there = each ? (float *)m3_cuda_take(s, T * K * d.H, sizeof *each) : NULL;
    const size_t bytes = m3_cuda_experts_scratch(&d, m3_cuda_left(s, m3_cuda_experts_scratch(&d, SIZE_MAX)));
    if (bytes == 0) m3_cuda_ok(s, cudaErrorMemoryAllocation);
    void *scratch = m3_cuda_take(s, (int64_t)bytes, 1);
    if (m3_cuda_ok(s, cudaSuccess))
        m3_cuda_ok(s, m3_cuda_experts(s->stream, routed_there, each_there, x_there, ids_there, p_there, all_there, &d,
                                      scratch, bytes));
    m3_cuda_fetch(s, routed, routed_there, T * d.H, sizeof *routed);
    if (each) m3_cuda_fetch(s, each, each_there, T * K * d.H, sizeof *each);
    return m3_cuda_end(s, ctx);
}

/* ---- the exports of a plug-in */

/* Opens device 0 and a stream. M3_UNAVAILABLE, with the reason, if the kernels are not built for the device. */
static int open_device(struct m3_cuda_state *s, struct m3_error *error)
{
    int devices = 0;
    cudaDeviceProp device = {};
    cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0)
        return m3_fail(error, M3_UNAVAILABLE, "--ops cuda: no device: %s",
                       cudaGetErrorString(status != cudaSuccess ? status : cudaErrorNoDevice));
    status = cudaSetDevice(0);
    if (status == cudaSuccess) status = cudaGetDeviceProperties(&device, 0);
    if (status == cudaSuccess && device.major < 8)
        return m3_fail(error, M3_UNAVAILABLE, "--ops cuda: %s: got compute capability %d.%d, expected 8.0 or more",
                       device.name, device.major, device.minor);
    if (status == cudaSuccess && device.sharedMemPerBlockOptin < M3_MOST_SHARED)
        return m3_fail(error, M3_UNAVAILABLE,
                       "--ops cuda: %s: got %zu bytes of shared memory for a block, expected %d or more", device.name,
                       device.sharedMemPerBlockOptin, (int)M3_MOST_SHARED);
    if (status == cudaSuccess) status = cudaStreamCreate(&s->stream);
    if (status == cudaSuccess) return M3_OK;
    return m3_fail(error, M3_UNAVAILABLE, "--ops cuda: device 0: %s", cudaGetErrorString(status));
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, (int)sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    ops->linear = linear;
    ops->block_scores = block_scores;
    ops->select_blocks = select_blocks;
    ops->attend_blocks = attend_blocks;
    ops->route = route;
    ops->experts = experts;
    return M3_OK;
}

int m3_plugin_start(void **state, const char *words, struct m3_error *error)
{
    const int half = strcmp(words, "bf16,partials=bf16") == 0;
    if (*words && strcmp(words, "fp32") != 0 && strcmp(words, "bf16") != 0 && !half)
        return m3_fail(error, M3_USAGE, "--ops cuda: got \"%s\", expected fp32 or bf16, or bf16,partials=bf16", words);
    struct m3_cuda_state *s = (struct m3_cuda_state *)calloc(1, sizeof *s);
    if (!s) return m3_fail_memory(error, "--ops cuda", sizeof *s);
    s->type = half || strcmp(words, "bf16") == 0 ? M3_CUDA_BF16 : M3_CUDA_F32;
    s->partials = half ? M3_CUDA_BF16 : M3_CUDA_F32;
    int status = open_device(s, error);
    if (status) free(s);
    else *state = s;
    return status;
}

void m3_plugin_stop(void *state)
{
    struct m3_cuda_state *s = (struct m3_cuda_state *)state;
    m3_cuda_free_all(s);
    cudaStreamDestroy(s->stream);
    free(s);
}
