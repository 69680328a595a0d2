#include "oracle/explain/steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/engine.h"
#include "ops/brief.h"
#include "ops/math.h"
#include "ops/ops.h"

const char *m3_by_name(enum m3_by by)
{
    static const char *const names[M3_BYS] = {
        "given",   "add", "subtract", "multiply",    "divide", "sqrt",        "exp",          "ln",
        "pow",     "cos", "sin",      "softmax_exp", "tail",   "at_most",     "at_least",     "round",
        "largest", "sum", "dot",      "matrix",      "pick",   "best_blocks", "best_experts",
    };
    return names[by];
}

void *m3_steps_scratch(struct m3_steps *s, int64_t count, size_t size)
{
    if (s->status) return NULL;
    void *memory = m3_scratch_take(s->ctx, m3_max(count, 1), size);
    if (!memory) s->status = m3_fail_memory(s->error, "explain", (size_t)count * size);
    return memory;
}

/* A step without values yet; NULL after a failure. */
static struct m3_explained_step *begin(struct m3_steps *s, enum m3_by by, enum m3_step_type type, const char *name,
                                       const char *formula, int64_t count)
{
    if (s->status) return NULL;
    if (s->count == s->room) {
        const int room = s->room ? 2 * s->room : 32;
        struct m3_explained_step *list = realloc(s->list, (size_t)room * sizeof *list);
        if (!list) {
            s->status = m3_fail_memory(s->error, "explain", (size_t)room * sizeof *list);
            return NULL;
        }
        s->list = list;
        s->room = room;
    }
    struct m3_explained_step *step = &s->list[s->count];
    *step = (struct m3_explained_step){ .by = by, .type = type, .of = { -1, -1, -1 }, .count = count };
    snprintf(step->name, sizeof step->name, "%s", name);
    snprintf(step->formula, sizeof step->formula, "%s", formula);
    return step;
}

/* The same with room for its values, counted among the steps. */
static double *add(struct m3_steps *s, enum m3_by by, enum m3_step_type type, const char *name, const char *formula,
                   int64_t count)
{
    struct m3_explained_step *step = begin(s, by, type, name, formula, count);
    if (!step) return NULL;
    step->values = calloc((size_t)m3_max(count, 1), sizeof *step->values);
    if (step->values) s->count++;
    else s->status = m3_fail_memory(s->error, "explain", (size_t)count * sizeof *step->values);
    return step->values;
}

static int last(const struct m3_steps *s) { return s->status ? -1 : s->count - 1; }

int m3_given_number(struct m3_steps *s, enum m3_step_type type, const char *name, const char *from, double value)
{
    double *values = add(s, M3_BY_GIVEN, type, name, from, 1);
    if (values) values[0] = type == M3_STEP_F32 ? (double)(float)value : value;
    return last(s);
}

int m3_given_floats(struct m3_steps *s, const char *name, const char *from, const float *x, int64_t n)
{
    double *values = x ? add(s, M3_BY_GIVEN, M3_STEP_F32, name, from, n) : NULL;
    for (int64_t i = 0; values && i < n; i++) values[i] = (double)x[i];
    return values ? last(s) : -1;
}

int m3_given_ints(struct m3_steps *s, const char *name, const char *from, const int32_t *x, int64_t n)
{
    double *values = x ? add(s, M3_BY_GIVEN, M3_STEP_INT, name, from, n) : NULL;
    for (int64_t i = 0; values && i < n; i++) values[i] = x[i];
    return values ? last(s) : -1;
}

int m3_given_row(struct m3_steps *s, const char *name, const char *from, const struct m3_weight *w, int64_t row)
{
    float *numbers = m3_steps_scratch(s, w->cols, sizeof *numbers);
    if (numbers) m3_expand_f32(numbers, w, row, 0, w->cols);
    return m3_given_floats(s, name, from, numbers, w->cols);
}

int m3_given_matrix(struct m3_steps *s, const char *name, const char *from, const struct m3_weight *w)
{
    struct m3_explained_step *step = begin(s, M3_BY_GIVEN, M3_STEP_F32, name, from, w->rows * w->cols);
    if (!step) return -1;
    step->matrix = *w;
    return s->count++;
}

int m3_given_keys(struct m3_steps *s, const char *name, const char *from, float *values, int64_t rows, int64_t cols)
{
    const struct m3_weight w = { .data = values, .dtype = M3_F32, .rows = rows, .cols = cols };
    const int step = values ? m3_given_matrix(s, name, from, &w) : -1;
    if (step >= 0) s->list[step].owned = values;
    else free(values);
    return step;
}

/* ---- operations on one or two numbers */

static float in_float(enum m3_by by, float a, float b)
{
    switch (by) {
    case M3_BY_ADD: return a + b;
    case M3_BY_SUBTRACT: return a - b;
    case M3_BY_MULTIPLY: return a * b;
    case M3_BY_DIVIDE: return a / b;
    case M3_BY_AT_MOST: return a > b ? b : a;
    case M3_BY_AT_LEAST: return a < b ? b : a;
    case M3_BY_SOFTMAX_EXP: return m3_weight_of(a);
    default: return a;
    }
}

static double in_double(enum m3_by by, double a, double b)
{
    double sine, cosine;
    switch (by) {
    case M3_BY_ADD: return a + b;
    case M3_BY_SUBTRACT: return a - b;
    case M3_BY_MULTIPLY: return a * b;
    case M3_BY_DIVIDE: return a / b;
    case M3_BY_SQRT: return sqrt(a);
    case M3_BY_EXP: return m3_exp(a);
    case M3_BY_LN: return m3_log(a);
    case M3_BY_POW: return m3_pow(a, b);
    case M3_BY_COS: m3_sincos(&sine, &cosine, a); return cosine;
    case M3_BY_SIN: m3_sincos(&sine, &cosine, a); return sine;
    case M3_BY_TAIL: return m3_tail((float)a);
    default: return a;
    }
}

/* ---- sums, by the plain linear of the step's type */

typedef int linear_of_doubles(struct m3_ctx *, double *y, const double *x, const struct m3_weight *w,
                              const double *bias, int64_t T);

/* y [rows] := w x */
static void apply(struct m3_steps *s, double *y, const struct m3_weight *w, const double *x)
{
    float *in = m3_steps_scratch(s, w->cols, sizeof *in), *out = m3_steps_scratch(s, w->rows, sizeof *out);
    if (!in || !out) return;
    for (int64_t i = 0; i < w->cols; i++) in[i] = (float)x[i];
    s->status = m3_engine_f32()->plain->linear(s->ctx, out, in, w, NULL, 1);
    for (int64_t i = 0; i < w->rows; i++) y[i] = (double)out[i];
}

/* The sum of a b, in the type; of a alone if b is NULL. */
static void dot(struct m3_steps *s, double *y, enum m3_step_type type, const double *a, const double *b, int64_t n)
{
    const size_t size = type == M3_STEP_F32 ? sizeof(float) : sizeof(double);
    char *row = m3_steps_scratch(s, n, size);
    double *ones = b ? NULL : m3_steps_scratch(s, n, sizeof *ones);
    if (s->status) return;
    for (int64_t i = 0; i < n; i++) {
        const float single = (float)a[i];
        memcpy(row + (size_t)i * size, type == M3_STEP_F32 ? (const void *)&single : (const void *)&a[i], size);
    }
    for (int64_t i = 0; ones && i < n; i++) ones[i] = 1;
    const struct m3_weight w = { .data = row, .dtype = type == M3_STEP_F32 ? M3_F32 : M3_F64, .rows = 1, .cols = n };
    if (type == M3_STEP_F32) {
        apply(s, y, &w, b ? b : ones);
        return;
    }
    linear_of_doubles *linear = (linear_of_doubles *)(void (*)(void))m3_engine_f64()->plain->linear;
    s->status = linear(s->ctx, y, b ? b : ones, &w, NULL, 1);
}

/* ---- steps */

static double largest(const double *values, int64_t n)
{
    double most = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (values[i] > most || values[i] != values[i]) most = values[i];
    return most;
}

static void fill(struct m3_steps *s, double *values, enum m3_by by, enum m3_step_type type, int64_t count,
                 const struct m3_explained_step *a, const struct m3_explained_step *b)
{
    const size_t mark = m3_scratch_mark(s->ctx);
    switch (by) {
    case M3_BY_LARGEST: values[0] = largest(a->values, a->count); break;
    case M3_BY_SUM: dot(s, values, type, a->values, NULL, a->count); break;
    case M3_BY_DOT: dot(s, values, type, a->values, b->values, a->count); break;
    case M3_BY_MATRIX: apply(s, values, &a->matrix, b->values); break;
    case M3_BY_PICK:
        for (int64_t i = 0; i < count; i++) values[i] = a->values[(int64_t)b->values[i]];
        break;
    default:
        for (int64_t i = 0; i < count; i++) {
            const double x = a->values[a->count == 1 ? 0 : i], y = b ? b->values[b->count == 1 ? 0 : i] : 0;
            values[i] = type == M3_STEP_F32 ? (double)in_float(by, (float)x, (float)y) : in_double(by, x, y);
        }
    }
    m3_scratch_release(s->ctx, mark);
}

static int64_t count_of(enum m3_by by, const struct m3_explained_step *a, const struct m3_explained_step *b)
{
    switch (by) {
    case M3_BY_LARGEST:
    case M3_BY_SUM:
    case M3_BY_DOT: return 1;
    case M3_BY_MATRIX: return a->matrix.rows;
    case M3_BY_PICK: return b->count;
    default: return b ? m3_max(a->count, b->count) : a->count;
    }
}

int m3_step(struct m3_steps *s, enum m3_by by, enum m3_step_type type, const char *name, const char *formula, int a,
            int b)
{
    if (s->status || a < 0) return -1;
    const int64_t count = count_of(by, &s->list[a], b < 0 ? NULL : &s->list[b]);
    double *values = add(s, by, type, name, formula, count);
    if (!values) return -1;
    struct m3_explained_step *step = &s->list[s->count - 1];
    step->of[0] = a;
    step->of[1] = b;
    fill(s, values, by, type, count, &s->list[a], b < 0 ? NULL : &s->list[b]);
    return last(s);
}

int m3_step_choice(struct m3_steps *s, enum m3_by by, const char *name, const char *formula, const int of[3],
                   const int32_t *ids, int64_t n)
{
    double *values = ids ? add(s, by, M3_STEP_INT, name, formula, n) : NULL;
    for (int64_t i = 0; values && i < n; i++) values[i] = ids[i];
    if (values) memcpy(s->list[s->count - 1].of, of, sizeof s->list->of);
    return values ? last(s) : -1;
}

double m3_step_value(const struct m3_steps *s, int step, int64_t i)
{
    return s->status || step < 0 || !s->list[step].values ? NAN : s->list[step].values[i];
}

void m3_steps_free(struct m3_steps *s)
{
    for (int i = 0; i < s->count; i++) {
        free(s->list[i].values);
        free(s->list[i].owned);
    }
    free(s->list);
    s->list = NULL;
    s->count = s->room = 0;
}
