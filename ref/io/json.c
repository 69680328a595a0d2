#include "io/json.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/open.h"

/* What jansson allocates for a tree of values is many times the text: 230 bytes for "{}". */
enum { OBJECT = 240, ARRAY = 144, MEMBER = 112, VALUE = 48, STRING = 64, SHARE = 32, ALWAYS = 1 << 20 };
enum { MOST_TREE = 512 << 20 };

/* All of it belongs to the process, as jansson's allocator does. */
static atomic_int failed;
static json_malloc_t allocate = malloc;
static json_free_t release = free;

/* What is taken from it is never given back. */
enum { RESERVE = 1 << 20, ALIGNMENT = 16 };
static _Alignas(ALIGNMENT) char reserve[RESERVE];
static atomic_size_t reserve_used;

static void *take_reserve(size_t bytes)
{
    const size_t whole = bytes / ALIGNMENT * ALIGNMENT + ALIGNMENT;
    const size_t at = bytes < RESERVE ? atomic_fetch_add(&reserve_used, whole) : RESERVE;
    if (at <= RESERVE - ALIGNMENT && whole <= RESERVE - at) return reserve + at;
    fprintf(stderr, "m3ref: JSON: no memory for %zu bytes\n", bytes);
    _exit(M3_INTERNAL);
}

static void *watched(size_t bytes)
{
    void *memory = allocate(bytes);
    if (memory) return memory;
    failed = 1;
    return take_reserve(bytes);
}

static void watched_free(void *memory)
{
    const char *at = memory;
    if (at < reserve || at >= reserve + RESERVE) release(memory);
}

void m3_json_watch(void)
{
    json_malloc_t present;
    json_free_t present_free;
    json_get_alloc_funcs(&present, &present_free);
    if (present != watched) allocate = present;
    if (present_free != watched_free) release = present_free;
    json_set_alloc_funcs(watched, watched_free);
    failed = 0;
    reserve_used = 0;
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

/* An upper bound of the memory for the tree of a text, from its punctuation. */
static uint64_t tree_bytes(const char *text, size_t length)
{
    uint64_t bytes = VALUE;
    int in_string = 0;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (in_string) {
            bytes++;
            if (c == '\\') i++;
            else if (c == '"') in_string = 0;
        } else if (c == '"') {
            in_string = 1;
            bytes += STRING;
        } else if (c == '{') bytes += OBJECT;
        else if (c == '[') bytes += ARRAY;
        else if (c == ':') bytes += MEMBER;
        else if (c == ',') bytes += VALUE;
    }
    return bytes;
}

static uint64_t most_bytes(size_t length, uint64_t most)
{
    const uint64_t share = (uint64_t)length * SHARE + ALWAYS;
    return share < most ? share : most;
}

static int parse(json_t **root, const char *text, size_t length, const char *name, uint64_t most,
                 struct m3_error *error)
{
    json_error_t bad;
    const uint64_t bytes = tree_bytes(text, length);
    *root = NULL;
    if (bytes > most_bytes(length, most))
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: JSON: got %zu bytes whose values would take up to %" PRIu64 " bytes of memory, expected at "
                       "most %" PRIu64,
                       name, length, bytes, most_bytes(length, most));
    *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &bad);
    return settle(root, &bad, name, error);
}

int m3_json_parse(json_t **root, const char *text, size_t length, const char *name, struct m3_error *error)
{
    return parse(root, text, length, name, MOST_TREE, error);
}

static int load(json_t **root, const char *path, uint64_t most, struct m3_error *error)
{
    char *text = NULL;
    size_t length;
    *root = NULL;
    int status = m3_read_file(&text, &length, path, M3_JSON_MOST_BYTES, error);
    if (!status) status = parse(root, text, length, path, most, error);
    free(text);
    return status;
}

int m3_json_load(json_t **root, const char *path, struct m3_error *error) { return load(root, path, MOST_TREE, error); }

int m3_json_load_long(json_t **root, const char *path, struct m3_error *error)
{
    return load(root, path, UINT64_MAX, error);
}

json_t *m3_json_of_text(const char *text)
{
    const size_t length = strlen(text);
    return tree_bytes(text, length) > most_bytes(length, MOST_TREE) ? NULL : json_loadb(text, length, 0, NULL);
}

char *m3_json_dump(const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags);
    if (text && !failed) return text;
    if (text) watched_free(text);
    return NULL;
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

/* JSON_ENSURE_ASCII leaves DEL as it is, which a string may hold. */
static int write_without_del(const char *text, size_t size, void *out)
{
    for (size_t i = 0; i < size; i++)
        if ((text[i] == 0x7f ? fputs("\\u007f", out) : fputc(text[i], out)) == EOF) return -1;
    return 0;
}

int m3_json_line(FILE *out, json_t *object, struct m3_error *error)
{
    const size_t flags = JSON_COMPACT | JSON_ENSURE_ASCII;      /* a name must not steer the terminal */
    /* jansson passes over the failure of some of its writes */
    int written = object && !failed && json_dump_callback(object, write_without_del, out, flags) == 0 &&
                  fputc('\n', out) != EOF && !ferror(out);
    const int why = errno;
    json_decref(object);
    if (!object || failed) return m3_fail_memory(error, "JSON line", 0);
    return written ? M3_OK : m3_fail(error, M3_IO, "JSON lines: cannot be written: %s", strerror(why));
}

int m3_is_json_path(const char *name)
{
    size_t length = strlen(name);
    return strchr(name, '/') || (length > 5 && strcmp(name + length - 5, ".json") == 0);
}
