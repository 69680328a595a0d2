#include "oracle/variants/honest_rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/rows/rows.h"
#include "oracle/variants/follow.h"
#include "oracle/variants/honest.h"
#include "oracle/variants/honest_margins.h"

/* One tap: the tensors declared for it. */
struct place {
    const struct m3_tensor *truth;
    enum m3_tap tap;
    int64_t layer;
    int64_t index[M3_ROW_FIELDS];       /* in the file; -1: none */
    int64_t width, step;                /* every step-th column of M3_ROW_RUNS */
    double *sizes;                      /* [rows] */
};

struct m3_honest_rows {
    const struct m3_envelope_plan *plan;
    const struct m3_safetensors *truth;
    struct m3_writer *writer;
    struct m3_honest *honest;
    struct m3_honest_margins *margins;
    struct place *places;               /* one per tensor of the truth */
    int64_t count, runs;
};

int64_t m3_honest_rows_needed(const struct m3_profile *profile)
{
    enum { RUNS = 16, RUNS_OF_E4M3 = 100 };
    for (int tap = 0; tap < M3_TAPS; tap++) {
        char name[96];
        if (m3_tap_name(name, sizeof name, (enum m3_tap)tap, 0) != 0) continue;
        const struct m3_input_rounding rule = m3_profile_input(profile, name);
        if (m3_has_codes(&rule)) return RUNS_OF_E4M3;
    }
    return RUNS;
}

/* Slots of experts are in another order where another expert is chosen: their rows say nothing. */
static int has_rows(struct place *place, const char *patterns)
{
    const struct m3_tensor *tensor = place->truth;
    return m3_tap_parse(tensor->name, &place->tap, &place->layer) == 0 &&
           m3_tap_table[place->tap].kind == M3_KIND_REALS && place->tap != M3_TAP_EXPERT_OUT &&
           place->tap != M3_TAP_EXPERT_WEIGHTS && tensor->count > 0 && m3_tap_matches(patterns, tensor->name);
}

/* The taps of which whole rows are kept: the residual stream and what is made of it at the end, and what E4M3 leaves
 * without another judge. */
static int keeps_runs(enum m3_tap tap, const struct m3_profile *profile)
{
    switch (tap) {
    case M3_TAP_OUT:
    case M3_TAP_FINAL_NORM:
    case M3_TAP_LOGITS:
    case M3_TAP_MTP_FINAL_NORM:
    case M3_TAP_MTP_LOGITS: return 1;
    case M3_TAP_MID:
    case M3_TAP_MLP:
    case M3_TAP_ROUTED: return m3_honest_rows_needed(profile) > 16;
    default: return 0;
    }
}

/* Margins are of the main model's choices. No layer of text comes before the vision tower. */
static int has_margins(const struct place *place, const struct m3_honest_rows *rows)
{
    return place->truth->shape[0] == rows->plan->c->T && m3_mtp_module_of(place->layer) < 0;
}

static int declare(struct place *place, struct m3_honest_rows *rows, enum m3_tap tap, struct m3_error *error)
{
    static const enum m3_dtype dtypes[M3_ROW_FIELDS] = { M3_F64, M3_F32, M3_BF16, M3_F64 };
    static const int ranks[M3_ROW_FIELDS] = { 1, 2, 3, 1 };
    const struct m3_tensor *t = place->truth;
    place->width = t->count / t->shape[0];
    place->step = (place->width + M3_ROW_COLUMNS - 1) / M3_ROW_COLUMNS;
    const int64_t columns = (place->width + place->step - 1) / place->step;
    const int64_t shapes[M3_ROW_FIELDS][3] = {
        { t->shape[0] }, { rows->runs, t->shape[0] }, { rows->runs, t->shape[0], columns }, { t->shape[0] }
    };
    const int has[M3_ROW_FIELDS] = { 1, 1, keeps_runs(tap, rows->plan->profile), has_margins(place, rows) };
    int status = M3_OK;
    for (int field = 0; field < M3_ROW_FIELDS && !status; field++) {
        char name[160];
        if (!has[field]) continue;
        snprintf(name, sizeof name, "%s.%s", t->name, m3_row_names[field]);
        place->index[field] = m3_writer_declared(rows->writer);
        status = m3_writer_tensor(rows->writer, name, dtypes[field], ranks[field], shapes[field], error);
    }
    place->sizes = malloc((size_t)t->shape[0] * sizeof *place->sizes);
    if (!status && !place->sizes) status = m3_fail_memory(error, t->name, (size_t)t->shape[0] * sizeof(double));
    return status;
}

int m3_honest_rows_declare(struct m3_honest_rows **out, const struct m3_envelope_plan *plan, int64_t runs,
                           const struct m3_safetensors *truth, struct m3_writer *writer, struct m3_error *error)
{
    struct m3_honest_rows *rows = *out = calloc(1, sizeof *rows);
    if (!rows) return m3_fail_memory(error, "rows", sizeof *rows);
    *rows = (struct m3_honest_rows){ .plan = plan, .truth = truth, .writer = writer, .runs = runs };
    rows->count = m3_safetensors_count(truth);
    rows->places = calloc((size_t)rows->count + 1, sizeof *rows->places);
    int status = rows->places ? M3_OK : m3_fail_memory(error, "rows", (size_t)rows->count * sizeof *rows->places);
    for (int64_t i = 0; i < rows->count && !status; i++) {
        struct place *place = &rows->places[i];
        for (int field = 0; field < M3_ROW_FIELDS; field++) place->index[field] = -1;
        place->truth = m3_safetensors_at(truth, i);
        if (has_rows(place, plan->taps)) status = declare(place, rows, place->tap, error);
    }
    if (!status) status = m3_honest_margins_new(&rows->margins, plan->model, plan->semantics, plan->c->T, error);
    if (!status)
        status = m3_honest_new(&rows->honest, plan->model, plan->semantics, plan->profile, NULL, plan->c->T, error);
    if (!status) return M3_OK;
    m3_honest_rows_free(rows);
    *out = NULL;
    return status;
}

void m3_honest_rows_free(struct m3_honest_rows *rows)
{
    if (!rows) return;
    for (int64_t i = 0; rows->places && i < rows->count; i++) free(rows->places[i].sizes);
    free(rows->places);
    m3_honest_free(rows->honest);
    m3_honest_margins_free(rows->margins);
    free(rows);
}

/* ---- during a run */

static struct place *place_of(struct m3_honest_rows *rows, enum m3_tap tap, int64_t layer, char *name, size_t size)
{
    if (m3_tap_table[tap].kind != M3_KIND_REALS || m3_tap_name(name, size, tap, layer) != 0) return NULL;
    const struct m3_tensor *truth = m3_safetensors_find(rows->truth, name);
    if (!truth) return NULL;
    struct place *place = &rows->places[truth - m3_safetensors_at(rows->truth, 0)];
    return place->index[M3_ROW_ERROR] >= 0 ? place : NULL;
}

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    char name[96];
    return m3_honest_margins_wants(tap, layer) || place_of(self, tap, layer, name, sizeof name) != NULL;
}

/* One row: its distance from the truth, and the differences of the columns that are kept. */
static float measure_row(uint16_t *kept, const struct place *place, const float *shown, int64_t row)
{
    double squares = 0;
    for (int64_t i = 0; i < place->width; i++) {
        const double want = m3_decode(place->truth->dtype, place->truth->data, row * place->width + i);
        const double d = isinf(want) && (double)shown[i] == want ? 0 : (double)shown[i] - want;
        squares += d * d;
        if (i % place->step == 0) kept[i / place->step] = m3_bf16_of((float)d);
    }
    return (float)m3_row_share(sqrt(squares), place->sizes[row]);
}

static int measure(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t count,
                   struct m3_error *error)
{
    struct m3_honest_rows *rows = self;
    char name[96];
    const struct place *place = place_of(rows, tap, layer, name, sizeof name);
    if (m3_honest_margins_wants(tap, layer)) {
        const int status = m3_honest_margins_take(rows->margins, tap, layer, data, row, count, error);
        if (status || !place) return status;
    }
    if (place->truth->shape[0] < row + count)
        return m3_fail(error, M3_INTERNAL, "%s: more rows than the truth has", name);
    const int64_t columns = (place->width + place->step - 1) / place->step;
    const size_t bytes = (size_t)place->width * sizeof(float);
    float *shown = malloc(bytes);
    uint16_t *kept = malloc((size_t)columns * sizeof *kept);
    int status = shown && kept ? M3_OK : m3_fail_memory(error, name, bytes);
    for (int64_t r = row; r < row + count && !status; r++) {
        const float *from = (const float *)data + (r - row) * place->width;
        m3_honest_show(rows->honest, name, shown, from, r * place->width, place->width);
        const float share = measure_row(kept, place, shown, r);
        status = m3_writer_append(rows->writer, place->index[M3_ROW_ERROR], &share, sizeof share, error);
        if (status || place->index[M3_ROW_RUNS] < 0) continue;
        status =
            m3_writer_append(rows->writer, place->index[M3_ROW_RUNS], kept, (uint64_t)columns * sizeof *kept, error);
    }
    free(shown);
    free(kept);
    return status;
}

static int write_sizes(struct m3_honest_rows *rows, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < rows->count && !status; i++) {
        const struct place *place = &rows->places[i];
        if (place->index[M3_ROW_SIZE] < 0) continue;
        const int64_t count = place->truth->shape[0];
        for (int64_t r = 0; r < count; r++)
            place->sizes[r] = m3_row_size(place->truth, r * place->width, place->width, 1);
        status = m3_writer_append(rows->writer, place->index[M3_ROW_SIZE], place->sizes,
                                  (uint64_t)count * sizeof *place->sizes, error);
    }
    return status;
}

static int write_margins(struct m3_honest_rows *rows, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = rows->plan;
    const int64_t T = plan->c->T;
    double *others = malloc((size_t)T * sizeof *others + 1);
    int status = others ? M3_OK : m3_fail_memory(error, "margins", (size_t)T * sizeof *others);
    for (int64_t i = 0; i < rows->count && !status; i++) {
        const struct place *place = &rows->places[i];
        if (place->index[M3_ROW_OTHERS] < 0) continue;
        const int64_t first = m3_follow_from(plan->follow, plan->model, place->layer, T);
        m3_honest_margins_others(others, rows->margins, place->tap, place->layer, first);
        status =
            m3_writer_append(rows->writer, place->index[M3_ROW_OTHERS], others, (uint64_t)T * sizeof *others, error);
    }
    free(others);
    return status;
}

int m3_honest_rows_write(struct m3_honest_rows *rows, struct m3_error *error)
{
    const struct m3_envelope_plan *plan = rows->plan;
    const struct m3_sink sink = { .self = rows, .wants = wants, .write = measure };
    int status = write_sizes(rows, error);
    for (int64_t run = 0; run < rows->runs && !status; run++) {
        struct m3_request request = m3_envelope_request(plan);
        m3_tell(&plan->progress, "honest run", run, rows->runs);
        m3_honest_draw(rows->honest, plan->seed, run);
        m3_honest_request(rows->honest, &request);
        request.sink = &sink;
        status = m3_follow_forward(m3_engine_f32(), plan->model, &request, plan->follow, error);
    }
    if (!status) status = write_margins(rows, error);
    return status;
}
