/* Is the error in the direction that a known mistake makes? d is what the mistake would add to the right results of a
 * tap, made from the candidate's own inputs; its coefficient in the candidate's error is near 0 in a right program and
 * near 1 in one with the mistake, however coarsely both round. A pass that such a mistake, or zeros, would also get says
 * nothing. SPEC 7.12. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/cause/answer.h"
#include "oracle/cause/mistaken.h"
#include "oracle/cause/tap.h"
#include "oracle/judge/side_by_side.h"
#include "oracle/judge/tolerance.h"

/* A coefficient from `half` to 2 - half is the mistake's, if d is `clear` standard deviations of honest errors long. These
 * may be `shared` times as large as of elements that err for themselves: a row shares the roundings of its inputs. Honest
 * coefficients are up to 0.2: what rounded inputs do to an activation has a part in its own direction. */
static const double half = 0.5, clear = 6, shared = 2, one_sided = 0.25;
/* From here on it is no right program's: what saturates in codes shows less than half of its mistake. */
static const double unsure = 0.3;
/* What lies in one row alone has no standard error: the rounding of one value before the tap moves the whole row, and as
 * far as so many standard deviations, times the square root of its width. */
static const double one_row = 3.5;
/* A mistake that moves the results by less, relative to them in L2, is small beside the rounding of codes itself. */
static const double least_effect = 0.01;
/* Results that differ by less are the same: they are rounded to float. */
static const double same = 2e-7;

/* The rows of a tap that are tried, beside what they should be. */
struct scoring {
    const struct m3_blaming *b;
    struct m3_blame_item *item;
    struct m3_mistaken *mistaken;
    struct m3_side_by_side s;
    struct m3_side_by_side_rules rules;
    struct m3_side_by_side_tap tap;
    struct m3_tap_values right; /* made as the mistakes are */
    double *by, *own;           /* [s.count]: d; the candidate's values */
};

int m3_blame_is_product(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_setting *s = b->setting;
    switch (m3_graph_node(s->model, s->semantics, item->tap, item->layer)->op) {
    case M3_OP_LINEAR:
    case M3_OP_ACTIVATION:
    case M3_OP_GATED_MLP:
    case M3_OP_EXPERT:
    case M3_OP_ROUTED: return 1;
    default: return 0;
    }
}

/* Are numbers before the tap rounded more coarsely than to BF16? */
static int reads_codes(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    return m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer).before > 0x1p-8;
}

enum { FEW = 8, MANY = 1 << 20 };       /* rows of a tap that is given; its numbers */

static int begin(struct scoring *c, const struct m3_tap_values *dumped, const struct m3_recomputed *made)
{
    const struct m3_blaming *b = c->b;
    const char *name = c->item->name;
    const double dumping = m3_profile_dump_rounding(b->setting->profile, name);
    const int64_t width = made->y.width, near = c->item->rows - 1;
    int64_t first = 0, rows = m3_min(dumped->rows, m3_max(FEW, MANY / m3_max(1, width)));
    /* Operands that are given one by one are not in a dump, from which mistakes could be made. */
    int status = b->side.file ? m3_mistaken_new(&c->mistaken, b, c->item, near, 0) : M3_OK;
    if (status) return status;
    if (c->mistaken) m3_mistaken_rows(&first, &rows, c->mistaken);
    const size_t room = (size_t)(rows * width) + 1;
    status = m3_side_by_side_room(&c->s, rows * width, rows, name, b->error);
    c->by = malloc(room * sizeof *c->by);
    c->own = malloc(room * sizeof *c->own);
    if (!status && (!c->by || !c->own)) status = m3_fail_memory(b->error, name, room * sizeof *c->by);
    for (int64_t n = first; n < first + rows && !status; n++) {
        const int64_t at = m3_tap_values_row(dumped, n);
        double *got = at >= 0 ? m3_side_by_side_row(&c->s, made, n, dumping) : NULL;
        if (got) memcpy(got, dumped->values + at * width, (size_t)width * sizeof *got);
    }
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, name, c->item->tap, c->item->layer);
    if (!status) status = m3_side_by_side_mark(&c->s, 0, at.here, name, b->error);
    if (!status) memcpy(c->own, c->s.got, (size_t)c->s.count * sizeof *c->own);
    c->tap = (struct m3_side_by_side_tap){ b->trace, c->item->tap, c->item->layer };
    c->rules = (struct m3_side_by_side_rules){ .setting = b->setting,
                                               .tap = name,
                                               .n = made->n,
                                               .f = made->f,
                                               .has_suspect = made->suspect != NULL,
                                               .has_extra = made->y.off.error != NULL || dumping > 0 };
    return status;
}

static void end(struct scoring *c)
{
    m3_side_by_side_free(&c->s);
    m3_tap_values_free(&c->right);
    m3_mistaken_free(c->mistaken);
    free(c->by);
    free(c->own);
}

/* Element i, or NaN: it was not computed. */
static double element(const struct m3_tap_values *y, const struct m3_side_by_side *s, int64_t i)
{
    const int64_t width = s->count / s->rows, row = m3_tap_values_row(y, s->numbers[i / width]);
    return row >= 0 ? m3_tap_doubles(y)[row * width + i % width] : NAN;
}

/* What a tap may hold in place of its values, besides the results of known mistakes. */
enum pattern { ZEROS, NEGATED, ROW_BEFORE, ROW_AFTER, PATTERNS };
static const char *const patterns[] = { "zeros", "the same values with the other sign", "the row before",
                                        "the row after" };

/* Element i by a pattern; NaN: there is none. */
static double patterned(const struct m3_side_by_side *s, enum pattern pattern, int64_t i)
{
    const int64_t width = s->count / s->rows, row = i / width, other = row + (pattern == ROW_BEFORE ? -1 : 1);
    if (pattern == ZEROS) return 0;
    if (pattern == NEGATED) return -s->want[i];
    if (other < 0 || other >= s->rows || !m3_side_by_side_tells(s, row)) return NAN;
    return s->numbers[other] - s->numbers[row] == other - row ? s->want[i + (other - row) * width] : NAN;
}

/* c->by := what the results y of a mistake add to the right ones; y NULL: a pattern. Returns their size beside the right
 * results, in L2. */
static double direct(struct scoring *c, const struct m3_tap_values *y, enum pattern pattern)
{
    const struct m3_side_by_side *s = &c->s;
    double off = 0, size = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double by = y ? element(y, s, i) - element(&c->right, s, i) : patterned(s, pattern, i) - s->want[i];
        c->by[i] = isfinite(by) && isfinite(s->want[i]) ? by : 0;
        off += c->by[i] * c->by[i];
        if (isfinite(s->want[i])) size += s->want[i] * s->want[i];
    }
    return size > 0 ? sqrt(off / size) : 0;
}

static int is_at_least(const struct m3_fit *fit, double least)
{
    return fit->length >= clear * shared && fit->change >= least + one_sided * fit->mean && fit->change <= 2 - half;
}

static int is_mistake(const struct m3_fit *fit) { return is_at_least(fit, half); }

static int fit(struct m3_fit *fit, const struct scoring *c)
{
    return m3_side_by_side_direction(fit, &c->s, &c->rules, &c->tap, c->by, c->b->error);
}

/* *is: may the candidate have this mistake, or would it pass with the mistake on top of its own errors? */
static int is_hidden(int *is, struct scoring *c, const struct m3_fit *own)
{
    struct m3_fit with;
    *is = is_at_least(own, unsure);
    if (*is) return M3_OK;
    for (int64_t i = 0; i < c->s.count; i++) c->s.got[i] = c->own[i] + c->by[i];
    int status = fit(&with, c);
    *is = !status && !is_mistake(&with) && m3_side_by_side_verdict(&c->s, &c->rules).verdict == M3_VERDICT_PASS;
    memcpy(c->s.got, c->own, (size_t)c->s.count * sizeof *c->own);
    return status;
}

/* Of the mistakes that the errors may be: the one that explains most of them. */
struct named {
    const struct m3_mistake *mistake;   /* NULL: `what` is a pattern */
    const char *what;
    struct m3_fit fit;
};

/* One direction, c->by, of this effect. */
static int try(struct named *best, struct scoring *c, const struct m3_mistake *mistake, const char *what, double effect)
{
    struct m3_finding *out = c->item->blamed;
    struct m3_fit own;
    int hidden = 0;
    int status = fit(&own, c);
    if (!isfinite(own.standard_error) && own.length < one_row * sqrt((double)c->s.count / (double)c->s.rows))
        return status;
    if (!status && is_mistake(&own) && own.explained > best->fit.explained)
        *best = (struct named){ mistake, what, own };
    else if (!status && !out->blind_to && effect >= least_effect && out->verdict == M3_VERDICT_PASS)
        status = is_hidden(&hidden, c, &own);
    if (hidden) out->blind_to = what, out->is_blind_to_pattern = !mistake;
    return status;
}

static int is_of_tap(const struct scoring *c, const struct m3_tap_values *y)
{
    return m3_tap_doubles(y) && y->width == c->s.count / c->s.rows;
}

static int try_mistake(struct named *best, struct scoring *c, const struct m3_mistake *mistake)
{
    struct m3_tap_values y;
    int applies;
    int status = m3_mistaken_make(&y, &applies, c->mistaken, mistake);
    const double effect = !status && applies && is_of_tap(c, &y) ? direct(c, &y, ZEROS) : 0;
    /* What it does to taps after its first one is not asked of a pass. */
    const int is_first = m3_mistaken_reaches(c->b, c->item, mistake);
    if (effect > same) status = try(best, c, mistake, mistake->id, is_first ? effect : 0);
    m3_tap_values_free(&y);
    return status;
}

static int is_named(const struct m3_blame_named *named, const struct m3_mistake *mistake)
{
    for (int i = 0; named && i < named->count; i++)
        if (named->mistakes[i] == mistake) return 1;
    return 0;
}

/* Is it named here first? Later taps are not asked for it again. */
static int is_new(struct m3_blame_named *named, const struct m3_mistake *mistake)
{
    if (is_named(named, mistake)) return 0;
    if (named && named->count < M3_MOST_NAMED) named->mistakes[named->count++] = mistake;
    return 1;
}

/* May it show here, or has it been named at an earlier tap? */
static int is_tried(const struct scoring *c, const struct m3_mistake *mistake)
{
    if (m3_cause_permitted(mistake, 0)) return 0;
    return m3_mistaken_reaches(c->b, c->item, mistake) || is_named(c->b->named, mistake);
}

static int try_mistakes(struct named *best, struct scoring *c)
{
    int applies = 1, status = M3_OK;
    for (int k = 0; k < m3_mistake_count() && !status && applies; k++) {
        if (!is_tried(c, m3_mistake_at(k))) continue;
        if (!c->right.data) {
            status = m3_mistaken_make(&c->right, &applies, c->mistaken, NULL);
            applies = !status && applies && is_of_tap(c, &c->right);
        }
        if (applies) status = try_mistake(best, c, m3_mistake_at(k));
    }
    return status;
}

static void write_name(struct m3_finding *out, const struct named *best, struct m3_blame_named *named)
{
    const struct m3_mistake *mistake = best->mistake;
    out->mistake = mistake;
    out->share = best->fit.change;
    out->share_error = best->fit.standard_error;
    out->from_right = out->created;
    out->from_mistake = out->created * sqrt(fmax(0, 1 - best->fit.explained));
    out->is_first_named = mistake && is_new(named, mistake);
    out->blind_to = NULL;
    m3_finding_note(out, "its errors are %.3g +- %.1g times those of %s%s", out->share, out->share_error,
                    mistake ? "the mistake " : "", best->what);
}

int m3_blame_score(const struct m3_blaming *b, struct m3_blame_item *item, const struct m3_tap_values *dumped,
                   const struct m3_recomputed *made)
{
    struct m3_finding *out = item->blamed;
    struct scoring c = { .b = b, .item = item };
    struct named best = { .mistake = NULL };
    if (out->verdict != M3_VERDICT_PASS && out->verdict != M3_VERDICT_SUSPECT) return M3_OK;
    if (!b->setting->profile || !made->y.values || b->options->end_row > 0) return M3_OK;
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    if (!(fmax(at.before, at.here) > 0x1p-24)) return M3_OK;
    int status = begin(&c, dumped, made);
    for (int p = ZEROS; p < PATTERNS && !status && c.s.rows > 0 && reads_codes(b, item); p++) {
        const double effect = direct(&c, NULL, (enum pattern)p);
        if (effect > same) status = try(&best, &c, NULL, patterns[p], effect);
    }
    if (!status && c.mistaken && c.s.rows > 0) status = try_mistakes(&best, &c);
    if (!status && best.fit.change > 0) write_name(out, &best, b->named);
    end(&c);
    return status;
}
