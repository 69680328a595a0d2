#include "model/forward/stages.h"

#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "model/divided/part.h"
#include "model/graph/record.h"

/* Has the pass failed, or does this rank have no rows? */
static int idle(const struct m3_pass *f) { return f->status || f->rows == 0; }

/* While a recorder notes the pass, that is all that a stage does. Parts of what a step without a tap writes are not read. */
static int recorded(struct m3_pass *f, struct m3_recorded step, int stage)
{
    const enum m3_tap tap = m3_pass_tap(stage);
    const size_t number = m3_tap_table[tap].kind == M3_KIND_REALS ? sizeof(real) : sizeof(int32_t);
    if (!f->request->recorder) return 0;
    step.tap = tap;
    step.is_shown = stage < M3_TAPS;
    const int64_t width = tap == M3_TAP_INDEX_BLOCK_SCORES ? 1 : m3_pass_width(f, tap); /* of blocks nothing but all */
    step.rows = f->rows;
    step.bytes = step.is_shown ? (size_t)(f->rows * width) * number : 1;
    if (!f->status) f->status = m3_record(f->request->recorder, f->layer, &step, f->error);
    return 1;
}

/* An operator that needs to know which rows follow each other is called once for each run of rows. Moves a failure from
 * a row of the run to one of this process. */
static int in_run(struct m3_pass *f, int64_t at, int status)
{
    if (status && f->ctx.failure.row >= 0) f->ctx.failure.row += at;
    return status;
}

void show(struct m3_pass *f, int tap, void *data)
{
    if (!f->request->recorder) m3_pass_done(f, tap, data, M3_OK);
    else if (!f->status) f->status = m3_record_shown(f->request->recorder, f->layer, m3_pass_tap(tap), data, f->error);
}

real *expanded(struct m3_pass *f, const struct m3_weight *w)
{
    real *vector = m3_scratch_take(&f->ctx, w->cols, sizeof *vector);
    if (!vector) return NULL;
    if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)vector, w, 0, 0, w->cols);
    else m3_expand_f32((float *)(void *)vector, w, 0, 0, w->cols);
    return vector;
}

/* How many values the current rows of a tap hold. */
static int64_t count(const struct m3_pass *f, int tap) { return f->rows * m3_pass_width(f, m3_pass_tap(tap)); }

void embed(struct m3_pass *f, int tap, real *y, const int32_t *ids)
{
    if (recorded(f, (struct m3_recorded){ M3_OP_EMBED, .y = y, .w = { &f->model->embed } }, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, y, f->ops.embed(&f->ctx, y, ids, &f->model->embed, f->rows));
}

static int64_t count_id(const int32_t *ids, int64_t n, int64_t id)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += ids[i] == id;
    return count;
}

void scatter(struct m3_pass *f, int tap, real *y, const real *x, const real *features, int64_t id, int64_t M)
{
    const int32_t *ids = f->request->ids;
    const int64_t H = f->config->H;
    int status = M3_OK;
    if (recorded(f, (struct m3_recorded){ M3_OP_SCATTER, .y = y, .in = { x, features } }, tap) || idle(f)) return;
    for (int64_t at = 0, n; !status && at < f->rows; at += n) {
        n = m3_rows_run(&f->own, at, f->rows);
        const int64_t before = f->share ? count_id(m3_share_all_ids(f), m3_rows_row(&f->own, at), id) : 0;
        const int64_t own = f->share ? m3_min(count_id(ids + at, n, id), M - before) : M;
        const real *rows = before > 0 ? features + before * H : features; /* NULL if M is 0 */
        status = f->ops.scatter(&f->ctx, y + at * H, x + at * H, ids + at, rows, (int32_t)id, n, own, H);
    }
    m3_pass_done(f, tap, y, status);
}

void rms_norm(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w)
{
    const struct m3_recorded step = { M3_OP_RMS_NORM, .y = y, .in = { x }, .w = { w } };
    if (recorded(f, step, tap) || idle(f)) return;
    const real *scale = expanded(f, w), eps = (real)f->config->eps;
    const int64_t n = count(f, tap) / w->cols;
    int status = M3_INTERNAL;
    if (scale && f->config->gemma_norm) status = f->ops.rms_norm(&f->ctx, y, x, scale, n, w->cols, eps);
    else if (scale) status = f->ops.rms_norm_plain(&f->ctx, y, x, scale, n, w->cols, eps);
    m3_pass_done(f, tap, y, status);
}

void layer_norm(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w,
                const struct m3_weight *bias)
{
    if (recorded(f, (struct m3_recorded){ M3_OP_LAYER_NORM, .y = y, .in = { x }, .w = { w, bias } }, tap)) return;
    if (idle(f)) return;
    const real *scale = expanded(f, w), *shift = expanded(f, bias), eps = (real)f->config->vision.eps;
    int status = M3_INTERNAL;
    if (scale && shift) status = f->ops.layer_norm(&f->ctx, y, x, scale, shift, f->rows, w->cols, eps);
    m3_pass_done(f, tap, y, status);
}

void linear(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w)
{
    if (recorded(f, (struct m3_recorded){ M3_OP_LINEAR, .y = y, .in = { x }, .w = { w } }, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, y, f->ops.linear(&f->ctx, y, x, w, NULL, f->rows));
}

void affine(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w, const struct m3_weight *bias)
{
    if (recorded(f, (struct m3_recorded){ M3_OP_LINEAR, .y = y, .in = { x }, .w = { w, bias } }, tap)) return;
    if (idle(f)) return;
    const real *shift = expanded(f, bias);
    m3_pass_done(f, tap, y, shift ? f->ops.linear(&f->ctx, y, x, w, shift, f->rows) : M3_INTERNAL);
}

void add(struct m3_pass *f, int tap, real *y, const real *a, const real *b)
{
    const struct m3_recorded step = { M3_OP_ADD, .y = y, .in = { a, b } };
    if (recorded(f, step, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, y, f->ops.add(&f->ctx, y, a, b, count(f, tap)));
}

void rope_table(struct m3_pass *f, int tap, struct m3_angles *angles, const int64_t *positions)
{
    if (f->request->recorder || idle(f)) return;
    m3_pass_done(f, tap, NULL,
                 f->ops.rope_table(&f->ctx, angles->cos, angles->sin, positions, f->rows, angles->R,
                                   f->config->rope_theta, f->request->semantics->rope_angle));
}

void rope_table_3d(struct m3_pass *f, int tap, struct m3_angles *angles, const int64_t *places)
{
    if (f->request->recorder || idle(f)) return;
    m3_pass_done(f, tap, NULL,
                 f->ops.rope_table_3d(&f->ctx, angles->cos, angles->sin, places, f->rows, angles->R,
                                      f->config->vision.rope_theta, f->request->semantics->rope_angle));
}

/* The last letter of a tap's shape is the width of a head. */
void rope(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_angles *angles)
{
    const char *shape = m3_tap_table[m3_pass_tap(tap)].shape;
    const int64_t D = m3_config_size(f->config, shape[strlen(shape) - 1]), heads = m3_pass_width(f, tap) / D;
    const enum m3_operator op = m3_tap_table[tap].shape[0] == 'P' ? M3_OP_ROPE_3D : M3_OP_ROPE;
    if (recorded(f, (struct m3_recorded){ op, .y = y, .in = { x } }, tap) || idle(f)) return;
    m3_pass_done(f, tap, y, f->ops.rope(&f->ctx, y, x, angles->cos, angles->sin, f->rows, heads, D, angles->R));
}

/* Of the run of rows that begins with the one at `at`. */
static struct m3_attend attention_of(const struct m3_pass *f, int64_t at)
{
    const struct m3_config *c = f->config;
    return (struct m3_attend){ .T = m3_rows_run(&f->own, at, f->rows),
                               .p0 = f->p0 + m3_rows_row(&f->own, at),
                               .seen = f->request->seen,
                               .Q = c->Q,
                               .G = c->G,
                               .D = c->D,
                               .block = c->block,
                               .N = c->N,
                               .selection = f->request->semantics->selection };
}

void attend_full(struct m3_pass *f, int lse_tap, real *lse, int tap, real *o, const real *q, const real *k,
                 const real *v)
{
    const struct m3_config *c = f->config;
    int status = M3_OK;
    if (recorded(f, (struct m3_recorded){ M3_OP_ATTEND, .y = lse, .in = { q, k, v } }, lse_tap) &&
        recorded(f, (struct m3_recorded){ M3_OP_ATTEND, .y = o, .in = { q, k, v } }, tap))
        return;
    if (idle(f)) return;
    for (int64_t at = 0; !status && at < f->rows;) {
        const struct m3_attend d = attention_of(f, at);
        const int64_t i = at * c->Q * c->D;
        status = in_run(f, at, f->ops.attend_full(&f->ctx, o + i, lse + at * c->Q, q + i, k, v, &d));
        at += d.T;
    }
    m3_pass_done(f, lse_tap, lse, status);
    show(f, tap, o);
}

/* B is that of all places, also in a piece of the rows. */
static struct m3_index index_of(const struct m3_pass *f, int64_t places)
{
    const struct m3_config *c = f->config;
    return (struct m3_index){ .T = f->rows,
                              .p0 = f->p0 + m3_rows_row(&f->own, f->row),
                              .G = c->G,
                              .X = c->X,
                              .block = c->block,
                              .B = (places + c->block - 1) / c->block,
                              .N = c->N,
                              .seen = f->request->seen,
                              .semantics = f->request->semantics };
}

void block_scores(struct m3_pass *f, int tap, real *scores, const real *q, const real *k, int64_t places)
{
    const struct m3_index d = index_of(f, places);
    if (recorded(f, (struct m3_recorded){ M3_OP_BLOCK_SCORES, .y = scores, .in = { q, k } }, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, scores, f->ops.block_scores(&f->ctx, scores, q, k, &d));
}

void select_blocks(struct m3_pass *f, int tap, int32_t *blocks, const real *scores, int64_t places)
{
    const struct m3_index d = index_of(f, places);
    if (recorded(f, (struct m3_recorded){ M3_OP_SELECT_BLOCKS, .y = blocks, .in = { scores } }, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, blocks, f->ops.select_blocks(&f->ctx, blocks, scores, &d));
}

void choose_blocks(struct m3_pass *f, int scores_tap, real *scores, int tap, int32_t *blocks, const real *q,
                   const real *k)
{
    const struct m3_config *c = f->config;
    const int64_t T = f->rows, places = f->p0 + f->T;
    for (; !f->status && f->row < T; f->row += f->rows) {
        f->rows = m3_min(M3_SCORE_ROWS, m3_rows_run(&f->own, f->row, T));
        block_scores(f, scores_tap, scores, q + f->row * c->G * c->X, k, places);
        select_blocks(f, prepares(tap), blocks + f->row * c->G * c->N, scores, places);
    }
    f->row = 0;
    f->rows = T;
    show(f, tap, blocks);
}

void attend_blocks(struct m3_pass *f, int lse_tap, real *lse, int tap, real *o, const real *q, const real *k,
                   const real *v, const int32_t *blocks)
{
    const struct m3_config *c = f->config;
    int status = M3_OK;
    if (recorded(f, (struct m3_recorded){ M3_OP_ATTEND, .y = lse, .in = { q, k, v, blocks } }, lse_tap) &&
        recorded(f, (struct m3_recorded){ M3_OP_ATTEND, .y = o, .in = { q, k, v, blocks } }, tap))
        return;
    if (idle(f)) return;
    for (int64_t at = 0; !status && at < f->rows;) {
        const struct m3_attend d = attention_of(f, at);
        const int64_t i = at * c->Q * c->D;
        status = in_run(
            f, at, f->ops.attend_blocks(&f->ctx, o + i, lse + at * c->Q, q + i, k, v, blocks + at * c->G * c->N, &d));
        at += d.T;
    }
    m3_pass_done(f, lse_tap, lse, status);
    show(f, tap, o);
}

void attend_segments(struct m3_pass *f, int tap, real *o, const real *q, const real *k, const real *v,
                     const int64_t *ends, int64_t segments)
{
    const struct m3_vision_config *c = &f->config->vision;
    if (recorded(f, (struct m3_recorded){ M3_OP_ATTEND_SEGMENTS, .y = o, .in = { q, k, v } }, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, o, f->ops.attend_segments(&f->ctx, o, q, k, v, ends, segments, c->A, c->U));
}

void gated_activation(struct m3_pass *f, int tap, real *y, const real *gate, const real *up, int64_t F)
{
    if (recorded(f, (struct m3_recorded){ M3_OP_ACTIVATION, .y = y, .in = { gate, up } }, tap) || idle(f)) return;
    m3_pass_done(f, tap, y,
                 f->act.oai ? f->ops.swiglu_oai(&f->ctx, y, gate, up, f->rows, F, &f->act)
                            : f->ops.swiglu(&f->ctx, y, gate, up, f->rows, F));
}

void gelu(struct m3_pass *f, int tap, real *y, const real *x)
{
    const struct m3_recorded step = { M3_OP_GELU, .y = y, .in = { x } };
    if (recorded(f, step, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, y, f->ops.gelu(&f->ctx, y, x, count(f, tap)));
}

void sigmoid(struct m3_pass *f, int tap, real *y, const real *x)
{
    const struct m3_recorded step = { M3_OP_SIGMOID, .y = y, .in = { x } };
    if (recorded(f, step, tap)) return;
    if (!idle(f)) m3_pass_done(f, tap, y, f->ops.sigmoid(&f->ctx, y, x, count(f, tap)));
}

/* Each layer's noise is keyed by the name of its norm. */
void jitter(struct m3_pass *f, int tap, real *y, const real *x)
{
    const struct m3_semantics *s = f->request->semantics;
    const int64_t H = f->config->H;
    char name[96];
    int status = M3_OK;
    if (recorded(f, (struct m3_recorded){ M3_OP_COPY, .y = y, .in = { x }, .is_noise = 1 }, tap)) return;
    if (idle(f) || s->jitter == 0) return;
    m3_tap_name(name, sizeof name, M3_TAP_MLP_NORM, f->layer);
    for (int64_t at = 0, n; !status && at < f->rows; at += n) {
        const int64_t p = f->p0 - f->request->shift + m3_rows_row(&f->own, at);
        n = m3_rows_run(&f->own, at, f->rows);
        status = f->ops.jitter(&f->ctx, y + at * H, x + at * H, n, H, p, s->jitter,
                               m3_draw_key((uint64_t)s->jitter_seed, name));
    }
    m3_pass_done(f, tap, y, status);
}

void route(struct m3_pass *f, int ids_tap, int32_t *ids, int p_tap, real *p, const real *scores,
           const struct m3_weight *bias)
{
    const struct m3_config *c = f->config;
    const struct m3_recorded choice = { M3_OP_SELECT_EXPERTS, .y = ids, .in = { scores }, .w = { bias } };
    if (recorded(f, choice, ids_tap) &&
        recorded(f, (struct m3_recorded){ M3_OP_ROUTE, .y = p, .in = { scores, ids } }, p_tap))
        return;
    if (idle(f)) return;
    const real *shift = expanded(f, bias);
    m3_pass_done(f, ids_tap, ids,
                 shift ? f->ops.route(&f->ctx, ids, p, scores, shift, f->rows, c->E, c->K) : M3_INTERNAL);
    show(f, p_tap, p);
}

void experts(struct m3_pass *f, int each_tap, real *each, int tap, real *routed, const real *x, const int32_t *ids,
             const real *p, const struct m3_expert *w)
{
    const struct m3_config *c = f->config;
    const struct m3_recorded outputs = { M3_OP_EXPERT, .y = each, .in = { x, ids }, .w = { w ? &w->w1 : NULL } };
    if (recorded(f, outputs, each_tap) &&
        recorded(f, (struct m3_recorded){ M3_OP_ROUTED, .y = routed, .in = { each, p } }, tap))
        return;
    if (f->share) {
        m3_share_experts(f, each_tap, each, tap, routed, x, ids, p, w);
        return;
    }
    if (!idle(f))
        m3_pass_done(
            f, each_tap, each,
            f->ops.experts(&f->ctx, routed, each, x, ids, p, w, &f->act, f->rows, c->E, c->K, (real)c->routed_scaling));
    show(f, tap, routed);
}

void read_pixels(struct m3_pass *f, int tap, real *y, const float *pixels, int64_t C)
{
    if (recorded(f, (struct m3_recorded){ M3_OP_INPUT, .y = y }, tap)) return;
    for (int64_t i = 0; i < f->rows * C; i++) y[i] = (real)pixels[i];
    show(f, tap, y);
}

void put_half(struct m3_pass *f, int tap, real *joined, const real *x, int half)
{
    const int64_t H = f->config->H;
    const struct m3_recorded step = { M3_OP_COPY, .y = joined, .in = { half ? joined : x, half ? x : NULL } };
    if (recorded(f, step, tap)) return;
    for (int64_t t = 0; !f->status && t < f->rows; t++) {
        if (x) memcpy(joined + (2 * t + half) * H, x + t * H, (size_t)H * sizeof *x);
        else memset(joined + (2 * t + half) * H, 0, (size_t)H * sizeof *joined);
    }
}

void put_rows(struct m3_pass *f, int tap, real *y, const real *x, int64_t rows)
{
    const int64_t H = f->config->H;
    if (!x || recorded(f, (struct m3_recorded){ M3_OP_COPY, .y = y, .in = { x } }, tap)) return;
    if (!f->status) memcpy(y, x, (size_t)(rows * H) * sizeof *y);
}
