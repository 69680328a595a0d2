/* Writes drawn operands of a file of cases as a safetensors file, for programs that do not draw them. */
#ifndef M3_ORACLE_OPERATORS_DRAWN_FILE_H
#define M3_ORACLE_OPERATORS_DRAWN_FILE_H

#include "oracle/operators/case_file.h"

/* `only`: one tensor, "6.w1", or one expert of it, "6.w1.17", which loses the first dimension; NULL: all. A tensor
 * keeps that name. M3_USAGE: there is no such drawn tensor, or none at all; M3_BAD_INPUT, M3_IO, M3_INTERNAL. */
int m3_write_drawn(const struct m3_case_file *cases, const char *path, const char *only, int threads,
                   struct m3_error *error);

#endif
