/* Errors larger than roundings explain, in values that belong together: those of an expert, a head, an output, a
 * channel. One element at a time they stay within their allowances, as those of an expert whose weights have lost bits.
 * SPEC 7.12. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/side_by_side.h"

/* Roundings of coarse numbers give 1 / 2 on average, and 1 at most, of the variance that the profile allows. */
static const double above_all = 1.25;
/* Above the median of the others, in logarithms, and not within what a mixture of right kernels gives. */
static const double above_others = 0.5, not_small = 0.3;
/* The part of y that errors make up, beside that of the others, over the coarsest unit roundoff: what is cut off. Sums
 * of rounded weights and gates have means of their own. */
static const double aside = 1 / 32.0, aside_in_sums = 1 / 8.0;
/* So many standard deviations are no chance; more, over the number of units that say how large one is, if these are
 * few. */
static const double clear = 6, clear_of_few = 48;
/* Fewer do not tell. */
enum { LEAST_OTHERS = 16, LEAST_UNITS = 8, LEAST_ELEMENTS = 8 };
/* Logarithms of the mean square of many elements scatter at least so much. */
static const double least_scatter = 0.1;

enum kind { PLACE, OUTPUT, CHANNEL };

/* Elements whose errors share roundings: an output (a row; a head or an expert of a row), or a channel. */
struct unit {
    double lines_up, size, z2, count; /* sum d y / v, sum y^2 / v, sum d^2 / v, elements */
    double log;                       /* of the mean z2 */
    int64_t place;                    /* the head or expert; -1: not known */
    int repeated;
};

struct units {
    struct unit *all, **sorted; /* by `log`; those that tell */
    double *scratch;
    int64_t count, telling;
};

struct division {
    const struct m3_side_by_side *s;
    int64_t width, outputs;              /* of a row; in a row */
    const struct m3_tap_values *experts; /* of each output; NULL: the place of an output is its head */
    int64_t places;
    double u, aside; /* aside 0: errors may have a mean */
    int by_keys;     /* rows of few keys round otherwise than those of many */
    double not_stored; /* of storing the tap, if the numbers show that they were not rounded so; or 0 */
};

/* What is usual: of the logarithms, and of the part of y that errors make up, over its standard error. */
struct usual {
    double log, scatter, part, part_scatter;
    double clear; /* standard deviations that are no chance */
};

/* Groups that are off. */
struct found {
    int64_t count, all, first;
    double times, part; /* of the first: its mean square over that of the others; 0: `part` is off */
};

static int by_log(const void *a, const void *b)
{
    const double x = (*(struct unit *const *)a)->log, y = (*(struct unit *const *)b)->log;
    return (x > y) - (x < y);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add(struct unit *to, const struct division *d, int64_t i)
{
    const struct m3_side_by_side *s = d->s;
    const double y = s->want[i], off = s->got[i] - y, walk = d->u * s->walk[i], stored = d->not_stored * y;
    const double v = walk * walk / 3 + (s->variance ? s->variance[i] - stored * stored / 3 : 0);
    if (!(v > 0) || !isfinite(y) || !isfinite(off)) return;
    to->lines_up += off * y / v;
    to->size += y * y / v;
    to->z2 += off * off / v;
    to->count++;
}

/* ---- units */

static int64_t place_of(const struct division *d, int64_t row, int64_t output)
{
    if (!d->experts) return output;
    const int64_t at = m3_tap_values_row(d->experts, d->s->numbers[row]);
    const int32_t id = at < 0 ? -1 : d->experts->ids[at * d->outputs + output];
    return id < d->places ? id : -1;
}

static void measure_outputs(struct units *units, const struct division *d, int team)
{
    const int64_t n = d->width / d->outputs;
#pragma omp parallel for num_threads(team)
    for (int64_t p = 0; p < units->count; p++) {
        struct unit *unit = &units->all[p];
        const int64_t row = p / d->outputs;
        *unit =
            (struct unit){ .place = place_of(d, row, p % d->outputs), .repeated = !m3_side_by_side_tells(d->s, row) };
        for (int64_t i = p * n; i < (p + 1) * n; i++) add(unit, d, i);
    }
}

static void measure_channels(struct units *units, const struct division *d, int team)
{
    enum { SOME = 64 };
#pragma omp parallel for num_threads(team)
    for (int64_t first = 0; first < units->count; first += SOME) {
        const int64_t end = m3_min(first + SOME, units->count);
        for (int64_t c = first; c < end; c++) units->all[c] = (struct unit){ .place = c };
        for (int64_t row = 0; row < d->s->rows; row++)
            for (int64_t c = first; c < end && m3_side_by_side_tells(d->s, row); c++)
                add(&units->all[c], d, row * d->width + c);
    }
}

static void sort(struct units *units)
{
    units->telling = 0;
    for (int64_t p = 0; p < units->count; p++) {
        struct unit *unit = &units->all[p];
        if (unit->count < LEAST_ELEMENTS || !(unit->z2 > 0)) continue;
        unit->log = log(unit->z2 / unit->count);
        if (!unit->repeated) units->sorted[units->telling++] = unit;
    }
    qsort(units->sorted, (size_t)units->telling, sizeof(struct unit *), by_log);
}

static double quantile(const double *sorted, int64_t n, double q) { return sorted[(int64_t)(q * (double)(n - 1))]; }

/* Of all units except those of a place. Returns 0 if they are too few. */
static int usual_of(struct usual *usual, const struct units *units, int64_t except)
{
    double *x = units->scratch;
    int64_t n = 0;
    for (int64_t i = 0; i < units->telling; i++)
        if (units->sorted[i]->place != except) x[n++] = units->sorted[i]->log;
    if (n < LEAST_OTHERS) return 0;
    usual->clear = clear + clear_of_few / (double)n;
    usual->log = quantile(x, n, 0.5);
    const double below = usual->log - quantile(x, n, 0.25), above = quantile(x, n, 0.75) - usual->log;
    usual->scatter = fmax(fmax(below, above) / 0.6745, least_scatter);
    n = 0;
    for (int64_t i = 0; i < units->telling; i++)
        if (units->sorted[i]->place != except) x[n++] = units->sorted[i]->lines_up / units->sorted[i]->size;
    qsort(x, (size_t)n, sizeof *x, by_size);
    usual->part = quantile(x, n, 0.5);
    n = 0;
    for (int64_t i = 0; i < units->telling; i++) {
        const struct unit *unit = units->sorted[i];
        if (unit->place != except) x[n++] = fabs(unit->lines_up / unit->size - usual->part) * sqrt(unit->size);
    }
    qsort(x, (size_t)n, sizeof *x, by_size);
    /* Rows that resemble each other scatter less than independent errors of their size would. */
    usual->part_scatter = fmax(quantile(x, n, 0.5) / 0.6745, exp(usual->log / 2));
    return 1;
}

/* ---- groups */

/* Units that belong together, or a single one. */
struct group {
    struct unit sum;
    double log, count; /* the mean of the logarithms; units */
};

static struct group group_of(const struct units *units, int64_t place)
{
    struct group g = { 0 };
    for (int64_t i = 0; i < units->telling; i++) {
        const struct unit *unit = units->sorted[i];
        if (unit->place != place) continue;
        g.sum.lines_up += unit->lines_up, g.sum.size += unit->size, g.sum.z2 += unit->z2, g.sum.count += unit->count;
        g.log += unit->log;
        g.count++;
    }
    g.log /= g.count;
    return g;
}

static struct group group_of_one(const struct unit *unit)
{
    return (struct group){ .sum = *unit, .log = unit->log, .count = 1 };
}

static void note(struct found *found, int64_t number, double times, double part)
{
    if (found->count++ == 0) found->first = number, found->times = times, found->part = part;
}

/* Notes the group if it is off. */
static void test(struct found *found, const struct division *d, const struct group *g, const struct usual *usual,
                 enum kind kind, int64_t number)
{
    const double z2 = g->sum.z2 / g->sum.count, chance = usual->clear * usual->scatter / sqrt(g->count);
    const double over = g->log - usual->log, part = g->sum.lines_up / g->sum.size - usual->part;
    const int is_like_others = kind != OUTPUT || !d->by_keys;
    const double chance_of_part = usual->clear * usual->part_scatter / sqrt(g->sum.size);
    if (z2 > above_all * (1 + chance) || (is_like_others && z2 > not_small && over > above_others + chance))
        note(found, number, exp(over), 0);
    else if (kind == PLACE && d->aside > 0 && g->count >= LEAST_UNITS && fabs(part) > d->aside + chance_of_part)
        note(found, number, 0, part);
}

/* One place of many does not move the medians: then its own units may be among the others. */
static struct found find_places(const struct units *units, const struct division *d)
{
    enum { MANY = 16 };
    struct found found = { .all = d->places };
    struct usual usual;
    const int is_shared = d->places > MANY;
    if (d->outputs == 1 || (is_shared && !usual_of(&usual, units, -1))) return found;
    for (int64_t i = 0; i < d->places; i++) {
        const struct group g = group_of(units, i);
        if (g.count > 0 && (is_shared || usual_of(&usual, units, i))) test(&found, d, &g, &usual, PLACE, i);
    }
    return found;
}

static struct found find(const struct units *units, const struct division *d, enum kind kind)
{
    struct found found = { .all = units->count };
    struct usual usual;
    if (kind == PLACE) return find_places(units, d);
    if (!usual_of(&usual, units, -1)) return found;
    for (int64_t i = 0; i < units->count; i++) {
        const struct group g = group_of_one(&units->all[i]);
        if (g.sum.count >= LEAST_ELEMENTS && g.sum.z2 > 0) test(&found, d, &g, &usual, kind, i);
    }
    return found;
}

/* Are most units larger than roundings explain? */
static int all_are_large(const struct units *units)
{
    struct usual usual;
    if (!usual_of(&usual, units, -1)) return 0;
    return exp(usual.log) > above_all * (1 + usual.clear * usual.scatter / sqrt((double)units->telling));
}

/* "1 of its 11 experts have other errors than the rest, the first is 5: 14 times their mean square" */
static void say(struct m3_finding *out, const struct division *d, enum kind kind, const struct found *found)
{
    const char *noun = kind == CHANNEL               ? "channels"
                       : kind == PLACE && d->experts ? "experts"
                       : kind == PLACE               ? "heads"
                       : d->outputs == 1             ? "rows"
                                                     : "outputs";
    const int64_t first = kind != OUTPUT ? found->first : d->s->numbers[found->first / d->outputs];
    char what[64];
    if (found->times > 0) snprintf(what, sizeof what, "%.3g times their mean square", found->times);
    else snprintf(what, sizeof what, "%+.2g of the values, as if they were cut off", found->part);
    m3_finding_note(out,
                    "%" PRId64 " of its %" PRId64 " %s have other errors than the rest, the first %s %" PRId64 ": %s",
                    found->count, found->all, noun, kind == OUTPUT ? "in row" : "is", first, what);
}

static void object(struct m3_finding *out)
{
    out->verdict = out->tiers.verdict = M3_VERDICT_SUSPECT;
    out->tiers.tiers |= M3_TIER_WALK;
}

static void judge(struct m3_finding *out, const struct units *units, const struct division *d, enum kind kind)
{
    if (out->note[0]) return;
    const struct found found = find(units, d, kind);
    if (found.count == 0) return;
    say(out, d, kind, &found);
    out->is_in_part = 1;
    object(out);
}

static void judge_all(struct m3_finding *out, const struct units *units)
{
    if (out->note[0] || !all_are_large(units)) return;
    m3_finding_note(out, "its errors are larger than roundings explain");
    object(out);
}

/* Did the dump hold all that the tap reads? Errors of what was recomputed are common to rows and channels. */
static int reads_dumped(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    for (int i = 0; i < M3_OPERANDS; i++) {
        const struct m3_blame_item *operand = m3_blame_operand(b, item, i);
        if (operand && !operand->dumped && operand->tap != M3_TAP_EMBED && operand->tap != M3_TAP_FUSED) return 0;
    }
    return 1;
}

/* Router logits may be stored coarsely, but float routers are common. */
static int is_stored_finely(const struct m3_side_by_side *s, enum m3_tap tap, enum m3_dtype stored)
{
    int64_t off = 0;
    for (int64_t i = 0; tap == M3_TAP_ROUTER_LOGITS && i < s->count; i++) off += !m3_on_grid(s->got[i], stored);
    return 2 * off > s->count;
}

/* Where the tap is stored coarsely, and keys and values are not: their roundings are common to all rows. */
static int begin(struct division *d, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_profile *profile = b->setting->profile;
    const struct m3_config *c = &b->setting->model->config;
    if (!profile || !reads_dumped(b, item)) return 0;
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    const enum m3_operator op = m3_graph_node(b->setting->model, b->setting->semantics, item->tap, item->layer)->op;
    const int has_codes = at.before > 0x1p-8 || m3_profile_input(profile, item->name).dtype != M3_DTYPES;
    if (!(at.here > 0x1p-24) || m3_profile_truncates(profile) || (op == M3_OP_ATTEND && at.before > 0x1p-8)) return 0;
    const double part = op == M3_OP_ATTEND || op == M3_OP_EXPERT ? aside_in_sums : aside;
    d->aside = has_codes ? 0 : part * fmax(at.before, at.here);
    d->width = item->width;
    if (is_stored_finely(d->s, item->tap, m3_profile_dtype(profile, item->name))) d->not_stored = at.here;
    d->by_keys = op == M3_OP_ATTEND;
    d->outputs = d->places = item->dumped->rank == 3 ? item->dumped->shape[1] : 1;
    if (op == M3_OP_EXPERT) {
        d->experts = m3_trace_get(b->trace, M3_TAP_EXPERTS, item->layer);
        d->outputs = c->K, d->places = c->E;
    }
    return d->width >= d->outputs;
}

static void judge_units(struct m3_finding *out, struct units *units, const struct division *d, int team)
{
    measure_outputs(units, d, team);
    sort(units);
    judge_all(out, units);
    judge(out, units, d, PLACE);
    judge(out, units, d, OUTPUT);
    units->count = d->width;
    measure_channels(units, d, team);
    sort(units);
    judge(out, units, d, CHANNEL);
}

int m3_blame_judge_spread(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_side_by_side *s,
                          double u)
{
    struct m3_finding *out = item->blamed;
    struct division d = { .s = s, .u = u };
    if ((out->verdict != M3_VERDICT_PASS && out->verdict != M3_VERDICT_SUSPECT) || !begin(&d, b, item)) return M3_OK;
    const size_t most = (size_t)m3_max(s->rows * d.outputs, d.width);
    struct units units = { .count = s->rows * d.outputs };
    units.all = malloc(most * sizeof *units.all);
    units.sorted = malloc(most * sizeof *units.sorted);
    units.scratch = malloc(most * sizeof *units.scratch);
    int status = units.all && units.sorted && units.scratch
                     ? M3_OK
                     : m3_fail_memory(b->error, item->name, most * sizeof *units.all);
    if (!status) judge_units(out, &units, &d, m3_team(b->setting->ctx, s->count));
    free(units.all);
    free(units.sorted);
    free(units.scratch);
    return status;
}
