#include "model/backward/stages.h"

#include <stdlib.h>
#include <string.h>

#include "ops/backward.h"
#include "train/losses.h"

/* Do the taps of this pass belong to a file? Those of one of several sequences do not. */
static int is_wanted(const struct m3_backward *b, int tap)
{
    const struct m3_gradient_sink *sink = b->request->sink;
    if (b->f.status || tap >= M3_TAPS || !sink || b->request->count != 1) return 0;
    return sink->wants(sink->self, m3_pass_tap(tap), b->f.layer);
}

void shown(struct m3_backward *b, int tap, const real *d)
{
    const struct m3_gradient_sink *sink = b->request->sink;
    if (is_wanted(b, tap))
        b->f.status = sink->tap(sink->self, m3_pass_tap(tap), b->f.layer, d, b->f.row, b->f.rows, b->error);
}

/* Ends a stage: takes its operator's status, and shows the gradient. */
static void done(struct m3_backward *b, int tap, const real *dx, int status)
{
    m3_pass_done(&b->f, prepares(m3_pass_tap(tap)), NULL, status);
    shown(b, tap, dx);
}

static int64_t count(const struct m3_backward *b, int tap)
{
    return b->f.rows * m3_pass_width(&b->f, m3_pass_tap(tap));
}

void embed_back(struct m3_backward *b, const real *dy, const int32_t *ids)
{
    const struct m3_weight *w = &b->model->embed;
    real *dw = m3_gradient_of(b, w);
    if (dw)
        done(b, prepares(M3_TAP_EMBED), NULL, b->f.back->embed(&b->f.ctx, dw, dy, ids, b->f.rows, w->rows, w->cols));
}

void scatter_back(struct m3_backward *b, real *dx, real *d_features, const real *dy, int64_t id, int64_t M)
{
    struct m3_pass *f = &b->f;
    if (f->status) return;
    done(b, prepares(M3_TAP_FUSED), dx,
         f->back->scatter(&f->ctx, dx, d_features, dy, b->how.ids, (int32_t)id, f->rows, M, f->config->H));
}

void rms_norm_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w)
{
    struct m3_pass *f = &b->f;
    real *dw = m3_gradient_of(b, w);
    if (!dw) return;
    m3_op_rms_norm_backward *norm = f->config->gemma_norm ? f->back->rms_norm : f->back->rms_norm_plain;
    const real *scale = expanded(f, w), eps = (real)f->config->eps;
    const int64_t n = count(b, tap) / w->cols;
    done(b, tap, dx, scale ? norm(&f->ctx, dx, dw, dy, x, scale, n, w->cols, eps) : M3_INTERNAL);
}

void layer_norm_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w,
                     const struct m3_weight *bias)
{
    struct m3_pass *f = &b->f;
    real *dw = m3_gradient_of(b, w), *d_bias = m3_gradient_of(b, bias);
    if (!d_bias) return;
    const real *scale = expanded(f, w), eps = (real)f->config->vision.eps;
    done(b, tap, dx,
         scale ? f->back->layer_norm(&f->ctx, dx, dw, d_bias, dy, x, scale, f->rows, w->cols, eps) : M3_INTERNAL);
}

void linear_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w)
{
    real *dw = m3_gradient_of(b, w);
    if (dw) done(b, tap, dx, b->f.back->linear(&b->f.ctx, dx, dw, NULL, dy, x, w, b->f.rows));
}

void affine_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x, const struct m3_weight *w,
                 const struct m3_weight *bias)
{
    real *dw = m3_gradient_of(b, w), *d_bias = m3_gradient_of(b, bias);
    if (d_bias) done(b, tap, dx, b->f.back->linear(&b->f.ctx, dx, dw, d_bias, dy, x, w, b->f.rows));
}

/* The last letter of a tap's shape is the width of a head. */
void rope_back(struct m3_backward *b, int tap, real *dx, const real *dy, const struct m3_angles *angles)
{
    struct m3_pass *f = &b->f;
    const char *shape = m3_tap_table[m3_pass_tap(tap)].shape;
    const int64_t D = m3_config_size(f->config, shape[strlen(shape) - 1]), n = count(b, tap);
    if (f->status) return;
    done(b, tap, dx, f->back->rope(&f->ctx, dx, dy, angles->cos, angles->sin, f->rows, n / f->rows / D, D, angles->R));
}

void attend_back(struct m3_backward *b, int q_tap, real *dq, int k_tap, real *dk, int v_tap, real *dv, const real *dy)
{
    struct m3_pass *f = &b->f;
    const struct m3_config *c = f->config;
    const struct m3_kept *kept = &b->kept;
    const int32_t *blocks = kept->at[M3_TAP_INDEX_BLOCKS];
    const struct m3_attend d = { .T = f->rows,
                                 .seen = b->how.seen,
                                 .Q = c->Q,
                                 .G = c->G,
                                 .D = c->D,
                                 .block = c->block,
                                 .N = c->N,
                                 .selection = b->how.semantics->selection };
    if (f->status) return;
    const real *q = kept->at[M3_TAP_Q_ROPE], *k = kept->at[M3_TAP_K_ROPE], *v = kept->at[M3_TAP_V_PROJ];
    const real *o = kept->at[M3_TAP_ATTN], *lse = kept->at[M3_TAP_ATTN_LSE];
    done(b, q_tap, dq,
         blocks ? f->back->attend_blocks(&f->ctx, dq, dk, dv, dy, NULL, q, k, v, o, lse, blocks, &d)
                : f->back->attend_full(&f->ctx, dq, dk, dv, dy, NULL, q, k, v, o, lse, &d));
    shown(b, k_tap, dk);
    shown(b, v_tap, dv);
}

void attend_segments_back(struct m3_backward *b, real *dq, real *dk, real *dv, const real *dy, const int64_t *ends,
                          int64_t segments)
{
    struct m3_pass *f = &b->f;
    const struct m3_kept *kept = &b->kept;
    if (f->status) return;
    done(b, M3_TAP_VISION_Q_ROPE, dq,
         f->back->attend_segments(&f->ctx, dq, dk, dv, dy, kept->at[M3_TAP_VISION_Q_ROPE],
                                  kept->at[M3_TAP_VISION_K_ROPE], kept->at[M3_TAP_VISION_V_PROJ], ends, segments,
                                  f->config->vision.A, f->config->vision.U));
    shown(b, M3_TAP_VISION_K_ROPE, dk);
    shown(b, M3_TAP_VISION_V_PROJ, dv);
}

void gated_back(struct m3_backward *b, int gate_tap, real *d_gate, int up_tap, real *d_up, const real *dy,
                const real *gate, const real *up, int64_t F)
{
    struct m3_pass *f = &b->f;
    if (f->status) return;
    done(b, gate_tap, d_gate,
         f->act.oai ? f->back->swiglu_oai(&f->ctx, d_gate, d_up, dy, gate, up, f->rows, F, &f->act)
                    : f->back->swiglu(&f->ctx, d_gate, d_up, dy, gate, up, f->rows, F));
    shown(b, up_tap, d_up);
}

void gelu_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x)
{
    if (!b->f.status) done(b, tap, dx, b->f.back->gelu(&b->f.ctx, dx, dy, x, count(b, tap)));
}

void sigmoid_back(struct m3_backward *b, int tap, real *dx, const real *dy, const real *x)
{
    if (!b->f.status) done(b, tap, dx, b->f.back->sigmoid(&b->f.ctx, dx, dy, x, count(b, tap)));
}

void route_back(struct m3_backward *b, int tap, real *d_scores, const real *dp, const int32_t *ids, const real *scores)
{
    const struct m3_config *c = b->f.config;
    if (!b->f.status)
        done(b, tap, d_scores, b->f.back->route(&b->f.ctx, d_scores, dp, ids, scores, b->f.rows, c->E, c->K));
}

/* The gradients of an expert's matrices. NULL after a failure. */
static struct m3_expert_gradient of_expert(struct m3_backward *b, const struct m3_expert *w)
{
    return (struct m3_expert_gradient){ m3_gradient_of(b, &w->w1), m3_gradient_of(b, &w->w3),
                                        m3_gradient_of(b, &w->w2) };
}

static int all_experts(struct m3_backward *b, real *dx, real *dp, const real *dy, const real *x, const int32_t *ids,
                       const real *p, const struct m3_expert *w)
{
    struct m3_pass *f = &b->f;
    const struct m3_config *c = f->config;
    struct m3_expert_gradient *dw = m3_pass_need(f, c->E, 1, sizeof *dw);
    int status = M3_INTERNAL;
    for (int64_t e = 0; dw && e < c->E; e++) dw[e] = of_expert(b, &w[e]);
    if (!f->status)
        status = f->back->experts(&f->ctx, dx, dp, dw, dy, x, ids, p, w, &f->act, f->rows, c->E, c->K,
                                  (real)c->routed_scaling);
    free(dw);
    return status;
}

/* The rows of one expert, gathered: [n,H], and [n] for p, dp and ids, which are 0. */
struct chosen {
    int64_t *slot;
    int32_t *ids;
    real *x, *dy, *dx, *p, *dp;
};

static int64_t gather(struct chosen *a, const real *dy, const real *x, const int32_t *ids, const real *p, int64_t e,
                      int64_t T, int64_t K, int64_t H)
{
    int64_t n = 0;
    for (int64_t i = 0; i < T * K; i++) {
        if (ids[i] != e) continue;
        memcpy(a->x + n * H, x + i / K * H, (size_t)H * sizeof *x);
        memcpy(a->dy + n * H, dy + i / K * H, (size_t)H * sizeof *dy);
        a->p[n] = p[i];
        a->ids[n] = 0;
        a->slot[n++] = i;
    }
    return n;
}

/* The same an expert after the other, each as a layer of its own: the sums are the same, and the gradients of only one
 * expert exist at a time. */
static int each_expert(struct m3_backward *b, struct chosen *a, real *dx, real *dp, const real *dy, const real *x,
                       const int32_t *ids, const real *p, const struct m3_expert *w)
{
    struct m3_pass *f = &b->f;
    const struct m3_config *c = f->config;
    int status = M3_OK;
    for (int64_t e = 0; !f->status && !status && e < c->E; e++) {
        const int64_t n = gather(a, dy, x, ids, p, e, f->rows, c->K, c->H);
        const struct m3_expert_gradient dw = of_expert(b, &w[e]);
        if (!f->status && n > 0)
            status = f->back->experts(&f->ctx, a->dx, a->dp, &dw, a->dy, a->x, a->ids, a->p, &w[e], &f->act, n, 1, 1,
                                      (real)c->routed_scaling);
        for (int64_t r = 0; !f->status && !status && r < n; r++) {
            real *dx_t = dx + a->slot[r] / c->K * c->H;
            dp[a->slot[r]] = a->dp[r];
            for (int64_t h = 0; h < c->H; h++) dx_t[h] = dx_t[h] + a->dx[r * c->H + h];
        }
        if (!status) m3_gradient_give(b, M3_GIVE_LAYER);
    }
    return status;
}

static int experts_apart(struct m3_backward *b, real *dx, real *dp, const real *dy, const real *x, const int32_t *ids,
                         const real *p, const struct m3_expert *w)
{
    struct m3_pass *f = &b->f;
    const int64_t T = f->rows, H = f->config->H;
    struct chosen a = { .slot = m3_pass_need(f, T, 1, sizeof *a.slot), .ids = m3_pass_need(f, T, 1, sizeof *a.ids) };
    real **wide[] = { &a.x, &a.dy, &a.dx }, **narrow[] = { &a.p, &a.dp };
    for (int i = 0; i < 3; i++) *wide[i] = m3_pass_need(f, T, H, sizeof(real));
    for (int i = 0; i < 2; i++) *narrow[i] = m3_pass_need(f, T, 1, sizeof(real));
    if (!f->status) memset(dx, 0, (size_t)(T * H) * sizeof *dx);
    const int status = each_expert(b, &a, dx, dp, dy, x, ids, p, w);
    void *all[] = { a.slot, a.ids, a.x, a.dy, a.dx, a.p, a.dp };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return status;
}

/* Gradients of several sequences add up, so that those of all experts exist. */
void experts_back(struct m3_backward *b, int tap, real *dx, int p_tap, real *dp, const real *dy, const real *x,
                  const int32_t *ids, const real *p, const struct m3_expert *w)
{
    if (b->f.status) return;
    const int status =
        b->request->count > 1 ? all_experts(b, dx, dp, dy, x, ids, p, w) : experts_apart(b, dx, dp, dy, x, ids, p, w);
    done(b, tap, dx, status);
    shown(b, p_tap, dp);
}

void cross_entropy_back(struct m3_backward *b, int tap, double *loss, real *z, const int32_t *targets, double weight)
{
    struct m3_pass *f = &b->f;
    if (f->status) return;
    done(b, tap, z,
         m3_cross_entropy(&f->ctx, loss, z, z, targets, f->rows, f->config->V, (double)b->request->scored, weight));
}

void index_loss_back(struct m3_backward *b, double *loss, real *dq, real *dk, int64_t rows, double weight)
{
    struct m3_pass *f = &b->f;
    const struct m3_config *c = f->config;
    const struct m3_kept *kept = &b->kept;
    const struct m3_index_loss d = { .T = f->rows,
                                     .Q = c->Q,
                                     .G = c->G,
                                     .D = c->D,
                                     .X = c->X,
                                     .seen = b->how.seen,
                                     .blocks = kept->at[M3_TAP_INDEX_BLOCKS],
                                     .block = c->block,
                                     .N = c->N,
                                     .rows = rows,
                                     .readings = b->request->readings };
    if (f->status) return;
    done(b, M3_TAP_INDEX_Q_ROPE, dq,
         m3_index_loss(&f->ctx, loss, dq, dk, kept->at[M3_TAP_INDEX_Q_ROPE], kept->at[M3_TAP_INDEX_K_ROPE],
                       kept->at[M3_TAP_Q_ROPE], kept->at[M3_TAP_K_ROPE], &d, weight));
    shown(b, M3_TAP_INDEX_K_ROPE, dk);
}
