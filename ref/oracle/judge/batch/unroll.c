/* Makes sequences of the histories of an engine's requests. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/align.h"
#include "oracle/judge/batch/split.h"
#include "oracle/judge/batch/steps.h"

struct unrolling {
    const struct m3_safetensors *dump;
    struct m3_histories histories;
    struct m3_step_rows rows;
    int64_t *numbers;           /* of the rows: requests, rows, tokens */
    int64_t *own;               /* tokens of the case in their place; NULL: none */
    struct m3_error *error;
};

/* Vectors of integers, as many of each. */
static int read_rows(struct unrolling *u, const struct m3_tensor *tokens)
{
    const struct m3_tensor *of[3] = { m3_safetensors_find(u->dump, "sequences"), m3_safetensors_find(u->dump, "rows"),
                                      tokens };
    const int64_t n = tokens->count;
    u->numbers = calloc(3 * (size_t)n + 1, sizeof *u->numbers);
    if (!u->numbers) return m3_fail_memory(u->error, tokens->name, 3 * (size_t)n * sizeof *u->numbers);
    for (int k = 0; k < 3; k++) {
        if (k == 0 && !of[k]) continue;
        if (!of[k] || !m3_holds_ids(of[k]) || of[k]->rank != 1 || of[k]->count != n)
            return m3_fail(u->error, M3_BAD_INPUT,
                           "%s: %s: got %" PRId64 " numbers, expected %" PRId64
                           " integers, as many as rows have tokens",
                           m3_safetensors_path(u->dump),
                           k == 0   ? "sequences"
                           : k == 1 ? "rows"
                                    : tokens->name,
                           of[k] ? of[k]->count : 0, n);
        for (int64_t i = 0; i < n; i++) u->numbers[k * n + i] = m3_id_at(of[k], i);
    }
    u->rows = (struct m3_step_rows){ n, u->numbers, u->numbers + n, u->numbers + 2 * n, m3_safetensors_path(u->dump) };
    return M3_OK;
}

static int by_number(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

/* Rows of the case that were computed once are of its tokens, whatever ids stand for pictures in an engine. */
static int take_tokens(struct unrolling *u, const struct m3_batch *requests)
{
    const int64_t n = u->rows.count;
    int64_t (*pairs)[2] = calloc((size_t)n + 1, sizeof *pairs);
    int is_once = 1;
    if (!pairs) return m3_fail_memory(u->error, "rows", (size_t)n * sizeof *pairs);
    for (int64_t i = 0; i < n; i++) {
        const int64_t b = u->rows.requests[i], row = u->rows.rows[i];
        pairs[i][0] = b, pairs[i][1] = row;
        is_once &= b >= 0 && b < requests->layout.count && row >= 0 && row < requests->cases[b].T;
    }
    qsort(pairs, (size_t)n, sizeof *pairs, by_number);
    for (int64_t i = 1; i < n; i++) is_once &= by_number(pairs[i - 1], pairs[i]) != 0;
    free(pairs);
    /* The dump's own tokens stay in `numbers`. */
    if (!is_once) return M3_OK;
    u->own = malloc((size_t)n * sizeof *u->own + 1);
    if (!u->own) return m3_fail_memory(u->error, "rows", (size_t)n * sizeof *u->own);
    for (int64_t i = 0; i < n; i++) u->own[i] = requests->cases[u->rows.requests[i]].ids[u->rows.rows[i]];
    u->rows.tokens = u->own;
    return M3_OK;
}

/* Engines have ids of their own for pictures. */
static int has_pictures(const struct m3_batch *requests)
{
    int has = 0;
    for (int64_t b = 0; b < requests->layout.count; b++) has |= requests->cases[b].pictures.P > 0;
    return has;
}

/* Drafts may have other tokens than the case, but not most of what a request has in the end: then its rows are numbered
 * otherwise. */
static int check_tokens(const struct unrolling *u, const struct m3_batch *requests)
{
    for (int64_t b = 0; b < u->histories.requests && b < requests->layout.count; b++) {
        const struct m3_history *h = &u->histories.all[b];
        const struct m3_case *c = &requests->cases[b];
        int64_t held = 0, other = 0, first = -1;
        for (int64_t i = 0; i < h->length && i < c->T; i++) {
            if (h->at[i] < 0) continue;
            held++;
            if (u->numbers[2 * u->rows.count + h->at[i]] == c->ids[i]) continue;
            other++;
            if (first < 0) first = i;
        }
        if (2 * other <= held) continue;
        return m3_fail(u->error, M3_BAD_INPUT,
                       "%s: request %" PRId64 ": %" PRId64 " of its %" PRId64
                       " rows have other tokens than the case, row %" PRId64 ": got %" PRId64 ", expected %" PRId32
                       ": are its rows numbered from its first token on?",
                       m3_safetensors_path(u->dump), b, other, held, first,
                       u->numbers[2 * u->rows.count + h->at[first]], c->ids[first]);
    }
    return M3_OK;
}

/* Is every row in the case, and once? */
static int is_plain(const struct unrolling *u, const struct m3_batch *requests)
{
    const struct m3_histories *h = &u->histories;
    int64_t held = 0;
    if (h->count != requests->layout.count) return 0;
    for (int64_t b = 0; b < h->count; b++) {
        if (h->all[b].length != requests->cases[b].T) return 0;
        if (memcmp(h->all[b].tokens, requests->cases[b].ids, (size_t)h->all[b].length * sizeof *h->all[b].tokens) != 0)
            return 0;
        for (int64_t i = 0; i < h->all[b].length; i++) held += h->all[b].at[i] >= 0;
    }
    return held == u->rows.count;
}

/* Steps number tokens from 0; pictures are not told apart by their tokens. */
static int check_requests(const struct unrolling *u, const struct m3_batch *requests)
{
    for (int64_t b = 0; b < requests->layout.count; b++) {
        const struct m3_case *c = &requests->cases[b];
        int64_t i = 0;
        while (i < c->T && c->positions[i] == i) i++;
        if (i < c->T || c->pictures.P > 0)
            return m3_fail(u->error, M3_BAD_INPUT,
                           "%s: got steps of a case with %s, expected positions from 0 on and no pictures",
                           m3_safetensors_path(u->dump), c->pictures.P > 0 ? "pictures" : "positions of its own");
    }
    return M3_OK;
}

static int add_numbers(struct m3_safetensors *view, const struct unrolling *u)
{
    static const char *const names[] = { "sequences", "rows", M3_UNROLLED };
    const struct m3_histories *h = &u->histories;
    int64_t listed = 0;
    for (int64_t b = 0; b < h->count; b++)
        for (int64_t i = 0; i < h->all[b].length; i++) listed += h->all[b].at[i] >= 0;
    for (int k = 0; k < 3; k++) {
        int32_t *to = m3_safetensors_memory(view, (uint64_t)listed * sizeof *to, u->error);
        int64_t n = 0;
        if (!to) return M3_INTERNAL;
        for (int64_t b = 0; b < h->count; b++)
            for (int64_t i = 0; i < h->all[b].length; i++)
                if (h->all[b].at[i] >= 0) to[n++] = (int32_t)(k == 0 ? b : k == 1 ? i : h->all[b].at[i]);
        const int status = m3_safetensors_add(view, names[k], M3_I32, 1, &listed, to, u->error);
        if (status) return status;
    }
    return M3_OK;
}

static int make_view(struct m3_safetensors **view, const struct unrolling *u)
{
    int status = m3_safetensors_make(view, m3_safetensors_path(u->dump), u->error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(u->dump); i++) {
        const struct m3_tensor *t = m3_safetensors_at(u->dump, i);
        if (strcmp(t->name, "rows") == 0 || strcmp(t->name, "sequences") == 0) continue;
        status = m3_safetensors_add(*view, t->name, t->dtype, t->rank, t->shape, t->data, u->error);
    }
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(u->dump, key));)
        status = m3_safetensors_state(*view, key, m3_safetensors_metadata(u->dump, key), u->error);
    if (!status) status = add_numbers(*view, u);
    return status ? status : m3_safetensors_complete(*view, u->error);
}

static void note(struct m3_error *notes, const struct m3_histories *h)
{
    for (int64_t b = h->requests; b < h->count; b++)
        m3_fail(notes, M3_OK,
                "sequence %" PRId64 ": request %" PRId64 " as it was when its rows %" PRId64 " to %" PRId64
                " were dropped",
                b, h->all[b].request, h->all[b].first, h->all[b].length - 1);
}

static int make_batch(struct m3_batch *batch, const struct m3_histories *h, struct m3_error *error)
{
    const int32_t **ids = calloc((size_t)h->count, sizeof *ids);
    int64_t *lengths = calloc((size_t)h->count, sizeof *lengths);
    int status = ids && lengths ? M3_OK : m3_fail_memory(error, "requests", (size_t)h->count * sizeof *ids);
    for (int64_t b = 0; b < h->count && !status; b++) ids[b] = h->all[b].tokens, lengths[b] = h->all[b].length;
    if (!status) status = m3_batch_of_ids(batch, ids, lengths, h->count, error);
    free(ids);
    free(lengths);
    return status;
}

int m3_steps_unroll(struct m3_safetensors **dump, struct m3_batch *batch, struct m3_error *notes,
                    struct m3_error *error)
{
    const struct m3_tensor *tokens = m3_safetensors_find(*dump, "tokens");
    struct unrolling u = { .dump = *dump, .error = error };
    struct m3_safetensors *view = NULL;
    struct m3_batch made = { 0 };
    if (!tokens || !m3_safetensors_find(*dump, "rows")) return M3_OK;
    int status = read_rows(&u, tokens);
    if (!status) status = take_tokens(&u, batch);
    if (!status) status = m3_histories_find(&u.histories, &u.rows, batch, error);
    if (!status && !has_pictures(batch)) status = check_tokens(&u, batch);
    if (!status && !is_plain(&u, batch)) {
        status = check_requests(&u, batch);
        if (!status) status = make_view(&view, &u);
        if (!status) status = make_batch(&made, &u.histories, error);
        made.layout.block = batch->layout.block;
        if (!status) {
            note(notes, &u.histories);
            m3_safetensors_keep(view, *dump);
            *dump = view;
            m3_batch_free(batch);
            *batch = made;
        } else {
            m3_safetensors_close(view);
            m3_batch_free(&made);
        }
    }
    m3_histories_free(&u.histories);
    free(u.numbers);
    free(u.own);
    return status;
}
