/* Does another reading of the model explain a failure? Public engines follow different ones (SPEC 4). */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "model/semantics.h"
#include "oracle/check/blame_honest.h"
#include "oracle/check/private/check.h"

/* Where each reading first shows. A layer's output shows any of them. */
static const struct {
    const char *taps[4], *reading;
} readings[] = {
    { { "*.index.block_scores", "*.index.blocks", "*.attn" }, "pool=lse" },
    { { "*.index.block_scores", "*.index.blocks", "*.attn" }, "index_scale=rsqrt" },
    { { "*.index.blocks", "*.attn", "*.attn_lse" }, "selection=shared" },
    { { "*.attn", "*.attn_lse" }, "selection=union" },
    { { "*.index.blocks", "*.attn", "*.attn_lse" }, "init_blocks=1" },
    { { "*.index.blocks", "*.attn", "*.attn_lse" }, "local_blocks=2" },
    { { "*.mlp.act", "*.mlp", "*.moe.*" }, "gate_clamp=both" },
    { { "vision.*.attn" }, "vision_boundary=none" },
    { { "mtp.*" }, "mtp_handover=post_norm" },
    { { "mtp.*" }, "mtp_embed=fused" },
    { { "mtp.*" }, "mtp_zero_position0=true" },
    { { "mtp.*" }, "mtp_join=additive" },
};

static int shows_at(size_t i, const struct m3_blamed *culprit)
{
    int shows = culprit->operators > 1;
    for (size_t k = 0; k < sizeof readings[i].taps / sizeof *readings[i].taps && readings[i].taps[k]; k++)
        shows |= fnmatch(readings[i].taps[k], culprit->name, 0) == 0;
    return shows;
}

/* Is nothing wrong by this reading, although as much is judged as by the model's own? */
static int try_reading(int *explains, const struct m3_check *check, const struct m3_semantics *semantics,
                       const struct m3_check_plan *plan, const struct m3_safetensors *candidate, struct m3_error *error)
{
    struct m3_setting setting = *plan->setting;
    const struct m3_blame_options options = { .profile = plan->profile, .force = 1, .progress = plan->progress };
    struct m3_blame blame;
    setting.semantics = semantics;
    const int status = m3_blame_honest(&blame, &setting, candidate, &options, plan->row_runs, error);
    *explains = !status && blame.failed == 0 && blame.suspect == 0 && blame.not_comparable == 0 &&
                blame.judged + check->by_comparison >= check->judged && blame.extra == check->blame.extra;
    m3_blame_free(&blame);
    return status;
}

int m3_check_readings(struct m3_check *check, const struct m3_check_plan *plan, const struct m3_safetensors *candidate,
                      struct m3_error *error)
{
    const struct m3_blamed *culprit = check->blame.culprit;
    const struct m3_semantics *own = plan->setting->semantics;
    int status = M3_OK, explains = 0;
    for (size_t i = 0; !status && culprit && i < sizeof readings / sizeof *readings; i++) {
        struct m3_semantics other = *own;
        if (!shows_at(i, culprit)) continue;
        status = m3_semantics_set(&other, readings[i].reading, error);
        if (!status && memcmp(&other, own, sizeof other) == 0) continue;
        if (!status) status = try_reading(&explains, check, &other, plan, candidate, error);
        if (status || !explains) continue;
        snprintf(check->reading, sizeof check->reading, "%s", readings[i].reading);
        break;
    }
    return status;
}
