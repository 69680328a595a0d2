/* A model directory: config.json, and model.safetensors or shards with model.safetensors.index.json. SPEC 3.2. */
#ifndef M3_IO_CHECKPOINT_H
#define M3_IO_CHECKPOINT_H

#include "io/safetensors.h"

struct m3_checkpoint;

/* Opens every file. An index, if there is one, decides which: other weight files are ignored. A missing config.json,
 * weight file or shard is M3_ABSENT. M3_BAD_INPUT: a weight_map that names a file outside the folder (a '/' or ".."),
 * or a tensor that is not in its file; a tensor that is missing from the index, or in another file than the index
 * says. One call reports all of them; the status is that of the first line. metadata.total_size is ignored. */
int m3_checkpoint_open(struct m3_checkpoint **checkpoint, const char *folder, struct m3_error *error);
/* The same for a part of a model: files that hold no tensor that is needed are not opened, and may be absent. They are
 * unknown to all functions below but the next three. */
typedef int m3_checkpoint_needs(void *self, const char *tensor);
int m3_checkpoint_open_part(struct m3_checkpoint **checkpoint, const char *folder, m3_checkpoint_needs *needs,
                            void *self, struct m3_error *error);
/* Calls `visit` for each weight file, in byte order of names, without opening it; bytes -1: absent. needs NULL: all are
 * needed. M3_IO if it cannot be known whether a file is there. */
int m3_checkpoint_list(const char *folder, m3_checkpoint_needs *needs, void *self,
                       void (*visit)(void *to, const char *name, int is_needed, int64_t bytes), void *to,
                       struct m3_error *error);
void m3_checkpoint_close(struct m3_checkpoint *checkpoint);                    /* NULL is fine */

const char *m3_checkpoint_config_path(const struct m3_checkpoint *checkpoint);
/* The weight files, in byte order of names. */
int64_t m3_checkpoint_files(const struct m3_checkpoint *checkpoint);
const char *m3_checkpoint_path(const struct m3_checkpoint *checkpoint, int64_t index);
int64_t m3_checkpoint_count(const struct m3_checkpoint *checkpoint);
/* All tensors of all files, file by file in byte order of names; *path, if path is not NULL, becomes the tensor's
 * file. */
const struct m3_tensor *m3_checkpoint_at(const struct m3_checkpoint *checkpoint, int64_t index, const char **path);
const struct m3_tensor *m3_checkpoint_find(const struct m3_checkpoint *checkpoint, const char *name, const char **path);
/* Sum of the sizes of the weight files, in bytes. */
uint64_t m3_checkpoint_bytes(const struct m3_checkpoint *checkpoint);

/* The number of files that were not opened, and their base names. */
int64_t m3_checkpoint_skipped(const struct m3_checkpoint *checkpoint);
const char *m3_checkpoint_skipped_name(const struct m3_checkpoint *checkpoint, int64_t index);
/* Does a file hold this tensor, or the index say that one does? */
int m3_checkpoint_names(const struct m3_checkpoint *checkpoint, const char *tensor);

/* Notes the files of a release in a folder, present or not, as read (io/reading.h); opening the folder does so too.
 * M3_IO, M3_INTERNAL. */
int m3_checkpoint_reads(const char *folder, struct m3_error *error);

/* Hashes config.json alone. M3_IO, M3_INTERNAL. */
int m3_checkpoint_config_sha256(const struct m3_checkpoint *checkpoint, char hex[65], struct m3_error *error);
/* Empty if a file that was not opened cannot be read: then the hash of the model is not known. Otherwise the SHA-256
 * over the bytes of config.json, then for each weight file in byte order of names: base name, a zero byte, the
 * 8 length bytes and the header. */
int m3_checkpoint_sha256(const struct m3_checkpoint *checkpoint, char hex[65], struct m3_error *error);

/* The fingerprint of the weight files' bytes (io/fingerprint.h), made at the first call. Owned by the checkpoint. Not
 * to be called by several threads at once. */
int m3_checkpoint_weights_sha256(struct m3_checkpoint *checkpoint, const char **text, struct m3_error *error);

#endif
