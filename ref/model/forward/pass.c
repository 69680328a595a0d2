#include "model/forward/pass.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/divided/part.h"
#include "model/graph/record.h"
#include "ops/backward.h"
#include "ops/operators.h"

int m3_pass_open(struct m3_pass *f, const struct m3_model *model, const struct m3_request *request,
                 struct m3_error *error)
{
    const struct m3_config *c = &model->config;
    *f = (struct m3_pass){ .model = model,
                           .config = c,
                           .request = request,
                           .error = error,
                           .ops = m3_fast_ops,
                           .back = &m3_fast_backward_ops,
                           .layer = -1 };
    f->own = m3_rows_whole(INT64_MAX);
    f->act =
        (struct m3_activation){ c->oai, (real)c->swiglu_alpha, (real)c->swiglu_limit, request->semantics->gate_clamp };
    f->status = m3_ctx_init(&f->ctx, request->threads, request->linear);
    if (f->status) return m3_fail_memory(error, "a context", sizeof f->ctx);
    if (request->replacement) {
        f->ops = *request->replacement->ops;
        f->ctx.plugin = request->replacement->state;
        if (request->replacement->ops == &m3_plain_ops) f->back = &m3_plain_backward_ops;
    }
    return f->status;
}

int m3_pass_close(struct m3_pass *f)
{
    m3_ctx_free(&f->ctx);
    return f->status;
}

void *m3_pass_need(struct m3_pass *f, int64_t rows, int64_t width, size_t size)
{
    size_t count, bytes;
    void *memory = NULL;
    if (f->status) return NULL;             /* one error line, not another for each later stage */
    if (!__builtin_mul_overflow((size_t)rows, (size_t)width, &count) && !__builtin_mul_overflow(count, size, &bytes))
        memory = malloc(bytes ? bytes : 1);
    if (!memory)
        f->status = m3_fail(f->error, M3_INTERNAL, "out of memory: got none for %" PRId64 " x %" PRId64 " numbers",
                            rows, width);
    return memory;
}

int m3_pass_shows(const struct m3_pass *f, enum m3_tap tap)
{
    const struct m3_sink *sink = f->request->sink;
    if (f->request->recorder) return 1;
    if (f->share) return m3_share_shows(f, tap);
    return sink && sink->wants(sink->self, tap, f->layer);
}

void m3_pass_take_rows(struct m3_pass *f, int64_t T, int64_t rows)
{
    f->T = rows;
    f->own = f->share ? m3_share_rows(f, T, rows) : m3_rows_whole(rows);
    f->rows = m3_rows_count(&f->own);
}

int m3_pass_is_step(const struct m3_pass *f)
{
    return f->share ? m3_share_is_step(f) : f->cache && f->T <= M3_ALONE_ROWS;
}

int64_t m3_pass_width(const struct m3_pass *f, enum m3_tap tap)
{
    int64_t width = 1;
    for (const char *letter = m3_tap_table[tap].shape + 1; *letter; letter++)
        width *= m3_config_size(f->config, *letter);
    return width;
}

/* Reports the failed operator: the tap, then as much of the place as it reported. */
static int failed(struct m3_pass *f, int status, enum m3_tap tap)
{
    if (status != M3_WRONG && (status < M3_USAGE || status > M3_IO)) status = M3_INTERNAL;     /* from a plug-in */
    const struct m3_failure *at = &f->ctx.failure;
    const char *folder = f->model->checkpoint ? m3_checkpoint_config_path(f->model->checkpoint) : "operator";
    const char *row = m3_tap_table[tap].shape[0] == 'T' ? "token" : "row";
    const char *unit = m3_tap_table[tap].where == M3_WHERE_MOE_LAYER ? "expert" : "block";
    char name[96], place[160];
    size_t n = 0;

    m3_tap_name(name, sizeof name, tap, f->layer);
    place[0] = '\0';
    if (at->row >= 0)
        n +=
            (size_t)snprintf(place + n, sizeof place - n, ", %s %" PRId64, row, m3_rows_row(&f->own, f->row + at->row));
    if (at->group >= 0) n += (size_t)snprintf(place + n, sizeof place - n, ", group %" PRId64, at->group);
    if (at->block >= 0) snprintf(place + n, sizeof place - n, ", %s %" PRId64, unit, at->block);
    return m3_fail(f->error, status, "%s: %s%s: %s", folder, name, place, at->what ? at->what : "the operator failed");
}

void m3_pass_done(struct m3_pass *f, int stage, void *data, int status)
{
    const struct m3_force *force = f->request->force;
    const struct m3_sink *sink = f->request->sink;
    enum m3_tap tap = m3_pass_tap(stage);
    m3_scratch_release(&f->ctx, f->mark);
    if (!f->status && status) f->status = failed(f, status, tap);
    if (f->status || stage == prepares(tap)) return;
    if (f->share) {
        m3_share_show(f, tap, data);
        return;
    }
    if (force) f->status = force->replace(force->self, tap, f->layer, data, f->row, f->rows, f->error);
    if (!f->status && m3_pass_shows(f, tap))
        f->status = sink->write(sink->self, tap, f->layer, data, f->row, f->rows, f->error);
}

void m3_pass_nan_free(struct m3_pass *f, enum m3_tap tap, const real *x)
{
    const int64_t width = m3_pass_width(f, tap);
    for (int64_t i = 0; !f->status && !f->request->recorder && i < f->rows * width; i++)
        if (x[i] != x[i]) {
            f->ctx.failure = (struct m3_failure){ "got nan, expected a number", i / width, -1, -1 };
            f->status = failed(f, M3_WRONG, tap);
        }
}

void m3_pass_copy(struct m3_pass *f, void *to, const void *from)
{
    const size_t bytes = (size_t)(f->rows * f->config->H) * sizeof(real);
    const struct m3_recorded copy = { M3_OP_COPY,     .tap = M3_TAPS,  .y = to,
                                      .bytes = bytes, .rows = f->rows, .in = { from } };
    if (f->status || !to) return;
    if (f->request->recorder) f->status = m3_record(f->request->recorder, f->layer, &copy, f->error);
    else memcpy(to, from, bytes);
}

void m3_pass_progress(const struct m3_pass *f, const char *part, int64_t layer, int64_t layers)
{
    const struct m3_request *r = f->request;
    if (!f->status) m3_tell(&r->progress, part, layer, layers);
}
