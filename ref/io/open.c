#include "io/open.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/reading.h"

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
    if (*fd >= 0 && known == 0 && S_ISREG(info.st_mode)) {
        const int status = m3_reading_note(&info, path, NULL, error);
        if (status) close(*fd), *fd = -1;
        return status;
    }
    if (*fd >= 0) close(*fd);
    int opened = *fd >= 0;
    *fd = -1;
    if (known == 0 && !S_ISREG(info.st_mode)) /* a socket cannot even be opened */
        return m3_fail(error, M3_BAD_INPUT, "%s: got %s, expected a regular file", path, kind_of(info.st_mode));
    if (opened) return m3_fail(error, M3_IO, "%s: %s", path, strerror(errno));
    return m3_fail(error, m3_is_absent(why) ? M3_ABSENT : m3_status_of(why), "%s: cannot open: %s", path,
                   strerror(why));
}

int m3_open_stream(FILE **file, const char *path, struct m3_error *error)
{
    int fd, status = m3_open_file(&fd, path, error);
    *file = status ? NULL : fdopen(fd, "rb");
    if (status || *file) return status;
    const int why = errno;      /* fdopen also asks the system for the flags of the descriptor */
    close(fd);
    return m3_fail(error, m3_status_of(why), "%s: cannot open: %s", path, strerror(why));
}

int m3_is_absent(int system_error)
{
    return system_error == ENOENT || system_error == ENOTDIR || system_error == ENAMETOOLONG || system_error == ELOOP;
}

int m3_look(struct stat *info, const char *path, struct m3_error *error)
{
    if (stat(path, info) == 0) return M3_OK;
    const int why = errno;
    *info = (struct stat){ 0 };
    if (m3_is_absent(why)) return M3_OK;
    return m3_fail(error, m3_status_of(why), "%s: cannot be looked at: %s", path, strerror(why));
}

int m3_look_for(int *exists, const char *path, struct m3_error *error)
{
    struct stat info;
    const int status = m3_look(&info, path, error);
    *exists = info.st_mode != 0;
    return status;
}

int m3_look_for_folder(int *is_folder, const char *path, struct m3_error *error)
{
    struct stat info;
    const int status = m3_look(&info, path, error);
    *is_folder = S_ISDIR(info.st_mode);
    return status;
}

int m3_next_entry(struct dirent **entry, DIR *folder, const char *path, struct m3_error *error)
{
    errno = 0;
    *entry = readdir(folder);
    if (*entry || errno == 0) return M3_OK;
    return m3_fail(error, m3_status_of(errno), "%s: cannot be read: %s", path, strerror(errno));
}

int m3_read_file(char **bytes, size_t *count, const char *path, size_t most, struct m3_error *error)
{
    FILE *file;
    struct stat info;
    *bytes = NULL;
    *count = 0;
    int status = m3_open_stream(&file, path, error);
    if (status) return status;
    if (fstat(fileno(file), &info) != 0) status = m3_fail(error, M3_IO, "%s: %s", path, strerror(errno));
    else if (info.st_size > (off_t)most)
        status =
            m3_fail(error, M3_BAD_INPUT, "%s: got %jd bytes, expected at most %zu", path, (intmax_t)info.st_size, most);
    else if (!(*bytes = malloc((size_t)info.st_size + 1)))
        status = m3_fail_memory(error, path, (size_t)info.st_size + 1);
    if (!status) {
        *count = fread(*bytes, 1, (size_t)info.st_size, file);
        (*bytes)[*count] = '\0';
    }
    if (!status && ferror(file)) status = m3_fail(error, M3_IO, "%s: cannot read: %s", path, strerror(errno));
    fclose(file);
    if (!status) return M3_OK;
    free(*bytes);
    *bytes = NULL;
    return status;
}
