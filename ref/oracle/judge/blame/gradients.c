/* Which derivative is wrong? The gradient of a tap is the sum of what comes back from the operators that read it. Each is
 * recomputed in double, from the candidate's own gradient of that operator's output and its own forward taps. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/weights/tensors.h"
#include "oracle/judge/blame/private/gradients.h"
#include "oracle/judge/gradients.h"
#include "oracle/judge/side_by_side.h"

/* ---- verdicts */

/* The gradient y [n] of the tensor that the candidate has under `name`. */
static void judge(struct m3_gradients *g, struct m3_finding *out, const double *y, const double *allowed, int64_t n,
                  int64_t width, const char *stored_as)
{
    struct m3_side_by_side s = { 0 };
    const struct m3_profile *profile = g->s->profile;
    const double u = g->how.u, more = (1 + 0x1p-53 / u) / u, least = 64 * m3_bound_eta(u) / u;
    const double *got = m3_gradients_reals(g, out->tap, n);
    if (!got || g->status) return;
    g->status = m3_side_by_side_room(&s, n, n / width, out->tap, g->b->error);
    if (g->status) return;
    s.count = n, s.rows = n / width;
    for (int64_t i = 0; i < n; i++) {
        s.got[i] = got[i], s.want[i] = y[i];
        s.bound[i] = s.walk[i] = allowed[i] > 0 ? allowed[i] * more + least : 0;
    }
    const double unit = profile ? m3_profile_store(profile, stored_as) : 0;
    struct m3_spread extra = { s.error, s.variance };
    if (unit > 0) m3_propagate_store(&extra, y, n, unit, m3_store_floor(m3_profile_dtype(profile, stored_as)));
    const struct m3_side_by_side_rules rules = { .setting = g->s, .tap = stored_as, .f = 1, .has_extra = 1 };
    out->tiers = m3_side_by_side_verdict(&s, &rules);
    out->verdict = out->tiers.verdict;
    out->elements = out->tiers.judged, out->rows = n / width, out->f = 1;
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) difference += (got[i] - y[i]) * (got[i] - y[i]), size += y[i] * y[i];
    out->violations = out->tiers.hard;
    out->created = out->off.rel_l2 = difference == 0 ? 0 : sqrt(difference / size);
    out->off.allowed_l2 = out->off.max_rel = 0;
    const int64_t worst = out->tiers.worst;
    if (worst >= 0) {
        m3_finding_place(out, out->candidate, worst / width, worst % width, out->candidate->rank);
        out->got = got[worst], out->want = y[worst];
    }
    m3_side_by_side_free(&s);
}

static struct m3_finding *begin(struct m3_gradients *g, const struct m3_tensor *t, enum m3_tap tap, int64_t layer,
                                const char *operator, const char *section)
{
    struct m3_finding *out = &g->result->findings[g->result->count++];
    *out = m3_finding_recomputed(t, tap, layer, operator, section);
    out->selection = 0; /* of a tap whose gradient it is */
    return out;
}

static void end(struct m3_gradients *g, struct m3_finding *out)
{
    if (out->verdict == M3_VERDICT_NOT_JUDGED) m3_finding_note(out, "missing: %.150s", g->missing);
    m3_gradients_forget(g);
}

static void leave(struct m3_gradients *g, const char *name)
{
    if (g->others++ == 0) g->first_other = name;
    g->result->extra++;
}

/* ---- gradients of taps */

/* Which output of the reader's derivative is that of operand i; -1: a copy; -2: no gradient comes back; -3: blame does
 * not recompute it. */
enum { COPIED = -1, NOTHING = -2, UNKNOWN = -3 };

static int output_of(struct m3_gradients *g, const struct m3_blame_item *reader, int i)
{
    switch (m3_graph_node(g->s->model, g->s->semantics, reader->tap, reader->layer)->op) {
    case M3_OP_LINEAR: return m3_gradients_is_index(reader->tap) ? NOTHING : 0;
    case M3_OP_RMS_NORM: return reader->layer >= M3_MTP_LAYER ? UNKNOWN : 0;
    case M3_OP_ROPE:
    case M3_OP_SIGMOID:
    case M3_OP_GATED_MLP: return 0;
    case M3_OP_ATTEND: return reader->tap == M3_TAP_ATTN_LSE || i > 2 ? NOTHING : i;
    case M3_OP_ACTIVATION: return i;
    case M3_OP_ROUTE:
    case M3_OP_EXPERT: return i == 0 ? 0 : NOTHING;
    case M3_OP_ROUTED: return i == 1 ? 1 : NOTHING;
    case M3_OP_ADD:
    case M3_OP_COPY: return COPIED;
    case M3_OP_SCATTER: return g->s->the_case->pictures.P == 0 && i == 0 ? COPIED : UNKNOWN;
    case M3_OP_SELECT_BLOCKS:
    case M3_OP_SELECT_EXPERTS:
    case M3_OP_BLOCK_SCORES: return NOTHING;
    default: return UNKNOWN;
    }
}

struct name {
    const char *operator, *section;
};

static struct name name_of_operator(enum m3_operator op)
{
    switch (op) {
    case M3_OP_EMBED: return (struct name){ "derivative of embed", "19.2 embed" };
    case M3_OP_RMS_NORM: return (struct name){ "derivative of rms_norm", "19.3 rms_norm, rms_norm_plain" };
    case M3_OP_LINEAR: return (struct name){ "derivative of linear", "19.4 linear" };
    case M3_OP_ROPE: return (struct name){ "derivative of rope", "19.5 rope" };
    case M3_OP_ATTEND:
        return (struct name){ "derivative of attention", "19.6 attend_full, attend_blocks, attend_segments" };
    case M3_OP_ACTIVATION: return (struct name){ "derivative of the activation", "19.7 swiglu_oai, swiglu" };
    case M3_OP_SIGMOID: return (struct name){ "derivative of sigmoid", "19.8 sigmoid" };
    case M3_OP_ROUTE: return (struct name){ "derivative of route", "19.9 route" };
    case M3_OP_EXPERT:
    case M3_OP_ROUTED:
    case M3_OP_GATED_MLP: return (struct name){ "derivative of experts", "19.10 experts" };
    default: return (struct name){ "sum of gradients", "19.1 Rules for all derivatives" };
    }
}

/* Calls `visit` for each operand of a later operator that is this tap. */
static int each_reader(struct m3_gradients *g, const struct m3_blame_item *x,
                       void (*visit)(struct m3_gradients *g, const struct m3_blame_item *reader, int output, double *y,
                                     double *allowed, const struct m3_blame_item *x),
                       double *y, double *allowed)
{
    int readers = 0;
    for (int64_t k = 0; k < g->b->count; k++)
        for (int i = 0; i < M3_OPERANDS; i++) {
            enum m3_tap tap;
            int64_t layer;
            const struct m3_blame_item *reader = &g->b->items[k];
            if (m3_setting_operand(&tap, &layer, g->s, reader->tap, reader->layer, i)) continue;
            if (tap != x->tap || layer != x->layer) continue;
            const int output = output_of(g, reader, i);
            if (output == UNKNOWN) return -1;
            readers += output != NOTHING;
            if (visit && output != NOTHING) visit(g, reader, output, y, allowed, x);
        }
    return readers;
}

/* The one operator that reads the tap, or several. */
static struct name name_of(struct m3_gradients *g, const struct m3_blame_item *x)
{
    const struct name several = name_of_operator(M3_OP_NONE);
    struct name name = { 0 };
    for (int64_t k = 0; k < g->b->count; k++)
        for (int i = 0; i < M3_OPERANDS; i++) {
            enum m3_tap tap;
            int64_t layer;
            const struct m3_blame_item *y = &g->b->items[k];
            if (m3_setting_operand(&tap, &layer, g->s, y->tap, y->layer, i) || tap != x->tap || layer != x->layer)
                continue;
            if (output_of(g, y, i) == NOTHING) continue;
            const struct name own = name_of_operator(m3_graph_node(g->s->model, g->s->semantics, y->tap, y->layer)->op);
            if (name.operator && strcmp(name.operator, own.operator) != 0) return several;
            name = own;
        }
    return name;
}

static void take_back(struct m3_gradients *g, const struct m3_blame_item *reader, int output, double *y,
                      double *allowed, const struct m3_blame_item *x)
{
    const int64_t n = x->rows * x->width;
    struct m3_derivative_request r;
    if (g->status || g->missing[0]) return;
    if (output == COPIED) {
        const double *dy = m3_gradients_arriving(g, reader);
        for (int64_t i = 0; dy && i < n; i++) {
            y[i] += dy[i];
            allowed[i] += (4 * g->how.u + 2 * g->how.stored) * fabs(dy[i]);
        }
        return;
    }
    m3_gradients_request(g, &r, reader);
    m3_gradients_add(g, &r, output, y, allowed, n);
}

/* A gradient that comes back from one place and is copied must be equal; otherwise sums may be off by roundings. */
static void judge_tap(struct m3_gradients *g, const struct m3_tensor *t, enum m3_tap tap, int64_t layer)
{
    const struct m3_blame_item *x = m3_gradients_item(g, tap, layer);
    const double product = g->how.product;
    if (tap == M3_TAP_LOGITS) return; /* the loss gives it */
    const int other =
        !x || m3_gradients_is_index(tap) || layer >= M3_MTP_LAYER || (tap == M3_TAP_ROUTER_LOGITS && g->has_aux);
    if (other || each_reader(g, x, NULL, NULL, NULL) <= 0) {
        leave(g, t->name);
        return;
    }
    const struct name name = name_of(g, x);
    struct m3_finding *out = begin(g, t, tap, layer, name.operator, name.section);
    double *y = m3_gradients_room(g, x->rows * x->width), *allowed = m3_gradients_room(g, x->rows * x->width);
    if (!g->status) each_reader(g, x, take_back, y, allowed);
    if (!g->status && !g->missing[0])
        judge(g, out, y, allowed, x->rows * x->width, x->width,
              tap == M3_TAP_ROUTER_SCORES || tap == M3_TAP_ROUTER_LOGITS || tap == M3_TAP_EXPERT_WEIGHTS
                  ? "layers.0.moe.router_scores"
                  : "layers.0.q_proj");
    g->how.product = product;
    end(g, out);
}

/* ---- gradients of parameters */

/* The only operator that reads a weight, and which of its weights it is; NULL: none, or several. */
static const struct m3_blame_item *reader_of(struct m3_gradients *g, const struct m3_weight *w, int *which)
{
    const struct m3_blame_item *found = NULL;
    for (int64_t k = 0; k < g->b->count; k++)
        for (int i = 0; i < M3_NODE_WEIGHTS; i++) {
            const struct m3_blame_item *y = &g->b->items[k];
            if (m3_graph_weight(g->s->model, g->s->semantics, y->tap, y->layer, i) != w) continue;
            if (found) return NULL;
            found = y, *which = i;
        }
    return found;
}

static void embedding(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_blame_item *y,
                      const struct m3_weight *w)
{
    *r = (struct m3_derivative_request){
        .of = M3_DERIVATIVE_EMBED, .T = y->rows, .H = w->cols, .V = w->rows, .threads = g->s->ctx->threads
    };
    r->dy = m3_gradients_arriving(g, y);
    r->in[0] = g->s->the_case->ids;
}

/* The rows of one expert, gathered: one expert that every row chose. */
static void one_expert(struct m3_gradients *g, struct m3_derivative_request *r, int64_t layer, int64_t e)
{
    struct m3_derivative_request all = { .T = m3_gradients_item(g, M3_TAP_ROUTED, layer)->rows,
                                         .threads = g->s->ctx->threads };
    m3_gradients_of_experts(g, &all, layer);
    *r = all;
    if (g->status || g->missing[0]) return;
    const int64_t H = all.H, slots = all.T * all.K;
    double *x = m3_gradients_room(g, slots * H), *dy = m3_gradients_room(g, slots * H),
           *p = m3_gradients_room(g, slots);
    int32_t *zeros = m3_gradients_keep(g, calloc((size_t)slots + 1, sizeof *zeros), (size_t)slots);
    if (g->status) return;
    r->T = 0, r->E = r->K = 1, r->experts = &all.experts[e];
    for (int64_t i = 0; i < slots; i++) {
        if (((const int32_t *)all.in[1])[i] != e) continue;
        memcpy(x + r->T * H, (const double *)all.in[0] + i / all.K * H, (size_t)H * sizeof *x);
        memcpy(dy + r->T * H, (const double *)all.dy + i / all.K * H, (size_t)H * sizeof *dy);
        p[r->T++] = ((const double *)all.in[2])[i];
    }
    r->in[0] = x, r->in[1] = zeros, r->in[2] = p, r->dy = dy;
}

/* The derivative that gives the gradient of w, and its output; -1: blame does not recompute it. */
static int parameter_request(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_tensor_spec *spec,
                             const struct m3_weight *w)
{
    int which = 0;
    if (spec->row->where == M3_IN_EXPERT) {
        const struct m3_expert *e = &g->s->model->layers[spec->layer].experts[spec->expert];
        one_expert(g, r, spec->layer, spec->expert);
        return w == &e->w1 ? 2 : w == &e->w3 ? 3 : 4;
    }
    const struct m3_blame_item *y = reader_of(g, w, &which);
    if (!y || m3_gradients_is_index(y->tap)) return -1;
    switch (m3_graph_node(g->s->model, g->s->semantics, y->tap, y->layer)->op) {
    case M3_OP_EMBED: return embedding(g, r, y, w), 0;
    case M3_OP_LINEAR:
    case M3_OP_RMS_NORM: return m3_gradients_request(g, r, y), 1;
    case M3_OP_GATED_MLP: return m3_gradients_request(g, r, y), 2 + which;
    default: return -1;
    }
}

static struct name name_of_request(const struct m3_derivative_request *r)
{
    switch (r->of) {
    case M3_DERIVATIVE_EMBED: return name_of_operator(M3_OP_EMBED);
    case M3_DERIVATIVE_LINEAR: return name_of_operator(M3_OP_LINEAR);
    case M3_DERIVATIVE_EXPERTS: return name_of_operator(M3_OP_EXPERT);
    default: return name_of_operator(M3_OP_RMS_NORM);
    }
}

static int is_bias_of_router(const struct m3_tensor_spec *spec)
{
    return spec->row->where == M3_IN_MOE && spec->row->field == (ptrdiff_t)offsetof(struct m3_layer, router_bias);
}

static int is_elsewhere(const struct m3_gradients *g, const struct m3_tensor_spec *spec)
{
    switch (spec->row->where) {
    case M3_IN_VISION:
    case M3_IN_VISION_LAYER:
    case M3_IN_MTP:
    case M3_IN_SPARSE: return 1;
    case M3_IN_MODEL:
    case M3_IN_LM_HEAD: return g->has_mtp;
    default: return spec->layer >= g->s->model->config.layers;
    }
}

static int judge_parameter(void *self, const struct m3_tensor_spec *spec)
{
    struct m3_gradients *g = self;
    struct m3_derivative_request r = { 0 };
    char name[224];
    snprintf(name, sizeof name, "d.param.%s", spec->name);
    const struct m3_tensor *t = m3_safetensors_find(g->b->side.file, name);
    if (!t || !m3_tap_matches(g->b->options->taps, name)) return g->status;
    const struct m3_weight *w = m3_tensor_field((struct m3_model *)(uintptr_t)g->s->model, spec);
    const int64_t n = w->rows * w->cols;
    int output = 0;
    if (!is_bias_of_router(spec)) output = is_elsewhere(g, spec) ? -1 : parameter_request(g, &r, spec, w);
    if (output < 0) {
        leave(g, t->name);
        m3_gradients_forget(g);
        return g->status;
    }
    const struct name by = is_bias_of_router(spec) ? name_of_operator(M3_OP_ROUTE) : name_of_request(&r);
    struct m3_finding *out = begin(g, t, M3_TAP_PROJECTOR_OUT, -1, by.operator, by.section);
    double *y = m3_gradients_room(g, n), *allowed = m3_gradients_room(g, n);
    /* An expert without a row, and the router's bias, have gradients of 0. */
    if (!g->status && !is_bias_of_router(spec) && r.T > 0) m3_gradients_add(g, &r, output, y, allowed, n);
    if (!g->status && !g->missing[0]) judge(g, out, y, allowed, n, w->cols, "layers.0.q_proj");
    end(g, out);
    return g->status;
}

/* ---- the whole */

/* Of a file that does not name its losses: `unknown`. */
static int has_loss(const struct m3_safetensors *file, const char *loss, int unknown)
{
    const char *text = m3_safetensors_metadata(file, "loss_weights");
    json_t *weights = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *weight = json_object_get(weights, loss);
    const int has = weight ? json_number_value(weight) != 0 : unknown;
    json_decref(weights);
    return has;
}

int m3_blame_gradients(struct m3_judgement *result, const struct m3_blaming *b)
{
    const struct m3_arithmetic plain = m3_setting_arithmetic(b->setting, 1);
    struct m3_gradients g = { .result = result, .b = b, .s = b->setting, .plain = plain };
    g.how = m3_backward_arithmetic_of(b->setting->profile, 0, &plain);
    g.has_aux = has_loss(b->side.file, "aux", 0);
    g.has_mtp = b->setting->model->mtp_modules > 0 && has_loss(b->side.file, "mtp", 1);
    for (int64_t i = b->count - 1; i >= 0 && !g.status; i--) {
        char name[80];
        snprintf(name, sizeof name, "d.%s", b->items[i].name);
        const struct m3_tensor *t = m3_safetensors_find(b->side.file, name);
        if (t && m3_tap_matches(b->options->taps, name)) judge_tap(&g, t, b->items[i].tap, b->items[i].layer);
    }
    const struct m3_config *c = &b->setting->model->config;
    if (!g.status)
        g.status = m3_tensors_each(c, b->setting->model->mtp_modules, m3_tensors_prefix(c), judge_parameter, &g);
    if (g.others > 0)
        m3_fail(&result->notes, M3_OK, "gradients that blame does not recompute: %" PRId64 ", first %s", g.others,
                g.first_other);
    return g.status;
}
