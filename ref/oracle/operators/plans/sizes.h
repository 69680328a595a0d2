/* The sizes of a case: those of a class, those that are given by letter, and those that follow from others. */
#ifndef M3_ORACLE_OPERATORS_SIZES_H
#define M3_ORACLE_OPERATORS_SIZES_H

#include "oracle/operators/make.h"
#include "oracle/operators/plans/plans.h"

/* Fills dims, by letter, and *p0, the places before row 0. `plan` NULL: a case of drawn values, whose sizes are those of
 * the class in `options` but for those that options->given names. What is given is kept, and the rest follows it.
 * M3_USAGE: it names a size that the operator does not have, or sizes that contradict each other. */
int m3_sizes_choose(int64_t dims[128], int64_t *p0, const struct m3_operator_row *op, const struct m3_plan *plan,
                    const struct m3_make_options *options, uint64_t key, struct m3_error *error);

/* The value of a parameter that is a size at the same time, such as R or block; 0: the parameter is none. */
int64_t m3_size_of_parameter(const char *name, const int64_t dims[128]);

#endif
