#include "oracle/judge/check/blame_honest.h"

#include "base/context.h"
#include "oracle/error/profile.h"
#include "oracle/variants/follow.h"
#include "oracle/variants/honest_rows.h"

static int can_be_drawn(const struct m3_profile *profile)
{
    const struct m3_arithmetic how = m3_profile_arithmetic(profile, 1);
    return how.u == 0x1p-24 && !m3_profile_truncates(profile);
}

int m3_honest_can_run(const struct m3_setting *s)
{
    return can_be_drawn(s->profile) && s->the_case->p0 == s->the_case->shift;
}

int64_t m3_honest_runs_of(const struct m3_profile *profile)
{
    return can_be_drawn(profile) ? m3_honest_rows_needed(profile) : 0;
}

/* For the runs that blame asks for. */
struct running {
    int64_t row_runs, double_passes;
    struct m3_progress progress;
};

/* What honest implementations make of the candidate's own layer outputs. A profile from which none can be drawn, and a
 * case after cached places, leave the taps as bounds judged them. */
static int run_honest(void *self, const struct m3_setting *s, struct m3_safetensors **truth,
                      struct m3_safetensors **rows, const struct m3_safetensors *candidate, const char *taps,
                      struct m3_error *error)
{
    struct running *of = self;
    if (!m3_honest_can_run(s)) return M3_OK;
    const int64_t runs = of->row_runs >= 0 ? of->row_runs
                                           : m3_follow_runs(s->profile, candidate, s->model, s->part.first,
                                                            m3_setting_end(s), s->the_case->T);
    const struct m3_envelope_plan plan = {
        .model = s->model,
        .c = s->the_case,
        .semantics = s->semantics,
        .profile = s->profile,
        .linear = s->ctx->linear,
        .threads = s->ctx->threads,
        .row_runs = runs,
        .seed = 1,
        .taps = taps,
        .command = "m3ref blame",
        .follow = candidate,
        .first_layer = s->part.first,
        .end_layer = s->part.end,
        .hidden = s->part.hidden,
        .progress = of->progress,
    };
    of->double_passes++;
    return m3_follow_rows(truth, rows, &plan, error);
}

int m3_blame_honest(struct m3_judgement *result, const struct m3_setting *setting,
                    const struct m3_safetensors *candidate, const struct m3_blame_options *options, int64_t row_runs,
                    struct m3_error *error)
{
    struct m3_blame_options own = *options;
    struct running running = { .row_runs = row_runs, .progress = options->progress };
    if (row_runs != 0) own.honest = run_honest;
    own.honest_self = &running;
    const int status = m3_blame(result, setting, candidate, &own, error);
    result->double_passes += running.double_passes;
    return status;
}
