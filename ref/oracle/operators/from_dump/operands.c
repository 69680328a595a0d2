#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/tiers/tiers.h"
#include "oracle/operators/drawn/drawn.h"
#include "oracle/operators/from_dump/private.h"
#include "oracle/operators/own_graph.h"
#include "oracle/operators/plans/planned.h"

enum { PIECE = 1 << 16 };

/* ---- shapes */

static int set_shape(struct m3_tensor *t, enum m3_dtype dtype, int rank, const int64_t *shape, struct m3_error *error)
{
    const int64_t size = (int64_t)m3_dtype_bytes(dtype);
    t->dtype = dtype, t->rank = rank, t->count = 1;
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        if (shape[i] < 0 || __builtin_mul_overflow(t->count, shape[i], &t->count))
            return m3_fail(error, M3_BAD_INPUT, "%s: got more elements than can be counted, expected fewer", t->name);
    }
    if (t->count > INT64_MAX / size)
        return m3_fail(error, M3_BAD_INPUT, "%s: got %" PRId64 " elements, expected fewer", t->name, t->count);
    t->bytes = (uint64_t)(t->count * size);
    return M3_OK;
}

int m3_cut_room(struct m3_cut_operand *x, enum m3_dtype dtype, int rank, const int64_t *shape, struct m3_error *error)
{
    x->tensor.name = x->row->name;
    int status = set_shape(&x->tensor, dtype, rank, shape, error);
    if (status) return status;
    x->tensor.data = x->owned = calloc((size_t)x->tensor.bytes + 1, 1);
    return x->owned ? M3_OK : m3_fail_memory(error, x->row->name, x->tensor.bytes);
}

/* Stored as another type: the numbers are rounded when they are written, but those already in memory at once. */
static int restore(struct m3_cut_operand *x, const struct m3_tensor *stored, enum m3_dtype dtype,
                   struct m3_error *error)
{
    x->tensor = x->numbers = *stored;
    if (dtype == stored->dtype) return M3_OK;
    x->tensor.data = NULL;
    return set_shape(&x->tensor, dtype, stored->rank, stored->shape, error);
}

/* ---- taps */

/* Rows that other rows read, or whose number in the sequence counts: they must all be there. */
static int reads_all_rows(const struct m3_operator_row *op)
{
    if (strstr(op->parameters, "p0")) return 1;
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++) {
        const struct m3_operand_row *row = &op->operands[i];
        if (row->letters[0] == 'S' || row->letters[0] == 'M' || row->letters[0] == 'n') return 1;
    }
    return 0;
}

/* The embedding that a module joins with a row is that of a later token. */
static int64_t first_row(const struct m3_cut *cut, const struct m3_pair *pair)
{
    const int embeds = pair->tap == M3_TAP_EMBED || pair->tap == M3_TAP_FUSED;
    return embeds && cut->module >= 0 ? cut->module + 1 : 0;
}

static int fits_tap(const struct m3_cut_run *run, const struct m3_tensor *t, enum m3_tap tap, struct m3_error *error)
{
    const struct m3_tap_row *row = &m3_tap_table[tap];
    const int rank = (int)strlen(row->shape);
    if (row->kind == M3_KIND_REALS ? !m3_holds_floats(t) : !m3_holds_ids(t))
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got dtype %s, expected %s", m3_safetensors_path(run->dump),
                       t->name, m3_dtype_name(t->dtype), row->kind == M3_KIND_REALS ? "a float" : "I32 or I64");
    if (t->rank != rank)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got rank %d, expected %d", m3_safetensors_path(run->dump), t->name,
                       t->rank, rank);
    return M3_OK;
}

/* The rows of the call: module m has m + 1 fewer than there are tokens. */
static int take_rows(int64_t *rows, const struct m3_cut_run *run, const struct m3_cut *cut, const struct m3_tensor *t,
                     const struct m3_pair *pair, struct m3_error *error)
{
    const char *path = m3_safetensors_path(run->dump);
    const struct m3_tensor *held = m3_side_rows(&run->side, pair->tap);
    *rows = t->shape[0];
    if (held && (reads_all_rows(run->op) || cut->module >= 0))
        return m3_fail(error, M3_BAD_INPUT, "%s: got a dump of some rows, expected all rows for %s at %s", path,
                       run->op->name, cut->tap);
    if (held && held->count != t->shape[0])
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %" PRId64 " rows, expected %" PRId64, path, t->name,
                       t->shape[0], held->count);
    if (!held && m3_tap_table[pair->tap].shape[0] == 'T') {
        const int64_t before = m3_mtp_module_of(pair->layer) + 1;
        if (run->has_case && t->shape[0] + before != run->the_case.T)
            return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %" PRId64 " rows, expected %" PRId64 " as in the case",
                           path, t->name, t->shape[0], run->the_case.T - before);
        *rows += before - (cut->module + 1);
    }
    if (*rows >= 1) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got no row, expected one or more", path, t->name);
}

/* A norm over heads that has one weight for all of them takes every head as a row. */
static int heads_are_rows(const struct m3_cut_run *run, const struct m3_cut *cut, const struct m3_tensor *t)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS && run->op->operands[i].role != M3_ROLE_NONE; i++) {
        const struct m3_operand_row *row = &run->op->operands[i];
        const struct m3_pair *pair = &cut->pairs.operands[i];
        if (row->role != M3_ROLE_WEIGHT || strlen(row->letters) != 1) continue;
        const struct m3_weight *w =
            m3_graph_made_weight(run->model, &run->semantics, pair->tap, pair->layer, row->weight);
        if (w && w->rows * w->cols == t->shape[t->rank - 1]) return 1;
    }
    return 0;
}

/* Rows [first, first + rows) of a tap in the shape of the operand. */
static struct m3_tensor slice(const struct m3_cut_run *run, const struct m3_cut *cut, const struct m3_cut_operand *x,
                              const struct m3_tensor *t, int64_t first, int64_t rows)
{
    const int64_t width = t->shape[0] > 0 ? t->count / t->shape[0] : 0;
    const size_t size = m3_dtype_bytes(t->dtype);
    const int wanted = (int)strlen(x->row->letters);
    struct m3_tensor s = *t;
    s.name = x->row->name;
    s.shape[0] = rows;
    s.count = rows * width;
    s.bytes = (uint64_t)s.count * size;
    s.data = s.count > 0 ? (const char *)t->data + (size_t)(first * width) * size : NULL;
    if (s.rank == 3 && wanted == 2) {
        if (heads_are_rows(run, cut, t)) s.shape[0] *= s.shape[1], s.shape[1] = s.shape[2];
        else s.shape[1] *= s.shape[2];
        s.rank = 2;
    } else if (s.rank == 2 && wanted == 3) {
        s.shape[2] = s.shape[1], s.shape[1] = 1;
        s.rank = 3;
    }
    return s;
}

/* mtp_zero_position0: a module reads zeros beside the rows at position 0. */
static int zero_rows(struct m3_cut_operand *x, struct m3_tensor *t, const struct m3_cut_run *run, int64_t rows,
                     struct m3_error *error)
{
    const size_t width = rows > 0 ? (size_t)t->bytes / (size_t)rows : 0;
    if (!run->has_case)
        return m3_fail(error, M3_USAGE, "%s: got mtp_zero_position0 without --case, expected the case of the dump",
                       m3_safetensors_path(run->dump));
    x->owned = malloc((size_t)t->bytes + 1);
    if (!x->owned) return m3_fail_memory(error, t->name, t->bytes);
    memcpy(x->owned, t->data, t->bytes);
    for (int64_t r = 0; r < rows; r++)
        if (run->the_case.positions[r] == 0) memset((char *)x->owned + (size_t)r * width, 0, width);
    t->data = x->owned;
    return M3_OK;
}

int m3_cut_may_lack(const struct m3_cut_run *run, const struct m3_operand_row *row)
{
    const struct m3_pictures *p = &run->the_case.pictures;
    return row->letters[0] == 'M' && run->has_case && p->images + p->videos == 0;
}

int m3_cut_from_tap(struct m3_cut_operand *x, const struct m3_cut_run *run, struct m3_cut *cut,
                    const struct m3_pair *pair, struct m3_error *error)
{
    const int64_t first = first_row(cut, pair);
    char name[96];
    int64_t rows;
    m3_tap_name(name, sizeof name, pair->tap, pair->layer);
    const struct m3_tensor *t = m3_safetensors_find(run->dump, name);
    if (!t && m3_cut_may_lack(run, x->row))
        return m3_cut_room(x, M3_F32, 2, (const int64_t[]){ 0, run->model->config.H }, error);
    if (!t)
        return m3_fail(error, M3_BAD_INPUT, "%s: got no tap %s, expected it for %s at %s",
                       m3_safetensors_path(run->dump), name, run->op->name, cut->tap);
    int status = fits_tap(run, t, pair->tap, error);
    if (!status) status = take_rows(&rows, run, cut, t, pair, error);
    if (status) return status;
    if (x->row->letters[0] != 'M') {
        if (cut->rows >= 0 && cut->rows != rows)
            return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %" PRId64 " rows for %s, expected %" PRId64,
                           m3_safetensors_path(run->dump), name, rows, cut->tap, cut->rows);
        cut->rows = rows;
    }
    struct m3_tensor stored = slice(run, cut, x, t, first, rows);
    const int zeroes = first > 0 && run->semantics.mtp_zero_position0 == M3_MTP_ZERO_POSITION0;
    if (zeroes) status = zero_rows(x, &stored, run, rows, error);
    const int is_ids = m3_tap_table[pair->tap].kind != M3_KIND_REALS;
    const enum m3_dtype dtype = is_ids ? M3_I32 : run->dtype != M3_DTYPES ? run->dtype : t->dtype;
    return status ? status : restore(x, &stored, dtype, error);
}

/* ---- weights */

static const struct m3_weight *weight_at(const struct m3_cut_operand *x, int64_t i)
{
    if (!x->experts) return x->weight;
    const struct m3_expert *e = &x->experts[i];
    return x->row->weight == 0 ? &e->w1 : x->row->weight == 1 ? &e->w3 : &e->w2;
}

static int takes_scales(const struct m3_operator_row *op, const struct m3_operand_row *row)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS && op->operands[i].role != M3_ROLE_NONE; i++)
        if (op->operands[i].role == M3_ROLE_SCALES && op->operands[i].tap == row->tap) return 1;
    return 0;
}

static int from_scales(struct m3_cut_operand *x, struct m3_error *error)
{
    const struct m3_weight *w = x->weight;
    const int mx = x->row->letters[0] != '_';
    const int64_t shape[] = { mx ? w->rows : (w->rows + 127) / 128, mx ? (w->cols + 31) / 32 : (w->cols + 127) / 128 };
    x->weight = NULL;
    x->tensor.data = w->scales;
    return set_shape(&x->tensor, mx ? M3_U8 : M3_F32, 2, shape, error);
}

/* Codes keep their scales if the operator takes them; otherwise it reads the numbers that the run multiplied. */
static enum m3_dtype stored_dtype(const struct m3_cut_run *run, const struct m3_operand_row *row,
                                  const struct m3_weight *w)
{
    if (takes_scales(run->op, row)) return w->dtype;
    if (run->dtype != M3_DTYPES) return run->dtype;
    if (w->scaling == M3_UNSCALED) return w->dtype;
    return w->scaling != M3_SCALE_MX32 && run->is_f64 ? M3_F64 : M3_F32;
}

int m3_cut_from_weights(struct m3_cut_operand *x, const struct m3_cut_run *run, struct m3_cut *cut,
                        const struct m3_pair *pair, struct m3_error *error)
{
    const struct m3_config *c = &run->model->config;
    int64_t shape[3];
    int rank = 0;
    x->tensor.name = x->row->name;
    x->count = 1;
    if (x->row->role == M3_ROLE_EXPERTS) {
        x->experts = run->model->layers[m3_layer_index(c, pair->layer)].experts;
        shape[rank++] = x->count = c->E;
    } else {
        x->weight = m3_graph_made_weight(run->model, &run->semantics, pair->tap, pair->layer, x->row->weight);
    }
    if (!x->experts && !x->weight)
        return m3_fail(error, M3_INTERNAL, "%s: %s: got no weight in the model", cut->tap, x->row->name);
    if (x->row->role == M3_ROLE_SCALES) return from_scales(x, error);
    const struct m3_weight *w = weight_at(x, 0);
    for (int64_t i = 1; i < x->count; i++) {
        const struct m3_weight *other = weight_at(x, i);
        if (other->dtype != w->dtype || other->scaling != w->scaling)
            return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s in expert %" PRId64 ", expected %s as in the first",
                           cut->tap, x->row->name, m3_dtype_name(other->dtype), i, m3_dtype_name(w->dtype));
    }
    if (strlen(x->row->letters) > 1) shape[rank++] = w->rows, shape[rank++] = w->cols;
    else shape[rank++] = w->rows * w->cols;
    int status = set_shape(&x->tensor, stored_dtype(run, x->row, w), rank, shape, error);
    if (!status && __builtin_add_overflow(cut->weight_bytes, x->tensor.bytes, &cut->weight_bytes))
        status = m3_fail(error, M3_BAD_INPUT, "%s: got weights of too many bytes to count", cut->tap);
    return status;
}

/* ---- the file */

static void encode(void *bytes, enum m3_dtype dtype, double x, int64_t i)
{
    const double rounded = dtype == M3_F16 || dtype == M3_BF16 ? m3_stored_as(x, dtype) : x;
    switch (dtype) {
    case M3_F64: ((double *)bytes)[i] = x; break;
    case M3_F32: ((float *)bytes)[i] = (float)x; break;
    case M3_BF16: ((uint16_t *)bytes)[i] = isnan(x) ? 0x7fc0 : m3_bf16_of((float)rounded); break;
    case M3_F16: ((uint16_t *)bytes)[i] = isnan(x) ? 0x7e00 : m3_f16_of(rounded); break;
    default: ((int32_t *)bytes)[i] = (int32_t)x;
    }
}

static int write_numbers(struct m3_writer *writer, const struct m3_cut_operand *x, struct m3_error *error)
{
    double buffer[PIECE / 64];
    const int64_t room = PIECE / 64;
    int status = M3_OK;
    for (int64_t first = 0; !status && first < x->numbers.count; first += room) {
        const int64_t n = m3_min(room, x->numbers.count - first);
        for (int64_t i = 0; i < n; i++)
            encode(buffer, x->tensor.dtype, m3_decode(x->numbers.dtype, x->numbers.data, first + i), i);
        status = m3_writer_write(writer, buffer, (uint64_t)n * m3_dtype_bytes(x->tensor.dtype), error);
    }
    return status;
}

static int write_weight(struct m3_writer *writer, const struct m3_weight *w, enum m3_dtype dtype,
                        struct m3_error *error)
{
    const uint64_t size = m3_dtype_bytes(dtype);
    if (dtype == w->dtype) return m3_writer_write(writer, w->data, (uint64_t)(w->rows * w->cols) * size, error);
    double *row = malloc((size_t)w->cols * sizeof *row + 1), *out = malloc((size_t)w->cols * sizeof *out + 1);
    int status = row && out ? M3_OK : m3_fail_memory(error, "a row of weights", (size_t)w->cols * sizeof *row);
    for (int64_t r = 0; !status && r < w->rows; r++) {
        m3_expand_f64(row, w, r, 0, w->cols);
        for (int64_t i = 0; i < w->cols; i++) encode(out, dtype, row[i], i);
        status = m3_writer_write(writer, out, (uint64_t)w->cols * size, error);
    }
    free(row);
    free(out);
    return status;
}

int m3_cut_write(struct m3_writer *writer, const struct m3_cut_operand *x, struct m3_error *error)
{
    int status = M3_OK;
    if (x->tensor.bytes == 0) return M3_OK;
    if (x->tensor.data) return m3_writer_write(writer, x->tensor.data, x->tensor.bytes, error);
    if (!x->weight && !x->experts) return write_numbers(writer, x, error);
    for (int64_t i = 0; !status && i < x->count; i++)
        status = write_weight(writer, weight_at(x, i), x->tensor.dtype, error);
    return status;
}
