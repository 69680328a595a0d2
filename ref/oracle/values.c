#include <math.h>
#include <stddef.h>

#include "model/taps.h"
#include "oracle/judge.h"

/* Consecutive elements that belong together: places in the reference and the candidate, in the row numbered `row`. */
struct span {
    int64_t row, want, got, length;
};

/* All spans of a tap: one a row, or one for each expert slot that both sides have. */
struct span_walk {
    struct m3_row_walk rows;
    struct m3_row_pair row;
    const struct m3_tensor *want_ids, *got_ids;     /* [rows, slots]; NULL: slot for slot */
    int64_t slots, slot, length;
};

void m3_judge_not_comparable(struct m3_stage *stage, const char *why)
{
    stage->verdict = M3_VERDICT_NOT_COMPARABLE;
    stage->note = why;
}

static int holds_floats(const struct m3_tensor *tensor)
{
    return tensor->dtype == M3_F64 || tensor->dtype == M3_F32 || tensor->dtype == M3_F16 || tensor->dtype == M3_BF16;
}

static int fits_slots(const struct m3_tensor *ids, const struct m3_tensor *tap)
{
    return m3_holds_ids(ids) && ids->rank == 2 && ids->shape[0] == tap->shape[0] && ids->shape[1] == tap->shape[1];
}

/* NULL, or why the slots cannot be aligned. */
static const char *align_slots(struct span_walk *walk, const struct m3_matched *matched)
{
    char name[64];
    if (m3_tap_name(name, sizeof name, M3_TAP_EXPERTS, matched->layer) != 0) return NULL;
    const struct m3_tensor *want_ids = m3_safetensors_find(matched->reference->file, name);
    const struct m3_tensor *got_ids = m3_safetensors_find(matched->candidate->file, name);
    if (want_ids == NULL || got_ids == NULL) return NULL;

    const struct m3_tensor *want = matched->want;
    if (want->rank < 2 || !fits_slots(want_ids, want) || !fits_slots(got_ids, matched->got))
        return "slots do not fit `moe.experts`";
    walk->want_ids = want_ids;
    walk->got_ids = got_ids;
    walk->slots = want->shape[1];
    return NULL;
}

static const char *begin_spans(struct span_walk *walk, const struct m3_matched *matched)
{
    *walk = (struct span_walk){ .slots = 1 };
    const char *why = m3_row_walk_begin(&walk->rows, matched);
    if (why == NULL && (matched->tap == M3_TAP_EXPERT_WEIGHTS || matched->tap == M3_TAP_EXPERT_OUT))
        why = align_slots(walk, matched);
    if (why != NULL) return why;

    walk->length = 1;
    for (int i = walk->want_ids != NULL ? 2 : 1; i < matched->want->rank; i++) walk->length *= matched->want->shape[i];
    walk->slot = walk->slots;
    return NULL;
}

/* The candidate's slot for the expert in the reference's; -1 if it chose another. */
static int64_t candidate_slot(const struct span_walk *walk, int64_t slot)
{
    if (walk->want_ids == NULL) return slot;
    int64_t id = m3_id_at(walk->want_ids, walk->row.want * walk->slots + slot);
    for (int64_t k = 0; k < walk->slots; k++)
        if (m3_id_at(walk->got_ids, walk->row.got * walk->slots + k) == id) return k;
    return -1;
}

static int next_span(struct span_walk *walk, struct span *span)
{
    for (;;) {
        if (walk->slot == walk->slots) {
            if (!m3_row_walk_next(&walk->rows, &walk->row)) return 0;
            walk->slot = 0;
            if (walk->slots == 0) continue;
        }
        int64_t slot = walk->slot++, other = candidate_slot(walk, slot);
        if (other < 0) continue;
        *span = (struct span){ .row = walk->row.number, .length = walk->length,
                               .want = (walk->row.want * walk->slots + slot) * walk->length,
                               .got = (walk->row.got * walk->slots + other) * walk->length };
        return 1;
    }
}

/* Shows element j of a span as the place of the stage. */
static void show(struct m3_stage *stage, const struct span *span, int64_t j)
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
static int find_peak(double *peak, struct m3_stage *stage, struct span_walk walk)
{
    const struct m3_tensor *want = stage->reference;
    struct span span;
    *peak = 0;
    while (next_span(&walk, &span)) {
        stage->elements += span.length;
        for (int64_t j = 0; j < span.length; j++) {
            double size = fabs(m3_decode(want->dtype, want->data, span.want + j));
            if (isnan(size)) {
                show(stage, &span, j);
                return 0;
            }
            if (size > *peak && !isinf(size)) *peak = size;
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
static int64_t measure(struct m3_stage *stage, struct span_walk walk, double peak)
{
    const struct m3_tensor *want_tensor = stage->reference, *got_tensor = stage->candidate;
    enum kind worst_kind = FINITE;
    double worst = -1, sum_d = 0, sum_r = 0;
    int64_t broken = 0;
    struct span span;
    while (next_span(&walk, &span)) {
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

void m3_judge_values(struct m3_stage *stage, const struct m3_matched *matched)
{
    int counts = m3_tap_table[matched->tap].kind == M3_KIND_COUNTS;
    int (*fits)(const struct m3_tensor *) = counts ? m3_holds_ids : holds_floats;
    if (!fits(matched->want) || !fits(matched->got)) {
        m3_judge_not_comparable(stage, counts ? "not an integer dtype" : "not a float dtype");
        return;
    }
    struct span_walk walk;
    const char *why = begin_spans(&walk, matched);
    if (why != NULL) {
        m3_judge_not_comparable(stage, why);
        return;
    }
    double peak;
    if (!find_peak(&peak, stage, walk)) {
        m3_judge_not_comparable(stage, "NaN in the reference");
        return;
    }
    if (stage->elements == 0) {
        stage->verdict = M3_NOT_JUDGED;
        stage->note = "no element to compare";
        return;
    }
    int64_t broken = measure(stage, walk, peak);
    stage->headroom = fmax(share(stage->rel_l2, stage->allowed_l2), share(stage->max_rel, stage->allowed_max));
    if (broken > 0) stage->headroom = INFINITY;
    int within = stage->rel_l2 <= stage->allowed_l2 && stage->max_rel <= stage->allowed_max;
    stage->verdict = broken == 0 && within ? M3_PASS : M3_FAIL;
}
