/* The step `scatter`: rows that a rank computed for some tokens only, put where these tokens are. */
#include <inttypes.h>
#include <stdlib.h>

#include "oracle/map/private/map.h"

enum { MOST_ROWS = 1 << 24 };

/* Rows of lists in the same order as the rows of values. */
static int check_pair(const struct m3_array *values, const struct m3_array *first, const struct m3_array *list,
                      struct m3_map_trouble *trouble)
{
    char got[160], want[160];
    if (list->rank != 1 || !m3_array_is_integer(list) || values->rank < 1 || list->shape[0] != values->shape[0])
        return m3_map_trouble_is(trouble, "got the list %s beside %s, expected one integer for each row",
                                 m3_array_text(got, sizeof got, list), m3_array_text(want, sizeof want, values));
    int same = values->rank == first->rank && !m3_array_is_integer(values);
    for (int i = 1; same && i < first->rank; i++) same = values->shape[i] == first->shape[i];
    if (same) return M3_OK;
    return m3_map_trouble_is(trouble, "got %s beside %s, expected numbers of equal shapes except axis 0",
                             m3_array_text(got, sizeof got, values), m3_array_text(want, sizeof want, first));
}

/* total [rows,width] += values [n,width] at the rows of list [n]; both are packed. A negative row is an empty slot,
 * whose values may be anything. */
static int add_rows(double *total, int64_t rows, int64_t width, const struct m3_array *values,
                    const struct m3_array *list, struct m3_map_trouble *trouble)
{
    for (int64_t i = 0; i < list->shape[0]; i++) {
        const int64_t row = m3_array_integer(list, i);
        if (row < 0) continue;
        if (row >= rows)
            return m3_map_trouble_is(
                trouble, "the list: [%" PRId64 "]: got row %" PRId64 ", expected less than %" PRId64, i, row, rows);
        for (int64_t d = 0; d < width; d++)
            total[row * width + d] += m3_decode(values->dtype, values->data, i * width + d);
    }
    return M3_OK;
}

/* An array of zeros [rows,..] in F64, otherwise of the shape of `part`; without data if that has none. */
static int begin(struct m3_array *whole, const struct m3_array *part, int64_t rows, struct m3_map_trouble *trouble)
{
    int64_t elements = rows;
    size_t bytes = 0;
    *whole = (struct m3_array){ .dtype = M3_F64, .rank = part->rank };
    whole->shape[0] = rows;
    int fits = rows <= MOST_ROWS;
    for (int i = 1; fits && i < part->rank; i++) {
        whole->shape[i] = part->shape[i];
        fits = !__builtin_mul_overflow(elements, part->shape[i], &elements);
    }
    if (!fits || __builtin_mul_overflow((size_t)elements, sizeof(double), &bytes))
        return m3_map_trouble_is(trouble, "got %" PRId64 " rows, expected fewer", rows);
    if (part->data && !(whole->owned = calloc(bytes + 1, 1))) return M3_INTERNAL;
    whole->data = whole->owned;
    return m3_array_pack(whole);
}

int m3_map_scatter(struct m3_array *arrays, int *count, int64_t rows, struct m3_map_trouble *trouble)
{
    const int pairs = *count / 2;
    struct m3_array whole = { 0 };
    int status = M3_OK;
    if (*count % 2)
        return m3_map_trouble_is(trouble, "got %d tensors, expected as many lists of rows as tensors", *count);
    for (int k = 0; !status && k < pairs; k++) status = check_pair(&arrays[k], &arrays[0], &arrays[pairs + k], trouble);
    if (!status) status = begin(&whole, &arrays[0], rows, trouble);
    const int64_t width = rows > 0 ? m3_array_count(&whole) / rows : 0;
    for (int k = 0; !status && whole.owned && k < pairs; k++) {
        if (m3_array_pack(&arrays[k]) || m3_array_pack(&arrays[pairs + k])) status = M3_INTERNAL;
        else status = add_rows(whole.owned, rows, width, &arrays[k], &arrays[pairs + k], trouble);
    }
    if (status) {
        m3_array_free(&whole);
        return status;
    }
    for (int k = 0; k < *count; k++) m3_array_free(&arrays[k]);
    arrays[0] = whole;
    *count = 1;
    return M3_OK;
}
