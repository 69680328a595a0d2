/* Files that are mapped: another program may shorten one, and reading it then ends in SIGBUS, or overwrite it.
 *
 * The list of mappings belongs to the process, because a signal handler can reach nothing else. The library only keeps
 * the list; the handler is installed by the program. */
#ifndef M3_IO_MAPPED_H
#define M3_IO_MAPPED_H

#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/status.h"

struct m3_mapped {
    const unsigned char *bytes; /* NULL: not in the list */
    size_t size;
    const char *path, *name;    /* which opens it; for messages. Both are the owner's */
    struct stat state;          /* when it was mapped */
    struct m3_mapped *next;
};

/* Puts a mapping into the list, and takes it out; the latter does nothing if it is not in the list. */
void m3_mapped_add(struct m3_mapped *mapped);
void m3_mapped_remove(struct m3_mapped *mapped);

/* M3_IO if a file in the list has been overwritten or shortened. One that was replaced by another of the same name has
 * not: its old bytes stay. */
int m3_mapped_check(struct m3_error *error);
/* The same for the files that were in the list and no longer are; for the end of a program. */
int m3_mapped_check_past(struct m3_error *error);

/* Installs a handler of SIGBUS: if a mapped file became shorter, it prints one line that names the file and ends the
 * program with M3_IO. `told`, if there is one, becomes 1 before that. */
void m3_mapped_catch(void);
void m3_mapped_tell(_Atomic int *told);
/* What the handler does, for other handlers: it returns if no mapped file is the reason. */
void m3_mapped_handle(const siginfo_t *info);

#endif
