#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* mkostemp */
#endif
#include "io/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The name, to be completed. */
static char *begin(const char **folder, struct m3_error *error)
{
    const char *named = getenv("TMPDIR");
    char *path = NULL;
    *folder = named && *named ? named : "/tmp";
    if (asprintf(&path, "%s/m3ref.XXXXXX", *folder) >= 0) return path;
    m3_fail_memory(error, "a temporary file", strlen(*folder));
    return NULL;
}

static int failed(char **path, const char *folder, const char *what, struct m3_error *error)
{
    free(*path);
    *path = NULL;
    return m3_fail(error, M3_IO, "%s: cannot create a temporary %s there: %s", folder, what, strerror(errno));
}

int m3_temporary_file(char **path, int *fd, struct m3_error *error)
{
    const char *folder;
    *fd = -1;
    *path = begin(&folder, error);
    if (!*path) return M3_INTERNAL;
    *fd = mkostemp(*path, O_CLOEXEC);
    return *fd >= 0 ? M3_OK : failed(path, folder, "file", error);
}

int m3_temporary_folder(char **path, struct m3_error *error)
{
    const char *folder;
    *path = begin(&folder, error);
    if (!*path) return M3_INTERNAL;
    return mkdtemp(*path) ? M3_OK : failed(path, folder, "folder", error);
}

int m3_temporary_in(char **path, const char *folder, const char *name, struct m3_error *error)
{
    if (asprintf(path, "%s/%s", folder, name) >= 0) return M3_OK;
    *path = NULL;
    return m3_fail_memory(error, name, strlen(folder));
}
