#include "oracle/error/private/recompute.h"

#include <math.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"

/* Embedding and hidden state of each row side by side; embeddings NULL: zeros. */
static void join(double *joined, const double *e, const double *h, int64_t rows, int64_t H)
{
    const size_t bytes = (size_t)H * sizeof *joined;
    for (int64_t r = 0; r < rows; r++) {
        if (e) memcpy(joined + 2 * r * H, e + r * H, bytes);
        else memset(joined + 2 * r * H, 0, bytes);
        memcpy(joined + (2 * r + 1) * H, h + r * H, bytes);
    }
}

/* What eh_proj reads, in the place of operand 0. */
static void join_operands(struct m3_recomputing *m, int additive)
{
    const struct m3_given e = m->in[0], h = m->in[1];
    const int64_t H = m->config->H, n = 2 * m->rows * H;
    double *x = m3_recompute_scratch(m, n, sizeof *x);
    const int off = (m3_is_off(&e) && !additive) || m3_is_off(&h);
    double *spread = off ? m3_recompute_scratch(m, 2 * n, sizeof *spread) : NULL;
    double *zeros = off ? m3_recompute_scratch(m, m->rows * H, sizeof *zeros) : NULL;
    if (m->status) return;
    if (off) memset(zeros, 0, (size_t)(m->rows * H) * sizeof *zeros);
    join(x, additive ? NULL : e.x, h.x, m->rows, H);
    m->in[0] = (struct m3_given){ .x = x, .width = 2 * H };
    if (!off) return;
    const int first = m3_is_off(&e) && !additive, second = m3_is_off(&h);
    join(spread, first ? e.off.error : NULL, second ? h.off.error : zeros, m->rows, H);
    join(spread + n, first ? e.off.variance : NULL, second ? h.off.variance : zeros, m->rows, H);
    m->in[0].off = (struct m3_spread){ spread, spread + n };
}

struct m3_input_rounding m3_recompute_input_rounding(const struct m3_recomputing *m, const char *point)
{
    const struct m3_input_rounding none = { M3_DTYPES, M3_UNSCALED, 0 };
    char name[160];
    if (!m->setting->profile) return none;
    m3_recompute_point(name, sizeof name, m, point);
    return m3_profile_input(m->setting->profile, name);
}

double m3_input_roundoff(const struct m3_input_rounding *rule)
{
    if (rule->dtype == M3_DTYPES) return 0;
    return rule->exponent_down ? 0x1p-3 : 0x1p-4;
}

/* A block of a row whose numbers share a scale: each is off by 2^-4 of itself, 2^-3 if it saturates, and by half the
 * least step. */
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

void m3_recompute_round_input(struct m3_recomputing *m, struct m3_spread *off, const char *point, const double *x, int64_t rows,
                     int64_t width)
{
    const struct m3_input_rounding rule = m3_recompute_input_rounding(m, point);
    const int64_t n = rows * width, block = rule.scaling == M3_SCALE_MX32 ? 32 : 128;
    const size_t bytes = (size_t)n * sizeof(double);
    if (rule.dtype == M3_DTYPES) return;
    double *error = m3_recompute_scratch(m, 2 * n, sizeof *error);
    if (!error) return;
    double *variance = error + n;
    memset(error, 0, 2 * bytes);
    if (off->error) memcpy(error, off->error, bytes);
    if (off->error) memcpy(variance, off->variance, bytes);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < width; k += block)
            quantise(error + r * width + k, variance + r * width + k, x + r * width + k, m3_min(block, width - k),
                     &rule);
    *off = (struct m3_spread){ error, variance };
}

/* The noise is that of the norm before the layer's experts, which all of them read. */
void m3_recompute_jitter(struct m3_recomputing *m)
{
    const struct m3_semantics *s = m->setting->semantics;
    struct m3_ctx *ctx = m->setting->ctx;
    const int64_t H = m->config->H, n = m->rows * H;
    char name[96];
    if (s->jitter == 0 || m->status || m3_tap_name(name, sizeof name, M3_TAP_MLP_NORM, m->layer)) return;
    const uint64_t key = m3_draw_key((uint64_t)s->jitter_seed, name);
    const double *x = m->in[0].x;
    double *y = m3_recompute_scratch(m, n, sizeof *y);
    for (int64_t r = 0, rows; y && r < m->rows; r += rows) {
        rows = m3_recompute_span(m, r);
        m3_recompute_check(m, m->ops->jitter(ctx, y + r * H, x + r * H, rows, H, m->setting->the_case->p0 + m->numbers[r],
                                        s->jitter, key));
    }
    m->in[0].x = y;
}

/* The roundings of the noise, where the bound does not count them. */
void m3_recompute_jitter_spread(struct m3_recomputing *m)
{
    const int64_t n = m->rows * m->config->H;
    if (m->setting->semantics->jitter == 0 || m->status) return;
    double *memory = m3_recompute_scratch(m, 4 * n, sizeof *memory);
    if (!memory) return;
    double *error = memory, *variance = memory + n;
    struct m3_bound noise = { .bound = memory + 2 * n, .walk = memory + 3 * n };
    m3_bound_jitter(m->setting->ctx, &noise, m->in[0].x, n, m->setting->semantics->jitter);
    m3_allowance(error, variance, &noise, n, m->how.u);
    for (int64_t i = 0; m3_is_off(&m->in[0]) && i < n; i++) {
        error[i] += m->in[0].off.error[i];
        variance[i] += m->in[0].off.variance[i];
    }
    m->in[0].off = (struct m3_spread){ error, variance };
}

/* e + W h, where the module adds instead of joining: one rounding more. walk is that of the linear, whose reduction is
 * counted with the half that is zero. */
static void add_embedding(struct m3_recomputing *m, const struct m3_given *e)
{
    for (int64_t i = 0; i < m->count; i++) {
        m->out->y[i] += e->x[i];
        m->bound.bound[i] += fabs(e->x[i]);
        m->bound.walk[i] = hypot(m->bound.walk[i], m->out->y[i]);
    }
    m->bound.n = m->config->H;
    m->bound.f++;
    struct m3_spread *extra = m3_is_off(e) ? m3_recompute_extra(m) : NULL;
    if (extra) m3_propagate_add(extra, &e->off, &(struct m3_spread){ NULL, NULL }, m->count);
}

/* Weights off by u of themselves change the sum as inputs off by u of themselves do. */
static void round_weights(struct m3_recomputing *m, struct m3_spread *off, const double *x, const struct m3_weight *w)
{
    char name[160];
    const int64_t n = m->rows * w->cols;
    if (!m->setting->profile || w->dtype == M3_BF16 || w->dtype == M3_F8_E4M3) return;
    m3_recompute_point(name, sizeof name, m, m3_tap_table[m->tap].name);
    const double u = m3_profile_weights(m->setting->profile, name);
    double *error = u > 0 ? m3_recompute_scratch(m, 2 * n, sizeof *error) : NULL;
    if (!error) return;
    const size_t bytes = (size_t)n * sizeof *error;
    if (off->error) memcpy(error, off->error, bytes), memcpy(error + n, off->variance, bytes);
    else memset(error, 0, 2 * bytes);
    *off = (struct m3_spread){ error, error + n };
    m3_propagate_store(off, x, n, u, 0);
}

void m3_recompute_linear(struct m3_recomputing *m)
{
    const struct m3_weight *w = m3_recompute_weight(m, 0);
    const double *bias = m3_recompute_vector(m, 1);
    const struct m3_given first = m->in[0];
    const int additive = m->row->more == M3_MORE_JOIN;
    if (m->tap == M3_TAP_MTP_EH_PROJ) join_operands(m, additive);
    if (m->tap == M3_TAP_ROUTER_LOGITS) m3_recompute_jitter(m);
    if (m->status) return;
    const double *x = m->in[0].x;
    struct m3_spread off = m->in[0].off;
    m3_recompute_check(m, m->ops->linear(m->setting->ctx, m->out->y, x, w, bias, m->rows));
    m3_recompute_check(m, m3_bound_linear(m->setting->ctx, &m->bound, x, w, bias, m->rows, &m->how));
    m3_recompute_round_input(m, &off, m3_tap_table[m->tap].name, x, m->rows, w->cols);
    round_weights(m, &off, x, w);
    struct m3_spread *extra = off.error ? m3_recompute_extra(m) : NULL;
    if (extra) m3_recompute_check(m, m3_propagate_linear(m->setting->ctx, extra, &off, w, m->rows));
    if (!m->status && additive) add_embedding(m, &first);
    if (m->tap == M3_TAP_ROUTER_LOGITS && m->setting->semantics->jitter != 0) m->bound.f += 2;
}
