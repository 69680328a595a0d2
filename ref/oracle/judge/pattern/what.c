/* What the wrong elements of a tap are: zeros, the right ones times a factor or plus a constant, or those of another
 * place. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "oracle/judge/pattern/private/pattern.h"

/* A guess leaves at most this part of the squared errors besides roundings, and of the squared values, because what is
 * small beside the right ones is neither zero nor a small factor of them: of all, and of an output. */
static const double rest_of_all = 0.02, rest_of_one = 0.05;
/* Roundings, in variances; errors that tell are so much larger. */
static const double roundings = 4, telling = 16;
/* Of the outputs that tell it explains so many. */
static const double nearly_all = 0.9;
/* A factor or a constant of fewer elements explains anything. */
enum { LEAST = 8 };

/* ---- does a guess explain the errors? */

struct sums {
    double error, value, rest, allowed; /* squares */
    int is_known;                       /* the guess has a value for each */
};

static struct sums sums_of(const struct m3_guess *guess, int64_t row, int64_t output)
{
    const struct m3_region *g = guess->region;
    const struct m3_pattern_values *v = g->v;
    struct sums s = { .is_known = 1 };
    for (int64_t c = g->first; c < g->end; c++) {
        const int64_t i = (row * v->outputs + output) * v->width + c;
        const double got = v->got[i], want = v->want[i];
        if (!isfinite(got) || !isfinite(want)) continue;
        const double guessed = guess->at(guess, row, output, c);
        if (isnan(guessed)) s.is_known = 0;
        s.error += (got - want) * (got - want);
        s.value += got * got;
        s.rest += (got - guessed) * (got - guessed);
        s.allowed += v->variance[i];
    }
    return s;
}

static int tells(const struct sums *s) { return s->error > telling * s->allowed; }

static int explains(const struct sums *s, double rest)
{
    return s->rest <= rest * fmin(s->error, s->value) + roundings * s->allowed;
}

int m3_guess_explains_one(const struct m3_guess *guess, int64_t row, int64_t output)
{
    const struct sums s = sums_of(guess, row, output);
    return s.is_known && tells(&s) && explains(&s, rest_of_one);
}

int m3_guess_explains(const struct m3_guess *guess)
{
    const struct m3_region *g = guess->region;
    struct sums all = { 0 };
    double outputs = 0, known = 0, explained = 0;
    for (int64_t row = 0; row < g->v->rows; row++)
        for (int64_t o = 0; g->rows[row] && o < g->v->outputs; o++) {
            if (!m3_region_has(g, row, o)) continue;
            const struct sums s = sums_of(guess, row, o);
            if (!tells(&s)) continue;
            outputs++;
            if (!s.is_known) continue;
            known++, explained += explains(&s, rest_of_one);
            all.error += s.error, all.value += s.value, all.rest += s.rest, all.allowed += s.allowed;
            if (outputs >= LEAST && known - explained > outputs / 2) return 0;
        }
    return known > 0 && 2 * known >= outputs && explained >= nearly_all * known && tells(&all) &&
           explains(&all, rest_of_all);
}

/* ---- factors and constants */

static double zero(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    (void)guess, (void)row, (void)output, (void)c;
    return 0;
}

static double right_one(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    const struct m3_pattern_values *v = guess->region->v;
    return v->want[(row * v->outputs + output) * v->width + c];
}

static double times(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    return guess->number * right_one(guess, row, output, c);
}

static double plus(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    return guess->number + right_one(guess, row, output, c);
}

static double times_own(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    return guess->own[row * guess->region->v->outputs + output] * right_one(guess, row, output, c);
}

static double plus_own(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c)
{
    return guess->own[row * guess->region->v->outputs + output] + right_one(guess, row, output, c);
}

/* The factors and constants that fit each output best, and all of them: outputs count alike. */
struct fits {
    double *factors, *constants;        /* [rows,outputs] NaN: not of the region, or it has no numbers */
    double factor, constant;
    double squares, noise, variance;    /* sums of y^2, of y^2 and of 1 times the variance of a right error */
    int64_t outputs, elements;
};

static void fit_one(struct fits *f, const struct m3_region *g, int64_t output)
{
    const struct m3_pattern_values *v = g->v;
    double products = 0, squares = 0, offs = 0;
    int64_t count = 0;
    for (int64_t i = output * v->width + g->first; i < output * v->width + g->end; i++) {
        if (!isfinite(v->got[i]) || !isfinite(v->want[i])) continue;
        products += v->got[i] * v->want[i], squares += v->want[i] * v->want[i], offs += v->got[i] - v->want[i];
        f->noise += v->want[i] * v->want[i] * v->variance[i], f->variance += v->variance[i];
        count++;
    }
    if (!(squares > 0)) return;
    f->factors[output] = products / squares, f->constants[output] = offs / (double)count;
    f->factor += f->factors[output], f->constant += f->constants[output];
    f->outputs++, f->elements += count, f->squares += squares;
}

static void fit(struct fits *f, const struct m3_region *g)
{
    const struct m3_pattern_values *v = g->v;
    for (int64_t output = 0; output < v->rows * v->outputs; output++) {
        f->factors[output] = f->constants[output] = NAN;
        if (m3_region_has(g, output / v->outputs, output % v->outputs)) fit_one(f, g, output);
    }
    if (f->outputs > 0) f->factor /= (double)f->outputs, f->constant /= (double)f->outputs;
}

/* With no more digits than the errors of right values leave certain: 0.75, not 0.7502. */
static void say_number(struct m3_pattern *pattern, const char *words, double number, double standard_error)
{
    enum { MOST_DIGITS = 4 };
    static const double certain = 3;
    char text[32];
    int digits = 1;
    do snprintf(text, sizeof text, "%.*g", digits, number);
    while (fabs(strtod(text, NULL) - number) > certain * standard_error && digits++ < MOST_DIGITS);
    snprintf(pattern->what, sizeof pattern->what, "%s%s", words, text);
}

static void one_number(struct m3_pattern *pattern, const struct m3_region *g, const struct fits *f)
{
    static const double same = 0.01;
    struct m3_guess guess = { .region = g, .at = zero };
    if (m3_guess_explains(&guess)) {
        snprintf(pattern->what, sizeof pattern->what, "zeros");
        return;
    }
    if (f->elements < LEAST) return;
    guess = (struct m3_guess){ .region = g, .at = times, .number = f->factor };
    if (m3_guess_explains(&guess)) {
        if (fabs(f->factor + 1) < same)
            snprintf(pattern->what, sizeof pattern->what, "the right ones with the other sign");
        else say_number(pattern, "the right ones times ", f->factor, sqrt(f->noise) / f->squares);
        return;
    }
    guess = (struct m3_guess){ .region = g, .at = plus, .number = f->constant };
    if (!m3_guess_explains(&guess)) return;
    say_number(pattern, f->constant < 0 ? "the right ones less " : "the right ones plus ", fabs(f->constant),
               sqrt(f->variance) / (double)f->elements);
}

/* The first output that has a number; -1: none. */
static int64_t first_of(const double *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isnan(numbers[i])) return i;
    return -1;
}

static void own_numbers(struct m3_pattern *pattern, const struct m3_region *g, const struct fits *f)
{
    const struct m3_pattern_values *v = g->v;
    const int64_t first = first_of(f->factors, v->rows * v->outputs);
    const char *each = v->outputs == 1 ? "row" : v->place;
    if (f->outputs < 2 || g->end - g->first < LEAST || first < 0) return;
    const int64_t row = m3_number_of_row(v, first / v->outputs);
    struct m3_guess guess = { .region = g, .at = times_own, .own = f->factors };
    if (m3_guess_explains(&guess)) {
        snprintf(pattern->what, sizeof pattern->what,
                 "the right ones times a factor of each %s's own, such as %.4g in row %" PRId64, each,
                 f->factors[first], row);
        return;
    }
    guess = (struct m3_guess){ .region = g, .at = plus_own, .own = f->constants };
    if (!m3_guess_explains(&guess)) return;
    snprintf(pattern->what, sizeof pattern->what,
             "the right ones plus a number of each %s's own, such as %.4g in row %" PRId64, each, f->constants[first],
             row);
}

/* ---- the whole */

int m3_pattern_what(struct m3_pattern *pattern, const struct m3_region *g, struct m3_error *error)
{
    const size_t outputs = (size_t)(g->v->rows * g->v->outputs);
    if (g->nans == g->wrong) snprintf(pattern->what, sizeof pattern->what, "NaN");
    else if (g->infinities == g->wrong) snprintf(pattern->what, sizeof pattern->what, "infinite");
    if (g->nans + g->infinities > 0) return M3_OK;
    struct fits f = { .factors = malloc((2 * outputs + 1) * sizeof *f.factors) };
    if (!f.factors) return m3_fail_memory(error, "the pattern of errors", 2 * outputs * sizeof *f.factors);
    f.constants = f.factors + outputs;
    fit(&f, g);
    one_number(pattern, g, &f);
    if (!pattern->what[0]) m3_pattern_moved(pattern, g);
    if (!pattern->what[0]) own_numbers(pattern, g, &f);
    free(f.factors);
    return M3_OK;
}
