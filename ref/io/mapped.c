#include "io/mapped.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct m3_mapped *_Atomic first;         /* read by the handler without the lock */
static _Atomic int *_Atomic told_of_end;
static atomic_flag is_ending = ATOMIC_FLAG_INIT;
static char past[512];                          /* the name of the first changed file that left the list */

void m3_mapped_add(struct m3_mapped *mapped)
{
    pthread_mutex_lock(&lock);
    mapped->next = first;
    first = mapped;
    pthread_mutex_unlock(&lock);
}

static int is_changed(const struct m3_mapped *mapped)
{
    struct stat now;
    const struct stat *then = &mapped->state;
    if (stat(mapped->path, &now) != 0 || now.st_dev != then->st_dev || now.st_ino != then->st_ino) return 0;
    return now.st_size != then->st_size || now.st_mtim.tv_sec != then->st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != then->st_mtim.tv_nsec;
}

void m3_mapped_remove(struct m3_mapped *mapped)
{
    if (!mapped->bytes) return;
    const int changed = is_changed(mapped);
    pthread_mutex_lock(&lock);
    if (!past[0] && changed) strncpy(past, mapped->name, sizeof past - 1);
    if (first == mapped) first = mapped->next;
    else
        for (struct m3_mapped *m = first; m; m = m->next)
            if (m->next == mapped) m->next = mapped->next;
    mapped->bytes = NULL;
    pthread_mutex_unlock(&lock);
}

static int fail_changed(const char *name, struct m3_error *error)
{
    return m3_fail(error, M3_IO, "%s: changed while it was read", name);
}

int m3_mapped_check(struct m3_error *error)
{
    int status = M3_OK;
    pthread_mutex_lock(&lock);
    for (const struct m3_mapped *m = first; m && !status; m = m->next)
        if (is_changed(m)) status = fail_changed(m->name, error);
    pthread_mutex_unlock(&lock);
    return status;
}

int m3_mapped_check_past(struct m3_error *error) { return past[0] ? fail_changed(past, error) : M3_OK; }

static void print(const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        const ssize_t written = write(STDERR_FILENO, text, left);
        if (written <= 0) return;
        text += written;
        left -= (size_t)written;
    }
}

/* Only functions that a signal handler may call. */
void m3_mapped_handle(const siginfo_t *info)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    const struct m3_mapped *m = first;
    if (info->si_code != BUS_ADRERR) return;
    while (m && (at < (uintptr_t)m->bytes || at - (uintptr_t)m->bytes >= m->size)) m = m->next;
    if (!m) return;
    while (atomic_flag_test_and_set(&is_ending)) pause();      /* another thread is about to end the program */
    print("m3ref: ");
    print(m->name);
    print(": cannot be read, or became shorter while it was read\n");
    if (told_of_end) *told_of_end = 1;
    _exit(M3_IO);
}

static void handle(int number, siginfo_t *info, void *context)
{
    (void)context;
    m3_mapped_handle(info);
    signal(number, SIG_DFL);    /* another reason: the access fails again */
}

void m3_mapped_catch(void)
{
    struct sigaction action = { .sa_flags = SA_SIGINFO, .sa_sigaction = handle };
    sigaction(SIGBUS, &action, NULL);
}

void m3_mapped_tell(_Atomic int *told) { told_of_end = told; }
