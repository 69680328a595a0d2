#define M3_REAL_IS_DOUBLE /* attention is called in double */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/room.h"
#include "model/engine.h"
#include "oracle/error/backward/slope.h"
#include "oracle/variants/mistakes_backward.h"

/* What a mistake changes: operands and sizes before the derivative is computed, or its outputs afterwards. */
typedef int change(struct m3_derivative_request *r);

struct wrong {
    struct m3_mistake mistake;
    unsigned of;                /* bits of enum m3_derivative */
    change *before, *after;
};

/* ---- parts */

static double *operand(const struct m3_derivative_request *r, int i) { return (double *)(uintptr_t)r->in[i]; }

static void multiply(double *x, int64_t n, double by)
{
    for (int64_t i = 0; x && i < n; i++) x[i] *= by;
}

static int64_t keys_of(const struct m3_derivative_request *r)
{
    return (r->attend.p0 + r->attend.T) * r->attend.G * r->attend.D;
}

/* ---- embed, linear */

static int embed_stored(struct m3_derivative_request *r)
{
    const int32_t *ids = r->in[0];
    const double *dy = r->dy;
    double *dw = r->out[0];
    for (int64_t t = 0; t < r->T; t++) memcpy(dw + ids[t] * r->H, dy + t * r->H, (size_t)r->H * sizeof *dw);
    return M3_OK;
}

static int linear_mean(struct m3_derivative_request *r)
{
    multiply(r->out[1], r->w->rows * r->w->cols, 1 / (double)r->T);
    multiply(r->out[2], r->w->rows, 1 / (double)r->T);
    return M3_OK;
}

/* ---- norms */

/* dx := r g, or for layer_norm r (g - n mean(g n)): a mean is not subtracted. */
static int norm_without_mean(struct m3_derivative_request *r)
{
    const int is_layer_norm = r->of == M3_DERIVATIVE_LAYER_NORM;
    const double *x = r->in[0], *w = r->in[1], *dy = r->dy, offset = r->of == M3_DERIVATIVE_RMS_NORM;
    double *dx = r->out[0];
    for (int64_t t = 0; t < r->T; t++) {
        const double *x_t = x + t * r->H, *dy_t = dy + t * r->H, H = (double)r->H;
        double mean = 0, squares = 0, m = 0;
        for (int64_t i = 0; i < r->H && is_layer_norm; i++) mean += x_t[i] / H;
        for (int64_t i = 0; i < r->H; i++) squares += (x_t[i] - mean) * (x_t[i] - mean) / H;
        const double scale = 1 / sqrt(squares + r->eps);
        for (int64_t i = 0; i < r->H && is_layer_norm; i++) m += dy_t[i] * w[i] * (x_t[i] - mean) * scale / H;
        for (int64_t i = 0; i < r->H; i++)
            dx[t * r->H + i] = scale * (dy_t[i] * (offset + w[i]) - (x_t[i] - mean) * scale * m);
    }
    return M3_OK;
}

static int norm_plain(struct m3_derivative_request *r) { return r->of = M3_DERIVATIVE_RMS_NORM_PLAIN, M3_OK; }

static int norm_without_eps(struct m3_derivative_request *r) { return r->eps = 0, M3_OK; }

/* ---- rope */

static int rope_forward(struct m3_derivative_request *r)
{
    multiply(operand(r, 1), r->T * r->R / 2, -1);
    return M3_OK;
}

static int rope_rest(struct m3_derivative_request *r)
{
    double *dx = r->out[0];
    for (int64_t i = 0; i < r->T * r->heads; i++)
        for (int64_t c = r->R; c < r->H; c++) dx[i * r->H + c] = 0;
    return M3_OK;
}

/* ---- attention */

static int attend_unscaled(struct m3_derivative_request *r)
{
    const struct m3_attend *d = &r->attend;
    multiply(r->out[0], d->T * d->Q * d->D, sqrt((double)d->D));
    multiply(r->out[1], keys_of(r), sqrt((double)d->D));
    return M3_OK;
}

static int attend_mean_of_heads(struct m3_derivative_request *r)
{
    multiply(r->out[1], keys_of(r), (double)r->attend.G / (double)r->attend.Q);
    multiply(r->out[2], keys_of(r), (double)r->attend.G / (double)r->attend.Q);
    return M3_OK;
}

static int attend_first_head(struct m3_derivative_request *r)
{
    const struct m3_attend *d = &r->attend;
    double *dy = (double *)(uintptr_t)r->dy;
    for (int64_t t = 0; t < d->T; t++)
        for (int64_t h = 0; h < d->Q; h++)
            if (h % (d->Q / d->G)) multiply(dy + (t * d->Q + h) * d->D, d->D, 0);
    return M3_OK;
}

/* Only dk and dv are those of the first head. */
static int attend_lost_heads(struct m3_derivative_request *r)
{
    void *const dq = r->out[0];
    r->out[0] = NULL;
    struct m3_error error = { 0 };
    int status = attend_first_head(r);
    if (!status) status = m3_engine_f64()->differentiate(r, &error);
    r->out[0] = dq;
    m3_error_free(&error);
    return status;
}

static int attend_all_keys(struct m3_derivative_request *r) { return r->of = M3_DERIVATIVE_ATTEND_FULL, M3_OK; }

/* The gradient of lse takes delta away. */
static int attend_without_delta(struct m3_derivative_request *r)
{
    const struct m3_attend *d = &r->attend;
    const struct m3_ops *ops = m3_engine_f64()->plain;
    const double *dy = r->dy;
    double *o = m3_room((size_t)(d->T * d->Q * d->D), sizeof *o);
    double *dlse = malloc((size_t)(d->T * d->Q) * sizeof *dlse);
    struct m3_ctx ctx;
    r->dlse = dlse;             /* m3_backward_mistake_run frees it */
    if (!o || !dlse || m3_ctx_init(&ctx, r->threads, M3_LINEAR_ORDERED)) return free(o), M3_INTERNAL;
    const int status = r->of == M3_DERIVATIVE_ATTEND_FULL
                           ? ops->attend_full(&ctx, o, NULL, r->in[0], r->in[1], r->in[2], d)
                           : ops->attend_blocks(&ctx, o, NULL, r->in[0], r->in[1], r->in[2], r->in[3], d);
    for (int64_t i = 0; i < d->T * d->Q; i++) {
        dlse[i] = 0;
        for (int64_t c = 0; c < d->D; c++) dlse[i] += dy[i * d->D + c] * o[i * d->D + c];
    }
    m3_ctx_free(&ctx);
    free(o);
    return status;
}

/* ---- activations */

enum gate_form { GATE_UNCLAMPED, GATE_NO_ALPHA, GATE_NO_PLUS_ONE };

static int gate_wrong(struct m3_derivative_request *r, enum gate_form form)
{
    const struct m3_gate act = { .oai = 1, .alpha = r->alpha, .limit = r->limit, .clamp = r->clamp };
    const double *gate = r->in[0], *up = r->in[1], *dy = r->dy;
    double *dgate = r->out[0], *dup = r->out[1];
    for (int64_t i = 0; i < r->T * r->H; i++) {
        const struct m3_gate_slope k = m3_gate_slope(gate[i], up[i], &act);
        const double s = m3_logistic(k.a), inner = form == GATE_NO_ALPHA ? k.g : k.a;
        const double factor = k.factor - (form == GATE_NO_PLUS_ONE);
        const int all = form == GATE_UNCLAMPED;
        dgate[i] = k.has_gate || all ? dy[i] * factor * s * (1 + inner * (1 - s)) : 0;
        dup[i] = k.has_up || all ? dy[i] * k.g * s : 0;
    }
    return M3_OK;
}

static int gate_unclamped(struct m3_derivative_request *r) { return gate_wrong(r, GATE_UNCLAMPED); }
static int gate_without_alpha(struct m3_derivative_request *r) { return gate_wrong(r, GATE_NO_ALPHA); }
static int gate_without_one(struct m3_derivative_request *r) { return gate_wrong(r, GATE_NO_PLUS_ONE); }

static int sigmoid_alone(struct m3_derivative_request *r)
{
    const double *x = r->in[0], *dy = r->dy;
    double *dx = r->out[0];
    for (int64_t i = 0; i < r->T * r->H; i++) dx[i] = dy[i] * m3_logistic(x[i]);
    return M3_OK;
}

static int gelu_tanh(struct m3_derivative_request *r)
{
    const double *x = r->in[0], *dy = r->dy, a = 0.79788456080286535588, b = 0.044715;
    double *dx = r->out[0];
    for (int64_t i = 0; i < r->T * r->H; i++) {
        const double t = tanh(a * (x[i] + b * x[i] * x[i] * x[i]));
        dx[i] = dy[i] * ((1 + t) / 2 + x[i] * (1 - t * t) / 2 * a * (1 + 3 * b * x[i] * x[i]));
    }
    return M3_OK;
}

/* ---- router and experts */

/* ds := dp / S of the chosen, and, with `dense`, - sum of dp p / S of all. */
static int route_wrong(struct m3_derivative_request *r, int dense)
{
    const double *s = r->in[0], *dp = r->dy;
    const int32_t *ids = r->in[1];
    double *ds = r->out[0];
    for (int64_t t = 0; t < r->T; t++) {
        double sum = 0, mean = 0;
        for (int64_t k = 0; k < r->K; k++) sum += s[t * r->E + ids[t * r->K + k]];
        for (int64_t k = 0; k < r->K; k++) mean += dp[t * r->K + k] * s[t * r->E + ids[t * r->K + k]] / sum;
        for (int64_t e = 0; e < r->E; e++) ds[t * r->E + e] = dense ? -mean / sum : 0;
        for (int64_t k = 0; k < r->K; k++) ds[t * r->E + ids[t * r->K + k]] += dp[t * r->K + k] / sum;
    }
    return M3_OK;
}

static int route_without_sum(struct m3_derivative_request *r) { return route_wrong(r, 0); }
static int route_through_choice(struct m3_derivative_request *r) { return route_wrong(r, 1); }

static int experts_without_factor(struct m3_derivative_request *r) { return r->factor = 1, M3_OK; }

static int experts_factor_twice(struct m3_derivative_request *r) { return r->factor *= r->factor, M3_OK; }

static int experts_dp_without_factor(struct m3_derivative_request *r)
{
    multiply(r->out[1], r->T * r->K, 1 / r->factor);
    return M3_OK;
}

/* dp is that of the right weights: it does not depend on them. */
static int experts_unweighted(struct m3_derivative_request *r)
{
    double *p = operand(r, 2);
    for (int64_t i = 0; i < r->T * r->K; i++) p[i] = 1;
    return M3_OK;
}

static int scatter_kept(struct m3_derivative_request *r)
{
    memcpy(r->out[0], r->dy, (size_t)(r->T * r->H) * sizeof(double));
    return M3_OK;
}

/* ---- the list */

#define OF(name) (1u << M3_DERIVATIVE_##name)
#define NORMS (OF(RMS_NORM) | OF(RMS_NORM_PLAIN))
#define CAUSAL (OF(ATTEND_FULL) | OF(ATTEND_BLOCKS))

/* clang-format off */
static const struct wrong list[] = {
    { { .id = "grad.embed_stored", .what = "the gradient of a row of the embedding is stored, not added: of a repeated id one is left", .first = "dw" },
      OF(EMBED), NULL, embed_stored },
    { { .id = "grad.norm_no_projection", .what = "dx = r g, without the term n mean(g n)", .first = "dx" },
      NORMS, NULL, norm_without_mean },
    { { .id = "grad.norm_no_plus_one", .what = "g = dy w, not dy (1 + w)", .first = "dx" }, OF(RMS_NORM), norm_plain, NULL },
    { { .id = "grad.norm_no_eps", .what = "r without eps", .first = "dx" },
      NORMS | OF(LAYER_NORM), norm_without_eps, NULL },
    { { .id = "grad.linear_mean", .what = "dw and dbias are means over the rows, not sums", .first = "dw" },
      OF(LINEAR), NULL, linear_mean },
    { { .id = "grad.rope_forward", .what = "the gradient is turned in the direction of the forward pass", .first = "dx" },
      OF(ROPE), rope_forward, NULL },
    { { .id = "grad.rope_rest", .what = "channels that are not rotated have no gradient", .first = "dx" },
      OF(ROPE), NULL, rope_rest },
    { { .id = "grad.attend_no_delta", .what = "ds = p (do . v), without delta", .first = "dq" },
      CAUSAL, attend_without_delta, NULL },
    { { .id = "grad.attend_no_scale", .what = "dq and dk without the factor 1 / sqrt D", .first = "dq" },
      CAUSAL | OF(ATTEND_SEGMENTS), NULL, attend_unscaled },
    { { .id = "grad.attend_mean_of_heads", .what = "dk and dv are means over the query heads of a group, not sums", .first = "dk" },
      CAUSAL, NULL, attend_mean_of_heads },
    { { .id = "grad.attend_lost_heads", .what = "dk and dv of the first query head of each group alone", .first = "dk" },
      CAUSAL, NULL, attend_lost_heads },
    { { .id = "grad.attend_all_keys", .what = "all causal keys take part, although the forward pass saw chosen blocks", .first = "dq" },
      OF(ATTEND_BLOCKS), attend_all_keys, NULL },
    { { .id = "grad.gate_no_clamp", .what = "gradients pass the clamps of gate and up", .first = "dgate" },
      OF(SWIGLU_OAI), NULL, gate_unclamped },
    { { .id = "grad.gate_no_alpha", .what = "dgate with 1 + g (1 - s), not 1 + alpha g (1 - s)", .first = "dgate" },
      OF(SWIGLU_OAI), NULL, gate_without_alpha },
    { { .id = "grad.gate_no_plus_one", .what = "dgate with up, not up + 1", .first = "dgate" },
      OF(SWIGLU_OAI), NULL, gate_without_one },
    { { .id = "grad.sigmoid_alone", .what = "dx = dy s, not dy s (1 - s)", .first = "dx" }, OF(SIGMOID), NULL, sigmoid_alone },
    { { .id = "grad.route_no_sum", .what = "ds = dp / S, as if S did not depend on the scores", .first = "ds" },
      OF(ROUTE), NULL, route_without_sum },
    { { .id = "grad.route_through_choice", .what = "the term of S reaches experts that were not chosen", .first = "ds" },
      OF(ROUTE), NULL, route_through_choice },
    { { .id = "grad.experts_no_factor", .what = "without the factor of the routed sum", .first = "dx" },
      OF(EXPERTS), experts_without_factor, NULL },
    { { .id = "grad.experts_factor_twice", .what = "the factor of the routed sum twice", .first = "dx" },
      OF(EXPERTS), experts_factor_twice, NULL },
    { { .id = "grad.experts_dp_no_factor", .what = "dp without the factor of the routed sum", .first = "dp" },
      OF(EXPERTS), NULL, experts_dp_without_factor },
    { { .id = "grad.experts_unweighted", .what = "the routing weight does not multiply what arrives at an expert", .first = "dx" },
      OF(EXPERTS), experts_unweighted, NULL },
    { { .id = "grad.layer_norm_no_mean", .what = "the mean of g is not subtracted", .first = "dx" },
      OF(LAYER_NORM), NULL, norm_without_mean },
    { { .id = "grad.gelu_tanh", .what = "the derivative of the tanh form", .first = "dx" }, OF(GELU), NULL, gelu_tanh },
    { { .id = "grad.scatter_kept", .what = "the placeholder's embedding keeps a gradient", .first = "dx" },
      OF(SCATTER), NULL, scatter_kept },
};
/* clang-format on */

enum { COUNT = sizeof list / sizeof list[0] };

int m3_backward_mistakes(void) { return COUNT; }

const struct m3_mistake *m3_backward_mistake_at(int i) { return i >= 0 && i < COUNT ? &list[i].mistake : NULL; }

static const struct wrong *wrong_of(const struct m3_mistake *mistake)
{
    for (int i = 0; i < COUNT; i++)
        if (&list[i].mistake == mistake) return &list[i];
    return NULL;
}

int m3_backward_mistake_is_of(const struct m3_mistake *mistake, enum m3_derivative of)
{
    const struct wrong *w = wrong_of(mistake);
    return w && of != M3_DERIVATIVE_NONE && (w->of & (1u << of)) != 0;
}

int m3_backward_mistake_run(const struct m3_mistake *mistake, struct m3_derivative_request *r, struct m3_error *error)
{
    const struct wrong *w = wrong_of(mistake);
    const void *const dlse = r->dlse;
    int status = w->before ? w->before(r) : M3_OK;
    if (status == M3_INTERNAL) m3_fail_memory(error, mistake->id, 0);
    if (!status) status = m3_engine_f64()->differentiate(r, error);
    if (!status && w->after) status = w->after(r);
    if (r->dlse != dlse) free((void *)(uintptr_t)r->dlse);
    r->dlse = dlse;
    return status;
}
