/* The parameters of operators that are not shapes: fields of the config and of the semantics. */
#ifndef M3_ORACLE_OPERATORS_PARAMETERS_H
#define M3_ORACLE_OPERATORS_PARAMETERS_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"
#include "io/config.h"

enum m3_parameter_type {
    M3_PARAMETER_NUMBER, /* double */
    M3_PARAMETER_COUNT, /* int64_t */
    M3_PARAMETER_WORD /* a field of the semantics, by its name; or the activation */
};

struct m3_call_parameter {
    const char *name;
    enum m3_parameter_type type;
    const char *value; /* the default, that of the released model; NULL: that of the semantics */
    const char *what;
    /* Of a number or a count: */
    enum m3_parameter_of { M3_OF_CONFIG, M3_OF_SEMANTICS, M3_OF_CALL } of;
    size_t at, at_in_vision; /* its place there; for operators of pictures another one, if not 0 */
    double least;
    int is_even;
};

enum { M3_PARAMETER_TEXT = 64 };
/* What it may be: "max|lse", or "number". */
void m3_parameter_choices(char text[M3_PARAMETER_TEXT], const struct m3_call_parameter *p);
/* The i-th of a comma-separated list, as operators name theirs, "eps=1e-5,theta"; NULL after the last. `value`, if
 * not NULL, receives its default, which the list may replace. */
const struct m3_call_parameter *m3_parameter_in(char value[M3_PARAMETER_TEXT], const char *list, int i);

/* What the parameters of a call are. */
struct m3_parameters {
    struct m3_config *config;
    struct m3_semantics *semantics;
    int64_t p0, id, merge;
    int in_vision; /* eps and theta are the tower's */
};

/* Where a number (double) or count (int64_t) stands. */
void *m3_parameter_place(const struct m3_parameters *in, const struct m3_call_parameter *p);

/* A number or count as it is; a word as it is, in `text`. */
double m3_parameter_number(const struct m3_parameters *in, const struct m3_call_parameter *p);
const char *m3_parameter_word(char text[M3_PARAMETER_TEXT], const struct m3_parameters *in,
                              const struct m3_call_parameter *p);

/* Sets the defaults of all parameters in `list`, then the values of `given` (a JSON object or NULL). `name` is for the
 * error. M3_BAD_INPUT for a parameter that is not in the list, or a value of another type or out of range. */
int m3_parameters_set(struct m3_parameters *to, const char *list, const json_t *given, const char *name,
                      struct m3_error *error);

#endif
