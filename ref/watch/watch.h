/* Runs operators of others in a child process: one that crashes, never returns or ends the program is reported by name,
 * and what the program holds stays as it is. */
#ifndef M3_WATCH_WATCH_H
#define M3_WATCH_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/status.h"

/* Memory that the child and the program share. */
struct m3_watch_record {
    char place[64]; /* where foreign code runs now, or ran last: "rms_norm" */
    _Atomic int64_t since; /* when it began, in ns of the monotonic clock; 0: none runs */
    int64_t calls; /* of operators so far */
    int64_t item; /* what the child works on; for its caller */
    char fault[256]; /* what the memory guard or the signal handler saw; "": nothing */
    _Atomic int finished; /* the child came to its end, or to that of a mapped file */
    int pid; /* the child's; 0: none was started */
    int out; /* the child's standard output, while foreign code has standard error in its place; -1: none */
    int closed; /* foreign code closed standard output or standard error */
};

/* Foreign code begins and ends. What it prints goes to standard error, so that it cannot spoil what the program prints.
 * A copy of the child that foreign code made by fork ends where the foreign code does. `record` may be NULL. */
void m3_watch_enter(struct m3_watch_record *record, const char *place);
void m3_watch_leave(struct m3_watch_record *record);

struct m3_watch {
    struct m3_watch_record *record;
    double timeout; /* seconds that one call of foreign code may take */
};

/* M3_INTERNAL if there is no memory. */
int m3_watch_open(struct m3_watch *watch, double timeout, struct m3_error *error);
void m3_watch_close(struct m3_watch *watch);

/* Memory of zeros that the program shares with its children. */
int m3_watch_share(void **memory, size_t size, struct m3_error *error);
void m3_watch_unshare(void *memory, size_t size); /* NULL is fine */

/* Runs function(self) in a child and returns its status. The child inherits all memory and files, so it must be called
 * before the process has used threads. If foreign code ends the child, the status is M3_INTERNAL, and `fault` [room]
 * says what happened: "rms_norm crashed (SIGSEGV): ..."; otherwise it is "". */
int m3_watch_run(struct m3_watch *watch, int (*function)(void *self), void *self, char *fault, size_t room,
                 struct m3_error *error);

#endif
