/* Taps whose parts lie in several files: ranks of tensor, expert or context parallelism, or chunks of the rows. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "io/temporary.h"
#include "oracle/judge/align.h"
#include "oracle/map/private/map.h"

/* A row of the whole. */
struct place {
    int64_t sequence, row;
    int64_t part, at;
};

/* One tap of the whole. */
struct whole {
    const char *name;
    const struct m3_tensor **parts;         /* [count] */
    struct m3_map_rule rule;
    int64_t copies;                         /* consecutive parts that hold the same */
    int64_t same, other;                    /* parts that should hold the same, and do not; both 0: there are none */
    enum m3_dtype dtype;
    int rank;
    int64_t shape[M3_MAX_RANK];
};

struct combining {
    const struct m3_map *map;
    const struct m3_map_sizes *sizes;
    struct m3_safetensors *const *parts;
    int64_t count;
    struct whole *taps;
    int64_t tap_count;
    const struct m3_tensor **tensors;       /* room of taps[..].parts */
    struct place *places; /* [place_count] of the rows that the parts number, in order; NULL: none do */
    int64_t place_count;
    struct m3_error *notes, *error;
};

static const char *kind_of_part(const struct combining *c)
{
    return c->map->files == M3_FILES_CHUNKS ? "chunk" : "rank";
}

static int misfit(const struct combining *c, const struct whole *w, int64_t part, const char *expected)
{
    char got[160];
    const struct m3_array a = m3_array_of(w->parts[part], 0);
    return m3_fail(c->error, M3_NOT_COMPARABLE, "%s: %s: %s %" PRId64 " of %s: got %s, expected %s", c->map->path,
                   w->name, kind_of_part(c), part, m3_safetensors_path(c->parts[part]),
                   m3_array_text(got, sizeof got, &a), expected);
}

static const char *letters_of(const char *name)
{
    enum m3_tap tap;
    int64_t layer;
    return m3_tap_parse(name, &tap, &layer) == 0 ? m3_tap_table[tap].shape : "";
}

/* The size of a dimension of the whole; 0: not known. */
static int64_t size_of(const struct combining *c, const struct whole *w, int axis)
{
    const char *letters = letters_of(w->name);
    if (axis < 1 || (int)strlen(letters) != w->rank || letters[axis] == 'B') return 0;
    return c->sizes ? c->sizes->of[(int)letters[axis]] : 0;
}

static struct m3_map_rule rule_of(const struct combining *c, const char *name)
{
    for (int64_t i = 0; i < c->map->rule_count; i++) {
        int64_t number = -1, part = -1;
        const struct m3_map_rule *rule = &c->map->rules[i];
        if (!rule->tap || m3_map_name_fits(rule->tap, name, &number, &part)) return *rule;
    }
    return (struct m3_map_rule){ .kind = M3_RULE_AUTO };
}

/* ---- the shape of a whole tap */

static int has_equal_shapes(const struct combining *c, const struct whole *w, int except, int64_t *other)
{
    for (int64_t k = 1; k < c->count; k++) {
        const struct m3_tensor *a = w->parts[0], *b = w->parts[k];
        int same = a->rank == b->rank && a->dtype == b->dtype;
        for (int i = 0; same && i < a->rank; i++) same = i == except || a->shape[i] == b->shape[i];
        *other = k;
        if (!same) return 0;
    }
    return 1;
}

/* Scores of blocks are as many as the places so far: chunks have more and more. The rest of a row is minus infinity, which
 * only floats can hold. */
static int is_widening(const struct combining *c, const struct whole *w)
{
    const enum m3_dtype dtype = w->parts[0]->dtype;
    const int has_infinity = dtype == M3_F64 || dtype == M3_F32 || dtype == M3_BF16 || dtype == M3_F16;
    return has_infinity && c->map->files != M3_FILES_RANKS && strchr(letters_of(w->name), 'B') != NULL;
}

static int check_shapes(const struct combining *c, const struct whole *w, int except)
{
    char want[160];
    int64_t other = 0;
    const struct m3_array first = m3_array_of(w->parts[0], 0);
    char text[130];
    if (has_equal_shapes(c, w, except, &other)) return M3_OK;
    if (is_widening(c, w) && except == 0 && w->parts[other]->rank == w->rank && w->parts[other]->dtype == w->dtype)
        return M3_OK;
    if (except < 0) snprintf(want, sizeof want, "%s, as the first", m3_array_text(text, sizeof text, &first));
    else snprintf(want, sizeof want, "%s but for axis %d", m3_array_text(text, sizeof text, &first), except);
    return misfit(c, w, other, want);
}

/* Rows that widen are filled up, but no file may ask for memory that is out of proportion to what the files hold. */
static int check_growth(const struct combining *c, const struct whole *w)
{
    enum { MOST_GROWTH = 16 };
    double held = 0, whole = 1;
    int64_t widest = 0;
    for (int64_t k = 0; k < c->count; k++) {
        held += (double)w->parts[k]->count;
        if (w->parts[k]->shape[w->rank - 1] > w->parts[widest]->shape[w->rank - 1]) widest = k;
    }
    for (int d = 0; d < w->rank; d++) whole *= (double)w->shape[d];
    if (whole <= MOST_GROWTH * held) return M3_OK;
    return misfit(c, w, widest, "rows that are not far wider than those of the other files");
}

static void choose_rule(const struct combining *c, struct whole *w)
{
    if (w->rule.kind != M3_RULE_AUTO) return;
    w->rule.kind = c->map->files == M3_FILES_RANKS ? M3_RULE_EQUAL : M3_RULE_CONCAT;
    w->rule.axis = 0;
    for (int d = w->rank - 1; d > 0 && c->map->files == M3_FILES_RANKS; d--)
        if (size_of(c, w, d) > w->shape[d]) w->rule = (struct m3_map_rule){ .kind = M3_RULE_CONCAT, .axis = d };
}

static void compare_parts(struct whole *w, int64_t a, int64_t b)
{
    const struct m3_tensor *x = w->parts[a], *y = w->parts[b];
    if (w->other > 0 || x->bytes == 0 || memcmp(x->data, y->data, x->bytes) == 0) return;
    w->same = a;
    w->other = b;
}

static int comes_before(const struct whole *a, const struct whole *b)
{
    enum m3_tap tap[2];
    int64_t layer[2];
    if (m3_tap_parse(a->name, &tap[0], &layer[0])) return 0;
    return m3_tap_parse(b->name, &tap[1], &layer[1]) || m3_tap_order(tap[0], layer[0], tap[1], layer[1]) < 0;
}

/* Of the taps that ranks should hold alike, the first in the order of the model that they do not: what comes after it
 * differs too. */
static int check_copies(const struct combining *c)
{
    const struct whole *w = NULL;
    for (int64_t k = 0; k < c->tap_count; k++)
        if (c->taps[k].other > 0 && (!w || comes_before(&c->taps[k], w))) w = &c->taps[k];
    if (!w) return M3_OK;
    const struct m3_tensor *x = w->parts[w->same], *y = w->parts[w->other];
    const size_t size = m3_dtype_bytes(x->dtype), row = x->bytes / (size_t)x->shape[0];
    const char *p = x->data, *q = y->data;
    char place[160] = "";
    int64_t index[M3_MAX_RANK], i = 0, rows = 0;
    for (int64_t r = 0; r < x->shape[0]; r++) rows += memcmp(p + (size_t)r * row, q + (size_t)r * row, row) != 0;
    while (memcmp(p + (size_t)i * size, q + (size_t)i * size, size) == 0) i++;
    for (int64_t d = x->rank - 1, rest = i; d >= 0; d--) index[d] = rest % x->shape[d], rest /= x->shape[d];
    for (int d = 0; d < x->rank; d++) {
        const size_t used = strlen(place);
        snprintf(place + used, sizeof place - used, "%s%" PRId64, d ? ", " : "", index[d]);
    }
    return m3_fail(c->error, M3_NOT_COMPARABLE,
                   "%s: %s [%s]: got %.9g of rank %" PRId64 ", expected %.9g, as rank %" PRId64 " has it: these ranks "
                   "hold the same values, unless a reduction is missing. They differ in %" PRId64 " of %" PRId64
                   " rows, and in no earlier tap of the dump",
                   c->map->path, w->name, place, m3_decode(y->dtype, y->data, i), w->other,
                   m3_decode(x->dtype, x->data, i), w->same, rows, x->shape[0]);
}

/* Heads of keys are on several ranks if there are more ranks than heads. */
static int plan_concat(const struct combining *c, struct whole *w)
{
    const int axis = w->rule.axis;
    char want[120];
    if (axis >= w->rank) return misfit(c, w, 0, "a tensor with the axis that is joined");
    int status = check_shapes(c, w, axis);
    if (status) return status;
    int64_t total = 0, size = size_of(c, w, axis);
    for (int64_t k = 0; k < c->count; k++) {
        total += w->parts[k]->shape[axis];
        for (int d = 0; d < w->rank; d++)
            if (d != axis) w->shape[d] = m3_max(w->shape[d], w->parts[k]->shape[d]);
    }
    const int is_vocabulary = size > 0 && letters_of(w->name)[axis] == 'V';
    if (size > 0 && total > size && total % size == 0 && c->count % (total / size) == 0 && !is_vocabulary)
        w->copies = total / size;
    w->shape[axis] = total / w->copies;
    if (size > 0 && w->shape[axis] != size && !(is_vocabulary && total > size)) {
        snprintf(want, sizeof want, "parts of axis %d that are %" PRId64 " together, not %" PRId64, axis, size, total);
        return misfit(c, w, 0, want);
    }
    status = check_growth(c, w);
    for (int64_t k = 0; !status && k < c->count; k++)
        if (k % w->copies) compare_parts(w, k - k % w->copies, k);
    return status;
}

static int plan_rows(const struct combining *c, struct whole *w)
{
    int status = check_shapes(c, w, 0);
    w->shape[0] = 0;
    for (int64_t k = 0; !status && k < c->count; k++) {
        const struct m3_tensor *rows = m3_safetensors_find(c->parts[k], "rows");
        const int64_t n = w->parts[k]->shape[0];
        if (w->rule.kind == M3_RULE_ROWS && (!c->places || rows->count != n))
            status = misfit(c, w, k, "as many rows as its tensor `rows` numbers");
        if (w->rule.kind == M3_RULE_ZIGZAG && (n % 2 || n != w->parts[0]->shape[0]))
            status = misfit(c, w, k, "an even number of rows, the same on every rank");
        w->shape[0] += n;
    }
    return status;
}

static int plan(const struct combining *c, struct whole *w)
{
    const struct m3_tensor *first = w->parts[0];
    int status = M3_OK;
    w->copies = 1;
    w->dtype = first->dtype;
    w->rank = first->rank;
    memcpy(w->shape, first->shape, sizeof w->shape);
    w->rule = rule_of(c, w->name);
    choose_rule(c, w);
    for (int64_t k = 0; k < c->count; k++)
        if (w->parts[k]->rank == 0) return misfit(c, w, k, "a tensor with rows");
    switch (w->rule.kind) {
    case M3_RULE_SUM:
        w->dtype = M3_F64;
        for (int64_t k = 0; !status && k < c->count; k++)
            if (!m3_holds_floats(w->parts[k])) status = misfit(c, w, k, "floats, to be added");
        return status ? status : check_shapes(c, w, -1);
    case M3_RULE_CONCAT: return plan_concat(c, w);
    case M3_RULE_ROWS:
    case M3_RULE_ZIGZAG: return plan_rows(c, w);
    case M3_RULE_LAST:
        w->dtype = w->parts[c->count - 1]->dtype;
        w->rank = w->parts[c->count - 1]->rank;
        memcpy(w->shape, w->parts[c->count - 1]->shape, sizeof w->shape);
        return M3_OK;
    default: status = check_shapes(c, w, -1);
    }
    for (int64_t k = 1; !status && k < c->count; k++) compare_parts(w, 0, k);
    return status;
}

/* ---- the values of a whole tap */

/* Copies part k to its place in the whole, which begins at `from` on the axis. */
static void put(char *whole, const struct whole *w, int64_t k, int axis, int64_t from)
{
    const struct m3_tensor *t = w->parts[k];
    const size_t size = m3_dtype_bytes(t->dtype);
    const int64_t line = t->shape[t->rank - 1], lines = line > 0 ? t->count / line : 0;
    for (int64_t i = 0; i < lines; i++) {
        int64_t index[M3_MAX_RANK] = { 0 }, rest = i, at = 0;
        for (int d = t->rank - 2; d >= 0; d--) index[d] = rest % t->shape[d], rest /= t->shape[d];
        index[axis] += from;
        for (int d = 0; d < t->rank; d++) at = at * w->shape[d] + index[d];
        memcpy(whole + (size_t)at * size, (const char *)t->data + (size_t)(i * line) * size, (size_t)line * size);
    }
}

static void put_sum(double *whole, const struct combining *c, const struct whole *w)
{
    for (int64_t k = 0; k < c->count; k++)
        for (int64_t i = 0; i < w->parts[k]->count; i++)
            whole[i] = (k ? whole[i] : 0) + m3_decode(w->parts[k]->dtype, w->parts[k]->data, i);
}

static void put_places(char *whole, const struct combining *c, const struct whole *w)
{
    const int64_t rows = w->shape[0];
    for (int64_t r = 0; r < rows; r++) {
        const struct place *p = &c->places[r];
        const struct m3_tensor *t = w->parts[p->part];
        const size_t width = t->bytes / (size_t)t->shape[0];
        if (width == 0) return;         /* no part has data */
        memcpy(whole + (size_t)r * width, (const char *)t->data + (size_t)p->at * width, width);
    }
}

/* Rank k has the chunks k and 2n-1-k of 2n. */
static void put_zigzag(char *whole, const struct combining *c, const struct whole *w)
{
    for (int64_t k = 0; k < c->count; k++) {
        const struct m3_tensor *t = w->parts[k];
        const size_t half = t->bytes / 2;
        if (half == 0) return;
        memcpy(whole + (size_t)k * half, t->data, half);
        memcpy(whole + (size_t)(2 * c->count - 1 - k) * half, (const char *)t->data + half, half);
    }
}

static void fill_infinite(char *whole, const struct whole *w, int64_t count)
{
    const double wide = -INFINITY;
    const float narrow = -INFINITY;
    const uint16_t bf16 = 0xff80, f16 = 0xfc00;
    const size_t size = m3_dtype_bytes(w->dtype);
    const void *from = w->dtype == M3_F64    ? (const void *)&wide
                       : w->dtype == M3_F32  ? (const void *)&narrow
                       : w->dtype == M3_BF16 ? (const void *)&bf16
                                             : (const void *)&f16;
    for (int64_t i = 0; i < count; i++) memcpy(whole + (size_t)i * size, from, size);
}

static void fill(char *whole, const struct combining *c, const struct whole *w, int64_t count)
{
    int64_t from = 0;
    switch (w->rule.kind) {
    case M3_RULE_SUM: put_sum((double *)(void *)whole, c, w); return;
    case M3_RULE_ROWS: put_places(whole, c, w); return;
    case M3_RULE_ZIGZAG: put_zigzag(whole, c, w); return;
    case M3_RULE_CONCAT:
        if (is_widening(c, w)) fill_infinite(whole, w, count);
        for (int64_t k = 0; k < c->count; k += w->copies) {
            put(whole, w, k, w->rule.axis, from);
            from += w->parts[k]->shape[w->rule.axis];
        }
        return;
    case M3_RULE_LAST: put(whole, w, c->count - 1, 0, 0); return;
    default: put(whole, w, 0, 0, 0);
    }
}

/* ---- rows that the parts number */

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static int number_rows(struct combining *c)
{
    int64_t n = 0;
    for (int64_t k = 0; k < c->count; k++) {
        const struct m3_tensor *rows = m3_safetensors_find(c->parts[k], "rows");
        if (!rows || !m3_holds_ids(rows) || rows->rank != 1) return M3_OK;
        n += rows->count;
    }
    c->places = calloc((size_t)n + 1, sizeof *c->places);
    if (!c->places) return m3_fail_memory(c->error, "rows", (size_t)n * sizeof *c->places);
    for (int64_t k = 0; k < c->count; k++) {
        const struct m3_tensor *rows = m3_safetensors_find(c->parts[k], "rows");
        const struct m3_tensor *of = m3_safetensors_find(c->parts[k], "sequences");
        for (int64_t i = 0; i < rows->count; i++)
            c->places[c->place_count++] =
                (struct place){ of && i < of->count ? m3_id_at(of, i) : 0, m3_id_at(rows, i), k, i };
    }
    qsort(c->places, (size_t)n, sizeof *c->places, by_place);
    return M3_OK;
}

static int uses_places(const struct combining *c)
{
    for (int64_t i = 0; i < c->tap_count; i++)
        if (c->taps[i].rule.kind == M3_RULE_ROWS) return 1;
    return 0;
}

/* A row on two ranks would be there twice. */
static int check_places(const struct combining *c)
{
    if (!uses_places(c)) return M3_OK;
    for (int64_t i = 1; i < c->place_count; i++)
        if (by_place(&c->places[i - 1], &c->places[i]) == 0)
            return m3_fail(c->error, M3_NOT_COMPARABLE,
                           "%s: rows: got row %" PRId64 " of sequence %" PRId64 " on rank %" PRId64 " and rank %" PRId64
                           ", expected it on one",
                           c->map->path, c->places[i].row, c->places[i].sequence, c->places[i - 1].part,
                           c->places[i].part);
    return M3_OK;
}

/* ---- the whole */

static int is_number(const char *name) { return strcmp(name, "rows") == 0 || strcmp(name, "sequences") == 0; }

static int list_taps(struct combining *c)
{
    const int64_t room = m3_safetensors_count(c->parts[0]);
    int64_t left_out = 0;
    c->taps = calloc((size_t)room + 3, sizeof *c->taps);
    c->tensors = calloc((size_t)((room + 2) * c->count) + 1, sizeof *c->tensors);
    if (!c->taps || !c->tensors) return m3_fail_memory(c->error, "taps", (size_t)room * sizeof *c->taps);
    for (int64_t i = 0; i < room; i++) {
        struct whole *w = &c->taps[c->tap_count];
        const char *name = m3_safetensors_at(c->parts[0], i)->name;
        int64_t held = 0;
        *w = (struct whole){ .name = name, .parts = c->tensors + c->tap_count * c->count };
        for (int64_t k = 0; k < c->count; k++) held += (w->parts[k] = m3_safetensors_find(c->parts[k], name)) != NULL;
        if (held == c->count && !(is_number(name) && c->map->files == M3_FILES_RANKS)) {
            const int status = plan(c, w);
            if (status) return status;
            c->tap_count++;
        } else if (held < c->count && left_out++ == 0) {
            m3_fail(c->notes, M3_OK, "%s: %s: left out: %" PRId64 " of %" PRId64 " files hold it", c->map->path, name,
                    held, c->count);
        }
    }
    return M3_OK;
}

/* The rows that every rank numbers in the same way are those of the whole. */
static int add_numbers(struct combining *c)
{
    static const char *const names[] = { "sequences", "rows" };
    int status = M3_OK;
    for (int i = 0; !status && i < 2 && c->map->files == M3_FILES_RANKS && !uses_places(c); i++) {
        struct whole *w = &c->taps[c->tap_count];
        int64_t same = 0;
        *w = (struct whole){ .name = names[i], .parts = c->tensors + c->tap_count * c->count };
        for (int64_t k = 0; k < c->count; k++) {
            const struct m3_tensor *t = w->parts[k] = m3_safetensors_find(c->parts[k], names[i]);
            const struct m3_tensor *first = w->parts[0];
            same += first && t && t->dtype == first->dtype && t->bytes == first->bytes && t->bytes > 0 &&
                    memcmp(t->data, first->data, t->bytes) == 0;
        }
        if (same < c->count) continue;
        status = plan(c, w);
        c->tap_count++;
    }
    return status;
}

static int write_numbers(const struct combining *c, struct m3_writer *writer)
{
    int status = M3_OK;
    for (int field = 0; !status && field < 2; field++)
        for (int64_t i = 0; !status && i < c->place_count; i++) {
            const int32_t value = (int32_t)(field ? c->places[i].row : c->places[i].sequence);
            status = m3_writer_write(writer, &value, sizeof value, c->error);
        }
    return status;
}

static int write_tap(const struct combining *c, const struct whole *w, struct m3_writer *writer)
{
    int64_t count = 1;
    for (int d = 0; d < w->rank; d++) count *= w->shape[d];
    const size_t bytes = (size_t)count * m3_dtype_bytes(w->dtype);
    char *whole = calloc(bytes + 1, 1);
    if (!whole) return m3_fail_memory(c->error, w->name, bytes);
    if (count > 0) fill(whole, c, w, count);
    const int status = m3_writer_write(writer, whole, bytes, c->error);
    free(whole);
    return status;
}

/* `rows` of ranks that hold all rows between them would say nothing: the rows are in order. */
static int has_all_rows(const struct combining *c)
{
    for (int64_t i = 0; i < c->place_count; i++)
        if (c->places[i].sequence != 0 || c->places[i].row != i) return 0;
    return 1;
}

static int write_all(struct combining *c, const char *path)
{
    static const char *const kept[] = { "model_sha256",   "config_sha256", "case_sha256",
                                        "weights_sha256", "semantics",     "producer" };
    struct m3_writer *writer;
    const int numbered = uses_places(c) && !has_all_rows(c);
    int status = m3_writer_new(&writer, path, c->error);
    if (status) return status;
    if (numbered) status = m3_writer_tensor(writer, "sequences", M3_I32, 1, &c->place_count, c->error);
    if (!status && numbered) status = m3_writer_tensor(writer, "rows", M3_I32, 1, &c->place_count, c->error);
    for (int64_t i = 0; !status && i < c->tap_count; i++)
        status =
            m3_writer_tensor(writer, c->taps[i].name, c->taps[i].dtype, c->taps[i].rank, c->taps[i].shape, c->error);
    for (size_t i = 0; !status && i < sizeof kept / sizeof *kept; i++) {
        const char *value = m3_safetensors_metadata(c->parts[0], kept[i]);
        if (value) status = m3_writer_metadata(writer, kept[i], value, c->error);
    }
    if (!status) status = m3_writer_begin(writer, c->error);
    if (!status && numbered) status = write_numbers(c, writer);
    for (int64_t i = 0; !status && i < c->tap_count; i++) status = write_tap(c, &c->taps[i], writer);
    if (!status) return m3_writer_commit(writer, c->error);
    m3_writer_abandon(writer);
    return status;
}

/* Writes a file without a name, and opens it. */
static int convert(struct m3_safetensors **whole, struct combining *c)
{
    struct m3_nameless file;
    int status = m3_temporary_nameless(&file, NULL, c->error);
    if (!status) status = write_all(c, file.path);
    if (!status) status = m3_safetensors_open_as(whole, file.path, m3_safetensors_path(c->parts[0]), c->error);
    m3_nameless_close(&file);
    return status;
}

int m3_map_combine(struct m3_safetensors **whole, const struct m3_map *map, const struct m3_map_sizes *sizes,
                   struct m3_safetensors *const *parts, int64_t count, struct m3_error *notes, struct m3_error *error)
{
    struct combining c = { .map = map, .sizes = sizes, .parts = parts, .count = count, .notes = notes, .error = error };
    *whole = NULL;
    int status = number_rows(&c);
    if (!status) status = list_taps(&c);
    if (!status) status = check_copies(&c);
    if (!status) status = check_places(&c);
    if (!status) status = add_numbers(&c);
    if (!status && c.tap_count == 0)
        status = m3_fail(error, M3_NOT_COMPARABLE, "%s: nothing matched: got no tap that all files hold",
                         m3_safetensors_path(parts[0]));
    if (!status) status = convert(whole, &c);
    free(c.taps);
    free(c.tensors);
    free(c.places);
    return status;
}

int m3_map_stack(struct m3_safetensors **whole, const struct m3_map *map, struct m3_safetensors *const *parts,
                 int64_t count, struct m3_error *notes, struct m3_error *error)
{
    const struct m3_map stack = { .path = map->path, .files = M3_FILES_CHUNKS };
    return m3_map_combine(whole, &stack, NULL, parts, count, notes, error);
}
