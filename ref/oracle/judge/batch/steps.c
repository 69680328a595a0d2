#include "oracle/judge/batch/steps.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

/* What is in the cache of a request. */
struct cached {
    int64_t length, room;
    int32_t *tokens;
    int64_t *at;
    int64_t fresh;      /* the rows from here on are in no history yet */
};

struct finding_histories {
    struct m3_histories *to;
    const struct m3_step_rows *rows;
    const struct m3_batch *requests;
    struct cached *cached;      /* [requests] */
    struct m3_error *error;
};

/* ---- the cache */

static int make_room(struct cached *c, int64_t length, struct m3_error *error)
{
    if (length <= c->room) return M3_OK;
    const int64_t room = m3_max(2 * c->room, length);
    int32_t *tokens = realloc(c->tokens, (size_t)room * sizeof *tokens);
    if (tokens) c->tokens = tokens;
    int64_t *at = realloc(c->at, (size_t)room * sizeof *at);
    if (at) c->at = at;
    if (!tokens || !at) return m3_fail_memory(error, "the rows of a request", (size_t)room * sizeof *at);
    c->room = room;
    return M3_OK;
}

static int append(struct cached *c, int32_t token, int64_t at, struct m3_error *error)
{
    const int status = make_room(c, c->length + 1, error);
    if (status) return status;
    c->tokens[c->length] = token;
    c->at[c->length++] = at;
    return M3_OK;
}

/* Of how many first tokens has another request's cache the same, and rows in the dump? */
static int64_t shared_with(const struct cached *other, const int32_t *tokens, int64_t length)
{
    int64_t n = 0;
    while (n < length && n < other->length && other->at[n] >= 0 && other->tokens[n] == tokens[n]) n++;
    return n;
}

/* Rows up to `row` that were not computed: a prefix that another request left, or what the dump does not hold. */
static int fill(struct finding_histories *f, int64_t request, int64_t row)
{
    struct cached *c = &f->cached[request];
    const struct m3_case *own = request < f->requests->layout.count ? &f->requests->cases[request] : NULL;
    const struct cached *best = NULL;
    int64_t shared = 0;
    if (!own || own->T < row)
        return m3_fail(f->error, M3_BAD_INPUT,
                       "%s: got row %" PRId64 " of request %" PRId64 " after row %" PRId64
                       ", expected the tokens between them in the case",
                       f->rows->path, row, request, c->length - 1);
    for (int64_t r = 0; r < f->to->requests; r++) {
        const int64_t n = r == request ? 0 : shared_with(&f->cached[r], own->ids, row);
        if (n > shared) shared = n, best = &f->cached[r];
    }
    int status = M3_OK;
    while (!status && c->length < row) {
        const int64_t i = c->length;
        status = append(c, own->ids[i], i < shared ? best->at[i] : -1, f->error);
    }
    return status;
}

/* ---- histories */

/* Keeps what is in the cache, before it is lost or at the end. */
static int keep(struct finding_histories *f, struct m3_history *to, int64_t request, int is_dropped)
{
    struct cached *c = &f->cached[request];
    *to = (struct m3_history){ .request = request, .length = c->length, .first = c->fresh, .is_dropped = is_dropped };
    to->tokens = malloc((size_t)c->length * sizeof *to->tokens + 1);
    to->at = malloc((size_t)c->length * sizeof *to->at + 1);
    if (!to->tokens || !to->at) return m3_fail_memory(f->error, "a request", (size_t)c->length * sizeof *to->at);
    memcpy(to->tokens, c->tokens, (size_t)c->length * sizeof *to->tokens);
    memcpy(to->at, c->at, (size_t)c->length * sizeof *to->at);
    c->fresh = c->length;
    return M3_OK;
}

static int drop(struct finding_histories *f, int64_t request, int64_t row)
{
    struct cached *c = &f->cached[request];
    struct m3_histories *h = f->to;
    if (c->fresh < c->length) {
        struct m3_history *all = realloc(h->all, (size_t)(h->count + 1) * sizeof *all);
        if (!all) return m3_fail_memory(f->error, "histories", (size_t)(h->count + 1) * sizeof *all);
        h->all = all;
        const int status = keep(f, &h->all[h->count++], request, 1);
        if (status) return status;
    }
    c->length = row;
    c->fresh = m3_min(c->fresh, row);
    return M3_OK;
}

/* The first token of a request shows whether dump and case number the requests alike. */
static int check_first(const struct finding_histories *f, int64_t request, int64_t token)
{
    const struct m3_batch *all = f->requests;
    if (request >= all->layout.count || token == all->cases[request].ids[0]) return M3_OK;
    return m3_fail(f->error, M3_BAD_INPUT,
                   "%s: request %" PRId64 " begins with token %" PRId64 ", expected %" PRId32 ", as in the case",
                   f->rows->path, request, token, all->cases[request].ids[0]);
}

static int take(struct finding_histories *f, int64_t i)
{
    const struct m3_step_rows *rows = f->rows;
    const int64_t request = rows->requests[i], row = rows->rows[i], token = rows->tokens[i];
    struct cached *c = &f->cached[request];
    int status = row == 0 ? check_first(f, request, token) : M3_OK;
    if (status) return status;
    if (row < c->length) status = drop(f, request, row);
    else if (row > c->length) status = fill(f, request, row);
    return status ? status : append(c, (int32_t)token, i, f->error);
}

/* What the case says of a request goes on after its last row. */
static int fill_end(struct finding_histories *f, int64_t request)
{
    const struct m3_case *own = request < f->requests->layout.count ? &f->requests->cases[request] : NULL;
    struct cached *c = &f->cached[request];
    int status = M3_OK;
    if (!own && c->length == 0)
        return m3_fail(f->error, M3_BAD_INPUT, "%s: got no row of request %" PRId64 ", expected requests in a row",
                       f->rows->path, request);
    if (!own || own->T <= c->length) return M3_OK;
    if (c->length > 0 && memcmp(own->ids, c->tokens, (size_t)c->length * sizeof *own->ids) != 0) return M3_OK;
    while (!status && c->length < own->T) status = append(c, own->ids[c->length], -1, f->error);
    return status;
}

/* Requests are those of the case, or as many more as there are rows. */
static int check_rows(const struct finding_histories *f)
{
    const struct m3_step_rows *r = f->rows;
    const int64_t most = f->requests->layout.count + r->count;
    for (int64_t i = 0; i < r->count; i++) {
        if (r->requests[i] < 0 || r->requests[i] >= most || r->rows[i] < 0 || r->rows[i] >= INT32_MAX)
            return m3_fail(f->error, M3_BAD_INPUT,
                           "%s: row %" PRId64 " of the dump: got row %" PRId64 " of request %" PRId64
                           ", expected rows from 0 on of requests from 0 to %" PRId64,
                           r->path, i, r->rows[i], r->requests[i], most - 1);
        if (r->tokens[i] < 0 || r->tokens[i] > INT32_MAX)
            return m3_fail(f->error, M3_BAD_INPUT,
                           "%s: row %" PRId64 " of the dump: got token %" PRId64 ", expected an id of the vocabulary",
                           r->path, i, r->tokens[i]);
    }
    return M3_OK;
}

int m3_histories_find(struct m3_histories *histories, const struct m3_step_rows *rows, const struct m3_batch *requests,
                      struct m3_error *error)
{
    struct finding_histories f = { .to = histories, .rows = rows, .requests = requests, .error = error };
    *histories = (struct m3_histories){ .requests = requests->layout.count };
    int status = check_rows(&f);
    for (int64_t i = 0; i < rows->count && !status; i++)
        histories->requests = m3_max(histories->requests, rows->requests[i] + 1);
    if (status) return status;
    histories->count = histories->requests;
    f.cached = calloc((size_t)histories->requests + 1, sizeof *f.cached);
    histories->all = calloc((size_t)histories->requests + 1, sizeof *histories->all);
    if (!f.cached || !histories->all)
        status = m3_fail_memory(error, "requests", (size_t)histories->requests * sizeof *f.cached);
    for (int64_t i = 0; i < rows->count && !status; i++) status = take(&f, i);
    for (int64_t r = 0; r < histories->requests && !status; r++) {
        status = fill_end(&f, r);
        if (!status) status = keep(&f, &histories->all[r], r, 0);
    }
    for (int64_t r = 0; f.cached && r < histories->requests; r++) free(f.cached[r].tokens), free(f.cached[r].at);
    free(f.cached);
    return status;
}

void m3_histories_free(struct m3_histories *histories)
{
    for (int64_t i = 0; histories->all && i < histories->count; i++)
        free(histories->all[i].tokens), free(histories->all[i].at);
    free(histories->all);
    *histories = (struct m3_histories){ 0 };
}
