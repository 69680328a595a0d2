#include "oracle/judge/rows/envelope.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/version.h"
#include "model/semantics.h"
#include "oracle/judge/rows/rows.h"

const char m3_envelope_format[] = "m3ref-envelope";

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

/* Checks the distances of every tap: one per run, from 0 up, ascending. */
static int check_tensors(struct m3_envelope *envelope, struct m3_error *error)
{
    const struct m3_safetensors *file = envelope->file;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(file, i);
        double last = 0;
        if (m3_is_row_statistic(tensor->name)) continue;
        int sound = tensor->dtype == M3_F64 && tensor->rank == 1 && tensor->count > 0 &&
                    (envelope->runs == 0 || tensor->count == envelope->runs);
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
    return m3_fail(error, M3_BAD_INPUT, "%s: got no tap, expected at least one", m3_safetensors_path(file));
}

/* Reads the names of all selections of the pass. A candidate can be ranked only where its selections are the same. */
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

static int check_reading(const struct m3_safetensors *file, const char *expected, struct m3_error *error)
{
    const char *got = m3_safetensors_metadata(file, "semantics");
    if (m3_semantics_are_same(got, expected)) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: semantics: got %s, expected %s", m3_safetensors_path(file),
                   got ? got : "none", expected);
}

static int check_labels(const struct m3_safetensors *file, const struct m3_origin *origin,
                        const struct m3_profile *profile, struct m3_error *error)
{
    const char *const labels[][2] = {
        { "format", m3_envelope_format },
        { "format_version", "1" },
        { "arithmetic", M3_ARITHMETIC },
        { "model_sha256", origin != NULL ? origin->model_sha256 : NULL },
        { "case_sha256", origin != NULL ? origin->case_sha256 : NULL },
        { "config_sha256", origin != NULL ? origin->config_sha256 : NULL },
        { "profile", m3_profile_name(profile) },
        { "profile_sha256", m3_profile_sha256(profile) },
    };
    int status = M3_OK;
    for (size_t i = 0; !status && i < sizeof labels / sizeof *labels; i++)
        if (labels[i][1] != NULL) status = m3_origin_require(file, labels[i][0], labels[i][1], error);
    if (!status) status = m3_safetensors_check_seal(file, error);
    if (!status && origin != NULL && origin->semantics != NULL) status = check_reading(file, origin->semantics, error);
    if (!status && origin != NULL) status = m3_origin_check_weights(file, origin, M3_BAD_INPUT, error);
    return status;
}

int m3_envelope_open(struct m3_envelope **result, const char *path, const struct m3_origin *origin,
                     const struct m3_profile *profile, struct m3_error *error)
{
    *result = NULL;
    struct m3_envelope *envelope = calloc(1, sizeof *envelope);
    if (!envelope) return m3_fail_memory(error, path, sizeof *envelope);
    int status = m3_safetensors_open(&envelope->file, path, error);
    if (!status) status = check_labels(envelope->file, origin, profile, error);
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

const struct m3_safetensors *m3_envelope_file(const struct m3_envelope *envelope) { return envelope->file; }

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

int m3_envelope_rank(struct m3_envelope_rank *rank, const struct m3_envelope *envelope, const char *tap, double rel_l2)
{
    const struct m3_tensor *tensor = m3_safetensors_find(envelope->file, tap);
    if (!tensor) return -1;
    int64_t runs = envelope->runs, nearer = 0, as_near = 0;
    for (int64_t i = 0; i < runs; i++) {
        double x = m3_decode(M3_F64, tensor->data, i);
        int as = rel_l2 == x || fabs(rel_l2 / x - 1) <= 1e-12;         /* equal up to the order of a sum of squares */
        nearer += !as && !(rel_l2 <= x);
        as_near += as;
    }
    double largest = m3_decode(M3_F64, tensor->data, runs - 1);
    *rank = (struct m3_envelope_rank){
        .percentile = 100 * ((double)nearer + (double)as_near / 2) / (double)runs,
        .median = (m3_decode(M3_F64, tensor->data, (runs - 1) / 2) + m3_decode(M3_F64, tensor->data, runs / 2)) / 2,
        .largest = largest,
        .suspect = !(rel_l2 <= 2 * largest),
        .blind = !(2 * largest < 1),
    };
    return 0;
}
