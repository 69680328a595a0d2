/* A sum of dumped terms: is one of them added with another factor than the rest? The errors of the sum are fitted by
 * the term and by the rest together, so that a factor of the whole is not taken for one of a term. Terms are the
 * operands of an addition, or the experts of `moe.routed`, each over all rows that chose it. SPEC 7.12. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/side_by_side.h"

/* As in outputs.c: so many standard deviations are no chance, and so many roundings may be common to all elements of an
 * operand, and of an expert, whose weights are rounded. */
static const double clear = 16, shared[] = { 0.125, 1 };
static const double several = 8;
/* A coefficient of -1 is a term that is missing. */
static const double lost = -0.6;
/* Of a tap that fails, a term is told if what its factor does not explain is rounding, or so small a part. */
static const double rest_of_it = 0.1;

/* Weighted sums over the elements of a term g, with r the rest of the sum and d the error. */
struct fit {
    double gg, gr, rr, gd, rd;
    double fourth; /* sum g^4 / v^2 */
};

struct terms {
    const struct m3_side_by_side *s;
    double u, unit, here; /* the coarsest roundoff; that of storing the sum */
    int64_t width, count; /* of a row; terms */
    const struct m3_tap_values *a, *b; /* of an addition */
    const struct m3_tap_values *each, *weights; /* of experts */
    struct m3_tap_values experts; /* without data: it is an addition */
    int64_t K;
    double factor;
    struct fit *fits; /* [count] */
    double squares; /* sum d^2 / v */
};

static const struct m3_tap_values *known(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    return item && item->dumped ? m3_trace_get(b->trace, item->tap, item->layer) : NULL;
}

/* 0: it is no sum, or the dump lacks a term. */
static int begin(struct terms *t, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const struct m3_setting *setting = b->setting;
    const struct m3_config *c = &setting->model->config;
    const enum m3_operator op = m3_graph_node(setting->model, setting->semantics, item->tap, item->layer)->op;
    t->width = item->width;
    if (op == M3_OP_ADD) {
        t->count = 2;
        t->a = known(b, m3_blame_operand(b, item, 0));
        t->b = known(b, m3_blame_operand(b, item, 1));
        return t->a && t->b && m3_tap_doubles(t->a) && m3_tap_doubles(t->b) && t->a->width == t->width &&
               t->b->width == t->width;
    }
    /* Without a dump the ids of the experts cannot be read again. */
    if (item->tap != M3_TAP_ROUTED || !b->side.file || m3_setting_weighs_first(setting, item->layer)) return 0;
    t->count = c->E, t->K = c->K, t->factor = c->routed_scaling;
    t->each = known(b, m3_blame_find(b, M3_TAP_EXPERT_OUT, item->layer));
    t->weights = known(b, m3_blame_find(b, M3_TAP_EXPERT_WEIGHTS, item->layer));
    return t->each && t->weights && m3_blame_find(b, M3_TAP_EXPERTS, item->layer)->dumped;
}

static void add(struct terms *t, int64_t term, int64_t r, const double *g, double times)
{
    const struct m3_side_by_side *s = t->s;
    struct fit f = t->fits[term];
    for (int64_t i = 0; i < t->width; i++) {
        const int64_t at = r * t->width + i;
        const double v = m3_side_by_side_variance(s, at, t->u, t->here);
        const double own = times * g[i], rest = s->want[at] - own, d = s->got[at] - s->want[at];
        if (!(v > 0) || !isfinite(own) || !isfinite(rest) || !isfinite(d)) continue;
        f.gg += own * own / v, f.fourth += own * own / v * (own * own / v), f.gr += own * rest / v,
            f.rr += rest * rest / v;
        f.gd += own * d / v, f.rd += rest * d / v;
    }
    t->fits[term] = f;
}

static void add_experts(struct terms *t, int64_t r)
{
    const int64_t number = t->s->numbers[r], ids = m3_tap_values_row(&t->experts, number);
    const int64_t p = m3_tap_values_row(t->weights, number), y = m3_tap_values_row(t->each, number);
    if (ids < 0 || p < 0 || y < 0) return;
    for (int64_t k = 0; k < t->K; k++) {
        const int32_t id = t->experts.ids[ids * t->K + k];
        const double times = t->factor * m3_tap_doubles(t->weights)[p * t->K + k];
        if (id >= 0 && id < t->count) add(t, id, r, m3_tap_doubles(t->each) + (y * t->K + k) * t->width, times);
    }
}

static void add_operands(struct terms *t, int64_t r)
{
    const int64_t number = t->s->numbers[r];
    const int64_t a = m3_tap_values_row(t->a, number), b = m3_tap_values_row(t->b, number);
    if (a < 0 || b < 0) return;
    add(t, 0, r, m3_tap_doubles(t->a) + a * t->width, 1);
    add(t, 1, r, m3_tap_doubles(t->b) + b * t->width, 1);
}

static void gather(struct terms *t)
{
    const struct m3_side_by_side *s = t->s;
    for (int64_t r = 0; r < s->rows; r++) {
        if (!m3_side_by_side_tells(s, r)) continue;
        if (t->experts.ids) add_experts(t, r);
        else add_operands(t, r);
    }
    for (int64_t i = 0; i < s->count; i++) {
        const double v = m3_side_by_side_variance(s, i, t->u, t->here), d = s->got[i] - s->want[i];
        if (v > 0 && isfinite(d) && m3_side_by_side_tells(s, i / t->width)) t->squares += d * d / v;
    }
}

/* Of the terms that are off the one whose factor explains most: others seem to be off where they are added to it. */
struct found {
    int64_t term; /* -1: none */
    double part, explained;
};

static struct found find(const struct terms *t, double scale)
{
    struct found found = { .term = -1 };
    for (int64_t j = 0; j < t->count; j++) {
        const struct fit *f = &t->fits[j];
        /* The difference of both coefficients: a factor of the whole sum is none of the term's. */
        const double both = f->gg + f->rr + 2 * f->gr, own = (f->gg * f->rr - f->gr * f->gr) / both;
        if (!(own > 1e-9 * f->gg) || !isfinite(own)) continue;
        const double part = (f->gd * (f->rr + f->gr) - f->rd * (f->gg + f->gr)) / (own * both);
        /* A value near 0, which shows a factor best, is not enough. */
        if (!(f->gg * f->gg >= several * f->fourth)) continue;
        const double explained = part * (2 * f->gd - part * f->gg);
        if (!(fabs(part) >= shared[t->each != NULL] * t->unit + clear * scale / sqrt(own))) continue;
        if (explained > found.explained) found.term = j, found.part = part, found.explained = explained;
    }
    return found;
}

static void say(struct m3_finding *out, const struct m3_blaming *b, const struct m3_blame_item *item,
                const struct terms *t, const struct found *found)
{
    char what[64] = "is missing or has the other sign", term[80];
    if (found->part > lost) snprintf(what, sizeof what, "is added with the factor %.4g", 1 + found->part);
    if (t->experts.ids) snprintf(term, sizeof term, "expert %" PRId64, found->term);
    else snprintf(term, sizeof term, "%s", m3_blame_operand(b, item, (int)found->term)->name);
    m3_finding_note(out, "of the terms of this sum, %s %s", term, what);
}

static void judge(int *is_found, const struct m3_blaming *b, const struct m3_blame_item *item, struct terms *t)
{
    struct m3_finding *out = item->blamed;
    const int fails = out->verdict == M3_VERDICT_FAIL;
    gather(t);
    const struct found found = find(t, out->tiers.z2 < 1 ? sqrt(out->tiers.z2) : 1);
    const double rest = t->squares - found.explained;
    *is_found = found.term >= 0 && (!fails || rest <= fmax(rest_of_it * t->squares, (double)t->s->count));
    if (*is_found) say(out, b, item, t, &found), out->is_in_part = 1;
    if (!*is_found || fails) return;
    out->share = found.part <= lost;
    if (out->share > 0) return;
    out->verdict = M3_VERDICT_SUSPECT;
    out->tiers.tiers |= M3_TIER_PARAMETER;
}

int m3_blame_judge_operands(int *is_found, const struct m3_blaming *b, const struct m3_blame_item *item,
                            const struct m3_side_by_side *s, double u)
{
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    const enum m3_verdict verdict = item->blamed->verdict;
    /* Sums read no codes: nothing that they add up is coarser than BF16. */
    const double unit = fmax(at.here, fmin(at.before, 0x1p-8));
    const int may_hide = unit > 0x1p-24 && (verdict == M3_VERDICT_PASS || verdict == M3_VERDICT_SUSPECT);
    /* What is wrong needs no excuse. */
    struct terms t = { .s = s, .u = u, .unit = verdict == M3_VERDICT_FAIL ? 0 : unit, .here = fmax(at.here, 0x1p-24) };
    *is_found = 0;
    if ((verdict != M3_VERDICT_FAIL && !may_hide) || !begin(&t, b, item)) return M3_OK;
    t.fits = calloc((size_t)t.count + 1, sizeof *t.fits);
    int status = t.fits ? M3_OK : m3_fail_memory(b->error, item->name, (size_t)t.count * sizeof *t.fits);
    /* The trace may have dropped the ids, which the sum itself does not read. */
    if (!status && t.each) status = m3_blame_read(&t.experts, b, m3_blame_find(b, M3_TAP_EXPERTS, item->layer));
    if (!status) judge(is_found, b, item, &t);
    m3_tap_values_free(&t.experts);
    free(t.fits);
    return status;
}
