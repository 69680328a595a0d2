#include "cli/run_pass.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/printable.h"
#include "cli/paths.h"
#include "io/open.h"
#include "io/reading.h"
#include "model/files/cache_file.h"
#include "model/files/dump.h"
#include "oracle/judge/companions/companions_write.h"
#include "oracle/variants/honest_rows.h"
#include "oracle/variants/rows_beside.h"

/* The outputs of a run. */
struct outputs {
    struct m3_writer *cache;
    struct m3_resume_run run;           /* what --resume keeps, */
    struct m3_resume_state *kept;       /* in the folder's care; NULL: nothing */
    struct m3_dump *dump;
    struct m3_companions_writer *companions;
    struct m3_rows_beside *rows;        /* --profile */
    struct m3_sink sink;
};

static void abandon(struct outputs *out)
{
    m3_companions_abandon(out->companions);
    m3_dump_abandon(out->dump);
    m3_writer_abandon(out->cache);
    m3_rows_beside_free(out->rows);
}

/* Runs honest implementations of --profile, and declares them beside the companions. */
static int make_rows(struct outputs *out, const struct m3_cli_run *a, const struct m3_model *model,
                     const struct m3_case *c, const struct m3_semantics *semantics, const char *line,
                     struct m3_error *error)
{
    struct m3_profile *profile;
    int status = m3_profile_open(&profile, a->profile, error);
    if (status) return status;
    const struct m3_envelope_plan plan = {
        .model = model,
        .c = c,
        .semantics = semantics,
        .profile = profile,
        .linear = a->input.linear,
        .threads = (int)a->input.threads,
        .row_runs = a->runs ? a->runs : m3_honest_rows_needed(profile),
        .seed = 1,
        .taps = a->taps,
        .command = line,
    };
    status = m3_rows_beside_make(&out->rows, &plan, a->companions ? a->companions : a->dump, error);
    if (!status) status = m3_rows_beside_declare(out->rows, m3_companions_file(out->companions), error);
    m3_profile_close(profile);
    return status;
}

int m3_cli_run_paths(const struct m3_cli_run *a, struct m3_error *error)
{
    struct m3_cli_paths paths = m3_cli_paths(error);
    m3_cli_writes(&paths, "--dump", a->dump);
    m3_cli_writes(&paths, "--companions", a->companions);
    m3_cli_reads(&paths, "--cache-in", a->cache_in);
    m3_cli_reads(&paths, "--hidden", a->hidden);
    m3_cli_reads(&paths, "--decisions", a->decisions);
    m3_cli_reads_named(&paths, "--profile", a->profile);
    m3_cli_reads_input(&paths, &a->input);
    int status = m3_cli_paths_end(&paths);
    /* --cache-in may be --cache-out: it has been read, and the longer one replaces it. */
    if (!status && a->cache_in && a->cache_out) status = m3_reading_forget(a->cache_in, error);
    if (status) return status;
    m3_cli_writes(&paths, "--cache-out", a->cache_out);
    m3_cli_keeps(&paths, a->resume);
    return m3_cli_paths_end(&paths);
}

static int begin_resume(struct outputs *out, const struct m3_cli_run *a, const struct m3_model *model,
                        const struct m3_case *c, struct m3_request *request, const char *line, struct m3_error *error)
{
    const int companions = a->bounds || a->companions;
    out->run = (struct m3_resume_run){
        .model = model,
        .engine = a->input.engine,
        .c = c,
        .request = request,
        .sequence = a->sequence,
        .ops = a->input.ops.name,
        .ops_path = a->input.ops.path[0] ? a->input.ops.path : NULL,
        .decisions = a->decisions,
        .dumps = a->dump != NULL,
        .taps = a->taps,
        .companions = !companions     ? "none"
                      : a->companions ? "file"
                                      : "dump",
        .command = line,
    };
    return m3_resume_begin(&out->kept, a->kept, &out->run, error);
}

/* After all files have begun. */
static int follow(struct outputs *out, const struct m3_cli_run *a, struct m3_request *request, struct m3_error *error)
{
    struct m3_writer *companions = out->companions ? m3_companions_file(out->companions) : NULL;
    struct m3_writer *dump = out->dump ? m3_dump_writer(out->dump) : NULL;
    if (!out->kept) return M3_OK;
    int status = m3_resume_follow(out->kept, dump, companions != dump ? companions : NULL, error);
    request->resume = m3_resume_of(out->kept);
    if (!status && out->companions) status = m3_companions_go_on(out->companions, a->input.engine, error);
    if (!status && request->resume->hidden)
        printf("resume: after %" PRId64 " of %" PRId64 " layers, from %s\n",
               request->resume->layer - request->first_layer, request->end_layer - request->first_layer,
               m3_printable(a->resume).text);
    return status;
}

static int open_outputs(struct outputs *out, const struct m3_cli_run *a, const struct m3_model *model,
                        const struct m3_case *c, struct m3_request *request, const char *line, struct m3_error *error)
{
    const struct m3_engine *engine = a->input.engine;
    int status = m3_cli_run_paths(a, error);
    if (!status && a->cache_out) status = m3_writer_new(&out->cache, a->cache_out, error);
    if (!status && a->kept) status = begin_resume(out, a, model, c, request, line, error);
    if (status || !a->dump) return status ? status : follow(out, a, request, error);
    if (out->kept) line = m3_resume_command(out->kept);
    status = m3_dump_open(&out->dump, &out->sink, a->dump, a->taps, model, engine, c, request, line, error);
    if (!status && (a->bounds || a->companions))
        status = m3_companions_open(&out->companions, &out->sink, a->companions, out->dump, model, engine, c, request,
                                    line, error);
    if (!status && a->profile) status = make_rows(out, a, model, c, request->semantics, line, error);
    if (!status && a->bounds && !a->companions) status = m3_writer_seal(m3_dump_writer(out->dump), error);
    if (!status) status = m3_dump_begin(out->dump, error);
    if (!status && out->companions) status = m3_companions_begin(out->companions, error);
    if (!status && out->rows) status = m3_rows_beside_write(out->rows, error);
    m3_rows_beside_free(out->rows);
    out->rows = NULL;
    request->sink = &out->sink;
    return status ? status : follow(out, a, request, error);
}

/* Commits the files in turn, the dump last. */
static int commit(struct outputs *out, const struct m3_cli_run *a, const struct m3_model *model,
                  const struct m3_request *request, struct m3_error *error)
{
    int status = M3_OK;
    if (out->cache)
        status = m3_cache_save(request->cache, out->cache, model, a->input.engine, request->semantics, error);
    out->cache = NULL;
    if (!status && out->companions) {
        status = m3_companions_commit(out->companions, error);
        out->companions = NULL;
    }
    if (!status && out->dump) {
        status = m3_dump_commit(out->dump, error);
        out->dump = NULL;
    }
    if (status) abandon(out);
    return status;
}

int m3_cli_pass(struct m3_cli_passed *p, const struct m3_cli_run *a, const struct m3_model *model,
                const struct m3_case *c, struct m3_request *request, const char *line, struct m3_error *error)
{
    struct outputs out = { 0 };
    int status = open_outputs(&out, a, model, c, request, line, error);
    if (status) {
        abandon(&out);
        return status;
    }
    p->taps = out.dump ? m3_dump_taps(out.dump) : 0;
    m3_cli_watch_begin(&p->watch, a->input.progress);
    p->watch.end_layer = request->end_layer;
    request->progress = m3_cli_watched(&p->watch);
    const double start = m3_seconds();
    status = a->input.engine->forward(model, request, error);
    p->took += m3_seconds() - start;
    m3_cli_watch_end(&p->watch);
    if (status) abandon(&out);
    else status = commit(&out, a, model, request, error);
    return status;
}

void m3_cli_print_passed(const struct m3_cli_passed *p, const struct m3_cli_run *a, const char *what)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("run:   %s, %s, linear %s, %" PRId64 " threads, %.3f s, memory %.1f MB of its own, %.1f MB with mapped "
           "files\n",
           what, a->input.engine->precision, a->input.linear == M3_LINEAR_ORDERED ? "ordered" : "blas",
           a->input.threads, p->took, (double)p->watch.anonymous / 1e6, (double)usage.ru_maxrss * 1024 / 1e6);
    if (a->dump)
        printf("dump:  %" PRId64 " tap%s in %s\n", p->taps, p->taps == 1 ? "" : "s", m3_printable(a->dump).text);
    if (a->bounds || a->companions)
        printf("       with companions in %s\n", m3_printable(a->companions ? a->companions : a->dump).text);
}

struct m3_request m3_cli_request(const struct m3_cli_run *a, const struct m3_model *model, const struct m3_case *c,
                                 const struct m3_semantics *semantics, double *logits)
{
    struct m3_request request = m3_case_request(c);
    request.first_layer = a->first_layer;
    request.end_layer = a->end_layer < 0 ? model->config.layers : a->end_layer;
    request.semantics = semantics;
    request.linear = a->input.linear;
    request.threads = (int)a->input.threads;
    request.replacement = m3_cli_ops_replacement(&a->input.ops);
    request.logits = logits;
    request.logit_rows = 1;
    return request;
}

void m3_cli_print_next(const double *logits, int64_t V, int64_t n, const struct m3_vocabulary *words)
{
    double last = 0;
    int64_t last_id = -1;
    printf("next tokens:");
    for (int64_t i = 0; i < n && i < V; i++) {
        int64_t best = -1;
        for (int64_t v = 0; v < V; v++) {
            int taken = last_id >= 0 && (logits[v] > last || (logits[v] == last && v <= last_id));
            if (!taken && (best < 0 || logits[v] > logits[best])) best = v;
        }
        size_t length;
        const char *text = m3_vocabulary_text(words, best, &length);
        printf("%s %" PRId64 " ", i ? "," : "", best);
        if (text) m3_print_quoted(stdout, text, length), putchar(' ');
        printf("(%.6g)", logits[best]);
        last = logits[best];
        last_id = best;
    }
    printf("\n");
}
