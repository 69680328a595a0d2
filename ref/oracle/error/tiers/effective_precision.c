#include "oracle/error/tiers/effective_precision.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/error/tiers/tiers.h"

/* The root mean square of one rounding error, in u. */
#define ROUNDING 0.4245
/* Errors below this share of the errors of storing, in the mean square, are invisible. */
#define HIDDEN 0.2

enum { LEAST_OCTAVE = -160, FEW = 64 };

static const enum m3_dtype grids[2] = { M3_BF16, M3_F16 };

/* ---- quantiles */

/* The bin of a size: 32 equal parts of each octave; -1: below all bins. */
static int bin_of(double size)
{
    int exponent;
    int part = (int)((frexp(size, &exponent) - 0.5) * 2 * M3_OCTAVE_BINS);
    int octave = exponent - 1 - LEAST_OCTAVE;
    if (octave >= M3_OCTAVES) return M3_OCTAVES * M3_OCTAVE_BINS - 1;
    return octave < 0 ? -1 : octave * M3_OCTAVE_BINS + part;
}

static double end_of_bin(int bin)
{
    return ldexp(1 + (bin % M3_OCTAVE_BINS + 1) / (double)M3_OCTAVE_BINS, LEAST_OCTAVE + bin / M3_OCTAVE_BINS);
}

void m3_errors_add(struct m3_errors *errors, const double *reference, const double *candidate, int64_t count)
{
    errors->count += count;
    for (int64_t i = 0; i < count; i++) {
        double r = reference[i], size = isinf(r) && candidate[i] == r ? 0 : fabs(candidate[i] - r);
        if (isfinite(r)) {
            errors->squares += r * r;
            errors->finite++;
        }
        if (!isfinite(size)) {
            errors->wild++;
            continue;
        }
        int bin = size > 0 ? bin_of(size) : -1;
        if (bin < 0) errors->zeros++;
        else errors->bins[bin]++;
        if (size > errors->largest) errors->largest = size;
    }
}

void m3_errors_merge(struct m3_errors *errors, const struct m3_errors *more)
{
    for (int i = 0; i < M3_OCTAVES * M3_OCTAVE_BINS; i++) errors->bins[i] += more->bins[i];
    errors->zeros += more->zeros;
    errors->wild += more->wild;
    errors->count += more->count;
    errors->finite += more->finite;
    errors->squares += more->squares;
    if (more->largest > errors->largest) errors->largest = more->largest;
}

/* The upper end of the bin in which the share is reached; infinite if that is among the wild elements. */
static double size_at(const struct m3_errors *errors, double share)
{
    double wanted = ceil(share * (double)errors->count);
    int64_t seen = errors->zeros;
    if ((double)seen >= wanted) return errors->largest < ldexp(1, LEAST_OCTAVE) ? errors->largest : 0;
    if ((double)(errors->count - errors->wild) < wanted) return INFINITY;
    for (int i = 0; i < M3_OCTAVES * M3_OCTAVE_BINS; i++) {
        seen += errors->bins[i];
        if ((double)seen < wanted) continue;
        return i < M3_OCTAVES * M3_OCTAVE_BINS - 1 ? fmin(end_of_bin(i), errors->largest) : errors->largest;
    }
    return INFINITY;
}

double m3_errors_quantile(const struct m3_errors *errors, double share)
{
    if (errors->count == 0) return NAN;
    double size = size_at(errors, share), rms = sqrt(errors->squares / (double)errors->finite);
    if (size == 0) return 0;
    return errors->finite > 0 && rms > 0 ? size / rms : INFINITY;
}

/* ---- shapes */

static void weigh(struct m3_precision_sums *sums, enum m3_shape shape, double d2, double r2, double sigma2)
{
    int of_sigma, of_product;
    double product = sums->shapes[shape].mantissa;
    product = frexp((product == 0 ? 1 : product) * frexp(sigma2, &of_sigma), &of_product);
    sums->shapes[shape].mantissa = product;
    sums->shapes[shape].exponent += of_sigma + of_product;
    sums->shapes[shape].z2 += d2 / sigma2;
    sums->shapes[shape].stored += r2 / sigma2;
}

void m3_precision_add(struct m3_precision_sums *sums, const double *reference, const double *candidate,
                      const double *walk, const double *squares, int64_t count)
{
    sums->has_walk = walk != NULL;
    sums->has_squares = squares != NULL;
    for (int64_t i = 0; i < count; i++) {
        double r = reference[i], c = candidate[i], d2 = (c - r) * (c - r), r2 = r * r;
        double walk2 = walk ? walk[i] * walk[i] : 1, input2 = squares ? 2 * squares[i] : 1;
        if (!isfinite(d2) || !(r2 > 0 && walk2 > 0 && input2 > 0)) continue;
        sums->count++;
        sums->errors += d2 > 0;
        weigh(sums, M3_SHAPE_STORE, d2, r2, r2);
        if (walk) weigh(sums, M3_SHAPE_ACC, d2, r2, walk2);
        if (squares) weigh(sums, M3_SHAPE_INPUT, d2, r2, input2);
        for (int g = 0; g < 2; g++) {
            sums->off_grid[g] += !m3_on_grid(c, grids[g]);
            sums->reference_off[g] += !m3_on_grid((double)(float)r, grids[g]);
        }
    }
}

void m3_precision_merge(struct m3_precision_sums *sums, const struct m3_precision_sums *more)
{
    for (int s = 0; s < M3_SHAPES; s++) {
        int exponent = 0;
        double a = sums->shapes[s].mantissa, b = more->shapes[s].mantissa;
        sums->shapes[s].mantissa = a == 0 || b == 0 ? a + b : frexp(a * b, &exponent);
        sums->shapes[s].exponent += more->shapes[s].exponent + exponent;
        sums->shapes[s].z2 += more->shapes[s].z2;
        sums->shapes[s].stored += more->shapes[s].stored;
    }
    for (int g = 0; g < 2; g++) {
        sums->off_grid[g] += more->off_grid[g];
        sums->reference_off[g] += more->reference_off[g];
    }
    sums->count += more->count;
    sums->errors += more->errors;
    sums->has_walk |= more->has_walk;
    sums->has_squares |= more->has_squares;
}

void m3_precision_squares(double *squares, const double *reference, const double *walk, int64_t n, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double r = reference[i], rest = walk[i] * walk[i] - ((double)n / 3 + 1) * r * r;
        squares[i] = rest > 0 ? rest / ((double)n / 6 + 1) : 0;
    }
}

/* ---- the verdict in words */

static const struct {
    double bits;
    const char *names[M3_SHAPES];           /* NULL: that shape is not known */
} formats[] = {
    { -3, { "e5m2", NULL, "e5m2" } },   { -4, { "e4m3", NULL, "e4m3" } },
    { -8, { "bf16", "bf16", "bf16" } }, { -11, { "fp16", "fp16", "tf32 or fp16" } },
    { -14, { NULL, "14-bit", NULL } },
};

/* The format with the nearest roundoff within one bit, or the number itself. */
static const char *format_name(char *space, size_t size, double u, enum m3_shape shape)
{
    double nearest = 1;
    const char *name = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        double away = fabs(log2(u) - formats[i].bits);
        if (formats[i].names[shape] == NULL || !(away <= nearest)) continue;
        nearest = away;
        name = formats[i].names[shape];
    }
    if (name) return name;
    snprintf(space, size, "u = 2^%.1f", log2(u));
    return space;
}

static void say(struct m3_precision *p, enum m3_shape best)
{
    static const char *const words[M3_SHAPES] = { "rounded like %s on storing", "%s accumulation", "%s inputs" };
    static const enum m3_effective kinds[M3_SHAPES] = { M3_EFFECTIVE_STORE, M3_EFFECTIVE_ACC, M3_EFFECTIVE_INPUT };
    char space[24];
    p->effective = kinds[best];
    snprintf(p->words, sizeof p->words, words[best], format_name(space, sizeof space, p->u[best], best));
}

/* The rest of d^2 / sigma^2 after the share of storing with u, as a unit roundoff; 0: it is not significant. */
static double beside_storing(const struct m3_precision_sums *sums, enum m3_shape shape, double u)
{
    double count = (double)sums->count, share = ROUNDING * ROUNDING * u * u * sums->shapes[shape].stored / count;
    double rest = sums->shapes[shape].z2 / count - share;
    return rest > HIDDEN * share ? sqrt(rest) / ROUNDING : 0;
}

/* BF16 inputs together with BF16 storing are common, and look like a finer accumulation at another n. */
static void say_grid(struct m3_precision *p, const struct m3_precision_sums *sums)
{
    const char *name = p->grid == M3_BF16 ? "bf16" : "fp16", *by = "fp32", *inputs = "";
    double u = p->grid == M3_BF16 ? 0x1p-8 : 0x1p-11;
    double more = sums->has_walk ? beside_storing(sums, M3_SHAPE_ACC, u) : 0;
    char space[24];
    p->effective = M3_EFFECTIVE_STORE;
    p->hidden = sums->has_walk ? u * sqrt(HIDDEN * sums->shapes[M3_SHAPE_ACC].stored / (double)sums->count) : NAN;
    if (more > 0 && sums->has_squares && fabs(log2(beside_storing(sums, M3_SHAPE_INPUT, u) / u)) < 0.25) {
        p->effective = M3_EFFECTIVE_INPUT;
        p->unclear = 1;
        inputs = name;
    } else if (more > 0) {
        p->effective = M3_EFFECTIVE_ACC;
        by = format_name(space, sizeof space, more, M3_SHAPE_ACC);
    }
    snprintf(p->words, sizeof p->words, "%s%s%s accumulation, stored in %s", inputs, *inputs ? " inputs, " : "", by,
             name);
}

static enum m3_dtype grid_of(const struct m3_precision_sums *sums)
{
    for (int g = 0; g < 2; g++)
        if (sums->off_grid[g] == 0 && 2 * sums->reference_off[g] > sums->count) return grids[g];
    return M3_DTYPES;
}

/* u and score of every shape that is known. Returns the most likely one. */
static enum m3_shape weigh_shapes(struct m3_precision *p, const struct m3_precision_sums *sums)
{
    const int known[M3_SHAPES] = { 1, sums->has_walk, sums->has_squares };
    enum m3_shape best = M3_SHAPE_STORE;
    double second = -INFINITY, count = (double)sums->count;
    for (enum m3_shape s = 0; s < M3_SHAPES; s++) {
        p->u[s] = p->score[s] = NAN;
        if (!known[s]) continue;
        double log_sigma = (log(sums->shapes[s].mantissa) + log(2) * (double)sums->shapes[s].exponent) / 2 / count;
        p->u[s] = sqrt(sums->shapes[s].z2 / count) / ROUNDING;
        p->score[s] = -log(p->u[s]) - log_sigma;
        if (s == best) continue;
        second = fmax(second, fmin(p->score[s], p->score[best]));
        if (p->score[s] > p->score[best]) best = s;
    }
    p->unclear = !(p->score[best] - second > 0.02);
    return best;
}

void m3_precision_of(struct m3_precision *p, const struct m3_precision_sums *sums)
{
    *p = (struct m3_precision){ .grid = M3_DTYPES, .u = { NAN, NAN, NAN }, .score = { NAN, NAN, NAN } };
    snprintf(p->words, sizeof p->words, "too few values to tell");
    if (sums->count < FEW) return;
    if (sums->errors == 0) {
        p->effective = M3_EFFECTIVE_EXACT;
        snprintf(p->words, sizeof p->words, "no error");
        return;
    }
    enum m3_shape best = weigh_shapes(p, sums);
    p->grid = grid_of(sums);
    double u = sums->has_walk ? p->u[M3_SHAPE_ACC] : p->u[M3_SHAPE_STORE];
    if (p->grid != M3_DTYPES) say_grid(p, sums);
    else if (u <= 0x1p-23) {
        p->effective = M3_EFFECTIVE_FLOAT;
        snprintf(p->words, sizeof p->words, u <= 0x1p-50 ? "fp64 accumulation" : "fp32 accumulation or better");
    } else say(p, best);
}
