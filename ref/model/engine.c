#include "model/engine.h"

#include "model/backward/gradient.h"
#include "model/divided/share.h"
#include "model/forward/forward.h"
#include "ops/backward.h"
#include "ops/fast/kernels.h"
#include "ops/operators.h"
#include "ops/outside.h"

static const char *kernels(void) { return m3_kernels()->name; }

const struct m3_engine *M3_ENGINE(void)
{
    static const struct m3_engine engine = {
        .precision = sizeof(real) == sizeof(double) ? "f64" : "f32",
        .kernels = kernels,
        .inner_loops = m3_kernels,
        .real_bytes = sizeof(real),
        .ops = &m3_fast_ops,
        .back = &m3_fast_backward_ops,
        .plain = &m3_plain_ops,
        .outside = m3_outside_replace,
        .watched = m3_outside_replace_changed,
        .call = m3_call_by_name,
        .forward = m3_forward,
        .mtp = m3_forward_mtp,
        .obey = m3_share_obey,
        .tap = m3_forward_tap,
        .differentiate = m3_differentiate,
        .gradient = m3_gradient,
    };
    return &engine;
}
