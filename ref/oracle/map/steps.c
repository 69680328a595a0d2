/* Steps of maps: the operations that convert tensors of another program to taps. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/map/private/map.h"

enum {
    MOST_COPIES = 1024,             /* of a head, for each of its queries */
    MOST_PICKED = 1 << 24,          /* places of an axis */
};

int m3_map_trouble_is(struct m3_map_trouble *trouble, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(trouble->text, sizeof trouble->text, format, arguments);
    va_end(arguments);
    return M3_NOT_COMPARABLE;
}

/* A tensor without elements has data too: an array without data is one of which only the shape is known. */
struct m3_array m3_array_of(const struct m3_tensor *tensor, int with_data)
{
    static const unsigned char nothing[1];
    struct m3_array array = { .dtype = tensor->dtype, .rank = tensor->rank };
    int64_t stride = 1;
    for (int i = tensor->rank; i-- > 0; stride *= array.shape[i]) {
        array.shape[i] = tensor->shape[i];
        array.stride[i] = stride;
    }
    if (with_data) array.data = tensor->count > 0 ? tensor->data : nothing;
    return array;
}

void m3_array_free(struct m3_array *array)
{
    free(array->owned);
    *array = (struct m3_array){ 0 };
}

int64_t m3_array_count(const struct m3_array *array)
{
    int64_t count = 1;
    for (int i = 0; i < array->rank; i++) count *= array->shape[i];
    return count;
}

const char *m3_array_text(char *text, size_t size, const struct m3_array *array)
{
    int used = snprintf(text, size, "[");
    for (int i = 0; i < array->rank && used >= 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%" PRId64, i ? "," : "", array->shape[i]);
    if (used >= 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, "] %s", m3_dtype_name(array->dtype));
    return text;
}

/* Do the sizes, those of 0 left out, give a number of bytes in any dtype? Steps that make larger arrays ask first. */
static int has_room(const struct m3_array *array, struct m3_map_trouble *trouble)
{
    int64_t bytes = sizeof(double);
    for (int i = 0; i < array->rank; i++)
        if (array->shape[i] > 0 && __builtin_mul_overflow(bytes, array->shape[i], &bytes))
            return m3_map_trouble_is(trouble, "the number of elements overflows");
    return M3_OK;
}

/* Goes through the elements in row-major order. */
struct walk {
    const struct m3_array *array;
    int64_t index[M3_MAX_RANK], at, left;   /* at: in elements from data */
};

static struct walk walk_begin(const struct m3_array *array)
{
    return (struct walk){ .array = array, .left = m3_array_count(array) };
}

static void walk_next(struct walk *w)
{
    w->left--;
    for (int i = w->array->rank; i-- > 0;) {
        w->at += w->array->stride[i];
        if (++w->index[i] < w->array->shape[i]) return;
        w->at -= w->array->stride[i] * w->array->shape[i];
        w->index[i] = 0;
    }
}

static int has_gaps(const struct m3_array *array)
{
    int64_t stride = 1;
    for (int i = array->rank; i-- > 0; stride *= array->shape[i])
        if (array->shape[i] != 1 && array->stride[i] != stride) return 1;
    return 0;
}

static void close_gaps(struct m3_array *array)
{
    int64_t stride = 1;
    for (int i = array->rank; i-- > 0; stride *= array->shape[i]) array->stride[i] = stride;
}

/* Takes ownership of `bytes` as its data. */
static void take(struct m3_array *array, enum m3_dtype dtype, void *bytes)
{
    free(array->owned);
    array->dtype = dtype;
    array->owned = bytes;
    array->data = bytes;
    close_gaps(array);
}

int m3_array_pack(struct m3_array *array)
{
    size_t size = m3_dtype_bytes(array->dtype);
    if (!has_gaps(array) || !array->data) {
        close_gaps(array);
        return M3_OK;
    }
    unsigned char *bytes = malloc((size_t)m3_array_count(array) * size + 1);
    if (!bytes) return M3_INTERNAL;
    unsigned char *out = bytes;
    for (struct walk w = walk_begin(array); w.left > 0; walk_next(&w), out += size)
        memcpy(out, array->data + w.at * (int64_t)size, size);
    take(array, array->dtype, bytes);
    return M3_OK;
}

/* Converts to F64, packed. Exact except for I64 beyond 2^53. */
static int widen(struct m3_array *array)
{
    if (!array->data) {
        array->dtype = M3_F64;
        close_gaps(array);
        return M3_OK;
    }
    double *values = malloc((size_t)m3_array_count(array) * sizeof *values + 1);
    if (!values) return M3_INTERNAL;
    double *out = values;
    for (struct walk w = walk_begin(array); w.left > 0; walk_next(&w))
        *out++ = m3_decode(array->dtype, array->data, w.at);
    take(array, M3_F64, values);
    return M3_OK;
}

int m3_array_is_integer(const struct m3_array *array)
{
    return array->dtype == M3_I64 || array->dtype == M3_I32 || array->dtype == M3_U8;
}

int64_t m3_array_integer(const struct m3_array *array, int64_t at)
{
    if (array->dtype != M3_I64) return (int64_t)m3_decode(array->dtype, array->data, at);
    int64_t value;
    memcpy(&value, array->data + at * (int64_t)sizeof value, sizeof value);
    return value;
}

/* A size that a step needs; sets trouble if it is unknown. */
static int need(int64_t *size, const char *text, const struct m3_map_sizes *sizes, struct m3_map_trouble *trouble)
{
    *size = m3_map_size(text, sizes);
    if (*size >= 0) return M3_OK;
    trouble->unknown_size = *size == M3_MAP_SIZE_UNKNOWN;
    return m3_map_trouble_is(trouble, trouble->unknown_size ? "the size %s is not known" : "%s is no whole number",
                             text);
}

static int has_axis(const struct m3_array *a, int axis, struct m3_map_trouble *trouble)
{
    return axis < a->rank ? M3_OK : m3_map_trouble_is(trouble, "got %d axes, expected axis %d", a->rank, axis);
}

static void remove_axis(struct m3_array *a, int axis)
{
    a->rank--;
    for (int i = axis; i < a->rank; i++) {
        a->shape[i] = a->shape[i + 1];
        a->stride[i] = a->stride[i + 1];
    }
}

static int drop(struct m3_array *a, int axis, struct m3_map_trouble *trouble)
{
    int status = has_axis(a, axis, trouble);
    if (status) return status;
    if (a->shape[axis] != 1)
        return m3_map_trouble_is(trouble, "axis %d: got %" PRId64 ", expected 1, to be dropped", axis, a->shape[axis]);
    remove_axis(a, axis);
    return M3_OK;
}

void m3_array_drop_first(struct m3_array *array) { remove_axis(array, 0); }

static int reshape(struct m3_array *a, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
                   struct m3_map_trouble *trouble)
{
    int64_t shape[M3_MAX_RANK] = { 0 }, product = 1, count = m3_array_count(a);
    int rest = -1;
    for (int i = 0; i < step->count; i++) {
        if (step->sizes[i][0] == '*') {
            rest = i;
            continue;
        }
        const int known = need(&shape[i], step->sizes[i], sizes, trouble);
        if (known) return known;
        if (__builtin_mul_overflow(product, shape[i], &product)) product = -1;
    }
    int fits = rest < 0 ? product == count : product > 0 && count % product == 0;
    if (!fits)
        return m3_map_trouble_is(trouble, "got %" PRId64 " elements, expected %s%" PRId64, count,
                                 rest < 0 ? "" : "a multiple of ", product);
    if (rest >= 0) shape[rest] = count / product;
    struct m3_array made = { .rank = step->count };
    memcpy(made.shape, shape, sizeof shape);
    int status = has_room(&made, trouble);
    if (status) return status;
    if (m3_array_pack(a)) return M3_INTERNAL;
    a->rank = step->count;
    memcpy(a->shape, shape, sizeof shape);
    close_gaps(a);
    return M3_OK;
}

/* The recipe applies only to tensors of this shape; others belong to other layers. */
static int only(const struct m3_array *a, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
                struct m3_map_trouble *trouble)
{
    int same = a->rank == step->count;
    for (int i = 0; same && i < a->rank; i++) {
        int64_t size;
        if (step->sizes[i][0] == '*') continue;
        int status = need(&size, step->sizes[i], sizes, trouble);
        if (status) return status;
        same = a->shape[i] == size;
    }
    trouble->not_meant = !same;
    return same ? M3_OK : m3_map_trouble_is(trouble, "another shape");
}

static int permute(struct m3_array *a, const struct m3_map_step *step, struct m3_map_trouble *trouble)
{
    struct m3_array old = *a;
    if (a->rank != step->count) return m3_map_trouble_is(trouble, "got %d axes, expected %d", a->rank, step->count);
    for (int i = 0; i < a->rank; i++) {
        a->shape[i] = old.shape[step->axes[i]];
        a->stride[i] = old.stride[step->axes[i]];
    }
    return M3_OK;
}

/* Moves data to the first element of the part; strides alone are not enough. */
static void move_to(struct m3_array *a, int64_t element)
{
    if (a->data) a->data += element * (int64_t)m3_dtype_bytes(a->dtype);
}

static int slice(struct m3_array *a, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
                 struct m3_map_trouble *trouble)
{
    int64_t from, to = 0, every;
    int status = has_axis(a, step->axis, trouble);
    if (!status) status = need(&from, step->from, sizes, trouble);
    if (!status) status = need(&every, step->every, sizes, trouble);
    if (!status && step->to) status = need(&to, step->to, sizes, trouble);
    if (status) return status;
    int64_t length = a->shape[step->axis];
    if (!step->to) to = length;
    if (from > to || to > length || every < 1)
        return m3_map_trouble_is(trouble, "axis %d: got %" PRId64 ", expected room for %" PRId64 " to %" PRId64,
                                 step->axis, length, from, to);
    if (every > length) every = length > 0 ? length : 1;
    move_to(a, from * a->stride[step->axis]);
    a->shape[step->axis] = (to - from + every - 1) / every;
    a->stride[step->axis] *= every;
    return M3_OK;
}

/* Elements [.., order[i], ..] of the axis, copied one after the other. */
static int pick(struct m3_array *a, const struct m3_map_step *step, struct m3_map_trouble *trouble)
{
    int status = has_axis(a, step->axis, trouble);
    if (status) return status;
    int64_t length = a->shape[step->axis];
    for (int i = 0; i < step->count; i++)
        if (step->order[i] >= length)
            return m3_map_trouble_is(trouble, "axis %d: got %" PRId64 ", expected more than %" PRId64, step->axis,
                                     length, step->order[i]);
    struct m3_array picked = *a;
    picked.shape[step->axis] = step->count;
    status = has_room(&picked, trouble);
    if (status) return status;
    if (!a->data) {
        *a = picked;
        return M3_OK;
    }
    size_t size = m3_dtype_bytes(a->dtype);
    unsigned char *bytes = malloc((size_t)m3_array_count(&picked) * size + 1), *out = bytes;
    if (!bytes) return M3_INTERNAL;
    picked.stride[step->axis] = 0;
    for (struct walk w = walk_begin(&picked); w.left > 0; walk_next(&w), out += size) {
        int64_t at = w.at + step->order[w.index[step->axis]] * a->stride[step->axis];
        memcpy(out, a->data + at * (int64_t)size, size);
    }
    *a = (struct m3_array){ .rank = picked.rank, .owned = a->owned };
    memcpy(a->shape, picked.shape, sizeof a->shape);
    take(a, picked.dtype, bytes);
    return M3_OK;
}

/* Consecutive copies of each head become one; they must be equal bit for bit. */
static int unrepeat(struct m3_array *a, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
                    struct m3_map_trouble *trouble)
{
    int64_t times;
    int status = has_axis(a, step->axis, trouble);
    if (!status) status = need(&times, step->every, sizes, trouble);
    if (status) return status;
    if (times < 1 || a->shape[step->axis] % times)
        return m3_map_trouble_is(trouble, "axis %d: got %" PRId64 ", expected a multiple of %" PRId64, step->axis,
                                 a->shape[step->axis], times);
    if (a->shape[step->axis] == 0) return M3_OK;
    size_t size = m3_dtype_bytes(a->dtype);
    struct m3_array whole = *a;
    for (struct walk w = walk_begin(&whole); a->data && w.left > 0; walk_next(&w)) {
        int64_t copy = w.index[step->axis] % times, first = w.at - copy * a->stride[step->axis];
        if (memcmp(a->data + w.at * (int64_t)size, a->data + first * (int64_t)size, size) != 0)
            return m3_map_trouble_is(trouble, "axis %d: %" PRId64 " differs from %" PRId64 ", expected copies",
                                     step->axis, w.index[step->axis], w.index[step->axis] - copy);
    }
    a->shape[step->axis] /= times;
    a->stride[step->axis] *= times;
    return M3_OK;
}

/* Each element of the axis becomes `times` consecutive copies. */
static int repeat(struct m3_array *a, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
                  struct m3_map_trouble *trouble)
{
    int64_t times, count;
    int status = has_axis(a, step->axis, trouble);
    if (!status) status = need(&times, step->every, sizes, trouble);
    if (status) return status;
    if (times < 1 || times > MOST_COPIES || __builtin_mul_overflow(a->shape[step->axis], times, &count) ||
        count > MOST_PICKED)
        return m3_map_trouble_is(trouble, "axis %d: got %" PRId64 " copies of each, expected 1 to %d", step->axis,
                                 times, MOST_COPIES);
    struct m3_map_step order = { .kind = M3_STEP_PICK, .axis = step->axis, .count = (int)count };
    order.order = malloc((size_t)count * sizeof *order.order + 1);
    if (!order.order) return M3_INTERNAL;
    for (int64_t i = 0; i < count; i++) order.order[i] = i / times;
    status = pick(a, &order, trouble);
    free(order.order);
    return status;
}

static int join(struct m3_array *arrays, int *count, int axis, struct m3_map_trouble *trouble)
{
    struct m3_array whole = arrays[0];
    whole.owned = NULL;
    int status = has_axis(&whole, axis, trouble);
    if (status) return status;
    for (int k = 1; k < *count; k++) {
        int same = arrays[k].rank == whole.rank && arrays[k].dtype == whole.dtype;
        for (int i = 0; same && i < whole.rank; i++) same = i == axis || arrays[k].shape[i] == whole.shape[i];
        char got[160], want[160];
        if (!same)
            return m3_map_trouble_is(trouble, "got %s beside %s, expected equal shapes except axis %d",
                                     m3_array_text(got, sizeof got, &arrays[k]),
                                     m3_array_text(want, sizeof want, &arrays[0]), axis);
        if (__builtin_add_overflow(whole.shape[axis], arrays[k].shape[axis], &whole.shape[axis]))
            return m3_map_trouble_is(trouble, "the number of elements overflows");
    }
    status = has_room(&whole, trouble);
    if (status) return status;
    close_gaps(&whole);
    size_t size = m3_dtype_bytes(whole.dtype);
    unsigned char *bytes = NULL;
    int with_data = arrays[0].data != NULL;
    if (with_data && !(bytes = malloc((size_t)m3_array_count(&whole) * size + 1))) return M3_INTERNAL;
    for (int64_t k = 0, begin = 0; k < *count; begin += arrays[k++].shape[axis]) {
        struct m3_array part = whole;               /* the destination, seen with the part's shape */
        part.shape[axis] = arrays[k].shape[axis];
        struct walk to = walk_begin(&part);
        for (struct walk w = walk_begin(&arrays[k]); with_data && w.left > 0; walk_next(&w), walk_next(&to))
            memcpy(bytes + (size_t)(to.at + begin * whole.stride[axis]) * size, arrays[k].data + w.at * (int64_t)size,
                   size);
    }
    for (int k = 0; k < *count; k++) m3_array_free(&arrays[k]);
    whole.owned = bytes;
    whole.data = bytes;
    arrays[0] = whole;
    *count = 1;
    return M3_OK;
}

/* Adds in double, in the order of the sources. */
static int sum(struct m3_array *arrays, int *count, struct m3_map_trouble *trouble)
{
    for (int k = 0; k < *count; k++) {
        char got[160], want[160];
        int same = arrays[k].rank == arrays[0].rank && !m3_array_is_integer(&arrays[k]);
        for (int i = 0; same && i < arrays[0].rank; i++) same = arrays[k].shape[i] == arrays[0].shape[i];
        if (!same)
            return m3_map_trouble_is(trouble, "got %s beside %s, expected numbers of equal shapes",
                                     m3_array_text(got, sizeof got, &arrays[k]),
                                     m3_array_text(want, sizeof want, &arrays[0]));
    }
    for (int k = 0; k < *count; k++)
        if (widen(&arrays[k])) return M3_INTERNAL;
    double *total = arrays[0].owned;
    int64_t elements = m3_array_count(&arrays[0]);
    for (int k = 1; k < *count; k++) {
        const double *more = arrays[k].owned;
        for (int64_t i = 0; more && i < elements; i++) total[i] += more[i];
        m3_array_free(&arrays[k]);
    }
    *count = 1;
    return M3_OK;
}

/* A number of the config; 0: not known. */
static double field_of(const char *name, const struct m3_map_sizes *sizes)
{
    const int i = m3_map_field(name);
    return m3_map_fields[i].letter ? (double)sizes->of[(int)m3_map_fields[i].letter] : sizes->fields[i];
}

static int calculate(struct m3_array *a, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
                     struct m3_map_trouble *trouble)
{
    const double number = step->field ? field_of(step->field, sizes) : step->number;
    trouble->unknown_size = step->field && number == 0;
    if (trouble->unknown_size) return m3_map_trouble_is(trouble, "%s is not known", step->field);
    if (m3_array_is_integer(a))
        return m3_map_trouble_is(trouble, "got %s, expected a floating dtype", m3_dtype_name(a->dtype));
    if (widen(a)) return M3_INTERNAL;
    double *values = a->owned;
    int64_t elements = m3_array_count(a);
    for (int64_t i = 0; values && i < elements; i++)
        values[i] = step->kind == M3_STEP_PLUS     ? values[i] + number
                    : step->kind == M3_STEP_DIVIDE ? values[i] / number
                                                   : values[i] * number;
    return M3_OK;
}

/* Converts any integers to I32. */
static int to_ids(struct m3_array *a, struct m3_map_trouble *trouble)
{
    if (!m3_array_is_integer(a))
        return m3_map_trouble_is(trouble, "got %s, expected integers", m3_dtype_name(a->dtype));
    if (!a->data) {
        a->dtype = M3_I32;
        return M3_OK;
    }
    int32_t *ids = malloc((size_t)m3_array_count(a) * sizeof *ids + 1), *out = ids;
    if (!ids) return M3_INTERNAL;
    for (struct walk w = walk_begin(a); w.left > 0; walk_next(&w)) {
        int64_t id = m3_array_integer(a, w.at);
        if (id < INT32_MIN || id > INT32_MAX) {
            free(ids);
            return m3_map_trouble_is(trouble, "got id %" PRId64 ", expected 32 bits", id);
        }
        *out++ = (int32_t)id;
    }
    take(a, M3_I32, ids);
    return M3_OK;
}

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Converts lists of blocks in any order, with negative ids for empty slots, to m3ref's form: ascending, then -1, N
 * entries. */
static int to_blocks(struct m3_array *a, const struct m3_map_sizes *sizes, struct m3_map_trouble *trouble)
{
    int64_t N = 0;
    int status =
        a->rank > 0 ? need(&N, "N", sizes, trouble) : m3_map_trouble_is(trouble, "got a scalar, expected lists");
    if (!status) status = to_ids(a, trouble);
    if (status) return status;
    int64_t width = a->shape[a->rank - 1], lists = 1;
    for (int i = 0; i + 1 < a->rank; i++) lists *= a->shape[i];
    struct m3_array made = *a;
    made.shape[a->rank - 1] = N;
    status = width > 0 ? has_room(&made, trouble) : m3_map_trouble_is(trouble, "got lists of no blocks");
    if (status) return status;
    int32_t *blocks = NULL, *given = a->owned;
    if (a->data && !(blocks = malloc((size_t)(lists * N) * sizeof *blocks + 1))) return M3_INTERNAL;
    for (int64_t i = 0; blocks && i < lists; i++) {
        int64_t chosen = 0;
        for (int64_t k = 0; k < width; k++)
            if (given[i * width + k] >= 0) given[i * width + chosen++] = given[i * width + k];
        if (chosen > N) {
            free(blocks);
            return m3_map_trouble_is(trouble, "got %" PRId64 " blocks, expected at most %" PRId64, chosen, N);
        }
        qsort(given + i * width, (size_t)chosen, sizeof *given, ascending);
        for (int64_t k = 0; k < N; k++) blocks[i * N + k] = k < chosen ? given[i * width + k] : -1;
    }
    a->shape[a->rank - 1] = N;
    if (blocks) take(a, M3_I32, blocks);
    close_gaps(a);
    return M3_OK;
}

/* Scores of blocks: the lowest float means -inf, as maxima start from it, and columns where no row has more than -inf
 * are padding and are cut off. */
static int to_scores(struct m3_array *a, struct m3_map_trouble *trouble)
{
    if (a->rank == 0) return m3_map_trouble_is(trouble, "got a scalar, expected rows of scores");
    if (m3_array_is_integer(a))
        return m3_map_trouble_is(trouble, "got %s, expected a floating dtype", m3_dtype_name(a->dtype));
    if (widen(a)) return M3_INTERNAL;
    double *scores = a->owned;
    int64_t width = a->shape[a->rank - 1], kept = 0, elements = scores ? m3_array_count(a) : 0;
    for (int64_t i = 0; i < elements; i++) {
        if (scores[i] <= -(double)FLT_MAX) scores[i] = -INFINITY;
        if (scores[i] != -INFINITY && i % width >= kept) kept = i % width + 1;
    }
    a->shape[a->rank - 1] = kept;
    return M3_OK;
}

int m3_map_do(struct m3_array *arrays, int *count, const struct m3_map_step *step, const struct m3_map_sizes *sizes,
              struct m3_map_trouble *trouble)
{
    *trouble = (struct m3_map_trouble){ 0 };
    if (step->kind == M3_STEP_JOIN) return join(arrays, count, step->axis, trouble);
    if (step->kind == M3_STEP_SUM) return sum(arrays, count, trouble);
    int status = M3_OK;
    if (step->kind == M3_STEP_SCATTER) {
        int64_t rows;
        status = need(&rows, step->sizes[0], sizes, trouble);
        return status ? status : m3_map_scatter(arrays, count, rows, trouble);
    }
    for (int k = 0; !status && k < *count; k++) {
        struct m3_array *a = &arrays[k];
        switch (step->kind) {
        case M3_STEP_DROP: status = drop(a, step->axis, trouble); break;
        case M3_STEP_ONLY: status = only(a, step, sizes, trouble); break;
        case M3_STEP_SHAPE: status = reshape(a, step, sizes, trouble); break;
        case M3_STEP_AXES: status = permute(a, step, trouble); break;
        case M3_STEP_SLICE: status = slice(a, step, sizes, trouble); break;
        case M3_STEP_PICK: status = pick(a, step, trouble); break;
        case M3_STEP_UNREPEAT: status = unrepeat(a, step, sizes, trouble); break;
        case M3_STEP_REPEAT: status = repeat(a, step, sizes, trouble); break;
        case M3_STEP_TIMES:
        case M3_STEP_DIVIDE:
        case M3_STEP_PLUS: status = calculate(a, step, sizes, trouble); break;
        case M3_STEP_IDS: status = to_ids(a, trouble); break;
        case M3_STEP_BLOCKS: status = to_blocks(a, sizes, trouble); break;
        case M3_STEP_SCORES: status = to_scores(a, trouble); break;
        case M3_STEP_JOIN:
        case M3_STEP_SUM:
        case M3_STEP_SCATTER:
        case M3_STEP_KINDS: break;
        }
    }
    return status;
}
