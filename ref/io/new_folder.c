#include "io/new_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/leftover.h"
#include "io/open.h"

static int fail_system(const struct m3_new_folder *folder, const char *what, struct m3_error *error)
{
    return m3_fail(error, m3_status_of(errno), "%s: %s: %s", folder->path, what, strerror(errno));
}

/* A folder that is there already must be one that the finished folder can replace. */
static int check_empty(const struct m3_new_folder *folder, const struct stat *info, struct m3_error *error)
{
    struct stat parent;
    struct dirent *entry;
    int status = M3_OK, is_empty = 1;
    DIR *dir = opendir(folder->path);
    if (!dir || stat(folder->parent, &parent) != 0) status = fail_system(folder, "cannot be read", error);
    while (!status && !(status = m3_next_entry(&entry, dir, folder->path, error)) && entry)
        is_empty &= strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (dir) closedir(dir);
    if (status) return status;
    if (!is_empty)
        return m3_fail(error, M3_USAGE, "%s: got a folder with files in it, expected a new or empty one", folder->path);
    if (info->st_dev == parent.st_dev) return M3_OK;
    return m3_fail(error, M3_USAGE, "%s: got a mount point, expected a folder in it", folder->path);
}

static int make_temporary(struct m3_new_folder *folder, struct m3_error *error)
{
    m3_leftover_sweep(folder->parent, folder->path);
    for (int attempt = 0;; attempt++) {
        char *name = m3_leftover_name(folder->parent, folder->path, attempt);
        if (!name) return m3_fail_memory(error, folder->path, 0);
        if (mkdir(name, 0777) == 0) {
            folder->name = name;
            folder->entries = opendir(name);
            return folder->entries ? M3_OK : fail_system(folder, "cannot be read", error);
        }
        free(name);
        if (errno != EEXIST) return fail_system(folder, "cannot be created", error);
    }
}

static void forget(struct m3_new_folder *folder)
{
    free(folder->path);
    free(folder->parent);
    free(folder->name);
    if (folder->entries) closedir(folder->entries);
    *folder = (struct m3_new_folder){ 0 };
}

static void strip_slashes(char *path)
{
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
}

/* The path without links, so that a rename replaces what a link leads to. */
static int find_parent(struct m3_new_folder *folder, const char *path, struct m3_error *error)
{
    folder->path = realpath(path, NULL);
    if (!folder->path && errno != ENOMEM) folder->path = strdup(path);
    if (!folder->path) return m3_fail_memory(error, path, strlen(path));
    strip_slashes(folder->path);
    const char *slash = strrchr(folder->path, '/');
    const size_t length = slash ? (size_t)(slash - folder->path) : 0;
    folder->parent = slash ? strndup(folder->path, length ? length : 1) : strdup(".");
    return folder->parent ? M3_OK : m3_fail_memory(error, path, strlen(path));
}

int m3_new_folder_open(struct m3_new_folder *folder, const char *path, struct m3_error *error)
{
    struct stat info;
    *folder = (struct m3_new_folder){ 0 };
    int status = find_parent(folder, path, error);
    if (!status && lstat(folder->path, &info) == 0) status = check_empty(folder, &info, error);
    if (!status) status = make_temporary(folder, error);
    if (status) m3_new_folder_abandon(folder);
    return status;
}

static int put_in_place(const struct m3_new_folder *folder, struct m3_error *error)
{
    int fd = open(folder->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC), status = M3_OK, failed;
    if (fd < 0) return fail_system(folder, "the folder that holds it cannot be opened to sync it", error);
    if (rename(folder->name, folder->path) != 0) {
        status = fail_system(folder, "cannot rename to it", error);
    } else {
        do failed = fsync(fd);
        while (failed && errno == EINTR);
        if (failed && errno != EINVAL)
            status = fail_system(folder, "written, but the folder that holds it is not synced", error);
    }
    close(fd);
    return status;
}

int m3_new_folder_commit(struct m3_new_folder *folder, struct m3_error *error)
{
    int status = put_in_place(folder, error);
    if (status) m3_new_folder_abandon(folder);
    else forget(folder);
    return status;
}

void m3_new_folder_abandon(struct m3_new_folder *folder)
{
    if (folder->entries) m3_leftover_empty(folder->entries);
    if (folder->name) rmdir(folder->name);
    forget(folder);
}
