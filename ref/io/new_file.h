/* Files that are written completely or not at all: a commit replaces the old file, a failure leaves it unchanged. Only
 * a file without a name, such as one in memory (/proc/self/fd/N of memfd_create), is written in place. */
#ifndef M3_IO_NEW_FILE_H
#define M3_IO_NEW_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Initialise with M3_NO_FILE: zero, with fd -1. */
struct m3_new_file {
    int fd;                     /* to write to; -1: none */
    char *path, *folder;
    char *name;                 /* of the temporary file; NULL: nameless, or there is no file */
    int in_place;               /* the file at `path` has no name that could be replaced, and is written itself */
};

#define M3_NO_FILE { .fd = -1 }

/* Is there room for a new file of so many bytes at `path`? M3_IO if the disk has less; a file system that does not say
 * is taken to have it. */
int m3_new_file_room(const char *path, uint64_t bytes, struct m3_error *error);

/* Creates a temporary file in the folder of `path`. If the system supports files without a name, it has none until
 * commit, so that a killed program leaves no file; otherwise the next program that writes `path` removes what was left
 * (io/leftover.h). M3_IO with the system's message, also if `path` is not a regular
 * file; M3_INTERNAL. *file is empty on failure. */
int m3_new_file_open(struct m3_new_file *file, const char *path, struct m3_error *error);

/* Syncs the file, renames it to `path`, syncs the folder. The file is closed, and removed if a step fails. M3_INTERNAL
 * if a failure inside jansson was recorded (io/json.h), because bytes may be missing; M3_IO if a file that is mapped
 * has changed (io/mapped.h). */
int m3_new_file_commit(struct m3_new_file *file, struct m3_error *error);

/* Closes and removes the file; does nothing if *file is empty. */
void m3_new_file_abandon(struct m3_new_file *file);

/* Opens, writes and commits in one call. */
int m3_new_file_write(const char *path, const void *bytes, size_t count, struct m3_error *error);

#endif
