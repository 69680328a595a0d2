/* Values that belong together: an output of the operator (a row, a head of a row, an expert of a row), all outputs of a
 * row, of a head, of an expert, a channel, a block of channels, and the whole tap. Lost, multiplied by a factor or
 * shifted by a constant, they stay hidden among coarse roundings one element at a time, but not all together. SPEC
 * 7.12, 7.15. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/side_by_side.h"

/* They are many, and their elements share roundings: so many standard deviations are no chance. */
static const double clear = 16;
/* A part of -1 is zeros, one of -2 the other sign. */
static const double lost = -0.6;
/* A constant, which a value near 0 shows best, has to be that of so many values. */
static const double several = 8;
/* Of a tap that fails, a kind is told if what its factors do not explain is rounding, or so small a part. */
static const double rest_of_it = 0.1;

enum kind { OUTPUT, ROW, PLACE, WHOLE, CHANNEL, BLOCK_32, BLOCK_128, KINDS };
/* A kind may share so many roundings: of a root, a weight, a sum; the more values it has, the fewer are common to all.
 * Gates have constants, too. Channels share those of their weights. */
static const double shared[KINDS] = { 3, 1, 0.5, 0.125, 1, 0.5, 0.25 },
                    shared_by_gates[KINDS] = { 3, 2, 1, 0.5, 2, 1, 0.5 };
/* Where errors have a mean, only what differs from the whole tells: codes saturate, for some inputs more than for
 * others, by up to two roundings. */
static const double shared_by_codes = 3;

/* How the elements of a tap are divided. */
struct division {
    const struct m3_side_by_side *s;
    int64_t outputs, width; /* of a row; of an output */
    const struct m3_tap_values *experts; /* of each output; NULL: the place of an output is its head */
    int64_t places;
    int64_t channels; /* of a row; of an output, if its places are experts */
    const double *shared; /* [KINDS] */
    double u, stored; /* roundoff of sums; of the tap */
    double unit, scale; /* the coarsest roundoff; standard deviations are so much smaller */
    int has_mean; /* errors have one */
};

/* Of values that belong together; g is y, or 1 for a constant. */
struct sums {
    double lines_up, size; /* sum d g / v, sum g^2 / v */
    double leans, fourth; /* if g is 1: sum y / v, sum g^4 / v^2 */
};

/* Those of one kind that are off. */
struct found {
    enum kind kind;
    int is_shift;
    int64_t count, all, first; /* count 0: none */
    double part, explained; /* of the first; how much of sum d^2 / v they explain */
    int are_lost; /* any of them */
};

/* Of a row, if a tap has heads that are computed alike. */
static int64_t heads_of(const struct m3_config *c, enum m3_tap tap)
{
    const char *shape = m3_tap_table[tap].shape;
    if (strcmp(shape, "TQD") == 0) return c->Q;
    return strcmp(shape, "TGD") == 0 || strcmp(shape, "TGX") == 0 ? c->G : 1;
}

/* Are all operands in the dump? Otherwise the tap is made by operators before it too, gates among them. */
static int has_operands(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    for (int i = 0; i < M3_OPERANDS; i++) {
        const struct m3_blame_item *operand = m3_blame_operand(b, item, i);
        if (operand && !operand->dumped) return 0;
    }
    return 1;
}

static int begin(struct division *d, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_config *c = &b->setting->model->config;
    const enum m3_operator op = m3_graph_node(b->setting->model, b->setting->semantics, item->tap, item->layer)->op;
    const int is_gated = op == M3_OP_ACTIVATION || op == M3_OP_GATED_MLP || op == M3_OP_EXPERT || op == M3_OP_ROUTED;
    d->shared = is_gated || !has_operands(b, item) ? shared_by_gates : shared;
    switch (op) {
    case M3_OP_EXPERT:
        d->outputs = c->K, d->places = c->E;
        d->experts = m3_trace_get(b->trace, M3_TAP_EXPERTS, item->layer);
        break;
    case M3_OP_ATTEND: d->outputs = d->places = item->tap == M3_TAP_ATTN ? c->Q : 1; break;
    default: d->outputs = d->places = heads_of(c, item->tap);
    }
    d->width = item->width / d->outputs;
    d->channels = d->experts ? d->width : item->width;
    return d->width > 0;
}

/* Which of its kind output p is; -1: not known. */
static int64_t number_of(const struct division *d, enum kind kind, int64_t p)
{
    const int64_t row = p / d->outputs, place = p % d->outputs;
    if (kind == OUTPUT) return p;
    if (kind == ROW) return row;
    if (kind == WHOLE) return 0;
    if (!d->experts) return place;
    const int64_t at = m3_tap_values_row(d->experts, d->s->numbers[row]);
    const int32_t id = at < 0 ? -1 : d->experts->ids[at * d->outputs + place];
    return id < d->places ? id : -1;
}

/* What several rows say together, they say once if they are alike. */
static int counts(const struct division *d, enum kind kind, int64_t row)
{
    return kind == OUTPUT || kind == ROW || m3_side_by_side_tells(d->s, row);
}

/* Is a row a matrix product whose inputs are known, so that no error of theirs is common to all of its values? */
static int is_shiftable(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_setting *s = b->setting;
    if (m3_graph_node(s->model, s->semantics, item->tap, item->layer)->op != M3_OP_LINEAR) return 0;
    for (int i = 0; i < M3_OPERANDS; i++) {
        const struct m3_blame_item *operand = m3_blame_operand(b, item, i);
        if (!operand) continue;
        if (!operand->dumped || (s->profile && m3_profile_dump_rounding(s->profile, operand->name) > 0)) return 0;
    }
    return 1;
}

/* ---- sums */

/* Adds element i to those of a factor; or, is_shift, of a constant. */
static void add(struct sums *sums, const struct division *d, int64_t i, int is_shift)
{
    const double want = d->s->want[i], got = d->s->got[i], v = m3_side_by_side_variance(d->s, i, d->u, d->stored);
    const double g = is_shift ? 1 : want;
    if (!(v > 0) || !isfinite(want) || !isfinite(got)) return;
    sums->lines_up += (got - want) * g / v;
    sums->size += g * g / v;
    if (is_shift) sums->leans += want / v, sums->fourth += g / (v * v);
}

static void sum_outputs(struct sums *each, const struct division *d, int threads, int is_shift)
{
    const int64_t all = d->s->rows * d->outputs;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < all; p++) {
        each[p] = (struct sums){ 0 };
        for (int64_t i = p * d->width; i < (p + 1) * d->width; i++) add(&each[p], d, i, is_shift);
    }
}

/* Adds the outputs to those of their kind; sums [their number]. */
static int64_t gather(struct sums *sums, const struct division *d, enum kind kind, const struct sums *each)
{
    const int64_t all = d->s->rows * d->outputs;
    const int64_t count = kind == OUTPUT ? all : kind == ROW ? d->s->rows : kind == PLACE ? d->places : 1;
    for (int64_t i = 0; i < count; i++) sums[i] = (struct sums){ 0 };
    for (int64_t p = 0; p < all; p++) {
        const int64_t number = number_of(d, kind, p);
        if (number < 0 || !counts(d, kind, p / d->outputs)) continue;
        sums[number].lines_up += each[p].lines_up;
        sums[number].size += each[p].size;
        sums[number].leans += each[p].leans;
        sums[number].fourth += each[p].fourth;
    }
    return count;
}

static void sum_channels(struct sums *sums, const struct division *d, int threads)
{
    enum { TOGETHER = 64 };
    const int64_t rows = d->s->count / d->channels, each = rows / d->s->rows; /* those of experts, in a row */
#pragma omp parallel for num_threads(threads)
    for (int64_t first = 0; first < d->channels; first += TOGETHER) {
        const int64_t end = m3_min(d->channels, first + TOGETHER);
        for (int64_t i = first; i < end; i++) sums[i] = (struct sums){ 0 };
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = first; i < end && m3_side_by_side_tells(d->s, r / each); i++)
                add(&sums[i], d, r * d->channels + i, 0);
    }
}

static int64_t gather_blocks(struct sums *sums, const struct sums *channels, int64_t count, int64_t size)
{
    const int64_t blocks = (count + size - 1) / size;
    for (int64_t i = 0; i < blocks; i++) sums[i] = (struct sums){ 0 };
    for (int64_t i = 0; i < count; i++) {
        sums[i / size].lines_up += channels[i].lines_up;
        sums[i / size].size += channels[i].size;
    }
    return blocks;
}

/* ---- which of them are off */

static double part_of(const struct sums *sums) { return sums->size > 0 ? sums->lines_up / sums->size : 0; }

static double mean_of(const struct sums *sums, int64_t count)
{
    struct sums all = { 0 };
    for (int64_t i = 0; i < count; i++) all.lines_up += sums[i].lines_up, all.size += sums[i].size;
    return part_of(&all);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By how many standard deviations most of them are off, at least 1: rows that are alike share roundings. */
static double spread_of(double *room, const struct division *d, const struct sums *sums, int64_t count, double mean)
{
    enum { FEW = 16 };
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (sums[i].size > 0) room[n++] = fabs(part_of(&sums[i]) - mean) * sqrt(sums[i].size);
    if (n < FEW || !(d->scale > 0)) return 1;
    qsort(room, (size_t)n, sizeof *room, ascending);
    return fmax(1, room[n / 2] / (0.6745 * d->scale));
}

static struct found find(const struct division *d, enum kind kind, int is_shift, const struct sums *sums, int64_t count,
                         double mean, double spread)
{
    struct found found = { .kind = kind, .is_shift = is_shift, .all = count };
    const int is_left_out = d->has_mean && (kind == OUTPUT || kind == WHOLE);
    const double unit = is_left_out ? INFINITY : (d->has_mean ? shared_by_codes : d->shared[kind]) * d->unit;
    for (int64_t i = 0; i < count; i++) {
        const double part = part_of(&sums[i]), scale = is_shift ? 1 : d->scale;
        const double deviation = clear * scale / sqrt(sums[i].size);
        /* A row whose values are multiplied by an allowed factor has a mean. Where values are near 0, errors are not as
         * much smaller as elsewhere. */
        const double allowed = is_shift ? unit * fabs(sums[i].leans) / sums[i].size : unit;
        if (is_shift && !(sums[i].size * sums[i].size >= several * sums[i].fourth)) continue;
        const int is_lost = !is_shift && part <= lost && deviation <= 1;
        if (!is_lost && !(fabs(part - mean) >= allowed + spread * deviation)) continue;
        if (is_lost > found.are_lost) found.count = 0, found.explained = 0, found.are_lost = 1;
        if (is_lost < found.are_lost) continue;
        if (found.count++ == 0) found.first = i, found.part = part;
        found.explained += part * sums[i].lines_up;
    }
    return found;
}

/* The kind that explains most, or nearly as much with fewer; but none that is not lost before one that is. */
static void choose(struct found *best, const struct found *other)
{
    static const double nearly = 0.95;
    if (other->count == 0 || other->are_lost < best->are_lost) return;
    const int is_more = other->explained * nearly > best->explained;
    const int is_fewer = other->count < best->count && other->explained > nearly * best->explained;
    if (best->count == 0 || other->are_lost > best->are_lost || is_more || is_fewer) *best = *other;
}

struct room {
    struct sums *each, *sums, *channels;
    double *numbers;
};

static struct found search(const struct division *d, const struct room *room, int has_shift, int threads)
{
    struct found best = { .count = 0 }, found;
    sum_outputs(room->each, d, threads, 0);
    for (enum kind kind = OUTPUT; kind <= WHOLE; kind++) {
        if (d->outputs == 1 && (kind == ROW || kind == PLACE)) continue;
        const int64_t count = gather(room->sums, d, kind, room->each);
        const double mean = d->has_mean ? mean_of(room->sums, count) : 0;
        const double spread = d->has_mean ? spread_of(room->numbers, d, room->sums, count, mean) : 1;
        found = find(d, kind, 0, room->sums, count, mean, spread);
        choose(&best, &found);
    }
    sum_channels(room->channels, d, threads);
    const double mean = d->has_mean ? mean_of(room->channels, d->channels) : 0;
    const double spread = spread_of(room->numbers, d, room->channels, d->channels, mean);
    for (enum kind kind = CHANNEL; kind < KINDS && d->channels > 1; kind++) {
        const int64_t size = kind == CHANNEL ? 1 : kind == BLOCK_32 ? 32 : 128;
        if (size >= d->channels) continue;
        const int64_t count = gather_blocks(room->sums, room->channels, d->channels, size);
        found = find(d, kind, 0, room->sums, count, mean, spread);
        choose(&best, &found);
    }
    if (!has_shift) return best;
    sum_outputs(room->each, d, threads, 1);
    found = find(d, ROW, 1, room->sums, gather(room->sums, d, ROW, room->each), 0, 1);
    choose(&best, &found);
    return best;
}

/* ---- what is said */

/* "3 of its 402 outputs are multiplied by 1.01, the first is 17" */
static void say(struct m3_finding *out, const struct division *d, const struct found *found)
{
    const enum kind kind = found->kind;
    const char *const nouns[KINDS] = { d->outputs == 1 ? "rows" : "outputs",
                                       "rows",
                                       d->experts ? "experts" : "heads",
                                       "",
                                       "channels",
                                       "blocks of 32 channels",
                                       "blocks of 128 channels" };
    const int is_in_row = kind == OUTPUT || kind == ROW;
    const int64_t row = kind == OUTPUT ? found->first / d->outputs : found->first;
    char what[64] = "are zeros or have the other sign";
    if (found->is_shift) snprintf(what, sizeof what, "are shifted by a constant, such as %.4g", found->part);
    else if (!found->are_lost) snprintf(what, sizeof what, "are multiplied by a factor, such as %.4g", 1 + found->part);
    if (kind == WHOLE) m3_finding_note(out, "its values %s", what);
    else
        m3_finding_note(out, "%" PRId64 " of its %" PRId64 " %s %s, the first %s %" PRId64, found->count, found->all,
                        nouns[kind], what, is_in_row ? "in row" : "is", is_in_row ? d->s->numbers[row] : row);
}

/* Codes saturate, and products may cut off what they round (TF32): such errors have a mean. */
static int has_mean(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_coarseness *at)
{
    const struct m3_profile *profile = b->setting->profile;
    if (!profile) return 0;
    if (at->before > 0x1p-8 || m3_profile_truncates(profile)) return 1;
    return m3_profile_input(profile, item->name).dtype != M3_DTYPES;
}

/* Is the rest of the errors no larger than roundings are? */
static int is_explained(const struct division *d, const struct found *found)
{
    double squares = 0;
    for (int64_t i = 0; i < d->s->count; i++) {
        const double v = m3_side_by_side_variance(d->s, i, d->u, d->stored), off = d->s->got[i] - d->s->want[i];
        if (v > 0 && isfinite(off) && counts(d, found->kind, i / (d->outputs * d->width))) squares += off * off / v;
    }
    return squares - found->explained <= fmax(rest_of_it * squares, (double)d->s->count);
}

static void judge(struct m3_finding *out, const struct division *d, const struct found *found)
{
    const int fails = out->verdict == M3_VERDICT_FAIL;
    if (found->count == 0 || (fails && (out->note[0] || !is_explained(d, found)))) return;
    say(out, d, found);
    out->is_in_part = 1;
    if (fails) return;
    out->share = found->are_lost;
    if (found->are_lost) return;
    out->verdict = M3_VERDICT_SUSPECT;
    out->tiers.tiers |= M3_TIER_PARAMETER;
}

int m3_blame_judge_outputs(const struct m3_blaming *b, const struct m3_blame_item *item,
                           const struct m3_side_by_side *s, double u)
{
    struct m3_finding *out = item->blamed;
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    const double coarsest = fmax(at.before, at.here);
    const int may_hide = coarsest > 0x1p-24 && (out->verdict == M3_VERDICT_PASS || out->verdict == M3_VERDICT_SUSPECT);
    struct division d = { .s = s, .u = u, .stored = fmax(at.here, 0x1p-24), .unit = fmax(coarsest, 0x1p-24) };
    out->share = 0;
    if ((out->verdict != M3_VERDICT_FAIL && !may_hide) || !begin(&d, b, item)) return M3_OK;
    d.has_mean = has_mean(b, item, &at);
    d.scale = out->tiers.z2 < 1 ? sqrt(out->tiers.z2) : 1;
    /* What is wrong needs no excuse. */
    if (out->verdict == M3_VERDICT_FAIL) d.unit = 0;
    const int64_t all = s->rows * d.outputs, most = m3_max(m3_max(all, d.places), d.channels) + 1;
    struct room room = { .each = malloc((size_t)(2 * most + d.channels) * sizeof *room.each),
                         .numbers = malloc((size_t)most * sizeof *room.numbers) };
    const int status = room.each && room.numbers
                           ? M3_OK
                           : m3_fail_memory(b->error, item->name, (size_t)(3 * most) * sizeof *room.each);
    if (!status) {
        room.sums = room.each + most, room.channels = room.sums + most;
        const int has_shift = !d.has_mean && is_shiftable(b, item);
        const struct found found = search(&d, &room, has_shift, m3_team(b->setting->ctx, s->count));
        judge(out, &d, &found);
    }
    free(room.each);
    free(room.numbers);
    return status;
}
