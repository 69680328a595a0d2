/* Are the wrong values right ones of another place: of another row, another head, another channel, another tap? */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "oracle/judge/pattern/private/pattern.h"

static double want_at(const struct m3_pattern_values *v, int64_t row, int64_t output, int64_t c)
{
    return v->want[(row * v->outputs + output) * v->width + c];
}

static int64_t first_row(const struct m3_region *g)
{
    int64_t row = 0;
    while (row < g->v->rows && !g->rows[row]) row++;
    return row;
}

static int64_t count(const unsigned char *flags, int64_t n)
{
    int64_t set = 0;
    for (int64_t i = 0; i < n; i++) set += flags[i];
    return set;
}

/* ---- rows */

/* By as many rows of the sequence; experts keep their places only within a row. */
static double row_by(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    const struct m3_pattern_values *v = guess->region->v;
    const int64_t from = row + guess->by;
    if (from < 0 || from >= v->rows || m3_number_of_row(v, from) != m3_number_of_row(v, row) + guess->by) return NAN;
    return want_at(v, from, output, c);
}

static double row_from(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    (void)row;
    return want_at(guess->region->v, guess->from, output, c);
}

static void say_rows(struct m3_pattern *pattern, const struct m3_guess *guess, int64_t row)
{
    const struct m3_pattern_values *v = guess->region->v;
    const int64_t rows = guess->by < 0 ? -guess->by : guess->by;
    const char *const side = guess->by < 0 ? "before" : "after";
    if (guess->at == row_from || count(guess->region->rows, v->rows) == 1)
        snprintf(pattern->what, sizeof pattern->what, "what row %" PRId64 " should be",
                 m3_number_of_row(v, guess->at == row_from ? guess->from : row + guess->by));
    else if (rows == 1)
        snprintf(pattern->what, sizeof pattern->what, "shifted by one row: each is what the one %s it should be", side);
    else
        snprintf(pattern->what, sizeof pattern->what,
                 "shifted by %" PRId64 " rows: each is what the one %" PRId64 " %s it should be", rows, rows, side);
}

/* Does another row explain the first wrong output of the region? */
static int is_like(const struct m3_region *g, int64_t row, int64_t from)
{
    const struct m3_guess guess = { .region = g, .at = row_from, .from = from };
    int64_t output = 0;
    while (output < g->v->outputs && !m3_region_has(g, row, output)) output++;
    return from != row && output < g->v->outputs && m3_guess_explains_one(&guess, row, output);
}

static void moved_rows(struct m3_pattern *pattern, const struct m3_region *g)
{
    static const int64_t near[] = { -1, 1 };
    const int64_t row = first_row(g);
    struct m3_guess guess = { .region = g, .at = row_by };
    if (g->v->places || g->v->rows < 2) return;
    for (int i = 0; i < 2 && !pattern->what[0]; i++) {
        guess.by = near[i];
        if (m3_guess_explains(&guess)) say_rows(pattern, &guess, row);
    }
    for (int64_t from = 0; from < g->v->rows && !pattern->what[0]; from++) {
        if (!is_like(g, row, from)) continue;
        guess = (struct m3_guess){ .region = g, .at = row_by, .by = from - row };
        if (!m3_guess_explains(&guess)) guess = (struct m3_guess){ .region = g, .at = row_from, .from = from };
        if (m3_guess_explains(&guess)) say_rows(pattern, &guess, row);
    }
}

/* ---- heads */

static double head_by(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    const struct m3_pattern_values *v = guess->region->v;
    return want_at(v, row, (output + guess->by) % v->outputs, c);
}

/* The other head that explains this one in the first wrong row; -1: none. */
static int64_t head_in_place_of(const struct m3_region *g, int64_t head)
{
    const int64_t row = first_row(g), heads = g->v->outputs;
    struct m3_guess guess = { .region = g, .at = head_by };
    for (guess.by = 1; guess.by < heads; guess.by++)
        if (m3_guess_explains_one(&guess, row, head)) return (head + guess.by) % heads;
    return -1;
}

/* own: by how many heads each is moved. */
static double head_by_own(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    const struct m3_pattern_values *v = guess->region->v;
    return want_at(v, row, (output + (int64_t)guess->own[output]) % v->outputs, c);
}

static void say_heads(struct m3_pattern *pattern, const struct m3_region *g, const double *moved)
{
    const int64_t heads = g->v->outputs, wrong = count(g->places, heads);
    struct m3_text w = { pattern->what, sizeof pattern->what, 0 };
    int64_t first = 0, said = 0;
    while (!g->places[first]) first++;
    const int64_t other = (first + (int64_t)moved[first]) % heads;
    if (wrong == 2 && g->places[other]) {
        m3_text_add(&w, "exchanged with each other");
        return;
    }
    m3_text_add(&w, "permuted: ");
    for (int64_t h = first; h < heads && said < 3; h++) {
        if (!g->places[h]) continue;
        m3_text_add(&w, "%s%s %" PRId64 " is what %s %" PRId64 " should be", said++ ? ", " : "", g->v->place, h,
                    g->v->place, (h + (int64_t)moved[h]) % heads);
    }
    if (wrong > said) m3_text_add(&w, ", ..");
}

static void moved_heads(struct m3_pattern *pattern, const struct m3_region *g)
{
    enum { MOST_HEADS = 256, LEAST_WIDTH = 4 };
    double moved[MOST_HEADS] = { 0 };
    const int64_t heads = g->v->outputs;
    if (g->v->places || heads < 2 || heads > MOST_HEADS || g->end - g->first < LEAST_WIDTH) return;
    for (int64_t h = 0; h < heads; h++) {
        const int64_t from = g->places[h] ? head_in_place_of(g, h) : h;
        if (from < 0) return;
        moved[h] = (double)((from - h + heads) % heads);
    }
    const struct m3_guess guess = { .region = g, .at = head_by_own, .own = moved };
    if (m3_guess_explains(&guess)) say_heads(pattern, g, moved);
}

/* ---- channels */

/* Where element c of n comes from. */
static int64_t halves(int64_t c, int64_t n) { return (c + n / 2) % n; }
static int64_t neighbours(int64_t c, int64_t n) { return n % 2 == 0 ? c ^ 1 : c; }
static int64_t interleaved(int64_t c, int64_t n) { return c % 2 * (n / 2) + c / 2; }
static int64_t divided(int64_t c, int64_t n) { return c < n / 2 ? 2 * c : 2 * (c - n / 2) + 1; }
static int64_t reversed(int64_t c, int64_t n) { return n - 1 - c; }
static int64_t before(int64_t c, int64_t n) { return c > 0 ? c - 1 : n - 1; }
static int64_t after(int64_t c, int64_t n) { return c + 1 < n ? c + 1 : 0; }

static const struct {
    int64_t (*from)(int64_t c, int64_t n);
    const char *what;
} orders[] = {
    { halves, "with both halves exchanged" },
    { neighbours, "with neighbours exchanged" },
    { interleaved, "with both halves interleaved" },
    { divided, "with even ones before odd ones" },
    { reversed, "in reverse order" },
    { before, "shifted by one: each is what the one before it should be" },
    { after, "shifted by one: each is what the one after it should be" },
};

static double in_order(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    const struct m3_region *g = guess->region;
    return want_at(g->v, row, output, g->first + orders[guess->by].from(c - g->first, g->end - g->first));
}

static void moved_channels(struct m3_pattern *pattern, const struct m3_region *g)
{
    enum { LEAST_WIDTH = 4 };
    if (g->end - g->first < LEAST_WIDTH) return;
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        const struct m3_guess guess = { .region = g, .at = in_order, .by = (int64_t)i };
        if (!m3_guess_explains(&guess)) continue;
        snprintf(pattern->what, sizeof pattern->what, "the right %ss %s", g->v->element, orders[i].what);
        return;
    }
}

/* ---- other taps */

static double of_other(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    const struct m3_pattern_values *v = guess->region->v;
    return guess->other->at(guess->other->self, row, output * v->width + c);
}

/* Of a large tap the first output tells whether the rest need be read. */
static void other_taps(struct m3_pattern *pattern, const struct m3_region *g)
{
    const int64_t row = first_row(g);
    for (int64_t i = 0; i < g->v->other_count; i++) {
        const struct m3_guess guess = { .region = g, .at = of_other, .other = &g->v->others[i] };
        int is_like = 0;
        for (int64_t o = 0; o < g->v->outputs && !is_like; o++)
            is_like = m3_region_has(g, row, o) && m3_guess_explains_one(&guess, row, o);
        if (!is_like || !m3_guess_explains(&guess)) continue;
        snprintf(pattern->what, sizeof pattern->what, "%s", guess.other->text);
        return;
    }
}

void m3_pattern_moved(struct m3_pattern *pattern, const struct m3_region *g)
{
    enum { LEAST = 4 }; /* fewer values may be alike by chance */
    if (g->wrong < LEAST) return;
    other_taps(pattern, g);
    if (!pattern->what[0]) moved_rows(pattern, g);
    if (!pattern->what[0]) moved_heads(pattern, g);
    if (!pattern->what[0]) moved_channels(pattern, g);
}
