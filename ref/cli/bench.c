#include <cblas.h>
#include <getopt.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/context.h"
#include "base/minmax.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "model/engine.h"
#include "base/generator.h"
#include "model/model.h"
#include "ops/ops.h"

static const char help[] =
    "usage: m3ref bench ITEM [--threads N] [--runs N] [--model DIR] [--keys N]\n"
    "\n"
    "Times one item in float, at the sizes of the released model. Prints a JSON line: the item, the seconds of the\n"
    "fastest run, GFLOP/s or GB/s, and the peak memory of the process. `make bench` measures all items. Each item\n"
    "has a process of its own, because two thread pools in one process disturb each other.\n"
    "\n"
    "  sgemm            the machine's limit for products: BLAS alone, threaded, 512 x 6144 x 6144\n"
    "  read             the machine's limit for weights: a plain read of 1 GB\n"
    "  linear           6144 x 6144 BF16, T = 512\n"
    "  linear-1, linear-4, linear-8, linear-64    the same at T = 1, 4, 8, 64\n"
    "  linear-f32       the same matrix stored as F32, T = 512\n"
    "  linear-mxfp8     the same matrix in E4M3 with ue8m0 scales, T = 512\n"
    "  linear-ordered   the same as linear with ordered sums\n"
    "  moe              router, shared expert, top 4 of 16 experts (instead of 128); BF16, T = 512\n"
    "  attention        a sparse attention layer, 64/4 heads, BF16, T = 4096\n"
    "  attend-blocks    only the core of that layer: choosing blocks and attending to them\n"
    "  attend-full      the same core with full attention, for comparison\n"
    "  moe-1            the same as moe at T = 1, in GB/s of weights read\n"
    "  decode-index     choosing blocks for the last of --keys tokens (default 65536), in one layer, in GB/s\n"
    "                   of index keys read\n"
    "  decode-sparse    choosing the blocks and attending to them, in GB/s of index keys, keys and values read\n"
    "  decode-dense     full attention of the same token, in GB/s of all keys and values read\n"
    "  vision           tower and projector on a picture of 672 x 672 pixels, with the weights of --model DIR; its\n"
    "                   peak memory does not include mapped files\n"
    "\n"
    "  --threads N      number of threads; default: the number of processors\n"
    "  --runs N         number of runs, default 5\n"
    "  --help           print this text\n"
    "\n"
    "Exit status: 0 done; 64 wrong usage; 65 bad model; 66 missing model; 70 out of memory.\n";

/* The released sizes. */
enum { H = 6144, Q = 64, G = 4, D = 128, X = 128, R = 64, F = 3072, K = 4, BLOCK = 128, N = 16, EXPERTS = 16 };

struct heads {
    real *q, *k, *v, *index_q, *index_k, *scores, *o, *lse, *cos, *sin, *norm;
    int32_t *blocks;
};

struct bench {
    const struct m3_ops *op;
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
    const char *folder;         /* `vision`: its model */
    struct m3_model *model;
    struct m3_pictures pictures;
    int64_t anonymous;          /* largest seen between layers */
    struct m3_error *error;
};

static void *need(size_t count, size_t size)
{
    void *memory = aligned_alloc(64, (count * size + 63) / 64 * 64);
    if (memory) return memory;
    fprintf(stderr, "m3ref: bench: out of memory: got none for %zu bytes\n", count * size);
    exit(M3_INTERNAL);
}

static real *numbers(int64_t count, const char *name)
{
    real *x = need((size_t)count, sizeof *x);
    uint64_t key = m3_draw_key(1, name);
#pragma omp parallel for
    for (int64_t i = 0; i < count; i++) x[i] = (real)((int)m3_draw(key, (uint64_t)i, 255) - 127) / 64;
    return x;
}

static struct m3_weight matrix(int64_t rows, int64_t cols, enum m3_dtype dtype)
{
    size_t bytes = (size_t)(rows * cols) * m3_dtype_bytes(dtype);
    unsigned char *data = need(bytes, 1), *scales = NULL;
    uint64_t key = m3_draw_key((uint64_t)rows, "bench");
#pragma omp parallel for
    for (int64_t i = 0; i < rows * cols; i++) {
        float value = (float)((int)m3_draw(key, (uint64_t)i, 255) - 127) / 4096;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == M3_F32) memcpy(data + 4 * i, &value, 4);
        else if (dtype == M3_BF16) memcpy(data + 2 * i, (char *)&bits + 2, 2);
        else data[i] = (unsigned char)m3_draw(key, (uint64_t)i, 120);
    }
    if (dtype == M3_F8_E4M3) scales = memset(need((size_t)(rows * cols / 32), 1), 120, (size_t)(rows * cols / 32));
    /* clang-format off */
    return (struct m3_weight){ .data = data, .scales = scales, .dtype = dtype, .rows = rows, .cols = cols,
                               .scaling = scales ? M3_SCALE_MX32 : M3_UNSCALED };
    /* clang-format on */
}

/* ---- items: prepared, then run once */

static void prepare_linear(struct bench *m, int64_t T, enum m3_dtype dtype)
{
    m->T = T;
    m->w[0] = matrix(H, H, dtype);
    m->a = numbers(T * H, "x");
    m->b = need((size_t)(T * H), sizeof(real));
    m->operations = 2.0 * (double)T * H * H;
}

static int run_linear(struct bench *m) { return m->op->linear(&m->ctx, m->b, m->a, &m->w[0], NULL, m->T); }

static int run_sgemm(struct bench *m)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m->T, H, H, 1, m->a, H, m->w[0].data, H, 0, m->b, H);
    return M3_OK;
}

static void prepare_read(struct bench *m)
{
    m->T = 250000000;
    m->a = need((size_t)m->T, sizeof(real));
    memset(m->a, 0, (size_t)m->T * sizeof(real));
    m->b = need(64, sizeof(real));
    m->operations = 4.0 * (double)m->T;
}

static uint64_t sum_words(const uint64_t *words, int64_t n)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += words[i];
    return sum;
}

static int run_read(struct bench *m)
{
    enum { PIECE = 1 << 16 };
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < m->T / 2; i += PIECE)
        sum += sum_words((const uint64_t *)(const void *)m->a + i, m3_min(PIECE, m->T / 2 - i));
    memcpy(m->b, &sum, sizeof sum);
    return M3_OK;
}

static void prepare_experts(struct bench *m, int64_t T)
{
    m->T = T;
    m->a = numbers(m->T * H, "x");
    m->b = need((size_t)(m->T * H), sizeof(real));
    m->c = need((size_t)(m->T * F), sizeof(real));
    m->d = need((size_t)(m->T * F), sizeof(real));
    m->e = need((size_t)(m->T * H), sizeof(real));
    m->ids = need((size_t)(m->T * K), sizeof(int32_t));
    m->w[0] = matrix(EXPERTS, H, M3_F32);
    m->w[1] = matrix(F, H, M3_BF16);
    m->w[2] = matrix(F, H, M3_BF16);
    m->w[3] = matrix(H, F, M3_BF16);
    for (int e = 0; e < EXPERTS; e++)
        m->experts[e] = (struct m3_expert){ matrix(F, H, M3_BF16), matrix(F, H, M3_BF16), matrix(H, F, M3_BF16) };
    m->operations = 2.0 * (double)m->T * (EXPERTS * H + (K + 1) * 3.0 * H * F);
}

static void prepare_moe(struct bench *m) { prepare_experts(m, 512); }

static void prepare_moe_1(struct bench *m)
{
    prepare_experts(m, 1);
    m->operations = 4.0 * EXPERTS * H + 2.0 * (K + 1) * 3.0 * H * F;
}

static int run_moe(struct bench *m)
{
    static const real bias[EXPERTS];
    const struct m3_activation act = { 1, (real)1.702, 7, M3_GATE_CLAMP_UPPER };
    const struct m3_ops *op = m->op;
    struct m3_ctx *ctx = &m->ctx;
    int64_t T = m->T;
    real *scores = m->c, *weights = m->d;

    return op->linear(ctx, scores, m->a, &m->w[0], NULL, T) || op->sigmoid(ctx, scores, scores, T * EXPERTS) ||
           op->route(ctx, m->ids, weights, scores, bias, T, EXPERTS, K) ||
           op->experts(ctx, m->b, NULL, m->a, m->ids, weights, m->experts, &act, T, EXPERTS, K, 2) ||
           op->linear(ctx, m->c, m->a, &m->w[1], NULL, T) || op->linear(ctx, m->d, m->a, &m->w[2], NULL, T) ||
           op->swiglu_oai(ctx, m->c, m->c, m->d, T, F, &act) || op->linear(ctx, m->e, m->c, &m->w[3], NULL, T) ||
           op->add(ctx, m->b, m->b, m->e, T * H);
}

/* The last of m->keys tokens, in one layer: the operands for the selection of blocks. */
static void prepare_index(struct bench *m)
{
    int64_t S = m->T = m->keys;
    m->heads = (struct heads){ .index_q = numbers(G * X, "index_q"),
                               .index_k = numbers(S * X, "index_k"),
                               .scores = need((size_t)(G * ((S + BLOCK - 1) / BLOCK)), sizeof(real)),
                               .blocks = need((size_t)(G * N), sizeof(int32_t)) };
    m->operations = (double)sizeof(real) * (double)(S * X);
}

/* And the operands of attention. */
static void prepare_keys(struct bench *m)
{
    int64_t S = m->T = m->keys;
    m->heads.q = numbers(Q * D, "q");
    m->heads.k = numbers(S * G * D, "k");
    m->heads.v = numbers(S * G * D, "v");
    m->heads.o = need((size_t)(Q * D), sizeof(real));
    m->heads.lse = need(Q, sizeof(real));
    for (int64_t i = 0; i < Q * D; i++) m->heads.q[i] /= 16;
}

static int run_decode_index(struct bench *m)
{
    static const struct m3_semantics semantics = { .local_blocks = 1 };
    /* clang-format off */
    const struct m3_index d = { .T = 1, .p0 = m->T - 1, .G = G, .X = X, .block = BLOCK, .B = (m->T + BLOCK - 1) / BLOCK,
                                .N = N, .semantics = &semantics };
    return m->op->block_scores(&m->ctx, m->heads.scores, m->heads.index_q, m->heads.index_k, &d)
        || m->op->select_blocks(&m->ctx, m->heads.blocks, m->heads.scores, &d);
    /* clang-format on */
}

static int run_decode_sparse(struct bench *m)
{
    const struct m3_attend d = { .T = 1, .p0 = m->T - 1, .Q = Q, .G = G, .D = D, .block = BLOCK, .N = N };
    return run_decode_index(m) || m->op->attend_blocks(&m->ctx, m->heads.o, m->heads.lse, m->heads.q, m->heads.k,
                                                       m->heads.v, m->heads.blocks, &d);
}

static int run_decode_dense(struct bench *m)
{
    const struct m3_attend d = { .T = 1, .p0 = m->T - 1, .Q = Q, .G = G, .D = D };
    return m->op->attend_full(&m->ctx, m->heads.o, m->heads.lse, m->heads.q, m->heads.k, m->heads.v, &d);
}

/* The bytes that the token has to read: all index keys, and keys and values of the blocks; or all keys and values. */
static void prepare_sparse(struct bench *m)
{
    prepare_index(m);
    prepare_keys(m);
    m->operations += (double)sizeof(real) * 2 * G * D * (double)m3_min(m->T, N * BLOCK);
}

static void prepare_dense(struct bench *m)
{
    prepare_keys(m);
    m->operations = (double)sizeof(real) * 2 * G * D * (double)m->T;
}

static void prepare_heads(struct bench *m, int64_t T)
{
    m->T = T;
    m->heads.q = numbers(T * Q * D, "q");
    m->heads.k = numbers(T * G * D, "k");
    m->heads.v = numbers(T * G * D, "v");
    m->heads.index_q = numbers(T * G * X, "index_q");
    m->heads.index_k = numbers(T * X, "index_k");
    m->heads.o = need((size_t)(T * Q * D), sizeof(real));
    m->heads.lse = need((size_t)(T * Q), sizeof(real));
    m->heads.scores = need((size_t)(256 * G * ((T + BLOCK - 1) / BLOCK)), sizeof(real));
    m->heads.blocks = need((size_t)(T * G * N), sizeof(int32_t));
    for (int64_t i = 0; i < T * Q * D; i++) m->heads.q[i] /= 16;
}

static int run_selection(struct bench *m)
{
    static const struct m3_semantics semantics = { .local_blocks = 1 };
    struct m3_index d = {
        .T = 256, .G = G, .X = X, .block = BLOCK, .B = (m->T + BLOCK - 1) / BLOCK, .N = N, .semantics = &semantics
    };
    int status = M3_OK;
    for (d.p0 = 0; !status && d.p0 < m->T; d.p0 += d.T) {
        status = m->op->block_scores(&m->ctx, m->heads.scores, m->heads.index_q + d.p0 * G * X, m->heads.index_k, &d);
        if (!status) status = m->op->select_blocks(&m->ctx, m->heads.blocks + d.p0 * G * N, m->heads.scores, &d);
    }
    return status;
}

static int run_attend_blocks(struct bench *m)
{
    const struct m3_attend d = { .T = m->T, .Q = Q, .G = G, .D = D, .block = BLOCK, .N = N };
    return run_selection(m) || m->op->attend_blocks(&m->ctx, m->heads.o, m->heads.lse, m->heads.q, m->heads.k,
                                                    m->heads.v, m->heads.blocks, &d);
}

static int run_attend_full(struct bench *m)
{
    const struct m3_attend d = { .T = m->T, .Q = Q, .G = G, .D = D };
    return m->op->attend_full(&m->ctx, m->heads.o, m->heads.lse, m->heads.q, m->heads.k, m->heads.v, &d);
}

/* Pairs of query and key under selection: 16 blocks, the last of them the row's own. */
static double attended(int64_t T, int64_t most)
{
    double pairs = 0;
    for (int64_t t = 0; t < T; t++) pairs += t < most ? (double)t + 1 : (double)(most - BLOCK + t % BLOCK + 1);
    return pairs;
}

static void prepare_attend(struct bench *m, int64_t most)
{
    prepare_heads(m, 4096);
    m->operations = 4.0 * Q * D * attended(m->T, most);
}

static void prepare_attention(struct bench *m)
{
    prepare_attend(m, N * BLOCK);
    m->a = numbers(m->T * H, "x");
    m->b = need((size_t)(m->T * H), sizeof(real));
    m->heads.cos = need((size_t)(m->T * R / 2), sizeof(real));
    m->heads.sin = need((size_t)(m->T * R / 2), sizeof(real));
    m->heads.norm = numbers(D, "norm");
    m->positions = need((size_t)m->T, sizeof(int64_t));
    for (int64_t t = 0; t < m->T; t++) m->positions[t] = t;
    const int64_t rows[] = { Q * D, G * D, G * D, G * X, X, H }, cols[] = { H, H, H, H, H, Q * D };
    for (int i = 0; i < 6; i++) {
        m->w[i] = matrix(rows[i], cols[i], M3_BF16);
        m->operations += 2.0 * (double)m->T * (double)(rows[i] * cols[i]);
    }
}

static int run_attention(struct bench *m)
{
    const struct m3_ops *op = m->op;
    struct m3_ctx *ctx = &m->ctx;
    int64_t T = m->T;
    const real eps = (real)1e-6, *norm = m->heads.norm, *cos = m->heads.cos, *sin = m->heads.sin;

    return op->rope_table(ctx, m->heads.cos, m->heads.sin, m->positions, T, R, 5e6, M3_ANGLE_F64) ||
           op->linear(ctx, m->heads.q, m->a, &m->w[0], NULL, T) ||
           op->linear(ctx, m->heads.k, m->a, &m->w[1], NULL, T) ||
           op->linear(ctx, m->heads.v, m->a, &m->w[2], NULL, T) ||
           op->rms_norm(ctx, m->heads.q, m->heads.q, norm, T * Q, D, eps) ||
           op->rms_norm(ctx, m->heads.k, m->heads.k, norm, T * G, D, eps) ||
           op->rope(ctx, m->heads.q, m->heads.q, cos, sin, T, Q, D, R) ||
           op->rope(ctx, m->heads.k, m->heads.k, cos, sin, T, G, D, R) ||
           op->linear(ctx, m->heads.index_q, m->a, &m->w[3], NULL, T) ||
           op->linear(ctx, m->heads.index_k, m->a, &m->w[4], NULL, T) ||
           op->rms_norm(ctx, m->heads.index_q, m->heads.index_q, norm, T * G, X, eps) ||
           op->rms_norm(ctx, m->heads.index_k, m->heads.index_k, norm, T, X, eps) ||
           op->rope(ctx, m->heads.index_q, m->heads.index_q, cos, sin, T, G, X, R) ||
           op->rope(ctx, m->heads.index_k, m->heads.index_k, cos, sin, T, 1, X, R) || run_attend_blocks(m) ||
           op->linear(ctx, m->b, m->heads.o, &m->w[5], NULL, T);
}

static void watch(void *self, const char *part, int64_t layer, int64_t layers)
{
    struct bench *m = self;
    (void)part, (void)layer, (void)layers;
    m->anonymous = m3_max(m->anonymous, m3_cli_anonymous_bytes());
}

/* A picture of 48 x 48 patches, and a prompt that consists only of its tokens. */
static void prepare_vision(struct bench *m)
{
    static int64_t grid[1][3] = { { 1, 48, 48 } };
    struct m3_error notes = { 0 };
    if (!m->folder) m3_fail(m->error, M3_USAGE, "bench vision: got no model, expected --model DIR");
    else m3_model_open(&m->model, m->folder, &notes, m->error);
    m3_error_free(&notes);
    if (!m->model) return;
    const struct m3_vision_config *v = &m->model->config.vision;
    if (!v->present || v->image_token < 0 || 48 % v->spatial_merge) {
        m3_fail(m->error, M3_USAGE,
                "bench vision: got a model without vision part, image_token_index or a merge size "
                "that divides 48");
        return;
    }
    double P = 48 * 48, merge = (double)(v->spatial_merge * v->spatial_merge), M = P / merge;
    double W = (double)v->W, L = (double)v->intermediate, Y = (double)v->projector_hidden;
    double C = (double)m3_config_size(&m->model->config, 'C'), out = (double)m->model->config.H;
    double layer = P * (4 * W * W + 2 * W * L) + 2 * P * P * W;

    m->T = (int64_t)M;
    m->pictures = (struct m3_pictures){
        .images = 1, .grid = grid, .P = (int64_t)P, .image_P = (int64_t)P, .pixels = numbers((int64_t)(P * C), "pixels")
    };
    m->positions = need((size_t)m->T, sizeof *m->positions);
    m->ids = need((size_t)m->T, sizeof *m->ids);
    for (int64_t t = 0; t < m->T; t++) {
        m->positions[t] = t;
        m->ids[t] = (int32_t)v->image_token;
    }
    m->operations = 2 * (P * C * W + (double)v->layers * layer + P * (W + out) * Y + M * (merge + 1) * out * Y);
}

static int run_vision(struct bench *m)
{
    if (m->error->count) return (int)m->error->status;
    /* clang-format off */
    const struct m3_request request = { .ids = m->ids, .positions = m->positions, .T = m->T, .pictures = &m->pictures,
                                        .end_layer = m->model->config.layers, .threads = (int)m->threads,
                                        .semantics = &m->model->config.semantics, .progress = watch,
                                        .progress_self = m };
    /* clang-format on */
    return m3_engine_f32()->forward(m->model, &request, m->error);
}

static void linear_512(struct bench *m) { prepare_linear(m, 512, M3_BF16); }
static void linear_f32(struct bench *m) { prepare_linear(m, 512, M3_F32); }
static void linear_mxfp8(struct bench *m) { prepare_linear(m, 512, M3_F8_E4M3); }
static void linear_1(struct bench *m)
{
    prepare_linear(m, 1, M3_BF16);
    m->operations = 2.0 * H * H;
}
static void linear_4(struct bench *m) { prepare_linear(m, 4, M3_BF16); }
static void linear_8(struct bench *m) { prepare_linear(m, 8, M3_BF16); }
static void linear_64(struct bench *m) { prepare_linear(m, 64, M3_BF16); }
static void linear_ordered(struct bench *m)
{
    linear_512(m);
    m->ctx.linear = M3_LINEAR_ORDERED;
}
static void full_core(struct bench *m) { prepare_attend(m, 4096); }
static void blocks_core(struct bench *m) { prepare_attend(m, N * BLOCK); }

static const struct item {
    const char *name;
    void (*prepare)(struct bench *);
    int (*run)(struct bench *);
    int by_bytes;               /* GB/s instead of GFLOP/s */
} items[] = {
    { "sgemm", linear_f32, run_sgemm, 0 },
    { "read", prepare_read, run_read, 1 },
    { "linear", linear_512, run_linear, 0 },
    { "linear-f32", linear_f32, run_linear, 0 },
    { "linear-mxfp8", linear_mxfp8, run_linear, 0 },
    { "linear-ordered", linear_ordered, run_linear, 0 },
    { "linear-1", linear_1, run_linear, 1 },
    { "linear-4", linear_4, run_linear, 0 },
    { "linear-8", linear_8, run_linear, 0 },
    { "linear-64", linear_64, run_linear, 0 },
    { "moe", prepare_moe, run_moe, 0 },
    { "moe-1", prepare_moe_1, run_moe, 1 },
    { "decode-index", prepare_index, run_decode_index, 1 },
    { "decode-sparse", prepare_sparse, run_decode_sparse, 1 },
    { "decode-dense", prepare_dense, run_decode_dense, 1 },
    { "attention", prepare_attention, run_attention, 0 },
    { "attend-full", full_core, run_attend_full, 0 },
    { "attend-blocks", blocks_core, run_attend_blocks, 0 },
    { "vision", prepare_vision, run_vision, 0 },
};

enum { ITEMS = sizeof items / sizeof items[0] };

/* The seconds of the fastest of several runs. */
static int time_item(double *best, struct bench *m, const struct item *item, int64_t runs)
{
    *best = 1e30;
    int status = m3_ctx_init(&m->ctx, (int)m->threads, M3_LINEAR_BLAS);
    if (status) return m3_fail_memory(m->error, "a context", sizeof m->ctx);
    openblas_set_num_threads(item->run == run_sgemm ? (int)m->threads : 1);
    item->prepare(m);
    status = item->run(m);          /* warms up caches, threads and scratch; not timed */
    for (int64_t i = 0; !status && i < runs; i++) {
        double start = m3_seconds();
        status = item->run(m);
        double took = m3_seconds() - start;
        if (took < *best) *best = took;
    }
    if (status && !m->error->count)
        m3_fail(m->error, status, "bench: %s", m->ctx.failure.what ? m->ctx.failure.what : "an operator failed");
    m3_ctx_free(&m->ctx);
    m3_model_close(m->model);
    return status;
}

int m3_cli_bench_rate(double *rate, const char *name, int64_t threads, int64_t runs, struct m3_error *error)
{
    struct bench m = { .op = m3_engine_f32()->ops, .threads = threads, .error = error };
    double best;
    for (int i = 0; i < ITEMS; i++) {
        if (strcmp(items[i].name, name) != 0) continue;
        const int status = time_item(&best, &m, &items[i], runs);
        *rate = status ? 0 : m.operations / best;
        return status;
    }
    return m3_fail(error, M3_INTERNAL, "bench: got %s, expected one item", name);
}

static int measure(const struct item *item, const char *folder, int64_t keys, int64_t threads, int64_t runs,
                   struct m3_error *error)
{
    struct bench m = { .op = m3_engine_f32()->ops, .threads = threads, .keys = keys, .folder = folder, .error = error };
    struct rusage usage;
    double best;
    const int status = time_item(&best, &m, item, runs);
    if (status) return status;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"what\":\"%s\",\"seconds\":%.6f,\"%s\":%.1f,\"peak_bytes\":%lld,\"threads\":%lld,\"runs\":%lld}\n",
           item->name, best, item->by_bytes ? "gb_per_s" : "gflops", m.operations / best / 1e9,
           (long long)(m.anonymous ? m.anonymous : usage.ru_maxrss * 1024), (long long)threads, (long long)runs);
    return M3_OK;
}

int m3_cli_bench(int argc, char **argv)
{
    enum { OPT_THREADS = 256, OPT_RUNS, OPT_MODEL, OPT_KEYS, OPT_HELP };
    static const struct option options[] = { { "threads", required_argument, NULL, OPT_THREADS },
                                             { "runs", required_argument, NULL, OPT_RUNS },
                                             { "model", required_argument, NULL, OPT_MODEL },
                                             { "keys", required_argument, NULL, OPT_KEYS },
                                             { "help", no_argument, NULL, OPT_HELP },
                                             { NULL, 0, NULL, 0 } };
    struct m3_error notes = { 0 }, error = { 0 };
    int64_t threads = omp_get_num_procs(), runs = 5, keys = 65536;
    const char *folder = NULL;
    int option, status = M3_OK;

    optind = 0;
    opterr = 0;
    while (!status && (option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        switch (option) {
        case OPT_HELP: return m3_cli_end(m3_cli_help(help, &error), &notes, &error);
        case OPT_THREADS: status = m3_cli_number(&threads, "--threads", optarg, 1, 1024, &error); break;
        case OPT_MODEL: folder = optarg; break;
        case OPT_KEYS: status = m3_cli_number(&keys, "--keys", optarg, 1, 1 << 24, &error); break;
        case OPT_RUNS: status = m3_cli_number(&runs, "--runs", optarg, 1, 1000, &error); break;
        default: status = m3_cli_bad_option(option, argv, "bench", &error);
        }
    }
    const struct item *item = NULL;
    for (int i = 0; argc - optind == 1 && i < ITEMS; i++)
        if (strcmp(items[i].name, argv[optind]) == 0) item = &items[i];
    if (!status && !item)
        status = m3_fail(&error, M3_USAGE, "bench: got %s, expected one item (m3ref bench --help)",
                         argc - optind == 1 ? argv[optind] : "none or several");
    if (!status) status = measure(item, folder, keys, threads, runs, &error);
    return m3_cli_end(status, &notes, &error);
}
