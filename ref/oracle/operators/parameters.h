/* The parameters of operators that are not shapes: fields of the config and of the semantics. */
#ifndef M3_ORACLE_OPERATORS_PARAMETERS_H
#define M3_ORACLE_OPERATORS_PARAMETERS_H

#include <jansson.h>

#include "base/status.h"
#include "io/config.h"

/* clang-format off */
enum m3_parameter_type { M3_PARAMETER_NUMBER, M3_PARAMETER_COUNT, M3_PARAMETER_WORD };
/* clang-format on */

struct m3_call_parameter {
    const char *name;
    enum m3_parameter_type type;
    const char *value; /* the default, that of the released model; "" for counts that follow from no default */
    const char *words; /* of a word: "max|lse" */
    const char *what;
};

/* NULL: no such parameter. */
const struct m3_call_parameter *m3_parameter_named(const char *name);
/* The i-th of a comma-separated list, as operators name theirs, "eps=1e-5,theta"; NULL after the last. `value`, if
 * not NULL, receives its default, which the list may replace. */
enum { M3_PARAMETER_TEXT = 32 };
const struct m3_call_parameter *m3_parameter_in(char value[M3_PARAMETER_TEXT], const char *list, int i);

/* What the parameters of a case set. */
struct m3_parameters {
    struct m3_config *config;
    struct m3_semantics *semantics;
    int64_t p0, id, merge;
    int in_vision; /* eps and theta are the tower's */
};

/* Sets the defaults of all parameters in `list`, then the values of `given` (a JSON object or NULL). `name` is for the
 * error. M3_BAD_INPUT for a parameter that is not in the list, or a value of another type or out of range. */
int m3_parameters_set(struct m3_parameters *to, const char *list, const json_t *given, const char *name,
                      struct m3_error *error);

#endif
