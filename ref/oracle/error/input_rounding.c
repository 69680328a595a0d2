#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"

struct m3_input_rounding m3_recompute_input_rounding(const struct m3_recomputing *m, const char *point)
{
    const struct m3_input_rounding none = { M3_DTYPES, M3_UNSCALED, 0 };
    char name[160];
    if (!m->setting->profile) return none;
    m3_point_name(name, sizeof name, m->tap, m->layer, point);
    return m3_profile_input(m->setting->profile, name);
}

double m3_input_roundoff(const struct m3_input_rounding *rule)
{
    if (rule->dtype == M3_DTYPES) return 0;
    return rule->exponent_down ? 0x1p-3 : 0x1p-4;
}

/* A block of a row whose numbers share a scale: each has a relative error of 2^-4, or 2^-3 if it saturates, plus half
 * the smallest step. */
static void quantise(double *error, double *variance, const double *x, int64_t n, const struct m3_input_rounding *rule)
{
    const double largest_code = 448, half_step = 0x1p-10;
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    double scale = largest / largest_code, saturated = INFINITY;
    if (rule->scaling == M3_SCALE_MX32 && largest > 0) {
        int exponent;
        frexp(largest, &exponent);                      /* largest is in [2^(exponent-1), 2^exponent) */
        if (rule->exponent_down) saturated = largest_code * ldexp(1, exponent - 9);
        int fits = largest <= largest_code * ldexp(1, exponent - 9);
        scale = ldexp(1, fits ? exponent - 9 : exponent - 8);
    }
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == 0) continue;
        const double share = (fabs(x[i]) > saturated ? 0x1p-3 : 0x1p-4) * fabs(x[i]), floor = half_step * scale;
        error[i] += share + floor;
        variance[i] += (share * share + floor * floor) / 3;
    }
}

/* Moves the contents of *off to newly allocated memory for n numbers. */
int m3_recompute_own_spread(struct m3_recomputing *m, struct m3_spread *off, int64_t n)
{
    const size_t bytes = (size_t)n * sizeof(double);
    double *error = m3_recompute_scratch(m, 2 * n, sizeof *error);
    if (!error) return 0;
    if (off->error) memcpy(error, off->error, bytes), memcpy(error + n, off->variance, bytes);
    else memset(error, 0, 2 * bytes);
    *off = (struct m3_spread){ error, error + n };
    return 1;
}

void m3_recompute_round_input(struct m3_recomputing *m, const char *point)
{
    const struct m3_input_rounding rule = m3_recompute_input_rounding(m, point);
    const int64_t width = m->in[0].width, block = rule.scaling == M3_SCALE_MX32 ? 32 : 128;
    struct m3_given *in = &m->in[0];
    if (rule.dtype == M3_DTYPES || !m3_recompute_own_spread(m, &in->off, m->rows * width)) return;
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t k = 0; k < width; k += block) {
            const int64_t at = r * width + k;
            quantise(in->off.error + at, in->off.variance + at, in->x + at, m3_min(block, width - k), &rule);
        }
}

/* Keys and values in a cache of a coarser format. Formats of 8 bits have a scale, of which it is only known that it is
 * no larger than 1 or than what brings the largest number to the largest code: it stretches the smallest step. What was
 * scaled may be stored like the tap again. */
void m3_recompute_round_key(struct m3_recomputing *m, int i)
{
    enum m3_tap tap;
    int64_t layer;
    char name[96];
    const struct m3_profile *profile = m->setting->profile;
    if (!profile || m->status || m3_setting_operand(&tap, &layer, m->setting, m->tap, m->layer, i) ||
        m3_tap_name(name, sizeof name, tap, layer))
        return;
    const struct m3_read_rounding rule = m3_profile_read(profile, name);
    const struct m3_value *all = m->operands[i];
    struct m3_given *in = &m->in[i];
    const int64_t n = (m->setting->the_case->p0 + m->numbers[m->rows - 1] + 1) * in->width;
    if (rule.u == 0 || !m3_recompute_own_spread(m, &in->off, n)) return;
    double scale = 1;
    for (int64_t k = 0; k < all->rows * all->width && rule.largest > 0; k++)
        scale = fmax(scale, fabs(all->values[k]) / rule.largest);
    const double u = rule.u + (rule.largest > 0 ? m3_profile_store(profile, name) : 0);
    m3_propagate_store(&in->off, in->x, n, u, rule.floor * scale);
}
