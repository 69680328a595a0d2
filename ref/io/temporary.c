#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* mkostemp, O_TMPFILE */
#endif
#include "io/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char open_files[] = "/proc/self/fd/";

/* The folder of `path`; that for temporary files if there is no path, or if it is itself the name of an open file. */
static char *folder_beside(const char *path, struct m3_error *error)
{
    const char *named = getenv("TMPDIR");
    const char *slash = path ? strrchr(path, '/') : NULL;
    char *folder;
    if (!path || strncmp(path, open_files, strlen(open_files)) == 0) folder = strdup(named && *named ? named : "/tmp");
    else if (!slash) folder = strdup(".");
    else folder = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!folder) m3_fail_memory(error, "a temporary file", 0);
    return folder;
}

/* Where the system has no files without a name, the name is removed at once. */
static int open_nameless(const char *folder)
{
    char *path;
    int fd = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (fd >= 0 || asprintf(&path, "%s/m3ref.XXXXXX", folder) < 0) return fd;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    free(path);
    return fd;
}

int m3_temporary_nameless(struct m3_nameless *file, const char *beside, struct m3_error *error)
{
    *file = (struct m3_nameless){ .fd = -1 };
    char *folder = folder_beside(beside, error);
    if (!folder) return M3_INTERNAL;
    file->fd = open_nameless(folder);
    snprintf(file->path, sizeof file->path, "%s%d", open_files, file->fd);
    int status = M3_OK;
    if (file->fd < 0)
        status = m3_fail(error, M3_IO, "%s: cannot create a temporary file there: %s", folder, strerror(errno));
    free(folder);
    return status;
}

void m3_nameless_close(struct m3_nameless *file)
{
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}
