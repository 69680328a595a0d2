#include "oracle/variants/rows_beside.h"

#include <stdlib.h>

#include "io/safetensors.h"
#include "io/temporary.h"

struct m3_rows_beside {
    struct m3_safetensors *file;        /* nothing but rows */
    const struct m3_profile *profile;
    struct m3_writer *writer;
    int64_t first;                      /* the first of their tensors there */
};

int m3_rows_beside_make(struct m3_rows_beside **out, const struct m3_envelope_plan *plan, const char *path,
                        struct m3_error *error)
{
    struct m3_envelope_plan rows_only = *plan;
    struct m3_rows_beside *rows = *out = calloc(1, sizeof *rows);
    struct m3_nameless file;
    rows_only.runs = 0;
    if (!rows) return m3_fail_memory(error, path, sizeof *rows);
    rows->profile = plan->profile;
    int status = m3_temporary_nameless(&file, path, error);
    if (!status) status = m3_envelope_make(&rows_only, file.path, error);
    if (!status) status = m3_safetensors_open(&rows->file, file.path, error);
    m3_nameless_close(&file);
    if (!status) return M3_OK;
    m3_rows_beside_free(rows);
    *out = NULL;
    return status;
}

int m3_rows_beside_declare(struct m3_rows_beside *rows, struct m3_writer *writer, struct m3_error *error)
{
    rows->writer = writer;
    rows->first = m3_writer_declared(writer);
    int status = m3_writer_metadata(writer, "row_profile", m3_profile_name(rows->profile), error);
    if (!status) status = m3_writer_metadata(writer, "row_profile_sha256", m3_profile_sha256(rows->profile), error);
    for (int64_t i = 0; i < m3_safetensors_count(rows->file) && !status; i++) {
        const struct m3_tensor *t = m3_safetensors_at(rows->file, i);
        status = m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, error);
    }
    return status;
}

int m3_rows_beside_write(const struct m3_rows_beside *rows, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < m3_safetensors_count(rows->file) && !status; i++) {
        const struct m3_tensor *t = m3_safetensors_at(rows->file, i);
        status = m3_writer_append(rows->writer, rows->first + i, t->data, t->bytes, error);
    }
    return status;
}

void m3_rows_beside_free(struct m3_rows_beside *rows)
{
    if (!rows) return;
    m3_safetensors_close(rows->file);
    free(rows);
}
