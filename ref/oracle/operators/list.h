/* The table of operators as text for programs. */
#ifndef M3_ORACLE_OPERATORS_LIST_H
#define M3_ORACLE_OPERATORS_LIST_H

#include <stdio.h>

#include "base/status.h"
#include "oracle/operators/operators.h"

/* What an operand is to the user: "input", "weight" or "ids". */
const char *m3_role_name(const struct m3_operand_row *row);
/* One JSON object of type "operator" a line: operands, outputs and parameters. M3_IO, M3_INTERNAL. */
int m3_list_operators(FILE *out, struct m3_error *error);

#endif
