#include "oracle/check/truth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/temporary.h"
#include "model/files/dump.h"
#include "model/files/origin.h"
#include "model/semantics.h"
#include "oracle/judge/companions.h"
#include "oracle/judge/companions_write.h"
#include "oracle/variants/rows_beside.h"

/* ---- reuse */

static int states(const struct m3_safetensors *file, const char *key, const char *value)
{
    const char *stated = m3_safetensors_metadata(file, key);
    return stated && value && strcmp(stated, value) == 0;
}

static int has_reading(const struct m3_safetensors *file, const struct m3_semantics *semantics)
{
    char *expected = m3_semantics_json(semantics);
    const int same = expected && states(file, "semantics", expected);
    free(expected);
    return same;
}

/* What the file says has written it: a run with as many honest implementations. */
enum { COMMAND = 64 };
static void command_of(char command[COMMAND], int64_t row_runs)
{
    snprintf(command, COMMAND, "m3ref check --row-runs %" PRId64, row_runs);
}

static int has_profile(const struct m3_safetensors *file, const struct m3_envelope_plan *plan)
{
    char command[COMMAND];
    command_of(command, plan->row_runs);
    return states(file, "command", command) &&
           (plan->row_runs == 0 || states(file, "row_profile_sha256", m3_profile_sha256(plan->profile)));
}

int m3_truth_fits(int *fits, const struct m3_safetensors *file, const struct m3_envelope_plan *plan,
                  struct m3_error *error)
{
    const char *path = m3_safetensors_path(file);
    const struct m3_origin_use use = { .status = M3_WRONG };
    const char *command = m3_safetensors_metadata(file, "command");
    struct m3_origin expected;
    struct m3_error differences = { 0 };
    *fits = 0;
    if (!command || strncmp(command, "m3ref check", strlen("m3ref check")) != 0 || !m3_companions_in(file))
        return m3_fail(error, M3_BAD_INPUT, "%s: this is not a truth that m3ref check wrote, and is not replaced",
                       path);
    int status = m3_origin_of_model(&expected, plan->model, plan->c, error);
    if (status) return status;
    status = m3_origin_check(file, &expected, &use, NULL, &differences);
    m3_error_free(&differences);
    if (status && status != M3_WRONG) return status;
    *fits = !status && has_reading(file, plan->semantics) && has_profile(file, plan);
    return M3_OK;
}

/* ---- making it */

static int declare_rows(struct m3_rows_beside **rows, const struct m3_envelope_plan *plan,
                        const struct m3_companions_writer *companions, const char *path, struct m3_error *error)
{
    if (plan->row_runs == 0) return M3_OK;
    const int status = m3_rows_beside_make(rows, plan, path, error);
    return status ? status : m3_rows_beside_declare(*rows, m3_companions_file(companions), error);
}

static int make(const struct m3_envelope_plan *plan, const char *path, struct m3_error *error)
{
    const struct m3_engine *engine = m3_engine_f64();
    struct m3_request request = m3_envelope_request(plan);
    struct m3_dump *dump = NULL;
    struct m3_companions_writer *companions = NULL;
    struct m3_rows_beside *rows = NULL;
    struct m3_sink sink;
    int status =
        m3_dump_open(&dump, &sink, path, plan->taps, plan->model, engine, plan->c, &request, plan->command, error);
    if (!status)
        status = m3_companions_open(&companions, &sink, NULL, dump, plan->model, engine, plan->c, &request,
                                    plan->command, error);
    if (!status) status = declare_rows(&rows, plan, companions, path, error);
    if (!status) status = m3_dump_begin(dump, error);
    if (!status) status = m3_companions_begin(companions, error);
    if (!status && rows) status = m3_rows_beside_write(rows, error);
    m3_rows_beside_free(rows);
    request.sink = &sink;
    if (!status) status = engine->forward(plan->model, &request, error);
    if (!status) {
        status = m3_companions_commit(companions, error);
        companions = NULL;
    }
    if (!status) return m3_dump_commit(dump, error);
    m3_companions_abandon(companions);
    m3_dump_abandon(dump);
    return status;
}

/* Writes a file into a temporary folder, opens it, and removes its name. */
static int make_nameless(struct m3_truth *truth, const struct m3_envelope_plan *plan, struct m3_error *error)
{
    char *folder, *path = NULL;
    int status = m3_temporary_folder(&folder, error);
    if (status) return status;
    status = m3_temporary_in(&path, folder, "truth.safetensors", error);
    if (!status) status = make(plan, path, error);
    if (!status) status = m3_safetensors_open_as(&truth->file, path, "the truth", error);
    if (path) unlink(path);
    rmdir(folder);
    free(path);
    free(folder);
    return status;
}

int m3_truth_open(struct m3_truth *truth, const struct m3_envelope_plan *given, const char *path,
                  struct m3_error *notes, struct m3_error *error)
{
    char command[COMMAND];
    struct m3_envelope_plan own = *given;
    const struct m3_envelope_plan *plan = &own;
    command_of(command, given->row_runs);
    own.command = command;
    *truth = (struct m3_truth){ 0 };
    int status = path ? M3_OK : make_nameless(truth, plan, error);
    if (!path) return status;
    if (access(path, F_OK) == 0) {
        status = m3_safetensors_open(&truth->file, path, error);
        if (!status) status = m3_truth_fits(&truth->reused, truth->file, plan, error);
        if (status || truth->reused) return status;
        m3_truth_close(truth);
        m3_fail(notes, M3_OK, "%s: belongs to another model, case, reading or profile, and is replaced", path);
    }
    status = make(plan, path, error);
    return status ? status : m3_safetensors_open(&truth->file, path, error);
}

void m3_truth_close(struct m3_truth *truth)
{
    m3_safetensors_close(truth->file);
    truth->file = NULL;
}
