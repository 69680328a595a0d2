/* Which rows a candidate holds, by what it says itself: `rows` and `sequences`, or what engines have for them. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/align.h"
#include "oracle/map/private/map.h"

/* What the integers of a tensor say. A *request* is an entry of the engine's step; it is a sequence of the case. */
enum said {
    SAID_ROWS,              /* [N] or [1,N] which row of its sequence a row is */
    SAID_REQUESTS,          /* [N] of which sequence a row is, or [n] of which a request is */
    SAID_STARTS,            /* [n+1] where the rows of each request begin, and where the last ends */
    SAID_COUNTS,            /* [n] the rows of each request */
    SAID_LENGTHS,           /* [n] the tokens of each request, with those of the cache */
    SAID_CACHED,            /* [n] the tokens of each request before these rows */
    SAID_TOKENS,            /* [N] or [1,N] of which token a row is */
    SAID_SLOTS,             /* [N] where in the cache a row is put; negative: the row is padding */
    SAID_KINDS,
};

/* Names alone, behind a prefix of the map, or in one of the groups below. */
static const struct {
    const char *name;
    enum said said;
} names[] = {
    { "rows", SAID_ROWS },
    { "positions", SAID_ROWS },
    { "input_positions", SAID_ROWS },
    { "position_ids", SAID_ROWS },
    { "sequences", SAID_REQUESTS },
    { "requests", SAID_REQUESTS },
    { "request_ids", SAID_REQUESTS },
    { "req_ids", SAID_REQUESTS },
    { "req_indices", SAID_REQUESTS },
    { "token_to_req_indices", SAID_REQUESTS },
    { "seq_ids", SAID_REQUESTS },
    { "query_start_loc", SAID_STARTS },
    { "cu_seqlens", SAID_STARTS },
    { "cu_seqlens_q", SAID_STARTS },
    { "qo_indptr", SAID_STARTS },
    { "query_lens", SAID_COUNTS },
    { "extend_seq_lens", SAID_COUNTS },
    { "seq_lens", SAID_LENGTHS },
    { "kv_lens", SAID_LENGTHS },
    { "num_computed_tokens", SAID_CACHED },
    { "extend_prefix_lens", SAID_CACHED },
    { "tokens", SAID_TOKENS },
    { "input_ids", SAID_TOKENS },
    { "token_ids", SAID_TOKENS },
    { "slot_mapping", SAID_SLOTS },
    { "out_cache_loc", SAID_SLOTS },
    { "slots", SAID_SLOTS },
};

enum { MOST_ROWS = 1 << 24 };

static const char *const groups[] = { "forward_batch_info.", "forward_batch.", "attn_metadata.", "input_batch." };

struct numbering {
    const struct m3_map *map;           /* NULL: none */
    const struct m3_layout *layout;
    const struct m3_safetensors *file;
    const struct m3_tensor *of[SAID_KINDS];
    int64_t N, R;                       /* rows of its tensors; those before padding */
    int64_t n, *starts;                 /* requests [n+1]; n 0: not known */
    int64_t *sequence, *row;            /* [R] */
    int is_part;                        /* of several files, which are put in order later */
    int has_tokens;                     /* of each row: then it may be computed again, of another token */
    int are_given;                      /* the rows are m3ref's, which count from the first token of a sequence */
    struct m3_error *error;
};

static const char *without(const char *name, const char *prefix)
{
    const size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 ? name + length : name;
}

static int said_by(const char *name, const struct m3_map *map)
{
    for (int p = 0; map && p < map->prefix_count; p++) name = without(name, map->prefixes[p]);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        const char *at = strstr(name, groups[g]);
        if (at && (at == name || at[-1] == '.')) name = at + strlen(groups[g]);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0) return (int)names[i].said;
    return -1;
}

int m3_map_is_number(const char *name, const struct m3_map *map) { return said_by(name, map) >= 0; }

__attribute__((format(printf, 4, 5))) static int refuse(const struct numbering *m, enum said said, int64_t at,
                                                        const char *format, ...)
{
    char why[400], place[32] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    if (at >= 0) snprintf(place, sizeof place, "[%" PRId64 "]", at);
    return m3_fail(m->error, M3_BAD_INPUT, "%s: %s%s: %s", m3_safetensors_path(m->file), m->of[said]->name, place, why);
}

static int64_t number(const struct numbering *m, enum said said, int64_t i) { return m3_id_at(m->of[said], i); }

/* ---- the tensors */

static int is_same(const struct m3_tensor *a, const struct m3_tensor *b)
{
    if (a->count != b->count) return 0;
    for (int64_t i = 0; i < a->count; i++)
        if (m3_id_at(a, i) != m3_id_at(b, i)) return 0;
    return 1;
}

/* A vector, which may stand in a batch of 1. [B,S] numbers slots, not rows: its form says all. */
static int find(struct numbering *m)
{
    for (int64_t i = 0; i < m3_safetensors_count(m->file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(m->file, i);
        const int said = said_by(t->name, m->map);
        if (said < 0 || !m3_holds_ids(t) || t->rank < 1 || t->count != t->shape[t->rank - 1]) continue;
        if (m->of[said] && !is_same(m->of[said], t))
            return m3_fail(m->error, M3_BAD_INPUT,
                           "%s: %s: got other numbers than %s, expected one numbering of the rows",
                           m3_safetensors_path(m->file), t->name, m->of[said]->name);
        if (!m->of[said]) m->of[said] = t;
        m->are_given |= strcmp(t->name, "rows") == 0;
    }
    return M3_OK;
}

/* ---- the requests of a step */

/* Where each request begins: `by` SAID_STARTS says so, SAID_KINDS: each has one row, others count the rows. */
static int set_starts(struct numbering *m, enum said by, int64_t n)
{
    m->starts = calloc((size_t)n + 1, sizeof *m->starts);
    if (!m->starts) return m3_fail_memory(m->error, "requests", (size_t)n * sizeof *m->starts);
    m->n = n;
    for (int64_t e = 0; e < n; e++) {
        const int64_t at = by == SAID_STARTS ? e + 1 : e, said = by == SAID_KINDS ? 1 : number(m, by, at);
        const int64_t least = by == SAID_STARTS ? m->starts[e] : 0;
        if (said < least || said > MOST_ROWS)
            return refuse(m, by, at, "got %" PRId64 ", expected %" PRId64 " to %d", said, least, MOST_ROWS);
        m->starts[e + 1] = by == SAID_STARTS ? said : m->starts[e] + said;
        if (m->starts[e + 1] > MOST_ROWS) return refuse(m, by, at, "got more rows than %d", MOST_ROWS);
    }
    /* Buffers of engines are longer than a step: requests without rows follow. */
    while (m->n > 1 && m->starts[m->n] == m->starts[m->n - 1]) m->n--;
    return M3_OK;
}

static int64_t sum_of(const struct numbering *m, enum said said)
{
    int64_t sum = 0;
    for (int64_t i = 0; m->of[said] && i < m->of[said]->count; i++)
        if (__builtin_add_overflow(sum, number(m, said, i), &sum)) return -1;
    return sum;
}

/* The last row of each request is the last of its tokens: where positions and lengths are all that is said. */
static int set_starts_by_ends(struct numbering *m)
{
    const int64_t n = m->of[SAID_LENGTHS]->count;
    int64_t *starts = calloc((size_t)n + 1, sizeof *starts), e = 0;
    if (!starts) return m3_fail_memory(m->error, "requests", (size_t)n * sizeof *starts);
    for (; e < n; e++) {
        const int64_t last = number(m, SAID_LENGTHS, e) - 1;
        int64_t i = starts[e];
        while (i < m->N && number(m, SAID_ROWS, i) < last) i++;
        if (i == m->N || number(m, SAID_ROWS, i) != last) break;
        starts[e + 1] = i + 1;
    }
    if (e < n) free(starts);
    m->starts = e == n ? starts : NULL;
    m->n = e == n ? n : 0;
    return M3_OK;
}

static int find_requests(struct numbering *m)
{
    const struct m3_tensor *starts = m->of[SAID_STARTS], *lengths = m->of[SAID_LENGTHS];
    int status = M3_OK;
    if (starts && (starts->count < 2 || number(m, SAID_STARTS, 0) != 0))
        return refuse(m, SAID_STARTS, -1, "got %" PRId64 " numbers from %" PRId64 " on, expected [n+1] from 0 on",
                      starts->count, starts->count > 0 ? number(m, SAID_STARTS, 0) : 0);
    if (starts) status = set_starts(m, SAID_STARTS, starts->count - 1);
    else if (m->of[SAID_COUNTS]) status = set_starts(m, SAID_COUNTS, m->of[SAID_COUNTS]->count);
    else if (lengths && lengths->count > 0 && m->N == lengths->count) status = set_starts(m, SAID_KINDS, m->N);
    else if (lengths && m->N >= 0 && m->N == sum_of(m, SAID_LENGTHS))
        status = set_starts(m, SAID_LENGTHS, lengths->count);
    else if (lengths && lengths->count > 0 && m->of[SAID_ROWS]) status = set_starts_by_ends(m);
    if (status || m->n == 0) return status;
    if (m->N < 0) m->N = m->starts[m->n];
    if (m->starts[m->n] <= m->N) return M3_OK;
    const enum said of_rows = m->of[SAID_ROWS] ? SAID_ROWS : m->of[SAID_SLOTS] ? SAID_SLOTS : SAID_REQUESTS;
    return refuse(m, of_rows, -1, "got %" PRId64 " rows, expected %" PRId64 ", those of the requests", m->N,
                  m->starts[m->n]);
}

static int has_request_of_row(const struct numbering *m)
{
    return m->of[SAID_REQUESTS] && m->of[SAID_REQUESTS]->count == m->N;
}

/* Rows behind the last request, or that no place in the cache or no request is for, are padding: at the end alone. */
static int find_padding(struct numbering *m)
{
    static const enum said marks[] = { SAID_SLOTS, SAID_REQUESTS };
    m->R = m->n > 0 ? m->starts[m->n] : m->N;
    const int64_t most = m->R;
    for (int k = 0; k < 2; k++) {
        const struct m3_tensor *t = m->of[marks[k]];
        int64_t end = t && t->count == m->N ? most : 0;
        while (end > 0 && number(m, marks[k], end - 1) < 0) end--;
        for (int64_t i = 0; i < end; i++)
            if (number(m, marks[k], i) < 0)
                return refuse(m, marks[k], i, "got %" PRId64 " before other rows, expected padding at the end alone",
                              number(m, marks[k], i));
        if (t && t->count == m->N && end < m->R) m->R = end;
    }
    if (m->n == 0 || m->R == most) return M3_OK;
    return refuse(m, m->of[SAID_SLOTS] ? SAID_SLOTS : SAID_REQUESTS, m->R,
                  "got padding in a request, expected it behind all requests");
}

/* ---- which row is which */

/* The requests of a step are the sequences of the case, in their order, unless the step names them. */
static int set_sequences_of_requests(struct numbering *m)
{
    const struct m3_tensor *named =
        m->of[SAID_REQUESTS] && m->of[SAID_REQUESTS]->count >= m->n ? m->of[SAID_REQUESTS] : NULL;
    const enum said by = m->of[SAID_STARTS] ? SAID_STARTS : m->of[SAID_COUNTS] ? SAID_COUNTS : SAID_LENGTHS;
    const int64_t B = m->layout->count;
    if (!named && m->n != B)
        return refuse(m, by, -1,
                      "got %" PRId64 " requests, expected the %" PRId64 " of the case, or `requests` that names them",
                      m->n, B);
    for (int64_t e = 0; e < m->n; e++) {
        for (int64_t k = 0; named && k < e; k++)
            if (number(m, SAID_REQUESTS, k) == number(m, SAID_REQUESTS, e))
                return refuse(m, SAID_REQUESTS, e, "got request %" PRId64 " twice in a step, expected it once",
                              number(m, SAID_REQUESTS, e));
        for (int64_t i = m->starts[e]; i < m->starts[e + 1]; i++)
            m->sequence[i] = named ? number(m, SAID_REQUESTS, e) : e;
    }
    return M3_OK;
}

static int set_sequences(struct numbering *m)
{
    const struct m3_layout *l = m->layout;
    int64_t i = 0;
    if (m->n > 0 && !has_request_of_row(m)) return set_sequences_of_requests(m);
    for (; i < m->R; i++) m->sequence[i] = has_request_of_row(m) ? number(m, SAID_REQUESTS, i) : 0;
    if (has_request_of_row(m) || l->count == 1) return M3_OK;
    if (m->R == l->count)
        for (i = 0; i < m->R; i++) m->sequence[i] = i;
    if (m->R == l->count) return M3_OK;
    if (m->R == m3_layout_rows(l)) {
        i = 0;
        for (int64_t b = 0; b < l->count; b++)
            for (int64_t r = 0; r < l->lengths[b]; r++) m->sequence[i++] = b;
        return M3_OK;
    }
    return refuse(m, m->of[SAID_ROWS] ? SAID_ROWS : SAID_SLOTS, -1,
                  "got %" PRId64 " rows of %" PRId64 " sequences, expected all %" PRId64 ", or `sequences` or "
                  "`query_start_loc` that says whose they are",
                  m->R, l->count, m3_layout_rows(l));
}

/* The rows of a request are its last ones, where only lengths are given. -1: not said. */
static int set_rows(struct numbering *m)
{
    const enum said by = m->of[SAID_LENGTHS] && m->of[SAID_LENGTHS]->count >= m->n ? SAID_LENGTHS : SAID_CACHED;
    const int is_said = m->of[by] && m->of[by]->count >= m->n;
    for (int64_t i = 0; i < m->R; i++) m->row[i] = m->of[SAID_ROWS] ? number(m, SAID_ROWS, i) : -1;
    for (int64_t e = 0; is_said && !m->of[SAID_ROWS] && e < m->n; e++) {
        const int64_t count = m->starts[e + 1] - m->starts[e], said = number(m, by, e);
        const int64_t first = by == SAID_LENGTHS ? said - count : said;
        if (said < 0 || said > MOST_ROWS || first < 0)
            return refuse(m, by, e, "got %" PRId64 " for a request of %" PRId64 " rows", said, count);
        for (int64_t i = 0; i < count; i++) m->row[m->starts[e] + i] = first + i;
    }
    return M3_OK;
}

/* The rows of each sequence [count]; its last row so far; is it out of order? */
struct seen {
    int64_t count, last;
    int is_mixed;
};

static int count_rows(struct seen *seen, const struct numbering *m)
{
    const struct m3_layout *l = m->layout;
    const enum said by = has_request_of_row(m) || !m->of[SAID_ROWS] ? SAID_REQUESTS : SAID_ROWS;
    const int is_in_any_order = m->is_part || (l->count > 1 && has_request_of_row(m));
    for (int64_t b = 0; b < l->count; b++) seen[b] = (struct seen){ 0, -1, 0 };
    for (int64_t i = 0; i < m->R; i++) {
        const int64_t b = m->sequence[i];
        if (b < 0 || b >= l->count)
            return refuse(m, by, by == SAID_REQUESTS && !has_request_of_row(m) ? -1 : i,
                          "got sequence %" PRId64 ", expected 0 to %" PRId64, b, l->count - 1);
        if (m->of[SAID_ROWS] && m->row[i] <= seen[b].last && !is_in_any_order)
            return refuse(m, SAID_ROWS, i, "got %" PRId64 " after %" PRId64 " in sequence %" PRId64 ", expected more",
                          m->row[i], seen[b].last, b);
        seen[b].is_mixed |= m->row[i] <= seen[b].last;
        seen[b].last = m->row[i];
        seen[b].count++;
    }
    return M3_OK;
}

/* A sequence that is there in whole: the engine's positions may be those that the case gives to RoPE. */
static int settle(struct seen *seen, struct numbering *m)
{
    const struct m3_layout *l = m->layout;
    int status = count_rows(seen, m);
    for (int64_t b = 0; !status && b < l->count; b++) seen[b].last = -1;
    for (int64_t i = 0; !status && i < m->R; i++) {
        const int64_t b = m->sequence[i], length = l->lengths[b];
        struct seen *of = &seen[b];
        of->last++;
        const int is_whole = length == 0 || of->count == length;
        if (m->of[SAID_ROWS] == NULL && m->row[i] < 0 && !is_whole)
            return m3_fail(m->error, M3_BAD_INPUT,
                           "%s: got %" PRId64 " rows of sequence %" PRId64 ", expected its %" PRId64
                           ", or `positions` that says which they are",
                           m3_safetensors_path(m->file), of->count, b, length);
        if (m->row[i] < 0 && !m->of[SAID_ROWS]) m->row[i] = of->last;
        if (is_whole && length > 0 && !m->are_given && !of->is_mixed) m->row[i] = of->last;
        const int64_t end = length > 0 ? length : MOST_ROWS;
        const enum said by = m->of[SAID_ROWS] ? SAID_ROWS : m->of[SAID_LENGTHS] ? SAID_LENGTHS : SAID_CACHED;
        if (m->row[i] < 0 || m->row[i] >= end)
            return refuse(m, by, by == SAID_ROWS ? i : -1,
                          "got row %" PRId64 ", expected 0 to %" PRId64 ", the rows of sequence %" PRId64, m->row[i],
                          end - 1, b);
    }
    return status;
}

static int by_number(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

static int check_once(const struct numbering *m)
{
    int64_t (*pairs)[2] = calloc((size_t)m->R + 1, sizeof *pairs), i = 1;
    if (!pairs) return m3_fail_memory(m->error, "rows", (size_t)m->R * sizeof *pairs);
    for (int64_t k = 0; k < m->R; k++) pairs[k][0] = m->sequence[k], pairs[k][1] = m->row[k];
    qsort(pairs, (size_t)m->R, sizeof *pairs, by_number);
    while (i < m->R && by_number(pairs[i - 1], pairs[i]) != 0) i++;
    const int64_t sequence = pairs[m3_min(i, m->R)][0], row = pairs[m3_min(i, m->R)][1];
    free(pairs);
    if (i >= m->R) return M3_OK;
    return m3_fail(m->error, M3_BAD_INPUT, "%s: got row %" PRId64 " of sequence %" PRId64 " twice, expected it once",
                   m3_safetensors_path(m->file), row, sequence);
}

/* Does the engine compute a row again, or of a request that the case does not have? Then rows are what it says, and
 * m3_steps_unroll finds what was in its cache. */
static int are_steps(const struct numbering *m)
{
    struct m3_error quiet = { 0 };
    struct numbering silent = *m;
    silent.error = &quiet;
    int is_beyond = 0;
    if (!m->has_tokens || !m->of[SAID_ROWS]) return 0;
    for (int64_t i = 0; i < m->R && !is_beyond; i++) {
        const int64_t b = m->sequence[i];
        is_beyond = b >= m->layout->count || (b >= 0 && m->row[i] >= m->layout->lengths[b]);
    }
    is_beyond |= check_once(&silent) == M3_BAD_INPUT;
    m3_error_free(&quiet);
    return is_beyond;
}

static int place_rows(struct numbering *m)
{
    struct seen *seen = calloc((size_t)m->layout->count, sizeof *seen);
    m->sequence = calloc((size_t)m->R + 1, sizeof *m->sequence);
    m->row = calloc((size_t)m->R + 1, sizeof *m->row);
    int status = seen && m->sequence && m->row ? M3_OK : m3_fail_memory(m->error, "rows", (size_t)m->R * 16);
    if (!status) status = set_sequences(m);
    if (!status) status = set_rows(m);
    const int is_plain = !status && !are_steps(m);
    if (is_plain) status = settle(seen, m);
    if (!status && is_plain) status = check_once(m);
    free(seen);
    return status;
}

/* Are they all rows of the case, one sequence after another? */
static int are_all(const struct numbering *m)
{
    int64_t i = 0;
    for (int64_t b = 0; b < m->layout->count; b++)
        for (int64_t r = 0; r < m->layout->lengths[b] || (m->layout->lengths[b] == 0 && i < m->R); r++, i++)
            if (i >= m->R || m->sequence[i] != b || m->row[i] != r) return 0;
    return i == m->R;
}

/* ---- the view */

static int add_numbers(struct m3_safetensors *view, const struct numbering *m)
{
    static const char *const made[] = { "sequences", "rows", "tokens" };
    int several = m->layout->count > 1;
    for (int64_t i = 0; i < m->R; i++) several |= m->sequence[i] > 0;
    for (int k = several ? 0 : 1; k < 2 + m->has_tokens; k++) {
        int32_t *numbers = m3_safetensors_memory(view, (uint64_t)m->R * sizeof *numbers, m->error);
        if (!numbers) return M3_INTERNAL;
        for (int64_t i = 0; i < m->R; i++)
            numbers[i] = (int32_t)(k == 0 ? m->sequence[i] : k == 1 ? m->row[i] : number(m, SAID_TOKENS, i));
        const int status = m3_safetensors_add(view, made[k], M3_I32, 1, &m->R, numbers, m->error);
        if (status) return status;
    }
    return M3_OK;
}

/* The tensors without the rows that are padding. */
static int make_view(struct m3_safetensors **view, const struct numbering *m, int with_numbers)
{
    int status = m3_safetensors_make(view, m3_safetensors_path(m->file), m->error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(m->file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(m->file, i);
        int64_t shape[M3_MAX_RANK];
        int is_empty = 0;
        if (strcmp(t->name, "rows") == 0 || strcmp(t->name, "sequences") == 0 || strcmp(t->name, "tokens") == 0)
            continue;
        memcpy(shape, t->shape, sizeof shape);
        for (int axis = 0; axis < t->rank && axis < 2; axis++) {
            if (axis == 1 && shape[0] != 1) break;
            if (shape[axis] != m->N) continue;
            shape[axis] = m->R;
            is_empty = m->R == 0;
            break;
        }
        status = m3_safetensors_add(*view, t->name, t->dtype, t->rank, shape, is_empty ? NULL : t->data, m->error);
    }
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(m->file, key));)
        status = m3_safetensors_state(*view, key, m3_safetensors_metadata(m->file, key), m->error);
    if (!status && with_numbers) status = add_numbers(*view, m);
    return status ? status : m3_safetensors_complete(*view, m->error);
}

/* Says the map itself what the rows are? */
static int map_numbers(const struct m3_map *map)
{
    for (int64_t i = 0; map && i < map->recipe_count; i++)
        if (strcmp(map->recipes[i].tap, "rows") == 0 || strcmp(map->recipes[i].tap, "sequences") == 0) return 1;
    return 0;
}

/* Places of a cache and lengths alone do not say which rows these are, nor do positions of a padded batch's slots. */
static int64_t count_numbers(const struct numbering *m)
{
    const struct m3_layout *l = m->layout;
    const int has_requests = m->of[SAID_REQUESTS] || m->of[SAID_STARTS] || m->of[SAID_COUNTS];
    if (m->of[SAID_ROWS]) {
        const int64_t N = m->of[SAID_ROWS]->count;
        return !has_requests && l->slots > 0 && N == l->count * l->slots && N != m3_layout_rows(l) ? -1 : N;
    }
    if (m->of[SAID_REQUESTS] && !m->of[SAID_STARTS] && !m->of[SAID_COUNTS]) return m->of[SAID_REQUESTS]->count;
    return has_requests && m->of[SAID_SLOTS] ? m->of[SAID_SLOTS]->count : -1;
}

int m3_map_number(struct m3_safetensors **view, const struct m3_map *map, const struct m3_layout *layout,
                  const struct m3_safetensors *file, struct m3_error *error)
{
    struct numbering m = { .map = map, .layout = layout, .file = file, .error = error };
    m.is_part = map && map->files != M3_FILES_NONE;
    *view = NULL;
    if (map_numbers(map)) return M3_OK;
    int status = find(&m);
    m.N = status ? -1 : count_numbers(&m);
    if (!status) status = find_requests(&m);
    m.has_tokens = m.of[SAID_TOKENS] && m.of[SAID_TOKENS]->count == m.N;
    if (!status && m.N >= 0) status = find_padding(&m);
    if (!status && m.N >= 0) status = place_rows(&m);
    if (!status && m.N >= 0) {
        const int all = are_all(&m),
                  has_own = m3_safetensors_find(file, "rows") || m3_safetensors_find(file, "sequences");
        if (!all || has_own || m.R < m.N) status = make_view(view, &m, !all);
    }
    free(m.starts);
    free(m.sequence);
    free(m.row);
    return status;
}
