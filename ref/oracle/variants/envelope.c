#define _GNU_SOURCE
#include "oracle/variants/envelope.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/version.h"
#include "io/safetensors.h"
#include "model/files/dump.h"
#include "model/semantics.h"
#include "oracle/variants/honest.h"

static const char format[] = "m3ref-envelope";

/* ---- making one */

/* How far a run is from the truth at one tap, so far. */
struct distance {
    double d2, r2;
    int wild;                           /* infinite or NaN where the truth is not so */
};

struct making {
    const struct m3_envelope_plan *plan;
    struct m3_safetensors *truth;
    struct m3_honest *noise;
    struct distance *distances;         /* of the run at hand, one per tensor of the truth */
    double *results;                    /* [tensors, runs] */
    int *rounds;                        /* per tensor: were values rounded at random before it? */
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
    m->rounds[at] = m3_honest_rounds(m->noise);
    for (int64_t i = 0; i < rows * width; i += PIECE) {
        float shown[PIECE];
        int64_t n = m3_min(PIECE, rows * width - i), first = row * width + i;
        m3_honest_show(m->noise, name, shown, (const float *)data + i, first, n);
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

static struct m3_request request_of(const struct m3_envelope_plan *plan)
{
    const struct m3_case *c = plan->c;
    struct m3_request request = { .ids = c->ids, .positions = c->positions, .T = c->T, .seen = c->seen,
                                  .end_layer = plan->model->config.layers, .semantics = plan->semantics,
                                  .linear = plan->linear, .threads = plan->threads };
    if (c->pictures.P > 0) request.pictures = &c->pictures;
    return request;
}

/* The double engine's taps, in a file without a name: those asked for, and all choices. */
static int make_truth(struct making *m, const char *path, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    struct m3_request request = request_of(plan);
    struct m3_sink sink;
    struct m3_dump *dump = NULL;
    char *patterns = NULL, *beside = NULL;
    if ((plan->taps && asprintf(&patterns, "%s,*.index.blocks,*.moe.experts", plan->taps) < 0)
        || asprintf(&beside, "%s.truth-%ld", path, (long)getpid()) < 0) {
        free(patterns);
        return m3_fail_memory(error, "the truth's name", 0);
    }
    int status = m3_dump_open(&dump, &sink, beside, patterns, plan->model, m3_engine_f64(), plan->c, &request,
                              plan->command, error);
    request.sink = &sink;
    if (!status) {
        status = m3_dump_begin(dump, error);
        if (!status) status = m3_engine_f64()->forward(plan->model, &request, error);
        if (status) m3_dump_abandon(dump);
        else status = m3_dump_commit(dump, error);
    }
    if (!status) {
        status = m3_safetensors_open(&m->truth, beside, error);
        unlink(beside);
    }
    free(patterns);
    free(beside);
    return status;
}

static int one_run(struct making *m, int64_t run, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    const struct m3_sink sink = { m, wants, measure };
    struct m3_request request = request_of(plan);
    int64_t tensors = m3_safetensors_count(m->truth);
    m3_honest_draw(m->noise, plan->seed, run);
    m3_honest_request(m->noise, &request);
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
    return m3_tap_parse(name, &tap, &layer) == 0 && m3_tap_table[tap].kind == M3_KIND_REALS
        && m3_tap_matches(m->plan->taps, name);
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

/* "layers.3.index.blocks,layers.3.moe.experts": what runs take from the truth. To be freed; NULL: memory is short. */
static char *choices_of(const struct m3_safetensors *truth)
{
    char *names = NULL;
    size_t length;
    FILE *out = open_memstream(&names, &length);
    if (!out) return NULL;
    for (int64_t i = 0, any = 0; i < m3_safetensors_count(truth); i++) {
        const char *name = m3_safetensors_at(truth, i)->name;
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(name, &tap, &layer) != 0 || m3_tap_table[tap].kind != M3_KIND_CHOICES) continue;
        fprintf(out, "%s%s", any++ ? "," : "", name);
    }
    int failed = ferror(out);
    if (fclose(out) == 0 && !failed) return names;
    free(names);
    return NULL;
}

static int describe(const struct making *m, struct m3_writer *writer, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    char runs[24], seed[24], *semantics = m3_semantics_json(plan->semantics), *choices = choices_of(m->truth);
    int status = semantics && choices ? M3_OK : m3_fail_memory(error, "what the envelope is of", 0);
    snprintf(runs, sizeof runs, "%" PRId64, plan->runs);
    snprintf(seed, sizeof seed, "%" PRIu64, plan->seed);
    const char *const strings[][2] = {
        { "format", format }, { "format_version", "1" }, { "producer", M3_PRODUCER }, { "command", plan->command },
        { "semantics", semantics }, { "profile", m3_profile_name(plan->profile) },
        { "profile_sha256", m3_profile_sha256(plan->profile) }, { "runs", runs }, { "seed", seed },
        { "choices", choices },
        { "model_sha256", m3_safetensors_metadata(m->truth, "model_sha256") }, { "case_sha256", plan->c->sha256 },
    };
    for (size_t i = 0; !status && i < sizeof strings / sizeof *strings; i++)
        status = m3_writer_metadata(writer, strings[i][0], strings[i][1], error);
    free(semantics);
    free(choices);
    return status;
}

static int write_results(struct making *m, struct m3_writer *writer, struct m3_error *error)
{
    int64_t tensors = m3_safetensors_count(m->truth), runs = m->plan->runs;
    int status = describe(m, writer, error);
    for (int64_t i = 0; i < tensors && !status; i++)
        if (is_measured(m, i))
            status = m3_writer_tensor(writer, m3_safetensors_at(m->truth, i)->name, M3_F64, 1, &runs, error);
    if (!status) status = m3_writer_begin(writer, error);
    for (int64_t i = 0; i < tensors && !status; i++) {
        if (!is_measured(m, i)) continue;
        double *of_tap = m->results + i * runs;
        qsort(of_tap, (size_t)runs, sizeof *of_tap, by_size);
        status = m3_writer_write(writer, of_tap, (uint64_t)runs * sizeof *of_tap, error);
    }
    return status;
}

static int all_runs(struct making *m, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = m->plan;
    size_t tensors = (size_t)m3_safetensors_count(m->truth);
    m->distances = calloc(tensors, sizeof *m->distances);
    m->rounds = calloc(tensors, sizeof *m->rounds);
    m->results = tensors > SIZE_MAX / sizeof *m->results / (size_t)plan->runs ? NULL
               : calloc(tensors * (size_t)plan->runs, sizeof *m->results);
    if (!m->distances || !m->rounds || !m->results)
        return m3_fail_memory(error, "the distances", tensors * (size_t)plan->runs * sizeof *m->results);
    int status = m3_honest_new(&m->noise, plan->model, plan->semantics, plan->profile, m->truth, plan->c->T, error);
    for (int64_t run = 0; run < plan->runs && !status; run++) {
        if (plan->progress) plan->progress(plan->progress_self, run + 1, plan->runs);
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
    if (plan->progress) plan->progress(plan->progress_self, 0, plan->runs);
    status = make_truth(&m, path, error);
    if (!status) status = check_taps(&m, error);
    if (!status) status = all_runs(&m, error);
    if (!status) status = write_results(&m, writer, error);
    if (status) m3_writer_abandon(writer);
    else status = m3_writer_commit(writer, error);
    m3_honest_free(m.noise);
    m3_safetensors_close(m.truth);
    free(m.distances);
    free(m.rounds);
    free(m.results);
    return status;
}

/* ---- reading one */

struct choice {
    enum m3_tap tap;
    int64_t layer;
};

struct m3_envelope {
    struct m3_safetensors *file;
    int64_t runs;
    struct choice *choices;
    int64_t choice_count;
};

static int same(const struct m3_safetensors *file, const char *key, const char *expected, struct m3_error *error)
{
    const char *got = m3_safetensors_metadata(file, key);
    if (expected == NULL || (got && strcmp(got, expected) == 0)) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: %s: got %s, expected %s", m3_safetensors_path(file), key,
                   got ? got : "nothing", expected);
}

/* Distances of every tap: as many as runs, from 0 up, ascending. */
static int check_tensors(struct m3_envelope *envelope, struct m3_error *error)
{
    const struct m3_safetensors *file = envelope->file;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(file, i);
        double last = 0;
        int sound = tensor->dtype == M3_F64 && tensor->rank == 1 && tensor->count > 0
                 && (i == 0 || tensor->count == envelope->runs);
        for (int64_t run = 0; sound && run < tensor->count; run++) {
            double x = m3_decode(M3_F64, tensor->data, run);
            sound = x >= last;
            last = x;
        }
        if (!sound)
            return m3_fail(error, M3_BAD_INPUT, "%s: %s: got another tensor, expected F64 [runs], ascending from 0",
                           m3_safetensors_path(file), tensor->name);
        envelope->runs = tensor->count;
    }
    if (envelope->runs > 0) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: got no tap, expected some", m3_safetensors_path(file));
}

/* The names of all choices of the pass. A candidate can be ranked only where its own are those. */
static int read_choices(struct m3_envelope *envelope, struct m3_error *error)
{
    const char *names = m3_safetensors_metadata(envelope->file, "choices"), *path = m3_safetensors_path(envelope->file);
    if (!names) return m3_fail(error, M3_BAD_INPUT, "%s: choices: got nothing, expected names of taps", path);
    envelope->choices = calloc(strlen(names) + 1, sizeof *envelope->choices);
    if (!envelope->choices) return m3_fail_memory(error, path, strlen(names));
    for (size_t length; *names; names += length + (names[length] == ',')) {
        struct choice *choice = &envelope->choices[envelope->choice_count++];
        char name[96];
        length = strcspn(names, ",");
        snprintf(name, sizeof name, "%.*s", (int)m3_min((int64_t)length, (int64_t)sizeof name - 1), names);
        if (m3_tap_parse(name, &choice->tap, &choice->layer) != 0 || m3_tap_table[choice->tap].kind != M3_KIND_CHOICES)
            return m3_fail(error, M3_BAD_INPUT, "%s: choices: got %s, expected a tap of choices", path, name);
    }
    return M3_OK;
}

int m3_envelope_open(struct m3_envelope **result, const char *path, const char *model_sha256, const char *case_sha256,
                     const struct m3_profile *profile, struct m3_error *error)
{
    *result = NULL;
    struct m3_envelope *envelope = calloc(1, sizeof *envelope);
    if (!envelope) return m3_fail_memory(error, path, sizeof *envelope);
    int status = m3_safetensors_open(&envelope->file, path, error);
    if (!status) status = same(envelope->file, "format", format, error);
    if (!status) status = same(envelope->file, "format_version", "1", error);
    if (!status) status = same(envelope->file, "model_sha256", model_sha256, error);
    if (!status) status = same(envelope->file, "case_sha256", case_sha256, error);
    if (!status) status = same(envelope->file, "profile", m3_profile_name(profile), error);
    if (!status) status = same(envelope->file, "profile_sha256", m3_profile_sha256(profile), error);
    if (!status) status = check_tensors(envelope, error);
    if (!status) status = read_choices(envelope, error);
    if (status) m3_envelope_close(envelope);
    else *result = envelope;
    return status;
}

void m3_envelope_close(struct m3_envelope *envelope)
{
    if (!envelope) return;
    m3_safetensors_close(envelope->file);
    free(envelope->choices);
    free(envelope);
}

int64_t m3_envelope_runs(const struct m3_envelope *envelope) { return envelope->runs; }

const char *m3_envelope_metadata(const struct m3_envelope *envelope, const char *key)
{
    return m3_safetensors_metadata(envelope->file, key);
}

int64_t m3_envelope_choices_before(const struct m3_envelope *envelope, enum m3_tap tap, int64_t layer)
{
    int64_t count = 0;
    for (int64_t i = 0; i < envelope->choice_count; i++)
        count += m3_tap_order(envelope->choices[i].tap, envelope->choices[i].layer, tap, layer) < 0;
    return count;
}

int m3_envelope_rank(struct m3_envelope_rank *rank, const struct m3_envelope *envelope, const char *tap,
                     double rel_l2)
{
    const struct m3_tensor *tensor = m3_safetensors_find(envelope->file, tap);
    if (!tensor) return -1;
    int64_t runs = envelope->runs, nearer = 0, as_near = 0;
    for (int64_t i = 0; i < runs; i++) {
        double x = m3_decode(M3_F64, tensor->data, i);
        int as = rel_l2 == x || fabs(rel_l2 / x - 1) <= 1e-12;         /* sums of squares in another order */
        nearer += !as && !(rel_l2 <= x);
        as_near += as;
    }
    double largest = m3_decode(M3_F64, tensor->data, runs - 1);
    *rank = (struct m3_envelope_rank){
        .percentile = 100 * ((double)nearer + (double)as_near / 2) / (double)runs,
        .median = (m3_decode(M3_F64, tensor->data, (runs - 1) / 2) + m3_decode(M3_F64, tensor->data, runs / 2)) / 2,
        .largest = largest, .suspect = !(rel_l2 <= 2 * largest), .blind = !(2 * largest < 1),
    };
    return 0;
}
