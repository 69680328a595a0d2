#include "io/reading.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "io/open.h"

struct m3_read_file {
    dev_t device;
    ino_t inode;
    char *path, *as;            /* as NULL: the path says it */
    char *pattern;              /* NULL: a file; otherwise a folder, and the names in it that are read */
    int beside;                 /* a file that is read only because it has such a name */
};

static _Thread_local struct m3_reading *current;

void m3_reading_begin(struct m3_reading *task)
{
    *task = (struct m3_reading){ .outer = current };
    current = task;
}

static void forget(struct m3_read_file *file)
{
    free(file->path);
    free(file->as);
    free(file->pattern);
}

void m3_reading_end(struct m3_reading *task)
{
    current = task->outer;
    for (size_t i = 0; i < task->count; i++) forget(&task->files[i]);
    free(task->files);
    *task = (struct m3_reading){ 0 };
}

static int same(const struct m3_read_file *noted, const struct stat *file)
{
    return noted->device == file->st_dev && noted->inode == file->st_ino;
}

static struct m3_read_file *find(const struct stat *file, const char *pattern)
{
    for (size_t i = 0; i < current->count; i++) {
        struct m3_read_file *noted = &current->files[i];
        if (!same(noted, file) || !noted->pattern != !pattern) continue;
        if (!pattern || strcmp(noted->pattern, pattern) == 0) return noted;
    }
    return NULL;
}

/* *copy := the text, or NULL for NULL. */
static int copy_text(char **copy, const char *text)
{
    *copy = text ? strdup(text) : NULL;
    return text && !*copy;
}

static int note(const struct stat *file, const char *path, const char *as, const char *pattern, int beside,
                struct m3_error *error)
{
    if (!current || file->st_nlink == 0) return M3_OK;
    struct m3_read_file *noted = find(file, pattern);
    struct m3_read_file one = { .device = file->st_dev, .inode = file->st_ino, .beside = beside };
    if (noted) noted->beside &= beside;
    if (noted && (noted->as || !as)) return M3_OK;
    if (noted) return copy_text(&noted->as, as) ? m3_fail_memory(error, path, strlen(as)) : M3_OK;
    struct m3_read_file *more = realloc(current->files, (current->count + 1) * sizeof *more);
    if (more) current->files = more;
    if (!more || copy_text(&one.path, path) | copy_text(&one.as, as) | copy_text(&one.pattern, pattern)) {
        forget(&one);
        return m3_fail_memory(error, path, sizeof *more);
    }
    more[current->count++] = one;
    return M3_OK;
}

int m3_reading_note(const struct stat *file, const char *path, const char *as, struct m3_error *error)
{
    return note(file, path, as, NULL, 0, error);
}

int m3_reading_note_path(const char *path, const char *as, struct m3_error *error)
{
    struct stat info;
    const int status = current ? m3_look(&info, path, error) : M3_OK;
    return !current || status || info.st_mode == 0 ? status : note(&info, path, as, NULL, 0, error);
}

static int note_entries(DIR *entries, const char *folder, const char *pattern, const char *as, struct m3_error *error)
{
    struct dirent *entry;
    struct stat info;
    int status;
    while (!(status = m3_next_entry(&entry, entries, folder, error)) && entry) {
        if (fnmatch(pattern, entry->d_name, 0) != 0) continue;
        if (fstatat(dirfd(entries), entry->d_name, &info, 0) == 0) status = note(&info, folder, as, NULL, 1, error);
        else if (!m3_is_absent(errno))
            status = m3_fail(error, M3_IO, "%s/%s: cannot be looked at: %s", folder, entry->d_name, strerror(errno));
        if (status) break;
    }
    return status;
}

int m3_reading_note_folder(const char *folder, const char *pattern, const char *as, struct m3_error *error)
{
    struct stat info;
    if (!current) return M3_OK;
    DIR *entries = opendir(folder);
    if (!entries && m3_is_absent(errno)) return M3_OK;
    int status = M3_OK;
    if (!entries || fstat(dirfd(entries), &info) != 0)
        status = m3_fail(error, m3_status_of(errno), "%s: cannot be read: %s", folder, strerror(errno));
    if (!status) status = note(&info, folder, as, pattern, 0, error);
    if (!status) status = note_entries(entries, folder, pattern, as, error);
    if (entries) closedir(entries);
    return status;
}

int m3_reading_forget(const char *path, struct m3_error *error)
{
    struct stat info;
    const int status = current ? m3_look(&info, path, error) : M3_OK;
    if (!current || status || info.st_mode == 0) return status;
    for (size_t i = current->count; i-- > 0;) {
        struct m3_read_file *noted = &current->files[i];
        if (noted->pattern || !same(noted, &info)) continue;
        forget(noted);
        *noted = current->files[--current->count];
    }
    return M3_OK;
}

/* What would be replaced, for messages; NULL: nothing. folder NULL: the file is open already, and its name says nothing:
 * the shell may have made it beside what is read. */
static const char *replaced(const struct stat *file, const struct stat *folder, const char *name)
{
    for (const struct m3_reading *task = current; task; task = task->outer)
        for (size_t i = 0; i < task->count; i++) {
            const struct m3_read_file *noted = &task->files[i];
            const int is_it = noted->pattern ? folder && same(noted, folder) && fnmatch(noted->pattern, name, 0) == 0
                                             : file->st_mode != 0 && same(noted, file) && (folder || !noted->beside);
            if (is_it) return noted->as ? noted->as : noted->path;
        }
    return NULL;
}

static int refuse(const char *option, const char *path, const char *read, struct m3_error *error)
{
    return m3_fail(error, M3_USAGE, "%s: got %s, which this command reads as %s, expected another file",
                   option ? option : "output", path, read);
}

int m3_reading_refuse(const char *option, const char *path, struct m3_error *error)
{
    struct stat file, folder;
    if (!current) return M3_OK;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *above = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!above) return m3_fail_memory(error, path, strlen(path));
    int status = m3_look(&file, path, error);
    if (!status) status = m3_look(&folder, above, error);
    free(above);
    const char *read = status ? NULL : replaced(&file, &folder, name);
    return read ? refuse(option, path, read, error) : status;
}

int m3_reading_refuse_file(const char *option, const struct stat *file, struct m3_error *error)
{
    const char *read = replaced(file, NULL, NULL);
    return read ? refuse(option, "a file", read, error) : M3_OK;
}

void m3_reading_announce(const char *path, uint64_t bytes)
{
    if (current && current->announce && bytes >= M3_LARGE_FILE) current->announce(path, bytes);
}
