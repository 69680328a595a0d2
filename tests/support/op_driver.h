/* One call of an operator as data, and what is claimed of every call: inputs and the memory around all operands are left
 * alone, scratch memory is given back, and the bits depend on nothing but the operands. */
#ifndef M3_TESTS_OP_DRIVER_H
#define M3_TESTS_OP_DRIVER_H

#include "model/engine.h"
#include "ops/ops.h"

#include <check.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "guard.h"
#include "room.h"
#include "twin.h"

enum { CALL_OPERANDS = 12, CALL_PLACES = 2, ANY = -2, NOWHERE = -1 };

struct operand {
    void *at; /* an input, or where the bytes of an output go; an input may be NULL */
    size_t size;
    int is_reals;
    const void *start; /* an output that is added to: what is there before */
};

#define IS_REALS(x) _Generic((x), real *: 1, const real *: 1, default: 0)
#define OPERAND(x, n) { (void *)(uintptr_t)(x), (size_t)(n) * sizeof *(x), IS_REALS(x), NULL }
#define ADDED(x, n, before) { (void *)(uintptr_t)(x), (size_t)(n) * sizeof *(x), IS_REALS(x), before }

/* p: the operands, outputs first, in the order of the call. plain: the definition, not the body of a pass. */
typedef int call_body(struct m3_ctx *ctx, void *const *p, const void *self, int plain);

struct call {
    call_body *body;
    const void *self; /* sizes and parameters */
    int outputs, inputs;
    struct operand p[CALL_OPERANDS];
    int optional; /* bits of the outputs that may be NULL */
    int places; /* in how many ways an output may lie where an input is (call_in_place) */
    struct {
        int output, input;
    } place[CALL_PLACES];
    enum m3_linear linear;
    int checks_first; /* where it refuses, nothing is written */
    int blas; /* with this `linear` no order is fixed: the plain body may have other bits */
    struct m3_ctx *ctx; /* NULL: one of its own */
    struct m3_failure failure; /* of the last run */
};

#define CALL(of, with, outs, ins, ...)                                                                                 \
    {                                                                                                                  \
        .body = (of), .self = (with), .outputs = (outs), .inputs = (ins), .p = { __VA_ARGS__ }                         \
    }

/* Values for `self` that last until rooms_free. */
#define KEPT(type, ...) memcpy(room(1, sizeof(type)), &(type){ __VA_ARGS__ }, sizeof(type))

/* place: 0 all apart, k place[k - 1]. without: bits of outputs that are NULL. */
struct how {
    int threads, place, plain, without;
};

/* A program that has the operators inside chooses its kernels. */
#ifdef M3_TESTS_OPS_INSIDE
#include "ops/operators.h"
static inline const struct m3_ops *ops_of(int plain) { return plain ? &m3_plain_ops : &m3_fast_ops; }
#else
static inline const struct m3_ops *ops_of(int plain) { return plain ? M3_ENGINE()->plain : M3_ENGINE()->ops; }
#endif

/* The output may lie where the input is. */
static inline void call_in_place(struct call *c, int output, int input)
{
    ck_assert_int_lt(c->places, CALL_PLACES);
    c->place[c->places].output = output;
    c->place[c->places++].input = input;
}

/* What output i holds before the call. */
static inline void call_start(void *to, const struct call *c, int i, struct how how)
{
    const struct operand *p = &c->p[i];
    /* Another start for the plain body; 0xFF would be an id of -1. */
    memset(to, how.plain ? 0x11 : p->is_reals ? GUARD_POISON : 0x5A, p->size);
    if (p->start) memcpy(to, p->start, p->size);
    if (how.place && c->place[how.place - 1].output == i)
        memcpy(to, c->p[c->outputs + c->place[how.place - 1].input].at, p->size);
}

/* Is output i as it was before the call? */
static inline int call_untouched(const struct call *c, int i, struct how how, const void *now)
{
    void *before = malloc(c->p[i].size + 1);
    if (!before) abort();
    call_start(before, c, i, how);
    const int same = memcmp(before, now, c->p[i].size) == 0;
    free(before);
    return same;
}

/* Once, between guards. Outputs go to their operands; returns the status, after which nothing need be written. */
static inline int call_run(struct call *c, struct how how)
{
    struct guard zones[CALL_OPERANDS];
    void *p[CALL_OPERANDS], *given[CALL_OPERANDS];
    struct m3_ctx own, *ctx = c->ctx ? c->ctx : &own;
    for (int i = 0; i < c->outputs + c->inputs; i++) {
        const struct operand *o = &c->p[i];
        const int output = i < c->outputs;
        p[i] = output ? guard_output(&zones[i], o->size) : guard_input(&zones[i], o->at ? o->at : "", o->size);
        if (output) call_start(p[i], c, i, how);
        given[i] = (output ? how.without >> i & 1 : o->at == NULL) ? NULL : p[i];
    }
    if (how.place) given[c->outputs + c->place[how.place - 1].input] = p[c->place[how.place - 1].output];
    if (!c->ctx) ck_assert_int_eq(m3_ctx_init(&own, how.threads, c->linear), M3_OK);
    const int status = c->body(ctx, given, c->self, how.plain);
    ck_assert_uint_eq(m3_scratch_mark(ctx), 0);
    c->failure = ctx->failure;
    if (!c->ctx) m3_ctx_free(&own);
    for (int i = 0; i < c->outputs + c->inputs; i++) {
        if (i < c->outputs && (how.without >> i & 1))
            ck_assert_msg(call_untouched(c, i, how, p[i]), "output %d is written and not wanted", i);
        else if (i < c->outputs) memcpy(c->p[i].at, p[i], c->p[i].size);
        ck_assert_msg(guard_intact(&zones[i]), "beside operand %d, or this input, was written", i);
    }
    return status;
}

static inline void call_ok(struct call *c, struct how how)
{
    const int status = call_run(c, how);
    ck_assert_msg(status == M3_OK, "status %d: %s", status, c->failure.what);
}

static inline void call_with(struct call *c, int threads) { call_ok(c, (struct how){ .threads = threads }); }

/* The same bits; any NaN is as good as another. */
static inline int operand_same(const struct operand *p, const void *want)
{
    if (memcmp(p->at, want, p->size) == 0) return 1;
    if (!p->is_reals) return 0;
    for (size_t i = 0; i < p->size / sizeof(real); i++)
        if (!twin_same(((const real *)p->at)[i], ((const real *)want)[i])) return 0;
    return 1;
}

/* Runs once more, and demands the bits of `want`. */
static inline void call_again(struct call *c, struct how how, void *const *want)
{
    call_ok(c, how);
    for (int i = 0; i < c->outputs; i++)
        if (!(how.without >> i & 1))
            ck_assert_msg(operand_same(&c->p[i], want[i]),
                          "output %d differs: threads %d, place %d, %s body, without %x", i, how.threads, how.place,
                          how.plain ? "plain" : "other", (unsigned)how.without);
}

/* Runs c in every way: any number of threads, every place, each optional output left out and alone, and by the plain
 * body where orders are fixed. The same bits each time; those of the first run stay. */
static inline void call_all(struct call *c)
{
    const int mark = room_count, by_order = TWIN_IN_ORDER && !c->blas, most = twin_threads[TWIN_TEAMS - 1];
    void *want[CALL_OPERANDS];
    call_with(c, 1);
    for (int i = 0; i < c->outputs; i++) want[i] = memcpy(room((int64_t)c->p[i].size, 1), c->p[i].at, c->p[i].size);
    for (int team = 0; team < TWIN_TEAMS; team++)
        for (int place = team == 0; place <= c->places; place++)
            call_again(c, (struct how){ .threads = twin_threads[team], .place = place }, want);
    for (int place = 0; by_order && place <= c->places; place++)
        call_again(c, (struct how){ .threads = place ? 1 : 5, .place = place, .plain = 1 }, want);
    for (int i = 0; i < c->outputs * (1 + by_order); i++) {
        const int output = i % c->outputs, plain = i >= c->outputs, others = c->optional & ~(1 << output);
        if (!(c->optional >> output & 1)) continue;
        call_again(c, (struct how){ .threads = most, .without = 1 << output, .plain = plain }, want);
        if (others) call_again(c, (struct how){ .threads = 1, .without = others, .plain = plain }, want);
    }
    for (int i = 0; i < c->outputs; i++) memcpy(c->p[i].at, want[i], c->p[i].size);
    rooms_free(mark);
}

/* A context carries nothing from one call to the next: after `first`, c gives the bits that it gives alone. */
static inline void call_after(struct call *c, struct call *first)
{
    struct m3_ctx ctx;
    void *want[CALL_OPERANDS];
    call_with(c, 1);
    for (int i = 0; i < c->outputs; i++) want[i] = memcpy(room((int64_t)c->p[i].size, 1), c->p[i].at, c->p[i].size);
    ck_assert_int_eq(m3_ctx_init(&ctx, 2, c->linear), M3_OK);
    first->ctx = c->ctx = &ctx;
    call_with(first, 2);
    call_again(c, (struct how){ .threads = 2 }, want);
    m3_ctx_free(&ctx);
}

/* A place of a failure; status ANY: not M3_OK, and no internal error. */
struct refusal {
    int64_t status, row, group, block;
};

static inline void call_refused_once(struct call *c, struct how how, struct refusal want)
{
    const struct m3_failure *f = &c->failure;
    const int status = call_run(c, how);
    ck_assert_msg(want.status == ANY ? status != M3_OK && status != M3_INTERNAL : status == want.status, "status %d",
                  status);
    ck_assert_ptr_nonnull(f->what);
    ck_assert_msg((want.row == ANY || f->row == want.row) && (want.group == ANY || f->group == want.group) &&
                      (want.block == ANY || f->block == want.block),
                  "row %lld group %lld block %lld, not %lld %lld %lld; %d threads: %s", (long long)f->row,
                  (long long)f->group, (long long)f->block, (long long)want.row, (long long)want.group,
                  (long long)want.block, how.threads, f->what);
    for (int i = 0; i < c->outputs && c->checks_first; i++)
        ck_assert_msg(call_untouched(c, i, how, c->p[i].at), "output %d was written", i);
}

/* Refused in every way, with the same place. */
static inline void call_refused(struct call *c, int status, int64_t row, int64_t group, int64_t block)
{
    const struct refusal want = { status, row, group, block };
    for (int team = 0; team < TWIN_TEAMS; team++)
        for (int place = 0; place <= c->places; place++)
            call_refused_once(c, (struct how){ .threads = twin_threads[team], .place = place }, want);
    if (c->optional & ~1) call_refused_once(c, (struct how){ .threads = 2, .without = c->optional & ~1 }, want);
    if (TWIN_IN_ORDER) call_refused_once(c, (struct how){ .threads = 1, .plain = 1 }, want);
}

/* ---- call_NAME of every operator: operands as operators.def lists them, `self` is a struct NAME_values */

#define FIELD_OUT(...)
#define FIELD_MAYBE_OUT(...)
#define FIELD_IN(...)
#define FIELD_EXTRA(...)
#define FIELD_ROW(...)
#define FIELD_VALUE(type, name, ...) type name;
#define SLOT_OUT(type, name, ...) slot_##name,
#define SLOT_MAYBE_OUT SLOT_OUT
#define SLOT_IN SLOT_OUT
#define SLOT_EXTRA SLOT_OUT
#define SLOT_ROW(...)
#define SLOT_VALUE(...)
#define PASS_OUT(type, name, ...) , p[slot_##name]
#define PASS_MAYBE_OUT PASS_OUT
#define PASS_IN PASS_OUT
#define PASS_EXTRA PASS_OUT
#define PASS_ROW(...)
#define PASS_VALUE(type, name, ...) , v->name
#define BODY(name, ...)                                                                                                \
    struct name##_values {                                                                                             \
        M3_CALL_##name(FIELD_)                                                                                         \
    };                                                                                                                 \
    static inline int call_##name(struct m3_ctx *ctx, void *const *p, const void *self, int plain)                     \
    {                                                                                                                  \
        enum { M3_CALL_##name(SLOT_) };                                                                                \
        const struct name##_values *v = self;                                                                          \
        return ops_of(plain)->name(ctx M3_CALL_##name(PASS_));                                                         \
    }
#define NO_BODY(...)
M3_OPERATORS(BODY, NO_BODY)

/* ---- operands */

static inline real *reals(int64_t count) { return room(count, sizeof(real)); }

/* Numbers in [-size, size), all bits in use. */
static inline real *drawn(int64_t count, double size, uint64_t *state)
{
    real *x = reals(count);
    for (int64_t i = 0; i < count; i++) x[i] = (real)(size * twin_fine(state));
    return x;
}

/* Operands as the twins take them. */
static inline double *widened(const real *x, int64_t count)
{
    double *wide = room(count, sizeof *wide);
    for (int64_t i = 0; i < count; i++) wide[i] = (double)x[i];
    return wide;
}

static inline int same_reals(const real *a, const real *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

#endif
