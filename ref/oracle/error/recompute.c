#include "oracle/error/private/recompute.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/room.h"
#include "oracle/error/tiers/tiers.h"

int64_t m3_tap_rows(const struct m3_setting *setting, enum m3_tap tap, int64_t layer)
{
    return m3_case_rows(setting->the_case, &setting->model->config, tap, layer);
}

int64_t m3_tap_width(const struct m3_setting *setting, enum m3_tap tap, int64_t layer)
{
    return m3_case_width(setting->the_case, &setting->model->config, tap, layer);
}

void *m3_recompute_scratch(struct m3_recomputing *m, int64_t count, size_t size)
{
    if (m->status) return NULL;
    void *memory = m3_scratch_take(m->ctx, count, size);
    if (!memory) m->status = m3_fail_memory(m->error, m3_tap_table[m->tap].name, (size_t)count * size);
    return memory;
}

void m3_recompute_missing(struct m3_recomputed *out, const char *what, ...)
{
    va_list list;
    va_start(list, what);
    vsnprintf(out->missing, sizeof out->missing, what, list);
    va_end(list);
}

int m3_recompute_check(struct m3_recomputing *m, int status)
{
    const struct m3_failure *at = &m->ctx->failure;
    char name[96] = "";
    if (m->status || !status) return m->status;
    m3_tap_name(name, sizeof name, m->tap, m->layer);
    m->status = status == M3_INTERNAL ? M3_INTERNAL : M3_WRONG;
    return m3_fail(m->error, m->status, "%s: row %" PRId64 " of those given: %s", name, at->row,
                   at->what ? at->what : "the operator failed");
}

void m3_allowance(double *error, double *variance, const struct m3_bound *bound, int64_t n, double u)
{
    const double steps = (double)(bound->n + bound->f);
    for (int64_t i = 0; i < n; i++) {
        const double walk = u * bound->walk[i];
        error[i] = m3_bound_allowed(bound->bound[i], steps, u);
        variance[i] = walk * walk / 3;
    }
}

/* How the operator's intermediates are stored. Formats with the range of floats have no steps to speak of. */
static void read_points(struct m3_recomputing *m)
{
    char name[160];
    for (int i = 0; i < M3_POINTS && m->setting->profile && m->op->points[i]; i++) {
        m3_point_name(name, sizeof name, m->tap, m->layer, m->op->points[i]);
        m->stored[i] = m3_profile_store(m->setting->profile, name);
        const double floor = m3_profile_store_floor(m->setting->profile, name);
        m->floor[i] = floor > 0x1p-126 ? floor : 0;
    }
}

/* In which parts the tap is computed. An additive join adds a vector that no rank has a part of. */
static struct m3_partials partials_of(const struct m3_recomputing *m)
{
    const struct m3_profile *profile = m->setting->profile;
    struct m3_partials none = { 0 };
    char name[96];
    if (!profile || !m->op->in_parts || m->node->adds_input) return none;
    if (m3_tap_name(name, sizeof name, m->tap, m->layer) || m3_profile_exact(profile, name)) return none;
    return m3_profile_partials(profile, name);
}

/* The spread to which propagated errors are added, initially zeros; NULL if memory is short. */
static struct m3_spread *spread_of_result(struct m3_recomputing *m)
{
    struct m3_spread *extra = &m->out->y.off;
    if (m->status) return NULL;
    if (extra->error) return extra;
    extra->error = m3_room((size_t)m->count + 1, sizeof(double));
    extra->variance = m3_room((size_t)m->count + 1, sizeof(double));
    if (extra->error && extra->variance) return extra;
    m->status = m3_fail_memory(m->error, m3_tap_table[m->tap].name, (size_t)m->count * sizeof(double));
    return NULL;
}

/* What is exact is its value rounded once to the format in which it is stored. */
static void round_as_stored(struct m3_recomputing *m, enum m3_dtype dtype)
{
    for (int64_t i = 0; i < m->count; i++) m->out->y.values[i] = m3_stored_as(m->out->y.values[i], dtype);
}

/* Adds the error of storing the tap itself. A copy adds none if its source was stored as coarsely, and neither does a
 * sum of parts, whose errors include it. */
static void store(struct m3_recomputing *m)
{
    const struct m3_profile *profile = m->setting->profile;
    char name[96], source[96];
    enum m3_tap tap;
    int64_t layer;
    if (!profile || m->setting->unrounded || m->status || m3_tap_name(name, sizeof name, m->tap, m->layer)) return;
    const double u = m3_profile_store(profile, name);
    if (u == 0 || m->partials.ranks > 0) return;
    if (m3_profile_exact(profile, name)) {
        round_as_stored(m, m3_profile_dtype(profile, name));
        return;
    }
    if (m->op->copies && !m3_setting_operand(&tap, &layer, m->setting, m->tap, m->layer, 0) &&
        !m3_tap_name(source, sizeof source, tap, layer) && m3_profile_store(profile, source) >= u)
        return;
    struct m3_spread *out = spread_of_result(m);
    if (out) m3_propagate_store(out, m->out->y.values, m->count, u, m3_profile_store_floor(profile, name));
}

/* Rows [r, r + rows) of a tap. */
static struct m3_recomputing part_of(const struct m3_recomputing *m, int64_t r, int64_t rows)
{
    struct m3_recomputing part = *m;
    const int64_t at = r * m->width;
    part.numbers += r, part.rows = rows, part.count = rows * m->width;
    if (m->ids) part.ids += at;
    if (m->y) part.y += at;
    if (m->bound.bound) part.bound.bound += at, part.bound.walk += at;
    if (m->bound.suspect) part.bound.suspect += at;
    part.spread = m3_spread_from(&m->spread, at);
    for (int i = 0; i < M3_OPERANDS; i++) {
        struct m3_tap_values *in = &part.in[i];
        if (!m3_is_by_row(m, i) || !in->data) continue;
        if (m3_tap_ids(in)) in->ids += r * in->width;
        else in->values += r * in->width;
        in->off = m3_spread_from(&in->off, r * in->width);
    }
    return part;
}

/* Are the weights of experts made row by row? */
static int is_made_by_row(const struct m3_recomputing *m) { return m->setting->need && m->node->op == M3_OP_EXPERT; }

/* Calls one of the operator's functions, and releases its scratch memory. */
static void call(struct m3_recomputing *m, int (*function)(struct m3_recomputing *))
{
    for (int64_t r = 0, rows; function && r < m->rows && !m->status; r += rows) {
        const size_t mark = m3_scratch_mark(m->ctx);
        rows = is_made_by_row(m) ? 1 : m->op->by_span ? m3_recompute_span(m, r) : m->rows;
        struct m3_recomputing part = part_of(m, r, rows);
        if (is_made_by_row(m))
            part.status =
                m->setting->need(m->setting->need_self, part.in[1].ids, m->config->K, m->ctx->threads, m->error);
        const int status = part.status ? part.status : function(&part);
        m->status = part.status;
        m3_recompute_check(m, status);
        m->bound.n = part.bound.n, m->bound.f = part.bound.f;
        m3_scratch_release(m->ctx, mark);
    }
}

int m3_recompute_stage(struct m3_recomputing *m, struct m3_tap_request *r, int64_t first)
{
    const struct m3_case *c = m->setting->the_case;
    const struct m3_request how = { .ids = c->ids ? c->ids + first : NULL,
                                    .positions = c->positions,
                                    .seen = c->seen,
                                    .shift = c->shift,
                                    .pictures = &c->pictures,
                                    .semantics = m->setting->semantics,
                                    .linear = m->ctx->linear,
                                    .threads = m->ctx->threads };
    r->how = &how;
    r->layer = m->layer;
    r->p0 = c->p0 + first;
    r->ctx = m->ctx;
    return m->status ? m->status : m3_engine_f64()->tap(m->setting->model, r, NULL);
}

/* The value of a tap by the engine's own stage. Where the stage makes two taps, the other one goes to scratch memory. */
static int value(struct m3_recomputing *m)
{
    const enum m3_tap tap = m3_computed_with(m->tap), beside = m3_computed_beside(tap);
    const int is_beside = tap != m->tap, joined = m->tap == M3_TAP_MTP_EH_PROJ;
    void *y = m->y ? (void *)m->y : m->ids, *other = NULL;
    if (beside < M3_TAPS)
        other = m3_recompute_scratch(m, m->rows * m3_tap_width(m->setting, is_beside ? tap : beside, m->layer),
                                     sizeof(double));
    struct m3_tap_request r = { .tap = tap,
                                .rows = m->rows,
                                .places = m->setting->the_case->p0 + m3_tap_rows(m->setting, m->tap, m->layer),
                                .y = is_beside ? other : y,
                                .second = is_beside ? y : other };
    /* The operands of eh_proj are behind what is joined of them. */
    for (int i = 0; i < M3_TAP_INPUTS; i++) r.in[i] = m->in[joined + i].data;
    return m3_recompute_stage(m, &r, m->numbers[0]);
}

static void propagate(struct m3_recomputing *m)
{
    int is_off = m->partials.ranks > 0 || m->weight_floor > 0;
    for (int i = 0; i < M3_OPERANDS; i++) is_off |= m3_is_off(&m->in[i]);
    for (int i = 0; i < M3_POINTS; i++) is_off |= m->stored[i] > 0;
    struct m3_spread *spread = m->op->propagate && is_off ? spread_of_result(m) : NULL;
    if (!spread) return;
    m->spread = *spread;
    call(m, m->op->propagate);
}

/* Is every weight that the tap reads present? */
static int has_weights(struct m3_recomputing *m)
{
    int absent = 0;
    for (int i = 0; i < M3_NODE_WEIGHTS; i++) {
        m->w[i] = m3_graph_weight(m->setting->model, m->setting->semantics, m->tap, m->layer, i);
        absent |= i < m->node->weight_count && (!m->w[i] || (!m->w[i]->data && !is_made_by_row(m)));
    }
    if (!absent) return 1;
    char name[96] = "";
    m3_tap_name(name, sizeof name, m->tap, m->layer);
    m3_recompute_missing(m->out, "the weights of %s", name);
    return 0;
}

static void expand_vectors(struct m3_recomputing *m)
{
    for (int i = 0; i < M3_NODE_WEIGHTS; i++) {
        if (!m->w[i] || m->w[i]->rows != 1) continue;
        double *vector = m3_recompute_scratch(m, m->w[i]->cols, sizeof *vector);
        if (vector) m3_expand_f64(vector, m->w[i], 0, 0, m->w[i]->cols);
        m->vector[i] = vector;
    }
}

/* Allocates the results, and the numbers of their rows unless these are all rows. */
static void results(struct m3_recomputing *m)
{
    struct m3_recomputed *out = m->out;
    const size_t count = (size_t)m->count + 1;
    const int ids = m3_tap_table[m->tap].kind != M3_KIND_REALS;
    int short_of = 0;
    out->y = (struct m3_tap_values){ .tap = m->tap, .layer = m->layer, .rows = m->rows, .width = m->width };
    if (m->rows < m3_tap_rows(m->setting, m->tap, m->layer)) {
        int64_t *numbers = malloc((size_t)m->rows * sizeof *numbers);
        if (numbers) memcpy(numbers, m->numbers, (size_t)m->rows * sizeof *numbers);
        out->y.numbers = numbers;
        short_of = !numbers;
    }
    if (ids) {
        short_of |= !(out->y.ids = malloc(count * sizeof *out->y.ids));
    } else if (!m->setting->visit) {
        short_of |= !(out->y.values = m3_room(count, sizeof *out->y.values));
    }
    if (!ids && !m->setting->instead) {
        short_of |= !(out->bound = m3_room(count, sizeof *out->bound));
        short_of |= !(out->walk = m3_room(count, sizeof *out->walk));
        if (m->op->has_suspect) short_of |= !(out->suspect = m3_room(count, sizeof *out->suspect));
    }
    if (short_of) m->status = m3_fail_memory(m->error, m3_tap_table[m->tap].name, count * sizeof *out->y.values);
    m->y = ids ? NULL : out->y.values, m->ids = ids ? out->y.ids : NULL;
    m->bound = (struct m3_bound){ .bound = out->bound, .walk = out->walk, .suspect = out->suspect };
}

int64_t m3_setting_end(const struct m3_setting *s) { return s->part.end > 0 ? s->part.end : s->model->config.layers; }

int m3_setting_judges(const struct m3_setting *s, enum m3_tap tap, int64_t layer)
{
    const enum m3_tap_where where = m3_tap_table[tap].where;
    const int at_end = m3_setting_end(s) == s->model->config.layers;
    if (m3_mtp_module_of(layer) >= 0 || where >= M3_WHERE_AFTER_LAYERS) return at_end;
    if (where < M3_WHERE_EVERY_LAYER) return s->part.judged == 0;
    return layer >= s->part.judged && layer < m3_setting_end(s);
}

struct m3_arithmetic m3_setting_arithmetic(const struct m3_setting *setting, int64_t elements)
{
    struct m3_arithmetic how = m3_arithmetic_f32();
    how.lambda = m3_lambda(elements);
    if (setting->profile) how = m3_profile_arithmetic(setting->profile, elements);
    if (setting->semantics->rope_angle == M3_ANGLE_F32) how.angle = M3_ANGLE_F32;
    return how;
}

/* What the result may be off by. */
static void allow(struct m3_recomputing *m)
{
    call(m, m->op->bound);
    propagate(m);
    m->out->n = m->bound.n, m->out->f = m->bound.f;
    if (m->y) store(m);
}

int m3_recompute(struct m3_recomputed *out, const struct m3_setting *setting, enum m3_tap tap, int64_t layer,
                 const struct m3_tap_values *const operands[M3_OPERANDS], int64_t first, int64_t end,
                 struct m3_error *error)
{
    const struct m3_node *node = m3_graph_node(setting->model, setting->semantics, tap, layer);
    const size_t mark = m3_scratch_mark(setting->ctx);
    struct m3_recomputing m = { .setting = setting,
                                .config = &setting->model->config,
                                .ctx = setting->ctx,
                                .tap = tap,
                                .layer = layer,
                                .node = node,
                                .op = m3_error_operators[node->op],
                                .operands = operands,
                                .first = first,
                                .end = end,
                                .width = m3_tap_width(setting, tap, layer),
                                .out = out,
                                .error = error };
    *out = (struct m3_recomputed){ 0 };
    if (has_weights(&m)) m3_recompute_choose_rows(&m);
    if (!m.status && !out->missing[0]) {
        m.count = m.rows * m.width;
        m.how = m3_setting_arithmetic(setting, m.count);
        read_points(&m);
        for (int i = 0; i < m.op->reads; i++) m3_recompute_round_read(&m, i);
        m.partials = partials_of(&m);
        results(&m);
        expand_vectors(&m);
        if (m.op->prepare && !m.status) m3_recompute_check(&m, m.op->prepare(&m));
        call(&m, setting->instead ? setting->instead : m.op->value ? m.op->value : value);
        if (!setting->instead) allow(&m);
    }
    m3_scratch_release(setting->ctx, mark);
    return m.status;
}

void m3_recomputed_free(struct m3_recomputed *out)
{
    m3_tap_values_free(&out->y);
    free(out->bound);
    free(out->walk);
    free(out->suspect);
    *out = (struct m3_recomputed){ 0 };
}
