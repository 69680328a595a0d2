/* A plug-in that replaces every operator by its plain definition in this program: a right one for whoever watches.
 * Where the program's own entry is the plain one, a function of the plug-in calls it. */
#include <string.h>

#include "model/engine.h"
#include "ops/ops.h"

static const struct m3_ops *plain(void)
{
    return (sizeof(real) == sizeof(double) ? m3_engine_f64() : m3_engine_f32())->plain;
}

static int embed(struct m3_ctx *ctx, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T)
{
    return plain()->embed(ctx, y, ids, w, T);
}

static int rms_norm(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return plain()->rms_norm(ctx, y, x, w, T, H, eps);
}

static int rms_norm_plain(struct m3_ctx *ctx, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps)
{
    return plain()->rms_norm_plain(ctx, y, x, w, T, H, eps);
}

static int rope_table(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R, double theta,
                      enum m3_rope_angle angle)
{
    return plain()->rope_table(ctx, cos, sin, pos, T, R, theta, angle);
}

static int rope(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t T, int64_t heads,
                int64_t D, int64_t R)
{
    return plain()->rope(ctx, y, x, cos, sin, T, heads, D, R);
}

static int select_blocks(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    return plain()->select_blocks(ctx, ids, m, d);
}

static int sigmoid(struct m3_ctx *ctx, real *y, const real *x, int64_t n) { return plain()->sigmoid(ctx, y, x, n); }

static int route(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                 int64_t K)
{
    return plain()->route(ctx, ids, p, s, bias, T, E, K);
}

static int add(struct m3_ctx *ctx, real *y, const real *a, const real *b, int64_t n)
{
    return plain()->add(ctx, y, a, b, n);
}

static int rope_table_3d(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R,
                         double theta, enum m3_rope_angle angle)
{
    return plain()->rope_table_3d(ctx, cos, sin, places, P, R, theta, angle);
}

static int scatter(struct m3_ctx *ctx, real *y, const real *x, const int32_t *ids, const real *f, int32_t id, int64_t T,
                   int64_t M, int64_t H)
{
    return plain()->scatter(ctx, y, x, ids, f, id, T, M, H);
}

static int jitter(struct m3_ctx *ctx, real *y, const real *x, int64_t T, int64_t H, int64_t p0, double eps,
                  uint64_t key)
{
    return plain()->jitter(ctx, y, x, T, H, p0, eps, key);
}

const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };

int m3_plugin(struct m3_ops *ops)
{
    memcpy(ops, plain(), sizeof *ops);
    ops->embed = embed;
    ops->rms_norm = rms_norm;
    ops->rms_norm_plain = rms_norm_plain;
    ops->rope_table = rope_table;
    ops->rope = rope;
    ops->select_blocks = select_blocks;
    ops->sigmoid = sigmoid;
    ops->route = route;
    ops->add = add;
    ops->rope_table_3d = rope_table_3d;
    ops->scatter = scatter;
    ops->jitter = jitter;
    return M3_OK;
}
