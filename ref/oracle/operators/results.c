#include "oracle/operators/results.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "oracle/error/profile.h"
#include "oracle/operators/bounds_of_call.h"
#include "oracle/operators/evaluate.h"

struct writing {
    const struct m3_case_file *cases;
    const struct m3_engine *engine;
    const struct m3_replacement *replacement;
    struct m3_writer *writer;
    struct m3_ctx ctx;
    struct m3_profile *profile;     /* of the bounds; NULL: without bounds */
    struct m3_error *error;
};

/* Called for each case, first to declare its tensors, then to write them. */
typedef int each_case(struct writing *w, const struct m3_operator_case *one, const struct m3_fragment *call);

static int for_all(struct writing *w, each_case *function)
{
    int status = M3_OK;
    for (int64_t i = 0; !status && i < w->cases->count; i++) {
        struct m3_operator_case one;
        struct m3_fragment *call = NULL;
        status = m3_case_file_at(&one, w->cases, i, w->error);
        if (!status) status = m3_case_file_call(&call, w->cases, &one, w->error);
        if (!status) status = function(w, &one, call);
        m3_fragment_free(call);
        m3_operator_case_free(&one);
    }
    return status;
}

static int declare(struct writing *w, const struct m3_operator_case *one, const struct m3_fragment *call)
{
    int status = M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS && call->op->outputs[i].role != M3_ROLE_NONE; i++) {
        const struct m3_operand_row *output = &call->op->outputs[i];
        int64_t shape[M3_MAX_RANK];
        char name[96];
        const int rank = m3_fragment_shape(shape, call, output);
        const int ids = output->role == M3_ROLE_TAP && m3_tap_table[output->tap].kind != M3_KIND_REALS;
        if (one->rows) shape[0] = one->row_count;
        snprintf(name, sizeof name, "%" PRId64 ".%s", one->number, output->name);
        const enum m3_dtype real = w->engine->real_bytes == sizeof(double) ? M3_F64 : M3_F32;
        status = m3_writer_tensor(w->writer, name, ids ? M3_I32 : real, rank, shape, w->error);
        snprintf(name, sizeof name, "%" PRId64 ".%s.allowed", one->number, output->name);
        if (!status && w->profile && !ids) status = m3_writer_tensor(w->writer, name, M3_F64, rank, shape, w->error);
    }
    return status;
}

static int write_case(struct writing *w, const struct m3_operator_case *one, const struct m3_fragment *call)
{
    const struct m3_evaluation_how how = { .engine = w->engine,
                                           .threads = w->ctx.threads,
                                           .linear = w->ctx.linear,
                                           .replacement = w->replacement,
                                           .rows = one->rows,
                                           .count = one->row_count };
    struct m3_evaluation values;
    if (call->drawn && w->replacement)
        return m3_fail(w->error, M3_USAGE, "case %" PRId64 ": a plug-in cannot run a case whose weights are drawn",
                       one->number);
    int status = m3_evaluate(&values, call, &how, w->error);
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS && call->op->outputs[i].role != M3_ROLE_NONE; i++) {
        const struct m3_tensor *t = &values.outputs[i];
        status = m3_writer_write(w->writer, t->data, t->bytes, w->error);
        if (status || !w->profile || t->dtype == M3_I32) continue;
        double *allowed = malloc(((size_t)t->count + 1) * sizeof *allowed);
        if (!allowed) status = m3_fail_memory(w->error, t->name, (size_t)t->count * sizeof *allowed);
        if (!status)
            status = m3_bounds_of_call(allowed, call, i, one->rows, one->row_count, w->profile, &w->ctx, w->error);
        if (!status) status = m3_writer_write(w->writer, allowed, (uint64_t)t->count * sizeof *allowed, w->error);
        free(allowed);
    }
    m3_evaluation_free(&values);
    return status;
}

int m3_write_results(const struct m3_case_file *cases, const char *path, const struct m3_engine *engine,
                     const struct m3_replacement *replacement, int threads, int bounds, struct m3_error *error)
{
    struct writing w = { .cases = cases, .engine = engine, .replacement = replacement, .error = error };
    if (m3_ctx_init(&w.ctx, threads, M3_LINEAR_BLAS)) return m3_fail_memory(error, "a context", sizeof w.ctx);
    int status = bounds ? m3_profile_open(&w.profile, "fp32", error) : M3_OK;
    if (!status) status = m3_writer_new(&w.writer, path, error);
    if (!status) status = for_all(&w, declare);
    if (!status) status = m3_writer_metadata(w.writer, "format", "m3ref-results", error);
    if (!status) status = m3_writer_metadata(w.writer, "producer", M3_PRODUCER, error);
    if (!status) status = m3_writer_metadata(w.writer, "operator", cases->op->name, error);
    if (!status) status = m3_writer_metadata(w.writer, "precision", engine->precision, error);
    const char *of = m3_safetensors_seal(cases->file);
    if (!status && of) status = m3_writer_metadata(w.writer, "cases_sha256", of, error);
    if (!status) status = m3_writer_begin(w.writer, error);
    if (!status) status = for_all(&w, write_case);
    if (!status) status = m3_writer_commit(w.writer, error);
    else m3_writer_abandon(w.writer);
    m3_profile_close(w.profile);
    m3_ctx_free(&w.ctx);
    return status;
}
