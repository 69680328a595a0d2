/* What `m3ref estimate` is about: a config alone, or a model directory with its weight files counted. */
#ifndef M3_CLI_ESTIMATE_SOURCE_H
#define M3_CLI_ESTIMATE_SOURCE_H

#include "estimate/estimate.h"
#include "estimate/foreign.h"

struct m3_cli_source {
    struct m3_foreign foreign;
    int is_foreign;
    struct m3_config own;
    const struct m3_config *config;     /* one of the two */
    struct m3_checkpoint *files;        /* NULL: none */
    struct m3_census of_config, of_files;
};

struct m3_cli_source_request {
    const char *path;
    int from_tensors;                   /* the weight files must be there */
    struct m3_estimate_request *request;        /* receives what was counted; says modules and layout */
};

int m3_cli_source_open(struct m3_cli_source *s, const struct m3_cli_source_request *a, struct m3_error *notes,
                       struct m3_error *error);
void m3_cli_source_close(struct m3_cli_source *s);

#endif
