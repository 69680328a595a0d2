/* Opening files for reading, and reading small ones: regular files only. A FIFO or a device may never end, and a reader
 * would wait for ever. Looking at paths and folders: that something cannot be looked at does not mean that it is not
 * there. */
#ifndef M3_IO_OPEN_H
#define M3_IO_OPEN_H

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/status.h"

/* Opens `path` for reading as *fd; -1 on failure. M3_ABSENT if there is no such file, M3_BAD_INPUT if it is not
 * regular, M3_IO. */
int m3_open_file(int *fd, const char *path, struct m3_error *error);
/* The same as a stream; NULL on failure. */
int m3_open_stream(FILE **file, const char *path, struct m3_error *error);
/* Reads the whole file into *bytes, with a NUL at its end; the caller frees them. NULL on failure. M3_BAD_INPUT if the
 * file is longer than `most`. */
int m3_read_file(char **bytes, size_t *count, const char *path, size_t most, struct m3_error *error);

/* The status of a failed call: M3_INTERNAL if memory was short, otherwise M3_IO. */
static inline enum m3_status m3_status_of(int system_error) { return system_error == ENOMEM ? M3_INTERNAL : M3_IO; }
/* Does a failed call say that there is no such file? A name that is too long is that of none. */
int m3_is_absent(int system_error);
/* What is at `path`; info->st_mode is 0 if nothing is. M3_IO if that cannot be known. */
int m3_look(struct stat *info, const char *path, struct m3_error *error);
/* The same in one word. */
int m3_look_for(int *exists, const char *path, struct m3_error *error);
int m3_look_for_folder(int *is_folder, const char *path, struct m3_error *error);
/* The folder's next entry, NULL at its end. */
int m3_next_entry(struct dirent **entry, DIR *folder, const char *path, struct m3_error *error);

#endif
