#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/profiles/codes.h"

struct m3_input_rounding m3_recompute_input_rounding(const struct m3_recomputing *m, const char *point)
{
    const struct m3_input_rounding none = { .dtype = M3_DTYPES };
    char name[160];
    if (!m->setting->profile) return none;
    m3_point_name(name, sizeof name, m->tap, m->layer, point);
    return m3_profile_input(m->setting->profile, name);
}

static double largest_of(const double *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    return largest;
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

void m3_round_inputs(struct m3_spread *off, const double *x, int64_t rows, int64_t width, double largest,
                     const struct m3_input_rounding *rule)
{
    if (!m3_has_codes(rule)) {
        if (rule->dtype != M3_DTYPES) m3_propagate_store(off, x, rows * width, rule->u, rule->floor);
        return;
    }
    const int64_t group = m3_codes_group(rule, width);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < width; k += group) {
            const int64_t at = r * width + k, n = m3_min(group, width - k);
            const int is_whole = !m3_codes_need_tensor(rule) || rule->group == M3_GROUP_BLOCK;
            const double most = is_whole ? largest_of(x + at, n) : largest;
            for (int64_t i = at; i < at + n; i++) {
                double variance;
                off->error[i] += m3_codes_error(&variance, rule, x[i], most, largest);
                off->variance[i] += variance;
            }
        }
}

/* The rows that are not recomputed belong to the tensor too. */
static double largest_of_operand(const struct m3_recomputing *m)
{
    const struct m3_tap_values *all = m->operands[0];
    const double here = largest_of(m->in[0].values, m->rows * m->in[0].width);
    return all && all->values ? fmax(here, largest_of(all->values, all->rows * all->width)) : here;
}

/* Does operand 0 hold only numbers of that format, so that rounding changes none? */
static int is_stored_so(const struct m3_recomputing *m, const struct m3_input_rounding *rule)
{
    enum m3_tap tap;
    int64_t layer;
    char name[96];
    if (m3_has_codes(rule) || rule->u == 0 || m->setting->semantics->jitter != 0) return 0;
    if (m3_setting_operand(&tap, &layer, m->setting, m->tap, m->layer, 0)) return 0;
    if (m3_tap_name(name, sizeof name, tap, layer) || m3_is_off(&m->in[0])) return 0;
    return m3_profile_dtype(m->setting->profile, name) == rule->dtype &&
           m3_profile_store(m->setting->profile, name) == rule->u;
}

void m3_recompute_round_input(struct m3_recomputing *m, const char *point)
{
    const struct m3_input_rounding rule = m3_recompute_input_rounding(m, point);
    struct m3_tap_values *in = &m->in[0];
    if (is_stored_so(m, &rule)) return;
    if (rule.dtype == M3_DTYPES || !m3_recompute_own_spread(m, &in->off, m->rows * in->width)) return;
    m3_round_inputs(&in->off, in->values, m->rows, in->width, largest_of_operand(m), &rule);
}

/* Is every weight, as it is stored, a number of a format with so small a unit roundoff? Products of codes and scales
 * that are no powers of two are not. */
static int holds_weights(const struct m3_weight *w, double u)
{
    if (w->dtype == M3_F8_E4M3) return w->scaling != M3_SCALE_128X128 || u >= 0x1p-8;
    if (w->scaling == M3_SCALE_MXFP4) return 1;
    return w->dtype == M3_BF16 || (w->dtype == M3_F16 && u <= 0x1p-10);
}

double m3_recompute_weight_roundoff(struct m3_recomputing *m, const struct m3_weight *w, const char *point)
{
    const struct m3_profile *profile = m->setting->profile;
    char name[160];
    if (!profile) return 0;
    m3_point_name(name, sizeof name, m->tap, m->layer, point);
    const double u = m3_profile_weights(profile, name), floor = m3_profile_weight_floor(profile, name);
    if (floor > 0x1p-126) m->weight_floor = fmax(m->weight_floor, floor);
    return holds_weights(w, u) ? 0 : u;
}

/* Weights with a relative error u change the sum as inputs with a relative error u do. */
void m3_recompute_round_weights(struct m3_recomputing *m, const struct m3_weight *w, const char *point)
{
    const int64_t n = m->rows * w->cols;
    const double u = m->status ? 0 : m3_recompute_weight_roundoff(m, w, point);
    struct m3_spread *off = &m->in[0].off;
    if (u == 0 || !m3_recompute_own_spread(m, off, n)) return;
    for (int64_t i = 0; i < n; i++) {
        const double x = fabs(m->in[0].values[i]);
        off->error[i] += u * (x + off->error[i]);
        off->variance[i] += u * u * x * x / 3;
    }
}

/* Keys and values in a cache of a coarser format, or operands of products that are rounded. Formats of 8 bits have a
 * scale, of which it is only known that it is no larger than 1 or than what brings the largest number to the largest
 * code: it stretches the smallest step. What was scaled may be stored like the tap again. */
void m3_recompute_round_read(struct m3_recomputing *m, int i)
{
    enum m3_tap tap;
    int64_t layer;
    char name[96];
    const struct m3_profile *profile = m->setting->profile;
    if (!profile || m->status || m3_setting_operand(&tap, &layer, m->setting, m->tap, m->layer, i) ||
        m3_tap_name(name, sizeof name, tap, layer))
        return;
    const struct m3_read_rounding rule = m3_profile_read(profile, name);
    const struct m3_tap_values *all = m->operands[i];
    struct m3_tap_values *in = &m->in[i];
    const int64_t places = m->setting->the_case->p0 + m->numbers[m->rows - 1] + 1;
    const int64_t n = (m3_is_by_row(m, i) ? m->rows : places) * in->width;
    if (rule.u == 0 || !m3_recompute_own_spread(m, &in->off, n)) return;
    double scale = 1;
    for (int64_t k = 0; k < all->rows * all->width && rule.largest > 0; k++)
        scale = fmax(scale, fabs(all->values[k]) / rule.largest);
    const double u = rule.u + (rule.largest > 0 ? m3_profile_store(profile, name) : 0);
    m3_propagate_store(&in->off, in->values, n, u, rule.floor * scale);
}
