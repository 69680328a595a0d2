/* The pattern of a wrong tap, from its values beside what they should be; and beside those of other taps: its inputs,
 * the same tap of other layers, and what another layer's weights would make of its inputs. SPEC 7.12. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/hints.h"
#include "oracle/judge/side_by_side.h"

enum { MOST_OTHERS = 80 };

/* A tap that the wrong one may hold instead: of the trace, of the dump, or just computed. */
struct other {
    const struct m3_tap_values *values; /* NULL: `tensor` */
    const struct m3_tensor *tensor;     /* its rows are those of `dumped` */
    const struct m3_tap_values *dumped;
    const int64_t *numbers;             /* of the rows that are looked at */
    int64_t width;
    char text[128];
};

struct looking {
    const struct m3_blaming *b;
    const struct m3_blame_item *item;
    const struct m3_tap_values *dumped;
    const struct m3_side_by_side *s;
    struct m3_pattern_values v;
    double *variance;
    int32_t *places;
    struct other *others;               /* [MOST_OTHERS] */
    struct m3_pattern_other *seen;      /* [MOST_OTHERS] the same, as the finder takes them */
};

static double other_at(const void *self, int64_t row, int64_t i)
{
    const struct other *o = self;
    const int64_t at = m3_tap_values_row(o->values ? o->values : o->dumped, o->numbers[row]);
    if (at < 0) return NAN;
    return o->values ? m3_tap_doubles(o->values)[at * o->width + i]
                     : m3_decode(o->tensor->dtype, o->tensor->data, at * o->width + i);
}

static struct other *add(struct looking *l)
{
    if (l->v.other_count == MOST_OTHERS) return NULL;
    struct other *o = &l->others[l->v.other_count];
    l->seen[l->v.other_count++] = (struct m3_pattern_other){ o->text, other_at, o };
    *o = (struct other){ .dumped = l->dumped, .numbers = l->s->numbers, .width = l->item->width };
    return o;
}

static void add_inputs(struct looking *l)
{
    for (int j = 0; j < M3_OPERANDS; j++) {
        const struct m3_blame_item *operand = m3_blame_operand(l->b, l->item, j);
        const struct m3_tap_values *values =
            operand && operand->dumped ? m3_trace_get(l->b->trace, operand->tap, operand->layer) : NULL;
        if (!values || !m3_tap_doubles(values) || values->width != l->item->width) continue;
        struct other *o = add(l);
        if (!o) return;
        o->values = values;
        snprintf(o->text, sizeof o->text, "equal to its input %s", operand->name);
    }
}

/* The nearest layers first. */
static void add_layers(struct looking *l)
{
    const struct m3_blame_item *items = l->b->items;
    const int64_t own = l->item - items, count = l->b->count;
    for (int64_t step = 1; step < count; step++)
        for (int side = -1; side <= 1; side += 2) {
            const int64_t i = own + side * step;
            if (i < 0 || i >= count || items[i].tap != l->item->tap || !items[i].dumped) continue;
            if (items[i].width != l->item->width || items[i].dumped->count != l->item->dumped->count) continue;
            struct other *o = add(l);
            if (!o) return;
            o->tensor = items[i].dumped;
            snprintf(o->text, sizeof o->text, "equal to what %s holds", items[i].name);
        }
}

/* How the elements of a row are divided. */
static int divide(struct looking *l)
{
    const char *letters = m3_tap_table[l->item->tap].shape;
    const struct m3_tap_values *experts = m3_trace_get(l->b->trace, M3_TAP_EXPERTS, l->item->layer);
    struct m3_pattern_values *v = &l->v;
    if (!m3_pattern_divide(v, letters, l->item->dumped->shape)) return 0;
    if (letters[1] != 'K' || !experts || !m3_tap_ids(experts)) return 1;
    l->places = malloc((size_t)(v->rows * v->outputs + 1) * sizeof *l->places);
    for (int64_t i = 0; l->places && i < v->rows * v->outputs; i++) {
        const int64_t at = m3_tap_values_row(experts, v->numbers[i / v->outputs]);
        l->places[i] = at < 0 ? -1 : m3_tap_ids(experts)[at * v->outputs + i % v->outputs];
    }
    v->places = l->places, v->place_count = l->b->setting->model->config.E, v->place = "expert";
    return l->places != NULL;
}

static int begin(struct looking *l, double u, double stored)
{
    const struct m3_side_by_side *s = l->s;
    l->v = (struct m3_pattern_values){ .got = s->got, .want = s->want, .numbers = s->numbers, .rows = s->rows };
    l->variance = malloc((size_t)(s->count + 1) * sizeof *l->variance);
    l->others = malloc(MOST_OTHERS * sizeof *l->others);
    l->seen = malloc(MOST_OTHERS * sizeof *l->seen);
    if (!l->variance || !l->others || !l->seen)
        return m3_fail_memory(l->b->error, l->item->name, (size_t)s->count * sizeof *l->variance);
    for (int64_t i = 0; i < s->count; i++) l->variance[i] = m3_side_by_side_variance(s, i, u, stored);
    l->v.variance = l->variance, l->v.others = l->seen;
    return M3_OK;
}

static void end(struct looking *l)
{
    free(l->variance);
    free(l->places);
    free(l->others);
    free(l->seen);
}

/* ---- other weights */

/* What another layer's operator makes of this layer's inputs, in one row. */
static int try_weights(struct m3_pattern *pattern, struct looking *l, const struct m3_blame_item *item, int64_t row)
{
    const struct m3_tap_values *operands[M3_OPERANDS] = { NULL };
    const int64_t number = l->s->numbers[row], outputs = l->v.outputs, first = row * l->item->width;
    struct m3_recomputed made = { 0 };
    struct m3_pattern_values v = l->v;
    for (int j = 0; j < M3_OPERANDS; j++) {
        const struct m3_blame_item *operand = m3_blame_operand(l->b, l->item, j);
        if (operand) operands[j] = m3_trace_get(l->b->trace, operand->tap, operand->layer);
    }
    int status = m3_recompute(&made, l->b->setting, item->tap, item->layer, operands, number, number + 1, l->b->error);
    struct other other = { .values = &made.y, .numbers = l->s->numbers + row, .width = l->item->width };
    const struct m3_pattern_other seen = { other.text, other_at, &other };
    snprintf(other.text, sizeof other.text, "equal to what layer %" PRId64 "'s weights give", item->layer);
    v.got += first, v.want += first, v.variance += first, v.numbers += row, v.rows = 1;
    if (v.places) v.places += row * outputs;
    v.others = &seen, v.other_count = 1;
    if (!status && !made.missing[0] && made.y.width == l->item->width && m3_tap_doubles(&made.y))
        status = m3_pattern_find(pattern, &v, l->b->error);
    if (strcmp(pattern->what, other.text) != 0) pattern->what[0] = '\0';
    m3_recomputed_free(&made);
    return status;
}

/* Is an earlier tap wrong? Then this one is not the culprit, and the weights of other layers need not be read. */
static int is_later(const struct looking *l)
{
    for (const struct m3_blame_item *item = l->b->items; item < l->item; item++)
        if (item->blamed && m3_finding_is_wrong(item->blamed)) return 1;
    return 0;
}

/* Those of the nearest layers, in the row of the largest error. */
static int other_weights(struct m3_pattern *pattern, struct looking *l)
{
    enum { NEAREST = 4 };
    const struct m3_setting *s = l->b->setting;
    const enum m3_operator op = m3_graph_node(s->model, s->semantics, l->item->tap, l->item->layer)->op;
    const int64_t own = l->item - l->b->items, count = l->b->count;
    int64_t row = 0, tried = 0;
    int status = M3_OK;
    if ((op != M3_OP_LINEAR && op != M3_OP_RMS_NORM) || l->item->blamed->rank == 0 || is_later(l)) return M3_OK;
    while (row < l->s->rows && l->s->numbers[row] != l->item->blamed->index[0]) row++;
    for (int64_t i = 2; i < 2 * count && row < l->s->rows && tried < NEAREST && !status && !pattern->what[0]; i++) {
        const int64_t at = own + (i % 2 ? i / 2 : -(i / 2));
        const struct m3_blame_item *item = at < 0 || at >= count ? l->item : &l->b->items[at];
        struct m3_pattern found = { .where = "" };
        if (item == l->item || item->tap != l->item->tap || item->width != l->item->width) continue;
        tried++;
        status = try_weights(&found, l, item, row);
        memcpy(pattern->what, found.what, sizeof pattern->what);
    }
    return status;
}

/* ---- the whole */

int m3_blame_find_pattern(const struct m3_blaming *b, const struct m3_blame_item *item,
                          const struct m3_tap_values *dumped, const struct m3_side_by_side *s, double u)
{
    struct m3_finding *out = item->blamed;
    const double here = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer).here;
    struct looking l = { .b = b, .item = item, .dumped = dumped, .s = s };
    if ((!m3_finding_is_wrong(out) && !(out->share > 0)) || !s->numbers || item->dumped->rank < 2) return M3_OK;
    int status = begin(&l, u, fmax(here, 0x1p-24));
    if (!status && divide(&l)) {
        add_inputs(&l);
        if (b->side.file) add_layers(&l);
        status = m3_pattern_find(&out->pattern, &l.v, b->error);
        if (!status && !out->pattern.what[0]) status = other_weights(&out->pattern, &l);
    }
    /* What the hint says is more than that a number was added in each row. */
    if (m3_is_logits(item->tap) && out->note[0]) out->pattern.what[0] = '\0';
    end(&l);
    return status;
}
