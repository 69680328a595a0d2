/* Runs whose linear operators read their inputs rounded, as the profile says. Inside an expert the input of the last
 * product stays as it is. */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/variants/private/mistakes.h"

/* x / scale in E4M3, times the scale. */
static double coded(double x, double scale)
{
    const double code = x / scale;
    const double near = fabs(code) < 0x1p-6 ? ldexp(nearbyint(ldexp(code, 9)), -9) : m3_round_bits(code, 4);
    return fmax(-448, fmin(448, near)) * scale;
}

static double largest_of(const double *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    return largest;
}

/* Numbers that share the scale of the number `largest`. */
static void quantise(double *out, const double *x, int64_t n, double largest, const struct m3_input_rounding *rule)
{
    double scale;
    int exponent;
    if (rule->scaling != M3_SCALE_MX32) scale = (double)(float)(largest / 448);
    else if (rule->exponent_down) scale = (frexp(largest, &exponent), ldexp(1, exponent - 9));
    else scale = ldexp(1, (int)ceil(log2(largest / 448)));
    for (int64_t i = 0; i < n; i++) out[i] = largest > 0 ? coded(x[i], scale) : 0;
}

/* mine := what the operator of the tap being made reads of x [T,cols]; x itself if it is not quantised, NULL if memory
 * is short. */
static const double *read_by(struct m3_ctx *ctx, const double *x, int64_t T, int64_t cols)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    char name[96];
    enum m3_tap tap = m3_tap_being_made(ctx);
    while (tap < M3_TAPS - 1 && run->layer >= 0 && !m3_layer_has_tap(&run->model.config, tap, run->layer)) tap++;
    if (!run->profile || m3_tap_name(name, sizeof name, tap, run->layer) != 0) return x;
    const struct m3_input_rounding rule = m3_profile_input(run->profile, name);
    if (rule.dtype == M3_DTYPES) return x;
    const int64_t block = rule.group != M3_GROUP_BLOCK ? cols : rule.scaling == M3_SCALE_MX32 ? 32 : 128;
    const double all = rule.group == M3_GROUP_TENSOR ? largest_of(x, T * cols) : 0;
    double *mine = m3_scratch_take(ctx, T * cols, sizeof *mine);
    if (mine && rule.dtype != M3_F8_E4M3) {
        memcpy(mine, x, (size_t)(T * cols) * sizeof *mine);
        m3_round_all(mine, T * cols, rule.u == 0x1p-8 ? 8 : 11);
        return mine;
    }
    for (int64_t t = 0; mine && t < T; t++)
        for (int64_t k = 0; k < cols; k += block) {
            const int64_t at = t * cols + k, n = m3_min(block, cols - k);
            quantise(mine + at, x + at, n, all > 0 ? all : largest_of(x + at, n), &rule);
        }
    return mine;
}

static int linear(struct m3_ctx *ctx, double *y, const double *x, const struct m3_weight *w, const double *bias,
                  int64_t T)
{
    const size_t mark = m3_scratch_mark(ctx);
    const double *mine = read_by(ctx, x, T, w->cols);
    const int status = mine ? m3_run_of(ctx)->exact.linear(ctx, y, mine, w, bias, T) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return status;
}

static int experts(struct m3_ctx *ctx, double *routed, double *each, const double *x, const int32_t *ids,
                   const double *p, const struct m3_expert *all, const struct m3_activation *act, int64_t T, int64_t E,
                   int64_t K, double factor)
{
    const size_t mark = m3_scratch_mark(ctx);
    const double *mine = read_by(ctx, x, T, all[0].w1.cols);
    const int status =
        mine ? m3_run_of(ctx)->exact.experts(ctx, routed, each, mine, ids, p, all, act, T, E, K, factor) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return status;
}

void m3_mistake_store(struct m3_mistaken_run *run, const struct m3_profile *profile)
{
    run->profile = profile;
    run->exact = run->ops;
    run->ops.linear = linear;
    run->ops.experts = experts;
}
