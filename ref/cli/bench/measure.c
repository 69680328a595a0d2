/* Measures one item between runs of its limit. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "base/clock.h"
#include "cli/bench/work.h"
#include "cli/cli.h"

static const char *const limit_names[] = { NULL, "sgemm", "read", "copy", "forward" };

int m3_bench_is_item(const char *name) { return m3_bench_item(name) != NULL; }

static double seconds_now(const struct m3_bench_options *o)
{
    struct timespec now;
    if (!o->cpu_time) return m3_seconds();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Runs chain operators with ||, which leaves only that one failed: their operands are right, and so memory is short. */
static int run_once(struct bench *m, int (*run)(struct bench *))
{
    const int failed = run(m);
    if (!failed || m->error->count) return failed;
    return m3_fail(m->error, M3_INTERNAL, "bench: %s",
                   m->ctx.failure.what ? m->ctx.failure.what : "an operator failed");
}

/* The fastest of several runs, and of runs of the limit between them, so that both see the machine in the same state. */
static int time_item(struct m3_bench_result *r, struct bench *m, const struct item *item,
                     const struct m3_bench_options *o)
{
    struct limit_run limit = { 0 };
    double best = 1e30, best_limit = 1e30;
    struct rusage usage;
    int status = m3_ctx_init(&m->ctx, (int)m->threads, M3_LINEAR_BLAS);
    if (status) return m3_fail_memory(m->error, "a context", sizeof m->ctx);
    openblas_set_num_threads(1);
    item->prepare(m);
    status = run_once(m, item->run); /* warms up caches, threads and scratch; not timed */
    getrusage(RUSAGE_SELF, &usage);
    r->peak_bytes = m->anonymous ? m->anonymous : usage.ru_maxrss * 1024;
    if (item->limit == FORWARD) limit.operations = m->operations;
    else if (!status && item->limit) m3_bench_prepare_limit(&limit, m, item->limit);
    for (int64_t i = 0; !status && i < o->runs; i++) {
        double start = seconds_now(o);
        status = run_once(m, item->run);
        best = fmin(best, seconds_now(o) - start);
        if (status || !item->limit) continue;
        start = seconds_now(o);
        if (item->limit == FORWARD) status = run_once(m, item->forward);
        else m3_bench_run_limit(&limit, m);
        best_limit = fmin(best_limit, seconds_now(o) - start);
    }
    r->seconds = best;
    r->rate = m->operations / best;
    r->limit_rate = item->limit ? limit.operations / best_limit : 0;
    return status;
}

int m3_bench_measure(struct m3_bench_result *r, const char *name, const struct m3_bench_options *o,
                     struct m3_error *error)
{
    const struct item *item = m3_bench_item(name);
    *r = (struct m3_bench_result){ 0 };
    if (!item) return m3_fail(error, M3_USAGE, "bench: got %s, expected one item (m3ref bench --help)", name);
    struct bench m = { .op = m3_engine_f32()->ops,
                       .back = m3_engine_f32()->back,
                       .threads = o->threads,
                       .keys = o->keys,
                       .folder = o->folder,
                       .error = error };
    r->name = item->name;
    r->by_bytes = item->by_bytes;
    r->limit = limit_names[item->limit];
    r->goal = item->goal;
    const int status = time_item(r, &m, item, o);
    m3_ctx_free(&m.ctx);
    m3_model_close(m.model);
    for (int i = 0; i < m.taken_count; i++) free(m.taken[i]);
    return status;
}

int m3_cli_bench_rate(double *rate, const char *name, int64_t threads, int64_t runs, struct m3_error *error)
{
    struct m3_bench_result result;
    const int status =
        m3_bench_measure(&result, name, &(struct m3_bench_options){ .threads = threads, .runs = runs }, error);
    *rate = status ? 0 : result.rate;
    return status;
}
