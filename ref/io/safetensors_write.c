#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* O_TMPFILE */
#endif
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/gzip.h"

struct declared {
    uint64_t bytes, begin;          /* begin: in the data, known after begin */
    size_t width;
    json_t *entry;                  /* borrowed from header */
};

struct m3_writer {
    char *path, *folder;
    char *plain;                    /* name of the temporary file; NULL: it has none, or there is no file */
    int fd;                         /* of the temporary file; -1: none */
    json_t *header, *metadata;      /* metadata is borrowed from header; NULL: none */
    struct declared *tensors;       /* in the order of declaration */
    size_t count, current;          /* current: the tensor that is being written */
    uint64_t current_bytes;         /* of it, written so far */
    uint64_t data_begin, data_bytes;
    int begun;
    int failed;                     /* status of the first failure */
};

/* Remembers that the writer is of no more use. */
static int broken(struct m3_writer *writer, int status)
{
    if (status && !writer->failed) writer->failed = status;
    return status;
}

static int fail_system(const struct m3_writer *writer, const char *what, struct m3_error *error)
{
    return m3_fail(error, M3_IO, "%s: %s: %s", writer->path, what, strerror(errno));
}

/* Gives the temporary file a name that no other process takes: a new one if *fd < 0, else the nameless one there. */
static int name_temporary(int *fd, char **name, const struct m3_writer *writer, struct m3_error *error)
{
    size_t room = strlen(writer->folder) + 64;
    char open_file[64];
    int named = 0;
    *name = malloc(room);
    if (!*name) return m3_fail_memory(error, writer->path, room);
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", *fd);
    for (int attempt = 0; !named; attempt++) {
        snprintf(*name, room, "%s/.m3ref.%ld.%d.tmp", writer->folder, (long)getpid(), attempt);
        if (*fd >= 0) named = linkat(AT_FDCWD, open_file, AT_FDCWD, *name, AT_SYMLINK_FOLLOW) == 0;
        else named = (*fd = open(*name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) >= 0;
        if (!named && errno != EEXIST) {
            int status = fail_system(writer, "cannot create a temporary file beside it", error);
            free(*name);
            *name = NULL;
            return status;
        }
    }
    return M3_OK;
}

/* Creates a file in the folder of the target. Where the system has files without a name it is one of them until it is
 * whole: a run that is killed leaves nothing behind. */
static int make_temporary(int *fd, char **name, const struct m3_writer *writer, struct m3_error *error)
{
    *name = NULL;
    *fd = access("/proc/self/fd", X_OK) == 0 ? open(writer->folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0666) : -1;
    return *fd >= 0 ? M3_OK : name_temporary(fd, name, writer, error);
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

int m3_writer_new(struct m3_writer **writer, const char *path, struct m3_error *error)
{
    *writer = NULL;
    struct m3_writer *made = calloc(1, sizeof *made);
    if (!made) return m3_fail_memory(error, path, sizeof *made);
    made->fd = -1;
    made->path = strdup(path);
    made->folder = folder_of(path);
    made->header = json_object();

    struct stat info;
    int status;
    if (!made->path || !made->folder || !made->header) status = m3_fail_memory(error, path, strlen(path));
    else if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        status = m3_fail(error, M3_IO, "%s: not a regular file: it cannot be replaced", path);
    else status = make_temporary(&made->fd, &made->plain, made, error);

    if (status) m3_writer_abandon(made);
    else *writer = made;
    return status;
}

int m3_writer_tensor(struct m3_writer *writer, const char *name, enum m3_dtype dtype, int rank, const int64_t *shape,
                     struct m3_error *error)
{
    if (writer->begun || rank < 0 || rank > M3_MAX_RANK || json_object_get(writer->header, name)
        || strcmp(name, "__metadata__") == 0)
        return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %s: declared twice, too late or with rank %d",
                                      writer->path, name, rank));
    uint64_t bytes = m3_dtype_bytes(dtype);
    json_t *dims = json_array();
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape[i], &bytes) || bytes > INT64_MAX) {
            json_decref(dims);
            return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %s: size overflows", writer->path, name));
        }
        json_array_append_new(dims, json_integer(shape[i]));
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
        return broken(writer, m3_fail(error, M3_INTERNAL, "%s: __metadata__: %s: no memory, or not UTF-8",
                                      writer->path, key));
    return M3_OK;
}

/* Gives each tensor its place: the widest dtypes first. */
static int place_tensors(struct m3_writer *writer, struct m3_error *error)
{
    for (size_t width = 8; width > 0; width /= 2) {
        for (size_t i = 0; i < writer->count; i++) {
            struct declared *tensor = &writer->tensors[i];
            if (tensor->width != width) continue;
            tensor->begin = writer->data_bytes;
            if (__builtin_add_overflow(writer->data_bytes, tensor->bytes, &writer->data_bytes)
                || writer->data_bytes > INT64_MAX / 2)
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
    if (status) return broken(writer, status);

    char *text = json_dumps(writer->header, JSON_COMPACT);
    if (!text) return broken(writer, m3_fail_memory(error, writer->path, writer->count));
    uint64_t length = strlen(text), padded = (length + 7) / 8 * 8;
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)(padded >> 8 * i);

    status = m3_write_all(writer->fd, prefix, 8, writer->path, error);
    if (!status) status = m3_write_all(writer->fd, text, length, writer->path, error);
    if (!status) status = m3_write_all(writer->fd, "       ", padded - length, writer->path, error);
    free(text);
    writer->data_begin = 8 + padded;
    writer->begun = 1;
    return broken(writer, status);
}

int m3_writer_write(struct m3_writer *writer, const void *bytes, uint64_t count, struct m3_error *error)
{
    const unsigned char *from = bytes;
    if (!writer->begun || writer->failed)
        return broken(writer, m3_fail(error, M3_INTERNAL, "%s: written before begin, or after a failure",
                                      writer->path));
    while (count > 0) {
        while (writer->current < writer->count && writer->current_bytes == writer->tensors[writer->current].bytes) {
            writer->current++;
            writer->current_bytes = 0;
        }
        if (writer->current == writer->count)
            return broken(writer, m3_fail(error, M3_INTERNAL, "%s: %" PRIu64 " bytes more than were declared",
                                          writer->path, count));
        const struct declared *tensor = &writer->tensors[writer->current];
        uint64_t left = tensor->bytes - writer->current_bytes, piece = count < left ? count : left;
        off_t place = (off_t)(writer->data_begin + tensor->begin);
        if (writer->current_bytes == 0 && lseek(writer->fd, place, SEEK_SET) < 0)
            return broken(writer, fail_system(writer, "cannot seek", error));
        int status = m3_write_all(writer->fd, from, piece, writer->path, error);
        if (status) return broken(writer, status);
        writer->current_bytes += piece;
        from += piece;
        count -= piece;
    }
    return M3_OK;
}

static uint64_t missing_bytes(const struct m3_writer *writer)
{
    uint64_t missing = 0;
    for (size_t i = writer->current; i < writer->count; i++) missing += writer->tensors[i].bytes;
    return missing - writer->current_bytes;
}

/* Replaces the temporary file by its gzipped form. */
static int pack(struct m3_writer *writer, struct m3_error *error)
{
    int fd;
    char *name;
    int status = make_temporary(&fd, &name, writer, error);
    if (status) return status;
    status = m3_gzip(fd, writer->fd, writer->path, error);
    close(writer->fd);
    if (writer->plain) unlink(writer->plain);
    free(writer->plain);
    writer->fd = fd;
    writer->plain = name;
    return status;
}

/* So that the new name survives a crash too. Some file systems cannot sync a folder: EINVAL. */
static int sync_folder(const struct m3_writer *writer, struct m3_error *error)
{
    int fd = open(writer->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_system(writer, "written, but its folder cannot be opened to sync it", error);
    int status = M3_OK;
    if (fsync(fd) != 0 && errno != EINVAL) status = fail_system(writer, "written, but its folder is not synced", error);
    close(fd);
    return status;
}

static int finish(struct m3_writer *writer, struct m3_error *error)
{
    if (writer->failed) return m3_fail(error, writer->failed, "%s: not written", writer->path);
    if (!writer->begun) return m3_fail(error, M3_INTERNAL, "%s: not written: commit before begin", writer->path);
    if (missing_bytes(writer) > 0)
        return m3_fail(error, M3_INTERNAL, "%s: not written: %" PRIu64 " bytes fewer than were declared", writer->path,
                       missing_bytes(writer));
    int status = m3_is_gzip_name(writer->path) ? pack(writer, error) : M3_OK;
    if (status) return status;
    if (fsync(writer->fd) != 0) return fail_system(writer, "cannot sync", error);
    if (!writer->plain) status = name_temporary(&writer->fd, &writer->plain, writer, error);
    if (status) return status;
    int failed = close(writer->fd);
    writer->fd = -1;
    if (failed) return fail_system(writer, "cannot close", error);
    if (rename(writer->plain, writer->path) != 0) return fail_system(writer, "cannot rename to it", error);
    free(writer->plain);
    writer->plain = NULL;
    return sync_folder(writer, error);
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
    if (writer->fd >= 0) close(writer->fd);
    if (writer->plain) unlink(writer->plain);
    json_decref(writer->header);
    free(writer->tensors);
    free(writer->plain);
    free(writer->folder);
    free(writer->path);
    free(writer);
}
