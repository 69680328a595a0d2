#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/run_pass.h"
#include "io/temporary.h"
#include "oracle/judge/batch/join.h"

static int refuse_several(const struct m3_cli_run *a, struct m3_error *error)
{
    const char *const options[][2] = { { "--cache-in", a->cache_in },
                                       { "--cache-out", a->cache_out },
                                       { "--hidden", a->hidden },
                                       { "--decisions", a->decisions } };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i][1])
            return m3_fail(error, M3_USAGE,
                           "%s: got it with a case of several sequences, expected one: its file is of "
                           "one sequence",
                           options[i][0]);
    return M3_OK;
}

/* The files of the sequences, which have no names. */
struct each {
    struct m3_safetensors **dumps, **companions;        /* [count] */
};

static int run_sequence(struct each *each, struct m3_cli_passed *p, const struct m3_cli_run *a,
                        const struct m3_model *model, const struct m3_batch *batch, int64_t b,
                        const struct m3_semantics *semantics, double *logits, const char *line, struct m3_error *error)
{
    struct m3_cli_run own = *a;
    own.sequence = b;
    const struct m3_case *c = &batch->cases[b];
    struct m3_request request = m3_cli_request(a, model, c, semantics, logits);
    struct m3_nameless dump = { .fd = -1 }, companions = { .fd = -1 };
    int status = a->dump ? m3_temporary_nameless(&dump, NULL, error) : M3_OK;
    if (!status && a->companions) status = m3_temporary_nameless(&companions, NULL, error);
    own.dump = a->dump ? dump.path : NULL;
    own.companions = a->companions ? companions.path : NULL;
    if (!status) status = m3_cli_pass(p, &own, model, c, &request, line, error);
    if (!status && a->dump) status = m3_safetensors_open(&each->dumps[b], dump.path, error);
    if (!status && a->companions) status = m3_safetensors_open(&each->companions[b], companions.path, error);
    if (a->dump) m3_nameless_close(&dump);
    if (a->companions && companions.fd >= 0) m3_nameless_close(&companions);
    if (status || request.end_layer < model->config.layers || a->top == 0) return status;
    printf("sequence %" PRId64 ", T %" PRId64 ", ", b, c->T);
    m3_cli_print_next(logits, model->config.V, a->top, a->words);
    return M3_OK;
}

static void close_each(struct each *each, int64_t count)
{
    for (int64_t b = 0; each->dumps && b < count; b++) m3_safetensors_close(each->dumps[b]);
    for (int64_t b = 0; each->companions && b < count; b++) m3_safetensors_close(each->companions[b]);
    free(each->dumps);
    free(each->companions);
}

int m3_cli_run_several(const struct m3_cli_run *a, const struct m3_model *model, const struct m3_batch *batch,
                       const struct m3_semantics *semantics, double *logits, const char *line, struct m3_error *error)
{
    const int64_t count = batch->layout.count;
    struct m3_cli_passed p = { 0 };
    struct each each = { 0 };
    int64_t tokens = 0;
    char what[120];
    int status = refuse_several(a, error);
    if (!status) status = m3_cli_run_paths(a, error);
    each.dumps = calloc((size_t)count, sizeof *each.dumps);
    each.companions = calloc((size_t)count, sizeof *each.companions);
    if (!status && (!each.dumps || !each.companions))
        status = m3_fail_memory(error, "sequences", (size_t)count * sizeof *each.dumps);
    for (int64_t b = 0; !status && b < count; b++) {
        tokens += batch->layout.lengths[b];
        status = run_sequence(&each, &p, a, model, batch, b, semantics, logits, line, error);
    }
    if (!status && a->companions) status = m3_batch_join(a->companions, batch, each.companions, 0, error);
    if (!status && a->dump) status = m3_batch_join(a->dump, batch, each.dumps, a->bounds && !a->companions, error);
    close_each(&each, count);
    if (status) return status;
    snprintf(what, sizeof what, "%" PRId64 " sequences, %" PRId64 " tokens", count, tokens);
    m3_cli_print_passed(&p, a, what);
    return M3_OK;
}
