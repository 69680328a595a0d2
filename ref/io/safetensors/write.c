#include "io/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/gzip.h"
#include "io/json.h"
#include "io/new_file.h"
#include "io/reading.h"
#include "io/safetensors/seal.h"

struct declared {
    uint64_t bytes, begin;          /* begin: offset in the data, known after begin */
    uint64_t written;
    size_t width;
    json_t *entry;                  /* borrowed from header */
    struct m3_sha256 *hash;         /* of what is written, for the seal; or NULL */
};

struct m3_writer {
    struct m3_new_file file;
    const char *path;               /* of the temporary file */
    json_t *header, *metadata;      /* metadata is borrowed from header; NULL: none */
    struct declared *tensors;       /* in the order of declaration */
    size_t count, current;          /* current: the first tensor that `write` may still write */
    uint64_t data_begin, data_bytes;
    char *sealed;                   /* the text of the header, for the seal; NULL: none */
    int is_sealed, begun;
    int failed;                     /* status of the first failure */
    struct m3_writer_watch watch;   /* written NULL: none */
};

/* Marks the writer as unusable. */
static int broken(struct m3_writer *writer, int status)
{
    if (status && !writer->failed) writer->failed = status;
    return status;
}

int m3_writer_new(struct m3_writer **writer, const char *path, struct m3_error *error)
{
    *writer = NULL;
    struct m3_writer *made = calloc(1, sizeof *made);
    if (!made) return m3_fail_memory(error, path, sizeof *made);
    made->header = json_object();
    int status = m3_new_file_open(&made->file, path, error);
    if (!status && !made->header) status = m3_fail_memory(error, path, sizeof *made->header);
    made->path = made->file.path;
    if (status) m3_writer_abandon(made);
    else *writer = made;
    return status;
}

int m3_writer_tensor(struct m3_writer *writer, const char *name, enum m3_dtype dtype, int rank, const int64_t *shape,
                     struct m3_error *error)
{
    if (writer->begun || rank < 0 || rank > M3_MAX_RANK || json_object_get(writer->header, name) ||
        strcmp(name, "__metadata__") == 0)
        return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %s: declared twice, too late or with rank %d",
                                      writer->path, name, rank));
    uint64_t bytes = m3_dtype_bytes(dtype);
    json_t *dims = json_array();
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes) || bytes > INT64_MAX) {
            json_decref(dims);
            return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %s: size overflows", writer->path, name));
        }
        m3_json_append(dims, json_integer(shape[i]));
    }

    json_t *entry = json_pack("{s:s, s:o}", "dtype", m3_dtype_name(dtype), "shape", dims);
    struct declared *tensors = realloc(writer->tensors, (writer->count + 1) * sizeof *tensors);
    if (tensors) writer->tensors = tensors;
    if (!tensors || !entry || json_array_size(dims) != (size_t)rank) {
        json_decref(entry);
        return broken(writer, m3_fail_memory(error, writer->path, (writer->count + 1) * sizeof *tensors));
    }
    if (json_object_set_new(writer->header, name, entry) != 0)
        return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %s: no memory, or not UTF-8", writer->path, name));
    tensors[writer->count++] = (struct declared){ .bytes = bytes, .width = m3_dtype_bytes(dtype), .entry = entry };
    return M3_OK;
}

int m3_writer_metadata(struct m3_writer *writer, const char *key, const char *value, struct m3_error *error)
{
    if (writer->begun) return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %s: too late", writer->path, key));
    if (!writer->metadata) {
        json_t *metadata = json_object();
        if (json_object_set_new(writer->header, "__metadata__", metadata) != 0)
            return broken(writer, m3_fail_memory(error, writer->path, sizeof metadata));
        writer->metadata = metadata;
    }
    if (json_object_set_new(writer->metadata, key, json_string(value)) != 0)
        return broken(writer,
                      m3_fail(error, M3_INTERNAL, "%s: __metadata__: %s: no memory, or not UTF-8", writer->path, key));
    return M3_OK;
}

int m3_writer_seal(struct m3_writer *writer, struct m3_error *error)
{
    static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
    writer->is_sealed = 1;
    return m3_writer_metadata(writer, M3_SEAL_KEY, zeros, error);
}

static int begin_hashes(struct m3_writer *writer, struct m3_error *error)
{
    for (size_t i = 0; writer->is_sealed && i < writer->count; i++)
        if (writer->tensors[i].bytes && !(writer->tensors[i].hash = m3_sha256_new()))
            return m3_fail_memory(error, writer->path, writer->count);
    return M3_OK;
}

/* Assigns each tensor its offset: the widest dtypes first. */
static int place_tensors(struct m3_writer *writer, struct m3_error *error)
{
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < writer->count; i++) {
            struct declared *tensor = &writer->tensors[i];
            if (tensor->width != width) continue;
            tensor->begin = writer->data_bytes;
            if (__builtin_add_overflow(writer->data_bytes, tensor->bytes, &writer->data_bytes) ||
                writer->data_bytes > INT64_MAX / 2)
                return m3_fail(error, M3_INTERNAL, "%s: the size of the file overflows", writer->path);
            json_t *offsets = json_pack("[I, I]", (json_int_t)tensor->begin, (json_int_t)writer->data_bytes);
            if (json_object_set_new(tensor->entry, "data_offsets", offsets) != 0)
                return m3_fail_memory(error, writer->path, sizeof *offsets);
        }
    }
    return M3_OK;
}

int m3_writer_begin(struct m3_writer *writer, struct m3_error *error)
{
    if (writer->begun || writer->failed)
        return broken(writer, m3_fail(error, M3_INTERNAL, "%s: begun twice, or after a failure", writer->path));
    int status = place_tensors(writer, error);
    if (!status) status = begin_hashes(writer, error);
    if (status) return broken(writer, status);
    m3_reading_announce(writer->path, writer->data_bytes);

    char *text = m3_json_dump(writer->header, JSON_COMPACT);
    if (!text || m3_json_failed()) {
        free(text);
        return broken(writer, m3_fail_memory(error, writer->path, writer->count));
    }
    uint64_t length = strlen(text), padded = (length + 7) / 8 * 8;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)(padded >> 8 * i);

    status = m3_write_all(writer->file.fd, prefix, 8, writer->path, error);
    if (!status) status = m3_write_all(writer->file.fd, text, length, writer->path, error);
    if (!status) status = m3_write_all(writer->file.fd, "       ", padded - length, writer->path, error);
    if (writer->is_sealed) writer->sealed = text;
    else free(text);
    writer->data_begin = 8 + padded;
    writer->begun = 1;
    return broken(writer, status);
}

int64_t m3_writer_declared(const struct m3_writer *writer) { return (int64_t)writer->count; }

/* Refuses a write before begin or after a failure. */
static int may_write(struct m3_writer *writer, struct m3_error *error)
{
    if (writer->begun && !writer->failed) return M3_OK;
    return broken(writer, m3_fail(error, M3_INTERNAL, "%s: written before begin, or after a failure", writer->path));
}

int m3_writer_append(struct m3_writer *writer, int64_t index, const void *bytes, uint64_t count, struct m3_error *error)
{
    int status = may_write(writer, error);
    if (status) return status;
    struct declared *tensor = index >= 0 && (size_t)index < writer->count ? &writer->tensors[index] : NULL;
    if (!tensor || count > tensor->bytes - tensor->written)
        return broken(writer, m3_fail(error, M3_INTERNAL, "%s: tensor %" PRId64 ": more bytes than were declared",
                                      writer->path, index));
    off_t place = (off_t)(writer->data_begin + tensor->begin + tensor->written);
    if (lseek(writer->file.fd, place, SEEK_SET) < 0)
        return broken(writer, m3_fail(error, M3_IO, "%s: cannot seek: %s", writer->path, strerror(errno)));
    tensor->written += count;
    if (tensor->hash) m3_sha256_add(tensor->hash, bytes, count);
    status = m3_write_all(writer->file.fd, bytes, count, writer->path, error);
    if (!status && writer->watch.written)
        status = writer->watch.written(writer->watch.self, index, bytes, count, error);
    return broken(writer, status);
}

uint64_t m3_writer_left(const struct m3_writer *writer, int64_t index)
{
    if (index < 0 || (size_t)index >= writer->count) return 0;
    return writer->tensors[index].bytes - writer->tensors[index].written;
}

void m3_writer_watch(struct m3_writer *writer, const struct m3_writer_watch *watch) { writer->watch = *watch; }

int m3_writer_write(struct m3_writer *writer, const void *bytes, uint64_t count, struct m3_error *error)
{
    const unsigned char *from = bytes;
    int status = may_write(writer, error);
    while (!status && count > 0) {
        while (writer->current < writer->count &&
               writer->tensors[writer->current].written == writer->tensors[writer->current].bytes)
            writer->current++;
        if (writer->current == writer->count)
            return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %" PRIu64 " bytes more than were declared",
                                          writer->path, count));
        const struct declared *tensor = &writer->tensors[writer->current];
        uint64_t left = tensor->bytes - tensor->written, piece = count < left ? count : left;
        status = m3_writer_append(writer, (int64_t)writer->current, from, piece, error);
        from += piece;
        count -= piece;
    }
    return status;
}

static uint64_t missing_bytes(const struct m3_writer *writer)
{
    uint64_t missing = 0;
    for (size_t i = 0; i < writer->count; i++) missing += writer->tensors[i].bytes - writer->tensors[i].written;
    return missing;
}

/* Replaces the temporary file by its gzipped form. */
static int pack(struct m3_writer *writer, struct m3_error *error)
{
    struct m3_new_file packed;
    int status = m3_new_file_open(&packed, writer->path, error);
    if (status) return status;
    status = m3_gzip(packed.fd, writer->file.fd, writer->path, error);
    m3_new_file_abandon(&writer->file);
    writer->file = packed;
    writer->path = packed.path;
    return status;
}

static int by_begin(const void *a, const void *b)
{
    const uint64_t x = ((const struct declared *)a)->begin, y = ((const struct declared *)b)->begin;
    return (x > y) - (x < y);
}

/* Puts the seal into the header. The tensors are needed no longer, and are sorted as they lie in the file. */
static int put_seal(struct m3_writer *writer, struct m3_error *error)
{
    const uint64_t padded = writer->data_begin - 8;
    unsigned char prefix[8];
    char hex[65], *text = malloc(padded);
    if (!text) return m3_fail_memory(error, writer->path, padded);
    memset(text, ' ', padded);
    memcpy(text, writer->sealed, strlen(writer->sealed));
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)(padded >> 8 * i);
    const char *place = m3_seal_find(text, padded);
    struct m3_sha256 *seal = place ? m3_seal_begin(prefix, text, padded, place) : NULL;
    int status = seal ? M3_OK : m3_fail_memory(error, writer->path, padded);
    if (writer->count > 0) qsort(writer->tensors, writer->count, sizeof *writer->tensors, by_begin);
    for (size_t i = 0; !status && i < writer->count; i++) {
        struct declared *tensor = &writer->tensors[i];
        if (!tensor->hash) continue;
        if (m3_sha256_end(tensor->hash, hex)) status = m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", writer->path);
        tensor->hash = NULL;
        m3_seal_add(seal, tensor->begin, hex);
    }
    if (seal && m3_sha256_end(seal, hex) && !status)
        status = m3_fail(error, M3_INTERNAL, "%s: SHA-256 failed", writer->path);
    if (!status && pwrite(writer->file.fd, hex, M3_SEAL_LENGTH, 8 + (place - text)) != M3_SEAL_LENGTH)
        status = m3_fail(error, M3_IO, "%s: cannot write: %s", writer->path, strerror(errno));
    free(text);
    return status;
}

static int finish(struct m3_writer *writer, struct m3_error *error)
{
    if (writer->failed) return m3_fail(error, writer->failed, "%s: not written", writer->path);
    if (!writer->begun) return m3_fail(error, M3_INTERNAL, "%s: not written: commit before begin", writer->path);
    if (missing_bytes(writer) > 0)
        return m3_fail(error, M3_INTERNAL, "%s: not written: %" PRIu64 " bytes fewer than were declared", writer->path,
                       missing_bytes(writer));
    int status = writer->is_sealed ? put_seal(writer, error) : M3_OK;
    if (!status && m3_is_gzip_name(writer->path)) status = pack(writer, error);
    if (status) return status;
    return m3_new_file_commit(&writer->file, error);
}

int m3_writer_commit(struct m3_writer *writer, struct m3_error *error)
{
    int status = finish(writer, error);
    m3_writer_abandon(writer);
    return status;
}

void m3_writer_abandon(struct m3_writer *writer)
{
    if (!writer) return;
    m3_new_file_abandon(&writer->file);
    json_decref(writer->header);
    for (size_t i = 0; i < writer->count; i++) free(writer->tensors[i].hash);
    free(writer->sealed);
    free(writer->tensors);
    free(writer);
}
