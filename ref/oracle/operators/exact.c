#include "oracle/operators/exact.h"

#include <math.h>

#include "oracle/error/tiers/tiers.h"
#include "oracle/operators/evaluate.h"

/* May products see other numbers than the operands, or be added in rounded parts? */
static int rounds_more(const struct m3_profile *profile, const char *tap)
{
    if (!profile) return 0;
    return m3_profile_input(profile, tap).dtype != M3_DTYPES || m3_profile_partials(profile, tap).ranks > 0 ||
           m3_profile_weights(profile, tap) > 0 || m3_profile_truncates(profile);
}

static void judge(struct m3_finding *stage, const struct m3_tensor *got, const double *want, enum m3_dtype stored,
                  const struct m3_results *results, int64_t rows)
{
    const int64_t width = got->shape[0] > 0 ? got->count / got->shape[0] : 0;
    const int64_t judged = results->rows ? results->count : rows;
    for (int64_t r = 0; r < judged; r++) {
        const int64_t number = results->rows ? results->rows[r] : r, from = got->shape[0] == rows ? number : r;
        for (int64_t i = 0; i < width; i++) {
            const double x = m3_decode(got->dtype, got->data, from * width + i);
            const double y = m3_stored_as(want[r * width + i], stored);
            if (x == y || stage->verdict == M3_VERDICT_FAIL) continue;
            stage->verdict = M3_VERDICT_FAIL;
            stage->tiers.tiers |= M3_TIER_HARD;
            m3_finding_note(stage, "every sum is exact in this case: the result must be, too");
            stage->violations = 1;
            stage->tiers.headroom = INFINITY;
            m3_finding_place(stage, got, number, i, got->rank);
            stage->got = x, stage->want = y, stage->off.max_abs = fabs(x - y);
        }
    }
}

int m3_check_exact(struct m3_finding *stages, int stage_count, const struct m3_fragment *f,
                   const struct m3_results *results, const struct m3_profile *profile, struct m3_ctx *ctx,
                   struct m3_error *error)
{
    const struct m3_evaluation_how how = { .engine = m3_engine_f64(),
                                           .threads = ctx->threads,
                                           .linear = M3_LINEAR_ORDERED,
                                           .rows = results->rows,
                                           .count = results->count };
    struct m3_evaluation truth;
    int status = m3_evaluate(&truth, f, &how, error);
    for (int i = 0; !status && i < stage_count; i++) {
        const struct m3_operand_row *output = &f->op->outputs[i];
        char name[96];
        if (!stages[i].candidate || !m3_is_judged(stages[i].verdict) || stages[i].selection) continue;
        if (output->role != M3_ROLE_TAP ||
            m3_tap_name(name, sizeof name, output->tap, m3_fragment_layer(f, output->tap)))
            continue;
        if (rounds_more(profile, name)) continue;
        const enum m3_dtype stored = profile ? m3_profile_dumped(profile, name) : M3_F32;
        judge(&stages[i], &results->outputs[i], truth.outputs[i].data, stored, results, m3_fragment_rows(f));
    }
    m3_evaluation_free(&truth);
    return status;
}
