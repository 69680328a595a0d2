#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "watch/watch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void m3_watch_enter(struct m3_watch_record *record, const char *place)
{
    if (!record) return;
    snprintf(record->place, sizeof record->place, "%s", place);
    atomic_store(&record->since, now());
}

void m3_watch_leave(struct m3_watch_record *record)
{
    if (record) atomic_store(&record->since, 0);
}

int m3_watch_share(void **memory, size_t size, struct m3_error *error)
{
    *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (*memory != MAP_FAILED) return M3_OK;
    *memory = NULL;
    return m3_fail_memory(error, "a watched process", size);
}

void m3_watch_unshare(void *memory, size_t size)
{
    if (memory) munmap(memory, size);
}

int m3_watch_open(struct m3_watch *watch, double timeout, struct m3_error *error)
{
    void *record;
    *watch = (struct m3_watch){ .timeout = timeout };
    const int status = m3_watch_share(&record, sizeof *watch->record, error);
    watch->record = record;
    return status;
}

void m3_watch_close(struct m3_watch *watch)
{
    m3_watch_unshare(watch->record, sizeof *watch->record);
    watch->record = NULL;
}

/* What the child does. Its files were flushed before the fork, so that nothing is written twice. */
static void work(struct m3_watch_record *record, pid_t parent, int (*function)(void *), void *self)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(M3_INTERNAL);
    const int status = function(self);
    fflush(NULL);
    record->finished = 1;
    _exit(status);
}

/* Waits for the child; kills it when one call takes too long. *late: it did. */
static int wait_for(int *ended, int *late, pid_t child, const struct m3_watch *watch)
{
    long pause = 100000;
    pid_t got;
    *late = 0;
    while ((got = waitpid(child, ended, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        const int64_t since = atomic_load(&watch->record->since);
        if (since > 0 && (double)(now() - since) > watch->timeout * 1e9) {
            *late = 1;
            kill(child, SIGKILL);
        }
        nanosleep(&(struct timespec){ .tv_nsec = pause }, NULL);
        if (pause < 20000000) pause *= 2;
    }
    return got == child ? M3_OK : M3_INTERNAL;
}

static const char *name_of(int number)
{
    static const struct {
        int number;
        const char *name;
    } names[] = { { SIGSEGV, "SIGSEGV" }, { SIGBUS, "SIGBUS" },   { SIGFPE, "SIGFPE" },
                  { SIGILL, "SIGILL" },   { SIGABRT, "SIGABRT" }, { SIGKILL, "SIGKILL" } };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].number == number) return names[i].name;
    return strsignal(number);
}

/* What became of a child that did not come to its end. */
static void describe(char *fault, size_t room, const struct m3_watch *watch, int ended, int late)
{
    const struct m3_watch_record *record = watch->record;
    char how[96];
    const int inside = atomic_load(&record->since) != 0;
    if (late) snprintf(how, sizeof how, "did not return within %g s", watch->timeout);
    else if (WIFSIGNALED(ended)) snprintf(how, sizeof how, "crashed (%s)", name_of(WTERMSIG(ended)));
    else snprintf(how, sizeof how, "ended the program (exit status %d)", WEXITSTATUS(ended));
    snprintf(fault, room, "%s%s %s%s%s", inside || !record->place[0] ? "" : "after ",
             record->place[0] ? record->place : "the program", how, record->fault[0] ? ": " : "", record->fault);
}

int m3_watch_run(struct m3_watch *watch, int (*function)(void *self), void *self, char *fault, size_t room,
                 struct m3_error *error)
{
    struct m3_watch_record *record = watch->record;
    int ended, late;
    memset(record, 0, sizeof *record);
    fault[0] = '\0';
    fflush(NULL);
    const pid_t parent = getpid(), child = fork();
    if (child < 0) return m3_fail(error, M3_INTERNAL, "cannot start a process: %s", strerror(errno));
    if (child == 0) work(record, parent, function, self);
    if (wait_for(&ended, &late, child, watch))
        return m3_fail(error, M3_INTERNAL, "cannot wait for a process: %s", strerror(errno));
    if (record->finished && WIFEXITED(ended)) return WEXITSTATUS(ended);
    describe(fault, room, watch, ended, late);
    return M3_INTERNAL;
}
