#include "oracle/judge/batch/split.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/judge/batch/private/lists.h"
#include "oracle/judge/hints.h"

/* How the rows of the sequences lie in a tap. */
enum form { FORM_OTHER, FORM_LISTED, FORM_PADDED, FORM_PACKED, FORM_LAST };

struct splitting {
    const struct m3_layout *layout;
    const struct m3_safetensors *file;
    struct m3_row_list listed, cached;         /* cached: of keys, values and index keys, if they have others */
    int last_alone;                     /* every tap holds the last rows alone */
    struct m3_error *notes, *error;
};

/* A tensor that is a tap of rows. */
struct shaped {
    const struct m3_tensor *t;
    enum m3_tap tap;
    int64_t layer;
    enum form form;
    int lead;                           /* dimensions before those of a row */
    int64_t slots;                      /* FORM_PADDED: of a row of [B,slots] */
    int rank;                           /* of the tap */
};

/* Rows of a tap that a sequence has: those of MTP modules have fewer. */
static int64_t rows_of(const struct m3_layout *l, int64_t b, int64_t layer)
{
    return m3_max(0, m3_layer_rows(layer, l->lengths[b]));
}

static int64_t all_rows(const struct m3_layout *l, int64_t layer)
{
    int64_t rows = 0;
    for (int64_t b = 0; b < l->count; b++) rows += rows_of(l, b, layer);
    return rows;
}

static int has_equal_lengths(const struct m3_layout *l, int64_t length)
{
    for (int64_t b = 0; b < l->count; b++)
        if (l->lengths[b] != length) return 0;
    return 1;
}

/* ---- which rows the dump numbers */

static const struct m3_row_list *list_of(const struct splitting *s, enum m3_tap tap)
{
    return s->cached.all && m3_is_cached(tap) ? &s->cached : &s->listed;
}

/* The listed rows that a tap of this layer has. */
static int64_t listed_in(const struct splitting *s, const struct m3_row_list *list, int64_t layer)
{
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++)
        count += list->all[i].row < rows_of(s->layout, list->all[i].sequence, layer);
    return count;
}

/* ---- the form of a tap */

static int fits_slots(const struct m3_layout *l, int64_t slots, int64_t layer)
{
    if (!l->slots) return has_equal_lengths(l, slots - m3_layer_rows(layer, 0));
    if (slots == l->slots) return 1;
    return m3_mtp_module_of(layer) >= 0 && slots == m3_layer_rows(layer, l->slots);
}

static void find_form(struct shaped *x, const struct splitting *s)
{
    const struct m3_layout *l = s->layout;
    const struct m3_tensor *t = x->t;
    const struct m3_row_list *list = list_of(s, x->tap);
    x->form = FORM_OTHER;
    x->lead = 0;
    while (t->rank - x->lead > x->rank && t->shape[x->lead] == 1) x->lead++;
    const int64_t *shape = t->shape + x->lead;
    const int rank = t->rank - x->lead;
    if (rank == x->rank + 1 && shape[0] == l->count) {
        x->lead++;
        x->slots = shape[1];
        if (fits_slots(l, shape[1], x->layer)) x->form = FORM_PADDED;
        else if (shape[1] == 1) x->form = FORM_LAST;
    } else if (rank == x->rank) {
        if (list->all && (shape[0] == list->held || shape[0] == listed_in(s, list, x->layer))) x->form = FORM_LISTED;
        else if (shape[0] == all_rows(l, x->layer)) x->form = FORM_PACKED;
        else if (shape[0] % l->count == 0 && l->slots && fits_slots(l, shape[0] / l->count, x->layer))
            x->form = FORM_PADDED, x->slots = shape[0] / l->count;
        else if (shape[0] == l->count) x->form = FORM_LAST;
    }
}

static int shape_of(struct shaped *x, const struct m3_tensor *t, const struct splitting *s)
{
    *x = (struct shaped){ .t = t };
    if (m3_tap_parse(t->name, &x->tap, &x->layer) || m3_tap_table[x->tap].shape[0] != 'T') return 0;
    x->rank = (int)strlen(m3_tap_table[x->tap].shape);
    find_form(x, s);
    return 1;
}

/* ---- the rows of one sequence */

/* Fills at [rows] with the rows of the tensor, and returns how many there are. */
static int64_t rows_in(int64_t *at, const struct splitting *s, const struct shaped *x, int64_t b)
{
    const struct m3_layout *l = s->layout;
    int64_t n = 0, first = 0, rows = rows_of(l, b, x->layer), dropped = 0;
    for (int64_t i = 0; i < b; i++) first += rows_of(l, i, x->layer);
    const struct m3_row_list *list = list_of(s, x->tap);
    const int whole = x->t->shape[x->lead] == list->held;
    switch (x->form) {
    case FORM_LISTED:
        for (int64_t i = 0; i < list->count; i++) {
            const struct m3_listed_row *row = &list->all[i];
            if (row->sequence != b || row->row >= rows) continue;
            for (int64_t k = dropped = 0; !whole && k < list->count; k++)
                dropped += list->all[k].at < row->at && list->all[k].row >= rows_of(l, list->all[k].sequence, x->layer);
            at[n++] = row->at - dropped;
        }
        return n;
    case FORM_PADDED:
        for (; n < rows; n++) at[n] = b * x->slots + l->before[b] + n;
        return n;
    case FORM_PACKED:
        for (; n < rows; n++) at[n] = first + n;
        return n;
    case FORM_LAST: at[0] = b; return rows > 0;
    case FORM_OTHER: break;
    }
    return 0;
}

/* The first block that holds a token, in the numbering of the slots. */
static int64_t first_block(const struct m3_layout *l, const struct shaped *x, int64_t b)
{
    return l->by_slot && x->form == FORM_PADDED && l->block > 0 ? l->before[b] / l->block : 0;
}

static void move_ids(char *list, int64_t n, enum m3_dtype dtype, int64_t by)
{
    const size_t size = m3_dtype_bytes(dtype);
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t narrow = 0;
        int64_t id = 0;
        memcpy(size == sizeof id ? (void *)&id : (void *)&narrow, list + (size_t)i * size, size);
        id = (size == sizeof id ? id : narrow) - by;
        narrow = (int32_t)id;
        if (id >= 0) memcpy(list + (size_t)kept++ * size, size == sizeof id ? (void *)&id : (void *)&narrow, size);
    }
    memset(list + (size_t)kept * size, 0xff, (size_t)(n - kept) * size); /* -1 */
}

/* Copies the rows, of scores only the columns that the sequence has. */
static int copy_rows(struct m3_safetensors *part, const struct splitting *s, const struct shaped *x, int64_t b,
                     const int64_t *at, int64_t shape[M3_MAX_RANK])
{
    const struct m3_layout *l = s->layout;
    const int rank = x->rank, scores = x->tap == M3_TAP_INDEX_BLOCK_SCORES;
    const int64_t skip = first_block(l, x, b), wide = shape[rank - 1];
    const int64_t shift = l->by_slot && l->block > 0 ? l->before[b] % l->block : 0;
    const size_t size = m3_dtype_bytes(x->t->dtype);
    int64_t own = wide, lines = 1;
    if (scores && l->block > 0) own = (shift + rows_of(l, b, x->layer) + l->block - 1) / l->block;
    if (skip + own > wide) own = wide; /* another shape: for the judge to refuse */
    for (int i = 1; i + 1 < rank; i++) lines *= shape[i];
    const int64_t from = scores && skip + own <= wide ? skip : 0;
    char *to = m3_safetensors_memory(part, (uint64_t)(shape[0] * lines * own) * size, s->error);
    if (!to) return M3_INTERNAL;
    for (int64_t r = 0; r < shape[0]; r++)
        for (int64_t i = 0; i < lines; i++) {
            char *line = to + (size_t)((r * lines + i) * own) * size;
            memcpy(line, (const char *)x->t->data + (size_t)((at[r] * lines + i) * wide + from) * size,
                   (size_t)own * size);
            if (x->tap == M3_TAP_INDEX_BLOCKS && skip > 0) move_ids(line, own, x->t->dtype, skip);
        }
    shape[rank - 1] = own;
    return m3_safetensors_add(part, x->t->name, x->t->dtype, rank, shape, to, s->error);
}

static int are_consecutive(const int64_t *at, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        if (at[i] != at[0] + i) return 0;
    return 1;
}

static int needs_copy(const struct m3_layout *l, const struct shaped *x, int64_t b, const int64_t *at, int64_t n)
{
    if (!are_consecutive(at, n)) return 1;
    if (x->tap == M3_TAP_INDEX_BLOCKS) return first_block(l, x, b) > 0 && m3_holds_ids(x->t);
    return x->tap == M3_TAP_INDEX_BLOCK_SCORES && l->block > 0;
}

static int add_rows(struct m3_safetensors *part, const struct splitting *s, const struct shaped *x, int64_t b)
{
    const struct m3_tensor *t = x->t;
    int64_t shape[M3_MAX_RANK], *at = malloc(((size_t)s->layout->lengths[b] + 1) * sizeof *at), width = 1;
    if (!at) return m3_fail_memory(s->error, t->name, (size_t)s->layout->lengths[b] * sizeof *at);
    const int64_t n = rows_in(at, s, x, b);
    memcpy(shape, t->shape + t->rank - x->rank, (size_t)x->rank * sizeof *shape);
    shape[0] = n;
    for (int i = 1; i < x->rank; i++) width *= shape[i];
    const char *first =
        n > 0 && t->data ? (const char *)t->data + (size_t)(at[0] * width) * m3_dtype_bytes(t->dtype) : NULL;
    int status = M3_OK;
    if (x->form == FORM_LAST && !s->last_alone && m3_is_logits(x->tap) && rows_of(s->layout, b, x->layer) > 1)
        status = m3_safetensors_add(part, t->name, t->dtype, 1, shape + 1, first, s->error);
    else if (n > 0 && t->data && needs_copy(s->layout, x, b, at, n)) status = copy_rows(part, s, x, b, at, shape);
    else if (n > 0) status = m3_safetensors_add(part, t->name, t->dtype, x->rank, shape, first, s->error);
    free(at);
    return status;
}

/* ---- the whole */

static const char *shape_text(char *text, size_t size, const struct m3_tensor *t)
{
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < t->rank && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%" PRId64, i ? "," : "", t->shape[i]);
    return text;
}

static void note_other(const struct splitting *s, const struct m3_tensor *t)
{
    char text[160];
    m3_fail(s->notes, M3_OK,
            "%s: got [%s], which is neither [B,S,..] with the case's %" PRId64
            " sequences and its padding, nor their rows one after another, nor their last rows",
            t->name, shape_text(text, sizeof text, t), s->layout->count);
}

/* Is there a tap whose rows can be those of the case? Otherwise nothing can be judged, which is said before it is
 * tried. */
static int check_forms(const struct splitting *s)
{
    const struct m3_layout *l = s->layout;
    const struct m3_tensor *first = NULL;
    char text[160], want[200] = "";
    for (int64_t i = 0; i < m3_safetensors_count(s->file); i++) {
        struct shaped x;
        if (!shape_of(&x, m3_safetensors_at(s->file, i), s)) continue;
        if (x.form == FORM_LISTED || x.form == FORM_LAST) return M3_OK;
        if (x.form != FORM_OTHER && !s->listed.all) return M3_OK;
        if (!first) first = x.t;
    }
    if (!first) return M3_OK;
    if (s->listed.all) snprintf(want, sizeof want, "[%" PRId64 ",..], as its rows are numbered", s->listed.held);
    else if (l->slots == 0) snprintf(want, sizeof want, "packed [%" PRId64 ",..]", m3_layout_rows(l));
    else
        snprintf(want, sizeof want, "packed [%" PRId64 ",..] or padded [%" PRId64 ",%" PRId64 ",..]", m3_layout_rows(l),
                 l->count, l->slots);
    return m3_fail(s->error, M3_NOT_COMPARABLE,
                   "%s: %s: got [%s], expected %s: no tap has the rows of the case's %" PRId64 " sequences",
                   m3_safetensors_path(s->file), first->name, shape_text(text, sizeof text, first), want, l->count);
}

/* Taps of the last rows beside taps of all rows: logits alone are read so. */
static int is_left_out(const struct splitting *s, const struct shaped *x)
{
    return x->form == FORM_LAST && !s->last_alone && !m3_is_logits(x->tap) && !has_equal_lengths(s->layout, 1);
}

static int add_tensor(struct m3_safetensors *part, const struct splitting *s, const struct m3_tensor *t, int64_t b)
{
    struct shaped x;
    char prefix[64];
    const int length = snprintf(prefix, sizeof prefix, "sequences.%" PRId64 ".", b);
    static const char *const numbers[] = { "rows", "sequences", M3_UNROLLED, M3_CACHE_ROWS, M3_CACHE_SEQUENCES };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(t->name, numbers[i]) == 0) return M3_OK;
    if (strncmp(t->name, "sequences.", 10) == 0) {
        if (strncmp(t->name, prefix, (size_t)length) != 0) return M3_OK;
        return m3_safetensors_add(part, t->name + length, t->dtype, t->rank, t->shape, t->data, s->error);
    }
    if (!shape_of(&x, t, s)) return m3_safetensors_add(part, t->name, t->dtype, t->rank, t->shape, t->data, s->error);
    if (x.form == FORM_OTHER) {
        if (b == 0) note_other(s, t);
        return m3_safetensors_add(part, t->name, t->dtype, t->rank, t->shape, t->data, s->error);
    }
    if (is_left_out(s, &x)) {
        if (b == 0) m3_fail(s->notes, M3_OK, "%s: left out: the last rows alone, where others have all", t->name);
        return M3_OK;
    }
    return add_rows(part, s, &x, b);
}

/* The numbers of the rows, if the part does not hold all. */
static int add_numbers(struct m3_safetensors *part, const struct splitting *s, const struct m3_row_list *list,
                       int64_t b)
{
    const int is_last = s->last_alone && list == &s->listed;
    int64_t n = is_last;
    for (int64_t i = 0; i < list->count && !is_last; i++) n += list->all[i].sequence == b;
    if (!is_last && (!list->all || (n == s->layout->lengths[b] && !s->cached.all))) return M3_OK;
    int32_t *rows = m3_safetensors_memory(part, (uint64_t)n * sizeof *rows, s->error);
    if (!rows) return M3_INTERNAL;
    int64_t k = 0;
    for (int64_t i = 0; i < list->count; i++)
        if (list->all[i].sequence == b && !is_last) rows[k++] = (int32_t)list->all[i].row;
    if (is_last) rows[0] = (int32_t)(s->layout->lengths[b] - 1);
    return m3_safetensors_add(part, list->rows, M3_I32, 1, &n, rows, s->error);
}

static int add_metadata(struct m3_safetensors *part, const struct splitting *s, int64_t b, const char *hash)
{
    char prefix[64], own[128];
    const int length = snprintf(prefix, sizeof prefix, "sequences.%" PRId64 ".", b);
    int status = M3_OK;
    snprintf(own, sizeof own, "%scase_sha256", prefix);
    const int has_own_hash = m3_safetensors_metadata(s->file, own) != NULL;
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(s->file, key));) {
        const char *value = m3_safetensors_metadata(s->file, key);
        if (strncmp(key, prefix, (size_t)length) == 0)
            status = m3_safetensors_state(part, key + length, value, s->error);
        else if (strcmp(key, "case_sha256") == 0 && hash && !has_own_hash)
            status = m3_safetensors_state(part, key, hash, s->error);
        else if (strncmp(key, "sequences", 9) != 0 && strcmp(key, "case_sha256") != 0)
            status = m3_safetensors_state(part, key, value, s->error);
    }
    return status;
}

static int make_part(struct m3_safetensors **part, const struct splitting *s, int64_t b, const char *hash)
{
    int status = m3_safetensors_make(part, m3_safetensors_path(s->file), s->error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(s->file); i++)
        status = add_tensor(*part, s, m3_safetensors_at(s->file, i), b);
    if (!status) status = add_numbers(*part, s, &s->listed, b);
    if (!status) status = add_numbers(*part, s, &s->cached, b);
    if (!status) status = add_metadata(*part, s, b, hash);
    return status ? status : m3_safetensors_complete(*part, s->error);
}

/* Do all taps of the dump hold the last rows alone? */
static int has_last_alone(const struct splitting *s)
{
    int last = 0;
    struct shaped x;
    for (int64_t i = 0; i < m3_safetensors_count(s->file); i++) {
        if (!shape_of(&x, m3_safetensors_at(s->file, i), s)) continue;
        if (x.form != FORM_LAST || m3_mtp_module_of(x.layer) >= 0) return 0;
        last = 1;
    }
    return last;
}

int m3_batch_split(struct m3_parts *parts, const struct m3_layout *layout, const char *const *hashes,
                   const struct m3_safetensors *file, struct m3_error *notes, struct m3_error *error)
{
    struct splitting s = { .layout = layout, .file = file, .notes = notes, .error = error };
    s.listed = (struct m3_row_list){ .of = "sequences", .rows = "rows" };
    s.cached = (struct m3_row_list){ .of = M3_CACHE_SEQUENCES, .rows = M3_CACHE_ROWS };
    *parts = (struct m3_parts){ 0 };
    parts->files = calloc((size_t)layout->count, sizeof *parts->files);
    if (!parts->files) return m3_fail_memory(error, "sequences", (size_t)layout->count * sizeof *parts->files);
    parts->count = layout->count;
    int status = m3_row_list_take(&s.listed, layout, file, error);
    if (!status) status = m3_row_list_take(&s.cached, layout, file, error);
    if (!status) status = check_forms(&s);
    s.last_alone = !status && has_last_alone(&s);
    for (int64_t b = 0; !status && b < layout->count; b++)
        status = make_part(&parts->files[b], &s, b, hashes ? hashes[b] : NULL);
    free(s.listed.all);
    free(s.cached.all);
    return status;
}

void m3_parts_free(struct m3_parts *parts)
{
    for (int64_t b = 0; b < parts->count; b++) m3_safetensors_close(parts->files[b]);
    free(parts->files);
    *parts = (struct m3_parts){ 0 };
}
