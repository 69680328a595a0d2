#include "io/open.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode)
{
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

int m3_open_file(int *fd, const char *path, struct m3_error *error)
{
    /* O_NONBLOCK: a FIFO without a writer must not block open before fstat refuses it. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int why = errno;
    struct stat info;
    int known = *fd >= 0 ? fstat(*fd, &info) : stat(path, &info);
    if (*fd >= 0 && known == 0 && S_ISREG(info.st_mode)) return M3_OK;

    if (*fd >= 0) close(*fd);
    int opened = *fd >= 0;
    *fd = -1;
    if (known == 0 && !S_ISREG(info.st_mode)) /* a socket cannot even be opened */
        return m3_fail(error, M3_BAD_INPUT, "%s: got %s, expected a regular file", path, kind_of(info.st_mode));
    if (opened) return m3_fail(error, M3_IO, "%s: %s", path, strerror(errno));
    return m3_fail(error, why == ENOENT || why == ENOTDIR ? M3_ABSENT : M3_IO, "%s: cannot open: %s", path,
                   strerror(why));
}

int m3_open_stream(FILE **file, const char *path, struct m3_error *error)
{
    int fd, status = m3_open_file(&fd, path, error);
    *file = status ? NULL : fdopen(fd, "rb");
    if (status || *file) return status;
    close(fd);
    return m3_fail_memory(error, path, sizeof **file);
}
