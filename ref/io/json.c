#include "io/json.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "io/open.h"

static atomic_int failed;
static json_malloc_t allocate = malloc;

static void *watched(size_t bytes)
{
    void *memory = allocate(bytes);
    if (!memory) failed = 1;
    return memory;
}

void m3_json_watch(void)
{
    json_malloc_t present;
    json_free_t release;
    json_get_alloc_funcs(&present, &release);
    if (present != watched) allocate = present;
    json_set_alloc_funcs(watched, release);
    failed = 0;
}

int m3_json_failed(void) { return failed; }

static int settle(json_t **root, const json_error_t *bad, const char *name, struct m3_error *error)
{
    if (*root && !failed) return M3_OK;
    json_decref(*root);
    *root = NULL;
    if (failed) return m3_fail_memory(error, name, 0);
    return m3_fail(error, M3_BAD_INPUT, "%s: line %d, column %d: %s", name, bad->line, bad->column, bad->text);
}

int m3_json_load(json_t **root, const char *path, struct m3_error *error)
{
    FILE *file;
    json_error_t bad;
    *root = NULL;
    int status = m3_open_stream(&file, path, error);
    if (status) return status;
    *root = json_loadf(file, JSON_REJECT_DUPLICATES, &bad);
    fclose(file);
    return settle(root, &bad, path, error);
}

int m3_json_parse(json_t **root, const char *text, size_t length, const char *name, struct m3_error *error)
{
    json_error_t bad;
    *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &bad);
    return settle(root, &bad, name, error);
}

void m3_json_set(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) failed = 1;
}

void m3_json_append(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) failed = 1;
}

void m3_json_update(json_t *object, json_t *more)
{
    if (json_object_update(object, more) != 0) failed = 1;
    json_decref(more);
}

json_t *m3_json_number(double value)
{
    if (isnan(value)) return json_string("nan");
    if (isinf(value)) return json_string(value > 0 ? "inf" : "-inf");
    return json_real(value);
}

int m3_json_line(FILE *out, json_t *object, struct m3_error *error)
{
    int written = object && !failed && json_dumpf(object, out, JSON_COMPACT) == 0 && fputc('\n', out) != EOF;
    json_decref(object);
    if (!object || failed) return m3_fail_memory(error, "JSON line", 0);
    return written ? M3_OK : m3_fail(error, M3_IO, "JSON lines: cannot be written: %s", strerror(errno));
}

int m3_is_json_path(const char *name)
{
    size_t length = strlen(name);
    return strchr(name, '/') || (length > 5 && strcmp(name + length - 5, ".json") == 0);
}
