/* safetensors files: a mapped reader and an atomic, streaming writer. A path that ends in ".gz" is the same file in a
 * gzip container, for both. Format: SPEC 3.1.
 *
 * The reader is strict where the format is: header length, JSON, dtypes, offsets that overlap, leave a hole, do not
 * fit their shape or the file. It also refuses duplicate names, and data_offsets that are no multiple of the dtype's
 * size. Absolute addresses may still be unaligned (the header's length is free): use m3_decode or memcpy, not a cast.
 * The file is mapped: one that another program cuts short while it is open ends in SIGBUS. */
#ifndef M3_IO_SAFETENSORS_H
#define M3_IO_SAFETENSORS_H

#include <stdint.h>

#include "base/status.h"
#include "base/weight.h"

enum { M3_MAX_RANK = 8 };

struct m3_tensor {
    const char *name;
    enum m3_dtype dtype;
    int rank;
    int64_t shape[M3_MAX_RANK];
    int64_t count;              /* product of shape; 1 for a scalar */
    const void *data;           /* in the mapping, any alignment; NULL if count is 0 */
    uint64_t bytes;
};

struct m3_safetensors;

/* M3_ABSENT if there is no such file, M3_BAD_INPUT, M3_IO, M3_INTERNAL. *file is NULL on failure. */
int m3_safetensors_open(struct m3_safetensors **file, const char *path, struct m3_error *error);
/* The file at `path`, under another name in messages and for m3_safetensors_path. */
int m3_safetensors_open_as(struct m3_safetensors **file, const char *path, const char *name, struct m3_error *error);
void m3_safetensors_close(struct m3_safetensors *file);                        /* NULL is fine */

const char *m3_safetensors_path(const struct m3_safetensors *file);
int64_t m3_safetensors_count(const struct m3_safetensors *file);
/* In the order of their data. */
const struct m3_tensor *m3_safetensors_at(const struct m3_safetensors *file, int64_t index);
const struct m3_tensor *m3_safetensors_find(const struct m3_safetensors *file, const char *name);   /* NULL: none */
const char *m3_safetensors_metadata(const struct m3_safetensors *file, const char *key);            /* NULL: none */
/* The header as stored, for hashing: 8 length bytes, then the JSON text. */
const void *m3_safetensors_header(const struct m3_safetensors *file, uint64_t *bytes);

/* Tells the system that these bytes of an open file are needed soon, or not for now: they can always be read again,
 * also those of a ".gz". Only whole pages are given back. Hints; never fail. */
void m3_pages_ask(const void *data, uint64_t bytes);
void m3_pages_release(const void *data, uint64_t bytes);

/* Writer. Declare every tensor and metadata string, begin, then give the bytes of the tensors in the order declared
 * (write), or of each by its number (append), in pieces of any size, and commit. In the file wide dtypes come before
 * narrow ones, so that every tensor is aligned; within one width the order is that of declaration. Before commit the
 * named file is untouched: data goes to a temporary file beside it (a ".gz" needs a second one), which is synced and
 * renamed, or removed. Where the system has files without a name it is one until commit, so that a killed program
 * leaves nothing behind.
 * Errors: M3_IO with the system's words; M3_INTERNAL for memory and for calls that break the rules here, such as a
 * name declared twice. After a failure only commit (it fails too) or abandon make sense. */
struct m3_writer;

int m3_writer_new(struct m3_writer **writer, const char *path, struct m3_error *error);
int m3_writer_tensor(struct m3_writer *writer, const char *name, enum m3_dtype dtype, int rank, const int64_t *shape,
                     struct m3_error *error);
int m3_writer_metadata(struct m3_writer *writer, const char *key, const char *value, struct m3_error *error);
int64_t m3_writer_declared(const struct m3_writer *writer);                    /* how many tensors so far */
int m3_writer_begin(struct m3_writer *writer, struct m3_error *error);
int m3_writer_write(struct m3_writer *writer, const void *bytes, uint64_t count, struct m3_error *error);
/* The next bytes of the tensor that was declared as number `index`, from 0: for tensors that are made side by side. */
int m3_writer_append(struct m3_writer *writer, int64_t index, const void *bytes, uint64_t count,
                     struct m3_error *error);
/* Fails with M3_INTERNAL unless exactly the declared bytes were written. Frees the writer, also on failure. */
int m3_writer_commit(struct m3_writer *writer, struct m3_error *error);
void m3_writer_abandon(struct m3_writer *writer);                              /* NULL is fine */

#endif
