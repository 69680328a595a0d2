#include "io/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sha256.h"
#include "io/fingerprint.h"
#include "io/json.h"
#include "io/mapped.h"
#include "io/open.h"
#include "io/reading.h"

enum { MOST_FILES = 10000 };        /* of weights; the release has 59 */

struct place {
    const struct m3_tensor *tensor;
    int64_t file;
};

struct m3_checkpoint {
    char *config_path;
    char **names;                       /* base names of the weight files, ascending */
    struct m3_safetensors **files;      /* NULL where one could not be opened */
    int64_t file_count;
    struct place *places, *by_name;     /* [count] file by file; sorted by tensor name */
    int64_t count;
    uint64_t bytes;
    char *weights_sha256;               /* NULL: not known yet */
    char *folder;
    char **skipped;                     /* base names of the weight files that are not needed, ascending */
    int64_t skipped_count;
    json_t *weight_map;                 /* of the index; NULL: there is none */
};

/* The part of a model that is needed. */
struct part {
    m3_checkpoint_needs *needs;         /* NULL: all of it */
    void *self;
};

/* "folder/name", to be freed by the caller; NULL if memory is short. */
static char *join(const char *folder, const char *name)
{
    char *path = malloc(strlen(folder) + strlen(name) + 2);
    if (path) sprintf(path, "%s/%s", folder, name);
    return path;
}

static int by_bytes(const void *left, const void *right) { return strcmp(*(char *const *)left, *(char *const *)right); }

static int by_tensor(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    return strcmp(a->tensor->name, b->tensor->name);
}

/* Without an index *weight_map is NULL and the status M3_OK. *index owns *weight_map. */
static int read_index(json_t **index, json_t **weight_map, const char *path, struct m3_error *error)
{
    int exists;
    *index = *weight_map = NULL;
    int status = m3_look_for(&exists, path, error);
    if (status || !exists) return status;
    status = m3_json_load(index, path, error);
    if (status) return status;
    *weight_map = json_object_get(*index, "weight_map");
    if (!json_is_object(*weight_map) || json_object_size(*weight_map) == 0)
        return m3_fail(error, M3_BAD_INPUT, "%s: weight_map: expected an object that names at least one tensor", path);
    return M3_OK;
}

static int is_plain_name(const char *name) { return name && *name && !strchr(name, '/') && !strstr(name, ".."); }

/* Copies the distinct names of a sorted list, without those of another one. */
static int keep_distinct(char **to, int64_t *count, const char **names, size_t all, char *const *without,
                         int64_t without_count, const char *path, struct m3_error *error)
{
    for (size_t i = 0; i < all; i++) {
        if (i > 0 && strcmp(names[i], names[i - 1]) == 0) continue;
        if (without_count > 0 && bsearch(&names[i], without, (size_t)without_count, sizeof *without, by_bytes))
            continue;
        if (!(to[*count] = strdup(names[i]))) return m3_fail_memory(error, path, strlen(names[i]));
        ++*count;
    }
    return M3_OK;
}

/* Lists the files of the map: those of needed tensors from the front of `files`, the others from the back. */
static int sort_entries(const char **files, size_t *needed, size_t *others, json_t *weight_map, const struct part *part,
                        const char *index_path, struct m3_error *error)
{
    const size_t entries = json_object_size(weight_map);
    int status = M3_OK;
    const char *tensor;
    json_t *value;
    json_object_foreach(weight_map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!part->needs || part->needs(part->self, tensor)) files[(*needed)++] = name;
        else files[entries - ++*others] = name;
        if (!is_plain_name(name))
            status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected the name of a file in this folder",
                             index_path, tensor, name ? name : "another JSON value");
    }
    return status;
}

/* Fills names with the distinct files of the map that are needed, or with the one file of a model without an index. */
static int list_files(struct m3_checkpoint *checkpoint, json_t *weight_map, const struct part *part,
                      const char *index_path, struct m3_error *error)
{
    const size_t entries = weight_map ? json_object_size(weight_map) : 1;
    size_t needed = 0, others = 0;
    const char **files = calloc(entries, sizeof *files);
    checkpoint->names = calloc(entries, sizeof *checkpoint->names);
    checkpoint->skipped = calloc(entries, sizeof *checkpoint->skipped);
    checkpoint->files = calloc(entries, sizeof *checkpoint->files);
    int status = M3_OK;
    if (!files || !checkpoint->names || !checkpoint->skipped || !checkpoint->files)
        status = m3_fail_memory(error, index_path, 4 * entries * sizeof *files);
    else if (weight_map) status = sort_entries(files, &needed, &others, weight_map, part, index_path, error);
    else files[needed++] = "model.safetensors";
    if (!status) {
        qsort(files, needed, sizeof *files, by_bytes);
        qsort(files + entries - others, others, sizeof *files, by_bytes);
        status = keep_distinct(checkpoint->names, &checkpoint->file_count, files, needed, NULL, 0, index_path, error);
    }
    if (!status)
        status = keep_distinct(checkpoint->skipped, &checkpoint->skipped_count, files + entries - others, others,
                               checkpoint->names, checkpoint->file_count, index_path, error);
    free(files);
    return status;
}

static int open_files(struct m3_checkpoint *checkpoint, const char *folder, struct m3_error *error)
{
    int status = M3_OK;
    if (checkpoint->file_count > MOST_FILES)
        return m3_fail(error, M3_BAD_INPUT, "%s: weight_map: got %" PRId64 " files, expected at most %d", folder,
                       checkpoint->file_count, MOST_FILES);
    for (int64_t i = 0; i < checkpoint->file_count; i++) {
        char *path = join(folder, checkpoint->names[i]);
        int bad = path ? m3_safetensors_open(&checkpoint->files[i], path, error)
                       : m3_fail_memory(error, folder, strlen(folder));
        struct stat info = { 0 };
        if (!bad) bad = m3_look(&info, path, error);
        checkpoint->bytes += (uint64_t)info.st_size;
        if (!bad) checkpoint->count += m3_safetensors_count(checkpoint->files[i]);
        if (bad && !status) status = bad;
        free(path);
    }
    return status;
}

static int list_tensors(struct m3_checkpoint *checkpoint, struct m3_error *error)
{
    size_t count = (size_t)checkpoint->count;
    checkpoint->places = calloc(count + 1, sizeof *checkpoint->places);
    checkpoint->by_name = calloc(count + 1, sizeof *checkpoint->by_name);
    if (!checkpoint->places || !checkpoint->by_name)
        return m3_fail_memory(error, checkpoint->config_path, 2 * count * sizeof *checkpoint->places);

    int64_t next = 0;
    for (int64_t i = 0; i < checkpoint->file_count; i++)
        for (int64_t j = 0; j < m3_safetensors_count(checkpoint->files[i]); j++)
            checkpoint->places[next++] = (struct place){ m3_safetensors_at(checkpoint->files[i], j), i };
    memcpy(checkpoint->by_name, checkpoint->places, count * sizeof *checkpoint->places);
    qsort(checkpoint->by_name, count, sizeof *checkpoint->by_name, by_tensor);
    return M3_OK;
}

static int is_skipped(const struct m3_checkpoint *checkpoint, const char *file)
{
    const size_t count = (size_t)checkpoint->skipped_count;
    return count > 0 && bsearch(&file, checkpoint->skipped, count, sizeof *checkpoint->skipped, by_bytes) != NULL;
}

/* Checks that index and files name the same tensors, each in the same file. */
static int check_index(const struct m3_checkpoint *checkpoint, const json_t *weight_map, const char *index_path,
                       struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < checkpoint->count; i++) {
        const struct place *place = &checkpoint->places[i];
        const char *file = checkpoint->names[place->file], *name = place->tensor->name;
        const char *target = json_string_value(json_object_get(weight_map, name));
        if (!target || strcmp(target, file) != 0)
            status = m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected %s, which holds it", index_path, name,
                             target ? target : "no entry", file);
    }
    const char *name;
    json_t *target;
    json_object_foreach((json_t *)weight_map, name, target)
    {
        const char *file = json_string_value(target);
        if (m3_checkpoint_find(checkpoint, name, NULL) || is_skipped(checkpoint, file)) continue;
        status = m3_fail(error, M3_BAD_INPUT, "%s: %s: not in %s, where weight_map has it", index_path, name, file);
    }
    return status;
}

int m3_checkpoint_reads(const char *folder, struct m3_error *error)
{
    static const char *const names[] = {
        "*.json", "model.safetensors", "model-*-of-*.safetensors", "*.txt", "*.jinja", "*.model", "*.py", "*.md"
    };
    int status = m3_reading_note_path(folder, "MODEL", error);
    for (size_t i = 0; !status && i < sizeof names / sizeof *names; i++)
        status = m3_reading_note_folder(folder, names[i], "MODEL", error);
    return status;
}

/* All its files, those that are not opened too. */
static int note_files(const struct m3_checkpoint *checkpoint, struct m3_error *error)
{
    int status = m3_checkpoint_reads(checkpoint->folder, error);
    for (int64_t i = 0; !status && i < checkpoint->file_count + checkpoint->skipped_count; i++) {
        const int64_t s = i - checkpoint->file_count;
        char *path = join(checkpoint->folder, s < 0 ? checkpoint->names[i] : checkpoint->skipped[s]);
        status = path ? m3_reading_note_path(path, "MODEL", error)
                      : m3_fail_memory(error, checkpoint->folder, strlen(checkpoint->folder));
        free(path);
    }
    return status;
}

static int open_weights(struct m3_checkpoint *checkpoint, const char *folder, const struct part *part,
                        const char *index_path, struct m3_error *error)
{
    json_t *index, *weight_map;
    int status = read_index(&index, &weight_map, index_path, error);
    if (!status) status = list_files(checkpoint, weight_map, part, index_path, error);
    if (!status) status = open_files(checkpoint, folder, error);
    if (!status) status = list_tensors(checkpoint, error);
    if (!status && weight_map) status = check_index(checkpoint, weight_map, index_path, error);
    checkpoint->weight_map = json_incref(weight_map);
    json_decref(index);
    return status;
}

static int open_all(struct m3_checkpoint *checkpoint, const char *folder, const struct part *part,
                    struct m3_error *error)
{
    int exists, status = m3_look_for(&exists, folder, error), bad;
    if (!status && !exists) status = m3_fail(error, M3_ABSENT, "%s: no such folder", folder);
    if (status) return status;
    checkpoint->folder = strdup(folder);
    checkpoint->config_path = join(folder, "config.json");
    char *index_path = join(folder, "model.safetensors.index.json");
    if (!checkpoint->folder || !checkpoint->config_path || !index_path) {
        status = bad = m3_fail_memory(error, folder, strlen(folder));
    } else {
        status = m3_look_for(&exists, checkpoint->config_path, error);
        if (!status && !exists) status = m3_fail(error, M3_ABSENT, "%s: no such file", checkpoint->config_path);
        bad =
            status == M3_OK || status == M3_ABSENT ? open_weights(checkpoint, folder, part, index_path, error) : status;
    }
    free(index_path);
    return status ? status : bad;
}

int m3_checkpoint_open(struct m3_checkpoint **checkpoint, const char *folder, struct m3_error *error)
{
    return m3_checkpoint_open_part(checkpoint, folder, NULL, NULL, error);
}

int m3_checkpoint_open_part(struct m3_checkpoint **checkpoint, const char *folder, m3_checkpoint_needs *needs,
                            void *self, struct m3_error *error)
{
    const struct part part = { needs, self };
    *checkpoint = NULL;
    struct m3_checkpoint *opened = calloc(1, sizeof *opened);
    if (!opened) return m3_fail_memory(error, folder, sizeof *opened);
    int status = open_all(opened, folder, &part, error);
    if (!status) status = note_files(opened, error);
    if (status) m3_checkpoint_close(opened);
    else *checkpoint = opened;
    return status;
}

/* *bytes: -1 if there is no such file. */
static int size_of(int64_t *bytes, const char *folder, const char *name, struct m3_error *error)
{
    struct stat info = { 0 };
    char *path = join(folder, name);
    const int status = path ? m3_look(&info, path, error) : m3_fail_memory(error, folder, strlen(name));
    *bytes = info.st_mode ? (int64_t)info.st_size : -1;
    free(path);
    return status;
}

int m3_checkpoint_list(const char *folder, m3_checkpoint_needs *needs, void *self,
                       void (*visit)(void *to, const char *name, int is_needed, int64_t bytes), void *to,
                       struct m3_error *error)
{
    struct m3_checkpoint *c = calloc(1, sizeof *c);
    const struct part part = { needs, self };
    char *path = join(folder, "model.safetensors.index.json");
    json_t *index = NULL, *weight_map = NULL;
    int status = c && path ? M3_OK : m3_fail_memory(error, folder, sizeof *c);
    if (!status) status = read_index(&index, &weight_map, path, error);
    if (!status) status = list_files(c, weight_map, &part, path, error);
    for (int64_t i = 0, k = 0; !status && (i < c->file_count || k < c->skipped_count);) {
        const int needed = k == c->skipped_count || (i < c->file_count && strcmp(c->names[i], c->skipped[k]) < 0);
        const char *name = needed ? c->names[i++] : c->skipped[k++];
        int64_t bytes;
        status = size_of(&bytes, folder, name, error);
        if (!status) visit(to, name, needed, bytes);
    }
    json_decref(index);
    m3_checkpoint_close(c);
    free(path);
    return status;
}

void m3_checkpoint_close(struct m3_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    for (int64_t i = 0; i < checkpoint->file_count; i++) {
        m3_safetensors_close(checkpoint->files[i]);
        free(checkpoint->names[i]);
    }
    for (int64_t i = 0; i < checkpoint->skipped_count; i++) free(checkpoint->skipped[i]);
    json_decref(checkpoint->weight_map);
    free(checkpoint->skipped);
    free(checkpoint->folder);
    free(checkpoint->files);
    free(checkpoint->names);
    free(checkpoint->places);
    free(checkpoint->by_name);
    free(checkpoint->config_path);
    free(checkpoint->weights_sha256);
    free(checkpoint);
}

const char *m3_checkpoint_config_path(const struct m3_checkpoint *checkpoint) { return checkpoint->config_path; }

int64_t m3_checkpoint_files(const struct m3_checkpoint *checkpoint) { return checkpoint->file_count; }

const char *m3_checkpoint_path(const struct m3_checkpoint *checkpoint, int64_t index)
{
    return m3_safetensors_path(checkpoint->files[index]);
}

int64_t m3_checkpoint_count(const struct m3_checkpoint *checkpoint) { return checkpoint->count; }

uint64_t m3_checkpoint_bytes(const struct m3_checkpoint *checkpoint) { return checkpoint->bytes; }

const struct m3_tensor *m3_checkpoint_at(const struct m3_checkpoint *checkpoint, int64_t index, const char **path)
{
    const struct place *place = &checkpoint->places[index];
    if (path) *path = m3_safetensors_path(checkpoint->files[place->file]);
    return place->tensor;
}

const struct m3_tensor *m3_checkpoint_find(const struct m3_checkpoint *checkpoint, const char *name, const char **path)
{
    const struct m3_tensor wanted = { .name = name };
    const struct place key = { &wanted, 0 };
    const struct place *place =
        bsearch(&key, checkpoint->by_name, (size_t)checkpoint->count, sizeof *checkpoint->by_name, by_tensor);
    if (!place) return NULL;
    if (path) *path = m3_safetensors_path(checkpoint->files[place->file]);
    return place->tensor;
}

int64_t m3_checkpoint_skipped(const struct m3_checkpoint *checkpoint) { return checkpoint->skipped_count; }

const char *m3_checkpoint_skipped_name(const struct m3_checkpoint *checkpoint, int64_t index)
{
    return checkpoint->skipped[index];
}

int m3_checkpoint_names(const struct m3_checkpoint *checkpoint, const char *tensor)
{
    return json_object_get(checkpoint->weight_map, tensor) || m3_checkpoint_find(checkpoint, tensor, NULL);
}

static int add_file(struct m3_sha256 *hash, const char *path, struct m3_error *error)
{
    FILE *file;
    int status = m3_open_stream(&file, path, error);
    if (status) return status;
    unsigned char bytes[1 << 14];
    size_t got;
    while ((got = fread(bytes, 1, sizeof bytes, file)) > 0) m3_sha256_add(hash, bytes, got);
    if (ferror(file)) status = m3_fail(error, M3_IO, "%s: cannot read: %s", path, strerror(errno));
    fclose(file);
    return status;
}

static void add_header(struct m3_sha256 *hash, const char *name, const struct m3_safetensors *file)
{
    uint64_t bytes;
    const void *header = m3_safetensors_header(file, &bytes);
    m3_sha256_add(hash, name, strlen(name) + 1);
    m3_sha256_add(hash, header, bytes);
}

/* A file that is not needed may be absent or incomplete. Returns whether it could be read. */
static int add_skipped(struct m3_sha256 *hash, const struct m3_checkpoint *checkpoint, int64_t index)
{
    struct m3_error ignored = { 0 };
    struct m3_safetensors *file = NULL;
    char *path = join(checkpoint->folder, checkpoint->skipped[index]);
    const int is_read = path && m3_safetensors_open(&file, path, &ignored) == 0;
    if (is_read) add_header(hash, checkpoint->skipped[index], file);
    m3_safetensors_close(file);
    m3_error_free(&ignored);
    free(path);
    return is_read;
}

int m3_checkpoint_config_sha256(const struct m3_checkpoint *checkpoint, char hex[65], struct m3_error *error)
{
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, "SHA-256", 1);
    const int status = add_file(hash, checkpoint->config_path, error);
    return m3_sha256_end(hash, hex) != 0 && !status ? m3_fail(error, M3_INTERNAL, "SHA-256 failed") : status;
}

int m3_checkpoint_sha256(const struct m3_checkpoint *checkpoint, char hex[65], struct m3_error *error)
{
    struct m3_sha256 *hash = m3_sha256_new();
    if (!hash) return m3_fail_memory(error, "SHA-256", 1);
    int status = add_file(hash, checkpoint->config_path, error);
    int is_known = 1;
    for (int64_t i = 0, k = 0; i < checkpoint->file_count || k < checkpoint->skipped_count;) {
        const int opened = k == checkpoint->skipped_count ||
                           (i < checkpoint->file_count && strcmp(checkpoint->names[i], checkpoint->skipped[k]) < 0);
        if (opened) add_header(hash, checkpoint->names[i], checkpoint->files[i]), i++;
        else is_known &= add_skipped(hash, checkpoint, k++);
    }
    if (m3_sha256_end(hash, hex) != 0 && !status) status = m3_fail(error, M3_INTERNAL, "SHA-256 failed");
    if (!is_known) hex[0] = '\0';
    return status;
}

int m3_checkpoint_weights_sha256(struct m3_checkpoint *checkpoint, const char **text, struct m3_error *error)
{
    int status = M3_OK;
    if (!checkpoint->weights_sha256) {
        char *memory = m3_fingerprint_memory();
        const struct m3_fingerprint_how how = { .whole = M3_FINGERPRINT_WHOLE, .memory = memory };
        status = m3_fingerprint(&checkpoint->weights_sha256, checkpoint, &how, error);
        if (!status) status = m3_mapped_check(error);
        free(memory);
    }
    *text = checkpoint->weights_sha256;
    return status;
}
