#define _GNU_SOURCE
#include "oracle/variants/envelope_make.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_stream.h"
#include "base/minmax.h"
#include "base/version.h"
#include "io/safetensors.h"
#include "io/temporary.h"
#include "model/files/dump.h"
#include "model/semantics.h"
#include "oracle/judge/rows/envelope.h"
#include "oracle/variants/follow.h"
#include "oracle/variants/honest.h"
#include "oracle/variants/honest_rows.h"

/* The distance of a run from the truth at one tap, accumulated so far. */
struct distance {
    double d2, r2;
    int wild;                           /* infinite or NaN where the truth is finite */
};

struct making {
    const struct m3_envelope_plan *plan;
    struct m3_safetensors *truth;
    struct m3_honest *honest;
    struct distance *distances;         /* of the current run, one per tensor of the truth */
    double *results;                    /* [tensors, runs] */
    int *rounds;                        /* per tensor: were values rounded at random before it? */
    struct m3_honest_rows *rows;        /* NULL: none */
};

static const struct m3_tensor *tensor_of(const struct making *m, enum m3_tap tap, int64_t layer, char *name,
                                         size_t size)
{
    if (m3_tap_table[tap].kind != M3_KIND_REALS || m3_tap_name(name, size, tap, layer) != 0) return NULL;
    return m3_tap_matches(m->plan->taps, name) ? m3_safetensors_find(m->truth, name) : NULL;
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    char name[96];
    return tensor_of(self, tap, layer, name, sizeof name) != NULL;
}

static void add_distance(struct distance *distance, const struct m3_tensor *truth, const float *shown, int64_t first,
                         int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double r = m3_decode(truth->dtype, truth->data, first + i), x = (double)shown[i], d = x - r;
        if (isfinite(d)) {
            distance->d2 += d * d;
            distance->r2 += r * r;
        } else if (!(isinf(r) && x == r)) distance->wild = 1;
    }
}

static int measure(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                   struct m3_error *error)
{
    enum { PIECE = 4096 };
    struct making *m = self;
    char name[96];
    const struct m3_tensor *truth = tensor_of(m, tap, layer, name, sizeof name);
    int64_t at = truth - m3_safetensors_at(m->truth, 0);
    if (truth->shape[0] < row + rows) return m3_fail(error, M3_INTERNAL, "%s: more rows than the truth has", name);
    int64_t width = truth->count / truth->shape[0];
    m->rounds[at] = m3_honest_rounds(m->honest);
    for (int64_t i = 0; i < rows * width; i += PIECE) {
        float shown[PIECE];
        int64_t n = m3_min(PIECE, rows * width - i), first = row * width + i;
        m3_honest_show(m->honest, name, shown, (const float *)data + i, first, n);
        add_distance(&m->distances[at], truth, shown, first, n);
    }
    return M3_OK;
}

static double relative(const struct distance *distance)
{
    if (distance->wild) return INFINITY;
    if (distance->d2 == 0) return 0;
    return distance->r2 > 0 ? sqrt(distance->d2 / distance->r2) : INFINITY;
}

struct m3_request m3_envelope_request(const struct m3_envelope_plan *plan)
{
    struct m3_request request = m3_case_request(plan->c);
    request.first_layer = plan->first_layer;
    request.hidden = plan->hidden;
    request.end_layer = plan->end_layer > 0 ? plan->end_layer : plan->model->config.layers;
    request.semantics = plan->semantics;
    request.linear = plan->linear;
    request.threads = plan->threads;
    return request;
}

/* Writes the double engine's taps to a file without a name: the requested ones, and all selections. */
static int make_truth(struct making *m, const char *path, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    struct m3_request request = m3_envelope_request(plan);
    struct m3_sink sink;
    struct m3_dump *dump = NULL;
    struct m3_nameless file;
    char *patterns = NULL;
    if (plan->taps && asprintf(&patterns, "%s,*.index.blocks,*.moe.experts", plan->taps) < 0)
        return m3_fail_memory(error, "the truth's taps", 0);
    int status = m3_temporary_nameless(&file, path, error);
    if (!status)
        status = m3_dump_open(&dump, &sink, file.path, patterns, plan->model, m3_engine_f64(), plan->c, &request,
                              plan->command, error);
    request.sink = &sink;
    request.progress = plan->progress;
    if (!status) {
        status = m3_dump_begin(dump, error);
        if (!status) status = m3_follow_forward(m3_engine_f64(), plan->model, &request, plan->follow, error);
        if (status) m3_dump_abandon(dump);
        else status = m3_dump_commit(dump, error);
    }
    if (!status) status = m3_safetensors_open(&m->truth, file.path, error);
    m3_nameless_close(&file);
    free(patterns);
    return status;
}

static int one_run(struct making *m, int64_t run, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    const struct m3_sink sink = { .self = m, .wants = wants, .write = measure };
    struct m3_request request = m3_envelope_request(plan);
    int64_t tensors = m3_safetensors_count(m->truth);
    m3_honest_draw(m->honest, plan->seed, run);
    m3_honest_request(m->honest, &request);
    request.sink = &sink;
    memset(m->distances, 0, (size_t)tensors * sizeof *m->distances);
    int status = m3_engine_f32()->forward(plan->model, &request, error);
    for (int64_t i = 0; i < tensors && !status; i++)
        m->results[i * plan->runs + run] = relative(&m->distances[i]) / (m->rounds[i] ? sqrt(2) : 1);
    return status;
}

static int is_measured(const struct making *m, int64_t i)
{
    const char *name = m3_safetensors_at(m->truth, i)->name;
    enum m3_tap tap;
    int64_t layer;
    return m3_tap_parse(name, &tap, &layer) == 0 && m3_tap_table[tap].kind == M3_KIND_REALS &&
           m3_tap_matches(m->plan->taps, name);
}

static int check_taps(const struct making *m, struct m3_error *error)
{
    for (int64_t i = 0; i < m3_safetensors_count(m->truth); i++)
        if (is_measured(m, i)) return M3_OK;
    return m3_fail(error, M3_USAGE, "--taps: got %s, expected a pattern that matches a tap of this run", m->plan->taps);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* "layers.3.index.blocks,layers.3.moe.experts": the taps that runs take from the truth. The caller frees it; NULL:
 * memory is short. */
static char *choices_of(const struct m3_safetensors *truth)
{
    struct m3_memory_stream memory;
    FILE *out = m3_memory_open(&memory);
    for (int64_t i = 0, any = 0; out && i < m3_safetensors_count(truth); i++) {
        const char *name = m3_safetensors_at(truth, i)->name;
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(name, &tap, &layer) != 0 || m3_tap_table[tap].kind != M3_KIND_CHOICES) continue;
        fprintf(out, "%s%s", any++ ? "," : "", name);
    }
    return m3_memory_close(&memory);
}

static int describe(const struct making *m, struct m3_writer *writer, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    char runs[24], row_runs[24], seed[24], *semantics = m3_semantics_json(plan->semantics),
                                           *choices = choices_of(m->truth);
    int status = semantics && choices ? M3_OK : m3_fail_memory(error, "what the envelope is of", 0);
    snprintf(runs, sizeof runs, "%" PRId64, plan->runs);
    snprintf(row_runs, sizeof row_runs, "%" PRId64, plan->row_runs);
    snprintf(seed, sizeof seed, "%" PRIu64, plan->seed);
    const char *const strings[][2] = {
        { "format", m3_envelope_format },
        { "format_version", "1" },
        { "producer", M3_PRODUCER },
        { "command", plan->command },
        { "semantics", semantics },
        { "profile", m3_profile_name(plan->profile) },
        { "profile_sha256", m3_profile_sha256(plan->profile) },
        { "runs", runs },
        { "row_runs", row_runs },
        { "seed", seed },
        { "choices", choices },
        { "model_sha256", m3_safetensors_metadata(m->truth, "model_sha256") },
        { "case_sha256", plan->c->sha256 },
        { "weights_sha256", m3_safetensors_metadata(m->truth, "weights_sha256") },
        { "config_sha256", m3_safetensors_metadata(m->truth, "config_sha256") },
        { "arithmetic", m3_safetensors_metadata(m->truth, "arithmetic") },
    };
    for (size_t i = 0; !status && i < sizeof strings / sizeof *strings; i++)
        if (strings[i][1]) status = m3_writer_metadata(writer, strings[i][0], strings[i][1], error);
    if (!status) status = m3_writer_seal(writer, error);
    free(semantics);
    free(choices);
    return status;
}

static int write_results(struct making *m, struct m3_writer *writer, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    int64_t tensors = m3_safetensors_count(m->truth), runs = plan->runs, index = 0;
    int status = describe(m, writer, error);
    for (int64_t i = 0; i < tensors && !status; i++)
        if (runs > 0 && is_measured(m, i))
            status = m3_writer_tensor(writer, m3_safetensors_at(m->truth, i)->name, M3_F64, 1, &runs, error);
    if (!status && plan->row_runs > 0)
        status = m3_honest_rows_declare(&m->rows, plan, plan->row_runs, m->truth, writer, error);
    if (!status) status = m3_writer_begin(writer, error);
    for (int64_t i = 0; i < tensors && !status; i++) {
        if (runs == 0 || !is_measured(m, i)) continue;
        double *of_tap = m->results + i * runs;
        qsort(of_tap, (size_t)runs, sizeof *of_tap, by_size);
        status = m3_writer_append(writer, index++, of_tap, (uint64_t)runs * sizeof *of_tap, error);
    }
    if (!status && m->rows) status = m3_honest_rows_write(m->rows, error);
    return status;
}

static int all_runs(struct making *m, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    size_t tensors = (size_t)m3_safetensors_count(m->truth);
    m->distances = calloc(tensors, sizeof *m->distances);
    m->rounds = calloc(tensors, sizeof *m->rounds);
    m->results = tensors > SIZE_MAX / sizeof *m->results / ((size_t)plan->runs + 1)
                     ? NULL
                     : calloc(tensors * (size_t)plan->runs + 1, sizeof *m->results);
    if (!m->distances || !m->rounds || !m->results)
        return m3_fail_memory(error, "the distances", tensors * (size_t)plan->runs * sizeof *m->results);
    if (plan->runs == 0) return M3_OK;
    int status = m3_honest_new(&m->honest, plan->model, plan->semantics, plan->profile, m->truth, plan->c->T, error);
    for (int64_t run = 0; run < plan->runs && !status; run++) {
        m3_tell(&plan->progress, "honest run", run, plan->runs);
        status = one_run(m, run, error);
    }
    return status;
}

int m3_envelope_make(const struct m3_envelope_plan *plan, const char *path, struct m3_error *error)
{
    struct making m = { .plan = plan };
    struct m3_writer *writer;
    int status = m3_writer_new(&writer, path, error);
    if (status) return status;
    status = make_truth(&m, path, error);
    if (!status) status = check_taps(&m, error);
    if (!status) status = all_runs(&m, error);
    if (!status) status = write_results(&m, writer, error);
    if (status) m3_writer_abandon(writer);
    else status = m3_writer_commit(writer, error);
    m3_honest_rows_free(m.rows);
    m3_honest_free(m.honest);
    if (!status && plan->truth) *plan->truth = m.truth;
    else m3_safetensors_close(m.truth);
    free(m.distances);
    free(m.rounds);
    free(m.results);
    return status;
}
