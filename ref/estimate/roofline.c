#include <ctype.h>
#include <math.h>
#include <string.h>

#include "estimate/private/cards.h"
#include "estimate/private/parts.h"

/* Upper case, blanks, '-' and '_' do not count: "RTX PRO 6000" is rtx-pro-6000. */
static int same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, " -_");
        b += strspn(b, " -_");
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return 0;
        if (!*a) return 1;
    }
}

const struct m3_gpu *m3_gpu_named(const char *name)
{
    for (int i = 0; i < m3_gpu_count; i++)
        if (same_name(name, m3_gpus[i].name)) return &m3_gpus[i];
    return NULL;
}

const char *m3_gpu_name(int i) { return i < m3_gpu_count ? m3_gpus[i].name : NULL; }

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
