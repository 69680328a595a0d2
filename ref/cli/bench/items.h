/* What `m3ref bench` can measure. */
#ifndef M3_CLI_BENCH_ITEMS_H
#define M3_CLI_BENCH_ITEMS_H

#include <stdint.h>

#include "base/status.h"

struct m3_bench_options {
    const char *folder;         /* `vision`: a model directory */
    int64_t keys;               /* of the items that decode one token: places that it sees */
    int64_t threads, runs;
    int cpu_time;               /* measure CPU time of the process instead of the time that passes */
};

struct m3_bench_result {
    const char *name;
    double seconds;             /* of the fastest run */
    int by_bytes;
    double rate;                /* bytes or operations per second */
    const char *limit;          /* the limit of the machine that belongs to the item, or NULL, */
    double limit_rate;          /* as measured between the runs */
    double goal;                /* share of the limit; 0: none */
    int64_t peak_bytes;
};

int m3_bench_is_item(const char *name);

/* Measures one item. M3_USAGE, M3_BAD_INPUT, M3_MISSING, M3_INTERNAL. */
int m3_bench_measure(struct m3_bench_result *r, const char *name, const struct m3_bench_options *o,
                     struct m3_error *error);

#endif
