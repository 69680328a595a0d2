#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/blame/private/blame.h"

/* The rows that the dump has and that were made again, side by side: [count] each. */
struct side_by_side {
    double *memory;                     /* that all of them are in */
    double *got, *want, *bound, *walk, *suspect, *extra, *variance, *reference;
    int64_t *numbers, *from;            /* [rows] in the call, in the dump */
    int64_t rows;
};

static int has_nan(const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(x[i])) return 1;
    return 0;
}

/* The slot of the reference in which the expert of slot k is; -1: it chose others. */
static int64_t reference_slot(const int32_t *reference_ids, const int32_t *ids, int64_t k, int64_t K)
{
    for (int64_t i = 0; i < K; i++)
        if (reference_ids[i] == ids[k]) return i;
    return -1;
}

/* A row of the truth, its slots of experts in the candidate's order; NaN where the truth chose others, or has none. */
static void reference_row(double *out, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t number)
{
    const double *r = m3_blame_reference_row(b, item, number);
    const int64_t K = b->setting->model->config.K;
    const int slots = item->tap == M3_TAP_EXPERT_WEIGHTS || item->tap == M3_TAP_EXPERT_OUT;
    const struct m3_value *experts = slots ? m3_trace_get(b->trace, M3_TAP_EXPERTS, item->layer) : NULL;
    const int64_t at = experts ? m3_value_row(experts, number) : -1;
    const int32_t *theirs = m3_blame_reference_ids(b, m3_blame_find(b, M3_TAP_EXPERTS, item->layer), number);
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

static int allocate(struct side_by_side *s, const struct m3_blaming *b, const struct m3_blame_item *item, int64_t rows)
{
    const size_t n = (size_t)(rows * item->width) + 1;
    double **arrays[] = { &s->got, &s->want, &s->bound, &s->walk, &s->suspect, &s->extra, &s->variance, &s->reference };
    *s = (struct side_by_side){ .memory = malloc(8 * n * sizeof *s->memory),
                                .numbers = malloc(((size_t)rows + 1) * 2 * sizeof *s->numbers) };
    if (!s->memory || !s->numbers) return m3_fail_memory(b->error, item->name, 8 * n * sizeof *s->memory);
    s->from = s->numbers + rows;
    for (int i = 0; i < 8; i++) *arrays[i] = s->memory + (size_t)i * n;
    return M3_OK;
}

/* Rows whose inputs gave NaN, in double too, are left out: who made them NaN has been blamed. */
static void gather(struct side_by_side *s, const struct m3_blaming *b, const struct m3_blame_item *item,
                   const struct m3_blame_values *dumped, const struct m3_recomputed *made)
{
    const int64_t width = item->width;
    const size_t bytes = (size_t)width * sizeof(double);
    const struct m3_value rows_made = { .rows = made->rows, .numbers = made->numbers };
    for (int64_t r = 0; r < dumped->rows; r++) {
        const int64_t number = dumped->numbers[r], to = s->rows * width, at = m3_value_row(&rows_made, number) * width;
        if (at < 0 || number >= item->rows || has_nan(made->y + at, width)) continue;
        memcpy(s->got + to, dumped->values + r * width, bytes);
        memcpy(s->want + to, made->y + at, bytes);
        memcpy(s->bound + to, made->bound + at, bytes);
        memcpy(s->walk + to, made->walk + at, bytes);
        if (made->suspect) memcpy(s->suspect + to, made->suspect + at, bytes);
        if (made->extra.error) memcpy(s->extra + to, made->extra.error + at, bytes);
        if (made->extra.error) memcpy(s->variance + to, made->extra.variance + at, bytes);
        reference_row(s->reference + to, b, item, number);
        s->from[s->rows] = r;
        s->numbers[s->rows++] = number;
    }
}

/* The dump rounded the tap itself. */
static int add_dump_rounding(struct side_by_side *s, const struct m3_blaming *b, const struct m3_blame_item *item,
                             int has_extra)
{
    const struct m3_profile *profile = b->setting->profile;
    const double u = profile ? m3_profile_dump_rounding(profile, item->name) : 0;
    const int64_t n = s->rows * item->width;
    if (u == 0) return has_extra;
    if (!has_extra) memset(s->extra, 0, (size_t)n * sizeof *s->extra);
    if (!has_extra) memset(s->variance, 0, (size_t)n * sizeof *s->variance);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(s->want[i])) continue;
        s->extra[i] += u * fabs(s->want[i]);
        s->variance[i] += u * u * s->want[i] * s->want[i] / 3;
    }
    return 1;
}

/* |d| / |r| in L2, where the truth has a counterpart; infinities that both have are no difference. */
struct sums {
    double inherited, created, allowed, reference;
};

static double square(double got, double want)
{
    return got == want ? 0 : (got - want) * (got - want);
}

static double share(double sum, double reference) { return sum == 0 ? 0 : sqrt(sum / reference); }

static void measure(struct m3_blamed *out, const struct side_by_side *s, int64_t n, double u, int has_extra)
{
    struct sums sums = { 0 };
    for (int64_t i = 0; i < n; i++) {
        if (isnan(s->reference[i])) continue;
        sums.inherited += square(s->want[i], s->reference[i]);
        sums.created += square(s->got[i], s->want[i]);
        if (isfinite(s->reference[i])) sums.reference += s->reference[i] * s->reference[i];
        if (isfinite(s->want[i]))
            sums.allowed += u * u * s->walk[i] * s->walk[i] / 3 + (has_extra ? s->variance[i] : 0);
    }
    out->inherited = share(sums.inherited, sums.reference);
    out->created = share(sums.created, sums.reference);
    out->allowed = share(sums.allowed, sums.reference);
}

void m3_blame_place(struct m3_blamed *out, const struct m3_tensor *tensor, int64_t number, int64_t rest, int rank)
{
    out->rank = rank;
    for (int i = rank - 1; i > 0; i--) {
        out->index[i] = rest % tensor->shape[i];
        rest /= tensor->shape[i];
    }
    out->index[0] = number;
}

static int verdict(struct m3_blamed *out, struct side_by_side *s, const struct m3_blaming *b,
                   const struct m3_blame_item *item, const struct m3_recomputed *made)
{
    const struct m3_profile *profile = b->setting->profile;
    const int64_t n = s->rows * item->width;
    const int has_extra = add_dump_rounding(s, b, item, made->extra.error != NULL);
    const struct m3_tap_values tap = {
        .reference = s->want, .candidate = s->got, .bound = s->bound, .walk = s->walk,
        .suspect = made->suspect ? s->suspect : NULL, .extra = has_extra ? s->extra : NULL,
        .extra_variance = has_extra ? s->variance : NULL, .count = n, .n = made->n, .f = made->f,
        .u = m3_setting_arithmetic(b->setting, n).u,
        .stored = profile ? m3_profile_dumped(profile, item->name) : M3_F32,
        .truncates = profile && m3_profile_truncates(profile), .flushes = profile && m3_profile_flushes(profile),
    };
    out->tiers = m3_verdict_of(&tap);
    out->verdict = out->tiers.verdict;
    measure(out, s, n, tap.u, has_extra);
    const int64_t worst = out->tiers.worst;
    if (out->tiers.status) {
        out->verdict = M3_VERDICT_NOT_JUDGED;
        snprintf(out->note, sizeof out->note, "its inputs are so large that their bound is no number");
        return M3_OK;
    }
    if (worst < 0) return M3_OK;
    m3_blame_place(out, item->dumped, s->numbers[worst / item->width], worst % item->width, item->dumped->rank);
    out->got = s->got[worst];
    out->want = s->want[worst];
    return M3_OK;
}

int m3_blame_judge_values(const struct m3_blaming *b, const struct m3_blame_item *item,
                          const struct m3_blame_values *dumped, const struct m3_recomputed *made)
{
    struct m3_blamed *out = item->blamed;
    struct side_by_side s;
    int status = allocate(&s, b, item, dumped->rows);
    if (!status) gather(&s, b, item, dumped, made);
    out->rows = s.rows;
    out->left_out = dumped->rows - s.rows;
    out->elements = s.rows * item->width;
    if (!status && s.rows == 0) {
        out->verdict = M3_VERDICT_NOT_JUDGED;
        snprintf(out->note, sizeof out->note, "its inputs are missing or no numbers in every row");
    } else if (!status) {
        status = verdict(out, &s, b, item, made);
    }
    free(s.memory);
    free(s.numbers);
    return status;
}
