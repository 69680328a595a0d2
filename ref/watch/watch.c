#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "watch/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "io/mapped.h"

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
    if (record->pid && record->out >= 0) {
        fflush(stdout);
        dup2(STDERR_FILENO, STDOUT_FILENO);
    }
    atomic_store(&record->since, now());
}

void m3_watch_leave(struct m3_watch_record *record)
{
    if (!record) return;
    if (record->pid && record->pid != getpid()) _exit(M3_INTERNAL);
    if (record->pid && record->out >= 0) {
        fflush(stdout);
        record->closed = fcntl(STDERR_FILENO, F_GETFD) < 0 || dup2(record->out, STDOUT_FILENO) < 0;
        if (record->closed) _exit(M3_INTERNAL);
    }
    atomic_store(&record->since, 0);
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

/* Signals that end the program from outside: those that are not ignored. They wait while a child runs, for the processes
 * that foreign code started have to end too, and a terminal reaches only the program's own group. */
static void block_ends(sigset_t *ends, sigset_t *before)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
    struct sigaction action;
    sigemptyset(ends);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(ends, numbers[i]);
    sigprocmask(SIG_BLOCK, ends, before);
}

/* What the child does. Its files were flushed before the fork, so that nothing is written twice. The processes that
 * foreign code starts are in the child's group, unless they leave it, and end with it. */
static void work(struct m3_watch_record *record, pid_t parent, const sigset_t *mask, int (*function)(void *),
                 void *self)
{
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    signal(SIGTTOU, SIG_IGN);       /* a terminal stops what writes or reads from the background */
    signal(SIGTTIN, SIG_IGN);
    if (getppid() != parent) _exit(M3_INTERNAL);
    record->pid = getpid();
    record->out = fcntl(STDERR_FILENO, F_GETFD) < 0 ? -1 : fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    m3_mapped_tell(&record->finished);
    const int status = function(self);
    fflush(NULL);
    record->finished = 1;
    _exit(status);
}

/* Waits for the child; kills it when one call takes too long. *late: it did. A signal of `ends` kills it too, and is
 * raised again. */
static int wait_for(int *ended, int *late, pid_t child, const struct m3_watch *watch, const sigset_t *ends)
{
    int signalled = 0;
    long pause = 100000;
    siginfo_t end = { 0 };
    *late = 0;
    while (waitid(P_PID, (id_t)child, &end, WEXITED | WNOHANG | WNOWAIT) == 0 && end.si_pid == 0) {
        const int64_t since = atomic_load(&watch->record->since);
        if (since > 0 && (double)(now() - since) > watch->timeout * 1e9) {
            *late = 1;
            kill(child, SIGKILL);
        }
        const int got = sigtimedwait(ends, NULL, &(struct timespec){ .tv_nsec = pause });
        if (got > 0) {
            signalled = got;
            kill(child, SIGKILL);
        }
        if (pause < 20000000) pause *= 2;
    }
    kill(-child, SIGKILL);      /* while the child's number is still its own */
    const int status = waitpid(child, ended, 0) == child ? M3_OK : M3_INTERNAL;
    if (signalled) raise(signalled);
    return status;
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
    else if (record->closed) snprintf(how, sizeof how, "closed standard output or standard error");
    else if (WIFSIGNALED(ended)) snprintf(how, sizeof how, "crashed (%s)", name_of(WTERMSIG(ended)));
    else snprintf(how, sizeof how, "ended the program (exit status %d)", WEXITSTATUS(ended));
    snprintf(fault, room, "%s%s %s%s%s", inside || !record->place[0] ? "" : "after ",
             record->place[0] ? record->place : "the program", how, record->fault[0] ? ": " : "", record->fault);
}

int m3_watch_run(struct m3_watch *watch, int (*function)(void *self), void *self, char *fault, size_t room,
                 struct m3_error *error)
{
    struct m3_watch_record *record = watch->record;
    int ended = 0, late = 0;
    sigset_t ends, before;
    memset(record, 0, sizeof *record);
    fault[0] = '\0';
    fflush(NULL);
    block_ends(&ends, &before);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) work(record, parent, &before, function, self);
    int status = M3_OK;
    if (child < 0) status = m3_fail(error, M3_INTERNAL, "cannot start a process: %s", strerror(errno));
    else if (wait_for(&ended, &late, child, watch, &ends))
        status = m3_fail(error, M3_INTERNAL, "cannot wait for a process: %s", strerror(errno));
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (status) return status;
    if (record->finished && WIFEXITED(ended)) return WEXITSTATUS(ended);
    describe(fault, room, watch, ended, late);
    return M3_INTERNAL;
}
