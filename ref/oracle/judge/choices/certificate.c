#include "oracle/judge/choices/certificate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

const char *m3_ids_fault(int64_t *list, int64_t *count, const int64_t *ids, int64_t width, int64_t limit, int padded)
{
    const char *fault = NULL;
    *count = 0;
    for (int64_t i = 0; i < width; i++) {
        if (padded && ids[i] == -1) continue;
        if (ids[i] < 0 || ids[i] >= limit) fault = "id out of range";
        list[(*count)++] = ids[i];
    }
    qsort(list, (size_t)*count, sizeof *list, ascending);
    for (int64_t i = 1; i < *count && fault == NULL; i++)
        if (list[i] == list[i - 1]) fault = "duplicate id";
    return fault;
}

static int is_in(const int64_t *ids, int64_t width, int64_t id)
{
    for (int64_t i = 0; i < width; i++)
        if (ids[i] == id) return 1;
    return 0;
}

int64_t m3_drop_unseen(int64_t *got, const int64_t *want, int64_t width, int64_t own, int64_t blocks,
                       const double *score)
{
    int64_t first = -1;
    for (int64_t i = 0; i < width; i++) {
        const int64_t id = got[i];
        const int is_later = id > own && id < blocks;
        const int is_hidden = want && score && id >= 0 && id <= own && id < blocks && score[id] == -INFINITY;
        if (!is_later && (!is_hidden || is_in(want, width, id))) continue;
        if (first < 0) first = id;
        got[i] = -1;
    }
    return first;
}

/* ---- the two deciding ids */

/* The weakest id of a set and the strongest id outside it, with every score moved by `shift` times its bound, up
 * inside the set and down outside. */
struct rivals {
    int64_t last, runner_up;        /* -1: none */
    double low, high;               /* their moved scores */
    int broken;                     /* a NaN, or a bound below 0 */
};

static int forced(const struct m3_scores *s, int64_t id) { return s->forced != NULL && s->forced[id]; }

static double bound_of(const struct m3_scores *s, const double *bound, int64_t id)
{
    return bound == NULL || forced(s, id) || isinf(s->score[id]) ? 0 : bound[id];
}

static double ranked_score(const struct m3_scores *s, int64_t id) { return forced(s, id) ? INFINITY : s->score[id]; }

/* Among equal scores the highest id is the weakest, the lowest the strongest. */
static struct rivals rivals_of(const struct m3_scores *s, const double *bound, int shift, const unsigned char *marks)
{
    struct rivals r = { .last = -1, .runner_up = -1, .low = INFINITY, .high = -INFINITY };
    for (int64_t id = 0; id < s->ids; id++) {
        double score = ranked_score(s, id), b = bound_of(s, bound, id);
        if (isnan(score) || !(b >= 0)) {
            r.broken = 1;
            continue;
        }
        if (marks[id]) {
            double moved = score + shift * b;
            if (forced(s, id) || moved > r.low) continue;
            r.low = moved;
            r.last = id;
        } else {
            double moved = score - shift * b;
            if (!(moved > r.high)) continue;
            r.high = moved;
            r.runner_up = id;
        }
    }
    return r;
}

/* For a set with one side empty or completely forced: is the other side valid? A score of -inf is never selected, and
 * no forced id may be outside the set. */
static int leads_alone(const struct rivals *r) { return r->low > -INFINITY && r->high < INFINITY; }

/* Do all ids of the set rank before all others? */
static int comes_first(const struct rivals *r, int ties_lowest)
{
    if (r->broken) return 0;
    if (r->runner_up < 0 || r->last < 0) return leads_alone(r);
    return r->low > r->high || (r->low == r->high && (!ties_lowest || r->last < r->runner_up));
}

/* The same without a tie that could be broken either way. */
static int stays_first(const struct rivals *r, int ties_lowest)
{
    return comes_first(r, ties_lowest) && (ties_lowest || r->low > r->high);
}

/* Do two ids have one score, whatever it is? */
static int are_twins(const struct m3_scores *s, int64_t a, int64_t b)
{
    return s->twins[0] != NULL && s->twins[0][a] == s->twins[0][b] && s->twins[1][a] == s->twins[1][b] &&
           !forced(s, a) && !forced(s, b);
}

/* Of all twins on both sides of the set, the highest id inside and the lowest outside. */
static struct rivals divided_twins(const struct m3_scores *s, const unsigned char *marks)
{
    struct rivals r = { .last = -1, .runner_up = -1 };
    for (int64_t e = 0; e < s->ids && s->twins[0] != NULL; e++) {
        for (int64_t f = 0; f < s->ids && marks[e]; f++) {
            if (marks[f] || !are_twins(s, e, f)) continue;
            r.last = m3_max(r.last, e);
            if (r.runner_up < 0 || f < r.runner_up) r.runner_up = f;
        }
    }
    return r;
}

/* Do some scores within the bounds rank the set first? r: the rivals with all scores moved in favour of the set.
 *
 * Twins on both sides of the set are where the line is drawn: all of them have the same score, between r->high and
 * r->low, and the lower ids come first. If only one score is possible, ids at that score are on the line too.
 * Of a set that fails there, r becomes the two ids in the wrong order. */
static int can_come_first(struct rivals *r, const struct m3_scores *s, int ties_lowest, const unsigned char *marks)
{
    if (!comes_first(r, ties_lowest)) return 0;
    struct rivals line = divided_twins(s, marks);
    if (line.last < 0) return 1;
    if (r->low == r->high) {
        line.last = m3_max(line.last, r->last);
        line.runner_up = m3_min(line.runner_up, r->runner_up);
    }
    if (line.last < line.runner_up) return 1;
    r->last = line.last;
    r->runner_up = line.runner_up;
    return 0;
}

/* The pair that comes nearest to being ranked the other way, with all scores moved against the set; twins move
 * together. */
static struct rivals closest_to(const struct m3_scores *s, const unsigned char *marks)
{
    struct rivals r = rivals_of(s, s->bound, -1, marks);
    if (s->twins[0] == NULL || r.broken || r.last < 0 || r.runner_up < 0 || r.low > r.high) return r;
    r.low = INFINITY;
    r.high = 0;
    for (int64_t e = 0; e < s->ids; e++) {
        if (!marks[e] || forced(s, e)) continue;
        double low = s->score[e] - bound_of(s, s->bound, e);
        for (int64_t f = 0; f < s->ids; f++) {
            if (marks[f] || ranked_score(s, f) == -INFINITY) continue;
            double ahead = are_twins(s, e, f) ? 0 : low - (ranked_score(s, f) + bound_of(s, s->bound, f));
            if (ahead > r.low || (ahead == r.low && e < f)) continue;
            r.low = ahead;
            r.last = e;
            r.runner_up = f;
        }
    }
    return r;
}

static void mark(unsigned char *marks, const int64_t *list, int64_t count, unsigned char value)
{
    for (int64_t i = 0; i < count; i++) marks[list[i]] = value;
}

/* Is the set of k ids that the scores select the only possible one? `marks` are zeros on entry and on return. */
static int best_is_certified(const struct m3_scores *s, int64_t k, int ties_lowest, unsigned char *marks)
{
    for (int64_t n = 0; n < k; n++) {
        int64_t best = -1;
        for (int64_t id = 0; id < s->ids; id++)
            if (!marks[id] && (best < 0 || ranked_score(s, id) > ranked_score(s, best))) best = id;
        if (best < 0) break;
        marks[best] = 1;
    }
    struct rivals closest = closest_to(s, marks);
    memset(marks, 0, (size_t)s->ids);
    return stays_first(&closest, ties_lowest);
}

static void show(struct m3_certificate *c, const struct m3_scores *s, const struct rivals *r)
{
    c->last = r->last;
    c->runner_up = r->runner_up;
    c->gap = leads_alone(r) ? INFINITY : -INFINITY;
    c->bound = 0;
    if (r->last < 0 || r->runner_up < 0) return;
    c->gap = ranked_score(s, r->last) - ranked_score(s, r->runner_up);
    if (!are_twins(s, r->last, r->runner_up))
        c->bound = bound_of(s, s->bound, r->last) + bound_of(s, s->bound, r->runner_up);
}

/* Fills in the fields that depend on the scores of the set `list`; returns whether it is admissible. */
static int weigh(struct m3_certificate *c, const struct m3_decision *d, const int64_t *list, int64_t count)
{
    const struct m3_scores *s = &d->scores;
    mark(d->marks, list, count, 1);
    struct rivals plain = rivals_of(s, NULL, 0, d->marks), best = rivals_of(s, s->bound, 1, d->marks);
    int own = comes_first(&plain, d->ties_lowest), admissible = can_come_first(&best, s, d->ties_lowest, d->marks);
    struct rivals closest = closest_to(s, d->marks);
    if (!admissible && s->proven != NULL) {
        struct rivals proven = rivals_of(s, s->proven, 1, d->marks);
        c->suspect = can_come_first(&proven, s, d->ties_lowest, d->marks);
    }
    mark(d->marks, list, count, 0);

    show(c, s, own ? &closest : admissible ? &plain : &best);
    if (admissible) c->certified = stays_first(&closest, d->ties_lowest);
    else if (!best.broken) c->certified = best_is_certified(s, count, d->ties_lowest, d->marks);
    if (best.broken) c->gap = c->bound = NAN;
    return admissible;
}

int m3_is_admissible(const struct m3_decision *d)
{
    int64_t count;
    m3_ids_fault(d->lists, &count, d->got, d->width, d->limit, d->padded);
    mark(d->marks, d->lists, count, 1);
    struct rivals best = rivals_of(&d->scores, d->scores.bound, 1, d->marks);
    int admissible = can_come_first(&best, &d->scores, d->ties_lowest, d->marks);
    mark(d->marks, d->lists, count, 0);
    return admissible;
}

/* ---- sets */

static int same_slots(const struct m3_decision *d)
{
    return d->width == 0 || memcmp(d->want, d->got, (size_t)d->width * sizeof *d->want) == 0;
}

/* Removes from two ascending lists the ids that both have. A duplicate matches one id. */
static void keep_differences(int64_t *want, int64_t *wants, int64_t *got, int64_t *gots)
{
    int64_t i = 0, j = 0, m = 0, n = 0;
    while (i < *wants || j < *gots) {
        if (j == *gots || (i < *wants && want[i] < got[j])) want[m++] = want[i++];
        else if (i == *wants || got[j] < want[i]) got[n++] = got[j++];
        else i++, j++;
    }
    *wants = m;
    *gots = n;
}

/* Do all ids of the difference have the same score in the reference, with none forced? */
static int tied(const struct m3_decision *d, const int64_t *want, int64_t wants, const int64_t *got)
{
    if (d->truth == NULL) return 0;
    double level = d->truth[want[0]];
    if (!(level > -INFINITY)) return 0;
    for (int64_t i = 0; i < wants; i++)
        if (d->truth[want[i]] != level || d->truth[got[i]] != level || forced(&d->scores, want[i])) return 0;
    return 1;
}

static int64_t slot_of(const int64_t *ids, int64_t width, int64_t id)
{
    int64_t slot = 0;
    while (slot < width && ids[slot] != id) slot++;
    return slot;
}

/* Are two ids in another order than in the reference, with scores that contradict it by more than the bounds? */
static int slots_wrong(const struct m3_decision *d)
{
    const struct m3_scores *s = &d->scores;
    for (int64_t i = 0; i < d->width; i++) {
        for (int64_t j = i + 1; j < d->width; j++) {
            int64_t a = d->got[i], b = d->got[j];
            if (a == b || slot_of(d->want, d->width, a) < slot_of(d->want, d->width, b)) continue;
            if (a < 0 || b < 0 || s->score == NULL) return 1;
            if (!(s->score[a] + bound_of(s, s->bound, a) >= s->score[b] - bound_of(s, s->bound, b))) return 1;
        }
    }
    return 0;
}

/* The verdict on a sound set that differs from the reference's. */
static void judge_other_set(struct m3_certificate *c, const struct m3_decision *d, int tie, int admissible)
{
    c->differs = 1;
    if (admissible) {
        c->choice = tie ? M3_CHOICE_TIE : M3_CHOICE_ADMISSIBLE;
        return;
    }
    c->choice = M3_CHOICE_INADMISSIBLE;
    c->unknown = d->scores.score == NULL;
    if (!c->unknown && isnan(c->gap)) c->fault = "another set; NaN among the scores";
    else c->fault = tie || (c->gap == 0 && c->bound == 0) ? "equal scores go to the lower id" : "another set";
}

struct m3_certificate m3_certify(const struct m3_decision *d)
{
    struct m3_certificate c = {
        .choice = M3_CHOICE_IDENTICAL, .want = -1, .got = -1, .last = -1, .runner_up = -1, .gap = NAN, .bound = NAN
    };
    int64_t *want = d->lists, *got = d->lists + d->width, wants, gots;
    m3_ids_fault(want, &wants, d->want, d->width, d->limit, d->padded);
    const char *fault = m3_ids_fault(got, &gots, d->got, d->width, d->limit, d->padded);
    if (fault == NULL && gots != wants) fault = "wrong count";

    int admissible = fault == NULL && d->scores.score != NULL && weigh(&c, d, got, gots);
    keep_differences(want, &wants, got, &gots);
    if (wants > 0) c.want = want[0];
    if (gots > 0) c.got = got[0];
    if (fault != NULL) {
        c.choice = M3_CHOICE_INADMISSIBLE;
        c.fault = fault;
        c.differs = 1;
    } else if (wants > 0) {
        judge_other_set(&c, d, tied(d, want, wants, got), admissible);
    } else if (!same_slots(d)) {
        c.choice = M3_CHOICE_PERMUTED;
        if (d->slots_fixed && slots_wrong(d)) {
            c.choice = M3_CHOICE_INADMISSIBLE;
            c.fault = "slots in another order";
        }
    }
    if (!c.differs) c.suspect = 0;
    return c;
}

double m3_margin_of(const struct m3_scores *scores, const int64_t *chosen, int64_t k, unsigned char *marks)
{
    mark(marks, chosen, k, 1);
    struct rivals plain = rivals_of(scores, NULL, 0, marks);
    mark(marks, chosen, k, 0);
    if (plain.broken) return NAN;
    return plain.last < 0 || plain.runner_up < 0 ? INFINITY : plain.low - plain.high;
}

/* ---- scores of experts */

static double sigmoid(double z) { return z >= 0 ? 1 / (1 + exp(-z)) : exp(z) / (1 + exp(z)); }

void m3_choice_by_scores(double *x, double *b, const double *s, const double *h, const double *bias, int64_t E,
                         const struct m3_router_arithmetic *how)
{
    for (int64_t e = 0; e < E; e++) {
        x[e] = s[e] + bias[e];
        b[e] = (how->u + how->added) * fabs(x[e]) + how->bias * fabs(bias[e]) + (h != NULL ? h[e] : 0);
    }
}

void m3_choice_by_logits(double *x, double *b, const double *z, const double *h, const double *bias, int64_t E,
                         const struct m3_router_arithmetic *how)
{
    for (int64_t e = 0; e < E; e++) {
        double s = sigmoid(z[e]), size = how->tanh_scores ? 1 : s;
        double moved = h != NULL ? fmax(sigmoid(z[e] + h[e]) - s, s - sigmoid(z[e] - h[e])) : 0;
        x[e] = s + bias[e];
        b[e] = moved + (how->c + 2) * how->u * size + how->stored * s + (how->u + how->added) * fabs(x[e]) +
               how->bias * fabs(bias[e]);
    }
}

void m3_choice_by_margin(double *x, unsigned char *forced, double margin, const double *moved, const int64_t *want,
                         const int64_t *got, int64_t width, int64_t ids, unsigned char *marks)
{
    int differ = 0;
    for (int64_t i = 0; i < width; i++) marks[want[i]] |= 1;
    for (int64_t i = 0; i < width; i++)
        if (got[i] >= 0 && got[i] < ids) marks[got[i]] |= 2;        /* the candidate's may be any numbers */
    for (int64_t e = 0; e < ids; e++) differ |= marks[e] == 1 || marks[e] == 2;
    for (int64_t e = 0; e < ids; e++) {
        x[e] = moved[e] + (marks[e] & 1 ? margin : 0);
        /* Nothing is known about two ids on one side of the margin. */
        forced[e] = differ && marks[e] == 3;
        if (differ && marks[e] == 0) x[e] = -INFINITY;
        marks[e] = 0;
    }
}
