/* The pattern of what two dumps differ by, where only that is known: no tap is recomputed. SPEC 7.12. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/judge.h"
#include "oracle/judge/spans.h"

/* A larger tap would not fit beside a model: then nothing is said. */
static const int64_t most_elements = INT64_C(1) << 25;

/* The rows that both hold, in memory. */
struct both {
    const struct m3_matched *matched;
    double *want, *got, *variance;      /* [rows,width] */
    int64_t *numbers;                   /* [rows] */
    int32_t *places;                    /* [rows,slots] */
    int64_t rows, width;
};

static int room_for(struct both *x, struct m3_error *error)
{
    const size_t n = (size_t)(x->rows * x->width) + 1;
    x->want = malloc(3 * n * sizeof *x->want);
    x->numbers = malloc(((size_t)x->rows + 1) * sizeof *x->numbers);
    x->places = malloc(n * sizeof *x->places);
    if (!x->want || !x->numbers || !x->places)
        return m3_fail_memory(error, x->matched->want->name, 3 * n * sizeof *x->want);
    x->got = x->want + n, x->variance = x->got + n;
    return M3_OK;
}

/* A row in which nothing differs yet. */
static void read_want(struct both *x, const struct m3_row_pair *pair, int64_t r)
{
    const struct m3_tensor *want = x->matched->want;
    for (int64_t i = 0; i < x->width; i++)
        x->want[r * x->width + i] = m3_decode(want->dtype, want->data, pair->want * x->width + i);
    memcpy(x->got + r * x->width, x->want + r * x->width, (size_t)x->width * sizeof *x->got);
    x->numbers[r] = pair->number;
}

/* What is not judged, because it follows from another choice, does not differ. */
static void read_got(struct both *x, struct m3_span_walk walk)
{
    const struct m3_tensor *got = x->matched->got;
    struct m3_span span;
    while (m3_span_walk_next(&walk, &span))
        for (int64_t i = 0; i < span.length; i++)
            x->got[span.nth * x->width + span.want % x->width + i] = m3_decode(got->dtype, got->data, span.got + i);
}

/* deviation: of all elements; or, is_relative, of those of a row, over their root mean square. */
static void allow(struct both *x, double deviation, int is_relative)
{
    for (int64_t r = 0; r < x->rows; r++) {
        double squares = 0;
        for (int64_t i = 0; i < x->width; i++) {
            const double want = x->want[r * x->width + i];
            if (isfinite(want)) squares += want * want / (double)x->width;
        }
        for (int64_t i = 0; i < x->width; i++)
            x->variance[r * x->width + i] = deviation * deviation * (is_relative ? squares : 1);
    }
}

/* The experts of the reference's slots, if it tells them. */
static void name_experts(struct m3_pattern_values *v, const struct both *x, const struct m3_tensor *ids)
{
    struct m3_row_walk walk;
    struct m3_row_pair pair;
    int64_t most = -1;
    if (!ids || m3_row_walk_begin(&walk, x->matched)) return;
    for (int64_t r = 0; m3_row_walk_next(&walk, &pair); r++)
        for (int64_t k = 0; k < v->outputs; k++) {
            const int64_t id = m3_id_at(ids, pair.want * v->outputs + k);
            x->places[r * v->outputs + k] = id < 0 || id > INT32_MAX - 1 ? -1 : (int32_t)id;
            most = m3_max(most, x->places[r * v->outputs + k]);
        }
    v->places = x->places, v->place_count = most + 1, v->place = "expert";
}

static int find(struct m3_pattern *pattern, struct both *x, double deviation, int is_relative, struct m3_error *error)
{
    struct m3_pattern_values v = { .rows = x->rows };
    struct m3_span_walk spans;
    struct m3_row_walk rows;
    struct m3_row_pair pair;
    if (!m3_pattern_divide(&v, m3_tap_table[x->matched->tap].shape, x->matched->want->shape)) return M3_OK;
    if (m3_span_walk_begin(&spans, x->matched) || m3_row_walk_begin(&rows, x->matched)) return M3_OK;
    for (int64_t r = 0; m3_row_walk_next(&rows, &pair); r++) read_want(x, &pair, r);
    read_got(x, spans);
    allow(x, deviation, is_relative);
    name_experts(&v, x, spans.want_ids);
    v.got = x->got, v.want = x->want, v.variance = x->variance, v.numbers = x->numbers;
    return m3_pattern_find(pattern, &v, error);
}

int m3_matched_pattern(struct m3_pattern *pattern, const struct m3_matched *matched, double deviation, int is_relative,
                       struct m3_error *error)
{
    const struct m3_tensor *want = matched->want;
    struct both x = { .matched = matched };
    struct m3_row_walk walk;
    *pattern = (struct m3_pattern){ .where = "" };
    if (matched->tap >= M3_TAPS || want->rank != (int)strlen(m3_tap_table[matched->tap].shape)) return M3_OK;
    if (!(deviation > 0) || !isfinite(deviation) || want->shape[0] == 0 || m3_row_walk_begin(&walk, matched))
        return M3_OK;
    x.rows = m3_row_walk_count(walk), x.width = want->count / want->shape[0];
    if (x.rows * x.width > most_elements) return M3_OK;
    int status = room_for(&x, error);
    if (!status) status = find(pattern, &x, deviation, is_relative, error);
    free(x.want);
    free(x.numbers);
    free(x.places);
    return status;
}
