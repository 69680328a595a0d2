#include "oracle/operators/bounds_of_call.h"

#include <math.h>

#include "oracle/operators/given.h"
#include "oracle/operators/private.h"

static void take_allowed(double *allowed, const struct m3_recomputed *made, const int64_t *rows, int64_t count,
                         const struct m3_setting *setting)
{
    const double u = m3_setting_arithmetic(setting, made->y.rows * made->y.width).u;
    for (int64_t r = 0; r < count; r++) {
        const int64_t at = m3_tap_values_row(&made->y, rows ? rows[r] : r) * made->y.width;
        for (int64_t i = 0; i < made->y.width; i++) {
            double *to = &allowed[r * made->y.width + i];
            *to = at < 0 ? NAN : m3_bound_allowed(made->bound[at + i], (double)(made->n + made->f), u);
            if (at >= 0 && made->y.off.error) *to += made->y.off.error[at + i];
        }
    }
}

/* Operands that are no numbers: there is no true value from which a result may be that far. */
static void nothing_allowed(double *allowed, const struct m3_fragment *f, const struct m3_operand_row *output,
                            int64_t rows)
{
    int64_t shape[M3_MAX_RANK], count = rows;
    const int rank = m3_fragment_shape(shape, f, output);
    for (int i = 1; i < rank; i++) count *= shape[i];
    for (int64_t i = 0; i < count; i++) allowed[i] = NAN;
}

int m3_bounds_of_call(double *allowed, const struct m3_fragment *f, int output, const int64_t *rows, int64_t count,
                      const struct m3_profile *profile, struct m3_ctx *ctx, struct m3_error *error)
{
    const struct m3_operand_row *row = &f->op->outputs[output];
    const struct m3_setting setting = { .model = &f->model,
                                        .semantics = &f->semantics,
                                        .the_case = &f->the_case,
                                        .profile = profile,
                                        .ctx = ctx,
                                        .need = f->drawn ? m3_drawn_experts_need : NULL,
                                        .need_self = f->drawn };
    struct m3_recomputed made = { 0 };
    struct m3_trace *trace = NULL;
    struct m3_given_call call = { .count = 0 };
    int status;
    if (m3_is_without_tap(f, row)) {
        status = m3_recompute_without_tap(&made, &setting, f, row, rows, count, error);
    } else {
        status = m3_given_operands(&call, f, rows, count, ctx, error);
        if (!status) status = m3_trace_new(&trace, &setting, error);
        for (int i = 0; !status && i < call.count; i++) status = m3_trace_take(trace, &call.taps[i], error);
        if (!status) status = m3_trace_recompute(&made, trace, row->tap, m3_fragment_layer(f, row->tap), error);
    }
    if (!status && made.missing[0]) nothing_allowed(allowed, f, row, rows ? count : m3_fragment_rows(f));
    else if (!status) take_allowed(allowed, &made, rows, rows ? count : made.y.rows, &setting);
    m3_recomputed_free(&made);
    m3_trace_free(trace);
    m3_given_free(&call);
    return status;
}
