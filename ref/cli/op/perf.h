/* m3ref op NAME --perf: the time of an operator beside the limits of the machine. */
#ifndef M3_CLI_OP_PERF_H
#define M3_CLI_OP_PERF_H

#include "cli/cli.h"
#include "oracle/operators/make.h"

struct m3_perf_task {
    const struct m3_operator_row *op;
    const struct m3_make_options *make; /* the drawn cases are timed */
    struct m3_cli_ops *ops;             /* a plug-in, timed beside the reference; name NULL: none */
    const struct m3_engine *engine;
    int threads, json;
};

/* Measures and prints; must run before the process uses threads. M3_UNAVAILABLE if the plug-in cannot be loaded or
 * replaces nothing that the operator calls; M3_INTERNAL if it crashes. *printed: a child has printed the error. */
int m3_perf(const struct m3_perf_task *task, int *printed, struct m3_error *error);

#endif
