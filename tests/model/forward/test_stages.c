/* A stage whose operator fails ends the pass: nothing is computed or shown after it, and the message names its tap,
 * with layer, row and group. */
#include "files.h"

#include "base/real.h"
#include "model/engine.h"
#include "model/model.h"
#include "ops/ops.h"

TIMEOUT(60);

enum { T = 300 };

enum failing { LINEAR, ROPE_TABLE, ROPE, ATTEND_FULL, SELECT, ROUTE, ADD };

/* The `call`th call of an operator fails, counted in the order of SPEC.md 6. Layers of the tiny model: 0 and 1 full and
 * dense, with 7 linear, 2 to 4 sparse and of experts, with 10; 256 rows of block scores and 64 of logits at a time. */
static const struct {
    enum failing which;
    int call, status;               /* 99: a status of its own, without a place */
    const char *words, *last;       /* the last tap that is shown */
} cases[] = {
    { ROPE_TABLE, 1, M3_WRONG, "layers.0.q_rope, token 7, group 1: broken", "fused" },
    { LINEAR, 3, M3_WRONG, "layers.0.v_proj, token 7, group 1: broken", "layers.0.k_proj" },
    { ROPE, 4, M3_WRONG, "layers.1.k_rope, token 7, group 1: broken", "layers.1.q_rope" },
    { ATTEND_FULL, 2, M3_IO, "layers.1.attn_lse, token 7, group 1: broken", "layers.1.k_rope" },
    { ATTEND_FULL, 2, 99, "layers.1.attn_lse: the operator failed", "layers.1.k_rope" },
    { SELECT, 2, M3_WRONG, "layers.2.index.blocks, token 263, group 1: broken", "layers.2.index.block_scores" },
    { ROUTE, 2, M3_WRONG, "layers.3.moe.experts, token 7, group 1: broken", "layers.3.moe.router_scores" },
    { LINEAR, 14 + 8, M3_WRONG, "layers.2.moe.shared, token 7, group 1: broken", "layers.2.moe.routed" },
    { ADD, 2 + 2 + 3 + 2, M3_WRONG, "layers.3.mlp, token 7, group 1: broken", "layers.3.moe.shared" },
    { LINEAR, 14 + 30 + 2, M3_WRONG, "logits, token 71, group 1: broken", "logits" },
};

static const struct m3_ops *ops;
static enum failing which;
static int calls_left, status, calls_after;
static int64_t shown[M3_TAPS][8];       /* rows, of a tap in each layer; 0: outside layers */
static char last[96];

static int fails(struct m3_ctx *ctx, enum failing operator)
{
    if (calls_left == 0) calls_after++;
    if (operator != which || calls_left == 0 || --calls_left > 0) return 0;
    return status == 99 ? status : m3_fail_at(ctx, status, "broken", 7, 1, -1);
}

static int linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t rows)
{
    int failed = fails(ctx, LINEAR);
    return failed ? failed : ops->linear(ctx, y, x, w, bias, rows);
}

static int rope_table(struct m3_ctx *ctx, real *cos, real *sin, const int64_t *pos, int64_t rows, int64_t R,
                      double theta, enum m3_rope_angle angle)
{
    int failed = fails(ctx, ROPE_TABLE);
    return failed ? failed : ops->rope_table(ctx, cos, sin, pos, rows, R, theta, angle);
}

static int rope(struct m3_ctx *ctx, real *y, const real *x, const real *cos, const real *sin, int64_t rows,
                int64_t heads, int64_t D, int64_t R)
{
    int failed = fails(ctx, ROPE);
    return failed ? failed : ops->rope(ctx, y, x, cos, sin, rows, heads, D, R);
}

static int attend_full(struct m3_ctx *ctx, real *o, real *lse, const real *q, const real *k, const real *v,
                       const struct m3_attend *d)
{
    int failed = fails(ctx, ATTEND_FULL);
    return failed ? failed : ops->attend_full(ctx, o, lse, q, k, v, d);
}

static int select_blocks(struct m3_ctx *ctx, int32_t *ids, const real *m, const struct m3_index *d)
{
    int failed = fails(ctx, SELECT);
    return failed ? failed : ops->select_blocks(ctx, ids, m, d);
}

static int route(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t rows, int64_t E,
                 int64_t K)
{
    int failed = fails(ctx, ROUTE);
    return failed ? failed : ops->route(ctx, ids, p, s, bias, rows, E, K);
}

static int add(struct m3_ctx *ctx, real *y, const real *a, const real *b, int64_t n)
{
    int failed = fails(ctx, ADD);
    return failed ? failed : ops->add(ctx, y, a, b, n);
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    (void)self, (void)tap, (void)layer;
    return 1;
}

static int write_tap(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                     struct m3_error *error)
{
    (void)self, (void)error;
    ck_assert_ptr_nonnull(data);
    ck_assert_int_eq(shown[tap][1 + layer], row);
    shown[tap][1 + layer] += rows;
    return m3_tap_name(last, sizeof last, tap, layer);
}

static int replace(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                   struct m3_error *error)
{
    (void)self, (void)tap, (void)layer, (void)data, (void)row, (void)rows, (void)error;
    calls_after += calls_left == 0;
    return 0;
}

/* Goal: stages with a tap, without one, with two, in place, with a stored vector, and in pieces, whose rows count from
 *       the first piece.
 * Seen to fail with: a stage that continues after a failure; the row of a piece; a stage without a tap shown; a tap
 * forced although its operator failed; a status out of range passed on. */
LOOP_TEST(a_failing_operator_ends_the_pass, sizeof cases / sizeof *cases)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_model *model;
    int32_t ids[T];
    int64_t positions[T];
    ck_assert_int_eq(m3_model_open(&model, "golden/tiny/model", &notes, &error), M3_OK);
    for (int t = 0; t < T; t++) ids[t] = t * 7 % (int)model->config.V, positions[t] = t;
    ops = m3_engine_f32()->ops;
    struct m3_ops broken = *ops;
    broken.linear = linear, broken.rope_table = rope_table, broken.rope = rope, broken.attend_full = attend_full;
    broken.select_blocks = select_blocks, broken.route = route, broken.add = add;
    which = cases[_i].which, calls_left = cases[_i].call, status = cases[_i].status;

    const struct m3_replacement replacement = { .ops = &broken };
    const struct m3_sink sink = { .wants = wants, .write = write_tap };
    const struct m3_force force = { .replace = replace };
    const struct m3_request request = { .ids = ids,
                                        .positions = positions,
                                        .T = T,
                                        .threads = 2,
                                        .sink = &sink,
                                        .end_layer = model->config.layers,
                                        .replacement = &replacement,
                                        .force = &force,
                                        .semantics = &model->config.semantics };
    ck_assert_int_eq(m3_engine_f32()->forward(model, &request, &error), status == 99 ? M3_INTERNAL : status);
    ck_assert_int_eq(error.count, 1);
    ck_assert_msg(strstr(error.text, cases[_i].words) != NULL, "%s", error.text);
    ck_assert_str_eq(last, cases[_i].last);
    ck_assert_int_eq(calls_after, 0);
    m3_model_close(model);
    m3_error_free(&notes);
    m3_error_free(&error);
}
