#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "watch/guard.h"

#include <fenv.h>
#include <float.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/mapped.h"
#include "ops/ops.h"
#include "ops/outside.h"

/* Bytes of an output before the call: NaN in every float, and no id. Bytes beside any operand. */
enum { UNWRITTEN = 0xFF, BESIDE = 0xA5, ALIGNMENT = 64, FORBIDDEN = 1 << 20 };

/* An operand of the present call. If it was copied, the mapping holds: forbidden pages, bytes beside, the operand,
 * bytes beside, forbidden pages. */
struct region {
    const char *name;
    unsigned char *mapping;     /* NULL: not copied */
    size_t mapped, size;
    const unsigned char *at;    /* the operand */
    int is_output;
    int is_copy_of;             /* the output whose memory this input shares; -1: none */
};

struct m3_guard {
    struct m3_ops ops;
    struct m3_outside outside;
    struct m3_replacement replacement;
    struct m3_watch_record *record;
    struct region regions[M3_OUTSIDE_OPERANDS];
    int count;
    size_t page;
    struct sigaction before[2];             /* the handlers of the program */
    fenv_t arithmetic;                      /* how the processor rounds, before the present call */
};

static struct m3_guard *guarded;        /* for the signal handler */

/* ---- memory */

static size_t inner_size(const struct m3_guard *g, size_t size)
{
    const size_t padded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return (padded + g->page - 1) / g->page * g->page;
}

/* The operand ends as close to the forbidden pages as its alignment permits. */
static int map(const struct m3_guard *g, struct region *r)
{
    const size_t inside = inner_size(g, r->size), padded = (r->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    r->mapped = inside + 2 * (size_t)FORBIDDEN;
    void *memory = mmap(NULL, r->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return M3_INTERNAL;
    r->mapping = memory;
    if (mprotect(r->mapping + FORBIDDEN, inside, PROT_READ | PROT_WRITE)) return M3_INTERNAL;
    r->at = r->mapping + FORBIDDEN + inside - padded;
    memset(r->mapping + FORBIDDEN, BESIDE, inside - padded);
    memset((unsigned char *)(uintptr_t)r->at + r->size, BESIDE, padded - r->size);
    return M3_OK;
}

static void release(struct m3_guard *g)
{
    for (int i = 0; i < g->count; i++)
        if (g->regions[i].mapping) munmap(g->regions[i].mapping, g->regions[i].mapped);
    g->count = 0;
}

static size_t size_of(const struct m3_outside_operand *o)
{
    size_t size = m3_dtype_bytes(o->dtype);
    for (int d = 0; d < o->rank; d++) size *= (size_t)o->shape[d];
    return size;
}

/* ---- before and after an operator */

/* An input in the memory of an output is the output's: the operator may overwrite it. */
static int shares(const struct m3_outside_call *c, int i)
{
    for (int k = 0; k < c->operands; k++)
        if (!c->operand[i].is_output && c->operand[k].is_output && c->operand[k].data == c->operand[i].data) return k;
    return -1;
}

static int prepare(struct m3_guard *g, struct m3_outside_call *c, int i)
{
    const struct m3_outside_operand *o = &c->operand[i];
    struct region *r = &g->regions[i];
    *r = (struct region){ .name = o->name, .is_output = o->is_output, .is_copy_of = shares(c, i) };
    if (c->weight[i]) {
        r->at = c->weight[i]->data;
        r->size = m3_weight_bytes(c->weight[i]);
        return M3_OK;
    }
    r->size = size_of(o);
    if (r->size == 0 || r->is_copy_of >= 0 || (!r->is_output && r->size > M3_GUARD_MOST_COPIED)) return M3_OK;
    if (map(g, r)) return M3_INTERNAL;
    unsigned char *to = c->moved[i] = (unsigned char *)(uintptr_t)r->at;
    int in_place = 0;
    for (int k = 0; k < c->operands; k++) in_place |= k != i && c->operand[k].data == o->data && !c->weight[k];
    if (r->is_output && !in_place) memset(to, UNWRITTEN, r->size);
    else memcpy(to, o->data, r->size);
    if (!r->is_output) mprotect(r->mapping + FORBIDDEN, inner_size(g, r->size), PROT_READ);
    return M3_OK;
}

/* Does the processor round to nearest, keep subnormal numbers, and go on after an exception? Asked of the arithmetic
 * itself: the ways to change it differ, and fegetround does not know all of them. */
static int rounds_as_usual(void)
{
    volatile float one = 1, less = FLT_EPSILON / 4, more = FLT_EPSILON / 4 * 3, least = FLT_MIN, two = 2;
    return fegetexcept() == 0 && one + less == one && one + more > one && least / two > 0;
}

static int before(void *self, struct m3_outside_call *c)
{
    struct m3_guard *g = self;
    int status = M3_OK;
    for (g->count = 0; !status && g->count < c->operands;) {
        status = prepare(g, c, g->count);
        g->count++;
    }
    if (status) release(g);
    g->record->calls++;
    fegetenv(&g->arithmetic);
    if (!status) m3_watch_enter(g->record, c->op);
    return status;
}

/* The first byte of [from, end) that is not `value`; NULL: there is none. */
static const unsigned char *other_than(int value, const unsigned char *from, const unsigned char *end)
{
    while (from < end && *from == value) from++;
    return from < end ? from : NULL;
}

static int is_unwritten(const unsigned char *element, size_t size)
{
    return !other_than(UNWRITTEN, element, element + size);
}

/* What is wrong with an output that the operator has returned; into the record's fault. */
static int find_fault(struct m3_guard *g, const struct region *r, const struct m3_outside_operand *o, int whole)
{
    const unsigned char *start = r->mapping + FORBIDDEN, *end = start + inner_size(g, r->size);
    char *fault = g->record->fault;
    const size_t room = sizeof g->record->fault, size = m3_dtype_bytes(o->dtype);
    const char *op = g->record->place;
    if (other_than(BESIDE, start, r->at)) return snprintf(fault, room, "%s wrote before the start of %s", op, r->name);
    if (other_than(BESIDE, r->at + r->size, end))
        return snprintf(fault, room, "%s wrote past the end of %s", op, r->name);
    /* -1 is an empty place in a list of ids. */
    for (size_t at = 0; whole && (o->dtype == M3_F32 || o->dtype == M3_F64) && at < r->size; at += size)
        if (is_unwritten(r->at + at, size))
            return snprintf(fault, room, "%s left element %zu of %s unwritten", op, at / size, r->name);
    return 0;
}

/* The status of a failed operator: its own, if it is one that operators have and comes with words; any other one would
 * say something that is not true about the program's files or options. */
static int failed(struct m3_guard *g, const char *op, struct m3_ctx *ctx, int status)
{
    const char *why = ctx->failure.what;
    const int known = status == M3_WRONG || status == M3_BAD_INPUT || status == M3_UNAVAILABLE || status == M3_INTERNAL;
    snprintf(g->record->fault, sizeof g->record->fault, "%s returned status %d%s%s", op, status, why ? ": " : "",
             why ? why : "");
    return known && why ? status : m3_fail_at(ctx, M3_INTERNAL, g->record->fault, -1, -1, -1);
}

static int after(void *self, struct m3_outside_call *c, struct m3_ctx *ctx, int status)
{
    struct m3_guard *g = self;
    int faulty = 0;
    m3_watch_leave(g->record);
    if (!rounds_as_usual())     /* which would change the results of all operators after it */
        faulty =
            snprintf(g->record->fault, sizeof g->record->fault,
                     "%s left the processor with another rounding, without subnormal numbers, or with traps", c->op);
    fesetenv(&g->arithmetic);
    for (int i = 0; i < g->count; i++) {
        const struct m3_outside_operand *o = &c->operand[i];
        const struct region *r = &g->regions[i];
        if (!r->is_output || !r->mapping) continue;
        int in_place = 0;
        for (int k = 0; k < g->count; k++) in_place |= g->regions[k].is_copy_of == i;
        if (!faulty) faulty = find_fault(g, r, o, !status && !in_place && !o->optional);
        memcpy(o->data, r->at, r->size);
    }
    release(g);
    if (faulty) return m3_fail_at(ctx, M3_INTERNAL, g->record->fault, -1, -1, -1);
    return status ? failed(g, c->op, ctx, status) : M3_OK;
}

/* ---- the signal handler */

static int contains(const void *from, size_t size, const void *address)
{
    return (uintptr_t)address >= (uintptr_t)from && (uintptr_t)address - (uintptr_t)from < size;
}

/* Only functions that a signal handler may call: snprintf of strings allocates nothing here. */
static void describe(const struct m3_guard *g, const void *address)
{
    char *fault = g->record->fault;
    const size_t room = sizeof g->record->fault;
    for (int i = 0; i < g->count; i++) {
        const struct region *r = &g->regions[i];
        if (!r->is_output && r->is_copy_of < 0 && r->at && contains(r->at, r->size, address)) {
            snprintf(fault, room, "wrote to its input %s", r->name);
            return;
        }
        if (r->mapping && contains(r->mapping, r->mapped, address)) {
            snprintf(fault, room, "touched memory %s %s",
                     address < (const void *)r->at ? "before the start of" : "past the end of", r->name);
            return;
        }
    }
    snprintf(fault, room, "touched memory that belongs to none of its operands");
}

static void handle(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (number == SIGBUS) m3_mapped_handle(info);
    if (guarded && atomic_load(&guarded->record->since) && info->si_code > 0) describe(guarded, info->si_addr);
    signal(number, SIG_DFL);
    raise(number);
}

static const int caught[] = { SIGSEGV, SIGBUS };

static void catch_signals(struct m3_guard *g)
{
    const struct sigaction action = { .sa_flags = SA_SIGINFO, .sa_sigaction = handle };
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) sigaction(caught[i], &action, &g->before[i]);
}

static void release_signals(const struct m3_guard *g)
{
    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++) sigaction(caught[i], &g->before[i], NULL);
}

/* ---- the guard */

int m3_guard_open(struct m3_guard **guard, const struct m3_engine *engine, const struct m3_replacement *inner,
                  struct m3_watch_record *record, struct m3_error *error)
{
    struct m3_guard *g = *guard = calloc(1, sizeof *g);
    if (!g) return m3_fail_memory(error, "a guard", sizeof *g);
    g->record = record;
    g->page = (size_t)sysconf(_SC_PAGESIZE);
    g->ops = *inner->ops;
    engine->watched(&g->ops, inner->ops, engine->ops);
    g->outside = (struct m3_outside){
        .self = g, .inner = inner->ops, .inner_state = inner->state, .before = before, .after = after
    };
    g->replacement = (struct m3_replacement){ &g->ops, &g->outside };
    guarded = g;
    catch_signals(g);
    return M3_OK;
}

const struct m3_replacement *m3_guard_replacement(const struct m3_guard *guard)
{
    return guard ? &guard->replacement : NULL;
}

void m3_guard_close(struct m3_guard *g)
{
    if (!g) return;
    release_signals(g);
    guarded = NULL;
    free(g);
}
