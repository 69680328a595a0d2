/* The float engine with the CUDA operators instead of the reference's, and contexts that hold their state. The
 * operator tests are compiled against it under other names (Makefile), so kernels meet the same twins. */
#include "model/engine.h"
#include "ops/ops.h"

#include <check.h>

const struct m3_engine *m3_engine_cuda(void);
int m3_ctx_init_cuda(struct m3_ctx *ctx, int threads, enum m3_linear linear);
void m3_ctx_free_cuda(struct m3_ctx *ctx);

const struct m3_engine *m3_engine_cuda(void)
{
    static struct m3_ops ops;
    static struct m3_engine engine;
    engine = *m3_engine_f32();
    ops = *engine.ops;
    ck_assert_int_eq(m3_plugin(&ops), M3_OK);
    engine.ops = &ops;
    return &engine;
}

int m3_ctx_init_cuda(struct m3_ctx *ctx, int threads, enum m3_linear linear)
{
    struct m3_error error = { 0 };
    int status = m3_ctx_init(ctx, threads, linear);
    ck_assert_msg(m3_plugin_start(&ctx->plugin, "", &error) == M3_OK, "%s", error.text);
    return status;
}

void m3_ctx_free_cuda(struct m3_ctx *ctx)
{
    m3_plugin_stop(ctx->plugin);
    m3_ctx_free(ctx);
}
