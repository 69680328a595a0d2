/* safetensors files: a memory-mapped reader and an atomic, streaming writer. For both, a path that ends in ".gz" is
 * the same file in a gzip container. Format: SPEC 3.1.
 *
 * The reader is as strict as the format: it checks header length, JSON and dtypes, and refuses offsets that overlap,
 * leave a hole, or do not fit their shape or the file. It also refuses duplicate names, and data_offsets that are not
 * a multiple of the dtype's size. Absolute addresses may still be unaligned (the header may have any length): use
 * m3_decode or memcpy, not a cast. If another program shortens or overwrites the file while it is open:
 * io/mapped.h. */
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

/* Opens a file. M3_ABSENT if there is no such file, M3_BAD_INPUT, M3_IO, M3_INTERNAL. *file is NULL on failure. */
int m3_safetensors_open(struct m3_safetensors **file, const char *path, struct m3_error *error);
/* Opens the file at `path` under another name for messages and for m3_safetensors_path. */
int m3_safetensors_open_as(struct m3_safetensors **file, const char *path, const char *name, struct m3_error *error);
void m3_safetensors_close(struct m3_safetensors *file);                        /* NULL is fine */

const char *m3_safetensors_path(const struct m3_safetensors *file);
int64_t m3_safetensors_count(const struct m3_safetensors *file);
/* The tensors, in the order of their data. */
const struct m3_tensor *m3_safetensors_at(const struct m3_safetensors *file, int64_t index);
const struct m3_tensor *m3_safetensors_find(const struct m3_safetensors *file, const char *name);   /* NULL: none */
const char *m3_safetensors_metadata(const struct m3_safetensors *file, const char *key);            /* NULL: none */
/* The key of a metadata string after `key`; NULL: the first; NULL at the end. */
const char *m3_safetensors_next_key(const struct m3_safetensors *file, const char *key);
/* The header as stored, for hashing: 8 length bytes, then the JSON text. */
const void *m3_safetensors_header(const struct m3_safetensors *file, uint64_t *bytes);

/* The seal that the file states (m3_writer_seal); NULL: none. */
const char *m3_safetensors_seal(const struct m3_safetensors *file);
/* M3_BAD_INPUT unless the file has a seal (m3_writer_seal) and holds the header and the data that were sealed. Reads the
 * whole file. */
int m3_safetensors_check_seal(const struct m3_safetensors *file, struct m3_error *error);

/* A file in memory: its tensors lie in other open files, which must stay open longer, or in memory of its own. `path`
 * is its name in messages. Every call may fail with M3_INTERNAL; close it in any case. It can be used when it is
 * complete; a name that was added twice is then an error. */
int m3_safetensors_make(struct m3_safetensors **file, const char *path, struct m3_error *error);
int m3_safetensors_add(struct m3_safetensors *file, const char *name, enum m3_dtype dtype, int rank,
                       const int64_t *shape, const void *data, struct m3_error *error);
void *m3_safetensors_memory(struct m3_safetensors *file, uint64_t bytes, struct m3_error *error);      /* zeros */
int m3_safetensors_state(struct m3_safetensors *file, const char *key, const char *value, struct m3_error *error);
int m3_safetensors_complete(struct m3_safetensors *file, struct m3_error *error);
/* Closes `other`, in which tensors of the file lie, with it. */
void m3_safetensors_keep(struct m3_safetensors *file, struct m3_safetensors *other);

/* Tell the system that these bytes of an open file are needed soon, or not at present; they can always be read again,
 * also those of a ".gz". Only whole pages are released. These are hints and never fail. */
void m3_pages_ask(const void *data, uint64_t bytes);
void m3_pages_release(const void *data, uint64_t bytes);

/* Writer. Declare every tensor and metadata string, begin, then supply the bytes in pieces of any size, either of the
 * tensors in the order of declaration (write) or of a tensor by its number (append), and commit. In the file wide
 * dtypes come before narrow ones, so that every tensor is aligned; within one width the order is that of declaration.
 * Before commit the named file is untouched: data goes to a temporary file in the same folder (a ".gz" needs a second
 * one), which is synced and renamed, or removed. If the system supports files without a name, it has none until
 * commit, so that a killed program leaves no file.
 * Errors: M3_IO with the system's message; M3_INTERNAL for memory and for calls that break these rules, such as a name
 * declared twice. After a failure only commit (which fails too) and abandon make sense. */
struct m3_writer;

int m3_writer_new(struct m3_writer **writer, const char *path, struct m3_error *error);
int m3_writer_tensor(struct m3_writer *writer, const char *name, enum m3_dtype dtype, int rank, const int64_t *shape,
                     struct m3_error *error);
int m3_writer_metadata(struct m3_writer *writer, const char *key, const char *value, struct m3_error *error);
/* Seals the file, before begin: "seal_sha256" in its metadata will be a hash of the header and of all data, so that a
 * file that is kept and used again cannot change unnoticed. */
int m3_writer_seal(struct m3_writer *writer, struct m3_error *error);
int64_t m3_writer_declared(const struct m3_writer *writer);                    /* number of tensors so far */
int m3_writer_begin(struct m3_writer *writer, struct m3_error *error);
int m3_writer_write(struct m3_writer *writer, const void *bytes, uint64_t count, struct m3_error *error);
/* Writes the next bytes of tensor number `index` of those declared, from 0: for tensors that are computed in
 * parallel. */
int m3_writer_append(struct m3_writer *writer, int64_t index, const void *bytes, uint64_t count,
                     struct m3_error *error);
/* The bytes of tensor number `index` that are not written yet; 0 if there is no such tensor. */
uint64_t m3_writer_left(const struct m3_writer *writer, int64_t index);
/* Sees the bytes that are written from now on, after they are. It fails as a write does. */
struct m3_writer_watch {
    void *self;
    int (*written)(void *self, int64_t index, const void *bytes, uint64_t count, struct m3_error *error);
};
void m3_writer_watch(struct m3_writer *writer, const struct m3_writer_watch *watch);
/* Fails with M3_INTERNAL unless exactly the declared bytes were written. Frees the writer, also on failure. */
int m3_writer_commit(struct m3_writer *writer, struct m3_error *error);
void m3_writer_abandon(struct m3_writer *writer);                              /* NULL is fine */

#endif
