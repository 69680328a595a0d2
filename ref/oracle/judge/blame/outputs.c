/* Values that belong together: an output of the operator (a row, a head of a row, an expert of a row), all outputs of a
 * row, of a head, of an expert, and the whole tap. Lost or multiplied by a factor, they stay hidden among coarse roundings
 * one element at a time, but not all together. SPEC 7.12, 7.15. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/side_by_side.h"

/* They are many, and their elements share roundings: so many standard deviations are no chance. */
static const double clear = 16;
/* A part of -1 is zeros, one of -2 the other sign. */
static const double lost = -0.6;

enum kind { OUTPUT, ROW, PLACE, WHOLE, KINDS };
/* A kind may share so many roundings: of a root, a weight, a sum; the more values it has, the fewer are common to all.
 * Gates have constants, too. */
static const double shared[KINDS] = { 3, 1, 0.5, 0.125 }, shared_by_gates[KINDS] = { 3, 2, 1, 0.5 };

/* How the elements of a tap are divided. */
struct division {
    const struct m3_side_by_side *s;
    int64_t outputs, width; /* of a row; of an output */
    const struct m3_tap_values *experts; /* of each output; NULL: the place of an output is its head */
    int64_t places;
    const double *shared; /* [KINDS] */
    double u;
};

struct sums {
    double lines_up, size; /* sum d y / v, sum y^2 / v */
};

/* Those of one kind that are off. */
struct found {
    int64_t count, all, first;
    double part;
};

static int begin(struct division *d, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_config *c = &b->setting->model->config;
    const enum m3_operator op = m3_graph_node(b->setting->model, b->setting->semantics, item->tap, item->layer)->op;
    const int is_gated = op == M3_OP_ACTIVATION || op == M3_OP_GATED_MLP || op == M3_OP_EXPERT || op == M3_OP_ROUTED;
    d->shared = is_gated ? shared_by_gates : shared;
    switch (op) {
    case M3_OP_EXPERT:
        d->outputs = c->K, d->places = c->E;
        d->experts = m3_trace_get(b->trace, M3_TAP_EXPERTS, item->layer);
        break;
    case M3_OP_ATTEND: d->outputs = d->places = item->tap == M3_TAP_ATTN ? c->Q : 1; break;
    default: d->outputs = d->places = 1;
    }
    d->width = item->width / d->outputs;
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

static struct sums sums_of(const struct division *d, int64_t p)
{
    const struct m3_side_by_side *s = d->s;
    struct sums sums = { 0, 0 };
    for (int64_t i = p * d->width; i < (p + 1) * d->width; i++) {
        const double walk = d->u * s->walk[i], v = walk * walk / 3 + (s->variance ? s->variance[i] : 0);
        if (!(v > 0) || !isfinite(s->want[i]) || !isfinite(s->got[i])) continue;
        sums.lines_up += (s->got[i] - s->want[i]) * s->want[i] / v;
        sums.size += s->want[i] * s->want[i] / v;
    }
    return sums;
}

/* Adds the outputs to those of their kind; sums [their number]. */
static int64_t gather(struct sums *sums, const struct division *d, enum kind kind, const struct sums *each)
{
    const int64_t all = d->s->rows * d->outputs;
    const int64_t count = kind == OUTPUT ? all : kind == ROW ? d->s->rows : kind == PLACE ? d->places : 1;
    for (int64_t i = 0; i < count; i++) sums[i] = (struct sums){ 0, 0 };
    for (int64_t p = 0; p < all; p++) {
        const int64_t number = number_of(d, kind, p);
        if (number < 0) continue;
        sums[number].lines_up += each[p].lines_up;
        sums[number].size += each[p].size;
    }
    return count;
}

static void find(struct found *zeros, struct found *factors, const struct sums *sums, int64_t count, double unit,
                 double scale)
{
    *zeros = *factors = (struct found){ .all = count };
    for (int64_t i = 0; i < count; i++) {
        const double part = sums[i].lines_up / sums[i].size, deviation = clear * scale / sqrt(sums[i].size);
        struct found *to = part <= lost && deviation <= 1 ? zeros : fabs(part) >= unit + deviation ? factors : NULL;
        if (to && to->count++ == 0) to->first = i, to->part = part;
    }
}

/* "3 of its 402 outputs are multiplied by 1.01, the first is 17" */
static void say(struct m3_finding *out, const struct division *d, enum kind kind, const struct found *found)
{
    const char *noun = kind == ROW || (kind == OUTPUT && d->outputs == 1) ? "rows"
                       : kind == OUTPUT                                   ? "outputs"
                       : d->experts                                       ? "experts"
                                                                          : "heads";
    const int64_t row = kind == OUTPUT ? found->first / d->outputs : found->first;
    char what[64] = "are zeros or have the other sign";
    if (found->part > lost) snprintf(what, sizeof what, "are multiplied by a factor, such as %.4g", 1 + found->part);
    if (kind == WHOLE) m3_finding_note(out, "its values %s", what);
    else
        m3_finding_note(out, "%" PRId64 " of its %" PRId64 " %s %s, the first %s %" PRId64, found->count, found->all,
                        noun, what, kind == PLACE ? "is" : "in row", kind == PLACE ? row : d->s->numbers[row]);
}

static void judge(struct m3_finding *out, const struct division *d, const struct sums *each, struct sums *sums,
                  double unit)
{
    const double scale = out->tiers.z2 < 1 ? sqrt(out->tiers.z2) : 1;
    struct found zeros, factors;
    for (enum kind kind = OUTPUT; kind < KINDS; kind++) {
        if (d->outputs == 1 && (kind == ROW || kind == PLACE)) continue;
        const int64_t count = gather(sums, d, kind, each);
        find(&zeros, &factors, sums, count, d->shared[kind] * unit, scale);
        if (zeros.count == 0 && factors.count == 0) continue;
        say(out, d, kind, zeros.count > 0 ? &zeros : &factors);
        out->share = zeros.count > 0;
        if (zeros.count > 0) return;
        out->verdict = M3_VERDICT_SUSPECT;
        out->tiers.tiers |= M3_TIER_PARAMETER;
        return;
    }
}

/* Codes saturate, and products may cut off what they round (TF32): such errors have a mean, and only what is lost tells. */
static int has_mean(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_coarseness *at)
{
    const struct m3_profile *profile = b->setting->profile;
    if (at->before > 0x1p-8 || m3_profile_truncates(profile)) return 1;
    return m3_profile_input(profile, item->name).dtype != M3_DTYPES;
}

int m3_blame_judge_outputs(const struct m3_blaming *b, const struct m3_blame_item *item,
                           const struct m3_side_by_side *s, double u)
{
    struct m3_finding *out = item->blamed;
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    out->share = 0;
    if (!b->setting->profile) return M3_OK;
    const double unit = has_mean(b, item, &at) ? INFINITY : fmax(at.before, at.here);
    struct division d = { .s = s, .u = u };
    if (!(unit > 0x1p-24) || (out->verdict != M3_VERDICT_PASS && out->verdict != M3_VERDICT_SUSPECT)) return M3_OK;
    if (!begin(&d, b, item)) return M3_OK;
    const int64_t all = s->rows * d.outputs, most = m3_max(all, d.places);
    struct sums *each = malloc((size_t)(all + most + 1) * sizeof *each);
    if (!each) return m3_fail_memory(b->error, item->name, (size_t)(all + most) * sizeof *each);
#pragma omp parallel for num_threads(m3_team(b->setting->ctx, s->count))
    for (int64_t p = 0; p < all; p++) each[p] = sums_of(&d, p);
    judge(out, &d, each, each + all, unit);
    free(each);
    return M3_OK;
}
