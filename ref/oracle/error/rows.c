#include "oracle/error/private/recompute.h"

#include <inttypes.h>
#include <string.h>

#include "base/minmax.h"

int64_t m3_recompute_span(const struct m3_recomputing *m, int64_t i)
{
    int64_t end = i + 1;
    while (end < m->rows && m->numbers[end] == m->numbers[end - 1] + 1) end++;
    return end - i;
}

/* Reports the missing rows of operand i: the first that is missing, and those after it. */
static void say_missing(struct m3_recomputing *m, int i, int64_t first, int64_t last)
{
    enum m3_tap tap = m->tap;
    int64_t layer = m->layer;
    char name[96] = "";
    if (m->out->missing[0]) return;
    m3_setting_operand(&tap, &layer, m->setting, m->tap, m->layer, i);
    m3_tap_name(name, sizeof name, tap, layer);
    if (!m->operands[i]) m3_recompute_missing(m->out, "%s", name);
    else if (first == last) m3_recompute_missing(m->out, "%s, row %" PRId64, name, first);
    else m3_recompute_missing(m->out, "%s, rows %" PRId64 " to %" PRId64, name, first, last);
}

void m3_recompute_missing_rows(struct m3_recomputing *m, int i, int64_t first, int64_t end)
{
    const struct m3_tap_values *v = m->operands[i];
    int64_t last = first;
    while (v && last + 1 < end && m3_tap_values_row(v, last + 1) < 0) last++;
    say_missing(m, i, first, last);
}

static void put_row(void *to, const void *from, int64_t row, size_t bytes)
{
    if (row < 0) memset(to, 0, bytes);
    else memcpy(to, (const char *)from + (size_t)row * bytes, bytes);
}

/* The rows of operand i that rows [rows] of the tap read, side by side: where they are, or copied. Places without a token
 * are zeros. */
static void take(struct m3_recomputing *m, int i, const int64_t *from, int64_t rows)
{
    const struct m3_tap_values *v = m->operands[i];
    const int64_t width = v->width;
    const size_t size = m3_tap_number_bytes(v->tap, sizeof(double)), bytes = (size_t)width * size;
    struct m3_tap_values *in = &m->in[i];
    int64_t first = rows > 0 ? m3_tap_values_row(v, from[0]) : 0, together = first >= 0;
    for (int64_t r = 0; r < rows && together; r++) together = m3_tap_values_row(v, from[r]) == first + r;
    *in = (struct m3_tap_values){ .tap = v->tap, .layer = v->layer, .rows = rows, .width = width };
    if (together) {
        in->data = (char *)v->data + (size_t)first * bytes;
        in->off = m3_spread_from(&v->off, first * width);
        return;
    }
    double *error = v->off.error ? m3_recompute_scratch(m, 2 * rows * width, sizeof *error) : NULL;
    in->data = m3_recompute_scratch(m, rows * width, size);
    if (error) in->off = (struct m3_spread){ error, error + rows * width };
    for (int64_t r = 0; r < rows && !m->status; r++) {
        const int64_t row = m3_tap_values_row(v, from[r]), to = r * width;
        put_row((char *)in->data + (size_t)r * bytes, v->data, row, bytes);
        if (error) put_row(in->off.error + to, v->off.error, row, (size_t)width * sizeof *error);
        if (error) put_row(in->off.variance + to, v->off.variance, row, (size_t)width * sizeof *error);
    }
}

/* The row of operand i that is read by row `number` of a tap that works row by row. */
static int64_t reads(const struct m3_recomputing *m, int i, int64_t number)
{
    return i == 0 ? number + m->node->shift : number;
}

int m3_setting_weighs_first(const struct m3_setting *s, int64_t layer)
{
    char name[96];
    return s->profile && !m3_tap_name(name, sizeof name, M3_TAP_EXPERT_OUT, layer) &&
           m3_profile_weight_first(s->profile, name);
}

int m3_setting_operand(enum m3_tap *operand, int64_t *operand_layer, const struct m3_setting *s, enum m3_tap tap,
                       int64_t layer, int i)
{
    if (tap == M3_TAP_EXPERT_OUT && i == 2 && m3_setting_weighs_first(s, layer)) {
        *operand = M3_TAP_EXPERT_WEIGHTS, *operand_layer = layer;
        return 0;
    }
    const int none = m3_graph_operand(operand, operand_layer, s->model, s->semantics, tap, layer, i);
    return none || m3_case_makes(s->the_case, *operand) ? none : -1;
}

static int has_operand(const struct m3_recomputing *m, int i)
{
    enum m3_tap tap;
    int64_t layer;
    return m3_setting_operand(&tap, &layer, m->setting, m->tap, m->layer, i) == 0;
}

/* A row is recomputed if every operand has it. */
static void rows_below(struct m3_recomputing *m, int64_t below)
{
    const int64_t rows = m3_tap_rows(m->setting, m->tap, m->layer);
    for (int64_t number = m->first; number < m3_min(m3_min(rows, m->end), below); number++) {
        int all = 1;
        for (int i = 0; i < M3_OPERANDS && all; i++)
            if (has_operand(m, i) && m3_is_by_row(m, i))
                all = m3_tap_values_row(m->operands[i], reads(m, i, number)) >= 0;
        if (all) m->numbers[m->rows++] = number;
    }
    for (int i = 0; i < M3_OPERANDS && m->rows == 0; i++)
        for (int64_t number = 0; has_operand(m, i) && m3_is_by_row(m, i) && number < rows; number++)
            if (m3_tap_values_row(m->operands[i], reads(m, i, number)) < 0)
                m3_recompute_missing_rows(m, i, reads(m, i, number), reads(m, i, rows));
}

void m3_rows_in_common(struct m3_recomputing *m) { rows_below(m, INT64_MAX); }

/* The number of consecutive places, from the first cached one, that a value has; those without a token are had. */
static int64_t places_of(const struct m3_recomputing *m, int i)
{
    const int64_t p0 = m->setting->the_case->p0;
    int64_t end = m->setting->the_case->shift - p0;
    while (m3_tap_values_row(m->operands[i], end) >= 0) end++;
    return end + p0;
}

/* For attention and block scores: rows with every place up to their own. */
void m3_rows_with_keys(struct m3_recomputing *m)
{
    const int64_t p0 = m->setting->the_case->p0, rows = m3_tap_rows(m->setting, m->tap, m->layer);
    int64_t places = INT64_MAX;
    int shortest = 1;
    for (int i = 1; i <= m->op->keys; i++) {
        int64_t held = places_of(m, i);
        if (held < places) shortest = i, places = held;
    }
    if (places > p0) rows_below(m, places - p0);
    if (m->rows == 0 && !m->out->missing[0]) m3_recompute_missing_rows(m, shortest, places - p0, rows);
    if (m->rows == 0) return;
    places = p0 + m->numbers[m->rows - 1] + 1;
    int64_t *from = m3_recompute_scratch(m, places, sizeof *from);
    for (int64_t p = 0; from && p < places; p++) from[p] = p - p0;
    for (int i = 1; from && i <= m->op->keys; i++) take(m, i, from, places);
}

void m3_rows_of_pictures(struct m3_recomputing *m)
{
    for (int i = 0; i < M3_OPERANDS && !m->out->missing[0]; i++) {
        const struct m3_tap_values *v = m->operands[i];
        int64_t end = v ? m->setting->the_case->pictures.P : 0;
        for (int64_t number = 0; number < end && !m->out->missing[0]; number++)
            if (m3_tap_values_row(v, number) < 0) m3_recompute_missing_rows(m, i, number, end);
    }
    if (m->out->missing[0]) return;
    m->rows = m3_tap_rows(m->setting, m->tap, m->layer);
    for (int64_t r = 0; r < m->rows; r++) m->numbers[r] = r;
}

static int has_all_operands(struct m3_recomputing *m)
{
    for (int i = 0; i < M3_OPERANDS; i++)
        if (has_operand(m, i) && !m->operands[i]) say_missing(m, i, 0, 0);
    return !m->out->missing[0];
}

/* mtp_zero_position0: the embedding of a row at position 0 is replaced by zeros. */
static void zero_embeddings(struct m3_recomputing *m)
{
    const int64_t H = m->config->H, *positions = m->setting->the_case->positions;
    struct m3_tap_values *e = &m->in[0];
    if (m->node->shift == 0 || m->setting->semantics->mtp_zero_position0 != M3_MTP_ZERO_POSITION0) return;
    double *x = m3_recompute_scratch(m, m->rows * H, sizeof *x);
    if (!x) return;
    memcpy(x, e->values, (size_t)(m->rows * H) * sizeof *x);
    for (int64_t r = 0; r < m->rows; r++)
        if (positions[m->numbers[r]] == 0) memset(x + r * H, 0, (size_t)H * sizeof *x);
    e->values = x;
}

void m3_recompute_choose_rows(struct m3_recomputing *m)
{
    m->numbers = m3_recompute_scratch(m, m3_tap_rows(m->setting, m->tap, m->layer), sizeof *m->numbers);
    if (m->status || !has_all_operands(m)) return;
    (m->op->rows ? m->op->rows : m3_rows_in_common)(m);

    int64_t *from = m->rows > 0 ? m3_recompute_scratch(m, m->rows, sizeof *from) : NULL;
    for (int i = 0; from && i < M3_OPERANDS; i++) {
        if (!has_operand(m, i) || !m3_is_by_row(m, i) || m->in[i].width) continue;
        for (int64_t r = 0; r < m->rows; r++) from[r] = reads(m, i, m->numbers[r]);
        take(m, i, from, m->rows);
    }
    if (m->rows > 0) zero_embeddings(m);
}
