/* Is a named parameter of the model a little off? Tests the errors of a recomputed tap against its derivatives by the
 * parameters of its operator. SPEC 7.15. */
#ifndef M3_ORACLE_ERROR_PARAMETERS_PARAMETERS_H
#define M3_ORACLE_ERROR_PARAMETERS_PARAMETERS_H

#include "oracle/error/parameters/filter.h"
#include "oracle/error/recompute.h"
#include "oracle/error/tiers/tiers.h"

/* A tap that was recomputed, and its verdict so far. */
struct m3_parameter_question {
    enum m3_tap tap;
    int64_t layer;
    const struct m3_two_sides *values;         /* rows one after the other */
    const int64_t *numbers;                     /* [rows] of the call */
    int64_t rows, width;
};

/* Adds to the result what looks like another value of a parameter: then a tap that passed is suspect, by tier
 * PARAMETER. One that fails keeps its verdict and tiers. One that fails or is suspect anyway names the parameter
 * only if it explains half of the squared error. The trace must hold the operands, as after
 * m3_trace_recompute of the tap. M3_INTERNAL. */
int m3_parameters_test(struct m3_tier_result *result, struct m3_trace *trace, const struct m3_setting *setting,
                       const struct m3_parameter_question *question, struct m3_error *error);

/* How often the errors hold `by` [rows,width], such as what a known mistake would add: fitted as the derivative by a
 * parameter is. Elements where it is 0 or no number have no part. M3_INTERNAL. */
int m3_direction_fit(struct m3_fit *fit, const struct m3_setting *setting, const struct m3_parameter_question *question,
                     const double *by, struct m3_error *error);

enum { M3_PARAMETER_TEXT = 192 };
/* "alpha looks like 1.7 +- 0.0002, should be 1.702" */
void m3_parameter_say(char *text, size_t size, const struct m3_parameter *found);

#endif
