/* Faults that a run of the program meets on purpose: an allocation that fails, a system call that fails or does only a
 * part. Everything here is one process: a server that forks a child for each fault; the child calls the program's main
 * with the fault armed, and the server judges what the child left. */
#ifndef M3_TESTS_FAULTS_H
#define M3_TESTS_FAULTS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum fault_layer { FAULT_MEMORY, FAULT_CALL };
enum { FAULT_FRAMES = 48, FAULT_INNER = 14, FAULT_SITES = 8192 };

/* A place in the program: a call stack from which memory, or a system call, is asked for. */
struct fault_site {
    uint64_t hash;          /* of the whole stack */
    uint64_t inner;         /* of its INNER innermost frames */
    int64_t number;         /* of the first such event of the run, from 1 */
    int call;               /* number of the system call; 0: an allocation */
    int standard_error;     /* it writes to standard error */
    size_t bytes;           /* that are asked for */
};

/* What parent and child share. */
struct fault_record {
    int finished;           /* main returned */
    int leaks;              /* memory was lost */
    atomic_int fired;       /* times that the fault was met */
    int generations;        /* processes that the child started */
    int depth;
    void *frames[FAULT_FRAMES];     /* where it was met first, innermost first */
    atomic_int sites_overflow;
    int site_count;
    struct fault_site sites[FAULT_SITES];
};

/* How a system call fails: `error` is an errno, or FAULT_SHORT: it does half of what it was asked. */
enum { FAULT_SHORT = -1 };
struct fault_plan {
    enum fault_layer layer;
    int recording;          /* no fault: the sites are recorded */
    int64_t number;         /* of the event that fails */
    int onward;             /* and all later ones */
    int error;
};

/* Arms a plan in this process, until fault_disarm. The record outlives the process. */
void fault_arm(const struct fault_plan *plan, struct fault_record *record);
void fault_disarm(void);
/* Events of a new thread count from here on. */
void fault_thread_begins(void);

/* Called at each event. Returns the error with which it has to fail, or 0. */
int fault_event(enum fault_layer layer, int call, size_t bytes, int standard_error);

/* Traps the system calls of files for the rest of the process (seccomp). Returns 0, or an errno. */
int fault_trap_calls(void);
const char *fault_call_name(int call);
/* The errors with which a call is made to fail, ended by 0. */
const int *fault_call_errors(int call);

#endif
