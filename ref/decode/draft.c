#include "decode/draft.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

/* Rows of places [first, end), the only ones that are still needed. */
struct window {
    char *rows;
    int64_t first, end, capacity;
};

struct m3_drafter {
    const struct m3_engine *engine;
    const struct m3_model *model;
    const struct m3_request *how;
    int64_t modules;
    size_t row_bytes;                   /* of H numbers */
    struct window *hidden;              /* [modules]: the input of module m */
    struct window embedded;             /* rows that entered layer 0 */
    double *logits;                     /* [V] */
};

int m3_drafter_new(struct m3_drafter **drafter, const struct m3_engine *engine, const struct m3_model *model,
                   int64_t modules, const struct m3_request *how, struct m3_error *error)
{
    struct m3_drafter *d = *drafter = calloc(1, sizeof *d);
    if (!d) return m3_fail_memory(error, "drafts", sizeof *d);
    *d = (struct m3_drafter){ .engine = engine,
                              .model = model,
                              .how = how,
                              .modules = modules,
                              .row_bytes = (size_t)model->config.H * engine->real_bytes };
    d->hidden = calloc((size_t)modules, sizeof *d->hidden);
    d->logits = malloc((size_t)model->config.V * sizeof *d->logits);
    return d->hidden && d->logits ? M3_OK : m3_fail_memory(error, "drafts", d->row_bytes);
}

void m3_drafter_free(struct m3_drafter *d)
{
    if (!d) return;
    for (int64_t m = 0; d->hidden && m < d->modules; m++) free(d->hidden[m].rows);
    free(d->hidden);
    free(d->embedded.rows);
    free(d->logits);
    free(d);
}

static char *row_at(const struct m3_drafter *d, const struct window *w, int64_t place)
{
    return w->rows + (size_t)(place - w->first) * d->row_bytes;
}

/* Appends rows at w's end. */
static int append(const struct m3_drafter *d, struct window *w, int64_t first, int64_t rows, const void *data,
                  struct m3_error *error)
{
    if (w->first == w->end) w->first = w->end = first;
    int64_t needed = first + rows - w->first;
    if (needed > w->capacity) {
        char *more = realloc(w->rows, (size_t)needed * d->row_bytes);
        if (!more) return m3_fail_memory(error, "hidden states", (size_t)needed * d->row_bytes);
        w->rows = more;
        w->capacity = needed;
    }
    memcpy(row_at(d, w, first), data, (size_t)rows * d->row_bytes);
    w->end = first + rows;
    return M3_OK;
}

/* Drops all rows of w except [first, end). */
static void narrow(const struct m3_drafter *d, struct window *w, int64_t first, int64_t end)
{
    w->end = m3_max(w->first, m3_min(w->end, end));
    first = m3_min(m3_max(first, w->first), w->end);
    if (first > w->first) memmove(w->rows, row_at(d, w, first), (size_t)(w->end - first) * d->row_bytes);
    w->first = first;

    /* Shrink: a prompt has many rows, a step has few. */
    int64_t rows = m3_max(1, w->end - w->first);
    char *less = w->capacity > 8 * rows ? realloc(w->rows, (size_t)rows * d->row_bytes) : NULL;
    if (less) {
        w->rows = less;
        w->capacity = rows;
    }
}

int m3_drafter_wants_rows(const struct m3_drafter *d) { return d->how->semantics->mtp_embed == M3_MTP_EMBED_FUSED; }

int m3_drafter_feed(struct m3_drafter *d, int64_t first, int64_t rows, const void *final_norm, const void *embedded,
                    struct m3_error *error)
{
    int status = append(d, &d->hidden[0], first, rows, final_norm, error);
    return status || !embedded ? status : append(d, &d->embedded, first, rows, embedded, error);
}

/* Runs module m over its new rows, up to that of place n - 2, and leaves the logits of the last row in d->logits. */
static int run_module(struct m3_drafter *d, int64_t m, const int32_t *ids, int64_t n, const int64_t *positions,
                      struct m3_error *error)
{
    int64_t first = m3_cache_length(d->how->cache, m), rows = n - 1 - first;
    int64_t place = first + m + 1, seen = m3_max(0, m3_min(rows, d->embedded.end - place));
    void *hidden = malloc((size_t)rows * d->row_bytes);
    if (!hidden) return m3_fail_memory(error, "hidden states", (size_t)rows * d->row_bytes);
    memcpy(hidden, row_at(d, &d->hidden[m], first), (size_t)rows * d->row_bytes);

    const struct m3_mtp_request r = { .how = d->how,
                                      .module = m,
                                      .T = rows,
                                      .ids = ids + place,
                                      .embedded = seen ? row_at(d, &d->embedded, place) : NULL,
                                      .embedded_rows = seen,
                                      .positions = positions + first,
                                      .hidden = hidden,
                                      .logits = d->logits,
                                      .logit_rows = 1 };
    int status = d->engine->mtp(d->model, &r, error);
    if (!status && m + 1 < d->modules) status = append(d, &d->hidden[m + 1], first, rows, hidden, error);
    free(hidden);
    return status;
}

int m3_drafter_draft(struct m3_drafter *d, int32_t *ids, int64_t n, int64_t count, const int64_t *positions,
                     const struct m3_sampling *sampling, double *q, int32_t *order, struct m3_error *error)
{
    int64_t V = d->model->config.V;
    int status = M3_OK;
    for (int64_t m = 0; !status && m < count; m++) {
        status = run_module(d, m, ids, n, positions, error);
        if (!status && !m3_logits_good(d->logits, V))
            status = m3_fail(error, M3_WRONG,
                             "mtp.%" PRId64 ".logits: place %" PRId64 ": got nan or inf, expected "
                             "numbers",
                             m, n - 2);
        if (status) break;
        m3_distribution(q + m * V, order, d->logits, V, sampling);
        ids[n + m] = m3_pick(q + m * V, V, m3_uniform(sampling->seed, M3_DRAW_DRAFT, n + m));
    }
    return status;
}

void m3_drafter_keep(struct m3_drafter *d, int64_t n)
{
    struct m3_cache *cache = d->how->cache;
    int64_t next = n - 1;               /* the first place whose row a module has not used yet */
    for (int64_t m = 0; m < d->modules; m++) {
        int64_t rows = m3_max(0, m3_min(m3_cache_length(cache, m), n - m - 2));
        m3_cache_set_length(cache, m, rows);
        narrow(d, &d->hidden[m], rows, n - m - 1);
        next = m3_min(next, rows + m + 1);
    }
    narrow(d, &d->embedded, next, n - 1);
}
