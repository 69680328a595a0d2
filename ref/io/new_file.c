#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* O_TMPFILE */
#endif
#include "io/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "io/gzip.h"
#include "io/json.h"
#include "io/leftover.h"
#include "io/mapped.h"
#include "io/reading.h"

static int fail_system(const struct m3_new_file *file, const char *what, struct m3_error *error)
{
    return m3_fail(error, M3_IO, "%s: %s: %s", file->path, what, strerror(errno));
}

/* Gives the temporary file a name that no other process uses: creates it if fd < 0, otherwise names the nameless
 * one. */
static int name_temporary(struct m3_new_file *file, struct m3_error *error)
{
    char open_file[64], *name = NULL;
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", file->fd);
    for (int attempt = 0, named = 0; !named; attempt++) {
        free(name);
        if (!(name = m3_leftover_name(file->folder, file->path, attempt))) return m3_fail_memory(error, file->path, 0);
        if (file->fd >= 0) named = linkat(AT_FDCWD, open_file, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
        else named = (file->fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) >= 0;
        if (!named && errno != EEXIST) {
            int status = fail_system(file, "cannot create a temporary file beside it", error);
            free(name);
            return status;
        }
    }
    file->name = name;
    return M3_OK;
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Messages about a temporary file without a name name its folder: its path, /proc/self/fd/N, tells people nothing. */
static void name_for_messages(struct m3_new_file *file)
{
    char target[4096] = "";
    const ssize_t length = readlink(file->path, target, sizeof target - 1);
    const char *slash = strrchr(target, '/');
    char *name = NULL;
    if (length <= 0 || !slash || slash == target) return;         /* /memfd:NAME, a file in memory */
    if (asprintf(&name, "%.*s: a temporary file there", (int)(slash - target), target) < 0) return;
    free(file->path);
    file->path = name;
}

/* Of the file system that holds the file or folder; UINT64_MAX: it does not say. */
static uint64_t free_bytes(const char *path)
{
    struct statvfs disk;
    uint64_t bytes;
    if (statvfs(path, &disk) != 0 || disk.f_blocks == 0) return UINT64_MAX;
    return __builtin_mul_overflow((uint64_t)disk.f_bavail, (uint64_t)disk.f_frsize, &bytes) ? UINT64_MAX : bytes;
}

int m3_new_file_room(const char *path, uint64_t bytes, struct m3_error *error)
{
    struct stat info;
    struct m3_new_file file = { .fd = -1, .path = strdup(path), .folder = folder_of(path) };
    int status = file.path && file.folder ? M3_OK : m3_fail_memory(error, path, strlen(path));
    const int is_nameless = !status && stat(path, &info) == 0 && info.st_nlink == 0;
    const uint64_t room = status ? 0 : free_bytes(is_nameless ? path : file.folder);
    if (!status && room < bytes) {
        if (is_nameless) name_for_messages(&file);
        status = m3_fail(error, M3_IO, "%s: got room for %.2f GB on its disk, expected %.2f GB", file.path,
                         (double)room / 1e9, (double)bytes / 1e9);
    }
    m3_new_file_abandon(&file);
    return status;
}

int m3_new_file_open(struct m3_new_file *file, const char *path, struct m3_error *error)
{
    struct stat info;
    int status = M3_OK;
    *file = (struct m3_new_file){ .fd = -1, .path = strdup(path), .folder = folder_of(path) };
    const int exists = stat(path, &info) == 0;
    if (!file->path || !file->folder) {
        status = m3_fail_memory(error, path, strlen(path));
    } else if ((status = m3_reading_refuse(NULL, path, error))) {
        /* said there */
    } else if (exists && !S_ISREG(info.st_mode)) {
        status = m3_fail(error, M3_IO, "%s: not a regular file: it cannot be replaced", path);
    } else if (exists && info.st_nlink == 0) {
        file->in_place = 1;
        file->fd = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
        const int why = errno;
        name_for_messages(file);
        errno = why;
        if (file->fd < 0) status = fail_system(file, "cannot open it", error);
    } else {
        m3_leftover_sweep(file->folder, path);
        if (access("/proc/self/fd", X_OK) == 0) file->fd = open(file->folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
        if (file->fd < 0) status = name_temporary(file, error);
    }
    if (status) m3_new_file_abandon(file);
    return status;
}

/* A signal whose handler returns may interrupt it. */
static int sync_all(int fd)
{
    int failed;
    do failed = fsync(fd);
    while (failed && errno == EINTR);
    return failed;
}

static int put_in_place(struct m3_new_file *file, struct m3_error *error)
{
    if (sync_all(file->fd) != 0) return fail_system(file, "cannot sync", error);
    int status = file->name ? M3_OK : name_temporary(file, error);
    if (status) return status;
    int failed = close(file->fd) != 0 && errno != EINTR;        /* EINTR: Linux has closed it */
    file->fd = -1;
    if (failed) return fail_system(file, "cannot close", error);
    if (rename(file->name, file->path) != 0) return fail_system(file, "cannot rename to it", error);
    free(file->name);
    file->name = NULL;
    return M3_OK;
}

/* The folder is opened first, because nothing can be undone after the rename. Syncing it makes the new name survive a
 * crash; some file systems cannot: EINVAL. */
static int finish(struct m3_new_file *file, struct m3_error *error)
{
    if (file->in_place) return M3_OK;
    int fd = open(file->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail_system(file, "its folder cannot be opened to sync it", error);
    int status = put_in_place(file, error);
    if (!status && sync_all(fd) != 0 && errno != EINVAL)
        status = fail_system(file, "written, but its folder is not synced", error);
    close(fd);
    return status;
}

int m3_new_file_commit(struct m3_new_file *file, struct m3_error *error)
{
    int status = m3_json_failed() ? m3_fail_memory(error, file->path, 0) : m3_mapped_check(error);
    if (!status && !file->in_place) status = m3_reading_refuse(NULL, file->path, error);
    if (!status) status = finish(file, error);
    m3_new_file_abandon(file);
    return status;
}

void m3_new_file_abandon(struct m3_new_file *file)
{
    if (file->fd >= 0) close(file->fd);
    if (file->name) unlink(file->name);
    free(file->name);
    free(file->folder);
    free(file->path);
    *file = (struct m3_new_file)M3_NO_FILE;
}

int m3_new_file_write(const char *path, const void *bytes, size_t count, struct m3_error *error)
{
    struct m3_new_file file;
    int status = m3_new_file_open(&file, path, error);
    if (!status) status = m3_write_all(file.fd, bytes, count, path, error);
    if (!status) return m3_new_file_commit(&file, error);
    m3_new_file_abandon(&file);
    return status;
}
