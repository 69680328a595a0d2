/* Where the wrong elements of a tap are: the rows, the heads or experts, and the channels that hold all of them. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "base/text.h"
#include "oracle/judge/pattern/private/pattern.h"

/* A list of so many is still read. */
enum { FEW = 3 };

/* Items of one kind, some of which are wrong. */
struct items {
    const char *noun;
    const unsigned char *is_wrong, *exists;     /* [count]; exists NULL: all do */
    const int64_t *numbers;                     /* NULL: from 0 */
    int64_t count;
};

/* How the wrong ones lie among those that exist. */
struct lie {
    int64_t all, wrong, first, last, within;    /* within: those that exist from the first to the last */
    int64_t step;                               /* the same from each to the next; 0: it is not */
};

static int exists(const struct items *t, int64_t i) { return !t->exists || t->exists[i]; }

static int64_t number(const struct items *t, int64_t i) { return t->numbers ? t->numbers[i] : i; }

static struct lie lie_of(const struct items *t)
{
    struct lie l = { .first = -1 };
    int64_t before = -1, position = 0;
    for (int64_t i = 0; i < t->count; i++) {
        if (!exists(t, i)) continue;
        l.all++, position++;
        if (!t->is_wrong[i]) continue;
        const int64_t step = position - before;
        if (l.wrong == 0) l.first = i, l.within = -position;
        if (l.wrong == 1) l.step = step;
        if (l.wrong > 1 && step != l.step) l.step = 0;
        before = position, l.last = i, l.wrong++;
    }
    if (l.wrong > 0) l.within += before + 1;
    return l;
}

static void say_few(struct m3_text *w, const struct items *t, int64_t wrong)
{
    int64_t said = 0;
    for (int64_t i = 0; i < t->count; i++) {
        if (!exists(t, i) || !t->is_wrong[i]) continue;
        m3_text_add(w, "%s%" PRId64, said == 0 ? "" : said + 1 == wrong ? " and " : ", ", number(t, i));
        said++;
    }
}

static void list_few(struct m3_pattern_items *said, const struct items *t)
{
    for (int64_t i = 0; i < t->count; i++)
        if (exists(t, i) && t->is_wrong[i]) said->few[said->few_count++] = number(t, i);
}

/* Nothing if all are wrong, or too many to name them. */
static void say_items(struct m3_text *w, struct m3_pattern_items *said, const struct items *t)
{
    const struct lie l = lie_of(t);
    const char *join = w->length > 0 ? ", " : "";
    if (l.wrong == 0 || l.wrong == l.all) return;
    struct m3_pattern_items is = { t->noun, .first = number(t, l.first), .end = number(t, l.last) + 1, .wrong = l.wrong,
                                   .all = l.all };
    if (l.within == l.wrong) is.step = 1;
    if (l.wrong == 1 || (l.wrong <= FEW && is.step == 0)) list_few(&is, t);
    if (l.wrong == 1) {
        m3_text_add(w, "%s%s %" PRId64, join, t->noun, number(t, l.first));
    } else if (l.within == l.wrong) {
        m3_text_add(w, "%s%ss %" PRId64 " to %" PRId64, join, t->noun, number(t, l.first), number(t, l.last));
    } else if (l.wrong <= FEW) {
        m3_text_add(w, "%s%ss ", join, t->noun);
        say_few(w, t, l.wrong);
    } else if (l.step > 1 && (l.wrong + 1) * l.step > l.all) {
        is.step = l.step;
        m3_text_add(w, "%sone %s in %" PRId64 " from %s %" PRId64 " on", join, t->noun, l.step, t->noun,
                    number(t, l.first));
    } else if (2 * l.wrong <= l.all) {
        m3_text_add(w, "%s%" PRId64 " of %" PRId64 " %ss, the first of them %s %" PRId64, join, l.wrong, l.all, t->noun,
                    t->noun, number(t, l.first));
    } else return;
    *said = is;
}

/* ---- the elements of an output */

/* Ranges of channels end where kernels divide them, unless many more channels would have to be wrong. */
static void widen(int64_t *first, int64_t *end, int64_t width)
{
    enum { STEP = 8 };
    const int64_t from = *first / STEP * STEP, to = m3_min(width, (*end + STEP - 1) / STEP * STEP);
    if (4 * (*first - from + to - *end) > *end - *first) return;
    *first = from, *end = to;
}

/* ", block 2 of 32", of a range that is just one block of scales. */
static void say_block(struct m3_text *w, int64_t first, int64_t end, int64_t width)
{
    static const int64_t sizes[] = { 32, 128 };
    for (int i = 0; i < 2; i++)
        if (width > sizes[i] && end - first == sizes[i] && first % sizes[i] == 0)
            m3_text_add(w, " (block %" PRId64 " of %" PRId64 ")", first / sizes[i], sizes[i]);
}

static void say_elements(struct m3_text *w, struct m3_pattern_items *said, struct m3_region *g)
{
    const struct m3_pattern_values *v = g->v;
    const struct items all = { v->element, g->elements, NULL, NULL, v->width };
    const struct lie l = lie_of(&all);
    if (v->width == 1 || l.wrong == v->width) return;
    if (l.wrong <= FEW || (l.step > 1 && (l.wrong + 1) * l.step > l.all)) {
        say_items(w, said, &all);
        if (l.within == l.wrong) g->first = l.first, g->end = l.last + 1;
        return;
    }
    int64_t first = l.first, end = l.last + 1;
    if (2 * l.wrong < end - first) return;
    widen(&first, &end, v->width);
    if (4 * (end - first) > 3 * v->width) return;
    g->first = first, g->end = end;
    *said =
        (struct m3_pattern_items){ v->element, .first = first, .end = end, .step = 1, .wrong = l.wrong, .all = l.all };
    m3_text_add(w, "%s%ss %" PRId64 " to %" PRId64, w->length > 0 ? ", " : "", v->element, first, end - 1);
    say_block(w, first, end, v->width);
}

/* The last one that a row has: others are infinite. -1: a row has none. */
static int64_t last_of(const struct m3_pattern_values *v, int64_t output)
{
    int64_t c = v->width - 1;
    while (c >= 0 && !isfinite(v->want[output * v->width + c])) c--;
    return c;
}

/* Of blocks of keys: is each wrong one the last of its row, which is another block in other rows? */
static int are_last(const struct m3_region *g, const unsigned char *is_wrong)
{
    const struct m3_pattern_values *v = g->v;
    int64_t place = -1;
    int varies = 0;
    if (strcmp(v->element, "block") != 0) return 0;
    for (int64_t i = 0; i < v->rows * v->outputs * v->width; i++) {
        if (!is_wrong[i]) continue;
        if (i % v->width != last_of(v, i / v->width)) return 0;
        varies |= place >= 0 && place != i % v->width;
        place = i % v->width;
    }
    return varies;
}

/* ---- the whole */

static void narrow(struct m3_region *g, const unsigned char *is_wrong)
{
    const struct m3_pattern_values *v = g->v;
    for (int64_t i = 0; i < v->rows * v->outputs * v->width; i++) {
        const int64_t output = i / v->width, row = output / v->outputs;
        if (!is_wrong[i]) continue;
        const int64_t place = m3_place_of(v, row, output % v->outputs);
        g->wrong++;
        g->rows[row] = 1;
        g->elements[i % v->width] = 1;
        if (place >= 0) g->places[place] = 1;
    }
}

/* Are the errors of all other elements no larger than roundings? */
static int is_right_outside(const struct m3_region *g)
{
    const struct m3_pattern_values *v = g->v;
    double squares = 0, count = 0;
    if (!v->got) return 1;
    for (int64_t output = 0; output < v->rows * v->outputs; output++) {
        const int is_inside = m3_region_has(g, output / v->outputs, output % v->outputs);
        for (int64_t c = 0; c < v->width; c++) {
            const int64_t i = output * v->width + c;
            const double off = v->got[i] - v->want[i];
            if ((is_inside && c >= g->first && c < g->end) || !isfinite(off) || !(v->variance[i] > 0)) continue;
            squares += off * off / v->variance[i], count++;
        }
    }
    return squares <= count;
}

/* Which rows have an output of the places that are wrong, and which places have an output? */
static void list_existing(unsigned char *rows, unsigned char *places, const struct m3_region *g)
{
    const struct m3_pattern_values *v = g->v;
    for (int64_t output = 0; output < v->rows * v->outputs; output++) {
        const int64_t row = output / v->outputs, place = m3_place_of(v, row, output % v->outputs);
        if (place >= 0) places[place] = 1, rows[row] |= g->places[place];
    }
}

void m3_pattern_where(struct m3_pattern *pattern, struct m3_region *g, const unsigned char *is_wrong,
                      unsigned char *room)
{
    const struct m3_pattern_values *v = g->v;
    struct m3_text w = { pattern->where, sizeof pattern->where, 0 };
    unsigned char *rows = room, *places = room + v->rows;
    narrow(g, is_wrong);
    if (g->wrong == 0) return;
    list_existing(rows, places, g);
    say_items(&w, &pattern->items[0], &(struct items){ "row", g->rows, rows, v->numbers, v->rows });
    say_items(&w, &pattern->items[1], &(struct items){ v->place, g->places, places, NULL, v->place_count });
    if (v->got && are_last(g, is_wrong))
        m3_text_add(&w, "%sthe last %s of each row", w.length > 0 ? ", " : "", v->element);
    else say_elements(&w, &pattern->items[2], g);
    if (is_right_outside(g)) return;
    pattern->where[0] = '\0';
    memset(pattern->items, 0, sizeof pattern->items);
    memset(g->rows, 1, (size_t)v->rows);
    memset(g->places, 1, (size_t)v->place_count);
    g->first = 0, g->end = v->width;
}
