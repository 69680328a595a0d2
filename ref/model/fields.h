/* Fields of a struct by name: FIELD=VALUE on the command line, JSON in a file. */
#ifndef M3_MODEL_FIELDS_H
#define M3_MODEL_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { M3_FIELD_VALUES = 4 };

/* One row per field: names of an enumeration, default first; or a count; or a number. */
struct m3_field {
    const char *name;
    size_t offset;
    const char *values[M3_FIELD_VALUES];        /* none: a count; first is "": a number */
    double preset;                              /* of a count or a number */
    double most;                                /* of a number, from 0 on */
};

/* The field of an assignment such as "pool=lse"; NULL if it has none of these. */
const struct m3_field *m3_field_of(const struct m3_field *fields, int count, const char *assignment);
/* Sets a field from such an assignment. M3_USAGE if the value is none of it. */
int m3_field_set(void *to, const struct m3_field *field, const char *assignment, struct m3_error *error);
/* {"pool":"lse"}: the fields that differ from their defaults, in the order of the table. NULL if memory is short; to be
 * freed. */
char *m3_fields_json(const void *from, const struct m3_field *fields, int count);

#endif
