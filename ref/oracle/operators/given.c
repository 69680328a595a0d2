#include "oracle/operators/given.h"

#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/judge/align.h"

/* Parts of call->numbers: places -p0 .. T-1; then 0, 1, .. for every row of any operand; then the rows to judge. */
struct parts {
    int64_t places, rows;
};

static struct parts parts_of(const struct m3_fragment *f)
{
    const int64_t rows = m3_max(m3_fragment_rows(f), m3_max(f->dims['M'], f->the_case.T));
    return (struct parts){ f->places, m3_max(rows + 1, f->places) };
}

/* Is an operand read up to the row's own place, or as a whole, rather than row by row? */
static int is_read_whole(const struct m3_fragment *f, const struct m3_operand_row *row)
{
    const int attends = f->op->outputs[0].tap == M3_TAP_VISION_ATTN || f->op->outputs[2].tap == M3_TAP_VISION_ATTN;
    return row->letters[0] == 'S' || row->letters[0] == 'M' || (row->letters[0] == 'P' && attends);
}

/* Reads rows `at` of a tensor, which are rows `numbers` of the tap. */
static int add(struct m3_given_call *call, const struct m3_fragment *f, enum m3_tap tap, const struct m3_tensor *t,
               int64_t rows, const int64_t *at, const int64_t *numbers)
{
    const int64_t layer = m3_fragment_layer(f, tap), width = m3_case_width(&f->the_case, &f->model.config, tap, layer);
    struct m3_tap_values *values = &call->taps[call->count];
    *values = (struct m3_tap_values){ .tap = tap, .layer = layer, .rows = rows, .width = width };
    call->tensors[call->count++] = t;
    return m3_read_rows(values, t, at, numbers, call->ctx, call->error);
}

int m3_given_operands(struct m3_given_call *call, const struct m3_fragment *f, const int64_t *rows, int64_t count,
                      struct m3_ctx *ctx, struct m3_error *error)
{
    const struct parts l = parts_of(f);
    const int64_t all = m3_fragment_rows(f), judged = rows ? count : all;
    const size_t room = (size_t)(l.places + l.rows + judged + 1);
    *call = (struct m3_given_call){ .judged = judged, .ctx = ctx, .error = error };
    call->numbers = malloc(room * sizeof *call->numbers);
    if (!call->numbers) return m3_fail_memory(error, f->op->name, room * sizeof *call->numbers);
    int64_t *from_0 = call->numbers + l.places, *listed = from_0 + l.rows;
    for (int64_t p = 0; p < l.places; p++) call->numbers[p] = p - f->the_case.p0;
    for (int64_t r = 0; r < l.rows; r++) from_0[r] = r;
    for (int64_t r = 0; r < judged; r++) listed[r] = rows ? rows[r] : r;
    int status = M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OPERANDS; i++) {
        const struct m3_operand_row *row = &f->op->operands[i];
        const struct m3_tensor *t = &f->operands[i];
        const int64_t *at = listed, *numbers = listed;
        if (row->role == M3_ROLE_NONE) break;
        if (row->role != M3_ROLE_TAP || t->rank == 0 || t->count == 0) continue;
        /* The embeddings that a module reads begin with the second. */
        const int is_later = row->tap == M3_TAP_EMBED && f->op->kind & M3_LAYER_MODULE;
        const int is_whole = is_read_whole(f, row) || is_later;
        if (is_whole) at = numbers = from_0;
        if (row->letters[0] == 'S') at = from_0, numbers = call->numbers;
        if (is_later) numbers = from_0 + 1;
        status = add(call, f, row->tap, t, is_whole ? t->shape[0] : judged, at, numbers);
    }
    call->operands = call->count;
    return status;
}

int m3_given_output(struct m3_given_call *call, const struct m3_fragment *f, const struct m3_operand_row *output,
                    const struct m3_tensor *tensor)
{
    const struct parts l = parts_of(f);
    const int64_t *from_0 = call->numbers + l.places, *listed = from_0 + l.rows;
    const int all = tensor->shape[0] == m3_fragment_rows(f);
    return add(call, f, output->tap, tensor, call->judged, all ? listed : from_0, listed);
}

void m3_given_free(struct m3_given_call *call)
{
    for (int i = 0; i < call->count; i++) m3_tap_values_free(&call->taps[i]);
    free(call->numbers);
    *call = (struct m3_given_call){ 0 };
}
