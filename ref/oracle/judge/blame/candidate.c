#include "oracle/judge/blame/private/blame.h"

void m3_blame_drop_unseen(int32_t *ids, int64_t width, const struct m3_blaming *b, const struct m3_blame_item *item,
                          int64_t number)
{
    const int64_t p0 = b->setting->the_case->p0, block = b->setting->model->config.block;
    const int64_t own = (p0 + number) / block, blocks = (p0 + item->rows - 1) / block + 1;
    for (int64_t i = 0; i < width; i++)
        if (ids[i] > own && ids[i] < blocks) ids[i] = -1;
}

int m3_blame_read(struct m3_tap_values *v, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_tensor *t = item->dumped, *numbers = m3_side_rows(item->side, item->tap);
    *v = (struct m3_tap_values){ .tap = item->tap, .layer = item->layer, .rows = t->shape[0], .width = item->width };
    m3_pages_ask(t->data, t->bytes);
    const int status = m3_read_rows(v, t, NULL, NULL, b->setting->ctx, b->error);
    m3_pages_release(t->data, t->bytes);
    for (int64_t r = 0; !status && r < v->rows; r++) {
        v->numbers[r] = m3_row_number(numbers, r);
        if (item->tap == M3_TAP_INDEX_BLOCKS)
            m3_blame_drop_unseen(v->ids + r * v->width, v->width, b, item, v->numbers[r]);
    }
    return status;
}
