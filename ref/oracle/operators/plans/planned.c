#include "oracle/operators/plans/planned.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "oracle/operators/parameters.h"
#include "base/row_list.h"
#include "oracle/operators/plans/sizes.h"

/* ---- parameters */

static int set_parameter(struct m3_planned_case *c, const struct m3_call_parameter *p, const char *text)
{
    json_t *value = p->type == M3_PARAMETER_COUNT    ? json_integer(strtoll(text, NULL, 10))
                    : p->type == M3_PARAMETER_NUMBER ? json_real(strtod(text, NULL))
                                                     : json_string(text);
    return value && json_object_set_new(c->parameters, p->name, value) == 0 ? M3_OK : M3_INTERNAL;
}

/* Every parameter is written, so that nobody has to know a default; sizes that are parameters are those of the case. */
static int take_parameters(struct m3_planned_case *c, const struct m3_plan *plan)
{
    const struct m3_call_parameter *p;
    char text[M3_PARAMETER_TEXT], given[M3_PARAMETER_TEXT];
    int status = M3_OK;
    c->parameters = json_object();
    if (!c->parameters) return M3_INTERNAL;
    for (int i = 0; !status && (p = m3_parameter_in(text, c->op->parameters, i)); i++) {
        const int64_t size = strcmp(p->name, "p0") == 0 ? c->p0 : m3_size_of_parameter(p->name, c->dims);
        if (size > 0) snprintf(text, sizeof text, "%" PRId64, size);
        m3_listed_value(given, sizeof given, plan ? plan->parameters : "", p->name);
        status = set_parameter(c, p, given[0] ? given : text);
    }
    return status;
}

/* ---- operands */

/* Under which an operand's numbers are drawn. */
static void name_operand(char name[M3_DRAWN_NAME], const struct m3_planned_case *c, const struct m3_operand_row *row)
{
    snprintf(name, M3_DRAWN_NAME, "%s.%" PRId64 ".%s", c->op->name, c->number, row->name);
}

static enum m3_dtype dtype_of(const struct m3_planned_case *c, const struct m3_operand_row *row,
                              const struct m3_make_options *o)
{
    switch (row->role) {
    case M3_ROLE_SCALES: return row->letters[0] == '_' ? M3_F32 : M3_U8;
    case M3_ROLE_SEEN: return M3_U8;
    case M3_ROLE_POSITIONS:
    case M3_ROLE_PLACES:
    case M3_ROLE_ENDS:
    case M3_ROLE_GRID: return M3_I64;
    case M3_ROLE_IDS: return M3_I32;
    case M3_ROLE_COS:
    case M3_ROLE_SIN: return M3_F32;
    default: break;
    }
    if (row->role == M3_ROLE_TAP && m3_tap_table[row->tap].kind == M3_KIND_CHOICES) return M3_I32;
    /* The router and the scores of blocks are kept in F32 by every engine. */
    if (row->tap == M3_TAP_ROUTER_LOGITS || row->tap == M3_TAP_ROUTER_SCORES || row->tap == M3_TAP_EXPERT_WEIGHTS ||
        row->tap == M3_TAP_EXPERTS || row->tap == M3_TAP_INDEX_BLOCK_SCORES)
        return M3_F32;
    if (row->role == M3_ROLE_WEIGHT && strstr(c->op->name, "fp8")) return M3_F8_E4M3;
    return o->dtype;
}

json_t *m3_planned_drawn(const struct m3_planned_case *c, int *status)
{
    json_t *all = NULL;
    *status = M3_OK;
    for (int i = 0; !*status && i < c->count; i++) {
        const struct m3_planned_operand *x = &c->operands[i];
        struct m3_drawing d;
        if (!x->is_drawn) continue;
        char name[M3_DRAWN_NAME];
        m3_fill_drawing(&d, &x->fill);
        name_operand(name, c, x->row);
        json_t *shape = json_array();
        for (int k = 0; k < x->tensor.rank; k++) json_array_append_new(shape, json_integer(x->tensor.shape[k]));
        json_t *one = json_pack("{s:I, s:s, s:s, s:o, s:I, s:f, s:f}", "seed", (json_int_t)c->seed, "name", name,
                                "dtype", m3_dtype_name(x->tensor.dtype), "shape", shape, "levels", (json_int_t)d.levels,
                                "offset", d.offset, "scale", d.scale);
        if (!all) all = json_object();
        if (json_object_set_new(all, x->row->name, one)) *status = M3_INTERNAL;
    }
    return all;
}

json_t *m3_planned_outputs(const struct m3_planned_case *c)
{
    json_t *all = json_object();
    for (int i = 0; all && i < M3_OPERATOR_OUTPUTS && c->op->outputs[i].role != M3_ROLE_NONE; i++) {
        int64_t shape[M3_MAX_RANK];
        const int rank = m3_shape_by_letters(shape, c->op->outputs[i].letters, c->dims);
        json_t *list = json_array();
        for (int d = 0; d < rank; d++) json_array_append_new(list, json_integer(shape[d]));
        json_object_set_new(all, c->op->outputs[i].name, list);
    }
    return all;
}

/* Adds a tensor to the size of its case, which is bounded before anything is allocated. */
static int add_size(struct m3_planned_case *c, const char *name, struct m3_tensor *t, struct m3_error *error)
{
    static const uint64_t most = (uint64_t)64 << 30;
    char shape[160] = "";
    int overflows = 0;
    t->count = 1;
    for (int i = 0; i < t->rank; i++) overflows |= __builtin_mul_overflow(t->count, t->shape[i], &t->count);
    overflows |= __builtin_mul_overflow((uint64_t)t->count, m3_dtype_bytes(t->dtype), &t->bytes);
    overflows |= __builtin_add_overflow(c->bytes, t->bytes, &c->bytes);
    if (!overflows && c->bytes <= most) return M3_OK;
    for (int i = 0; i < t->rank; i++) {
        const size_t length = strlen(shape);
        snprintf(shape + length, sizeof shape - length, "%s%" PRId64, i > 0 ? "," : "", t->shape[i]);
    }
    return m3_fail(error, M3_USAGE, "sizes: got %s [%s], with which a case of %s has more than %d GiB, expected less",
                   name, shape, c->op->name, (int)(most >> 30));
}

static int shape_operand(struct m3_planned_case *c, struct m3_planned_operand *x, struct m3_error *error)
{
    struct m3_tensor *t = &x->tensor;
    t->rank = m3_shape_by_letters(t->shape, x->row->letters, c->dims);
    if (x->row->role == M3_ROLE_SCALES) {
        const int64_t I = c->dims['I'], H = c->dims['H'];
        t->shape[0] = t->dtype == M3_F32 ? (I + 127) / 128 : I;
        t->shape[1] = t->dtype == M3_F32 ? (H + 127) / 128 : (H + 31) / 32;
    }
    const int status = add_size(c, x->row->name, t, error);
    if (!status) c->stored += t->bytes;
    return status;
}

/* Outputs are counted as F32, which is what most programs write. */
static int add_outputs(struct m3_planned_case *c, struct m3_error *error)
{
    int status = M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS && c->op->outputs[i].role != M3_ROLE_NONE; i++) {
        struct m3_tensor t = { .dtype = M3_F32 };
        t.rank = m3_shape_by_letters(t.shape, c->op->outputs[i].letters, c->dims);
        status = add_size(c, c->op->outputs[i].name, &t, error);
    }
    return status;
}

/* Weights are scaled so that sums over a row stay of the size of one term. */
static double scale_of(const struct m3_planned_operand *x)
{
    const struct m3_tensor *t = &x->tensor;
    int64_t cols = t->shape[t->rank - 1];
    double scale = 1;
    if (x->row->role != M3_ROLE_WEIGHT && x->row->role != M3_ROLE_EXPERTS)
        return x->row->tap == M3_TAP_MLP_GATE ? 8 : 1;
    if (t->rank == 1) return 0.25;
    for (; cols > 3; cols /= 4) scale /= 2;
    return 2 * scale;
}

static int add_operand(struct m3_planned_case *c, const struct m3_operand_row *row, const struct m3_plan *plan,
                       const struct m3_make_options *o, struct m3_error *error)
{
    struct m3_planned_operand *x = &c->operands[c->count];
    char name[M3_DRAWN_NAME], kind[24];
    const int64_t *d = c->dims;
    m3_listed_value(kind, sizeof kind, plan ? plan->fills : "", row->name);
    if (row->optional && !kind[0]) return M3_OK;
    if (!m3_fill_is_known(kind)) return m3_fail(error, M3_INTERNAL, "%s: got the fill %s", row->name, kind);
    *x = (struct m3_planned_operand){ .row = row };
    x->tensor = (struct m3_tensor){ .name = row->name, .dtype = dtype_of(c, row, o) };
    const int status = shape_operand(c, x, error);
    if (status) return status;
    name_operand(name, c, row);
    x->fill = (struct m3_fill){ .row = row,
                                .key = m3_draw_key(o->seed, name),
                                .scale = scale_of(x),
                                .coarse = o->dtype != M3_F32,
                                .cols = x->tensor.shape[x->tensor.rank - 1] };
    x->fill.width = x->tensor.shape[0] > 0 ? m3_max(1, x->tensor.count / x->tensor.shape[0]) : 1;
    x->fill.cols = m3_max(1, x->fill.cols);
    x->fill.other = c->count == 0 ? x->fill.key : c->operands[row->role == M3_ROLE_SIN ? c->count - 1 : 0].fill.key;
    if (row->role == M3_ROLE_COS) x->fill.other = x->fill.key;
    memcpy(x->fill.kind, kind, sizeof kind);
    const json_t *limit = json_object_get(c->parameters, "limit"), *id = json_object_get(c->parameters, "id");
    x->fill.call = (struct m3_fill_call){ .p0 = c->p0,
                                          .block = d['b'],
                                          .E = d['E'],
                                          .K = d['K'],
                                          .N = d['N'],
                                          .G = d['G'],
                                          .P = d['P'],
                                          .n = d['n'],
                                          .T = d['T'],
                                          .M = d['M'],
                                          .id = json_integer_value(id),
                                          .V = 0,
                                          .limit = limit ? json_number_value(limit) : 7 };
    if (m3_operator_has(c->op, 'V')) x->fill.call.V = d['V'];
    c->count++;
    return M3_OK;
}

/* The weights of many experts are not stored: both sides draw those that they need. A derivative needs all. */
static int choose_drawn(struct m3_planned_case *c, struct m3_error *error)
{
    static const uint64_t most_stored = 1u << 30;
    uint64_t bytes = 0;
    for (int i = 0; i < c->count; i++)
        if (c->operands[i].row->role == M3_ROLE_EXPERTS) bytes += c->operands[i].tensor.bytes;
    if (bytes <= most_stored) return M3_OK;
    if (c->op->derivative)
        return m3_fail(
            error, M3_USAGE,
            "%s: got weights of %.1f GB, expected at most 1 GiB, such as with --sizes T=64,E=4,K=2,F=3072,H=6144",
            c->op->name, (double)bytes / 1e9);
    for (int i = 0; i < c->count; i++) c->operands[i].is_drawn = c->operands[i].row->role == M3_ROLE_EXPERTS;
    c->stored -= bytes;
    return M3_OK;
}

/* ---- sampled rows */

static void sort_rows(int64_t *rows, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && rows[j - 1] > rows[j]; j--) {
            const int64_t row = rows[j];
            rows[j] = rows[j - 1], rows[j - 1] = row;
        }
}

/* How many rows of a case that is not long are judged, so that a verdict takes seconds; 0: all. */
static int64_t few_rows(const struct m3_planned_case *c, int64_t rows)
{
    enum { MOST = 24, OF_DRAWN = 4 };
    static const int64_t most_elements = 1 << 22;
    int64_t width = 0;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && c->op->outputs[i].role != M3_ROLE_NONE; i++) {
        int64_t shape[M3_MAX_RANK], size = 1;
        const int rank = m3_shape_by_letters(shape, c->op->outputs[i].letters, c->dims);
        for (int d = 1; d < rank; d++) size *= shape[d];
        width = m3_max(width, size);
    }
    for (int i = 0; i < c->count; i++)
        if (c->operands[i].is_drawn) return rows > OF_DRAWN ? OF_DRAWN : 0;
    if (rows * width <= most_elements) return 0;
    const int64_t n = m3_min(MOST, m3_max(1, most_elements / width));
    return n < rows ? n : 0;
}

/* Rows of a case whose rows are judged one by one; 0: they are judged together. */
static int64_t rows_of(const struct m3_planned_case *c)
{
    return m3_operator_by_row(c->op) ? c->dims[(unsigned char)c->op->outputs[0].letters[0]] : 0;
}

static int make_rows(struct m3_planned_case *c, int64_t most, struct m3_error *error)
{
    c->rows = calloc((size_t)most, sizeof *c->rows);
    return c->rows ? M3_OK : m3_fail_memory(error, "rows", (size_t)most * sizeof *c->rows);
}

/* The first and the last rows, for long contexts also both sides of the edges of blocks, and some between. */
static int sample_rows(struct m3_planned_case *c, uint64_t key, struct m3_error *error)
{
    enum { SAMPLED_FROM = 4096, SAMPLES = 24, MOST = 32 };
    const int64_t T = rows_of(c);
    const int64_t block = c->dims['b'], few = T < SAMPLED_FROM ? few_rows(c, T) : SAMPLES;
    int64_t chosen[MOST], n = 0;
    if (T == 0 || few == 0) return M3_OK;
    const int64_t edges[] = {
        0, T - 1, 1, block - 1, block, T / 2 / block * block - 1, T / 2 / block * block, T - block
    };
    const size_t wanted = T < SAMPLED_FROM ? (few > 1 ? 2 : 1) : sizeof edges / sizeof edges[0];
    /* One row alone is the first and the last one in turn. */
    const size_t first = few == 1 ? (size_t)(c->number & 1) : 0;
    for (size_t i = 0; i < wanted; i++) chosen[n++] = m3_max(0, m3_min(edges[first + i], T - 1));
    while (n < few) chosen[n] = (int64_t)m3_draw(key, (uint64_t)n, (uint64_t)T), n++;
    sort_rows(chosen, n);
    const int status = make_rows(c, MOST, error);
    for (int64_t i = 0; !status && i < n; i++)
        if (i == 0 || chosen[i] != chosen[i - 1]) c->rows[c->row_count++] = chosen[i];
    return status;
}

/* The rows that the user names. */
static int take_rows(struct m3_planned_case *c, const char *list, struct m3_error *error)
{
    const int64_t T = rows_of(c);
    if (strcmp(list, "all") == 0) return M3_OK;
    if (T == 0)
        return m3_fail(error, M3_USAGE, "--rows: got %s for %s, expected all: its rows are judged together", list,
                       c->op->name);
    unsigned char *chosen = calloc((size_t)T, 1);
    int status = chosen ? make_rows(c, T, error) : m3_fail_memory(error, "rows", (size_t)T);
    if (!status && m3_rows_mark(chosen, list, T))
        status = m3_fail(error, M3_USAGE,
                         "--rows: got %s, expected all, or numbers and ranges A:B from 0 to %" PRId64 ": case %" PRId64
                         " has %" PRId64 " rows",
                         list, T - 1, c->number, T);
    for (int64_t t = 0; !status && t < T; t++)
        if (chosen[t]) c->rows[c->row_count++] = t;
    free(chosen);
    return status;
}

int m3_plan_case(struct m3_planned_case *c, const struct m3_operator_row *op, const struct m3_plan *plan,
                 int64_t number, const struct m3_make_options *o, struct m3_error *error)
{
    char name[64];
    *c = (struct m3_planned_case){ .op = op, .number = number, .exact = plan && plan->exact, .seed = o->seed };
    snprintf(name, sizeof name, "%s.%" PRId64, op->name, number);
    const uint64_t key = m3_draw_key(o->seed, name);
    snprintf(c->what, sizeof c->what, "%s", plan ? plan->what : "drawn values");
    int status = m3_sizes_choose(c->dims, &c->p0, op, plan, o, key, error);
    if (status) return status;
    if (take_parameters(c, plan)) return m3_fail_memory(error, op->name, sizeof *c);
    for (int i = 0; !status && i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        status = add_operand(c, &op->operands[i], plan, o, error);
    if (!status) status = add_outputs(c, error);
    if (!status && !plan) status = choose_drawn(c, error);
    if (!status && !plan) status = o->rows ? take_rows(c, o->rows, error) : sample_rows(c, key, error);
    return status;
}

void m3_planned_free(struct m3_planned_case *c)
{
    json_decref(c->parameters);
    free(c->rows);
    for (int i = 0; i < c->count; i++) free(c->operands[i].owned);
    *c = (struct m3_planned_case){ 0 };
}

/* ---- values as stored bytes */

/* Codes without scales are drawn in steps of 1/8. */
static int is_drawing(struct m3_drawing *drawing, const struct m3_planned_operand *x)
{
    const struct m3_fill *f = &x->fill;
    const int is_drawn = m3_fill_drawing(drawing, f);
    drawing->dtype = x->tensor.dtype;
    if (x->tensor.dtype != M3_F8_E4M3) return is_drawn;
    *drawing = (struct m3_drawing){ .key = f->key, .levels = 31, .offset = 15, .scale = 0.125, .dtype = M3_F8_E4M3 };
    return strcmp(f->kind, "whole") != 0 && strcmp(f->kind, "zeros") != 0 && strcmp(f->kind, "one_hot") != 0;
}

/* Every finite code in turn. */
static void put_codes(unsigned char *bytes, int64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t code = (first + i) % 254;
        bytes[i] = (unsigned char)(code < 127 ? code : code + 1);
    }
}

static void put_reals(void *bytes, const struct m3_planned_operand *x, int64_t first, int64_t n)
{
    struct m3_drawing drawing;
    if (x->tensor.dtype == M3_F8_E4M3 && strcmp(x->fill.kind, "codes") == 0) {
        put_codes(bytes, first, n);
        return;
    }
    if (is_drawing(&drawing, x)) {
        m3_drawing_piece(bytes, &drawing, first, n);
        return;
    }
    m3_fill_value *const value = m3_fill_real(&x->fill);
    for (int64_t i = 0; i < n; i++) m3_store_real(bytes, x->tensor.dtype, i, value(&x->fill, first + i));
}

void m3_planned_piece(void *bytes, const struct m3_planned_operand *x, int64_t first, int64_t n)
{
    const struct m3_fill *f = &x->fill;
    switch (x->tensor.dtype) {
    case M3_F32:
    case M3_BF16:
    case M3_F16:
    case M3_F8_E4M3: put_reals(bytes, x, first, n); break;
    case M3_I64:
        for (int64_t i = 0; i < n; i++) ((int64_t *)bytes)[i] = m3_fill_id(f, first + i);
        break;
    case M3_I32:
        for (int64_t i = 0; i < n; i++) ((int32_t *)bytes)[i] = (int32_t)m3_fill_id(f, first + i);
        break;
    default:
        for (int64_t i = 0; i < n; i++) ((unsigned char *)bytes)[i] = (unsigned char)m3_fill_id(f, first + i);
    }
}

int m3_planned_generate(struct m3_planned_case *c, struct m3_error *error)
{
    for (int i = 0; i < c->count; i++) {
        struct m3_planned_operand *x = &c->operands[i];
        x->tensor.data = x->owned = malloc(x->tensor.bytes + 1);
        if (!x->owned) return m3_fail_memory(error, x->row->name, x->tensor.bytes);
        m3_planned_piece(x->owned, x, 0, x->tensor.count);
    }
    return M3_OK;
}
