#include <math.h>
#include <string.h>

#include "estimate/private/parts.h"

#define GIGA INT64_C(1000000000)
#define MIB INT64_C(1048576)

const struct m3_gpu *m3_gpu_named(const char *name)
{
    static const struct m3_gpu gpus[] = {
        /* name      BF16/s          FP8/s           bytes/s      on the box  by the driver */
        { "a100", 312000 * GIGA, 0, 2000 * GIGA, 80 * GIGA, 81920 * MIB },
        { "h100", 989000 * GIGA, 1979000 * GIGA, 3350 * GIGA, 80 * GIGA, 81559 * MIB },
        { "h200", 989000 * GIGA, 1979000 * GIGA, 4800 * GIGA, 141 * GIGA, 143771 * MIB },
        { "b200", 2250000 * GIGA, 4500000 * GIGA, 8000 * GIGA, 180 * GIGA, 0 },
    };
    for (size_t i = 0; i < sizeof gpus / sizeof gpus[0]; i++)
        if (strcmp(name, gpus[i].name) == 0) return &gpus[i];
    return NULL;
}

int m3_compute_bound(const struct m3_estimate *e)
{
    const double compute = m3_quantity(e, "compute_bound_seconds"), reads = m3_quantity(e, "bandwidth_bound_seconds");
    return isnan(compute + reads) ? -1 : compute >= reads;
}

int m3_estimate_fits(const struct m3_estimate *e)
{
    const m3_wide room = m3_estimate_figure(e, "expert_parallel.free_bytes_per_card").over;
    const m3_wide sequence = (m3_wide)m3_whole(e, "kv_bytes_per_sequence.total") + e->request.activation_bytes;
    return room * e->request.gpus >= e->request.batch * sequence;
}
