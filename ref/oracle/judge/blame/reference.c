/* The truth beside the candidate: a pass in double, whose taps arrive one by one, or one that was kept. A tap is judged
 * as soon as the truth has it, and then the truth's values are dropped: the weights of a layer are read once. */
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/blame/private/blame.h"

/* Is the truth needed to compute what is inherited? Slots of experts are aligned by the ids. */
static int is_wanted(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    if (item->blamed) return m3_tap_table[item->tap].kind != M3_KIND_COUNTS;
    if (item->tap != M3_TAP_EXPERTS) return 0;
    const struct m3_blame_item *p = m3_blame_find(b, M3_TAP_EXPERT_WEIGHTS, item->layer);
    const struct m3_blame_item *each = m3_blame_find(b, M3_TAP_EXPERT_OUT, item->layer);
    return p->blamed || each->blamed;
}

static int is_of_reals(const struct m3_blame_item *item) { return m3_tap_table[item->tap].kind == M3_KIND_REALS; }

static size_t size_of(const struct m3_blame_item *item) { return is_of_reals(item) ? sizeof(double) : sizeof(int32_t); }

/* Room for the truth's values of a tap; NULL if memory is short. */
static void *room_for(struct m3_blaming *b, struct m3_blame_item *item)
{
    const size_t bytes = (size_t)(item->rows * item->width) * size_of(item);
    if (!item->truth && !(item->truth = malloc(bytes + 1))) m3_fail_memory(b->error, item->name, bytes);
    return item->truth;
}

static void drop(struct m3_blame_item *item)
{
    if (!item->is_lent) free(item->truth);
    item->truth = NULL;
    item->is_lent = 0;
}

/* The values of the last tap; ids are needed until their layer ends. */
static void drop_read(struct m3_blaming *b)
{
    const int64_t last = b->next - 1;
    const int is_end = b->next == b->count || b->items[b->next].layer != b->items[last].layer;
    if (is_of_reals(&b->items[last])) drop(&b->items[last]);
    for (int64_t i = last; i >= 0 && is_end && b->items[i].layer == b->items[last].layer; i--) drop(&b->items[i]);
}

static int take_next(struct m3_blaming *b)
{
    struct m3_blame_item *item = &b->items[b->next];
    m3_tell(&b->options->progress, "tap", b->next++, b->count);
    int status = item->needed ? m3_blame_take(b, item) : M3_OK;
    if (!status && item->blamed) m3_blame_count_together(b, item);
    drop_read(b);
    return status;
}

/* ---- a pass */

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    const struct m3_blaming *b = self;
    const struct m3_blame_item *item = m3_blame_find(b, tap, layer);
    return (item && item->wants_truth) || (b->beside && b->beside->wants(b->beside->self, tap, layer));
}

static int keep_rows(struct m3_blaming *b, struct m3_blame_item *item, const void *data, int64_t row, int64_t rows)
{
    const size_t step = (size_t)item->width * size_of(item);
    if (row != item->arrived || rows < 0 || row + rows > item->rows)
        return m3_fail(b->error, M3_INTERNAL, "%s: got rows that are not the next of the call", item->name);
    char *to = room_for(b, item);
    if (!to) return M3_INTERNAL;
    memcpy(to + (size_t)row * step, data, (size_t)rows * step);
    item->arrived += rows;
    return M3_OK;
}

/* The whole tap, and no ids, which later taps need: the pass's own memory does. */
static int is_whole(const struct m3_blaming *b, const struct m3_blame_item *item, int64_t row, int64_t rows)
{
    return item == &b->items[b->next] && row == 0 && rows == item->rows && is_of_reals(item);
}

static int write_rows(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                      struct m3_error *error)
{
    struct m3_blaming *b = self;
    struct m3_blame_item *item = m3_blame_find(b, tap, layer);
    int status = M3_OK;
    if (b->beside && b->beside->wants(b->beside->self, tap, layer))
        status = b->beside->write(b->beside->self, tap, layer, data, row, rows, error);
    if (status || !item || !item->wants_truth) return status;
    if (is_whole(b, item, row, rows)) {
        item->truth = (void *)(uintptr_t)data;
        item->is_lent = 1;
        item->arrived = rows;
    } else {
        status = keep_rows(b, item, data, row, rows);
    }
    while (!status && b->next < b->count && b->items[b->next].arrived == b->items[b->next].expected)
        status = take_next(b);
    return status;
}

static int run(struct m3_blaming *b)
{
    const struct m3_setting *s = b->setting;
    struct m3_request request;
    if (b->options->request) {
        request = *b->options->request;
        b->beside = request.sink;
    } else {
        request = m3_case_request(s->the_case);
        request.first_layer = s->part.first;
        request.hidden = s->part.hidden;
        request.end_layer = m3_setting_end(s);
        request.semantics = s->semantics;
        request.linear = s->ctx->linear;
        request.threads = s->ctx->threads;
    }
    request.progress = (struct m3_progress){ 0 }; /* what has been judged is told */
    const struct m3_sink sink = {
        .self = b, .wants = wants, .write = write_rows, .takes_whole = b->beside && b->beside->takes_whole
    };
    request.sink = &sink;
    b->double_passes++;
    return m3_engine_f64()->forward(s->model, &request, b->error);
}

/* ---- a truth that was kept */

/* The truth's values of an item; none if the file does not have them. */
static int read_kept(struct m3_blaming *b, struct m3_blame_item *item)
{
    const struct m3_tensor *t = item->wants_truth ? m3_safetensors_find(b->options->truth, item->name) : NULL;
    const int64_t count = item->rows * item->width;
    if (!t || t->count != count || (is_of_reals(item) ? !m3_holds_floats(t) : !m3_holds_ids(t))) return M3_OK;
    if (!room_for(b, item)) return M3_INTERNAL;
    for (int64_t i = 0; i < count; i++)
        if (is_of_reals(item)) ((double *)item->truth)[i] = m3_decode(t->dtype, t->data, i);
        else ((int32_t *)item->truth)[i] = (int32_t)m3_id_at(t, i);
    return M3_OK;
}

/* ---- all taps */

int m3_blame_all(struct m3_blaming *b)
{
    int any = 0, status = M3_OK;
    for (int64_t i = 0; i < b->count && !b->options->is_alone; i++) {
        struct m3_blame_item *item = &b->items[i];
        item->wants_truth = is_wanted(b, item);
        item->expected = item->wants_truth && !b->options->truth ? item->rows : 0;
        any |= item->wants_truth;
    }
    if (b->options->request || (any && !b->options->truth)) status = run(b);
    while (!status && b->next < b->count) {
        if (b->options->truth) status = read_kept(b, &b->items[b->next]);
        if (!status) status = take_next(b);
    }
    return status;
}

void m3_blame_drop_truth(struct m3_blaming *b)
{
    for (int64_t i = 0; i < b->count; i++) drop(&b->items[i]);
}
