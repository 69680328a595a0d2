#include "model/graph/values.h"

#include <stdlib.h>
#include <string.h>

size_t m3_tap_number_bytes(enum m3_tap tap, size_t real_bytes)
{
    return m3_tap_table[tap].kind == M3_KIND_REALS ? real_bytes : sizeof(int32_t);
}

const double *m3_tap_doubles(const struct m3_tap_values *values)
{
    return m3_tap_table[values->tap].kind == M3_KIND_REALS ? values->values : NULL;
}

const int32_t *m3_tap_ids(const struct m3_tap_values *values)
{
    return m3_tap_table[values->tap].kind == M3_KIND_REALS ? NULL : values->ids;
}

void m3_tap_values_free(struct m3_tap_values *values)
{
    void *all[] = { values->data, values->off.error, values->off.variance, values->numbers, values->usable };
    for (size_t i = 0; i < sizeof all / sizeof all[0] && !values->is_borrowed; i++) free(all[i]);
    *values = (struct m3_tap_values){ .tap = values->tap };
}

int m3_tap_values_room(struct m3_tap_values *values, size_t real_bytes, struct m3_error *error)
{
    const size_t size = m3_tap_number_bytes(values->tap, real_bytes);
    size_t count, bytes;
    if (__builtin_mul_overflow((size_t)values->rows, (size_t)values->width, &count) ||
        __builtin_mul_overflow(count, size, &bytes) || !(values->data = malloc(bytes + 1)))
        return m3_fail_memory(error, m3_tap_table[values->tap].name, size);
    return M3_OK;
}

static void *copy(const void *from, int64_t count, size_t size, int *short_of)
{
    void *to = from ? malloc((size_t)count * size + 1) : NULL;
    if (to) memcpy(to, from, (size_t)count * size);
    *short_of |= from && !to;
    return to;
}

int m3_tap_values_copy(struct m3_tap_values *to, const struct m3_tap_values *from, struct m3_error *error)
{
    const int64_t n = from->rows * from->width;
    int short_of = 0;
    *to = *from;
    to->data = copy(from->data, n, m3_tap_number_bytes(from->tap, sizeof(double)), &short_of);
    to->off.error = copy(from->off.error, n, sizeof(double), &short_of);
    to->off.variance = copy(from->off.variance, n, sizeof(double), &short_of);
    to->numbers = copy(from->numbers, from->rows, sizeof *to->numbers, &short_of);
    to->usable = copy(from->usable, from->rows, 1, &short_of);
    to->is_borrowed = 0;
    if (!short_of) return M3_OK;
    m3_tap_values_free(to);
    return m3_fail_memory(error, m3_tap_table[from->tap].name, (size_t)n * sizeof(double));
}

int64_t m3_row_index(const int64_t *numbers, int64_t rows, int64_t number)
{
    int64_t low = 0, high = rows;
    if (!numbers) return number >= 0 && number < rows ? number : -1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (numbers[middle] < number) low = middle + 1;
        else high = middle;
    }
    return low < rows && numbers[low] == number ? low : -1;
}

int64_t m3_tap_values_row(const struct m3_tap_values *values, int64_t number)
{
    return m3_row_index(values->numbers, values->rows, number - (values->numbers ? 0 : values->first));
}
