#include "oracle/variants/follow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/temporary.h"
#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/variants/honest_rows.h"

/* The output of a layer as the next one would read it; NULL: not held in whole, or not by numbers. */
static const struct m3_tensor *output_of(const struct m3_safetensors *file, int64_t layer, int64_t T, int64_t H)
{
    char name[96];
    if (m3_tap_name(name, sizeof name, M3_TAP_OUT, layer) != 0) return NULL;
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    if (!t || !m3_holds_floats(t) || t->rank != 2 || t->shape[0] != T || t->shape[1] != H) return NULL;
    for (int64_t i = 0; i < t->count; i++)
        if (!m3_is_operand(m3_decode(t->dtype, t->data, i), M3_TAP_OUT)) return NULL;
    return t;
}

static void decode(void *to, const struct m3_tensor *t, size_t real)
{
    for (int64_t i = 0; i < t->count; i++) {
        const double x = m3_decode(t->dtype, t->data, i);
        if (real == sizeof(double)) ((double *)to)[i] = x;
        else ((float *)to)[i] = (float)x;
    }
}

int m3_follow_input(double **hidden, const struct m3_safetensors *file, int64_t layer, int64_t T, int64_t H,
                    struct m3_error *error)
{
    const struct m3_tensor *t = layer > 0 ? output_of(file, layer - 1, T, H) : NULL;
    *hidden = NULL;
    if (!t) return M3_OK;
    *hidden = malloc((size_t)(T * H) * sizeof **hidden + 1);
    if (!*hidden) return m3_fail_memory(error, "a layer's input", (size_t)(T * H) * sizeof **hidden);
    decode(*hidden, t, sizeof **hidden);
    return M3_OK;
}

int64_t m3_follow_runs(const struct m3_profile *profile, const struct m3_safetensors *follow,
                       const struct m3_model *model, int64_t first, int64_t end, int64_t T)
{
    enum { FEW = 8, FEW_OF_E4M3 = 16, WHOLE = 16 };
    const int64_t whole = m3_honest_rows_needed(profile);
    for (int64_t l = first; l + 1 < end; l++)
        if (!output_of(follow, l, T, model->config.H)) return whole;
    return whole > WHOLE ? FEW_OF_E4M3 : FEW;
}

int64_t m3_follow_from(const struct m3_safetensors *follow, const struct m3_model *model, int64_t layer, int64_t T)
{
    int64_t first = layer < 0 ? model->config.layers - 1 : layer;
    while (follow && first > 0 && !output_of(follow, first - 1, T, model->config.H)) first--;
    return follow ? first : 0;
}

int m3_follow_forward(const struct m3_engine *engine, const struct m3_model *model, const struct m3_request *request,
                      const struct m3_safetensors *follow, struct m3_error *error)
{
    const int64_t T = request->T, H = model->config.H, layers = request->end_layer;
    const int needs_start =
        request->semantics->mtp_embed == M3_MTP_EMBED_FUSED && m3_request_modules(model, request) > 0;
    if (!follow || needs_start) return engine->forward(model, request, error);
    const size_t bytes = (size_t)(T * H) * engine->real_bytes;
    void *hidden = malloc(bytes + 1);
    if (!hidden) return m3_fail_memory(error, "a layer's output", bytes);
    struct m3_request part = *request;
    const struct m3_tensor *input = part.first_layer > 0 ? output_of(follow, part.first_layer - 1, T, H) : NULL;
    int status = M3_OK;
    if (input) {
        decode(hidden, input, engine->real_bytes);
        part.hidden = hidden;
    }
    while (!status && part.first_layer < layers) {
        const struct m3_tensor *next = NULL;
        part.end_layer = part.first_layer;
        do next = ++part.end_layer < layers ? output_of(follow, part.end_layer - 1, T, H) : NULL;
        while (!next && part.end_layer < layers);
        status = engine->forward(model, &part, error);
        if (next) decode(hidden, next, engine->real_bytes);
        part.hidden = hidden;
        part.first_layer = part.end_layer;
    }
    free(hidden);
    return status;
}

int m3_follow_rows(struct m3_safetensors **truth, struct m3_safetensors **rows, const struct m3_envelope_plan *plan,
                   struct m3_error *error)
{
    struct m3_envelope_plan rows_only = *plan;
    struct m3_nameless file;
    *truth = *rows = NULL;
    rows_only.runs = 0;
    rows_only.truth = truth;
    int status = m3_temporary_nameless(&file, NULL, error);
    if (!status) status = m3_envelope_make(&rows_only, file.path, error);
    if (!status) status = m3_safetensors_open(rows, file.path, error);
    m3_nameless_close(&file);
    if (!status) return M3_OK;
    m3_safetensors_close(*truth);
    *truth = NULL;
    return status;
}
