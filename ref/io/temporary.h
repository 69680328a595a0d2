/* Files and folders in the folder for temporary files: TMPDIR, or /tmp. */
#ifndef M3_IO_TEMPORARY_H
#define M3_IO_TEMPORARY_H

#include "base/status.h"

/* Creates an empty file, or folder, of a name that is not in use. The caller frees *path and removes what it names; it
 * is NULL on failure. *fd: the open file. M3_IO, M3_INTERNAL. */
int m3_temporary_file(char **path, int *fd, struct m3_error *error);
int m3_temporary_folder(char **path, struct m3_error *error);
/* The path of a file in a folder, which the caller frees; the file is not created. */
int m3_temporary_in(char **path, const char *folder, const char *name, struct m3_error *error);

#endif
