#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "library/private.h"
#include "oracle/error/profile.h"
#include "oracle/operators/check_file.h"
#include "oracle/operators/drawn/file.h"
#include "oracle/operators/from_dump/from_dump.h"
#include "oracle/operators/make.h"
#include "oracle/operators/results.h"

static int set_sizes(struct m3_make_options *options, const char *sizes)
{
    static const char *const classes[] = { "tiny", "small", "real" };
    for (int i = 0; i < 3; i++)
        if (strcmp(sizes, classes[i]) == 0) {
            options->sizes = (enum m3_size_class)i;
            return M3_OK;
        }
    options->given = sizes;
    return M3_OK;
}

static int set_dtype(struct m3_make_options *options, const char *dtype, struct m3_error *error)
{
    static const char *const names[] = { "f32", "bf16", "f16" };
    static const enum m3_dtype dtypes[] = { M3_F32, M3_BF16, M3_F16 };
    for (int i = 0; i < 3; i++)
        if (strcmp(dtype, names[i]) == 0) {
            options->dtype = dtypes[i];
            return M3_OK;
        }
    return m3_fail(error, M3_USAGE, "dtype: got %s, expected f32, bf16 or f16", dtype);
}

static int no_operator(const char *name, struct m3_error *error)
{
    return m3_fail(error, M3_USAGE, "got the operator %s, expected one of op --list", name);
}

static int make(const struct m3_library_make *task, struct m3_error *error)
{
    const struct m3_operator_row *op = NULL;
    struct m3_make_options options = { .seed = task->seed, .random = task->count };
    struct m3_make_summary summary;
    int status = m3_library_need(task->op, "op", error);
    if (!status) status = m3_library_need(task->cases, "cases", error);
    if (!status && !(op = m3_operator_named(task->op))) status = no_operator(task->op, error);
    if (!status) status = set_sizes(&options, task->sizes ? task->sizes : "small");
    if (!status) status = set_dtype(&options, task->dtype ? task->dtype : "f32", error);
    if (!status && task->count < 0)
        status = m3_fail(error, M3_USAGE, "cases: got %" PRId64 ", expected 0 or more", task->count);
    return status ? status : m3_make_cases(op, task->cases, &options, &summary, error);
}

int m3_library_make(const struct m3_library_make *task, struct m3_error *error)
{
    struct m3_reading reading;
    struct m3_library_make own;
    int status = m3_library_begin(&reading, &own, sizeof own, task, error);
    if (!status) status = make(&own, error);
    m3_reading_end(&reading);
    return status;
}

static int from(const struct m3_library_from *task, struct m3_error *error)
{
    const struct m3_operator_row *op = NULL;
    const struct m3_from_dump options = { .dump = task->dump,
                                          .model = task->model,
                                          .case_path = task->case_path,
                                          .taps = task->taps,
                                          .rows = task->rows,
                                          .dtype = M3_DTYPES,
                                          .allow_large = task->allow_large };
    struct m3_from_dump_summary summary;
    struct m3_error notes = { 0 };
    int status = m3_library_need(task->op, "op", error);
    if (!status) status = m3_library_need(task->cases, "cases", error);
    if (!status) status = m3_library_need(task->dump, "dump", error);
    if (!status) status = m3_library_need(task->taps, "taps", error);
    if (!status) status = m3_library_need(task->model, "model", error);
    if (!status && !(op = m3_operator_named(task->op))) status = no_operator(task->op, error);
    if (!status) status = m3_cases_from_dump(op, task->cases, &options, &summary, &notes, error);
    m3_error_free(&notes);
    return status;
}

int m3_library_from(const struct m3_library_from *task, struct m3_error *error)
{
    struct m3_reading reading;
    struct m3_library_from own;
    int status = m3_library_begin(&reading, &own, sizeof own, task, error);
    if (!status) status = from(&own, error);
    m3_reading_end(&reading);
    return status;
}

/* Leaves the one case with this number. */
static int keep_one(struct m3_case_file *cases, int64_t number, struct m3_error *error)
{
    json_t *one = NULL;
    for (size_t i = 0; i < json_array_size(cases->cases); i++) {
        json_t *entry = json_array_get(cases->cases, i);
        if (json_integer_value(json_object_get(entry, "case")) == number) one = entry;
    }
    if (!one) return m3_fail(error, M3_USAGE, "got case %" PRId64 ", expected one of the file", number);
    json_t *list = json_pack("[O]", one);
    if (!list) return m3_fail_memory(error, "a case", 0);
    json_decref(cases->cases);
    cases->cases = list;
    cases->count = 1;
    return M3_OK;
}

static int run(struct m3_library_run *task, struct m3_error *error)
{
    const struct m3_engine *engine;
    const struct m3_replacement *replacement;
    struct m3_library_table table;
    struct m3_safetensors *file = NULL;
    struct m3_case_file cases = { 0 };
    int status = m3_library_need(task->cases, "cases", error);
    if (!status) status = m3_library_need(task->results, "results", error);
    if (!status) status = m3_library_set_threads(&task->threads, error);
    if (!status) status = m3_library_engine(&engine, task->precision, error);
    if (!status) status = m3_library_table(&replacement, &table, &task->ops, engine, error);
    if (!status) status = m3_safetensors_open_as(&file, task->cases, "cases", error);
    if (!status) status = m3_case_file_open(&cases, NULL, file, error);
    if (!status && task->only >= 0) status = keep_one(&cases, task->only, error);
    if (!status)
        status = m3_write_results(&cases, task->results, engine, replacement, task->threads, task->bounds, error);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
    return status;
}

int m3_library_run(const struct m3_library_run *task, struct m3_error *error)
{
    struct m3_reading reading;
    struct m3_library_run own;
    int status = m3_library_begin(&reading, &own, sizeof own, task, error);
    if (!status) status = run(&own, error);
    m3_reading_end(&reading);
    return status;
}

static int draw(struct m3_library_draw *task, struct m3_error *error)
{
    struct m3_safetensors *file = NULL;
    struct m3_case_file cases = { 0 };
    int status = m3_library_need(task->cases, "cases", error);
    if (!status) status = m3_library_need(task->drawn, "drawn", error);
    if (!status) status = m3_library_set_threads(&task->threads, error);
    if (!status) status = m3_safetensors_open_as(&file, task->cases, "cases", error);
    if (!status) status = m3_case_file_open(&cases, NULL, file, error);
    if (!status) status = m3_write_drawn(&cases, task->drawn, task->only, task->threads, error);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
    return status;
}

int m3_library_draw(const struct m3_library_draw *task, struct m3_error *error)
{
    struct m3_reading reading;
    struct m3_library_draw own;
    int status = m3_library_begin(&reading, &own, sizeof own, task, error);
    if (!status) status = draw(&own, error);
    m3_reading_end(&reading);
    return status;
}

static int check(struct m3_library_report *report, struct m3_library_check *task, struct m3_error *error)
{
    struct m3_safetensors *file = NULL, *results = NULL;
    struct m3_case_file cases = { 0 };
    struct m3_profile *profile = NULL;
    struct m3_file_check checked = { 0 };
    int status = m3_library_need(task->cases, "cases", error);
    if (!status) status = m3_library_need(task->results, "results", error);
    if (!status) status = m3_library_set_threads(&task->threads, error);
    if (!status) status = m3_profile_open(&profile, task->profile ? task->profile : "fp32", error);
    if (!status) status = m3_safetensors_open_as(&file, task->cases, "cases", error);
    if (!status) status = m3_case_file_open(&cases, NULL, file, error);
    if (!status && task->only >= 0) status = keep_one(&cases, task->only, error);
    if (!status) status = m3_safetensors_open_as(&results, task->results, "results", error);
    if (!status) status = m3_file_check(&checked, &cases, results, NULL, profile, task->threads, error);
    if (!status) status = m3_library_report(report, &checked.comparison, error);
    m3_file_check_free(&checked);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
    m3_safetensors_close(results);
    m3_profile_close(profile);
    return status;
}

int m3_library_check(struct m3_library_report *report, const struct m3_library_check *task, struct m3_error *error)
{
    struct m3_reading reading;
    struct m3_library_check own;
    if (!report) return m3_fail(error, M3_USAGE, "report: got NULL, expected a structure");
    *report = (struct m3_library_report){ 0 };
    int status = m3_library_begin(&reading, &own, sizeof own, task, error);
    if (!status) status = check(report, &own, error);
    m3_reading_end(&reading);
    return status;
}
