/* Reading and writing of gzip files. */
#ifndef M3_IO_GZIP_H
#define M3_IO_GZIP_H

#include "base/status.h"

int m3_is_gzip_name(const char *path);      /* ends in ".gz" */

/* Inflates the gzip file `packed` into a new memory file, *fd, which the caller closes; `packed` stays open. `path` is
 * for errors: M3_BAD_INPUT if it is not gzip, damaged, cut short, or inflates to more than 64 times its size and
 * 16 MiB; M3_IO; M3_INTERNAL. *fd is -1 on failure. */
int m3_gunzip(int *fd, int packed, const char *path, struct m3_error *error);

/* Deflates `plain`, from its start, into `packed`. Equal input gives equal output: no name, no time is stored. M3_IO,
 * M3_INTERNAL. */
int m3_gzip(int packed, int plain, const char *path, struct m3_error *error);

/* Writes all the bytes: returns 0, or M3_IO with a line that names `path`. */
int m3_write_all(int fd, const void *bytes, size_t count, const char *path, struct m3_error *error);

#endif
