#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/hints.h"
#include "oracle/judge/side_by_side.h"

/* The slot of the reference with the expert of slot k; -1: it did not select that expert. */
static int64_t reference_slot(const int32_t *reference_ids, const int32_t *ids, int64_t k, int64_t K)
{
    for (int64_t i = 0; i < K; i++)
        if (reference_ids[i] == ids[k]) return i;
    return -1;
}

/* A row of the truth, its slots of experts in the candidate's order; NaN where the truth selected others, or has no
 * such row. */
static void reference_row(double *out, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t number)
{
    const double *r = m3_blame_truth_row(item, number);
    const int64_t K = b->setting->model->config.K;
    const int slots = item->tap == M3_TAP_EXPERT_WEIGHTS || item->tap == M3_TAP_EXPERT_OUT;
    const struct m3_tap_values *experts = slots ? m3_trace_get(b->trace, M3_TAP_EXPERTS, item->layer) : NULL;
    const int64_t at = experts ? m3_tap_values_row(experts, number) : -1;
    const int32_t *theirs = m3_blame_truth_ids(m3_blame_find(b, M3_TAP_EXPERTS, item->layer), number);
    if (!r || at < 0 || !theirs) {
        for (int64_t i = 0; i < item->width; i++) out[i] = r ? r[i] : NAN;
        return;
    }
    const int64_t size = item->width / K;
    for (int64_t k = 0; k < K; k++) {
        int64_t slot = reference_slot(theirs, experts->ids + at * K, k, K);
        for (int64_t i = 0; i < size; i++) out[k * size + i] = slot < 0 ? NAN : r[slot * size + i];
    }
}

/* Collects the rows to judge. Rows whose inputs gave NaN, in double too, are left out: the operator that caused the
 * NaN has been judged. */
static void gather(struct m3_side_by_side *s, const struct m3_blame_item *item, const struct m3_tap_values *dumped,
                   const struct m3_recomputed *recomputed, double rounding)
{
    const size_t bytes = (size_t)item->width * sizeof(double);
    for (int64_t r = 0; r < dumped->rows; r++) {
        const int64_t number = dumped->numbers[r];
        double *got = number < item->rows ? m3_side_by_side_row(s, recomputed, number, rounding) : NULL;
        if (got) memcpy(got, dumped->values + r * item->width, bytes);
    }
}

/* |d| / |r| in L2, over elements that the truth has too; equal infinities do not count as a difference. */
struct sums {
    double inherited, created, allowed, reference;
};

static double square(double got, double want) { return got == want ? 0 : (got - want) * (got - want); }

static double share(double sum, double reference) { return sum == 0 ? 0 : sqrt(sum / reference); }

static void add_row(struct sums *sums, const struct m3_side_by_side *s, int64_t at, int64_t width,
                    const double *reference, double u)
{
    for (int64_t i = at; i < at + width; i++) {
        const double want = s->want[i], r = reference[i - at];
        if (isnan(r)) continue;
        sums->inherited += square(want, r);
        sums->created += square(s->got[i], want);
        if (isfinite(r)) sums->reference += r * r;
        if (isfinite(want)) sums->allowed += u * u * s->walk[i] * s->walk[i] / 3 + (s->variance ? s->variance[i] : 0);
    }
}

/* Without the truth nothing is inherited: then it is what the operator gives. */
static int measure(struct m3_finding *out, const struct m3_blaming *b, const struct m3_side_by_side *s,
                   const struct m3_blame_item *item, double u)
{
    const size_t bytes = (size_t)item->width * sizeof(double);
    struct sums sums = { 0 };
    double *row = malloc(bytes + 1);
    if (!row) return m3_fail_memory(b->error, item->name, bytes);
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t at = r * item->width;
        if (item->truth) reference_row(row, b, item, s->numbers[r]);
        add_row(&sums, s, at, item->width, item->truth ? row : s->want + at, u);
    }
    free(row);
    out->inherited = share(sums.inherited, sums.reference);
    out->created = share(sums.created, sums.reference);
    out->allowed = share(sums.allowed, sums.reference);
    out->off.rel_l2 = out->created;
    out->off.allowed_l2 = out->allowed;
    return M3_OK;
}

/* What looks like another value of a parameter. */
static int test_parameters(const struct m3_blaming *b, const struct m3_blame_item *item,
                           const struct m3_side_by_side *s, const struct m3_side_by_side_rules *rules)
{
    struct m3_finding *out = item->blamed;
    const struct m3_side_by_side_tap tap = { b->trace, item->tap, item->layer };
    if (out->tiers.status) return M3_OK;
    int status = m3_side_by_side_parameters(&out->tiers, s, rules, &tap, b->error);
    out->verdict = out->tiers.verdict;
    return status;
}

/* Over elements that are finite on both sides. */
static double largest_error(const struct m3_side_by_side *s)
{
    double error = 0, size = 0;
    for (int64_t i = 0; i < s->count; i++) {
        if (!isfinite(s->want[i])) continue;
        const double want = fabs(s->want[i]), off = fabs(s->got[i] - s->want[i]);
        if (want > size) size = want;
        if (off > error && isfinite(s->got[i])) error = off;
    }
    return error == 0 ? 0 : error / size;
}

static int settle(struct m3_finding *out, const struct m3_blaming *b, const struct m3_side_by_side *s,
                  const struct m3_blame_item *item, const struct m3_side_by_side_rules *rules)
{
    out->tiers = m3_side_by_side_verdict(s, rules);
    out->verdict = out->tiers.verdict;
    out->n = rules->n, out->f = rules->f;
    out->violations = out->tiers.hard;
    out->off.max_rel = largest_error(s);
    const int status = measure(out, b, s, item, m3_setting_arithmetic(rules->setting, s->count).u);
    const int64_t worst = out->tiers.worst;
    if (out->tiers.status) {
        out->verdict = M3_VERDICT_NOT_JUDGED;
        m3_finding_note(out, "its inputs are so large that their bound is no number");
        return status;
    }
    if (worst < 0) return status;
    m3_finding_place(out, item->dumped, s->numbers[worst / item->width], worst % item->width, item->dumped->rank);
    out->got = s->got[worst];
    out->want = s->want[worst];
    if (out->verdict != M3_VERDICT_FAIL || !m3_is_logits(item->tap) || out->note[0]) return status;
    const char *hint = m3_value_hint(s->got, s->want, s->rows, item->width);
    if (hint) m3_finding_note(out, "%s", hint);
    return status;
}

int m3_blame_judge_values(const struct m3_blaming *b, const struct m3_blame_item *item,
                          const struct m3_tap_values *dumped, const struct m3_recomputed *recomputed)
{
    struct m3_finding *out = item->blamed;
    const struct m3_profile *profile = b->setting->profile;
    const double rounding = profile ? m3_profile_dump_rounding(profile, item->name) : 0;
    const int64_t elements = dumped->rows * item->width;
    const struct m3_side_by_side_rules rules = {
        .setting = b->setting,
        .tap = item->name,
        .n = recomputed->n,
        .f = recomputed->f,
        .has_suspect = recomputed->suspect != NULL,
        .has_extra = recomputed->y.off.error != NULL || rounding > 0,
    };
    struct m3_side_by_side s;
    const int is_view = rounding == 0 && recomputed->y.rows <= item->rows &&
                        m3_side_by_side_view(&s, recomputed, dumped->values, dumped->numbers, dumped->rows);
    int status = is_view ? M3_OK : m3_side_by_side_room(&s, elements, dumped->rows, item->name, b->error);
    if (!status && !is_view) gather(&s, item, dumped, recomputed, rounding);
    out->is_in_part = 0;
    out->pattern = (struct m3_pattern){ .where = "" };
    out->rows = s.rows;
    out->rows_left_out = dumped->rows - s.rows;
    out->elements = s.count;
    const double u = m3_setting_arithmetic(rules.setting, s.count).u;
    const double here = m3_coarse_alone(&b->coarse, item->name, item->tap, item->layer).here;
    if (!status) status = m3_side_by_side_mark(&s, u, here, item->name, b->error);
    if (!status && s.rows > 0) {
        status = settle(out, b, &s, item, &rules);
        if (!status) status = test_parameters(b, item, &s, &rules);
        int has_term = 0;
        if (!status) status = m3_blame_judge_operands(&has_term, b, item, &s, u);
        if (!status && !has_term) status = m3_blame_judge_outputs(b, item, &s, u);
        if (!status) status = m3_blame_judge_spread(b, item, &s, u);
        if (!status) m3_blame_judge_bits(b, item, &s);
        if (!status) status = m3_blame_find_pattern(b, item, dumped, &s, u);
    } else if (!status) {
        out->verdict = M3_VERDICT_NOT_JUDGED;
        m3_finding_note(out, "its inputs are missing or no numbers in every row");
    }
    m3_side_by_side_free(&s);
    return status;
}
