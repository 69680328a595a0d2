#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "library/private.h"
#include "model/files/case.h"
#include "model/files/dump.h"
#include "model/model.h"
#include "model/semantics.h"
#include "oracle/judge/companions/companions_write.h"

struct running {
    const struct m3_library_model *task;
    const struct m3_engine *engine;
    const struct m3_replacement *replacement;
    struct m3_model *model;
    struct m3_case the_case;
    struct m3_semantics semantics;
    enum m3_linear linear;
    struct m3_error *error;
};

static int read_linear(struct running *r)
{
    const char *name = r->task->linear ? r->task->linear : "blas";
    r->linear = strcmp(name, "ordered") == 0 ? M3_LINEAR_ORDERED : M3_LINEAR_BLAS;
    if (r->linear == M3_LINEAR_ORDERED || strcmp(name, "blas") == 0) return M3_OK;
    return m3_fail(r->error, M3_USAGE, "linear: got %s, expected blas or ordered", name);
}

static int read_semantics(struct running *r)
{
    int status = M3_OK;
    r->semantics = r->model->config.semantics;
    for (const char *at = r->task->set; !status && at && *at;) {
        char field[128];
        const int length = (int)strcspn(at, ",");
        snprintf(field, sizeof field, "%.*s", length, at);
        status = m3_semantics_set(&r->semantics, field, r->error);
        at += length + (at[length] == ',');
    }
    return status;
}

static int read_case(struct running *r)
{
    const struct m3_library_model *task = r->task;
    const struct m3_config *config = &r->model->config;
    struct m3_pictures none = { 0 };
    if (!task->the_case && (task->T < 1 || !task->ids))
        return m3_fail(r->error, M3_USAGE, "ids: got none, expected one or more");
    int status = task->the_case ? m3_case_read(&r->the_case, task->the_case, config, r->error)
                                : m3_case_from_ids(&r->the_case, task->ids, task->T, &none, config, r->error);
    if (status) return status;
    return m3_case_check(&r->the_case, config, task->allow_long, task->the_case ? "case" : "ids",
                         task->the_case ? M3_BAD_INPUT : M3_USAGE, r->error);
}

/* The pass, into a dump. */
static int forward(struct running *r)
{
    const struct m3_library_model *task = r->task;
    const struct m3_case *c = &r->the_case;
    struct m3_dump *dump = NULL;
    struct m3_companions_writer *companions = NULL;
    struct m3_sink sink = { 0 };
    struct m3_request request = m3_case_request(c);
    request.end_layer = r->model->config.layers;
    request.semantics = &r->semantics;
    request.linear = r->linear;
    request.threads = task->threads;
    request.replacement = r->replacement;
    int status =
        m3_dump_open(&dump, &sink, task->dump, task->taps, r->model, r->engine, c, &request, task->command, r->error);
    if (!status && task->bounds)
        status = m3_companions_open(&companions, &sink, NULL, dump, r->model, r->engine, c, &request, task->command,
                                    r->error);
    if (!status) status = m3_dump_begin(dump, r->error);
    if (!status && companions) status = m3_companions_begin(companions, r->error);
    request.sink = &sink;
    if (!status) status = r->engine->forward(r->model, &request, r->error);
    if (!status && companions) {
        status = m3_companions_commit(companions, r->error);
        companions = NULL;
    }
    if (!status) return m3_dump_commit(dump, r->error);
    m3_companions_abandon(companions);
    m3_dump_abandon(dump);
    return status;
}

static int model(struct m3_library_model *task, struct m3_error *notes, struct m3_error *error)
{
    struct running r = { .task = task, .error = error };
    struct m3_library_table table;
    int status = m3_library_need(task->model, "model", error);
    if (!status) status = m3_library_need(task->dump, "dump", error);
    if (!status) status = m3_library_set_threads(&task->threads, error);
    if (!task->command) task->command = "libm3ref";
    if (!status) status = m3_library_engine(&r.engine, task->precision, error);
    if (!status) status = m3_library_table(&r.replacement, &table, &task->ops, r.engine, error);
    if (!status) status = read_linear(&r);
    if (!status) status = m3_model_open(&r.model, task->model, notes, error);
    if (!status) status = read_semantics(&r);
    if (!status) status = read_case(&r);
    if (!status) status = forward(&r);
    m3_case_free(&r.the_case);
    m3_model_close(r.model);
    return status;
}

int m3_library_model(const struct m3_library_model *task, struct m3_error *notes, struct m3_error *error)
{
    struct m3_reading reading;
    struct m3_library_model own;
    int status = m3_library_begin(&reading, &own, sizeof own, task, error);
    if (!status) status = model(&own, notes, error);
    m3_reading_end(&reading);
    return status;
}
