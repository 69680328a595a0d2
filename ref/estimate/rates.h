/* How fast this machine does the work of a pass (work.h), measured for about a second.
 *
 * What runs is the engine itself, one layer of each kind that the model has, over as many rows at once as the pass has
 * (at most 512) and with as many rows for each expert. Widths are reduced until that takes a fraction of a second. The
 * weights are noise, stored as the model's are, in pages that are mapped like those of a file that is in memory. */
#ifndef M3_ESTIMATE_RATES_H
#define M3_ESTIMATE_RATES_H

#include "estimate/work.h"
#include "model/engine.h"

struct m3_rates_request {
    const struct m3_engine *engine;
    const struct m3_config *config;
    const struct m3_weight *stored;     /* a matrix of the model, for dtype and scales */
    int64_t first, end;                 /* layers */
    int64_t T, p0;                      /* rows of the pass, and cached places before them */
    int has_cache;                      /* then few rows leave the weights' pages mapped */
    enum m3_linear linear;
    int threads;
};

struct m3_rates {
    double seconds[M3_WORK_KINDS], work[M3_WORK_KINDS];         /* measured: rate is work / seconds */
};

/* M3_INTERNAL, or the status of an operator that fails. */
int m3_rates_measure(struct m3_rates *rates, const struct m3_rates_request *request, struct m3_error *error);
/* The time that work takes at these rates. */
double m3_rates_time(const struct m3_rates *rates, const struct m3_work *work, enum m3_work_kind kind);

/* Bytes a second with which pages of these files come from the disk, and the share of their bytes that is in memory
 * already. 0 for the rate if all are. */
struct m3_disk_rates {
    double resident, rate;
};
void m3_rates_disk(struct m3_disk_rates *rates, const struct m3_checkpoint *checkpoint);

#endif
