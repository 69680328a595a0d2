/* What a pass over a case will need, before any weight is read: files, bytes, operations. */
#ifndef M3_ESTIMATE_PLAN_H
#define M3_ESTIMATE_PLAN_H

#include <stdio.h>

#include "base/status.h"
#include "io/config.h"

struct m3_pass_plan {
    int64_t first, end;         /* layers */
    int64_t T;
    int64_t needed, absent;     /* weight files; those that are absent are counted in both */
    int64_t all;                /* weight files of the model */
    int64_t bytes;              /* of the files that are needed and present */
    int64_t flops;              /* of one pass, of its matrix products and attention */
    int64_t tap_elements;       /* of all taps of the pass that match the patterns */
    int64_t widest;             /* bytes of the widest activation of a layer, in double */
    int64_t scores;             /* bytes of all block scores of a layer, in double: only bounds hold so many */
};

/* A pass over one token, behind a cache of the others. */
struct m3_token_plan {
    int64_t flops;
    double weights;             /* bytes of the weights it reads, */
    double all_weights;         /* and of all, in BF16 */
    double keys;                /* bytes of the keys and values it reads, */
    double all_keys;            /* and of all, in float */
};
int m3_plan_token(struct m3_token_plan *plan, const struct m3_config *config, int64_t context, struct m3_error *error);

/* Lists the files on `out`, one a line, if it is not NULL. end 0: all layers. Errors as for m3_model_open_layers, but an
 * absent weight file is none. taps: patterns; NULL: all. */
int m3_plan_pass(struct m3_pass_plan *plan, FILE *out, const char *folder, const struct m3_config *config,
                 int64_t first, int64_t end, int64_t T, const char *taps, struct m3_error *error);

#endif
