/* The rows that a dump numbers, and the sequences that it shows by them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/align.h"
#include "oracle/judge/batch/private/lists.h"
#include "oracle/judge/batch/split.h"

static int by_sequence(const void *a, const void *b)
{
    const struct m3_listed_row *x = a, *y = b;
    if (x->sequence != y->sequence) return x->sequence < y->sequence ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static const struct m3_tensor *numbers(const struct m3_safetensors *file, const char *name, int *bad,
                                       struct m3_error *error)
{
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    if (t && (!m3_holds_ids(t) || t->rank != 1))
        *bad = m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s of rank %d, expected I32 or I64 [R]",
                       m3_safetensors_path(file), name, m3_dtype_name(t->dtype), t->rank);
    return t;
}

/* `at`: where a dump that m3_steps_unroll has numbered holds each of them. */
static int read_list(struct m3_row_list *list, const struct m3_safetensors *file, struct m3_error *error)
{
    int status = M3_OK;
    const struct m3_tensor *of = numbers(file, list->of, &status, error);
    const struct m3_tensor *rows = numbers(file, list->rows, &status, error);
    const struct m3_tensor *at = m3_safetensors_find(file, M3_UNROLLED);
    if (status || (!of && !rows)) return status;
    if (!of || !rows || of->count != rows->count)
        return m3_fail(error, M3_BAD_INPUT, "%s: got %" PRId64 " `%s` and %" PRId64 " `%s`, expected as many of both",
                       m3_safetensors_path(file), of ? of->count : 0, list->of, rows ? rows->count : 0, list->rows);
    list->all = calloc((size_t)rows->count + 1, sizeof *list->all);
    if (!list->all) return m3_fail_memory(error, list->rows, (size_t)rows->count * sizeof *list->all);
    list->count = rows->count;
    if (strcmp(list->rows, "rows") != 0) at = NULL;
    for (int64_t i = 0; i < list->count; i++)
        list->all[i] = (struct m3_listed_row){ m3_id_at(of, i), m3_id_at(rows, i), at ? m3_id_at(at, i) : i };
    return M3_OK;
}

static int check_list(const struct m3_row_list *list, const struct m3_layout *l, const char *path,
                      struct m3_error *error)
{
    for (int64_t i = 0; i < list->count; i++) {
        const struct m3_listed_row *x = &list->all[i];
        if (x->sequence < 0 || x->sequence >= l->count)
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: %s[%" PRId64 "]: got %" PRId64 ", expected 0 to %" PRId64 ": a row of no sequence",
                           path, list->of, x->at, x->sequence, l->count - 1);
        if (x->row < 0 || x->row >= l->lengths[x->sequence])
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: %s[%" PRId64 "]: got %" PRId64 ", expected 0 to %" PRId64 ", the rows of sequence "
                           "%" PRId64,
                           path, list->rows, x->at, x->row, l->lengths[x->sequence] - 1, x->sequence);
        if (i > 0 && by_sequence(x, x - 1) == 0)
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: %s: got row %" PRId64 " of sequence %" PRId64 " twice, expected it once", path,
                           list->rows, x->row, x->sequence);
    }
    return M3_OK;
}

int m3_row_list_take(struct m3_row_list *list, const struct m3_layout *layout, const struct m3_safetensors *file,
                     struct m3_error *error)
{
    const int status = read_list(list, file, error);
    if (status || !list->all) return status;
    for (int64_t i = 0; i < list->count; i++) list->held = m3_max(list->held, list->all[i].at + 1);
    qsort(list->all, (size_t)list->count, sizeof *list->all, by_sequence);
    return check_list(list, layout, m3_safetensors_path(file), error);
}

/* ---- dumps that say which sequences they hold */

int m3_is_dump_of_several(const struct m3_safetensors *file)
{
    return m3_safetensors_find(file, "sequences") || m3_safetensors_metadata(file, "sequences");
}

/* Of a sequence of which a dump lists some: memory is taken for all of them. */
enum { MOST_ROWS = 1 << 24 };

/* `most`: the largest number of a sequence. */
static int check_sequences(const struct m3_row_list *list, int64_t most, const struct m3_safetensors *file,
                           struct m3_error *error)
{
    const char *path = m3_safetensors_path(file);
    if (most < 0)
        return m3_fail(error, M3_BAD_INPUT, "%s: sequences: got no number of a sequence, expected some", path);
    if (most >= list->count)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: sequences: got sequence %" PRId64 ", expected rows of each sequence up to it, not %" PRId64
                       " rows in all",
                       path, most, list->count);
    for (int64_t i = 0; i < list->count; i++)
        if (list->all[i].sequence >= 0 && list->all[i].row >= MOST_ROWS)
            return m3_fail(error, M3_BAD_INPUT, "%s: rows: got row %" PRId64 ", expected less than %d", path,
                           list->all[i].row, MOST_ROWS);
    return M3_OK;
}

int m3_layout_from_dump(struct m3_layout *layout, const struct m3_safetensors *file, struct m3_error *error)
{
    struct m3_row_list list = { .of = "sequences", .rows = "rows" };
    int64_t most = -1;
    int status = m3_layout_of_dump(layout, file, error);
    if (status || layout->count > 0) return status;
    status = read_list(&list, file, error);
    for (int64_t i = 0; i < list.count; i++) most = m3_max(most, list.all[i].sequence);
    if (!status) status = check_sequences(&list, most, file, error);
    if (!status) {
        layout->count = most + 1;
        layout->lengths = calloc((size_t)layout->count, sizeof *layout->lengths);
        layout->before = calloc((size_t)layout->count, sizeof *layout->before);
        if (!layout->lengths || !layout->before) status = m3_fail_memory(error, "sequences", (size_t)most);
    }
    for (int64_t i = 0; !status && i < list.count; i++)
        if (list.all[i].sequence >= 0)
            layout->lengths[list.all[i].sequence] = m3_max(layout->lengths[list.all[i].sequence], list.all[i].row + 1);
    for (int64_t b = 0; !status && b < layout->count; b++)
        if (layout->lengths[b] == 0)
            status = m3_fail(error, M3_BAD_INPUT, "%s: sequences: got no row of sequence %" PRId64 ", expected some",
                             m3_safetensors_path(file), b);
    free(list.all);
    return status;
}
