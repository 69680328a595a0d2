/* Which known mistake explains a tap that fails? Its values are compared with what each mistake makes of the
 * candidate's own inputs. SPEC 7.12. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/cause/mistaken.h"
#include "oracle/cause/tap.h"
#include "oracle/judge/side_by_side.h"
#include "oracle/judge/tolerance.h"

/* How much nearer the candidate has to be to a mistake's results than to the right ones, and than to other ones. */
static const double nearer_than_right = 20, nearer_than_others = 4;
/* Results that differ by less are the same: they are rounded to float. */
static const double same = 2e-7;

/* What one mistake makes of the tap. */
struct answer {
    const struct m3_mistake *mistake;
    struct m3_tap_values tap;
    double distance, right;             /* of the candidate: from it, from the right results, in the same rows */
    int passes;                         /* the candidate has a better verdict by it than by the right results */
};

/* The tap at hand. */
struct naming {
    const struct m3_blaming *b;
    const struct m3_blame_item *item;
    const struct m3_tap_values *dumped;
    const struct m3_recomputed *made;   /* the right results */
    int is_coarse;                      /* the profile rounds here or before */
    struct m3_mistaken *mistaken;
    struct answer *answers;             /* [mistakes] those that differ from the right results */
    int count;
};

/* ---- distances */

/* A row of the three, by its number; 0 if one of them does not have it. */
struct row {
    const double *got, *right, *mistaken;
    const int32_t *got_ids, *right_ids, *mistaken_ids;
};

static int find_row(struct row *row, const struct naming *n, const struct m3_tap_values *tap, int64_t r)
{
    const struct m3_tap_values *d = n->dumped;
    const int64_t number = d->numbers[r], right = m3_tap_values_row(&n->made->y, number);
    const int64_t mine = m3_tap_values_row(tap, number) * tap->width;
    if (mine < 0 || right < 0) return 0;
    *row = (struct row){ 0 };
    if (m3_tap_ids(tap)) {
        row->got_ids = d->ids + r * d->width;
        row->right_ids = n->made->y.ids ? n->made->y.ids + right * d->width : NULL;
        row->mistaken_ids = m3_tap_ids(tap) + mine;
        return 1;
    }
    row->got = d->values + r * d->width;
    row->right = n->made->y.values + right * d->width;
    row->mistaken = m3_tap_doubles(tap) + mine;
    for (int64_t i = 0; i < d->width; i++)
        if (isnan(row->right[i]) || isnan(row->mistaken[i])) return 0;
    return 1;
}

/* Sums of squares; equal infinities do not count, others make the distance infinite. */
struct squares {
    double difference, size;
};

static void add_squares(struct squares *s, const double *x, const double *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(y[i])) s->size += y[i] * y[i];
        if (x[i] == y[i]) continue;
        if (isfinite(x[i]) && isfinite(y[i])) s->difference += (x[i] - y[i]) * (x[i] - y[i]);
        else s->difference = INFINITY;
    }
}

static double distance_of(const struct squares *s)
{
    return s->difference == 0 ? 0 : s->size == 0 ? INFINITY : sqrt(s->difference / s->size);
}

static int holds(const int32_t *ids, int64_t width, int32_t id)
{
    for (int64_t i = 0; i < width; i++)
        if (ids[i] == id) return 1;
    return 0;
}

/* The number of sets that differ. */
static int64_t differing(const int32_t *x, const int32_t *y, int64_t sets, int64_t width)
{
    int64_t count = 0;
    for (int64_t s = 0; s < sets; s++) {
        int differs = 0;
        for (int64_t i = s * width; i < (s + 1) * width && !differs; i++)
            differs = !holds(x + s * width, width, y[i]) || !holds(y + s * width, width, x[i]);
        count += differs;
    }
    return count;
}

static int64_t sets_of(const struct naming *n)
{
    return n->item->tap == M3_TAP_INDEX_BLOCKS ? n->b->setting->model->config.G : 1;
}

/* The distance of two of the three, over all rows: of the candidate from the mistake's or the right results, or of the
 * mistake's from the right ones. Of ids: the share of sets that differ. Returns the number of rows. */
static int64_t measure(struct answer *a, double *effect, const struct naming *n)
{
    struct squares from[3] = { { 0, 0 }, { 0, 0 }, { 0, 0 } };
    const int64_t width = n->dumped->width, sets = sets_of(n);
    int64_t rows = 0;
    struct row row;
    if (a->tap.width != width) return 0;
    for (int64_t r = 0; r < n->dumped->rows; r++) {
        if (!find_row(&row, n, &a->tap, r)) continue;
        rows++;
        if (row.got) {
            add_squares(&from[0], row.got, row.mistaken, width);
            add_squares(&from[1], row.got, row.right, width);
            add_squares(&from[2], row.mistaken, row.right, width);
            continue;
        }
        const int64_t each = width / sets, all = sets;
        from[0].difference += (double)differing(row.got_ids, row.mistaken_ids, sets, each);
        from[1].difference += (double)(row.right_ids ? differing(row.got_ids, row.right_ids, sets, each) : all);
        from[2].difference += (double)(row.right_ids ? differing(row.mistaken_ids, row.right_ids, sets, each) : all);
    }
    const double decisions = (double)(rows * sets);
    a->distance = m3_tap_ids(&a->tap) ? from[0].difference / decisions : distance_of(&from[0]);
    a->right = m3_tap_ids(&a->tap) ? from[1].difference / decisions : distance_of(&from[1]);
    *effect = m3_tap_ids(&a->tap) ? from[2].difference / decisions : distance_of(&from[2]);
    return rows;
}

/* Do two mistakes have the same results? */
static int are_same(const struct naming *n, const struct answer *a, const struct answer *b)
{
    struct squares s = { 0, 0 };
    if (a->tap.rows != b->tap.rows || a->tap.width != b->tap.width) return 0;
    const int64_t count = a->tap.rows * a->tap.width, sets = a->tap.rows * sets_of(n);
    if (m3_tap_ids(&a->tap)) return differing(m3_tap_ids(&a->tap), m3_tap_ids(&b->tap), sets, count / sets) == 0;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(m3_tap_doubles(&a->tap)[i]) && !isnan(m3_tap_doubles(&b->tap)[i]))
            add_squares(&s, &m3_tap_doubles(&a->tap)[i], &m3_tap_doubles(&b->tap)[i], 1);
    return distance_of(&s) <= same;
}

/* ---- by what the profile allows */

/* What the profile allows of the right results, relative to them: how coarsely this operator may round. */
static double coarseness(const struct m3_side_by_side *s, const struct m3_side_by_side_rules *rules)
{
    const double steps = m3_setting_arithmetic(rules->setting, 1).u * (double)(rules->n + rules->f);
    double allowed = 0, size = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double one = steps * s->bound[i] + s->error[i];
        if (!isfinite(s->want[i]) || !isfinite(one)) continue;
        allowed += one * one;
        size += s->want[i] * s->want[i];
    }
    return size > 0 ? sqrt(allowed / size) : 0;
}

/* Where the mistake's results are larger than the right ones, they are rounded as coarsely. */
static void widen(struct m3_side_by_side *s, const double *mistaken, double by)
{
    for (int64_t i = 0; i < s->count; i++)
        if (isfinite(mistaken[i]) && isfinite(s->want[i]))
            m3_side_by_side_add(s, i, by * fmax(0, fabs(mistaken[i]) - fabs(s->want[i])));
}

/* The verdicts on the candidate by the mistake's results, and, as widely, by the right ones. */
static void verdicts(enum m3_verdict *by_mistake, enum m3_verdict *by_right, const struct naming *n,
                     const struct answer *a, struct m3_side_by_side *s, double *mistaken)
{
    const struct m3_setting *setting = n->b->setting;
    const double dumped = setting->profile ? m3_profile_dump_rounding(setting->profile, n->item->name) : 0;
    const size_t row_bytes = (size_t)n->dumped->width * sizeof *mistaken;
    const struct m3_side_by_side_rules rules = {
        .setting = setting,
        .tap = n->item->name,
        .n = n->made->n,
        .f = n->made->f,
        .has_suspect = n->made->suspect != NULL,
        .has_extra = 1,
    };
    struct row row;
    *by_mistake = *by_right = M3_VERDICT_NOT_JUDGED;
    for (int64_t r = 0; r < n->dumped->rows; r++) {
        const int64_t at = s->count;
        if (!find_row(&row, n, &a->tap, r)) continue;
        double *got = m3_side_by_side_row(s, n->made, n->dumped->numbers[r], dumped);
        if (!got) continue;
        memcpy(got, row.got, row_bytes);
        memcpy(mistaken + at, row.mistaken, row_bytes);
    }
    if (s->rows == 0) return;
    widen(s, mistaken, coarseness(s, &rules));
    *by_right = m3_side_by_side_verdict(s, &rules).verdict;
    memcpy(s->want, mistaken, (size_t)s->count * sizeof *mistaken);
    *by_mistake = m3_side_by_side_verdict(s, &rules).verdict;
}

/* Is the candidate better explained: no longer wrong, or no longer suspect and much nearer? */
static int is_better(enum m3_verdict by_mistake, enum m3_verdict by_right, const struct answer *a)
{
    if (by_right == M3_VERDICT_FAIL)
        return (by_mistake == M3_VERDICT_PASS || by_mistake == M3_VERDICT_SUSPECT) && a->distance < a->right;
    return by_right == M3_VERDICT_SUSPECT && by_mistake == M3_VERDICT_PASS && 2 * a->distance <= a->right;
}

static int judge(struct answer *a, const struct naming *n)
{
    const int64_t count = n->dumped->rows * n->dumped->width;
    enum m3_verdict by_mistake, by_right;
    struct m3_side_by_side s;
    if (m3_tap_ids(&a->tap)) return M3_OK;
    double *mistaken = malloc(((size_t)count + 1) * sizeof *mistaken);
    int status = m3_side_by_side_room(&s, count, n->dumped->rows, n->item->name, n->b->error);
    if (!status && !mistaken) status = m3_fail_memory(n->b->error, n->item->name, (size_t)count * sizeof *mistaken);
    if (!status) {
        verdicts(&by_mistake, &by_right, n, a, &s, mistaken);
        a->passes = is_better(by_mistake, by_right, a);
    }
    m3_side_by_side_free(&s);
    free(mistaken);
    return status;
}

/* ---- one tap */

static int is_near(const struct answer *a)
{
    return isfinite(a->distance) && a->right > 0 && nearer_than_right * a->distance <= a->right;
}

/* Under a profile that rounds, a distance is mostly rounding: then the mistake has to explain all of it. */
static int explains(const struct naming *n, const struct answer *a)
{
    return m3_tap_ids(&a->tap) || !n->is_coarse ? is_near(a) || a->passes : a->passes;
}

static int add_answer(struct naming *n, const struct m3_mistake *mistake)
{
    struct answer *a = &n->answers[n->count];
    int applies;
    double effect = 0;
    *a = (struct answer){ .mistake = mistake };
    int status = m3_mistaken_make(&a->tap, &applies, n->mistaken, mistake);
    if (!status && applies && measure(a, &effect, n) > 0 && !(effect <= (m3_tap_ids(&a->tap) ? 0 : same))) {
        n->count++;
        return judge(a, n);
    }
    m3_tap_values_free(&a->tap);
    return status;
}

/* The answer that explains the tap while no other one with other results comes near; or NULL. */
static const struct answer *best_answer(const struct naming *n)
{
    const struct answer *best = NULL;
    for (int i = 0; i < n->count; i++)
        if (explains(n, &n->answers[i]) && (!best || n->answers[i].distance < best->distance)) best = &n->answers[i];
    for (int i = 0; best && i < n->count; i++) {
        const struct answer *a = &n->answers[i];
        if (a == best || are_same(n, a, best)) continue;
        const int is_far = a->distance > nearer_than_others * best->distance;
        if (n->is_coarse && !m3_tap_ids(&a->tap) ? a->passes : !is_far) return NULL;
    }
    return best;
}

static void write_name(struct m3_finding *out, const struct naming *n, const struct answer *best)
{
    out->mistake = best->mistake;
    out->from_mistake = best->distance;
    out->from_right = best->right;
    for (int i = 0; i < n->count; i++) {
        const struct answer *a = &n->answers[i];
        const size_t length = strlen(out->same_results);
        if (a == best || !are_same(n, a, best)) continue;
        snprintf(out->same_results + length, sizeof out->same_results - length, "%s%s", length ? ", " : "",
                 a->mistake->id);
    }
}

/* Mistakes that were named at earlier taps, which are likely to be the cause here too. */
static int try_named(struct naming *n, const struct m3_blame_named *named)
{
    struct m3_finding *out = n->item->blamed;
    int status = M3_OK;
    for (int i = 0; i < named->count && !status && !out->mistake; i++) {
        const int at = n->count;
        status = add_answer(n, named->mistakes[i]);
        if (!status && n->count > at && explains(n, &n->answers[at])) write_name(out, n, &n->answers[at]);
    }
    return status;
}

static int try_all(struct naming *n, struct m3_blame_named *named)
{
    struct m3_finding *out = n->item->blamed;
    int status = M3_OK;
    n->count = 0;
    for (int k = 0; k < m3_mistake_count() && !status; k++)
        if (m3_mistaken_reaches(n->b, n->item, m3_mistake_at(k))) status = add_answer(n, m3_mistake_at(k));
    const struct answer *best = status ? NULL : best_answer(n);
    out->mistakes_tried = n->count;
    if (!best) return status;
    write_name(out, n, best);
    out->is_first_named = 1;
    if (named->count < M3_MOST_NAMED) named->mistakes[named->count++] = best->mistake;
    return status;
}

static void forget_answers(struct naming *n)
{
    for (int i = 0; i < n->count; i++) m3_tap_values_free(&n->answers[i].tap);
    n->count = 0;
}

/* The row of the worst element. */
static int64_t worst_row(const struct m3_finding *tap) { return tap->rank > 0 ? tap->index[0] : 0; }

int m3_blame_name_mistake(const struct m3_blaming *b, struct m3_blame_item *item, const struct m3_tap_values *dumped,
                          const struct m3_recomputed *made)
{
    if (!b->named || !item->blamed || (!m3_tap_ids(dumped) && !made->y.data)) return M3_OK;
    if (item->blamed->verdict != M3_VERDICT_FAIL && item->blamed->verdict != M3_VERDICT_SUSPECT) return M3_OK;
    const int64_t depth = m3_mistaken_depth(b, item);
    const struct m3_coarseness at = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer);
    struct naming n = { .b = b, .item = item, .dumped = dumped, .made = made };
    n.is_coarse = fmax(at.before, at.here) > 0x1p-24;
    n.answers = calloc((size_t)m3_mistake_count() + M3_MOST_NAMED, sizeof *n.answers);
    int status = n.answers ? m3_mistaken_new(&n.mistaken, b, item, worst_row(item->blamed), 0)
                           : m3_fail_memory(b->error, "mistakes", sizeof *n.answers);
    if (!status) status = try_named(&n, b->named);
    forget_answers(&n);
    if (!status && !item->blamed->mistake && b->named->budget > 0) {
        b->named->budget -= depth;
        status = try_all(&n, b->named);
    }
    if (n.answers) forget_answers(&n);
    m3_mistaken_free(n.mistaken);
    free(n.answers);
    return status;
}

/* ---- what is said */

static void say(struct m3_judgement *result, const struct m3_finding *tap)
{
    const struct m3_mistake *mistake = tap->mistake;
    int64_t explained = 0;
    char others[64] = "", reading[96] = "";
    for (int64_t i = 0; i < result->count; i++) explained += result->findings[i].mistake == mistake;
    if (explained > 1)
        snprintf(others, sizeof others, "; it explains %" PRId64 " more %s", explained - 1,
                 explained == 2 ? "tap" : "taps");
    if (mistake->reading) snprintf(reading, sizeof reading, "; --set %s explains it", mistake->reading);
    m3_fail(&result->notes, M3_OK,
            "%s looks like %s (%s): the %s of this mistake are within %.1g of the candidate's, the right ones %.1g "
            "away%s%s%s%s",
            tap->tap, mistake->id, mistake->what, tap->selection ? "choices" : "results", tap->from_mistake,
            tap->from_right, tap->same_results[0] ? "; the same results: " : "", tap->same_results, reading, others);
}

void m3_blame_say_mistakes(struct m3_judgement *result)
{
    const struct m3_finding *culprit = result->first;
    for (int64_t i = 0; i < result->count; i++) {
        const struct m3_finding *tap = &result->findings[i];
        if (!tap->mistake) continue;
        if (!result->mistake) result->mistake = tap->mistake->id;
        if (tap->is_first_named) say(result, tap);
    }
    if (culprit && !culprit->mistake && culprit->mistakes_tried > 0)
        m3_fail(&result->notes, M3_OK, "%s: none of the %d known mistakes of %s explains it", culprit->tap,
                culprit->mistakes_tried, culprit->operators > 1 ? "these operators" : "this operator");
}
