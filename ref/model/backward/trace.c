/* The forward pass of every sequence. It keeps the input of every layer and module, and counts what the router's
 * balance loss needs of all layers at once. */
#include <stdlib.h>
#include <string.h>

#include "model/backward/backward.h"
#include "model/backward/stages.h"
#include "model/forward/forward.h"

static real *copy_of(struct m3_backward *b, const real *from, int64_t rows)
{
    const int64_t H = b->model->config.H;
    real *copy = m3_pass_need(&b->f, rows, H, sizeof *copy);
    if (copy) memcpy(copy, from, (size_t)(rows * H) * sizeof *copy);
    return copy;
}

/* Called with the input of each layer, and at last with that of the final norm. */
static int keep(void *self, int64_t layer, const void *hidden, struct m3_error *error)
{
    struct m3_backward *b = self;
    (void)error;
    b->traces[b->b].hidden[layer] = copy_of(b, hidden, b->how.T);
    return b->f.status;
}

static int wants_routing(void *self, enum m3_tap tap, int64_t layer)
{
    const struct m3_backward *b = self;
    const int is_choice = tap == M3_TAP_EXPERTS && b->request->readings.aux == M3_AUX_SIGMOID;
    return (tap == M3_TAP_ROUTER_LOGITS || is_choice) && m3_mtp_module_of(layer) < 0;
}

static int count(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                 struct m3_error *error)
{
    struct m3_backward *b = self;
    const int is_choice = tap == M3_TAP_EXPERTS;
    (void)error;
    m3_backward_count(b, layer, is_choice ? NULL : data, is_choice ? data : NULL, row, rows);
    return M3_OK;
}

/* The hidden states that the modules are given, of which the first are those after the final norm. */
static void trace_modules(struct m3_backward *b, struct m3_trace *trace)
{
    struct m3_pass *f = &b->f;
    const int64_t H = b->model->config.H, T = b->how.T;
    real *state = m3_pass_need(f, T, H, sizeof *state);
    rms_norm(f, prepares(M3_TAP_FINAL_NORM), state, trace->hidden[b->model->config.layers], &b->model->final_norm);
    for (int64_t m = 0; !f->status && m < b->modules && m + 1 < T; m++) {
        const struct m3_mtp_request r = {
            .how = &b->how,
            .module = m,
            .T = T - m - 1,
            .ids = b->how.ids + m + 1,
            .positions = b->how.positions,
            .hidden = state,
        };
        trace->module[m] = copy_of(b, state, T);
        if (!f->status && m + 1 < b->modules) f->status = m3_forward_mtp(b->model, &r, b->error);
    }
    free(state);
}

static void trace_sequence(struct m3_backward *b, int64_t i)
{
    const int64_t layers = b->model->config.layers, H = b->model->config.H, T = b->request->sequences[i].T;
    const struct m3_resume keeping = { .self = b, .keep = keep };
    const struct m3_sink counting = { .self = b, .wants = wants_routing, .write = count };
    struct m3_trace *trace = &b->traces[i];
    m3_backward_take(b, i, T);
    trace->hidden = m3_pass_need(&b->f, layers + 1, 1, sizeof *trace->hidden);
    if (trace->hidden) memset(trace->hidden, 0, (size_t)(layers + 1) * sizeof *trace->hidden);
    trace->module = m3_pass_need(&b->f, b->modules + 1, 1, sizeof *trace->module);
    if (trace->module) memset(trace->module, 0, (size_t)(b->modules + 1) * sizeof *trace->module);
    trace->d = m3_pass_need(&b->f, T, H, sizeof *trace->d);
    trace->d_given = m3_pass_need(&b->f, T, H, sizeof *trace->d_given);
    if (b->f.status) return;
    memset(trace->d, 0, (size_t)(T * H) * sizeof *trace->d);
    memset(trace->d_given, 0, (size_t)(T * H) * sizeof *trace->d_given);

    struct m3_request how = b->how;
    how.resume = &keeping;
    how.sink = b->request->weights.aux != 0 ? &counting : NULL;
    b->f.status = m3_forward(b->model, &how, b->error);
    trace_modules(b, trace);
}

void m3_backward_trace(struct m3_backward *b)
{
    for (int64_t i = 0; !b->f.status && i < b->request->count; i++) trace_sequence(b, i);
}
