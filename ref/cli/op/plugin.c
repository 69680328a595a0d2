#include "cli/op/plugin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/minmax.h"
#include "oracle/operators/results.h"
#include "watch/guard.h"

struct computing {
    const struct m3_plugin_task *task;
    struct m3_plugin_results *r;
    struct m3_case_file cases;
    struct m3_watch watch;
    int64_t next;               /* the first case without results */
    int64_t calls;              /* of operators that the plug-in replaces */
};

/* ---- files */

/* Copies bytes of one file to a place in another. */
static int copy(const struct m3_nameless *to, int64_t to_at, const struct m3_nameless *from, int64_t from_at,
                int64_t bytes, struct m3_error *error)
{
    char piece[1 << 16];
    while (bytes > 0) {
        const ssize_t got = pread(from->fd, piece, (size_t)m3_min(bytes, (int64_t)sizeof piece), from_at);
        const ssize_t put = got > 0 ? pwrite(to->fd, piece, (size_t)got, to_at) : got;
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0)
            return m3_fail(error, M3_IO, "a temporary file: %s", put < 0 ? strerror(errno) : "it has become shorter");
        from_at += put, to_at += put, bytes -= put;
    }
    return M3_OK;
}

static int make_files(struct m3_plugin_results *r, const struct m3_plugin_task *task, struct m3_error *error)
{
    struct m3_nameless *const files[] = { &r->made, &r->given, &r->one, &r->kept };
    int status = M3_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) files[i]->fd = -1;
    for (size_t i = 0; !status && i < sizeof files / sizeof *files; i++)
        status = m3_temporary_nameless(files[i], NULL, error);
    r->cases = task->cases ? task->cases : r->made.path;
    r->results = r->given.path;
    return status;
}

/* Keeps the results that were written for case i. A child that ends meanwhile leaves bytes that nothing refers to. */
static int keep(struct m3_plugin_results *r, int64_t i, struct m3_error *error)
{
    struct stat one, kept;
    if (fstat(r->one.fd, &one) != 0 || fstat(r->kept.fd, &kept) != 0)
        return m3_fail(error, M3_IO, "a temporary file: %s", strerror(errno));
    const int status = copy(&r->kept, kept.st_size, &r->one, 0, one.st_size, error);
    r->outcomes[i].at = kept.st_size;
    r->outcomes[i].bytes = status ? 0 : one.st_size;
    return status;
}

/* Opens the results of case i; *file is NULL if it has none. */
static int open_kept(struct m3_safetensors **file, const struct m3_plugin_results *r, int64_t i,
                     struct m3_nameless *room, struct m3_error *error)
{
    const struct m3_plugin_outcome *of = &r->outcomes[i];
    *file = NULL;
    room->fd = -1;
    if (r->faults[i]) return M3_OK;
    int status = m3_temporary_nameless(room, NULL, error);
    if (!status) status = copy(room, 0, &r->kept, of->at, of->bytes, error);
    return status ? status : m3_safetensors_open(file, room->path, error);
}

/* ---- what children do */

static int make_cases(void *self)
{
    const struct computing *c = self;
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_make_summary summary;
    const int status = m3_make_cases(c->task->op, c->r->cases, c->task->make, &summary, &error);
    return m3_cli_end(status, &notes, &error);
}

/* The results of one case, in a file of their own. What the guard saw is the fault of the case. */
static int compute_case(struct computing *c, int64_t i, struct m3_error *error)
{
    struct m3_case_file one = c->cases;
    struct m3_error why = { 0 };
    one.cases = json_pack("[O]", json_array_get(c->cases.cases, (size_t)i));
    one.count = 1;
    int status = one.cases ? M3_OK : m3_fail_memory(error, "a case", 0);
    c->watch.record->fault[0] = '\0';
    if (!status)
        status = m3_write_results(&one, c->r->one.path, c->task->engine, m3_cli_ops_replacement(c->task->ops),
                                  c->task->threads, 0, &why);
    if (!status) status = keep(c->r, i, &why);
    if (status && c->watch.record->fault[0]) {
        snprintf(c->r->outcomes[i].fault, sizeof c->r->outcomes[i].fault, "%s", c->watch.record->fault);
        status = M3_OK;
    } else if (status) {
        m3_fail_because(error, status, &why);
    }
    m3_error_free(&why);
    json_decref(one.cases);
    return status;
}

static int compute(void *self)
{
    struct computing *c = self;
    struct m3_error notes = { 0 }, error = { 0 };
    c->watch.record->item = -1;
    int status = m3_cli_ops_open(c->task->ops, c->task->engine, &error);
    for (int64_t i = c->next; !status && i < c->cases.count; i++) {
        c->watch.record->item = i;
        status = compute_case(c, i, &error);
    }
    if (!status) c->watch.record->item = c->cases.count;
    m3_cli_ops_close(c->task->ops);
    return m3_cli_end(status, &notes, &error);
}

/* ---- the program's part */

/* A case that ended its child has its fault, and the next child continues after it. */
static int compute_all(struct computing *c, struct m3_error *error)
{
    struct m3_plugin_results *r = c->r;
    const char *lib = c->task->ops->name;
    int status = M3_OK;
    while (!status && c->next < c->cases.count) {
        char fault[512];
        status = m3_watch_run(&c->watch, compute, c, fault, sizeof fault, error);
        const int64_t at = c->watch.record->item;
        c->calls += c->watch.record->calls;
        r->printed = status && !fault[0] && error->count == 0;
        if (!fault[0]) break;
        if (at < 0 || at >= c->cases.count) return m3_fail(error, M3_WRONG, "%s: %s", lib, fault);
        snprintf(r->outcomes[at].fault, sizeof r->outcomes[at].fault, "%s", fault);
        c->next = at + 1;
        status = M3_OK;
        for (; strstr(fault, "did not return") && c->next < c->cases.count; c->next++)
            snprintf(r->outcomes[c->next].fault, sizeof r->outcomes[c->next].fault,
                     "not run, because case %" PRId64 " did not return", at);
    }
    if (!status && c->calls == 0)
        return m3_fail(error, M3_UNAVAILABLE, "%s: got no operator that %s calls, expected one to be replaced", lib,
                       c->task->op->name);
    return status;
}

/* Writes the results of all cases that have some into one file; first declares their tensors, then writes them. */
static int collect(struct computing *c, struct m3_error *error)
{
    struct m3_writer *writer = NULL;
    int status = m3_writer_new(&writer, c->r->results, error);
    for (int pass = 0; !status && pass < 2; pass++) {
        for (int64_t i = 0; !status && i < c->cases.count; i++) {
            struct m3_safetensors *file;
            struct m3_nameless room;
            status = open_kept(&file, c->r, i, &room, error);
            for (int64_t k = 0; !status && file && k < m3_safetensors_count(file); k++) {
                const struct m3_tensor *t = m3_safetensors_at(file, k);
                status = pass ? m3_writer_write(writer, t->data, t->bytes, error)
                              : m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, error);
            }
            m3_safetensors_close(file);
            m3_nameless_close(&room);
        }
        if (!status && !pass) status = m3_writer_begin(writer, error);
    }
    if (!status) return m3_writer_commit(writer, error);
    m3_writer_abandon(writer);
    return status;
}

/* Children write into this memory. */
static int make_outcomes(struct m3_plugin_results *r, int64_t count, struct m3_error *error)
{
    void *outcomes;
    const int status = m3_watch_share(&outcomes, (size_t)count * sizeof *r->outcomes, error);
    r->outcomes = outcomes;
    r->count = count;
    r->faults = calloc((size_t)count + 1, sizeof *r->faults);
    return r->faults ? status : m3_fail_memory(error, "faults", (size_t)count * sizeof *r->faults);
}

int m3_plugin_results_make(struct m3_plugin_results *r, const struct m3_plugin_task *task, struct m3_error *error)
{
    struct computing c = { .task = task, .r = r };
    struct m3_safetensors *file = NULL;
    char fault[512];
    *r = (struct m3_plugin_results){ 0 };
    int status = make_files(r, task, error);
    if (!status) status = m3_cli_ops_watch(&c.watch, task->ops, error);
    if (!status && !task->cases) {
        status = m3_watch_run(&c.watch, make_cases, &c, fault, sizeof fault, error);
        if (fault[0]) m3_fail(error, status, "the maker of cases: %s", fault);
        r->printed = status && error->count == 0;
    }
    if (!status) status = m3_safetensors_open(&file, r->cases, error);
    if (!status) status = m3_case_file_open(&c.cases, task->op, file, error);
    if (!status) status = make_outcomes(r, c.cases.count, error);
    if (!status) status = compute_all(&c, error);
    for (int64_t i = 0; !status && i < r->count; i++)
        r->faults[i] = r->outcomes[i].fault[0] ? r->outcomes[i].fault : NULL;
    if (!status) status = collect(&c, error);
    m3_case_file_close(&c.cases);
    m3_safetensors_close(file);
    m3_watch_close(&c.watch);
    task->ops->record = NULL;
    return status;
}

void m3_plugin_results_close(struct m3_plugin_results *r)
{
    struct m3_nameless *const files[] = { &r->made, &r->given, &r->one, &r->kept };
    for (size_t i = 0; r->cases && i < sizeof files / sizeof *files; i++) m3_nameless_close(files[i]);
    m3_watch_unshare(r->outcomes, (size_t)r->count * sizeof *r->outcomes);
    free(r->faults);
    *r = (struct m3_plugin_results){ 0 };
}
