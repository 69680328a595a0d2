/* The results of a plug-in for a file of cases, each call in a watched child process (watch/). */
#ifndef M3_CLI_OP_PLUGIN_H
#define M3_CLI_OP_PLUGIN_H

#include "cli/cli.h"
#include "io/safetensors.h"
#include "io/temporary.h"
#include "oracle/operators/case_file.h"
#include "oracle/operators/make.h"

struct m3_plugin_task {
    const struct m3_operator_row *op;
    const char *cases;          /* a file of cases; NULL: they are made with `make` */
    const struct m3_make_options *make;
    struct m3_cli_ops *ops;
    const struct m3_engine *engine;
    int threads;
};

/* What the child that ran a case says of it. */
struct m3_plugin_outcome {
    char fault[512];
    int64_t at, bytes;          /* its file of results, inside `kept` */
};

struct m3_plugin_results {
    const char *cases, *results;                /* two files: what was judged, what the plug-in gave */
    struct m3_nameless made, given, one, kept;  /* made cases, all results, those of one case, those of each case */
    struct m3_plugin_outcome *outcomes;         /* [count] in memory that children share */
    const char **faults; /* [count] for m3_file_check */
    int64_t count;
    int printed; /* a child has printed why it failed */
};

/* Must run before the process uses threads. A case that ends its child, or writes where it must not, has a fault and no
 * results; after one that does not return, no further case runs. M3_UNAVAILABLE if the plug-in cannot be loaded or
 * replaces nothing that the operator calls. Close it in any case. */
int m3_plugin_results_make(struct m3_plugin_results *r, const struct m3_plugin_task *task, struct m3_error *error);
void m3_plugin_results_close(struct m3_plugin_results *r);

#endif
