/* What is wrong with one tap, in words: its place, both values, by how much; or why it has no verdict. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/judge/align.h"
#include "oracle/report/private/format.h"

/* ---- place and values */

/* "sequence 2, row 17 ", the first of them 0; nothing if there is one sequence. */
static void print_sequence(FILE *out, int64_t in_sequence, int64_t row)
{
    if (in_sequence == 0) return;
    fprintf(out, "sequence %" PRId64 ", row %" PRId64 " ", in_sequence - 1, row);
}

void m3_print_place(FILE *out, const struct m3_finding *f)
{
    if (f->rank == 0) return;
    const char *letters = f->letters != NULL ? f->letters : f->id != M3_TAPS ? m3_tap_table[f->id].shape : "";
    const int known = (int)strlen(letters) == f->reference->rank;
    print_sequence(out, f->in_sequence, f->index[0]);
    for (int i = 0; i < f->rank; i++) {
        fputs(i == 0 ? "[" : ", ", out);
        if (known) fprintf(out, "%c=", tolower((unsigned char)letters[i]));
        fprintf(out, "%" PRId64, f->index[i]);
    }
    fputs("]", out);
}

/* A value and its bits, with enough digits to distinguish it from its neighbours. */
static void print_value(FILE *out, const char *side, double value, enum m3_dtype dtype)
{
    if (dtype == M3_F64) {
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        fprintf(out, "%s %.17g (%016" PRIx64 ")", side, value, bits);
        return;
    }
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    fprintf(out, "%s %.9g (%08" PRIx32 ")", side, value, bits);
}

static void print_tensor(FILE *out, const char *side, const struct m3_tensor *tensor)
{
    fprintf(out, "%s [", side);
    for (int i = 0; i < tensor->rank; i++) fprintf(out, "%s%" PRId64, i > 0 ? "," : "", tensor->shape[i]);
    fprintf(out, "] %s", m3_dtype_name(tensor->dtype));
}

static void print_values(FILE *out, const struct m3_finding *f)
{
    print_value(out, "  got", f->got, f->candidate->dtype);
    print_value(out, "  want", f->want, f->reference->dtype);
}

int m3_is_without_result(const struct m3_finding *f)
{
    return f->verdict == M3_VERDICT_FAIL && f->rank == 0 && f->elements == 0 && f->rows == 0;
}

/* Why a tap has no verdict: its place, or otherwise the tensors. */
static void print_reason(FILE *out, const struct m3_finding *f)
{
    fputs(f->note, out);
    if (m3_is_without_result(f)) return;
    if (f->rows_left_out > 0 && f->elements == 0) {
        if (f->rows_left_out > 1) fprintf(out, ", all %" PRId64 " rows", f->rows_left_out);
        return;
    }
    if (f->rank > 0) {
        fputs(" at ", out);
        m3_print_place(out, f);
        if (!f->selection) print_values(out, f);
        return;
    }
    print_tensor(out, ": got", f->candidate);
    print_tensor(out, ", expected", f->reference);
}

void m3_print_precision(FILE *out, const struct m3_finding *f)
{
    fprintf(out, "|d| over rms, quantiles:");
    for (int k = 0; k < M3_QUANTILES; k++) fprintf(out, " %g%% %.2g", 100 * m3_quantiles[k], f->off.quantiles[k]);
    if (f->off.effective[0] != '\0') fprintf(out, "; looks like: %s", f->off.effective);
}

/* ---- choices */

int64_t m3_decisions(const struct m3_finding *f) { return f->made_by != NULL ? f->elements : f->rows; }

int64_t m3_differing(const struct m3_finding *f)
{
    return f->choices[M3_CHOICE_TIE] + f->choices[M3_CHOICE_ADMISSIBLE] + f->choices[M3_CHOICE_INADMISSIBLE];
}

void m3_print_choices(FILE *out, const struct m3_finding *f)
{
    const int64_t decisions = m3_decisions(f);
    if (f->rank == 0 && f->choice == M3_CHOICE_INADMISSIBLE) {
        fprintf(out, "inadmissible: %s", f->note);
        return;
    }
    fprintf(out, "%s: %" PRId64 " of %" PRId64 " %s, %" PRId64 " permuted", m3_choice_text(f->choice), m3_differing(f),
            decisions, decisions == 1 ? "set differs" : "sets differ", f->choices[M3_CHOICE_PERMUTED]);
    if (f->tainted > 0) fprintf(out, "; %" PRId64 " more follow from other choices and are not judged", f->tainted);
    if (isfinite(f->least_gap))
        fprintf(out, "; least gap %.3g of its bound, scores of the %s", f->least_gap, f->scores);
}

static const char *noun_of(const struct m3_finding *f)
{
    if (!m3_holds_ids(f->reference)) return "token";
    return f->reference->rank == 3 ? "block" : "expert";
}

static void print_wrong_choice(FILE *out, const struct m3_finding *f)
{
    fprintf(out, "  %s %.0f in place of %.0f: ", noun_of(f), f->got, f->want);
    if (f->made_by != NULL) fputs(f->note, out);
    else fprintf(out, "INADMISSIBLE, %s", f->note);
    if (f->made_by != NULL && !isnan(f->gap))
        fprintf(out, ", scores %s and %.3gx their bounds apart", f->scores, f->gap);
    else if (!isnan(f->gap)) fprintf(out, ", gap %.3g, bound %.3g, scores of the %s", f->gap, f->bound, f->scores);
    fprintf(out, "; %" PRId64 " of %" PRId64, f->choices[M3_CHOICE_INADMISSIBLE], m3_decisions(f));
}

/* ---- values */

/* By how much the operator's bound, or the tolerance of a whole pass, is exceeded. */
static void print_wrong_values(FILE *out, const struct m3_finding *f)
{
    const double share = f->n < 0 ? f->off.max_rel / f->off.allowed_max : f->tiers.headroom;
    print_values(out, f);
    if (isnan(f->got)) fputs("  NaN", out);
    else if (isinf(f->got) || isinf(f->want)) fputs("  infinite on one side", out);
    else if (!isfinite(share)) fputs("  nothing is allowed", out);
    else fprintf(out, "  %.3g%% of allowed", 100 * share);
    fprintf(out, "; %" PRId64 " of %" PRId64, f->violations, f->elements);
    const double l2 = f->off.rel_l2 / f->off.allowed_l2;
    if (f->n < 0 && !(f->off.rel_l2 <= f->off.allowed_l2) && isfinite(l2))
        fprintf(out, "; rel L2 %.3g%% of allowed", 100 * l2);
    if (f->tiers.tiers != 0) fputs("; ", out);
    m3_print_tiers(out, f->tiers.tiers, ", ");
    if (f->tiers.grid != M3_DTYPES) fprintf(out, ": all values are numbers of %s", m3_dtype_name(f->tiers.grid));
    m3_print_parameter(out, &f->tiers.parameter);
}

/* "percentile 62 of legitimate implementations (median 1e-3, largest 2e-3)" */
static void print_rank(FILE *out, const struct m3_finding *f)
{
    if (f->beyond_envelope)
        fprintf(out, "rel L2 %.3g is more than twice the farthest legitimate implementation", f->off.rel_l2);
    else fprintf(out, "percentile %.3g of legitimate implementations", f->percentile);
    fprintf(out, " (median %.3g, largest %.3g)", f->envelope_median, f->envelope_largest);
}

static void print_nearest(FILE *out, const struct m3_finding *f)
{
    if (isfinite(f->row_nearest))
        fprintf(out, "; from the nearest of them by %.3g, they from each other by at most %.3g", f->row_nearest,
                f->row_nearest_largest);
}

static void print_compared(FILE *out, const struct m3_finding *f)
{
    if (f->judged_by == M3_BY_ROWS) print_values(out, f);
    else print_wrong_values(out, f);
    if (!isnan(f->row_error)) {
        fprintf(out, "; the 75%% quantile of the rows' errors is %.3g, in honest implementations at most %.3g",
                f->row_error, f->row_error_largest);
        print_nearest(out, f);
    }
    if (f->note[0]) fprintf(out, "; %s", f->note);
    if (isnan(f->percentile)) return;
    fputs("; ", out);
    print_rank(out, f);
}

static void print_recomputed_values(FILE *out, const struct m3_finding *f)
{
    if (f->judged_by == M3_BY_ROWS) {
        fputs(f->note, out);
        print_nearest(out, f);
        return;
    }
    fprintf(out, "  got %.9g  want %.9g  ", f->got, f->want);
    if (isfinite(f->tiers.headroom)) fprintf(out, "%.3g%% of allowed", 100 * f->tiers.headroom);
    else fputs(isnan(f->got) ? "NaN" : "nothing is allowed", out);
    fprintf(out, "; %" PRId64 " of %" PRId64 ";", f->violations, f->elements);
    if (f->tiers.tiers != 0) fputc(' ', out);
    m3_print_tiers(out, f->tiers.tiers, " ");
    m3_print_parameter(out, &f->tiers.parameter);
    if (f->note[0]) fprintf(out, "; %s", f->note);
}

void m3_print_other_operators(FILE *out, const struct m3_finding *f, const char *one, const char *several)
{
    if (f->operators == 2) fprintf(out, "; %s %s, which was not dumped", one, f->since);
    else if (f->operators > 2)
        fprintf(out, "; %s the %" PRId64 " operators from %s on that were not dumped", several, f->operators - 1,
                f->since);
}

static void print_recomputed(FILE *out, const struct m3_finding *f)
{
    if (!m3_is_judged(f->verdict)) {
        fputs(f->note, out);
        return;
    }
    m3_print_place(out, f);
    if (f->selection && f->rank == 0) fprintf(out, "  %s", f->note);
    else if (f->selection) print_wrong_choice(out, f);
    else print_recomputed_values(out, f);
    m3_print_other_operators(out, f, "with the operator of", "with");
    fprintf(out, "  (%s, SPEC %s)", f->made_by, f->section);
}

void m3_print_finding(FILE *out, const struct m3_finding *f)
{
    if (f->made_by != NULL) {
        print_recomputed(out, f);
        return;
    }
    if (!m3_is_judged(f->verdict) || m3_is_without_result(f) || (f->selection && f->rank == 0)) {
        print_reason(out, f);
        return;
    }
    m3_print_place(out, f);
    if (f->selection) print_wrong_choice(out, f);
    else print_compared(out, f);
}
