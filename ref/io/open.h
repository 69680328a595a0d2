/* Opening files for reading: regular files only. A FIFO or a device may never end, and a reader would wait for ever. */
#ifndef M3_IO_OPEN_H
#define M3_IO_OPEN_H

#include <stdio.h>

#include "base/status.h"

/* Opens `path` for reading as *fd; -1 on failure. M3_ABSENT if there is no such file, M3_BAD_INPUT if it is not
 * regular, M3_IO. */
int m3_open_file(int *fd, const char *path, struct m3_error *error);
/* The same as a stream; NULL on failure. */
int m3_open_stream(FILE **file, const char *path, struct m3_error *error);

#endif
