#include "library/library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "base/version.h"
#include "io/processors.h"
#include "library/private.h"
#include "oracle/operators/list.h"
#include "oracle/report/report.h"

int m3_library_abi(void) { return M3_LIBRARY_ABI; }

size_t m3_library_error_size(void) { return sizeof(struct m3_error); }

const char *m3_library_version(void) { return M3_PRODUCER; }

void m3_library_free(char *text) { free(text); }

int m3_library_threads(void) { return m3_processors(); }

/* Every task begins with its size. */
int m3_library_begin(struct m3_reading *reading, void *own, size_t bytes, const void *task, struct m3_error *error)
{
    size_t size = 0;
    m3_reading_begin(reading);
    if (!task) return m3_fail(error, M3_USAGE, "task: got NULL, expected a structure");
    memcpy(&size, task, sizeof size);
    if (size == 0) size = bytes;
    if (size < sizeof size)
        return m3_fail(error, M3_USAGE, "task: got size %zu, expected sizeof of the structure", size);
    memset(own, 0, bytes);
    memcpy(own, task, size < bytes ? size : bytes);
    for (size_t i = bytes; i < size; i++)
        if (((const unsigned char *)task)[i] != 0)
            return m3_fail(
                error, M3_USAGE,
                "task: got %zu bytes and a field beyond the %zu that this library knows, expected zeros there", size,
                bytes);
    return M3_OK;
}

int m3_library_need(const char *value, const char *field, struct m3_error *error)
{
    return value && *value ? M3_OK : m3_fail(error, M3_USAGE, "%s: got none, expected one", field);
}

int m3_library_set_threads(int *threads, struct m3_error *error)
{
    if (*threads < 0) return m3_fail(error, M3_USAGE, "threads: got %d, expected 0 or more", *threads);
    if (*threads == 0) *threads = m3_library_threads();
    return M3_OK;
}

static int close_text(char **text, struct m3_memory_stream *memory, int status, struct m3_error *error)
{
    *text = m3_memory_close(memory);
    return status || *text ? status : m3_fail_memory(error, "text", memory->length);
}

int m3_library_operators(char **lines, struct m3_error *error)
{
    struct m3_memory_stream memory;
    FILE *out = m3_memory_open(&memory);
    return close_text(lines, &memory, out ? m3_list_operators(out, error) : M3_OK, error);
}

int m3_library_report(struct m3_library_report *report, const struct m3_judgement *comparison, struct m3_error *error)
{
    struct m3_memory_stream memory;
    *report = (struct m3_library_report){ .status = comparison->status };
    FILE *out = m3_memory_open(&memory);
    int status = out ? m3_report_json(out, comparison, M3_REPORT_ALL, error) : M3_OK;
    status = close_text(&report->lines, &memory, status, error);
    if (status) return status;
    out = m3_memory_open(&memory);
    status = out ? m3_report_text(out, comparison, M3_REPORT_SHORT, error) : M3_OK;
    return close_text(&report->text, &memory, status, error);
}

void m3_library_report_free(struct m3_library_report *report)
{
    free(report->lines);
    free(report->text);
    *report = (struct m3_library_report){ 0 };
}

int m3_library_engine(const struct m3_engine **engine, const char *precision, struct m3_error *error)
{
    if (!precision) precision = "f32";
    *engine = strcmp(precision, "f64") == 0 ? m3_engine_f64() : m3_engine_f32();
    if (strcmp((*engine)->precision, precision) == 0) return M3_OK;
    return m3_fail(error, M3_USAGE, "precision: got %s, expected f32 or f64", precision);
}

int m3_library_table(const struct m3_replacement **replacement, struct m3_library_table *table,
                     const struct m3_library_ops *ops, const struct m3_engine *engine, struct m3_error *error)
{
    *replacement = NULL;
    if (!ops->names || !*ops->names) return M3_OK;
    if (!ops->function) return m3_fail(error, M3_USAGE, "ops: got %s and no function, expected both", ops->names);
    memcpy(&table->ops, engine->ops, sizeof table->ops);
    table->outside = (struct m3_outside){ .self = ops->self, .function = ops->function };
    table->replacement = (struct m3_replacement){ &table->ops, &table->outside };
    for (const char *at = ops->names; *at;) {
        char name[64];
        const int length = (int)strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", length, at);
        if (engine->outside(&table->ops, name))
            return m3_fail(error, M3_USAGE, "ops: got %s, expected an operator of ops.h", name);
        at += length + (at[length] == ',');
    }
    *replacement = &table->replacement;
    return M3_OK;
}
