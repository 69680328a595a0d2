#include <stdlib.h>
#include <string.h>

#include "oracle/judge/blame/private/blame.h"

static void read_row(struct m3_known *v, const struct m3_blame_item *item, int64_t r)
{
    const struct m3_tensor *t = item->dumped;
    v->usable[r] = 1;
    for (int64_t i = r * v->width; i < (r + 1) * v->width; i++) {
        if (v->ids) {
            int64_t id = m3_id_at(t, i);
            v->ids[i] = id == (int32_t)id ? (int32_t)id : -2;
        } else {
            v->values[i] = m3_decode(t->dtype, t->data, i);
            v->usable[r] &= m3_is_operand(v->values[i], item->tap);
        }
    }
}

void m3_blame_drop_unseen(int32_t *ids, int64_t width, const struct m3_blaming *b, const struct m3_blame_item *item,
                          int64_t number)
{
    const int64_t p0 = b->setting->the_case->p0, block = b->setting->model->config.block;
    const int64_t own = (p0 + number) / block, blocks = (p0 + item->rows - 1) / block + 1;
    for (int64_t i = 0; i < width; i++)
        if (ids[i] > own && ids[i] < blocks) ids[i] = -1;
}

int m3_blame_read(struct m3_known *v, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_tensor *t = item->dumped, *numbers = m3_side_rows(item->side, item->tap);
    const int64_t rows = t->shape[0], count = rows * item->width;
    const int ids = m3_tap_table[item->tap].kind == M3_KIND_CHOICES;
    const size_t room = (size_t)count + 1;
    *v = (struct m3_known){ .rows = rows, .width = item->width };
    if (ids) v->ids = malloc(room * sizeof *v->ids);
    else v->values = malloc(room * sizeof *v->values);
    v->numbers = malloc(((size_t)rows + 1) * sizeof *v->numbers);
    v->usable = malloc((size_t)rows + 1);
    if ((!v->ids && !v->values) || !v->numbers || !v->usable)
        return m3_fail_memory(b->error, item->name, room * sizeof *v->values);
    for (int64_t r = 0; r < rows; r++) v->numbers[r] = m3_row_number(numbers, r);

    m3_pages_ask(t->data, t->bytes);
#pragma omp parallel for num_threads(m3_team(b->setting->ctx, count))
    for (int64_t r = 0; r < rows; r++) {
        read_row(v, item, r);
        if (item->tap == M3_TAP_INDEX_BLOCKS)
            m3_blame_drop_unseen(v->ids + r * v->width, v->width, b, item, v->numbers[r]);
    }
    m3_pages_release(t->data, t->bytes);
    return M3_OK;
}

int m3_blame_put(const struct m3_blaming *b, const struct m3_blame_item *item, struct m3_known *v)
{
    int64_t rows = 0;
    for (int64_t r = 0; r < v->rows; r++) {
        if (!v->usable[r] || v->numbers[r] >= item->rows) continue;
        const size_t bytes = (size_t)v->width * (v->ids ? sizeof *v->ids : sizeof *v->values);
        char *all = v->ids ? (char *)v->ids : (char *)v->values;
        memmove(all + (size_t)rows * bytes, all + (size_t)r * bytes, bytes);
        v->numbers[rows++] = v->numbers[r];
    }
    v->rows = rows;
    free(v->usable);
    v->usable = NULL;
    if (rows == item->rows) {
        free(v->numbers);
        v->numbers = NULL;
    }
    return m3_trace_take(b->trace, item->tap, item->layer, v, b->error);
}
