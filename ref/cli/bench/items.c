/* What can be measured: each item prepares its operands, then runs once. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "cli/bench/work.h"
#include "cli/cli.h"

/* E4M3 has the scales of MXFP8, ones. */
static struct m3_weight matrix(struct bench *m, int64_t rows, int64_t cols, enum m3_dtype dtype)
{
    size_t bytes = (size_t)(rows * cols) * m3_dtype_bytes(dtype);
    unsigned char *data = m3_bench_need(m, bytes, 1), *scales = NULL;
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
    if (dtype == M3_F8_E4M3)
        scales = memset(m3_bench_need(m, (size_t)(rows * cols / 32), 1), 120, (size_t)(rows * cols / 32));
    return (struct m3_weight){ .data = data,
                               .scales = scales,
                               .dtype = dtype,
                               .rows = rows,
                               .cols = cols,
                               .scaling = scales ? M3_SCALE_MX32 : M3_UNSCALED };
}

static void prepare_linear(struct bench *m, int64_t T, enum m3_dtype dtype)
{
    m->T = T;
    m->w[0] = matrix(m, H, H, dtype);
    m->a = m3_bench_numbers(m, T * H, "x");
    m->b = m3_bench_need(m, (size_t)(T * H), sizeof(real));
    m->operations = 2.0 * (double)T * H * H;
}

static int run_linear(struct bench *m) { return m->op->linear(&m->ctx, m->b, m->a, &m->w[0], NULL, m->T); }

static int run_sgemm(struct bench *m)
{
    m3_bench_sgemm(m->b, m->a, m->w[0].data, m->T, H, m->threads);
    return M3_OK;
}

static void prepare_read(struct bench *m)
{
    m->T = 250000000;
    m->a = m3_bench_need(m, (size_t)m->T, sizeof(real));
    memset(m->a, 0, (size_t)m->T * sizeof(real));
    m->b = m3_bench_need(m, 64, sizeof(real));
    m->operations = 4.0 * (double)m->T;
}

static int run_read(struct bench *m)
{
    const uint64_t sum = m3_bench_read(m->a, m->T, m->threads);
    memcpy(m->b, &sum, sizeof sum);
    return M3_OK;
}

static void prepare_copy(struct bench *m)
{
    m->T = 60000000;
    m->a = m3_bench_numbers(m, m->T, "x");
    m->b = m3_bench_numbers(m, m->T, "y");
    m->operations = 8.0 * (double)m->T;
}

static int run_copy(struct bench *m)
{
    m3_bench_copy(m->b, m->a, m->T, m->threads);
    return M3_OK;
}

static void prepare_experts(struct bench *m, int64_t T)
{
    m->T = T;
    m->a = m3_bench_numbers(m, m->T * H, "x");
    m->b = m3_bench_need(m, (size_t)(m->T * H), sizeof(real));
    m->c = m3_bench_need(m, (size_t)(m->T * F), sizeof(real));
    m->d = m3_bench_need(m, (size_t)(m->T * F), sizeof(real));
    m->e = m3_bench_need(m, (size_t)(m->T * H), sizeof(real));
    m->ids = m3_bench_need(m, (size_t)(m->T * K), sizeof(int32_t));
    m->w[0] = matrix(m, EXPERTS, H, M3_F32);
    m->w[1] = matrix(m, F, H, M3_BF16);
    m->w[2] = matrix(m, F, H, M3_BF16);
    m->w[3] = matrix(m, H, F, M3_BF16);
    for (int e = 0; e < EXPERTS; e++)
        m->experts[e] =
            (struct m3_expert){ matrix(m, F, H, M3_BF16), matrix(m, F, H, M3_BF16), matrix(m, H, F, M3_BF16) };
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
    m->heads = (struct heads){ .index_q = m3_bench_numbers(m, G * X, "index_q"),
                               .index_k = m3_bench_numbers(m, S * X, "index_k"),
                               .scores = m3_bench_need(m, (size_t)(G * ((S + BLOCK - 1) / BLOCK)), sizeof(real)),
                               .blocks = m3_bench_need(m, (size_t)(G * N), sizeof(int32_t)) };
    m->operations = (double)sizeof(real) * (double)(S * X);
}

/* And the operands of attention. */
static void prepare_keys(struct bench *m)
{
    int64_t S = m->T = m->keys;
    m->heads.q = m3_bench_numbers(m, Q * D, "q");
    m->heads.k = m3_bench_numbers(m, S * G * D, "k");
    m->heads.v = m3_bench_numbers(m, S * G * D, "v");
    m->heads.o = m3_bench_need(m, (size_t)(Q * D), sizeof(real));
    m->heads.lse = m3_bench_need(m, Q, sizeof(real));
    for (int64_t i = 0; i < Q * D; i++) m->heads.q[i] /= 16;
}

static int run_decode_index(struct bench *m)
{
    static const struct m3_semantics semantics = { .local_blocks = 1 };
    const struct m3_index d = { .T = 1,
                                .p0 = m->T - 1,
                                .G = G,
                                .X = X,
                                .block = BLOCK,
                                .B = (m->T + BLOCK - 1) / BLOCK,
                                .N = N,
                                .semantics = &semantics };
    return m->op->block_scores(&m->ctx, m->heads.scores, m->heads.index_q, m->heads.index_k, &d) ||
           m->op->select_blocks(&m->ctx, m->heads.blocks, m->heads.scores, &d);
}

static int run_decode_blocks(struct bench *m)
{
    const struct m3_attend d = { .T = 1, .p0 = m->T - 1, .Q = Q, .G = G, .D = D, .block = BLOCK, .N = N };
    return m->op->attend_blocks(&m->ctx, m->heads.o, m->heads.lse, m->heads.q, m->heads.k, m->heads.v, m->heads.blocks,
                                &d);
}

static int run_decode_sparse(struct bench *m) { return run_decode_index(m) || run_decode_blocks(m); }

static int run_decode_dense(struct bench *m)
{
    const struct m3_attend d = { .T = 1, .p0 = m->T - 1, .Q = Q, .G = G, .D = D };
    return m->op->attend_full(&m->ctx, m->heads.o, m->heads.lse, m->heads.q, m->heads.k, m->heads.v, &d);
}

/* The bytes that the token has to read: all index keys, and keys and values of the blocks. */
static void prepare_sparse(struct bench *m)
{
    prepare_index(m);
    prepare_keys(m);
    m->operations += (double)sizeof(real) * 2 * G * D * (double)m3_min(m->T, N * BLOCK);
}

/* Only attention to blocks that are chosen already. */
static void prepare_chosen(struct bench *m)
{
    prepare_sparse(m);
    if (run_decode_index(m)) m3_fail(m->error, M3_INTERNAL, "bench: %s", m->ctx.failure.what);
    m->operations = 4.0 * Q * D * (double)m3_min(m->T, (N - 1) * BLOCK + (m->T - 1) % BLOCK + 1);
}

static void prepare_dense(struct bench *m)
{
    prepare_keys(m);
    m->operations = 4.0 * Q * D * (double)m->T;
}

static void prepare_heads(struct bench *m, int64_t T)
{
    m->T = T;
    m->heads.q = m3_bench_numbers(m, T * Q * D, "q");
    m->heads.k = m3_bench_numbers(m, T * G * D, "k");
    m->heads.v = m3_bench_numbers(m, T * G * D, "v");
    m->heads.index_q = m3_bench_numbers(m, T * G * X, "index_q");
    m->heads.index_k = m3_bench_numbers(m, T * X, "index_k");
    m->heads.o = m3_bench_need(m, (size_t)(T * Q * D), sizeof(real));
    m->heads.lse = m3_bench_need(m, (size_t)(T * Q), sizeof(real));
    m->heads.scores = m3_bench_need(m, (size_t)(256 * G * ((T + BLOCK - 1) / BLOCK)), sizeof(real));
    m->heads.blocks = m3_bench_need(m, (size_t)(T * G * N), sizeof(int32_t));
    for (int64_t i = 0; i < T * Q * D; i++) m->heads.q[i] /= 16;
}

/* The scores of blocks for all rows, 256 at a time, and the choice unless `only_scores`. */
static int select_all(struct bench *m, int only_scores)
{
    static const struct m3_semantics semantics = { .local_blocks = 1 };
    struct m3_index d = {
        .T = 256, .G = G, .X = X, .block = BLOCK, .B = (m->T + BLOCK - 1) / BLOCK, .N = N, .semantics = &semantics
    };
    int status = M3_OK;
    for (d.p0 = 0; !status && d.p0 < m->T; d.p0 += d.T) {
        status = m->op->block_scores(&m->ctx, m->heads.scores, m->heads.index_q + d.p0 * G * X, m->heads.index_k, &d);
        if (!status && !only_scores)
            status = m->op->select_blocks(&m->ctx, m->heads.blocks + d.p0 * G * N, m->heads.scores, &d);
    }
    return status;
}

static int run_scores(struct bench *m) { return select_all(m, 1); }

int m3_bench_attend_blocks(struct bench *m)
{
    const struct m3_attend d = { .T = m->T, .Q = Q, .G = G, .D = D, .block = BLOCK, .N = N };
    return m->op->attend_blocks(&m->ctx, m->heads.o, m->heads.lse, m->heads.q, m->heads.k, m->heads.v, m->heads.blocks,
                                &d);
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

void m3_bench_prepare_blocks(struct bench *m)
{
    prepare_attend(m, N * BLOCK);
    if (select_all(m, 0)) m3_fail(m->error, M3_INTERNAL, "bench: %s", m->ctx.failure.what);
}

static void prepare_scores(struct bench *m)
{
    prepare_heads(m, 4096);
    m->operations = 2.0 * G * X * attended(m->T, m->T);
}

static void prepare_attention(struct bench *m)
{
    prepare_attend(m, N * BLOCK);
    m->a = m3_bench_numbers(m, m->T * H, "x");
    m->b = m3_bench_need(m, (size_t)(m->T * H), sizeof(real));
    m->heads.cos = m3_bench_need(m, (size_t)(m->T * R / 2), sizeof(real));
    m->heads.sin = m3_bench_need(m, (size_t)(m->T * R / 2), sizeof(real));
    m->heads.norm = m3_bench_numbers(m, D, "norm");
    m->positions = m3_bench_need(m, (size_t)m->T, sizeof(int64_t));
    for (int64_t t = 0; t < m->T; t++) m->positions[t] = t;
    const int64_t rows[] = { Q * D, G * D, G * D, G * X, X, H }, cols[] = { H, H, H, H, H, Q * D };
    for (int i = 0; i < 6; i++) {
        m->w[i] = matrix(m, rows[i], cols[i], M3_BF16);
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
           op->rope(ctx, m->heads.index_k, m->heads.index_k, cos, sin, T, 1, X, R) || select_all(m, 0) ||
           m3_bench_attend_blocks(m) || op->linear(ctx, m->b, m->heads.o, &m->w[5], NULL, T);
}

static void watch(void *self, const char *part, int64_t layer, int64_t layers)
{
    struct bench *m = self;
    (void)part, (void)layer, (void)layers;
    m->anonymous = m3_max(m->anonymous, m3_cli_anonymous_bytes());
}

void m3_bench_open_model(struct bench *m, const char *item)
{
    struct m3_error notes = { 0 };
    if (!m->folder) m3_fail(m->error, M3_USAGE, "bench %s: got no model, expected --model DIR", item);
    else m3_model_open(&m->model, m->folder, &notes, m->error);
    m3_error_free(&notes);
}

/* A picture of 48 x 48 patches, and a prompt that consists only of its tokens. */
static void prepare_vision(struct bench *m)
{
    static int64_t grid[1][3] = { { 1, 48, 48 } };
    m3_bench_open_model(m, "vision");
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
    m->pictures = (struct m3_pictures){ .images = 1,
                                        .grid = grid,
                                        .P = (int64_t)P,
                                        .image_P = (int64_t)P,
                                        .pixels = m3_bench_numbers(m, (int64_t)(P * C), "pixels") };
    m->positions = m3_bench_need(m, (size_t)m->T, sizeof *m->positions);
    m->ids = m3_bench_need(m, (size_t)m->T, sizeof *m->ids);
    for (int64_t t = 0; t < m->T; t++) {
        m->positions[t] = t;
        m->ids[t] = (int32_t)v->image_token;
    }
    m->operations = 2 * (P * C * W + (double)v->layers * layer + P * (W + out) * Y + M * (merge + 1) * out * Y);
}

static int run_vision(struct bench *m)
{
    if (m->error->count) return (int)m->error->status;
    const struct m3_request request = { .ids = m->ids,
                                        .positions = m->positions,
                                        .T = m->T,
                                        .pictures = &m->pictures,
                                        .end_layer = m->model->config.layers,
                                        .threads = (int)m->threads,
                                        .semantics = &m->model->config.semantics,
                                        .progress = { watch, m } };
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
static void linear_mxfp8_1(struct bench *m)
{
    prepare_linear(m, 1, M3_F8_E4M3);
    m->operations = 1.0 * H * H + H * H / 32.0;
}
static void linear_fp8_1(struct bench *m)
{
    linear_mxfp8_1(m);
    float *scales = m3_bench_need(m, H / 128 * H / 128, sizeof *scales);
    for (int i = 0; i < H / 128 * H / 128; i++) scales[i] = 0.0078125f;
    m->w[0].scaling = M3_SCALE_128X128;
    m->w[0].scales = scales;
    m->operations = 1.0 * H * H;
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

/* Rows of hidden states, and what the elementwise operators need besides; `arrays` of them are read or written. */
static void prepare_rows(struct bench *m, int arrays)
{
    m->T = 2048;
    m->a = m3_bench_numbers(m, m->T * H, "x");
    m->b = m3_bench_need(m, (size_t)(m->T * H), sizeof(real));
    m->c = m3_bench_numbers(m, m->T * H, "up");
    m->d = m3_bench_numbers(m, H, "bias");
    m->heads.cos = m3_bench_numbers(m, m->T * R / 2, "cos");
    m->heads.sin = m3_bench_numbers(m, m->T * R / 2, "sin");
    m->operations = (double)sizeof(real) * arrays * (double)(m->T * H);
}
static void two_arrays(struct bench *m) { prepare_rows(m, 2); }
static void three_arrays(struct bench *m) { prepare_rows(m, 3); }
static int run_norm(struct bench *m) { return m->op->rms_norm(&m->ctx, m->b, m->a, m->c, m->T, H, (real)1e-6); }
static int run_head_norm(struct bench *m)
{
    return m->op->rms_norm(&m->ctx, m->b, m->a, m->c, m->T * (H / D), D, (real)1e-6);
}
static int run_layer_norm(struct bench *m)
{
    return m->op->layer_norm(&m->ctx, m->b, m->a, m->c, m->d, m->T, H, (real)1e-5);
}
static int run_rope(struct bench *m)
{
    return m->op->rope(&m->ctx, m->b, m->a, m->heads.cos, m->heads.sin, m->T, H / D, D, R);
}
static int run_swiglu(struct bench *m)
{
    const struct m3_activation act = { 1, (real)1.702, 7, M3_GATE_CLAMP_UPPER };
    return m->op->swiglu_oai(&m->ctx, m->b, m->a, m->c, m->T, H, &act);
}
static int run_gelu(struct bench *m) { return m->op->gelu(&m->ctx, m->b, m->a, m->T * H); }

/* Goals: shares of the limit. The limit of a gradient is the forward pass: a third of its rate is three times its
 * time. */
static const struct item items[] = {
    { "sgemm", linear_f32, run_sgemm, 0, NONE, 0, NULL },
    { "read", prepare_read, run_read, 1, NONE, 0, NULL },
    { "copy", prepare_copy, run_copy, 1, NONE, 0, NULL },
    { "linear", linear_512, run_linear, 0, SGEMM, 0.9, NULL },
    { "linear-f32", linear_f32, run_linear, 0, SGEMM, 0.9, NULL },
    { "linear-mxfp8", linear_mxfp8, run_linear, 0, SGEMM, 0.8, NULL },
    { "linear-ordered", linear_ordered, run_linear, 0, SGEMM, 0, NULL },
    { "linear-64", linear_64, run_linear, 0, SGEMM, 0.75, NULL },
    { "linear-8", linear_8, run_linear, 0, SGEMM, 0.65, NULL },
    { "linear-4", linear_4, run_linear, 0, SGEMM, 0, NULL },
    { "linear-1", linear_1, run_linear, 1, READ, 0.8, NULL },
    { "linear-mxfp8-1", linear_mxfp8_1, run_linear, 1, READ, 0.5, NULL },
    { "linear-fp8-1", linear_fp8_1, run_linear, 1, READ, 0.5, NULL },
    { "moe", prepare_moe, run_moe, 0, SGEMM, 0.8, NULL },
    { "moe-1", prepare_moe_1, run_moe, 1, READ, 0.7, NULL },
    { "decode-index", prepare_index, run_decode_index, 1, READ, 0.8, NULL },
    { "decode-sparse", prepare_sparse, run_decode_sparse, 1, READ, 0, NULL },
    { "decode-blocks", prepare_chosen, run_decode_blocks, 0, SGEMM, 0.5, NULL },
    { "decode-dense", prepare_dense, run_decode_dense, 0, SGEMM, 0.5, NULL },
    { "attention", prepare_attention, run_attention, 0, SGEMM, 0, NULL },
    { "attend-full", full_core, run_attend_full, 0, SGEMM, 0.6, NULL },
    { "attend-blocks", m3_bench_prepare_blocks, m3_bench_attend_blocks, 0, SGEMM, 0.6, NULL },
    { "scores", prepare_scores, run_scores, 0, SGEMM, 0.6, NULL },
    { "norm", two_arrays, run_norm, 1, COPY, 0.7, NULL },
    { "head-norm", two_arrays, run_head_norm, 1, COPY, 0.7, NULL },
    { "layer-norm", two_arrays, run_layer_norm, 1, COPY, 0.7, NULL },
    { "rope", two_arrays, run_rope, 1, COPY, 0.7, NULL },
    { "swiglu", three_arrays, run_swiglu, 1, COPY, 0.7, NULL },
    { "gelu", two_arrays, run_gelu, 1, COPY, 0.7, NULL },
    { "vision", prepare_vision, run_vision, 0, SGEMM, 0.87, NULL },
    { "attend-blocks-back", m3_bench_prepare_blocks_back, m3_bench_blocks_back, 0, FORWARD, 1 / 3.0,
      m3_bench_attend_blocks },
    { "grad", m3_bench_prepare_grad, m3_bench_grad, 0, FORWARD, 1 / 4.5, m3_bench_pass },
};

enum { ITEMS = sizeof items / sizeof items[0] };

const struct item *m3_bench_item(const char *name)
{
    for (int i = 0; i < ITEMS; i++)
        if (strcmp(items[i].name, name) == 0) return &items[i];
    return NULL;
}
