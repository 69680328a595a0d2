#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cli/op/perf.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "cli/standard.h"
#include "io/json.h"
#include "model/plugin.h"
#include "ops/ops.h"
#include "ops/outside.h"
#include "oracle/operators/case_file.h"
#include "oracle/operators/evaluate.h"
#include "watch/watch.h"

/* Each case runs at least this often, and until this many seconds are over. */
enum { LEAST_RUNS = 5, MOST_RUNS = 1000 };
static const double least_seconds = 0.3;

/* ---- the cost of a call, from its operands */

static const struct m3_outside_operand *operand(const struct m3_outside_call *c, const char *name, int *at)
{
    for (int i = 0; i < c->operands; i++)
        if (strcmp(c->operand[i].name, name) == 0) {
            if (at) *at = i;
            return &c->operand[i];
        }
    return NULL;
}

static double parameter(const struct m3_outside_call *c, const char *name)
{
    for (int i = 0; i < c->parameters; i++)
        if (strcmp(c->parameter[i].name, name) == 0) return c->parameter[i].number;
    return 0;
}

/* How many of the ids 0 .. most-1 occur, of each group of `groups`. */
static double distinct(const struct m3_outside_operand *ids, int64_t groups, int64_t most)
{
    const int32_t *id = ids->data;
    const int64_t last = ids->shape[ids->rank - 1];
    int64_t count = 1, found = 0;
    unsigned char *seen = calloc((size_t)(groups * most) + 1, 1);
    for (int d = 0; d < ids->rank; d++) count *= ids->shape[d];
    for (int64_t i = 0; seen && i < count; i++) {
        const int64_t group = groups > 1 ? i / last % groups : 0;
        if (id[i] < 0 || id[i] >= most || seen[group * most + id[i]]) continue;
        seen[group * most + id[i]] = 1;
        found++;
    }
    free(seen);
    return (double)found;
}

static double operand_bytes(const struct m3_outside_call *c, int i)
{
    const struct m3_outside_operand *o = &c->operand[i];
    double bytes = (double)m3_dtype_bytes(c->weight[i] ? c->weight[i]->dtype : o->dtype);
    for (int d = 0; d < o->rank; d++) bytes *= (double)o->shape[d];
    return bytes;
}

/* Share of an operand that the call must read: chosen experts, chosen blocks. */
static double share_read(const struct m3_outside_call *c, const struct m3_outside_operand *o)
{
    const struct m3_outside_operand *ids = operand(c, "ids", NULL), *blocks = operand(c, "blocks", NULL);
    if (strcmp(c->op, "experts") == 0 && o->rank == 3 && o->name[0] == 'w')
        return distinct(ids, 1, o->shape[0]) / (double)o->shape[0];
    if (strcmp(c->op, "embed") == 0 && o->name[0] == 'w') return distinct(ids, 1, o->shape[0]) / (double)o->shape[0];
    if (blocks && (strcmp(o->name, "k") == 0 || strcmp(o->name, "v") == 0)) {
        const int64_t size = (int64_t)parameter(c, "block"), all = (o->shape[0] + size - 1) / size;
        return distinct(blocks, o->shape[1], all) / (double)(all * o->shape[1]);
    }
    return 1;
}

/* Pairs of a row and a key that it may see: the rows are the last ones. */
static double causal_pairs(double T, double S) { return T * (S - T) + T * (T + 1) / 2; }

/* Multiplications and additions of its products; 0 for elementwise operators. */
static double operations_of(const struct m3_outside_call *c)
{
    const struct m3_outside_operand *x = operand(c, "x", NULL), *w = operand(c, "w", NULL),
                                    *w1 = operand(c, "w1", NULL);
    const struct m3_outside_operand *q = operand(c, "q", NULL), *k = operand(c, "k", NULL);
    if (strcmp(c->op, "linear") == 0) return 2 * (double)x->shape[0] * (double)w->shape[0] * (double)w->shape[1];
    if (strcmp(c->op, "experts") == 0)
        return 6 * (double)x->shape[0] * (double)operand(c, "ids", NULL)->shape[1] * (double)w1->shape[1] *
               (double)w1->shape[2];
    if (!q) return 0;
    const double T = (double)q->shape[0], S = (double)k->shape[0], width = (double)q->shape[1] * (double)q->shape[2];
    if (strcmp(c->op, "attend_full") == 0) return 4 * width * causal_pairs(T, S);
    if (strcmp(c->op, "block_scores") == 0) return 2 * width * causal_pairs(T, S);
    if (strcmp(c->op, "attend_blocks") == 0) {
        const double kept = (double)operand(c, "blocks", NULL)->shape[2] * parameter(c, "block");
        double pairs = 0;
        for (double t = 0; t < T; t++) pairs += fmin(S - T + t + 1, kept);
        return 4 * width * pairs;
    }
    const struct m3_outside_operand *ends = operand(c, "ends", NULL);
    double pairs = 0, before = 0;
    for (int64_t i = 0; ends && i < ends->shape[0]; i++) {
        const double end = (double)((const int64_t *)ends->data)[i];
        pairs += (end - before) * (end - before);
        before = end;
    }
    return 4 * width * pairs;
}

/* ---- timing */

struct timer {
    struct m3_watch_record *record;
    double start, spent, bytes, operations;
    int64_t calls;
};

static int start(void *self, struct m3_outside_call *c)
{
    struct timer *timer = self;
    for (int i = 0; i < c->operands; i++) timer->bytes += operand_bytes(c, i) * share_read(c, &c->operand[i]);
    timer->operations += operations_of(c);
    timer->calls++;
    m3_watch_enter(timer->record, c->op);
    timer->start = m3_seconds();
    return M3_OK;
}

static int stop(void *self, struct m3_outside_call *c, struct m3_ctx *ctx, int status)
{
    struct timer *timer = self;
    timer->spent += m3_seconds() - timer->start;
    m3_watch_leave(timer->record);
    (void)c, (void)ctx;
    return status;
}

struct timing {
    double seconds, bytes, operations;
    int64_t calls;
};

/* The fastest of several runs of one call, `most` at most, with the operators of `inner` that differ from `own`. */
static int time_call(struct timing *timing, const struct m3_perf_task *task, const struct m3_fragment *call,
                     const struct m3_operator_case *one, const struct m3_replacement *inner, const struct m3_ops *own,
                     int most, struct m3_error *error)
{
    struct timer timer = { 0 };
    struct m3_outside outside = {
        .self = &timer, .inner = inner->ops, .inner_state = inner->state, .before = start, .after = stop
    };
    struct m3_ops ops = *inner->ops;
    const struct m3_replacement timed = { &ops, &outside };
    const struct m3_evaluation_how how = { .engine = task->engine,
                                           .threads = task->threads,
                                           .replacement = &timed,
                                           .rows = one->rows,
                                           .count = one->row_count };
    const double began = m3_seconds();
    int status = M3_OK;
    task->engine->watched(&ops, inner->ops, own);
    *timing = (struct timing){ .seconds = INFINITY };
    for (int run = 0; !status && run < most; run++) {
        struct m3_evaluation values;
        timer = (struct timer){ .record = task->ops->record };
        status = m3_evaluate(&values, call, &how, error);
        m3_evaluation_free(&values);
        /* The first run warms up caches, threads and scratch. */
        if (run > 0 && timer.spent < timing->seconds) timing->seconds = timer.spent;
        if (run >= LEAST_RUNS && m3_seconds() - began > least_seconds) break;
    }
    timing->bytes = timer.bytes, timing->operations = timer.operations, timing->calls = timer.calls;
    return status;
}

/* ---- what children do */

struct rates {
    double read, sgemm;         /* per second */
};

struct measuring {
    const struct m3_perf_task *task;
    const char *cases;
    const char *limit;          /* the item of bench that is measured now */
    struct m3_watch watch;
    struct rates *rates;        /* shared memory: what the children measured */
};

static int measure_limit(void *self)
{
    struct measuring *m = self;
    struct m3_error notes = { 0 }, error = { 0 };
    double *rate = strcmp(m->limit, "read") == 0 ? &m->rates->read : &m->rates->sgemm;
    const int status = m3_cli_bench_rate(rate, m->limit, m->task->threads, 3, &error);
    return m3_cli_end(status, &notes, &error);
}

static int make(void *self)
{
    const struct measuring *m = self;
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_make_summary summary;
    const int status = m3_make_cases(m->task->op, m->cases, m->task->make, &summary, &error);
    return m3_cli_end(status, &notes, &error);
}

/* "x[16,6144] w[6144]", as much as fits. */
static void shapes_of(char *text, size_t room, const struct m3_fragment *call)
{
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < M3_OPERATOR_OPERANDS && call->op->operands[i].role != M3_ROLE_NONE; i++) {
        const struct m3_tensor *t = &call->operands[i];
        char one[128];
        size_t size = (size_t)snprintf(one, sizeof one, "%s%s", n > 0 ? " " : "", call->op->operands[i].name);
        for (int d = 0; d < t->rank; d++)
            size += (size_t)snprintf(one + size, sizeof one - size, "%c%" PRId64 "%s", d > 0 ? ',' : '[', t->shape[d],
                                     d + 1 == t->rank ? "]" : "");
        if (t->rank == 0 || n + size >= room) continue;
        memcpy(text + n, one, size + 1);
        n += size;
    }
}

static void print_timing(const struct measuring *m, const struct m3_operator_case *one, const struct m3_fragment *call,
                         const struct timing *reference, const struct timing *plugin)
{
    char shapes[64];
    shapes_of(shapes, sizeof shapes, call);
    const double limit = fmax(reference->bytes / m->rates->read, reference->operations / m->rates->sgemm);
    char other[96] = "";
    if (m->task->json) {
        json_t *line = json_pack("{s:s, s:s, s:I, s:s, s:f, s:o, s:f, s:f, s:f, s:f, s:f}", "type", "perf", "op",
                                 m->task->op->name, "case", (json_int_t)one->number, "what", shapes, "reference_s",
                                 reference->seconds, "plugin_s", plugin ? json_real(plugin->seconds) : json_null(),
                                 "limit_s", limit, "bytes", reference->bytes, "operations", reference->operations,
                                 "read_bytes_per_s", m->rates->read, "sgemm_operations_per_s", m->rates->sgemm);
        char *text = line ? m3_json_dump(line, JSON_COMPACT) : NULL;
        if (text) puts(text);
        free(text);
        json_decref(line);
        return;
    }
    if (plugin)
        snprintf(other, sizeof other, "  plug-in %9.3f ms, %5.1f%% of the limit", 1e3 * plugin->seconds,
                 100 * limit / plugin->seconds);
    printf("case %-3" PRId64 " %s:  limit %9.3f ms (%s)  reference %9.3f ms, %5.1f%% of the limit%s\n", one->number,
           shapes, 1e3 * limit, reference->bytes / m->rates->read >= limit ? "reads" : "products",
           1e3 * reference->seconds, 100 * limit / reference->seconds, other);
}

/* One run of the plug-in, whose errors need no limits of the machine: these take seconds. */
static int try_case(const struct measuring *m, const struct m3_case_file *cases, int64_t i, struct m3_error *error)
{
    const struct m3_perf_task *task = m->task;
    const struct m3_replacement *inner = m3_cli_ops_replacement(task->ops);
    struct m3_operator_case one;
    struct m3_fragment *call = NULL;
    struct timing theirs = { 0 };
    int status = m3_case_file_at(&one, cases, i, error);
    if (!status) status = m3_case_file_call(&call, cases, &one, error);
    if (!status && call->drawn)
        status = m3_fail(error, M3_USAGE, "case %" PRId64 ": a plug-in cannot run a case whose weights are drawn",
                         one.number);
    if (!status) status = time_call(&theirs, task, call, &one, inner, task->engine->ops, 1, error);
    if (!status && theirs.calls == 0)
        status = m3_fail(error, M3_UNAVAILABLE, "%s: got no operator that %s calls, expected one to be replaced",
                         task->ops->name, task->op->name);
    m3_fragment_free(call);
    m3_operator_case_free(&one);
    return status;
}

static int time_case(const struct measuring *m, const struct m3_case_file *cases, int64_t i, struct m3_error *error)
{
    static const struct m3_ops none;
    const struct m3_perf_task *task = m->task;
    const struct m3_replacement reference = { task->engine->ops, NULL }, *inner = m3_cli_ops_replacement(task->ops);
    struct m3_operator_case one;
    struct m3_fragment *call = NULL;
    struct timing ours, theirs = { 0 };
    int status = m3_case_file_at(&one, cases, i, error);
    if (!status) status = m3_case_file_call(&call, cases, &one, error);
    if (!status) status = time_call(&ours, task, call, &one, &reference, &none, MOST_RUNS, error);
    if (!status && inner) status = time_call(&theirs, task, call, &one, inner, &none, MOST_RUNS, error);
    if (!status) print_timing(m, &one, call, &ours, inner ? &theirs : NULL);
    m3_fragment_free(call);
    m3_operator_case_free(&one);
    return status;
}

/* Each case that is timed: the drawn ones, which are the last. */
static int for_cases(const struct measuring *m,
                     int (*visit)(const struct measuring *, const struct m3_case_file *, int64_t, struct m3_error *))
{
    const struct m3_perf_task *task = m->task;
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_safetensors *file = NULL;
    struct m3_case_file cases = { 0 };
    int status = m3_cli_ops_open(task->ops, task->engine, &error);
    if (!status) status = m3_safetensors_open(&file, m->cases, &error);
    if (!status) status = m3_case_file_open(&cases, task->op, file, &error);
    for (int64_t i = cases.count - task->make->random; !status && i < cases.count; i++)
        status = visit(m, &cases, i, &error);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
    m3_cli_ops_close(task->ops);
    return m3_cli_end(status, &notes, &error);
}

static int time_cases(void *self)
{
    const struct measuring *m = self;
    if (!m->task->json)
        printf("limits of this machine: reads %.1f GB/s, products %.1f GFLOP/s (--threads %d)\n", m->rates->read / 1e9,
               m->rates->sgemm / 1e9, m->task->threads);
    return for_cases(m, time_case);
}

static int try_cases(void *self) { return for_cases(self, try_case); }

/* ---- the program's part */

static int in_child(struct measuring *m, int (*function)(void *), int *printed, struct m3_error *error)
{
    char fault[512];
    const int status = m3_watch_run(&m->watch, function, m, fault, sizeof fault, error);
    *printed = status && !fault[0] && error->count == 0;
    if (fault[0])
        return m3_fail(error, M3_INTERNAL, "%s: %s", m->task->ops->name ? m->task->ops->name : "op --perf", fault);
    return status;
}

int m3_perf(const struct m3_perf_task *task, int *printed, struct m3_error *error)
{
    struct measuring m = { .task = task };
    struct m3_standard file = { 0 };
    int status = m3_standard_output(&file, "-", error);
    m.cases = file.path;
    *printed = 0;
    if (!status) status = m3_cli_ops_watch(&m.watch, task->ops, error);
    task->ops->is_timed = 1;
    void *rates = NULL;
    if (!status) status = m3_watch_share(&rates, sizeof *m.rates, error);
    m.rates = rates;
    if (!status) status = in_child(&m, make, printed, error);
    if (!status && task->ops->name) status = in_child(&m, try_cases, printed, error);
    static const char *const limits[] = { "read", "sgemm" };
    for (int i = 0; !status && i < 2; i++) {
        m.limit = limits[i];
        status = in_child(&m, measure_limit, printed, error);
    }
    if (!status) status = in_child(&m, time_cases, printed, error);
    m3_watch_unshare(m.rates, sizeof *m.rates);
    m3_watch_close(&m.watch);
    m3_standard_end(&file);
    return status;
}
