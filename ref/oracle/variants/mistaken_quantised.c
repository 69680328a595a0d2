/* Runs whose linear operators read their inputs rounded, as the profile says. */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/variants/private/mistakes.h"
#include "oracle/error/profiles/codes.h"

static double largest_of(const double *x, int64_t n)
{
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    return largest;
}

/* mine := what the operator of the tap being made reads of x [T,cols]; x itself if it is not quantised, NULL if memory
 * is short. largest: of the whole tensor; 0: of x. */
static const double *read_by(struct m3_ctx *ctx, const double *x, int64_t T, int64_t cols, double largest)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    char name[96];
    enum m3_tap tap = m3_tap_being_made(ctx);
    while (tap < M3_TAPS - 1 && run->layer >= 0 && !m3_layer_has_tap(&run->model.config, tap, run->layer)) tap++;
    if (!run->profile || m3_tap_name(name, sizeof name, tap, run->layer) != 0) return x;
    const struct m3_input_rounding rule = m3_profile_input(run->profile, name);
    if (rule.dtype == M3_DTYPES) return x;
    double *mine = m3_scratch_take(ctx, T * cols, sizeof *mine);
    if (mine && !m3_has_codes(&rule)) {
        memcpy(mine, x, (size_t)(T * cols) * sizeof *mine);
        m3_round_all(mine, T * cols, rule.u == 0x1p-8 ? 8 : 11);
        return mine;
    }
    const int64_t group = m3_codes_group(&rule, cols);
    const double all = !m3_codes_need_tensor(&rule) ? 0 : largest > 0 ? largest : largest_of(x, T * cols);
    for (int64_t t = 0; mine && t < T; t++)
        for (int64_t k = 0; k < cols; k += group) {
            const int64_t at = t * cols + k, n = m3_min(group, cols - k);
            const double most = rule.group == M3_GROUP_TENSOR ? all : largest_of(x + at, n);
            const struct m3_code_scale scale = m3_codes_scale(&rule, most, all);
            for (int64_t i = at; i < at + n; i++) mine[i] = m3_coded(&rule, x[i], &scale);
        }
    return mine;
}

static int linear(struct m3_ctx *ctx, double *y, const double *x, const struct m3_weight *w, const double *bias,
                  int64_t T)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const size_t mark = m3_scratch_mark(ctx);
    const int reads_norm = w->cols == run->model.config.H && m3_tap_being_made(ctx) != M3_TAP_EXPERT_OUT;
    const double *mine = read_by(ctx, x, T, w->cols, reads_norm ? run->largest : 0);
    const int status = mine ? run->exact.linear(ctx, y, mine, w, bias, T) : M3_INTERNAL;
    m3_scratch_release(ctx, mark);
    return status;
}

static int experts(struct m3_ctx *ctx, double *routed, double *each, const double *x, const int32_t *ids,
                   const double *p, const struct m3_expert *all, const struct m3_activation *act, int64_t T, int64_t E,
                   int64_t K, double factor)
{
    const size_t mark = m3_scratch_mark(ctx);
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const double *mine = read_by(ctx, x, T, all[0].w1.cols, run->largest);
    const int status = !mine ? M3_INTERNAL
                       : run->reads_act
                           ? m3_mistaken_experts(ctx, routed, each, mine, ids, p, all, act, T, E, K, factor)
                           : run->exact.experts(ctx, routed, each, mine, ids, p, all, act, T, E, K, factor);
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

void m3_mistake_store_within(struct m3_mistaken_run *run, const struct m3_profile *profile, double largest)
{
    m3_mistake_store(run, profile);
    run->largest = largest;
    run->reads_act = 1;
}
