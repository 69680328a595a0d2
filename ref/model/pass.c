#include "model/pass.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void *m3_pass_need(struct m3_pass *f, int64_t rows, int64_t width, size_t size)
{
    size_t count, bytes;
    void *memory = NULL;
    if (f->status) return NULL;             /* one line, not one for each that follows */
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
    return sink && sink->wants(sink->self, tap, f->layer);
}

/* The line of an operator that failed: tap, then as much of the place as it gave. */
static int failed(struct m3_pass *f, int status, enum m3_tap tap, int64_t row0)
{
    if (status < M3_WRONG || status > M3_IO) status = M3_UNAVAILABLE;      /* what a plug-in made up */
    const struct m3_failure *at = &f->ctx.failure;
    const char *folder = m3_checkpoint_config_path(f->model->checkpoint);
    const char *row = m3_tap_table[tap].shape[0] == 'T' ? "token" : "row";
    const char *unit = m3_tap_table[tap].where == M3_WHERE_MOE_LAYER ? "expert" : "block";
    char name[96], place[160];
    size_t n = 0;

    m3_tap_name(name, sizeof name, tap, f->layer);
    place[0] = '\0';
    if (at->row >= 0) n += (size_t)snprintf(place + n, sizeof place - n, ", %s %" PRId64, row, row0 + at->row);
    if (at->group >= 0) n += (size_t)snprintf(place + n, sizeof place - n, ", group %" PRId64, at->group);
    if (at->block >= 0) snprintf(place + n, sizeof place - n, ", %s %" PRId64, unit, at->block);
    return m3_fail(f->error, status, "%s: %s%s: %s", folder, name, place, at->what ? at->what : "the operator failed");
}

int m3_pass_show(struct m3_pass *f, enum m3_tap tap, void *data, int64_t row, int64_t rows, int status)
{
    const struct m3_force *force = f->request->force;
    if (status) f->status = failed(f, status, tap, row);
    else if (force) f->status = force->replace(force->self, tap, f->layer, data, row, rows, f->error);
    if (!f->status && m3_pass_shows(f, tap))
        f->status = f->request->sink->write(f->request->sink->self, tap, f->layer, data, row, rows, f->error);
    return f->status;
}

int m3_pass_prepared(struct m3_pass *f, enum m3_tap tap, int64_t row, int status)
{
    return status ? (f->status = failed(f, status, tap, row)) : 0;
}

int m3_pass_nan_free(struct m3_pass *f, enum m3_tap tap, const real *x, int64_t row0, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows * width; i++)
        if (x[i] != x[i]) {
            f->ctx.failure = (struct m3_failure){ "got nan, expected a number", i / width, -1, -1 };
            return f->status = failed(f, M3_WRONG, tap, row0);
        }
    return 0;
}

void m3_pass_vector(real *out, const struct m3_weight *w)
{
    if (!w->data) return;
    if (sizeof(real) == sizeof(double)) m3_expand_f64((double *)(void *)out, w, 0, 0, w->cols);
    else m3_expand_f32((float *)(void *)out, w, 0, 0, w->cols);
}

void m3_pass_pages(const struct m3_weight *w, void (*give)(const void *, uint64_t))
{
    if (w->data) give(w->data, (uint64_t)(w->rows * w->cols) * m3_dtype_bytes(w->dtype));
}
