#include "model/graph/record.h"

#include <stdlib.h>

static int64_t rows_before(const struct m3_recorded *written, const void *read)
{
    const int64_t row = written->rows > 0 ? (int64_t)written->bytes / written->rows : 0;
    return row > 0 ? ((const char *)read - (const char *)written->y) / row : 0;
}

/* The last step that wrote the byte; -1: none did. */
static int64_t writer_of(const struct m3_recorder *r, const void *at)
{
    const char *byte = at;
    for (int64_t i = r->count - 1; i >= 0; i--) {
        const char *y = r->steps[i].step.y;
        if (y && byte >= y && byte < y + r->steps[i].step.bytes) return i;
    }
    return -1;
}

static struct m3_recorded_step *next(struct m3_recorder *r, struct m3_error *error)
{
    if (r->count == r->room) {
        const int64_t room = 2 * r->room + 256;
        struct m3_recorded_step *steps = realloc(r->steps, (size_t)room * sizeof *steps);
        if (!steps) {
            m3_fail_memory(error, "the graph", (size_t)room * sizeof *steps);
            return NULL;
        }
        r->steps = steps;
        r->room = room;
    }
    return &r->steps[r->count];
}

int m3_record(struct m3_recorder *r, int64_t layer, const struct m3_recorded *step, struct m3_error *error)
{
    struct m3_recorded_step *mine = next(r, error);
    if (!mine) return M3_INTERNAL;
    *mine = (struct m3_recorded_step){ .step = *step, .layer = layer, .node = -1 };
    for (int i = 0; i < M3_STEP_INPUTS && step->in[i]; i++) {
        const int64_t from = writer_of(r, step->in[i]);
        if (from < 0) continue;
        mine->rows_before[mine->in_count] = rows_before(&r->steps[from].step, step->in[i]);
        mine->in[mine->in_count++] = from;
    }
    r->count++;
    return M3_OK;
}

int m3_record_shown(struct m3_recorder *r, int64_t layer, enum m3_tap tap, const void *data, struct m3_error *error)
{
    const int64_t from = writer_of(r, data);
    struct m3_recorded_step *prepared = from >= 0 ? &r->steps[from] : NULL;
    if (prepared && !prepared->step.is_shown && prepared->step.tap == tap && prepared->layer == layer) {
        prepared->step.is_shown = 1;
        return M3_OK;
    }
    struct m3_recorded copy = { M3_OP_INPUT, .tap = tap, .is_shown = 1, .y = data, .bytes = 1, .in = { data } };
    if (prepared) {
        copy.op = M3_OP_COPY;
        copy.rows = prepared->step.rows - rows_before(&prepared->step, data);
        copy.bytes = prepared->step.bytes - (size_t)((const char *)data - (const char *)prepared->step.y);
    }
    return m3_record(r, layer, &copy, error);
}
