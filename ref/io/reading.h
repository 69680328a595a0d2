/* What a task reads, so that none of its outputs replaces it; and whom it tells that a large one is about to be written. A
 * task is one command, or one call of the library. From its begin to its end its thread notes every file that
 * m3_open_file opens, and m3_new_file_open and m3_new_file_commit refuse a path that holds one of them. Without a task
 * nothing is noted and nothing refused.
 *
 * Two files are the same if device and inode are equal, whatever their names. A file without a name is not noted: it is
 * a temporary one of the task, and the system gives its inode to the next. */
#ifndef M3_IO_READING_H
#define M3_IO_READING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

struct m3_reading {
    struct m3_read_file *files; /* [count] */
    size_t count;
    struct m3_reading *outer; /* the task in which this one was begun: a call from a callback. Its files count too */
    void (*announce)(const char *path, uint64_t bytes); /* set after the begin; NULL: nobody is told */
};

/* Begins a task of the calling thread. `task` must stay where it is until m3_reading_end, by the same thread. */
void m3_reading_begin(struct m3_reading *task);
void m3_reading_end(struct m3_reading *task);

/* Notes a file that is read. `as`: the argument that names it, for messages; NULL: its path says it. M3_INTERNAL. */
int m3_reading_note(const struct stat *file, const char *path, const char *as, struct m3_error *error);
/* Notes the file at `path`, if there is one, before it is opened, or although it is not. M3_IO, M3_INTERNAL. */
int m3_reading_note_path(const char *path, const char *as, struct m3_error *error);
/* Notes the files of a folder whose names match `pattern` (fnmatch), and every such name that is free: a file of that
 * name would be read the next time. M3_IO, M3_INTERNAL. */
int m3_reading_note_folder(const char *folder, const char *pattern, const char *as, struct m3_error *error);
/* The file at `path`, if there is one, may be replaced by the task that reads it: a truth that no longer fits, a cache
 * that continues. M3_IO. */
int m3_reading_forget(const char *path, struct m3_error *error);

/* Called before a safetensors file is written: of M3_LARGE_FILE bytes or more, the task is told. */
#define M3_LARGE_FILE UINT64_C(1000000000)
void m3_reading_announce(const char *path, uint64_t bytes);

/* M3_USAGE if an output at `path` would replace what the task reads. `option`: what names it, or NULL. */
int m3_reading_refuse(const char *option, const char *path, struct m3_error *error);
/* The same for a file that is open already, as standard output is. */
int m3_reading_refuse_file(const char *option, const struct stat *file, struct m3_error *error);

#endif
