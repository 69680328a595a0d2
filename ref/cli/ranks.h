/* A command that was started as several ranks by mpirun: rank 0 runs it, the others help (ref/ranks/). */
#ifndef M3_CLI_RANKS_H
#define M3_CLI_RANKS_H

#include "cli/cli.h"
#include "model/model.h"

/* Reaches the other ranks, if there are any; `divides`: does the command? Returns 1 on ranks that have nothing to run,
 * after they have helped; 0 on the one that runs the command, or a failure in *error. */
int m3_cli_ranks_begin(const char *command, int divides, struct m3_error *error);
void m3_cli_ranks_end(void);

/* The ranks divide the passes over a model that was opened from `path`; end -1: of all layers. Does nothing alone. */
int m3_cli_ranks_join(struct m3_model *model, const char *path, int64_t first, int64_t end, struct m3_error *error);

/* Operators of others exist in one process. M3_USAGE if there are several. */
int m3_cli_ranks_refuse_ops(const struct m3_cli_ops *ops, struct m3_error *error);

/* An option that exists in one process. M3_USAGE if there are several. */
int m3_cli_ranks_refuse(const char *option, struct m3_error *error);

/* Prints what each rank has done, as text or as a line of JSON. Does nothing alone. */
int m3_cli_ranks_print(const struct m3_config *config, int json, struct m3_error *error);

#endif
