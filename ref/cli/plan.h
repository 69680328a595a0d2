/* --plan: what run, grad, check and generate will need. */
#ifndef M3_CLI_PLAN_H
#define M3_CLI_PLAN_H

#include "cli/cli.h"
#include "oracle/judge/sample/sample.h"

struct m3_cli_plan {
    const char *model;
    const struct m3_cli_input *input;
    int64_t first, end;         /* layers that run; end 0: all */
    int f32_passes, f64_passes; /* whole passes of the two engines */
    int with_bounds;            /* passes of the double engine that also compute error bounds */
    int rounded;                /* passes that round as a profile allows */
    int recomputed;             /* times that every operator is recomputed from a dump's inputs */
    struct m3_sample_wish rows; /* of a dump, those that are judged; then no pass is needed */
    int64_t rows_of_long;       /* so many of a long one, if `rows` says nothing; 0: all */
    int directions;             /* the errors of a dump are compared with what known mistakes would make */
    int gradients;              /* the pass is differentiated, and gradients are written, not taps */
    int64_t new_tokens;         /* of generate, the first from the pass over the prompt; 0: none */
    int has_cache;
    int64_t cached;             /* places before the case's */
    int writes_taps;            /* numbers for each element of a tap that are written: 1, or 3 with bounds */
    int copies;                 /* of them: the state of --resume holds a second; 0 as 1 */
    const char *taps;           /* patterns; NULL: all */
    int hashes;                 /* the weights are hashed, because an output states their hashes */
    /* Checks the length of the case; NULL: no check. */
    int (*check)(const void *self, const struct m3_case *c, const struct m3_config *config, struct m3_error *error);
    const void *self;
};

/* Reads the config and the case, prints the plan, and measures the machine for a second or two. */
int m3_cli_plan(const struct m3_cli_plan *plan, struct m3_error *notes, struct m3_error *error);

#endif
