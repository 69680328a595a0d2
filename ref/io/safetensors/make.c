/* Files in memory: tensors of other files, seen in another way. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "io/safetensors/private.h"

int m3_safetensors_make(struct m3_safetensors **file, const char *path, struct m3_error *error)
{
    struct m3_safetensors *made = *file = calloc(1, sizeof *made);
    if (!made) return m3_fail_memory(error, path, sizeof *made);
    made->path = strdup(path);
    made->json = json_object();
    const int bad = !made->path || !made->json || json_object_set_new(made->json, "__metadata__", json_object()) != 0;
    return bad ? m3_fail_memory(error, path, sizeof *made) : M3_OK;
}

/* The names are keys of the JSON object, which owns them. */
static const char *keep_name(struct m3_safetensors *file, const char *name)
{
    if (json_object_set_new(file->json, name, json_null()) != 0) return NULL;
    return json_object_iter_key(json_object_iter_at(file->json, name));
}

int m3_safetensors_add(struct m3_safetensors *file, const char *name, enum m3_dtype dtype, int rank,
                       const int64_t *shape, const void *data, struct m3_error *error)
{
    if (file->count == file->room) {
        const int64_t room = 2 * file->room + 64;
        struct m3_tensor *more = realloc(file->tensors, (size_t)room * sizeof *more);
        if (!more) return m3_fail_memory(error, name, (size_t)room * sizeof *more);
        file->tensors = more;
        file->room = room;
    }
    struct m3_tensor *t = &file->tensors[file->count];
    *t = (struct m3_tensor){ .name = keep_name(file, name), .dtype = dtype, .rank = rank, .count = 1 };
    if (!t->name) return m3_fail_memory(error, name, strlen(name));
    for (int i = 0; i < rank; i++) t->count *= t->shape[i] = shape[i];
    t->bytes = (uint64_t)t->count * m3_dtype_bytes(dtype);
    t->data = t->count > 0 ? data : NULL;
    file->count++;
    return M3_OK;
}

/* Shared pages: what was read is released as if it belonged to a file, and private pages would then be zeros. */
void *m3_safetensors_memory(struct m3_safetensors *file, uint64_t bytes, struct m3_error *error)
{
    struct m3_memory *memory = malloc(sizeof *memory);
    void *data = memory ? mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (data == MAP_FAILED) {
        free(memory);
        m3_fail_memory(error, file->path, bytes);
        return NULL;
    }
    *memory = (struct m3_memory){ file->memory, data, bytes + 1 };
    file->memory = memory;
    return data;
}

void m3_safetensors_free_memory(struct m3_safetensors *file)
{
    for (struct m3_memory *next; file->memory; file->memory = next) {
        next = file->memory->next;
        munmap(file->memory->data, file->memory->bytes);
        free(file->memory);
    }
}

int m3_safetensors_state(struct m3_safetensors *file, const char *key, const char *value, struct m3_error *error)
{
    const int bad = json_object_set_new(json_object_get(file->json, "__metadata__"), key, json_string(value)) != 0;
    return bad ? m3_fail_memory(error, key, strlen(value)) : M3_OK;
}

int m3_safetensors_complete(struct m3_safetensors *file, struct m3_error *error)
{
    file->by_name = calloc((size_t)file->count + 1, sizeof *file->by_name);
    if (!file->by_name) return m3_fail_memory(error, file->path, (size_t)file->count * sizeof *file->by_name);
    for (int64_t i = 0; i < file->count; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, m3_safetensors_by_name);
    for (int64_t i = 1; i < file->count; i++)
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0)
            return m3_fail(error, M3_INTERNAL, "%s: %s: was added twice", file->path, file->by_name[i]->name);
    return M3_OK;
}

void m3_safetensors_keep(struct m3_safetensors *file, struct m3_safetensors *other) { file->kept = other; }
