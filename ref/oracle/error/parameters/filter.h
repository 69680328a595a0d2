/* Do the errors of a tap line up with its derivative by a parameter? A weighted fit through zero, with a standard error
 * that holds for errors that elements share. SPEC 7.15. */
#ifndef M3_ORACLE_ERROR_PARAMETERS_FILTER_H
#define M3_ORACLE_ERROR_PARAMETERS_FILTER_H

#include <stdint.h>

#include "oracle/error/parameters/filter_elements.h"

/* Sums over the elements of a group, which may share roundings: of a row, or of a channel. */
struct m3_filter_group {
    double lines_up, size; /* sum g d / v, sum g^2 / v */
};

struct m3_filter {
    struct m3_filter_group all;
    double biased, spread; /* sum |g| b / v, sum |g| / sqrt(v) */
    double shape; /* sum g s / v */
    double squares; /* sum d^2 / v */
    int64_t count;
    struct m3_filter_group *rows, *columns; /* [row_count], [column_count]: the same elements, grouped twice; a
                                                 * single column says nothing */
    int64_t row_count, column_count;
};

void m3_filter_add(struct m3_filter *filter, const struct m3_filter_elements *elements);

struct m3_fit {
    double change; /* of the parameter, as the errors suggest */
    double standard_error;
    double z; /* in standard deviations of honest errors; 0: nothing can be said */
    double explained; /* share of sum d^2 / v that the change explains */
    double mean; /* the change that roundings to one side may cause */
    double length; /* of g in standard deviations of the errors that the change does not explain */
};

struct m3_fit m3_filter_fit(const struct m3_filter *filter);

#endif
