/* Counts the events of a run, and decides which of them fails. */
#include "faults.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

static struct fault_plan armed_plan;
static struct fault_record *armed_record;
static atomic_int armed;
static _Atomic int64_t events;
static atomic_flag recording_lock = ATOMIC_FLAG_INIT;
static __thread int counts;     /* this thread's events */
static __thread int inside;     /* what the recording itself asks for does not count */

struct walk {
    void **frames;
    int depth;
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *self)
{
    struct walk *w = self;
    w->frames[w->depth++] = (void *)_Unwind_GetIP(context);
    return w->depth < FAULT_FRAMES ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static int walk_stack(void **frames)
{
    struct walk w = { frames, 0 };
    _Unwind_Backtrace(step, &w);
    return w.depth;
}

static uint64_t hash_of(void **frames, int depth, int call)
{
    uint64_t hash = 14695981039346656037u ^ (uint64_t)call;
    for (int i = 0; i < depth; i++) hash = (hash ^ (uint64_t)(uintptr_t)frames[i]) * 1099511628211u;
    return hash;
}

static void record_site(struct fault_site site)
{
    struct fault_record *r = armed_record;
    void *frames[FAULT_FRAMES];
    const int depth = walk_stack(frames);
    site.hash = hash_of(frames, depth, site.call);
    site.inner = hash_of(frames, depth < FAULT_INNER ? depth : FAULT_INNER, site.call);
    while (atomic_flag_test_and_set(&recording_lock)) continue;
    int known = 0;
    for (int i = r->site_count - 1; i >= 0 && !known; i--) known = r->sites[i].hash == site.hash;
    if (!known && r->site_count < FAULT_SITES) r->sites[r->site_count++] = site;
    else if (!known) r->sites_overflow = 1;
    atomic_flag_clear(&recording_lock);
}

int fault_event(enum fault_layer layer, int call, size_t bytes, int standard_error)
{
    if (!armed || !counts || inside || layer != armed_plan.layer) return 0;
    const int64_t number = ++events;
    const int fails = number == armed_plan.number || (armed_plan.onward && number > armed_plan.number);
    if (!armed_plan.recording && !fails) return 0;
    inside = 1;
    if (armed_plan.recording) record_site((struct fault_site){ 0, 0, number, call, standard_error, bytes });
    else if (armed_record->fired++ == 0) armed_record->depth = walk_stack(armed_record->frames);
    inside = 0;
    return fails ? armed_plan.error : 0;
}

/* A child of the program counts on from a number that its parent does not reach. */
static void number_generation(void) { events = (int64_t)++armed_record->generations << 40; }

void fault_arm(const struct fault_plan *plan, struct fault_record *record)
{
    void *frames[FAULT_FRAMES];
    walk_stack(frames);         /* what the first walk prepares is not of the program */
    armed_plan = *plan;
    armed_record = record;
    events = 0;
    pthread_atfork(NULL, NULL, number_generation);
    counts = 1;
    armed = 1;
}

void fault_disarm(void) { armed = 0; }
void fault_thread_begins(void) { counts = 1; }
