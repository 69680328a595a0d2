#include <math.h>

#include "model/taps.h"
#include "oracle/judge.h"
#include "oracle/spans.h"

void m3_judge_not_comparable(struct m3_stage *stage, const char *why)
{
    stage->verdict = M3_VERDICT_NOT_COMPARABLE;
    stage->note = why;
}

static int holds_floats(const struct m3_tensor *tensor)
{
    return tensor->dtype == M3_F64 || tensor->dtype == M3_F32 || tensor->dtype == M3_F16 || tensor->dtype == M3_BF16;
}

/* Shows element j of a span as the place of the stage. */
static void show(struct m3_stage *stage, const struct m3_span *span, int64_t j)
{
    const struct m3_tensor *want = stage->reference;
    int64_t rest = span->want + j;
    stage->rank = want->rank;
    for (int i = want->rank - 1; i > 0; i--) {
        stage->index[i] = rest % want->shape[i];
        rest /= want->shape[i];
    }
    stage->index[0] = span->row;
    stage->want = m3_decode(want->dtype, want->data, span->want + j);
    stage->got = m3_decode(stage->candidate->dtype, stage->candidate->data, span->got + j);
    stage->max_abs = stage->got == stage->want ? 0 : fabs(stage->got - stage->want);      /* Inf - Inf is NaN */
}

/* Counts the elements and finds the largest finite |reference|; 0 if the reference holds a NaN, which is shown. */
static int find_peak(struct m3_stage *stage, struct m3_span_walk walk)
{
    const struct m3_tensor *want = stage->reference;
    struct m3_span span;
    while (m3_span_walk_next(&walk, &span)) {
        stage->elements += span.length;
        for (int64_t j = 0; j < span.length; j++) {
            double size = fabs(m3_decode(want->dtype, want->data, span.want + j));
            if (isnan(size)) {
                show(stage, &span, j);
                return 0;
            }
            if (size > stage->peak && !isinf(size)) stage->peak = size;
        }
    }
    return 1;
}

enum kind { FINITE, ONE_INFINITE, NOT_A_NUMBER };

static enum kind kind_of(double got, double want)
{
    if (isnan(got)) return NOT_A_NUMBER;
    return (isinf(got) || isinf(want)) && got != want ? ONE_INFINITE : FINITE;
}

/* |got - want| in units of the largest |reference|, in which no square overflows or vanishes that matters. */
static double relative(double got, double want, double peak)
{
    if (got == want) return 0;
    return peak > 0 ? fabs(got - want) / peak : INFINITY;
}

/* Measures every element; returns how many are NaN or infinite on one side only. */
static int64_t measure(struct m3_stage *stage, struct m3_span_walk walk)
{
    const double peak = stage->peak;
    const struct m3_tensor *want_tensor = stage->reference, *got_tensor = stage->candidate;
    enum kind worst_kind = FINITE;
    double worst = -1, sum_d = 0, sum_r = 0;
    int64_t broken = 0;
    struct m3_span span;
    while (m3_span_walk_next(&walk, &span)) {
        for (int64_t j = 0; j < span.length; j++) {
            double want = m3_decode(want_tensor->dtype, want_tensor->data, span.want + j);
            double got = m3_decode(got_tensor->dtype, got_tensor->data, span.got + j);
            enum kind kind = kind_of(got, want);
            double d = kind == FINITE ? relative(got, want, peak) : INFINITY;

            if (kind > worst_kind || (kind == worst_kind && d > worst)) {
                worst_kind = kind;
                worst = d;
                show(stage, &span, j);
            }
            if (!(d <= stage->allowed_max)) stage->violations++;
            if (kind != FINITE) {
                broken++;
                continue;
            }
            if (d > stage->max_rel) stage->max_rel = d;
            sum_d += d * d;
            if (peak > 0 && !isinf(want)) sum_r += want / peak * (want / peak);
        }
    }
    stage->rel_l2 = sum_d == 0 ? 0 : sqrt(sum_d / sum_r);
    return broken;
}

/* Of what is allowed, which is nothing for counts. */
static double share(double measured, double allowed) { return measured == 0 ? 0 : measured / allowed; }

double m3_share_of_allowed(const struct m3_stage *stage, double got, double want)
{
    if (kind_of(got, want) != FINITE) return INFINITY;
    return share(relative(got, want, stage->peak), stage->allowed_max);
}

void m3_judge_values(struct m3_stage *stage, const struct m3_matched *matched)
{
    int counts = m3_tap_table[matched->tap].kind == M3_KIND_COUNTS;
    int (*fits)(const struct m3_tensor *) = counts ? m3_holds_ids : holds_floats;
    if (!fits(matched->want) || !fits(matched->got)) {
        m3_judge_not_comparable(stage, counts ? "not an integer dtype" : "not a float dtype");
        return;
    }
    struct m3_span_walk walk;
    const char *why = m3_span_walk_begin(&walk, matched);
    if (why != NULL) {
        m3_judge_not_comparable(stage, why);
        return;
    }
    if (!find_peak(stage, walk)) {
        m3_judge_not_comparable(stage, "NaN in the reference");
        return;
    }
    if (stage->elements == 0) {
        stage->verdict = M3_NOT_JUDGED;
        stage->note = "no element to compare";
        return;
    }
    int64_t broken = measure(stage, walk);
    stage->headroom = fmax(share(stage->rel_l2, stage->allowed_l2), share(stage->max_rel, stage->allowed_max));
    if (broken > 0) stage->headroom = INFINITY;
    int within = stage->rel_l2 <= stage->allowed_l2 && stage->max_rel <= stage->allowed_max;
    stage->verdict = broken == 0 && within ? M3_PASS : M3_FAIL;
}
