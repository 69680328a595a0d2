#include "oracle/error/tiers/tiers.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/bounds.h"
#include "oracle/error/private/kernels.h"

enum { FEW = 256, GRID_LEAST = 64 };

/* The allowance of one element, and the variance of a legitimate error. */
struct allowance {
    double hard, probable, variance;
};

/* Sums over the elements of a tap. */
struct sums {
    double z2, largest_z2, e, e2, share;
    double rows2;       /* of the sum of e of each row */
    int64_t with_sigma, with_bound;
};

const char *m3_tier_name(enum m3_tier tier)
{
    static const char *const names[M3_TIERS] = { "hard",     "grid", "suspect",   "walk",
                                                 "variance", "bias", "parameter", "mistake" };
    int i = 0;
    while (i + 1 < M3_TIERS && (1 << i) < (int)tier) i++;
    return names[i];
}

int m3_element_ok(double candidate, double reference, double allowed)
{
    if (isinf(reference) || isinf(candidate)) return candidate == reference;    /* before Inf - Inf, which is NaN */
    return fabs(candidate - reference) <= allowed;
}

/* ---- numbers of a coarser format */

/* x = m 2^exponent with 1/2 <= |m| < 1, as frexp gives it; x is finite and not 0. */
static int exponent_of(double x)
{
    const int field = (int)(m3_bits(x) >> 52 & 0x7ff);
    int exponent;
    if (field > 0) return field - 1022;
    frexp(x, &exponent);
    return exponent;
}

/* The exponent of the last bit that is not 0; x is finite and not 0. */
static int last_bit_of(double x)
{
    const uint64_t bits = m3_bits(x);
    const int field = (int)(bits >> 52 & 0x7ff);
    const uint64_t hidden = (uint64_t)(field > 0) << 52, mantissa = (bits & ((UINT64_C(1) << 52) - 1)) | hidden;
    return (field > 0 ? field : 1) - 1075 + __builtin_ctzll(mantissa);
}

/* The exponent of the last bit that a number of this size has in a format of so many bits. */
static int last_of_format(double x, int bits, int least)
{
    const int last = exponent_of(x) - bits;
    return last < least ? least : last;
}

/* Does x have at most `bits` significant bits, the last of them at least 2^least? */
static int on_grid(double x, int bits, int least)
{
    if (x == 0 || !isfinite(x)) return x == x;
    return last_bit_of(x) >= last_of_format(x, bits, least);
}

static const struct {
    enum m3_dtype dtype;
    int bits, least;
    double largest;
} formats[] = {
    { M3_BF16, 8, -133, 0x1.fep127 },
    { M3_F16, 11, -24, 65504 },
    { M3_F32, 24, -149, 0x1.fffffep127 },
    { M3_F64, 53, -1074, 0x1.fffffffffffffp1023 },
};

static int format_of(enum m3_dtype dtype)
{
    for (int i = 0; i < 4; i++)
        if (formats[i].dtype == dtype) return i;
    return 3;
}

int m3_on_grid(double x, enum m3_dtype dtype)
{
    return on_grid(x, formats[format_of(dtype)].bits, formats[format_of(dtype)].least);
}

double m3_stored_as(double x, enum m3_dtype dtype)
{
    if (dtype == M3_F32) return (double)(float)x;
    if (dtype == M3_F64 || x == 0 || !isfinite(x)) return x;
    const int format = format_of(dtype), last = last_of_format(x, formats[format].bits, formats[format].least);
    const double y = ldexp(nearbyint(ldexp(x, -last)), last);       /* to nearest, ties to even */
    return fabs(y) > formats[format].largest ? copysign(INFINITY, x) : y;
}

/* After cancellation a correctly computed sum has few bits too: it is a multiple of the common factor of its terms. A
 * coarse number is significant only where the coarser format's spacing is far above the rounding of a partial sum. */
static int grid_tells(double c, double rounding, int bits)
{
    if (rounding == 0 || c == 0) return rounding == 0;
    const int spacing = exponent_of(c) - bits;
    const double size = spacing > -1023 ? m3_from_bits((uint64_t)(spacing + 1023) << 52) : ldexp(1, spacing);
    return size >= 16 * rounding;
}

int m3_grid_tells(double c, double rounding, enum m3_dtype dtype)
{
    return grid_tells(c, rounding, formats[format_of(dtype)].bits);
}

/* Elements [first, end) one by one. */
static void count_on_grid(struct m3_grid_counts *to, const struct m3_two_sides *tap, int bits, int least, int64_t first,
                          int64_t end)
{
    for (int64_t i = first; i < end; i++) {
        double c = tap->candidate[i], r = tap->reference[i];
        if (!isfinite(c) || !isfinite(r) || !grid_tells(c, tap->u * tap->bound[i], bits)) continue;
        to->telling++;
        to->off += !on_grid(c, bits, least);
        to->reference_off += !on_grid(m3_stored_as(r, tap->stored), bits, least);
    }
}

static int all_on_grid(const struct m3_two_sides *tap, int format)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    const int bits = formats[format].bits, least = formats[format].least;
    struct m3_grid_counts counts = { 0 };
    for (int64_t first = 0, n; first < tap->count && counts.off == 0; first += n) {
        n = m3_min(M3_PIECE, tap->count - first);
        if (!kernels->grid(&counts, tap, bits, least, first, n))
            count_on_grid(&counts, tap, bits, least, first, first + n);
    }
    return counts.off == 0 && counts.telling >= GRID_LEAST && counts.reference_off > 0;
}

enum m3_dtype m3_coarser_grid(const struct m3_two_sides *tap)
{
    if (tap->stored != M3_F32 && tap->stored != M3_F64) return M3_DTYPES;
    for (int i = 0; i < 2; i++)
        if (all_on_grid(tap, i)) return formats[i].dtype;
    return M3_DTYPES;
}

/* ---- elements */

static double steps_of(const struct m3_two_sides *tap) { return (double)(tap->n + tap->f) * (tap->truncates ? 2 : 1); }

static struct m3_allowing allowing(const struct m3_two_sides *tap, double lambda)
{
    const double steps = steps_of(tap), u = tap->u;
    const double eta = tap->flushes && u > 0x1p-53 ? 0x1p-126 : m3_bound_eta(u);
    return (struct m3_allowing){
        .u = u,
        .u_steps = u * steps,
        .own_steps = 0x1p-53 * steps,
        .roundings = (lambda * sqrt((double)tap->n) + (double)tap->f) * (tap->truncates ? 2 : 1),
        .underflow = steps * eta,
        .underflow_variance = steps * eta * eta,
        .u2_walk = u * u + 0x1p-106,
        .lambda = lambda,
    };
}

/* For a double candidate the reference has the same errors as the candidate. */
static struct allowance allowance_of(const struct m3_two_sides *tap, const struct m3_allowing *k, int64_t i)
{
    const double B = tap->bound[i], r = tap->reference[i];
    double rest = m3_allowed_rest(k, B, tap->extra ? tap->extra[i] : 0);
    double variance = tap->extra_variance ? tap->extra_variance[i] : 0;
    if (tap->reference_f32) {
        rest += 0x1p-24 * fabs(r) + 0x1p-150;
        variance += 0x1p-48 * r * r / 3;
    }
    struct allowance a = { .hard = k->u_steps * B + rest };
    a.probable = m3_smaller(k->u * (tap->suspect ? tap->suspect[i] : k->roundings * B) + rest, a.hard);
    if (tap->walk) a.variance = m3_allowed_variance(k, B, tap->walk[i], variance);
    return a;
}

static int is_sound(const struct m3_two_sides *tap, int64_t i, const struct allowance *a)
{
    return tap->bound[i] >= 0 && a->hard >= 0 && isfinite(a->hard) && isfinite(a->probable) && isfinite(a->variance);
}

static void note_worst(struct m3_tier_result *result, int64_t i, int ok, double share)
{
    const int is_larger = share > result->headroom;
    const int replaces = ok ? result->hard == 0 && (result->worst < 0 || is_larger)
                            : result->hard == 1 || is_larger;          /* the first refused one replaces all others */
    if (!replaces) return;
    result->worst = i;
    result->headroom = share;
}

static void judge_element(struct m3_tier_result *result, struct sums *sums, const struct m3_two_sides *tap, int64_t i,
                          const struct allowance *a)
{
    double c = tap->candidate[i], r = tap->reference[i], d = c - r, B = tap->bound[i];
    int finite = isfinite(c) && isfinite(r), unproven = result->no_hard_bound && finite && B > 0;
    int ok = unproven || m3_element_ok(c, r, a->hard);
    double size = finite ? fabs(d) : ok ? 0 : INFINITY;
    double share = size == 0 ? 0 : a->hard > 0 ? size / a->hard : INFINITY;
    result->judged++;
    result->hard += !ok;
    result->suspect += !m3_element_ok(c, r, a->probable);
    note_worst(result, i, ok, share);
    if (!finite) {
        result->walk += !ok;
        return;
    }
    if (B > 0) {
        double e = d / (tap->u * B);
        sums->e += e;
        sums->e2 += e * e;
        sums->share += fabs(r) / B;
        sums->with_bound++;
    }
    if (tap->walk && a->variance > 0) {
        double z2 = d * d / a->variance;
        sums->z2 += z2;
        sums->with_sigma++;
        if (!(z2 <= sums->largest_z2)) sums->largest_z2 = z2;
    }
    double deviation = result->lambda * sqrt(3 * a->variance);
    if (tap->walk) result->walk += !m3_element_ok(c, r, deviation < a->hard ? deviation : a->hard);
}

/* Elements [first, end) one by one. Returns 0, or the reason why the tap cannot be judged. */
static int judge_one_by_one(struct m3_tier_result *result, struct sums *sums, const struct m3_two_sides *tap,
                            const struct m3_allowing *k, int64_t first, int64_t end)
{
    const double largest = formats[format_of(tap->stored)].largest;
    const int may_overflow = tap->stored != M3_F16;         /* its range is so small that a program has to mind it */
    for (int64_t i = first; i < end; i++) {
        double c = tap->candidate[i], r = tap->reference[i];
        if (isnan(r)) {
            result->verdict = M3_VERDICT_NOT_COMPARABLE;
            return 1;
        }
        struct allowance a = { 0 };
        if (isfinite(r)) {
            a = allowance_of(tap, k, i);
            if (!is_sound(tap, i, &a)) {
                result->status = M3_INTERNAL;
                result->verdict = M3_VERDICT_NOT_COMPARABLE;
                result->worst = i;
                return 1;
            }
            if (isinf(c) && may_overflow && signbit(c) == signbit(r) && fabs(r) + a.hard > largest) {
                result->not_judged++;
                continue;
            }
        }
        judge_element(result, sums, tap, i, &a);
    }
    return 0;
}

/* ---- many elements at a time */

/* In the order of the elements: the sums have the bits of judge_element. */
static void add_terms(struct m3_tier_result *result, struct sums *sums, const struct m3_terms *t, int64_t first,
                      int64_t n)
{
    struct sums s = *sums;
    for (int64_t i = 0; i < n; i++) {
        s.e += t->e[i];
        s.e2 += t->e[i] * t->e[i];
        s.share += t->ratio[i];
        s.z2 += t->z2[i];
        if (t->z2[i] > s.largest_z2) s.largest_z2 = t->z2[i];
        note_worst(result, first + i, 1, t->share[i]);
    }
    s.with_bound += (int64_t)t->with_bound;
    s.with_sigma += (int64_t)t->with_sigma;
    *sums = s;
    result->judged += n;
}

static int judge_elements(struct m3_tier_result *result, struct sums *sums, const struct m3_two_sides *tap)
{
    const struct m3_error_kernels *kernels = m3_error_kernels();
    const struct m3_allowing k = allowing(tap, result->lambda);
    const int has_terms = tap->walk && !tap->suspect && !tap->reference_f32;
    struct m3_terms terms;
    int is_over = 0;
    for (int64_t first = 0, n; first < tap->count && !is_over; first += n) {
        n = m3_min(M3_PIECE, tap->count - first);
        if (has_terms && kernels->terms(&terms, tap, &k, first, n)) add_terms(result, sums, &terms, first, n);
        else is_over = judge_one_by_one(result, sums, tap, &k, first, first + n);
    }
    result->largest_z = sqrt(sums->largest_z2);
    return is_over;
}

/* ---- the tap */

/* The same, row by row, without rows that are like others. */
static struct sums sums_of_rows(const struct m3_two_sides *tap, double lambda)
{
    const struct m3_allowing k = allowing(tap, lambda);
    struct m3_tier_result ignored = { .lambda = lambda };
    struct sums sums = { 0 };
    for (int64_t first = 0; first < tap->count; first += tap->width) {
        const double before = sums.e;
        if (tap->repeated && tap->repeated[first / tap->width]) continue;
        judge_one_by_one(&ignored, &sums, tap, &k, first, first + tap->width);
        sums.rows2 += (sums.e - before) * (sums.e - before);
    }
    return sums;
}

static int has_repeated(const struct m3_two_sides *tap)
{
    return tap->repeated && memchr(tap->repeated, 1, (size_t)(tap->count / tap->width));
}

/* How many elements of a row are as good as one, because they share roundings, as weights that were divided by one sum
 * do. A few rows cannot tell. */
static double shared_in_rows(const struct m3_two_sides *tap, double lambda)
{
    enum { FEW_ROWS = 32 };
    if (tap->width <= 0 || tap->count / tap->width < FEW_ROWS) return 1;
    const struct sums rows = sums_of_rows(tap, lambda);
    return fmax(1, rows.rows2 / rows.e2);
}

/* Independent roundings of +-u B each give n / 3 in the mean square; the limit is 0.4. 2 sqrt is 3.5 deviations. Few
 * elements are not independent: the weights of a row share their sum. Where nothing is summed, a rounded constant such
 * as alpha legitimately biases the errors to one side. */
static void judge_sums(struct m3_tier_result *result, const struct m3_two_sides *tap, const struct sums *sums)
{
    double steps = steps_of(tap), count = (double)sums->with_bound, all_steps = count * steps;
    if (sums->with_sigma > 0) result->z2 = sums->z2 / (double)sums->with_sigma;
    if (sums->with_sigma >= FEW && !(result->z2 <= 4)) result->tiers |= M3_TIER_WALK;
    if (sums->with_bound < FEW || steps <= 1 || tap->extra) return;
    result->variance = sums->e2 / (0.4 * all_steps);
    if (!(result->variance <= 1)) result->tiers |= M3_TIER_VARIANCE;
    if (tap->truncates || tap->n == 0 || !(sums->share / count * sqrt((double)tap->n) <= 3)) return;
    result->bias = fabs(sums->e) / (2 * sqrt(all_steps));
    if (result->bias > 1) result->bias /= sqrt(shared_in_rows(tap, result->lambda));
    if (!(result->bias <= 1)) result->tiers |= M3_TIER_BIAS;
}

struct m3_tier_result m3_verdict_of(const struct m3_two_sides *tap)
{
    struct m3_tier_result result = { .worst = -1, .grid = M3_DTYPES, .z2 = NAN, .variance = NAN, .bias = NAN };
    struct sums sums = { 0 };
    result.lambda = m3_lambda(tap->count > 0 ? tap->count : 1);
    result.no_hard_bound = steps_of(tap) * tap->u >= 1;
    if (judge_elements(&result, &sums, tap)) return result;
    if (has_repeated(tap)) sums = sums_of_rows(tap, result.lambda);
    if (result.judged == 0) {
        result.verdict = M3_VERDICT_NOT_JUDGED;
        return result;
    }

    if (result.hard > 0) result.tiers |= M3_TIER_HARD;
    if (result.suspect > 0) result.tiers |= M3_TIER_SUSPECT;
    if (result.walk > 0) result.tiers |= M3_TIER_WALK;
    judge_sums(&result, tap, &sums);
    result.grid = m3_coarser_grid(tap);
    if (result.grid != M3_DTYPES) result.tiers |= M3_TIER_GRID;
    result.tiers &= ~tap->tiers_off;
    int failing = result.tiers & (M3_TIER_HARD | M3_TIER_GRID);
    result.verdict = failing ? M3_VERDICT_FAIL : result.tiers ? M3_VERDICT_SUSPECT : M3_VERDICT_PASS;
    return result;
}

int m3_verdict_is_better(const struct m3_tier_result *other, const struct m3_tier_result *than)
{
    const int is_verdict = other->verdict == M3_VERDICT_PASS || other->verdict == M3_VERDICT_SUSPECT;
    if (other->status || other->judged < than->judged || !is_verdict) return 0;
    return other->verdict == M3_VERDICT_PASS ? than->verdict != M3_VERDICT_PASS : than->verdict == M3_VERDICT_FAIL;
}
