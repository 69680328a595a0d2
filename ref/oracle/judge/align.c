#include "oracle/judge/align.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/room.h"
#include "model/graph/values.h"

int m3_holds_ids(const struct m3_tensor *tensor) { return tensor->dtype == M3_I32 || tensor->dtype == M3_I64; }

int m3_holds_floats(const struct m3_tensor *tensor)
{
    return tensor->dtype == M3_F64 || tensor->dtype == M3_F32 || tensor->dtype == M3_F16 || tensor->dtype == M3_BF16;
}

int m3_is_operand(double x, int tap)
{
    return fabs(x) <= (double)FLT_MAX || (tap == M3_TAP_INDEX_BLOCK_SCORES && x == -INFINITY);
}

int64_t m3_id_at(const struct m3_tensor *ids, int64_t index)
{
    if (ids->dtype == M3_I64) {
        int64_t id;
        memcpy(&id, (const char *)ids->data + index * (int64_t)sizeof id, sizeof id);
        return id;
    }
    int32_t id;
    memcpy(&id, (const char *)ids->data + index * (int64_t)sizeof id, sizeof id);
    return id;
}

/* Counts are read, and compared, as numbers. */
static size_t number_bytes(enum m3_tap tap)
{
    return m3_tap_table[tap].kind == M3_KIND_CHOICES ? sizeof(int32_t) : sizeof(double);
}

/* Reads row `at` of the tensor as row r. Can an operator read it? */
static int read_row(struct m3_tap_values *v, const struct m3_tensor *t, int64_t r, int64_t at)
{
    const int64_t width = v->width;
    const struct m3_weight rows = { .data = t->data, .dtype = t->dtype, .rows = t->shape[0], .cols = width };
    double *to = v->values + r * width;
    int64_t usable = 0;
    if (m3_tap_table[v->tap].kind == M3_KIND_CHOICES) {
        for (int64_t i = 0; i < width; i++) {
            const int64_t id = m3_id_at(t, at * width + i);
            v->ids[r * width + i] = id == (int32_t)id ? (int32_t)id : -2;
        }
        return 1;
    }
    m3_expand_f64(to, &rows, at, 0, width);
#pragma omp simd reduction(+ : usable)
    for (int64_t i = 0; i < width; i++) usable += fabs(to[i]) <= (double)FLT_MAX;
    for (int64_t i = 0; i < width && usable < width; i++)
        if (!m3_is_operand(to[i], v->tap)) return 0;
    return 1;
}

int m3_read_rows(struct m3_tap_values *v, const struct m3_tensor *t, const int64_t *at, const int64_t *numbers,
                 const struct m3_ctx *ctx, struct m3_error *error)
{
    const size_t count = (size_t)(v->rows * v->width), size = number_bytes(v->tap);
    v->data = m3_room(count + 1, size);
    v->numbers = malloc(((size_t)v->rows + 1) * sizeof *v->numbers);
    v->usable = malloc((size_t)v->rows + 1);
    if (!v->data || !v->numbers || !v->usable) return m3_fail_memory(error, m3_tap_table[v->tap].name, count * size);
#pragma omp parallel for num_threads(m3_team(ctx, v->rows * v->width))
    for (int64_t r = 0; r < v->rows; r++) {
        v->numbers[r] = numbers ? numbers[r] : r;
        v->usable[r] = (unsigned char)read_row(v, t, r, at ? at[r] : r);
    }
    return M3_OK;
}

int64_t m3_most_ids(const struct m3_tensor *sets)
{
    const int64_t width = sets->rank > 0 ? sets->shape[sets->rank - 1] : 0;
    int64_t most = 0, count = 0;
    for (int64_t i = 0; width > 0 && i < sets->count; i++) {
        if (i % width == 0) count = 0;
        count += m3_id_at(sets, i) >= 0;
        if (count > most) most = count;
    }
    return most;
}

/* Sets *rows to the tensor of that name, or NULL. */
static int find_rows(const struct m3_tensor **rows, const struct m3_safetensors *file, const char *name,
                     struct m3_error *error)
{
    const char *path = m3_safetensors_path(file);
    *rows = m3_safetensors_find(file, name);
    if (*rows == NULL) return M3_OK;
    if ((*rows)->dtype != M3_I32 || (*rows)->rank != 1)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s of rank %d, expected I32 [R]", path, name,
                       m3_dtype_name((*rows)->dtype), (*rows)->rank);
    int64_t last = -1;
    for (int64_t i = 0; i < (*rows)->count; i++) {
        int64_t row = m3_id_at(*rows, i);
        if (row <= last)
            return m3_fail(error, M3_BAD_INPUT, "%s: %s[%" PRId64 "]: got %" PRId64 ", expected above %" PRId64, path,
                           name, i, row, last);
        last = row;
    }
    return M3_OK;
}

/* M3_BAD_INPUT if a file's metadata do not name a dump format that this program reads. */
static int check_format(const struct m3_safetensors *file, struct m3_error *error)
{
    static const char *const expected[][2] = { { "format", "m3ref-dump" }, { "format_version", "1" } };
    for (int i = 0; i < 2; i++) {
        const char *value = m3_safetensors_metadata(file, expected[i][0]);
        if (value != NULL && strcmp(value, expected[i][1]) != 0)
            return m3_fail(error, M3_BAD_INPUT, "%s: metadata %s: got \"%s\", expected \"%s\"",
                           m3_safetensors_path(file), expected[i][0], value, expected[i][1]);
    }
    return M3_OK;
}

int m3_side_begin(struct m3_side *dump, const struct m3_safetensors *file, struct m3_error *error)
{
    *dump = (struct m3_side){ .file = file };
    int status = check_format(file, error);
    if (!status) status = find_rows(&dump->rows, file, "rows", error);
    if (!status) status = find_rows(&dump->cache_rows, file, M3_CACHE_ROWS, error);
    return status ? status : find_rows(&dump->vision_rows, file, "vision.rows", error);
}

static int same_row_shape(const struct m3_tensor *a, const struct m3_tensor *b)
{
    if (a->rank != b->rank || a->rank == 0) return 0;
    for (int i = 1; i < a->rank; i++)
        if (a->shape[i] != b->shape[i]) return 0;
    return 1;
}

/* Does a complete tap of `count` rows end before a row number of the other dump? */
static int ends_before(int64_t count, const struct m3_tensor *other_rows)
{
    return other_rows->count > 0 && m3_id_at(other_rows, other_rows->count - 1) >= count;
}

int m3_is_cached(int tap) { return tap == M3_TAP_K_ROPE || tap == M3_TAP_V_PROJ || tap == M3_TAP_INDEX_K_ROPE; }

const struct m3_tensor *m3_side_rows(const struct m3_side *side, int tap)
{
    if (side->cache_rows && m3_is_cached(tap)) return side->cache_rows;
    switch (m3_tap_table[tap].shape[0]) {
    case 'T': return side->rows;
    case 'P': return side->vision_rows;
    default: return NULL;
    }
}

const char *m3_row_walk_begin(struct m3_row_walk *walk, const struct m3_matched *matched)
{
    const struct m3_tensor *want = matched->want, *got = matched->got;
    if (!same_row_shape(want, got)) return "shapes differ";

    const struct m3_tensor *want_rows = m3_side_rows(matched->reference, matched->tap);
    const struct m3_tensor *got_rows = m3_side_rows(matched->candidate, matched->tap);
    *walk = (struct m3_row_walk){
        .want_rows = want_rows, .got_rows = got_rows, .want_count = want->shape[0], .got_count = got->shape[0]
    };

    if (want_rows != NULL && want_rows->count != want->shape[0]) return "the reference's `rows` are another number";
    if (got_rows != NULL && got_rows->count != got->shape[0]) return "the candidate's `rows` are another number";
    if (want_rows == NULL && got_rows == NULL) return want->shape[0] == got->shape[0] ? NULL : "shapes differ";
    if (want_rows == NULL && ends_before(want->shape[0], got_rows))
        return "the candidate's `rows` go beyond the reference";
    if (got_rows == NULL && ends_before(got->shape[0], want_rows))
        return "the reference's `rows` go beyond the candidate";

    struct m3_row_walk probe = *walk;
    struct m3_row_pair pair;
    return m3_row_walk_next(&probe, &pair) ? NULL : "no common row";
}

int64_t m3_row_number(const struct m3_tensor *rows, int64_t index)
{
    return rows != NULL ? m3_id_at(rows, index) : index;
}

int m3_row_walk_next(struct m3_row_walk *walk, struct m3_row_pair *pair)
{
    while (walk->want < walk->want_count && walk->got < walk->got_count) {
        int64_t want = m3_row_number(walk->want_rows, walk->want), got = m3_row_number(walk->got_rows, walk->got);
        if (want == got) {
            *pair = (struct m3_row_pair){ .number = want, .want = walk->want++, .got = walk->got++ };
            return 1;
        }
        if (want < got) walk->want++;
        else walk->got++;
    }
    return 0;
}

int64_t m3_row_walk_count(struct m3_row_walk walk)
{
    struct m3_row_pair pair;
    int64_t count = 0;
    while (m3_row_walk_next(&walk, &pair)) count++;
    return count;
}
