#include "cli/op_plugin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/temporary.h"
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

static char *in_folder(const struct m3_plugin_results *r, const char *name)
{
    char *path;
    return m3_temporary_in(&path, r->folder, name, NULL) ? NULL : path;
}

static char *results_of(const struct m3_plugin_results *r, int64_t i)
{
    char name[32];
    snprintf(name, sizeof name, "%" PRId64, i);
    return in_folder(r, name);
}

static int make_folder(struct m3_plugin_results *r, const struct m3_plugin_task *task, struct m3_error *error)
{
    const int status = m3_temporary_folder(&r->folder, error);
    if (status) return status;
    r->cases = task->cases ? strdup(task->cases) : in_folder(r, "cases");
    r->results = in_folder(r, "results");
    return r->cases && r->results ? M3_OK : m3_fail_memory(error, "a temporary folder", 0);
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
    char *path = results_of(c->r, i);
    one.cases = json_pack("[O]", json_array_get(c->cases.cases, (size_t)i));
    one.count = 1;
    int status = path && one.cases ? M3_OK : m3_fail_memory(error, "a case", 0);
    c->watch.record->fault[0] = '\0';
    if (!status)
        status = m3_write_results(&one, path, c->task->engine, m3_cli_ops_replacement(c->task->ops), c->task->threads,
                                  0, &why);
    if (status && c->watch.record->fault[0]) {
        snprintf(c->r->texts[i], sizeof c->r->texts[i], "%s", c->watch.record->fault);
        status = M3_OK;
    } else if (status && why.count) {
        m3_fail(error, status, "%.*s", (int)strcspn(why.text, "\n"), why.text);
    }
    m3_error_free(&why);
    json_decref(one.cases);
    free(path);
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
        snprintf(r->texts[at], sizeof r->texts[at], "%s", fault);
        c->next = at + 1;
        status = M3_OK;
        for (; strstr(fault, "did not return") && c->next < c->cases.count; c->next++)
            snprintf(r->texts[c->next], sizeof r->texts[c->next], "not run, because case %" PRId64 " did not return",
                     at);
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
            struct m3_safetensors *file = NULL;
            char *path = results_of(c->r, i);
            if (!path) status = m3_fail_memory(error, "a path", 0);
            if (!status && !c->r->faults[i]) status = m3_safetensors_open(&file, path, error);
            for (int64_t k = 0; !status && file && k < m3_safetensors_count(file); k++) {
                const struct m3_tensor *t = m3_safetensors_at(file, k);
                status = pass ? m3_writer_write(writer, t->data, t->bytes, error)
                              : m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, error);
            }
            if (pass && !status && file) unlink(path);
            m3_safetensors_close(file);
            free(path);
        }
        if (!status && !pass) status = m3_writer_begin(writer, error);
    }
    if (!status) return m3_writer_commit(writer, error);
    m3_writer_abandon(writer);
    return status;
}

/* Children write into this memory. */
static int make_texts(struct m3_plugin_results *r, int64_t count, struct m3_error *error)
{
    void *texts;
    const int status = m3_watch_share(&texts, (size_t)count * sizeof *r->texts, error);
    r->texts = texts;
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
    int status = make_folder(r, task, error);
    if (!status) status = m3_cli_ops_watch(&c.watch, task->ops, error);
    if (!status && !task->cases) {
        status = m3_watch_run(&c.watch, make_cases, &c, fault, sizeof fault, error);
        if (fault[0]) m3_fail(error, status, "the maker of cases: %s", fault);
        r->printed = status && error->count == 0;
    }
    if (!status) status = m3_safetensors_open(&file, r->cases, error);
    if (!status) status = m3_case_file_open(&c.cases, task->op, file, error);
    if (!status) status = make_texts(r, c.cases.count, error);
    if (!status) status = compute_all(&c, error);
    for (int64_t i = 0; !status && i < r->count; i++) r->faults[i] = r->texts[i][0] ? r->texts[i] : NULL;
    if (!status) status = collect(&c, error);
    m3_case_file_close(&c.cases);
    m3_safetensors_close(file);
    m3_watch_close(&c.watch);
    task->ops->record = NULL;
    return status;
}

void m3_plugin_results_close(struct m3_plugin_results *r)
{
    for (int64_t i = 0; r->folder && i < r->count; i++) {
        char *path = results_of(r, i);
        if (path) unlink(path);
        free(path);
    }
    char *made = r->folder ? in_folder(r, "cases") : NULL;
    if (made) unlink(made);
    if (r->results) unlink(r->results);
    if (r->folder) rmdir(r->folder);
    m3_watch_unshare(r->texts, (size_t)r->count * sizeof *r->texts);
    free(made);
    free(r->faults);
    free(r->folder);
    free(r->cases);
    free(r->results);
    *r = (struct m3_plugin_results){ 0 };
}
