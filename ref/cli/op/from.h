/* The options of `m3ref op NAME --make CASES --from DUMP`. */
#ifndef M3_CLI_OP_FROM_H
#define M3_CLI_OP_FROM_H

#include "cli/paths.h"
#include "oracle/operators/from_dump/from_dump.h"

struct m3_cli_op_from {
    struct m3_from_dump options;
    int drawn;                  /* options of drawn cases were given */
};

/* Checks combinations of options. M3_USAGE. */
int m3_cli_op_from_check(const struct m3_cli_op_from *from, int is_make, struct m3_error *error);
void m3_cli_op_from_paths(struct m3_cli_paths *paths, const struct m3_cli_op_from *from);
/* Writes the cases, and prints one line about them. */
int m3_cli_op_from(const struct m3_cli_op_from *from, const struct m3_operator_row *op, const char *cases,
                   struct m3_error *error);

#endif
