#include "oracle/judge/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/error/parameters/parameters.h"

int m3_side_by_side_room(struct m3_side_by_side *s, int64_t elements, int64_t rows, const char *tap,
                         struct m3_error *error)
{
    const size_t n = (size_t)elements + 1;
    *s = (struct m3_side_by_side){ .owned = calloc(n, 7 * sizeof *s->owned) };
    s->got = s->owned;
    if (rows > 0) s->numbers = malloc((size_t)rows * sizeof *s->numbers);
    if (s->owned == NULL || (rows > 0 && s->numbers == NULL)) {
        free(s->owned);
        free(s->numbers);
        *s = (struct m3_side_by_side){ 0 };
        return m3_fail_memory(error, tap, n * 7 * sizeof *s->owned);
    }
    double **parts[] = { &s->want, &s->bound, &s->walk, &s->suspect, &s->error, &s->variance };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) *parts[i] = s->got + (i + 1) * n;
    return M3_OK;
}

void m3_side_by_side_free(struct m3_side_by_side *s)
{
    free(s->repeated);
    free(s->owned);
    if (s->owned) free(s->numbers);
}

void m3_side_by_side_add(struct m3_side_by_side *s, int64_t i, double error)
{
    s->error[i] += error;
    s->variance[i] += error * error / 3;
}

static int has_nan(const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (isnan(x[i])) return 1;
    return 0;
}

double *m3_side_by_side_row(struct m3_side_by_side *s, const struct m3_recomputed *recomputed, int64_t number,
                            double dumped)
{
    const int64_t width = recomputed->y.width, at = m3_tap_values_row(&recomputed->y, number) * width, to = s->count;
    const size_t bytes = (size_t)width * sizeof(double);
    if (at < 0 || has_nan(recomputed->y.values + at, width)) return NULL;
    memcpy(s->want + to, recomputed->y.values + at, bytes);
    memcpy(s->bound + to, recomputed->bound + at, bytes);
    memcpy(s->walk + to, recomputed->walk + at, bytes);
    if (recomputed->suspect != NULL) memcpy(s->suspect + to, recomputed->suspect + at, bytes);
    if (recomputed->y.off.error != NULL) memcpy(s->error + to, recomputed->y.off.error + at, bytes);
    if (recomputed->y.off.error != NULL) memcpy(s->variance + to, recomputed->y.off.variance + at, bytes);
    for (int64_t i = to; i < to + width && dumped > 0; i++)
        if (isfinite(s->want[i])) m3_side_by_side_add(s, i, dumped * fabs(s->want[i]));
    s->numbers[s->rows++] = number;
    s->count += width;
    return s->got + to;
}

int m3_side_by_side_view(struct m3_side_by_side *s, const struct m3_recomputed *recomputed, double *got,
                         int64_t *numbers, int64_t rows)
{
    if (rows != recomputed->y.rows || has_nan(recomputed->y.values, rows * recomputed->y.width)) return 0;
    for (int64_t r = 0; r < rows; r++)
        if (numbers[r] != (recomputed->y.numbers ? recomputed->y.numbers[r] : r)) return 0;
    *s = (struct m3_side_by_side){ .got = got,
                                   .want = recomputed->y.values,
                                   .bound = recomputed->bound,
                                   .walk = recomputed->walk,
                                   .suspect = recomputed->suspect,
                                   .error = recomputed->y.off.error,
                                   .variance = recomputed->y.off.variance,
                                   .numbers = numbers,
                                   .rows = rows,
                                   .count = rows * recomputed->y.width };
    return 1;
}

static struct m3_two_sides values_of(const struct m3_side_by_side *s, const struct m3_side_by_side_rules *rules)
{
    const struct m3_profile *profile = rules->setting->profile;
    return (struct m3_two_sides){
        .reference = s->want,
        .candidate = s->got,
        .bound = s->bound,
        .walk = s->walk,
        .suspect = rules->has_suspect ? s->suspect : NULL,
        .extra = rules->has_extra ? s->error : NULL,
        .extra_variance = rules->has_extra ? s->variance : NULL,
        .repeated = s->repeated,
        .width = s->rows > 0 ? s->count / s->rows : 0,
        .count = s->count,
        .n = rules->n,
        .f = rules->f,
        .u = m3_setting_arithmetic(rules->setting, s->count).u,
        .stored = profile != NULL ? m3_profile_dumped(profile, rules->tap) : M3_F32,
        .truncates = profile != NULL && m3_profile_truncates(profile),
        .flushes = profile != NULL && m3_profile_flushes(profile),
    };
}

struct m3_tier_result m3_side_by_side_verdict(const struct m3_side_by_side *s,
                                              const struct m3_side_by_side_rules *rules)
{
    const struct m3_two_sides tap = values_of(s, rules);
    return m3_verdict_of(&tap);
}

static struct m3_parameter_question question_of(const struct m3_side_by_side *s, const struct m3_side_by_side_tap *tap,
                                                const struct m3_two_sides *values)
{
    return (struct m3_parameter_question){ tap->tap,   tap->layer, values,
                                           s->numbers, s->rows,    s->rows > 0 ? s->count / s->rows : 0 };
}

int m3_side_by_side_parameters(struct m3_tier_result *verdict, const struct m3_side_by_side *s,
                               const struct m3_side_by_side_rules *rules, const struct m3_side_by_side_tap *tap,
                               struct m3_error *error)
{
    const struct m3_two_sides values = values_of(s, rules);
    const struct m3_parameter_question question = question_of(s, tap, &values);
    return m3_parameters_test(verdict, tap->trace, rules->setting, &question, error);
}

int m3_side_by_side_direction(struct m3_fit *fit, const struct m3_side_by_side *s,
                              const struct m3_side_by_side_rules *rules, const struct m3_side_by_side_tap *tap,
                              const double *by, struct m3_error *error)
{
    const struct m3_two_sides values = values_of(s, rules);
    const struct m3_parameter_question question = question_of(s, tap, &values);
    return m3_direction_fit(fit, rules->setting, &question, by, error);
}
