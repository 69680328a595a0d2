#include "oracle/judge/logits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "model/taps.h"
#include "oracle/judge/hints.h"

static const char *const padded = "the columns from V on are padding, and are not judged";
static const char *const last_row = "a vector: the last row of the case alone";

/* The number of the row that a vector holds; -1: not known, and *why. */
static int64_t number_of(const char **why, const struct m3_side *side, const struct m3_logits_shape *shape)
{
    const struct m3_tensor *rows = m3_side_rows(side, shape->tap);
    const int64_t last = rows != NULL && rows->count > 0 ? m3_id_at(rows, rows->count - 1) : -1;
    if (rows != NULL && rows->count == 1) return last;
    if (shape->rows < 1)
        *why = "shapes differ, the last row alone? The reference does not hold all rows, so its number is not known. "
               "Store [1,V], with its number in `rows`";
    else if (shape->rows == shape->V && shape->rows > 1)
        *why = "shapes differ: a vector of V numbers, but the case has V rows too: the last row alone, or a number for "
               "each row? Store [1,V], with its number in `rows`";
    else if (rows != NULL && last != shape->rows - 1)
        *why = "shapes differ: a vector of V numbers, but `rows` has other rows than the last. Store [R,V]";
    else return shape->rows - 1;
    return -1;
}

/* Shared pages: what was read is released as if it belonged to a file, and private pages would then be zeros. */
static int copy_columns(struct m3_logits *l, const struct m3_tensor *got, int64_t V, struct m3_error *error)
{
    const size_t row = got->shape[1] > 0 ? got->bytes / (size_t)(got->shape[0] * got->shape[1]) * (size_t)V : 0;
    const size_t all = got->bytes / (size_t)got->shape[0];
    l->bytes = row * (size_t)got->shape[0];
    l->copy = mmap(NULL, l->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (l->copy == MAP_FAILED) {
        l->copy = NULL;
        return m3_fail_memory(error, got->name, l->bytes);
    }
    for (int64_t r = 0; r < got->shape[0]; r++)
        memcpy((char *)l->copy + (size_t)r * row, (const char *)got->data + (size_t)r * all, row);
    l->tensor.shape[1] = V;
    l->tensor.count = got->shape[0] * V;
    l->tensor.data = l->copy;
    l->tensor.bytes = l->bytes;
    return M3_OK;
}

static void take_row(struct m3_logits *l, int64_t number)
{
    l->row = (int32_t)number;
    l->number = (struct m3_tensor){
        .name = "rows", .dtype = M3_I32, .rank = 1, .shape = { 1 }, .count = 1, .data = &l->row, .bytes = sizeof l->row
    };
    l->tensor.rank = 2;
    l->tensor.shape[1] = l->tensor.shape[0];
    l->tensor.shape[0] = 1;
    l->side.rows = &l->number;
}

int m3_logits_read(struct m3_logits **list, const char **why, const struct m3_tensor *got, const struct m3_side *side,
                   const struct m3_logits_shape *shape, struct m3_error *notes, struct m3_error *error)
{
    const int wide = got->rank == 2 && got->shape[1] > shape->V && got->shape[0] > 0;
    const int vector = got->rank == 1 && got->shape[0] == shape->V;
    *why = NULL;
    if (!m3_is_logits(shape->tap) || shape->V < 1 || !m3_holds_floats(got) || (!wide && !vector)) return M3_OK;
    const int64_t number = vector ? number_of(why, side, shape) : 0;
    if (number < 0 || number > INT32_MAX) return M3_OK;

    struct m3_logits *l = calloc(1, sizeof *l);
    if (!l) return m3_fail_memory(error, got->name, sizeof *l);
    *l = (struct m3_logits){ .next = *list, .tensor = *got, .side = *side, .note = wide ? padded : last_row };
    *list = l;
    if (wide) {
        m3_fail(notes, M3_OK,
                "%s: got %" PRId64 " columns, expected %" PRId64 ", the vocabulary: the last %" PRId64
                " are taken as padding and not judged",
                got->name, got->shape[1], shape->V, got->shape[1] - shape->V);
        return copy_columns(l, got, shape->V, error);
    }
    m3_fail(notes, M3_OK, "%s: got a vector of %" PRId64 " numbers: taken as row %" PRId64 ", %s", got->name, shape->V,
            number, m3_side_rows(side, shape->tap) ? "the last of `rows`" : "the last of the case");
    take_row(l, number);
    return M3_OK;
}

void m3_logits_free(struct m3_logits *list)
{
    for (struct m3_logits *next; list; list = next) {
        next = list->next;
        if (list->copy) munmap(list->copy, list->bytes);
        free(list);
    }
}
