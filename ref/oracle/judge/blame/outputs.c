/* Outputs of an operator that stand for themselves: rows, heads of attention, experts of a row. One that is lost, or that
 * is multiplied by a factor, stays hidden among coarse roundings one element at a time, but not all together. */
#include <inttypes.h>
#include <math.h>

#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/side_by_side.h"

/* An output's error may share so many roundings, such as that of a root, a weight or a sum. */
static const double shared = 3;
/* There are many outputs, and their elements share roundings: so many standard deviations are no chance. */
static const double clear = 16;
/* A part of -1 is zeros, one of -2 the other sign. */
static const double lost = -0.6;

/* Those of one kind. */
struct found {
    int64_t count, first;
    double part;
};

static void add(struct found *found, int64_t output, double part)
{
    if (found->count++ == 0) found->first = output, found->part = part;
}

static int64_t outputs_of_row(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_setting *s = b->setting;
    switch (m3_graph_node(s->model, s->semantics, item->tap, item->layer)->op) {
    case M3_OP_EXPERT: return s->model->config.K;
    case M3_OP_ATTEND: return item->tap == M3_TAP_ATTN ? s->model->config.Q : 1;
    default: return 1;
    }
}

/* How often the n values from `at` on hold themselves as an error; *deviation: the standard deviation of honest ones. */
static double part_of(double *deviation, const struct m3_side_by_side *s, int64_t at, int64_t n, double u)
{
    double lines_up = 0, size = 0;
    for (int64_t i = at; i < at + n; i++) {
        const double v = u * u * s->walk[i] * s->walk[i] / 3 + (s->variance ? s->variance[i] : 0);
        if (!(v > 0) || !isfinite(s->want[i]) || !isfinite(s->got[i])) continue;
        lines_up += (s->got[i] - s->want[i]) * s->want[i] / v;
        size += s->want[i] * s->want[i] / v;
    }
    *deviation = size > 0 ? 1 / sqrt(size) : INFINITY;
    return size > 0 ? lines_up / size : 0;
}

static void say(struct m3_finding *out, const struct found *found, int64_t all, int64_t row, int is_row,
                const char *what)
{
    m3_finding_note(out, "%" PRId64 " of its %" PRId64 " %s %s, the first in row %" PRId64, found->count, all,
                    is_row ? "rows" : "outputs", what, row);
}

void m3_blame_judge_outputs(const struct m3_blaming *b, const struct m3_blame_item *item,
                            const struct m3_side_by_side *s, double u)
{
    struct m3_finding *out = item->blamed;
    const int64_t outputs = outputs_of_row(b, item), n = item->width / outputs, all = s->rows * outputs;
    const double scale = out->tiers.z2 < 1 ? sqrt(out->tiers.z2) : 1;
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    const double unit = fmax(at.before, at.here);
    struct found zeros = { 0 }, factors = { 0 };
    char what[96];
    out->share = 0;
    if (!(unit > 0x1p-24) || (out->verdict != M3_VERDICT_PASS && out->verdict != M3_VERDICT_SUSPECT)) return;
    for (int64_t p = 0; p < all; p++) {
        double deviation;
        const double part = part_of(&deviation, s, p * n, n, u);
        if (part <= lost && clear * scale * deviation <= 1) add(&zeros, p, part);
        else if (fabs(part) >= shared * unit + clear * scale * deviation) add(&factors, p, part);
    }
    if (zeros.count > 0) {
        out->share = 1;
        say(out, &zeros, all, s->numbers[zeros.first / outputs], outputs == 1, "are zeros or have the other sign");
    } else if (factors.count > 0) {
        out->verdict = M3_VERDICT_SUSPECT;
        out->tiers.tiers |= M3_TIER_PARAMETER;
        snprintf(what, sizeof what, "are multiplied by a factor, such as %.4g", 1 + factors.part);
        say(out, &factors, all, s->numbers[factors.first / outputs], outputs == 1, what);
    }
}
