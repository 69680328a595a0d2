/* A file that is written whole or not at all: it takes the place of another one, or none is touched. */
#ifndef M3_IO_NEW_FILE_H
#define M3_IO_NEW_FILE_H

#include <stddef.h>

#include "base/status.h"

/* Zero-initialise, with fd -1: M3_NO_FILE. */
struct m3_new_file {
    int fd;                     /* to write to; -1: none */
    char *path, *folder;
    char *name;                 /* of the temporary file; NULL: it has none, or there is no file */
};

#define M3_NO_FILE { .fd = -1 }

/* A temporary file in the folder of `path`. Where the system has files without a name it is one until commit, so that
 * a killed program leaves nothing behind. M3_IO with the system's words, also if `path` is no regular file;
 * M3_INTERNAL. *file is empty on failure. */
int m3_new_file_open(struct m3_new_file *file, const char *path, struct m3_error *error);

/* Syncs, renames to `path`, syncs the folder. The file is closed, and gone if that fails. M3_INTERNAL if a failure
 * inside jansson was noted (io/json.h), for bytes may be missing. */
int m3_new_file_commit(struct m3_new_file *file, struct m3_error *error);

/* Closes and removes it. One that is empty is fine. */
void m3_new_file_abandon(struct m3_new_file *file);

/* All in one: open, write, commit. */
int m3_new_file_write(const char *path, const void *bytes, size_t count, struct m3_error *error);

#endif
