/* Candidates that are a file or a folder of files. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* asprintf */
#endif
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "io/open.h"
#include "oracle/map/private/map.h"

struct listed {
    char *path;
    int64_t number;
};

struct opening {
    const struct m3_map_files *given;
    struct m3_map *map;
    struct m3_map_sizes whole, local;       /* of all ranks; of one */
    struct listed *files;
    struct m3_safetensors **open;           /* [count] */
    int64_t count;
    int are_numbered;                       /* a file says which rows it holds */
    struct m3_error *notes, *error;
};

/* ---- the files of a folder */

static int is_dump_name(const char *name)
{
    const char *const ends[] = { ".safetensors", ".safetensors.gz" };
    const size_t length = strlen(name);
    for (size_t i = 0; i < 2; i++)
        if (length > strlen(ends[i]) && strcmp(name + length - strlen(ends[i]), ends[i]) == 0) return name[0] != '.';
    return 0;
}

/* The last number in a name, before its ending; -1: none. */
static int64_t number_in(const char *name)
{
    const char *end = strstr(name, ".safetensors");
    while (end > name && !isdigit((unsigned char)end[-1])) end--;
    const char *begin = end;
    while (begin > name && isdigit((unsigned char)begin[-1]) && end - begin < 18) begin--;
    return begin == end ? -1 : strtoll(begin, NULL, 10);
}

static int by_number(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static int add_file(struct opening *o, const char *name)
{
    struct listed *more = realloc(o->files, (size_t)(o->count + 1) * sizeof *more);
    if (!more) return m3_fail_memory(o->error, name, sizeof *more);
    o->files = more;
    more[o->count] = (struct listed){ NULL, number_in(name) };
    if (asprintf(&more[o->count].path, "%s/%s", o->given->path, name) < 0) {
        more[o->count].path = NULL;
        return m3_fail_memory(o->error, name, strlen(name));
    }
    if (more[o->count++].number >= 0) return M3_OK;
    return m3_fail(o->error, M3_BAD_INPUT,
                   "%s: got a file name without a number, expected the number of its rank or chunk",
                   more[o->count - 1].path);
}

static int list_files(struct opening *o)
{
    DIR *folder = opendir(o->given->path);
    int status = folder ? M3_OK : m3_fail(o->error, m3_status_of(errno), "%s: %s", o->given->path, strerror(errno));
    struct dirent *entry = NULL;
    if (!status) status = m3_next_entry(&entry, folder, o->given->path, o->error);
    while (!status && entry) {
        if (is_dump_name(entry->d_name)) status = add_file(o, entry->d_name);
        if (!status) status = m3_next_entry(&entry, folder, o->given->path, o->error);
    }
    if (folder) closedir(folder);
    if (!status && o->count == 0)
        status = m3_fail(o->error, M3_ABSENT, "%s: got no .safetensors file, expected one for each %s", o->given->path,
                         o->map->files == M3_FILES_RANKS ? "rank" : "chunk");
    if (status) return status;
    qsort(o->files, (size_t)o->count, sizeof *o->files, by_number);
    for (int64_t i = 1; i < o->count; i++)
        if (o->files[i].number == o->files[i - 1].number)
            return m3_fail(o->error, M3_BAD_INPUT, "%s: got the number %" PRId64 " again, as %s, expected it once",
                           o->files[i].path, o->files[i].number, o->files[i - 1].path);
    return M3_OK;
}

static int open_files(struct opening *o)
{
    int status = M3_OK;
    o->open = calloc((size_t)o->count, sizeof *o->open);
    if (!o->open) return m3_fail_memory(o->error, o->given->path, (size_t)o->count * sizeof *o->open);
    for (int64_t i = 0; !status && i < o->count; i++)
        status = m3_safetensors_open(&o->open[i], o->files[i].path, o->error);
    return status;
}

/* ---- which rows the files hold */

/* Puts what a file says of its rows where the judge looks for it. */
static int number_files(struct opening *o)
{
    int64_t length = o->given->sizes ? o->given->sizes->of['T'] : 0, before = 0;
    const struct m3_layout one = { .count = 1, .lengths = &length, .before = &before };
    const struct m3_layout *l = o->given->layout ? o->given->layout : &one;
    int status = M3_OK;
    for (int64_t i = 0; !status && i < o->count; i++) {
        struct m3_safetensors *view;
        status = m3_map_number(&view, o->map, l, o->open[i], o->error);
        if (view && !status) m3_safetensors_keep(view, o->open[i]);
        if (view && status) m3_safetensors_close(view);
        if (!view || status) continue;
        o->open[i] = view;
        o->are_numbered |= m3_safetensors_find(view, "rows") != NULL;
    }
    return status;
}

/* ---- one sequence of a padded batch */

/* The slots of a row of the case's batch. Sequences of one length need no padding. 0: the case is packed. */
static int64_t slots_of_case(const struct m3_layout *l)
{
    for (int64_t b = 1; !l->slots && b < l->count; b++)
        if (l->lengths[b] != l->lengths[0]) return 0;
    return l->slots ? l->slots : l->lengths[0];
}

/* How many slots the rows of this file have: those of a tensor [B,s,..], otherwise the case's. */
static int64_t slots_of(const struct m3_safetensors *file, const struct m3_layout *l)
{
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        if (t->rank == 3 && t->shape[0] == l->count) return t->shape[1];
    }
    return slots_of_case(l);
}

/* Does the file hold the slots of a padded batch? Engines without padding hold its rows one after another. */
static int is_padded(const struct m3_safetensors *file, const struct m3_layout *l)
{
    const int64_t slots = slots_of(file, l);
    if (slots_of_case(l) == 0 || (l->slots == 0 && slots != l->lengths[0])) return 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        if (t->rank > 2 && t->shape[0] == l->count) return 1;
        if (t->rank > 1 && t->shape[0] == l->count * slots) return 1;
    }
    return 0;
}

/* A view of sequence b: of tensors [B,..] its part, of tensors [B s,..] its rows, with padding; of tensors of all rows
 * without padding its rows; others as they are. */
static int slice(struct m3_safetensors **part, const struct m3_safetensors *file, const struct m3_layout *l, int64_t b,
                 struct m3_error *error)
{
    const int64_t slots = slots_of(file, l), rows = m3_layout_rows(l);
    int64_t first = 0;
    for (int64_t i = 0; i < b; i++) first += l->lengths[i];
    int status = m3_safetensors_make(part, m3_safetensors_path(file), error);
    for (int64_t i = 0; !status && i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        int64_t shape[M3_MAX_RANK];
        const char *data = t->data;
        memcpy(shape, t->shape, sizeof shape);
        const int is_cut = t->rank > 0 && (t->shape[0] == l->count || t->shape[0] == l->count * slots);
        const int is_packed = t->rank > 1 && !is_cut && t->shape[0] == rows;
        if (is_cut) shape[0] /= l->count;
        if (is_cut && data) data += (size_t)b * (t->bytes / (size_t)l->count);
        if (is_packed) shape[0] = l->lengths[b];
        if (is_packed && data) data += (size_t)first * (t->bytes / (size_t)rows);
        status = m3_safetensors_add(*part, t->name, t->dtype, t->rank, shape, data, error);
    }
    for (const char *key = NULL; !status && (key = m3_safetensors_next_key(file, key));)
        status = m3_safetensors_state(*part, key, m3_safetensors_metadata(file, key), error);
    return status ? status : m3_safetensors_complete(*part, error);
}

/* ---- converting */

/* Notes of a part that are those of the first would only repeat them. */
static int convert(struct m3_safetensors **out, struct opening *o, const struct m3_safetensors *file, int repeats)
{
    struct m3_error quiet = { 0 };
    struct m3_error *notes = repeats ? &quiet : o->notes;
    const int is_part = o->map->files != M3_FILES_NONE;
    const int status = m3_map_convert(out, o->map, is_part ? &o->local : &o->whole, file, is_part,
                                      repeats ? NULL : o->given->gaps, notes, o->error);
    m3_error_free(&quiet);
    return status;
}

static void close_all(struct m3_safetensors **files, int64_t count)
{
    for (int64_t i = 0; files && i < count; i++) m3_safetensors_close(files[i]);
    free(files);
}

/* All files, of sequence b alone if b >= 0, as one. */
static int combine(struct m3_safetensors **out, struct opening *o, int64_t b)
{
    struct m3_safetensors **parts = calloc((size_t)o->count, sizeof *parts);
    int status = parts ? M3_OK : m3_fail_memory(o->error, o->given->path, (size_t)o->count * sizeof *parts);
    *out = NULL;
    for (int64_t i = 0; !status && i < o->count; i++) {
        struct m3_safetensors *part = NULL;
        if (b >= 0) status = slice(&part, o->open[i], o->given->layout, b, o->error);
        if (!status) status = convert(&parts[i], o, b >= 0 ? part : o->open[i], i > 0 || b > 0);
        m3_safetensors_close(part);
    }
    if (!status && o->map->files == M3_FILES_NONE) {
        *out = parts[0];
        parts[0] = NULL;
    } else if (!status) {
        status = m3_map_combine(out, o->map, &o->whole, parts, o->count, o->notes, o->error);
    }
    close_all(parts, o->count);
    return status;
}

static int stack_sequences(struct m3_safetensors **out, struct opening *o)
{
    const int64_t count = o->given->layout->count;
    struct m3_safetensors **each = calloc((size_t)count, sizeof *each);
    int status = each ? M3_OK : m3_fail_memory(o->error, o->given->path, (size_t)count * sizeof *each);
    for (int64_t b = 0; !status && b < count; b++) {
        o->whole.tokens = o->local.tokens = o->given->layout->lengths[b];
        status = combine(&each[b], o, b);
    }
    if (!status) status = m3_map_stack(out, o->map, each, count, o->notes, o->error);
    close_all(each, count);
    return status;
}

/* Is each sequence converted alone? */
static int are_stacked(const struct opening *o)
{
    const struct m3_layout *l = o->given->layout;
    if (!l || l->count < 2 || o->are_numbered) return 0;
    if (o->map->names_b || o->map->recipe_count == 0) return 0;
    for (int64_t i = 0; i < o->count; i++)
        if (!is_padded(o->open[i], l)) return 0;
    return 1;
}

/* The rows of one conversion: those that the file numbers; of a padded sequence, or of all, one after another. */
static int64_t rows_of(const struct opening *o)
{
    const struct m3_layout *l = o->given->layout;
    const struct m3_tensor *rows = m3_safetensors_find(o->open[0], "rows");
    if (o->are_numbered && rows && o->map->files == M3_FILES_NONE) return rows->count;
    if (l->count > 1 && l->slots > 0 && o->map->names_b) return l->slots;
    return are_stacked(o) ? slots_of_case(l) : m3_layout_rows(l);
}

/* Letters that are divided among the ranks; at least one head is on each. */
static void size_letters(struct opening *o)
{
    o->whole = *o->given->sizes;
    if (o->given->layout) o->whole.of['T'] = rows_of(o);
    o->whole.of['B'] = o->given->layout ? o->given->layout->count : 1;
    o->whole.of['r'] = o->map->files == M3_FILES_RANKS ? o->count : 1;
    o->local = o->whole;
    for (const char *letter = o->map->divided; letter && *letter; letter++)
        if (o->local.of[(int)*letter] > 0)
            o->local.of[(int)*letter] = m3_max(1, o->local.of[(int)*letter] / o->whole.of['r']);
}

static int open_mapped(struct m3_safetensors **candidate, struct opening *o, int is_folder)
{
    int status = m3_map_open(&o->map, o->given->map, o->error);
    if (!status && is_folder && o->map->files == M3_FILES_NONE)
        status = m3_fail(o->error, M3_BAD_INPUT,
                         "%s: files: got nothing, expected \"ranks\" or \"chunks\": %s is a folder of files",
                         o->map->path, o->given->path);
    if (status) return status;
    if (is_folder) {
        status = list_files(o);
    } else {
        o->files = calloc(1, sizeof *o->files);
        if (!o->files || !(o->files->path = strdup(o->given->path))) return m3_fail_memory(o->error, "files", 0);
        o->count = 1;
    }
    if (!status) status = open_files(o);
    if (!status) status = number_files(o);
    if (status) return status;
    size_letters(o);
    return are_stacked(o) ? stack_sequences(candidate, o) : combine(candidate, o, -1);
}

/* A file with m3ref's names. If it does not number its rows itself, what engines have beside them may. */
static int open_own(struct m3_safetensors **candidate, struct opening *o)
{
    struct m3_safetensors *file;
    int status = m3_safetensors_open(&file, o->given->path, o->error);
    if (status || m3_safetensors_find(file, "rows") || m3_safetensors_find(file, "sequences")) {
        *candidate = file;
        return status;
    }
    o->open = calloc(1, sizeof *o->open);
    if (!o->open) {
        m3_safetensors_close(file);
        return m3_fail_memory(o->error, o->given->path, sizeof *o->open);
    }
    o->open[0] = file;
    o->count = 1;
    status = number_files(o);
    if (status) return status;
    *candidate = o->open[0];
    o->open[0] = NULL;
    return M3_OK;
}

int m3_map_open_files(struct m3_safetensors **candidate, const struct m3_map_files *files, struct m3_error *notes,
                      struct m3_error *error)
{
    struct opening o = { .given = files, .notes = notes, .error = error };
    int is_folder;
    *candidate = NULL;
    int status = m3_look_for_folder(&is_folder, files->path, error);
    if (status) return status;
    if (!files->map && is_folder)
        return m3_fail(error, M3_USAGE,
                       "%s: got a folder without --map, expected a file, or a map that says how the "
                       "files of the folder fit together",
                       files->path);
    status = files->map ? open_mapped(candidate, &o, is_folder) : open_own(candidate, &o);
    close_all(o.open, o.count);
    for (int64_t i = 0; o.files && i < o.count; i++) free(o.files[i].path);
    free(o.files);
    m3_map_close(o.map);
    return status;
}
