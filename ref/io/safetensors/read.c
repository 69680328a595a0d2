#include "io/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/gzip.h"
#include "io/json.h"
#include "io/open.h"
#include "io/safetensors/private.h"

static const uint64_t max_json_bytes = M3_JSON_MOST_BYTES;      /* the limit of the format */

static int fail_tensor(const struct m3_safetensors *file, const char *name, const char *what, struct m3_error *error)
{
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: %s", file->path, name, what);
}

/* Opens a descriptor of the plain bytes: the file itself, or a memory file with an inflated ".gz". */
static int open_bytes(int *fd, const char *path, struct m3_error *error)
{
    int status = m3_open_file(fd, path, error), packed = *fd;
    if (status || !m3_is_gzip_name(path)) return status;
    status = m3_gunzip(fd, packed, path, error);
    close(packed);
    return status;
}

static int map_file(struct m3_safetensors *file, const char *path, struct m3_error *error)
{
    int fd;
    int status = open_bytes(&fd, path, error);
    if (status) return status;

    struct stat info;
    if (fstat(fd, &info) != 0) {
        status = m3_fail(error, M3_IO, "%s: %s", file->path, strerror(errno));
    } else if (info.st_size < 8) {
        status = m3_fail(error, M3_BAD_INPUT, "%s: got %jd bytes, expected at least 8: not a safetensors file",
                         file->path, (intmax_t)info.st_size);
    } else {
        void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (bytes == MAP_FAILED) {
            status = m3_fail(error, m3_status_of(errno), "%s: cannot map: %s", file->path, strerror(errno));
        } else {
            file->bytes = bytes;
            file->size = (uint64_t)info.st_size;
            file->mapped = (struct m3_mapped){ bytes, file->size, file->opened, file->path, info, NULL };
            if (!m3_is_gzip_name(path)) m3_mapped_add(&file->mapped);
            else file->mapped.bytes = NULL;
        }
    }
    close(fd);
    return status;
}

/* Files of NumPy and PyTorch: ZIP archives, and pickles, which are never read here. */
static int refuse_foreign(const struct m3_safetensors *file, struct m3_error *error)
{
    const char *kind = NULL;
    if (!memcmp(file->bytes, "PK\3\4", 4) || !memcmp(file->bytes, "PK\5\6", 4)) kind = "a ZIP archive (.npz or .pt)";
    else if (!memcmp(file->bytes, "\x93NUMPY", 6)) kind = "a .npy file";
    else if (file->bytes[0] == 0x80 && file->bytes[1] >= 2 && file->bytes[1] <= 5) {
        uint64_t length = 0;
        for (int i = 0; i < 8; i++) length |= (uint64_t)file->bytes[i] << 8 * i;
        if (length > max_json_bytes) kind = "a pickle (.pt)";
    }
    if (!kind) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT,
                   "%s: got %s, expected safetensors: convert it with python -m m3ref convert %s OUT.safetensors",
                   file->path, kind, file->path);
}

static int parse_header(struct m3_safetensors *file, struct m3_error *error)
{
    for (int i = 0; i < 8; i++) file->json_bytes |= (uint64_t)file->bytes[i] << 8 * i;
    if (file->json_bytes > max_json_bytes)
        return m3_fail(error, M3_BAD_INPUT, "%s: header length: got %" PRIu64 ", expected at most %" PRIu64, file->path,
                       file->json_bytes, max_json_bytes);
    if (file->json_bytes > file->size - 8)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: truncated: header length: got %" PRIu64 ", expected at most %" PRIu64
                       ", the rest of the file",
                       file->path, file->json_bytes, file->size - 8);

    int status = m3_json_parse(&file->json, (const char *)file->bytes + 8, file->json_bytes, file->path, error);
    if (status) return status;
    if (!json_is_object(file->json))
        return m3_fail(error, M3_BAD_INPUT, "%s: header: got another JSON value, expected an object", file->path);
    return M3_OK;
}

static int check_metadata(const struct m3_safetensors *file, struct m3_error *error)
{
    json_t *metadata = json_object_get(file->json, "__metadata__");
    if (!metadata) return M3_OK;
    if (!json_is_object(metadata)) return fail_tensor(file, "__metadata__", "expected an object of strings", error);
    int status = M3_OK;
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) status =
        m3_fail(error, M3_BAD_INPUT, "%s: __metadata__: %s: expected a string", file->path, key);
    return status;
}

/* The product of all sizes but those of 0, as doubles, must fit into 63 bits, so that later steps can compute strides and
 * the bytes of any copy, also of a tensor without elements. */
static int parse_shape(struct m3_tensor *tensor, const struct m3_safetensors *file, const json_t *shape,
                       struct m3_error *error)
{
    if (!json_is_array(shape)) return fail_tensor(file, tensor->name, "shape: expected a list of integers", error);
    size_t rank = json_array_size(shape);
    if (rank > M3_MAX_RANK)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: rank: got %zu, expected at most %d", file->path, tensor->name,
                       rank, M3_MAX_RANK);

    int64_t product = 1, widest;
    tensor->rank = (int)rank;
    tensor->count = 1;
    for (size_t i = 0; i < rank; i++) {
        const json_t *value = json_array_get(shape, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return fail_tensor(file, tensor->name, "shape: expected integers of at least 0", error);
        tensor->shape[i] = json_integer_value(value);
        if (tensor->shape[i] > 0 && __builtin_mul_overflow(product, tensor->shape[i], &product))
            return fail_tensor(file, tensor->name, "shape: the number of elements overflows", error);
        if (tensor->shape[i] == 0) tensor->count = 0;
    }
    if (__builtin_mul_overflow(product, (int64_t)sizeof(double), &widest))
        return fail_tensor(file, tensor->name, "shape: the number of bytes overflows", error);
    tensor->count *= product;
    tensor->bytes = (uint64_t)tensor->count * m3_dtype_bytes(tensor->dtype);
    return M3_OK;
}

static int parse_offsets(struct m3_tensor *tensor, const struct m3_safetensors *file, const json_t *offsets,
                         struct m3_error *error)
{
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return fail_tensor(file, tensor->name, "data_offsets: expected two integers", error);

    int64_t begin = json_integer_value(first), end = json_integer_value(last);
    uint64_t data_bytes = file->size - 8 - file->json_bytes;
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: %s: data_offsets: got [%" PRId64 ",%" PRId64 "], expected them to "
                       "ascend within 0 to %" PRIu64 ", the data in the file",
                       file->path, tensor->name, begin, end, data_bytes);
    if ((uint64_t)(end - begin) != tensor->bytes)
        return m3_fail(
            error, M3_BAD_INPUT,
            "%s: %s: data_offsets: got %" PRId64 " bytes, expected %" PRIu64 " for %" PRId64 " elements of %s",
            file->path, tensor->name, end - begin, tensor->bytes, tensor->count, m3_dtype_name(tensor->dtype));
    if ((uint64_t)begin % m3_dtype_bytes(tensor->dtype) != 0)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: data_offsets: got %" PRId64 ", expected a multiple of %zu for %s",
                       file->path, tensor->name, begin, m3_dtype_bytes(tensor->dtype), m3_dtype_name(tensor->dtype));
    tensor->data = file->bytes + 8 + file->json_bytes + begin;
    return M3_OK;
}

static int parse_tensor(struct m3_tensor *tensor, const struct m3_safetensors *file, const char *name,
                        const json_t *entry, struct m3_error *error)
{
    *tensor = (struct m3_tensor){ .name = name };
    if (!json_is_object(entry)) return fail_tensor(file, name, "expected an object", error);

    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype) return fail_tensor(file, name, "dtype: expected a string", error);
    tensor->dtype = m3_dtype_named(dtype);
    if (tensor->dtype == M3_DTYPES)
        return m3_fail(error, M3_BAD_INPUT, "%s: %s: dtype: got %s, which is not supported", file->path, name, dtype);

    int status = parse_shape(tensor, file, json_object_get(entry, "shape"), error);
    return status ? status : parse_offsets(tensor, file, json_object_get(entry, "data_offsets"), error);
}

static int by_data(const void *left, const void *right)
{
    const struct m3_tensor *a = left, *b = right;
    const unsigned char *a_end = (const unsigned char *)a->data + a->bytes;
    const unsigned char *b_end = (const unsigned char *)b->data + b->bytes;
    if (a->data != b->data) return a->data < b->data ? -1 : 1;
    if (a_end != b_end) return a_end < b_end ? -1 : 1;
    return strcmp(a->name, b->name);
}

int m3_safetensors_by_name(const void *left, const void *right)
{
    const struct m3_tensor *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

/* Sorted by their data, tensors must cover the file from first byte to last without a hole or an overlap. */
static int check_cover(struct m3_safetensors *file, struct m3_error *error)
{
    const unsigned char *next = file->bytes + 8 + file->json_bytes, *end = file->bytes + file->size;
    int status = M3_OK;
    for (int64_t i = 0; i < file->count; i++) {
        struct m3_tensor *tensor = &file->tensors[i];
        const unsigned char *data = tensor->data;
        if (data != next)
            status =
                m3_fail(error, M3_BAD_INPUT, "%s: %s: data_offsets: %td bytes of %s before this tensor", file->path,
                        tensor->name, data > next ? data - next : next - data, data > next ? "hole" : "overlap");
        next = data + tensor->bytes;
        if (tensor->bytes == 0) tensor->data = NULL;
    }
    if (next != end)
        status = m3_fail(error, M3_BAD_INPUT, "%s: %td bytes after the last tensor", file->path, end - next);
    return status;
}

static int parse_tensors(struct m3_safetensors *file, struct m3_error *error)
{
    size_t entries = json_object_size(file->json);
    file->tensors = calloc(entries + 1, sizeof *file->tensors);
    file->by_name = calloc(entries + 1, sizeof *file->by_name);
    if (!file->tensors || !file->by_name)
        return m3_fail_memory(error, file->path, entries * (sizeof *file->tensors + sizeof *file->by_name));

    int status = check_metadata(file, error);
    const char *name;
    json_t *entry;
    json_object_foreach(file->json, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        int bad = parse_tensor(&file->tensors[file->count], file, name, entry, error);
        if (bad) status = bad;
        else file->count++;
    }
    if (status) return status;

    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_data);
    status = check_cover(file, error);
    for (int64_t i = 0; i < file->count; i++) file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, m3_safetensors_by_name);
    return status;
}

int m3_safetensors_open(struct m3_safetensors **file, const char *path, struct m3_error *error)
{
    return m3_safetensors_open_as(file, path, path, error);
}

int m3_safetensors_open_as(struct m3_safetensors **file, const char *path, const char *name, struct m3_error *error)
{
    *file = NULL;
    struct m3_safetensors *opened = calloc(1, sizeof *opened);
    if (opened) opened->path = strdup(name), opened->opened = strdup(path);
    if (!opened || !opened->path || !opened->opened) {
        m3_safetensors_close(opened);
        return m3_fail_memory(error, name, sizeof *opened + strlen(name));
    }
    int status = map_file(opened, path, error);
    if (!status) status = refuse_foreign(opened, error);
    if (!status) status = parse_header(opened, error);
    if (!status) status = parse_tensors(opened, error);
    if (status) m3_safetensors_close(opened);
    else *file = opened;
    return status;
}

void m3_safetensors_close(struct m3_safetensors *file)
{
    if (!file) return;
    m3_mapped_remove(&file->mapped);
    if (file->bytes) munmap((void *)file->bytes, file->size);
    m3_safetensors_free_memory(file);
    m3_safetensors_close(file->kept);
    json_decref(file->json);
    free(file->tensors);
    free(file->by_name);
    free(file->path);
    free(file->opened);
    free(file);
}

const char *m3_safetensors_path(const struct m3_safetensors *file) { return file->path; }

int64_t m3_safetensors_count(const struct m3_safetensors *file) { return file->count; }

const struct m3_tensor *m3_safetensors_at(const struct m3_safetensors *file, int64_t index)
{
    return &file->tensors[index];
}

const struct m3_tensor *m3_safetensors_find(const struct m3_safetensors *file, const char *name)
{
    const struct m3_tensor key = { .name = name }, *wanted = &key;
    struct m3_tensor **found =
        bsearch(&wanted, file->by_name, (size_t)file->count, sizeof *file->by_name, m3_safetensors_by_name);
    return found ? *found : NULL;
}

const char *m3_safetensors_metadata(const struct m3_safetensors *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->json, "__metadata__"), key));
}

const char *m3_safetensors_next_key(const struct m3_safetensors *file, const char *key)
{
    json_t *all = json_object_get(file->json, "__metadata__");
    void *at = key ? json_object_iter_next(all, json_object_iter_at(all, key)) : json_object_iter(all);
    return at ? json_object_iter_key(at) : NULL;
}

const void *m3_safetensors_header(const struct m3_safetensors *file, uint64_t *bytes)
{
    *bytes = 8 + file->json_bytes;
    return file->bytes;
}

void m3_pages_ask(const void *data, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data, end = begin + bytes;
    begin = begin / page * page;
    madvise((void *)begin, end - begin, MADV_WILLNEED);
}

/* A page at either end may belong to a neighbour that is in use. Mappings are shared, of a file or of a memory file,
 * so released pages are not lost. */
void m3_pages_release(const void *data, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data, end = begin + bytes;
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}
