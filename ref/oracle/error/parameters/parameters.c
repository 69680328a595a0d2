#include "oracle/error/parameters/parameters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/parameters/filter.h"
#include "oracle/error/parameters/private/derivatives.h"
#include "oracle/error/private/kernels.h"

/* How the derivative's unit relates to the parameter's. */
enum unit { PLAIN, RELATIVE, CAP };

struct parameter {
    const char *name;
    int (*derivative)(struct m3_recomputing *m);
    enum m3_operator op;
    enum unit unit;
};

static const struct parameter parameters[] = {
    { "alpha", m3_by_alpha, M3_OP_ACTIVATION, PLAIN },
    { "alpha", m3_by_alpha, M3_OP_GATED_MLP, PLAIN },
    { "alpha", m3_by_alpha, M3_OP_EXPERT, PLAIN },
    { "beta of up + beta", m3_by_beta, M3_OP_ACTIVATION, PLAIN },
    { "beta of up + beta", m3_by_beta, M3_OP_GATED_MLP, PLAIN },
    { "beta of up + beta", m3_by_beta, M3_OP_EXPERT, PLAIN },
    { "limit", m3_by_limit_of_up, M3_OP_ACTIVATION, PLAIN },
    { "limit", m3_by_limit_of_gate, M3_OP_ACTIVATION, PLAIN },
    { "limit", m3_by_limit_of_up, M3_OP_GATED_MLP, PLAIN },
    { "limit", m3_by_limit_of_up, M3_OP_EXPERT, PLAIN },
    { "routed scaling factor", m3_by_factor, M3_OP_ROUTED, PLAIN },
    { "scale of scores", m3_by_scale, M3_OP_ATTEND, RELATIVE },
    { "soft cap of scores", m3_by_cap, M3_OP_ATTEND, CAP },
    { "scale of scores", m3_by_scale, M3_OP_ATTEND_SEGMENTS, RELATIVE },
    { "soft cap of scores", m3_by_cap, M3_OP_ATTEND_SEGMENTS, CAP },
    { "theta", m3_by_theta, M3_OP_ROPE, RELATIVE },
    { "theta", m3_by_theta, M3_OP_ROPE_3D, RELATIVE },
    { "eps", m3_by_eps, M3_OP_RMS_NORM, PLAIN },
    { "eps", m3_by_eps, M3_OP_LAYER_NORM, PLAIN },
    { "index scale", m3_by_index_scale, M3_OP_BLOCK_SCORES, RELATIVE },
};

enum { PARAMETERS = sizeof parameters / sizeof parameters[0] };

static double expected_of(const struct m3_setting *s, const struct parameter *p)
{
    const struct m3_config *c = &s->model->config;
    switch (p->op) {
    case M3_OP_ACTIVATION:
    case M3_OP_GATED_MLP:
    case M3_OP_EXPERT:
        if (p->derivative == m3_by_beta) return 1;
        return p->derivative == m3_by_alpha ? m3_setting_gate(s).alpha : c->swiglu_limit;
    case M3_OP_ROUTED: return c->routed_scaling;
    case M3_OP_ATTEND: return p->unit == CAP ? 0 : 1 / sqrt((double)c->D);
    case M3_OP_ATTEND_SEGMENTS: return p->unit == CAP ? 0 : 1 / sqrt((double)c->vision.U);
    case M3_OP_ROPE: return c->rope_theta;
    case M3_OP_ROPE_3D: return c->vision.rope_theta;
    case M3_OP_LAYER_NORM: return c->vision.eps;
    case M3_OP_BLOCK_SCORES: return s->semantics->index_scale == M3_INDEX_SCALE_RSQRT ? 1 / sqrt((double)c->X) : 1;
    default: return c->eps;
    }
}

/* Does the operator have the parameter in this model? */
static int has_parameter(const struct m3_setting *s, const struct parameter *p, enum m3_operator op)
{
    const int gated = op == M3_OP_ACTIVATION || op == M3_OP_GATED_MLP || op == M3_OP_EXPERT;
    return p->op == op && (!gated || s->model->config.oai);
}

/* ---- which elements share roundings */

/* Elements of a row, or of a head of a row, share those of its sum. Rotations by the same place share their sines: the
 * elements of an axis at that place are a group. */
struct groups {
    int64_t *of;                /* [rows,axes] */
    int64_t count, axes, each;  /* axis of element i of a row: i % period / each % axes */
    int64_t heads, period;      /* groups are divided by head; columns: i % period */
};

static int by_place(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

/* Rows of equal positions are one group. */
static int group_places(struct groups *g, const struct m3_setting *s, const struct m3_parameter_question *q)
{
    int64_t *pairs = malloc(2 * (size_t)q->rows * sizeof *pairs + 1);
    if (!pairs) return M3_INTERNAL;
    for (int64_t r = 0; r < q->rows; r++) pairs[2 * r] = s->the_case->positions[q->numbers[r]], pairs[2 * r + 1] = r;
    qsort(pairs, (size_t)q->rows, 2 * sizeof *pairs, by_place);
    for (int64_t i = 0; i < q->rows; i++) {
        g->count += i == 0 || pairs[2 * i] != pairs[2 * i - 2];
        g->of[pairs[2 * i + 1]] = g->count - 1;
    }
    free(pairs);
    return M3_OK;
}

/* A patch has a frame, a row and a column. */
static int group_patches(struct groups *g, const struct m3_setting *s, const struct m3_parameter_question *q)
{
    const struct m3_pictures *pictures = &s->the_case->pictures;
    const int64_t P = pictures->P;
    int64_t *ends = malloc(4 * (size_t)P * sizeof *ends + 1);
    if (!ends) return M3_INTERNAL;
    int64_t *places = ends + P;
    m3_pictures_segments(ends, places, pictures, &s->model->config.vision, s->semantics->vision_boundary);
    for (int64_t i = 0; i < 3 * q->rows; i++) g->of[i] = i % 3 * P + places[3 * q->numbers[i / 3] + i % 3];
    g->count = 3 * P;
    free(ends);
    return M3_OK;
}

static int group(struct groups *g, const struct m3_setting *s, const struct m3_parameter_question *q,
                 enum m3_operator op)
{
    const struct m3_config *c = &s->model->config;
    *g = (struct groups){ .count = q->rows, .axes = 1, .each = q->width, .heads = 1, .period = q->width };
    if (op == M3_OP_ATTEND) g->heads = c->Q;
    if (op == M3_OP_ATTEND_SEGMENTS) g->heads = c->vision.A;
    if (op == M3_OP_BLOCK_SCORES) g->heads = c->G;
    if (op == M3_OP_ROPE_3D) g->axes = 3, g->each = c->vision.U / 6, g->period = c->vision.U;
    g->of = malloc((size_t)(q->rows * g->axes) * sizeof *g->of + 1);
    if (!g->of) return M3_INTERNAL;
    if (op == M3_OP_ROPE_3D) return group_patches(g, s, q);
    if (op == M3_OP_ROPE) {
        g->count = 0;
        return group_places(g, s, q);
    }
    for (int64_t r = 0; r < q->rows; r++) g->of[r] = r;
    return M3_OK;
}

static int64_t group_of(const struct groups *g, int64_t row, int64_t width, int64_t i)
{
    return g->of[row * g->axes + i % g->period / g->each % g->axes] * g->heads + i / (width / g->heads);
}

/* Columns catch rows that are alike. Rotated, they are not. */
static int64_t columns_of(const struct groups *g, enum m3_operator op)
{
    enum { MOST = 1 << 16 };        /* larger groups prove as much */
    return op == M3_OP_ROPE || op == M3_OP_ROPE_3D ? 1 : m3_min(g->period, MOST);
}

/* ---- the test */

/* Clamped gates share the roundings of one sig: at most this share of y. */
static double shared_rounding(const struct m3_setting *s, const struct m3_parameter_question *q,
                              const struct parameter *p)
{
    char name[160];
    const double exponent = s->model->config.swiglu_alpha * s->model->config.swiglu_limit;
    if (p->derivative != m3_by_limit_of_gate || !s->profile) return 0;
    m3_point_name(name, sizeof name, q->tap, q->layer, "mlp.act.chain");
    return (3 + fabs(exponent) * (1 - m3_logistic(exponent))) * m3_profile_store(s->profile, name);
}

/* A constant times numbers of few bits, rounded to as many: the mean of the relative error, which is not 0. */
static double rounded_constant(double constant, double u)
{
    const int bits = u > 0 ? (int)lround(-log2(u)) : 0;
    double sum = 0, weights = 0;
    if (bits < 2 || bits > 16 || !(constant > 0) || !isfinite(constant)) return 0;
    for (int64_t m = (int64_t)1 << (bits - 1); m < (int64_t)1 << bits; m++) {
        int exponent;
        const double x = constant * (double)m, part = ldexp(frexp(x, &exponent), bits);
        sum += (nearbyint(part) / part - 1) / (double)m;
        weights += 1 / (double)m;
    }
    return fabs(sum / weights);
}

/* Of the constant that the parameter is. */
static double constant_error(const struct m3_setting *s, const struct m3_parameter_question *q,
                             const struct parameter *p)
{
    const int attends = p->op == M3_OP_ATTEND || p->op == M3_OP_ATTEND_SEGMENTS;
    const int64_t D = p->op == M3_OP_ATTEND ? s->model->config.D : s->model->config.vision.U;
    const char *point = attends ? "attn.logits" : p->derivative == m3_by_factor ? "moe.routed" : "mlp.act.chain";
    char name[160];
    if (!s->profile || (!attends && p->derivative != m3_by_factor && p->derivative != m3_by_alpha)) return 0;
    m3_point_name(name, sizeof name, q->tap, q->layer, point);
    const double constant = attends ? 1 / sqrt((double)D) : expected_of(s, p);
    return 1.5 * rounded_constant(constant, m3_profile_store(s->profile, name)) * (attends ? 1 : constant);
}

/* The honest errors that go to one side. The bound of a gated MLP has every step of its sums in it, each multiplied by the
 * largest slope that follows: four times its walk is as much as four roundings of a sum's terms are of a sum. */
static struct m3_filter_rules rules_of(const struct m3_setting *s, const struct m3_parameter_question *q,
                                       const struct parameter *p)
{
    const double steps = (double)(q->values->n + q->values->f), most = (steps < 4 ? steps : 4) * q->values->u;
    struct m3_filter_rules rules = { .of_y = shared_rounding(s, q, p), .of_shape = constant_error(s, q, p) };
    if (p->op == M3_OP_GATED_MLP || p->op == M3_OP_EXPERT) {
        rules.of_walk = 4 * q->values->u;
        rules.of_y = 16 * q->values->u;
    } else rules.most = most;
    return rules;
}

/* The elements of a tap on their way into a filter. */
struct collecting {
    struct m3_filter *filter;
    const struct m3_parameter_question *q;
    const struct groups *g;
    struct m3_filter_rules rules;
};

/* The groups of elements of row r from `first` on. */
static void number(struct m3_filter_elements *e, const struct groups *g, int64_t r, int64_t width, int64_t first,
                   int64_t columns)
{
    const int is_one = g->axes == 1 && g->heads == 1;
    int64_t in_period = first % g->period, column = in_period % columns;
    for (int64_t i = 0; i < e->n; i++) {
        e->row[i] = is_one ? g->of[r] : group_of(g, r, width, first + i);
        e->column[i] = column;
        if (++in_period == g->period) in_period = column = 0;
        else if (++column == columns) column = 0;
    }
}

/* A piece of row r with the derivative by the parameter, and an honest error that all elements may share; nothing if
 * the row is like another one. */
static void collect(const struct collecting *c, int64_t r, int64_t first, const double *by, const double *shape,
                    int64_t n)
{
    struct m3_filter_elements e = { .n = n };
    if (c->q->values->repeated && c->q->values->repeated[r]) return;
    if (!m3_error_kernels()->filter_elements(&e, c->q->values, by, shape, &c->rules, r * c->q->width + first)) return;
    number(&e, c->g, r, c->q->width, first, c->filter->column_count);
    m3_filter_add(c->filter, &e);
}

static void visit(void *self, int64_t number, int64_t first, const double *by, int64_t n)
{
    const struct collecting *c = self;
    const int64_t r = m3_row_index(c->q->numbers, c->q->rows, number);
    if (r >= 0) collect(c, r, first, by, by, n);
}

static void collect_all(const struct collecting *c, const struct m3_recomputed *by, const struct m3_recomputed *shape)
{
    const int64_t width = c->q->width;
    for (int64_t r = 0; r < c->q->rows; r++) {
        const int64_t at = m3_tap_values_row(&by->y, c->q->numbers[r]) * width;
        for (int64_t i = 0; i < width && at >= 0; i += M3_FILTER_PIECE)
            collect(c, r, i, by->y.values + at + i, shape->y.values + at + i, m3_min(M3_FILTER_PIECE, width - i));
    }
}

/* Keeps the parameter that explains most. */
static void keep(struct m3_tier_result *result, const struct m3_setting *s, const struct parameter *p,
                 const struct m3_fit *fit)
{
    const double LEAST = 5, HALF = 0.5, expected = expected_of(s, p);
    struct m3_parameter *found = &result->parameter;
    const int is_off = fabs(fit->z) >= LEAST && (result->verdict == M3_VERDICT_PASS || fit->explained >= HALF);
    found->tested++;
    if (found->name ? !is_off || !(fabs(fit->z) > fabs(found->z)) : !is_off && !(fabs(fit->z) > fabs(found->z))) return;
    found->z = fit->z;
    if (!is_off) return;
    const double size = p->unit == RELATIVE ? expected : 1;
    found->name = p->name;
    found->expected = expected;
    found->estimate = p->unit == RELATIVE ? expected * exp(fit->change) : expected + fit->change;
    found->standard_error = size * fit->standard_error;
    found->is_cap = p->unit == CAP;
}

static int is_of(const struct m3_recomputed *derivative, const struct m3_parameter_question *q)
{
    return derivative->missing[0] == 0 && derivative->y.width == q->width;
}

/* Does the derivative come in pieces, so that no array of it is needed? */
static int comes_in_pieces(const struct parameter *p)
{
    return p->op == M3_OP_ACTIVATION || p->op == M3_OP_GATED_MLP || p->op == M3_OP_EXPERT;
}

/* Each derivative of experts takes products with their matrices: that of more rows would prove no more. */
static int64_t rows_of(const struct parameter *p, const struct m3_parameter_question *q)
{
    enum { MOST = 1 << 20, LEAST = 32 };        /* numbers; rows */
    const int is_dear = p->op == M3_OP_GATED_MLP || p->op == M3_OP_EXPERT;
    return is_dear ? m3_min(q->rows, m3_max(LEAST, MOST / m3_max(1, q->width))) : q->rows;
}

/* *found: the derivative has the tap's shape. */
static int fill(int *found, struct collecting *c, struct m3_trace *trace, const struct parameter *p,
                struct m3_error *error)
{
    const struct m3_parameter_question *q = c->q;
    const struct m3_visit to = { visit, c };
    struct m3_recomputed by, by_scale = { 0 };
    const int in_pieces = comes_in_pieces(p);
    const int64_t first = q->numbers[0], end = q->numbers[rows_of(p, q) - 1] + 1;
    int status =
        m3_trace_derivative(&by, trace, q->tap, q->layer, first, end, p->derivative, in_pieces ? &to : NULL, error);
    if (!status && p->unit == CAP)      /* the constant is the scale */
        status = m3_trace_derivative(&by_scale, trace, q->tap, q->layer, first, end, m3_by_scale, NULL, error);
    const struct m3_recomputed *shape = p->unit == CAP ? &by_scale : &by;
    *found = !status && is_of(&by, q) && is_of(shape, q);
    if (*found && !in_pieces) collect_all(c, &by, shape);
    m3_recomputed_free(&by);
    m3_recomputed_free(&by_scale);
    return status;
}

/* A filter with room for the groups: [row_count] and [column_count]. */
static int room(struct m3_filter *filter, const struct groups *g, int64_t columns, enum m3_tap tap,
                struct m3_error *error)
{
    *filter = (struct m3_filter){ .row_count = g->count * g->heads, .column_count = columns };
    filter->rows = calloc((size_t)(filter->row_count + columns), sizeof *filter->rows);
    if (!filter->rows) return m3_fail_memory(error, m3_tap_table[tap].name, (size_t)filter->row_count);
    filter->columns = filter->rows + filter->row_count;
    return M3_OK;
}

static int test(struct m3_tier_result *result, struct m3_trace *trace, const struct m3_setting *s,
                const struct m3_parameter_question *q, const struct groups *g, const struct parameter *p,
                struct m3_error *error)
{
    struct m3_filter filter;
    struct collecting c = { &filter, q, g, rules_of(s, q, p) };
    int found;
    int status = room(&filter, g, columns_of(g, p->op), q->tap, error);
    if (status) return status;
    status = fill(&found, &c, trace, p, error);
    if (found) {
        const struct m3_fit fit = m3_filter_fit(&filter);
        keep(result, s, p, &fit);
    }
    free(filter.rows);
    return status == M3_WRONG ? M3_OK : status;
}

int m3_direction_fit(struct m3_fit *fit, const struct m3_setting *setting, const struct m3_parameter_question *q,
                     const double *by, struct m3_error *error)
{
    const enum m3_operator op = m3_graph_node(setting->model, setting->semantics, q->tap, q->layer)->op;
    struct m3_filter filter;
    struct groups g;
    *fit = (struct m3_fit){ 0 };
    int status = group(&g, setting, q, op);
    if (status) return m3_fail_memory(error, m3_tap_table[q->tap].name, (size_t)q->rows * sizeof *g.of);
    const int64_t columns = columns_of(&g, op);
    status = room(&filter, &g, columns, q->tap, error);
    const struct collecting c = { &filter, q, &g, { .of_y = q->values->u } };
    for (int64_t r = 0; r < q->rows && !status; r++)
        for (int64_t i = 0; i < q->width; i += M3_FILTER_PIECE) {
            const double *piece = by + r * q->width + i;
            collect(&c, r, i, piece, piece, m3_min(M3_FILTER_PIECE, q->width - i));
        }
    if (!status) *fit = m3_filter_fit(&filter);
    free(filter.rows);
    free(g.of);
    return status;
}

int m3_parameters_test(struct m3_tier_result *result, struct m3_trace *trace, const struct m3_setting *setting,
                       const struct m3_parameter_question *q, struct m3_error *error)
{
    const enum m3_operator op = m3_graph_node(setting->model, setting->semantics, q->tap, q->layer)->op;
    const struct m3_two_sides *v = q->values;
    struct groups g;
    /* Truncated sums are off to one side. */
    if (!m3_is_judged(result->verdict) || v->truncates || q->rows * q->width != v->count) return M3_OK;
    int status = group(&g, setting, q, op);
    if (status) m3_fail_memory(error, m3_tap_table[q->tap].name, (size_t)q->rows * sizeof *g.of);
    for (int i = 0; i < PARAMETERS && !status; i++)
        if (has_parameter(setting, &parameters[i], op))
            status = test(result, trace, setting, q, &g, &parameters[i], error);
    free(g.of);
    if (result->parameter.name && result->verdict != M3_VERDICT_FAIL) {
        result->verdict = M3_VERDICT_SUSPECT;
        result->tiers |= M3_TIER_PARAMETER;
    }
    return status;
}

void m3_parameter_say(char *text, size_t size, const struct m3_parameter *found)
{
    if (found->is_cap) {
        snprintf(text, size, "%s: 1/cap^2 looks like %.3g +- %.1g, a cap of %.3g, should be 0: none", found->name,
                 found->estimate, found->standard_error, 1 / sqrt(fabs(found->estimate)));
        return;
    }
    /* What shrinks or grows all values has effects like those of eps, with values that it cannot have. */
    const double off = fabs(found->estimate - found->expected);
    if (!(off > 2 * found->standard_error) || (found->estimate < 0 && found->expected > 0)) {
        snprintf(text, size, "its errors are like those of another %s, but no value of it explains them", found->name);
        return;
    }
    const double digits = ceil(log10(fabs(found->estimate / found->standard_error)) + 1.5);
    const int shown = digits >= 2 && digits <= 15 ? (int)digits : 6;
    snprintf(text, size, "%s looks like %.*g +- %.1g, should be %.9g", found->name, shown, found->estimate,
             found->standard_error, found->expected);
}
