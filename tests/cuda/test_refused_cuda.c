/* What no kernel computes is refused by name, and nothing is written. */
#include "model/engine.h"
#include "ops/ops.h"

#include <check.h>

const struct m3_engine *m3_engine_cuda(void);
int m3_ctx_init_cuda(struct m3_ctx *ctx, int threads, enum m3_linear linear);
void m3_ctx_free_cuda(struct m3_ctx *ctx);

enum { N = 32, UNTOUCHED = 7 };

static const unsigned char codes[N * N * 8], scales[N * N * 4]; /* enough for every dtype */

static struct m3_weight weight(enum m3_dtype dtype, enum m3_scaling scaling)
{
    return (struct m3_weight){
        .data = codes, .scales = scales, .dtype = dtype, .scaling = scaling, .rows = N, .cols = N, .group = 16
    };
}

static void check_refused(struct m3_ctx *ctx, int status, const char *words, const float *y)
{
    ck_assert_int_eq(status, M3_UNAVAILABLE);
    ck_assert_str_eq(ctx->failure.what, words);
    for (int i = 0; i < N; i++) ck_assert_float_eq(y[i], UNTOUCHED);
}

/* Claim: weights of F64, F16 and 4 bits, and floats with scales, name themselves; BF16 and E4M3 are computed. */
TEST(stored_types)
{
    static const struct {
        enum m3_dtype dtype;
        enum m3_scaling scaling;
        const char *words;
    } all[] = {
        { M3_F64, M3_UNSCALED, "linear: no kernel computes weights of F64: run without --ops cuda" },
        { M3_F16, M3_UNSCALED, "linear: no kernel computes weights of F16: run without --ops cuda" },
        { M3_F4_E2M1, M3_SCALE_MX32, "linear: no kernel computes weights in codes of 4 bits: run without --ops cuda" },
        { M3_I4, M3_SCALE_INT4, "linear: no kernel computes weights in codes of 4 bits: run without --ops cuda" },
        { M3_BF16, M3_UNSCALED, NULL },
        { M3_F8_E4M3, M3_SCALE_MX32, NULL },
    };
    const struct m3_ops *ops = m3_engine_cuda()->ops;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct m3_weight w = weight(all[i].dtype, all[i].scaling);
        const float x[N] = { 1 };
        float y[N];
        struct m3_ctx ctx;
        ck_assert_int_eq(m3_ctx_init_cuda(&ctx, 1, M3_LINEAR_BLAS), M3_OK);
        for (int k = 0; k < N; k++) y[k] = UNTOUCHED;
        const int status = ops->linear(&ctx, y, x, &w, NULL, 1);
        if (all[i].words) check_refused(&ctx, status, all[i].words, y);
        else ck_assert_int_eq(status, M3_OK);
        m3_ctx_free_cuda(&ctx);
    }
}

/* Claim: experts of two stored types are refused, whichever matrix differs; if nobody chose such an expert they are not. */
TEST(mixed_experts)
{
    const struct m3_ops *ops = m3_engine_cuda()->ops;
    const struct m3_activation act = { 1, 1.702f, 7, M3_GATE_CLAMP_UPPER };
    const float x[N] = { 1 }, p[2] = { 0.5f, 0.5f };
    for (int odd = 0; odd < 3; odd++)
        for (int chosen = 1; chosen < 3; chosen++) {
            struct m3_expert experts[3];
            const int32_t ids[2] = { 0, chosen };
            float y[N];
            struct m3_ctx ctx;
            for (int e = 0; e < 3; e++) experts[e].w1 = experts[e].w3 = experts[e].w2 = weight(M3_BF16, M3_UNSCALED);
            *(odd == 0 ? &experts[2].w1 : odd == 1 ? &experts[2].w3 : &experts[2].w2) = weight(M3_F32, M3_UNSCALED);
            for (int k = 0; k < N; k++) y[k] = UNTOUCHED;
            ck_assert_int_eq(m3_ctx_init_cuda(&ctx, 1, M3_LINEAR_BLAS), M3_OK);
            const int status = ops->experts(&ctx, y, NULL, x, ids, p, experts, &act, 1, 3, 2, 1);
            if (chosen == 2)
                check_refused(&ctx, status,
                              "experts: no kernel computes experts of several stored types: run without --ops cuda", y);
            else ck_assert_int_eq(status, M3_OK);
            m3_ctx_free_cuda(&ctx);
        }
}
