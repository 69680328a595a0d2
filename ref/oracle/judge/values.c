#include "oracle/judge/private/values.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/error/tiers/tiers.h"
#include "oracle/judge/hints.h"
#include "oracle/judge/private/floats.h"
#include "oracle/judge/choices/taint.h"

void m3_judge_not_comparable(struct m3_finding *stage, const char *why)
{
    stage->verdict = M3_VERDICT_NOT_COMPARABLE;
    m3_finding_note(stage, "%s", why);
}

enum kind { FINITE, ONE_INFINITE, NOT_A_NUMBER };

static enum kind kind_of(double got, double want)
{
    if (isnan(got)) return NOT_A_NUMBER;
    return (isinf(got) || isinf(want)) && got != want ? ONE_INFINITE : FINITE;
}

/* |got - want| in units of the largest |reference|, in which no relevant square overflows or underflows. */
static double relative(double got, double want, double peak)
{
    if (got == want) return 0;
    return peak > 0 ? fabs(got - want) / peak : INFINITY;
}

/* The measurements of one piece, or of several. */
struct measured {
    double peak;                /* largest finite |reference| */
    double squares_d, squares_r;        /* in units of the unit squared */
    double worst;               /* |d| at the worst place; in that unit too */
    double most;                /* the largest finite |d| */
    enum kind kind;             /* of the worst place */
    int64_t broken, violations;
    int64_t piece, at;          /* worst place; piece -1: none */
    int64_t nan_at;             /* in the reference; -1: none */
};

static struct measured nothing(void) { return (struct measured){ .worst = -1, .piece = -1, .nan_at = -1 }; }

/* Adds one element of any value. unit: 1 or the largest |reference|; limit: of |d| in that unit. */
static void add_element(struct measured *m, double got, double want, double unit, double limit, int64_t at)
{
    const double size = fabs(want);
    if (isnan(want)) {
        if (m->nan_at < 0) m->nan_at = at;
        return;
    }
    if (size > m->peak && !isinf(size)) m->peak = size;
    const enum kind kind = kind_of(got, want);
    const double d = kind == FINITE ? relative(got, want, unit) : INFINITY;
    if (kind > m->kind || (kind == m->kind && d > m->worst)) {
        m->kind = kind;
        m->worst = d;
        m->at = at;
    }
    m->violations += !(d <= limit);
    if (kind != FINITE) {
        m->broken++;
        return;
    }
    m->most = fmax(m->most, d);
    m->squares_d += d * d;
    if (unit > 0 && !isinf(want)) m->squares_r += want / unit * (want / unit);
}

enum { SOME = 512, LANES = 4 };

/* The same for SOME elements at a time, while all are finite and the unit is 1. Returns the number of elements
 * added. */
static int64_t add_finite(struct measured *m, const double *got, const double *want, int64_t n, int64_t at)
{
    double d2[LANES] = { 0 }, r2[LANES] = { 0 }, most[LANES] = { 0 }, peak[LANES] = { 0 };
    const int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            const double r = want[i + k], d = got[i + k] - r, a = fabs(d), b = fabs(r);
            d2[k] += d * d;
            r2[k] += r * r;
            most[k] = a > most[k] ? a : most[k];
            peak[k] = b > peak[k] ? b : peak[k];
        }
    }
    double largest = 0, total = 0;
    for (int k = 0; k < LANES; k++) {
        total += d2[k] + r2[k];         /* NaN and infinities stay in the sum */
        largest = fmax(largest, most[k]);
    }
    if (!(total <= DBL_MAX)) return 0;
    for (int k = 0; k < LANES; k++) {
        m->squares_d += d2[k];
        m->squares_r += r2[k];
        m->peak = fmax(m->peak, peak[k]);
    }
    m->most = fmax(m->most, largest);
    if (m->kind != FINITE || whole == 0 || !(largest > m->worst)) return whole;
    int64_t i = 0;
    while (fabs(got[i] - want[i]) != largest) i++;
    m->worst = largest;
    m->at = at + i;
    return whole;
}

/* The size of the reference's numbers in the whole tap. */
struct scale {
    double peak;                /* largest finite |reference| */
    double mean_square;         /* of the finite ones, in units of peak^2 */
};

/* The parameters shared by all elements. */
struct measuring {
    const struct m3_finding *stage;
    const struct m3_pieces *pieces;
    const struct scale *scale;  /* if not all elements are compared; otherwise NULL */
    double unit, limit;
    int quick;                  /* unit 1, and violations need not be counted */
    enum m3_dtype stored;       /* the reference is rounded to it first; M3_DTYPES: not rounded */
};

static void measure_piece(struct measured *m, const struct measuring *how, const struct m3_piece *piece)
{
    double want[SOME], got[SOME];
    *m = nothing();
    for (int64_t i = 0; i < piece->length; i += SOME) {
        const int64_t n = m3_min(SOME, piece->length - i);
        m3_piece_read(want, got, how->stage, piece, i, n);
        for (int64_t j = 0; how->stored != M3_DTYPES && j < n; j++) want[j] = m3_stored_as(want[j], how->stored);
        for (int64_t j = how->quick ? add_finite(m, got, want, n, i) : 0; j < n; j++)
            add_element(m, got[j], want[j], how->unit, how->limit, i + j);
    }
}

/* Adds the measurements of the next piece. */
static void merge(struct measured *all, const struct measured *m, int64_t piece)
{
    all->squares_d += m->squares_d;
    all->squares_r += m->squares_r;
    all->broken += m->broken;
    all->violations += m->violations;
    all->peak = fmax(all->peak, m->peak);
    all->most = fmax(all->most, m->most);
    if (m->kind > all->kind || (m->kind == all->kind && m->worst > all->worst)) {
        all->kind = m->kind;
        all->worst = m->worst;
        all->piece = piece;
        all->at = m->at;
    }
}

/* Measures piece by piece, on all threads; the sums of the pieces are added in their order. */
static int measure(struct measured *all, const struct measuring *how, struct m3_error *error)
{
    const struct m3_pieces *pieces = how->pieces;
    struct measured *each = malloc(((size_t)pieces->count + 1) * sizeof *each);
    *all = nothing();
    if (each == NULL) return m3_fail_memory(error, how->stage->tap, (size_t)pieces->count * sizeof *each);
#pragma omp parallel for schedule(dynamic, 4) if (pieces->count >= 16)      /* threads cost more than a small tap */
    for (int64_t p = 0; p < pieces->count; p++) measure_piece(&each[p], how, &pieces->all[p]);
    for (int64_t p = 0; p < pieces->count; p++) {
        if (each[p].nan_at >= 0) {
            all->piece = p;
            all->at = all->nan_at = each[p].nan_at;
            break;
        }
        merge(all, &each[p], p);
    }
    free(each);
    return M3_OK;
}

/* Can squares of doubles of this size overflow or underflow? */
static int is_extreme(double size) { return size > 0x1p480 || (size > 0 && size < 0x1p-400); }

/* Measures in units of 1; again in units of the largest |reference| if that matters or violations have to be
 * counted. */
static int measure_stage(struct measured *all, struct measuring *how, struct m3_error *error)
{
    how->unit = 1;
    how->limit = INFINITY;
    how->quick = 1;
    int status = measure(all, how, error);
    if (status != M3_OK || all->nan_at >= 0) return status;
    const double peak = how->scale != NULL ? how->scale->peak : all->peak;
    if (all->broken == 0 && peak > 0 && !is_extreme(peak) && !is_extreme(all->most) &&
        all->most / peak <= how->stage->off.allowed_max) {
        all->most /= peak;
        return M3_OK;
    }
    how->unit = peak;
    how->limit = how->stage->off.allowed_max;
    how->quick = 0;
    return measure(all, how, error);
}

/* The share of the allowance, which is 0 for counts. */
static double share(double measured, double allowed) { return measured == 0 ? 0 : measured / allowed; }

double m3_share_of_allowed(const struct m3_finding *stage, double got, double want)
{
    if (kind_of(got, want) != FINITE) return INFINITY;
    return share(relative(got, want, stage->off.peak), stage->off.allowed_max);
}

/* Sets the verdict from the differences. */
static void settle(struct m3_finding *stage, const struct measured *all, const struct measuring *how, int only_measures)
{
    const struct m3_pieces *pieces = how->pieces;
    double squares_r = all->squares_r;
    stage->off.peak = all->peak;
    if (how->scale != NULL) {
        const double units = how->unit > 0 ? how->scale->peak / how->unit : 0;
        stage->off.peak = how->scale->peak;
        squares_r = how->scale->mean_square * units * units * (double)pieces->elements;
    }
    stage->violations = all->violations;
    stage->off.max_rel = all->most;
    stage->off.rel_l2 = all->squares_d == 0 ? 0 : sqrt(all->squares_d / squares_r);
    m3_piece_show(stage, pieces, &pieces->all[all->piece], all->at);
    stage->tiers.headroom =
        fmax(share(stage->off.rel_l2, stage->off.allowed_l2), share(stage->off.max_rel, stage->off.allowed_max));
    if (all->broken > 0) stage->tiers.headroom = INFINITY;
    int within = stage->off.rel_l2 <= stage->off.allowed_l2 && stage->off.max_rel <= stage->off.allowed_max;
    stage->verdict = all->broken > 0 || !within ? M3_VERDICT_FAIL
                     : only_measures            ? M3_VERDICT_NOT_JUDGED
                                                : M3_VERDICT_PASS;
}

/* Finds NaN in all rows: another computation gives other numbers, but no NaN. */
static int find_nan(struct m3_finding *stage, struct m3_matched matched, struct m3_error *error)
{
    struct m3_span_walk walk;
    struct m3_pieces pieces;
    matched.taint = NULL;
    if (m3_span_walk_begin(&walk, &matched) != NULL) return M3_OK;
    int status = m3_pieces_of(&pieces, walk, stage->tap, error);
    for (int64_t p = 0; status == M3_OK && p < pieces.count && stage->verdict != M3_VERDICT_FAIL; p++) {
        const struct m3_piece *piece = &pieces.all[p];
        for (int64_t i = 0; i < piece->length && stage->verdict != M3_VERDICT_FAIL; i++) {
            if (!isnan(m3_decode(stage->candidate->dtype, stage->candidate->data, piece->got + i))) continue;
            m3_piece_show(stage, &pieces, piece, i);
            stage->violations++;
            stage->tiers.headroom = INFINITY;
            stage->verdict = M3_VERDICT_FAIL;
        }
    }
    m3_pieces_free(&pieces);
    return status;
}

static void judge_grid(struct m3_finding *stage, const struct m3_pieces *pieces, enum m3_dtype stored)
{
    const enum m3_dtype declared = stage->candidate->dtype;
    const double rounding = fmax(0, stage->off.allowed_max - 1e-7) / 4 * stage->off.peak;
    if ((stored != M3_F32 && stored != M3_F64) || (declared != M3_F32 && declared != M3_F64)) return;
    stage->tiers.grid = m3_pieces_grid(stage, pieces, rounding);
    if (stage->tiers.grid == M3_DTYPES) return;
    stage->tiers.tiers |= M3_TIER_GRID;
    stage->verdict = M3_VERDICT_FAIL;
}

/* The scale of a whole tap, on which the tolerance was measured: a few rows may all be small. */
static struct scale scale_of(const struct m3_tensor *tensor)
{
    const struct m3_weight all = { .data = tensor->data, .dtype = tensor->dtype, .rows = 1, .cols = tensor->count };
    struct scale scale = { 0 };
    int64_t finite = 0;
    double values[SOME], squares = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t at = 0, n; at < tensor->count; at += n) {
            n = m3_min(SOME, tensor->count - at);
            m3_expand_f64(values, &all, 0, at, n);
            for (int64_t i = 0; i < n; i++) {
                const double size = fabs(values[i]);
                if (!(size < INFINITY)) continue;
                if (pass == 0) scale.peak = fmax(scale.peak, size);
                else if (scale.peak > 0) squares += size / scale.peak * (size / scale.peak);
                finite += pass;
            }
        }
    scale.mean_square = finite > 0 ? squares / (double)finite : 0;
    return scale;
}

static int judge_pieces(struct m3_finding *stage, const struct m3_pieces *pieces, const struct m3_float_rules *rules,
                        struct m3_error *error)
{
    struct measured all;
    struct scale scale;
    struct measuring how = { .stage = stage, .pieces = pieces, .stored = rules->exact ? rules->stored : M3_DTYPES };
    if (pieces->elements < stage->reference->count && !m3_holds_ids(stage->reference)) {
        scale = scale_of(stage->reference);
        how.scale = &scale;
    }
    int status = measure_stage(&all, &how, error);
    if (status != M3_OK) return status;
    if (all.nan_at >= 0) {
        m3_piece_show(stage, pieces, &pieces->all[all.piece], all.at);
        m3_judge_not_comparable(stage, "NaN in the reference");
        return M3_OK;
    }
    settle(stage, &all, &how, rules->only_measures);
    if (m3_holds_ids(stage->reference)) return M3_OK;
    if (!rules->exact && !rules->only_measures && !rules->any_grid) judge_grid(stage, pieces, rules->stored);
    const double rms = how.unit * sqrt(all.squares_r / (double)pieces->elements);
    status = m3_stage_precision(stage, pieces, error);
    if (pieces->elements > M3_PRECISION_ELEMENTS && rms > 0)
        stage->off.quantiles[M3_QUANTILES - 1] = all.most * stage->off.peak / rms;
    return status;
}

int m3_judge_values(struct m3_finding *stage, const struct m3_matched *matched, const struct m3_float_rules *rules,
                    struct m3_error *error)
{
    int counts = m3_tap_table[matched->tap].kind == M3_KIND_COUNTS;
    int (*fits)(const struct m3_tensor *) = counts ? m3_holds_ids : m3_holds_floats;
    if (!fits(matched->want) || !fits(matched->got)) {
        m3_judge_not_comparable(stage, counts ? "not an integer dtype" : "not a float dtype");
        return M3_OK;
    }
    struct m3_span_walk walk;
    const char *why = m3_span_walk_begin(&walk, matched);
    if (why != NULL) {
        const struct m3_tensor *want = matched->want;
        if (matched->refused != NULL) why = matched->refused;
        else why = m3_shape_hint(want->rank, want->shape, matched->got, why);
        m3_judge_not_comparable(stage, why);
        return M3_OK;
    }
    struct m3_pieces pieces;
    int status = m3_pieces_of(&pieces, walk, stage->tap, error);
    if (status != M3_OK) return status;
    stage->elements = pieces.elements;
    stage->rows_left_out = pieces.rows_left_out;
    if (pieces.elements == 0) {
        stage->verdict = M3_VERDICT_NOT_JUDGED;
        m3_finding_note(stage, "%s", stage->rows_left_out > 0 ? "follows from other choices" : "no element to compare");
    } else {
        status = judge_pieces(stage, &pieces, rules, error);
    }
    m3_pieces_free(&pieces);
    if (status == M3_OK && stage->rows_left_out > 0 && stage->verdict != M3_VERDICT_NOT_COMPARABLE)
        status = find_nan(stage, *matched, error);
    return status;
}
