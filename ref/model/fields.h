/* Fields of a struct by name: FIELD=VALUE on the command line, JSON in a file. */
#ifndef M3_MODEL_FIELDS_H
#define M3_MODEL_FIELDS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { M3_FIELD_VALUES = 4, M3_FIELD_SHOWS = 4, M3_FIELD_CHOICES = 64 };

/* One row per field: names of an enumeration, default first; or a count; or a number. */
struct m3_field {
    const char *name;
    size_t offset;
    const char *values[M3_FIELD_VALUES];        /* none: a count; first is "": a number */
    double preset;                              /* of a count or a number */
    double most;                                /* of a number, from 0 on */
    /* Who looks for another value that explains a failure: */
    const char *shows[M3_FIELD_SHOWS]; /* patterns of the taps where it shows first; none: it explains none */
    int tried; /* of a count: the largest value that is tried */
    const char *with; /* a field without which one of the two changes nothing: both are tried together; NULL: none */
};

/* Its name, place and values; NULL: a count. */
#define M3_FIELD(type, field, ...) .name = #field, .offset = offsetof(struct type, field), .values = { __VA_ARGS__ }

/* The field of an assignment such as "pool=lse"; NULL if it has none of these. */
const struct m3_field *m3_field_of(const struct m3_field *fields, int count, const char *assignment);
/* Sets a field from such an assignment. M3_USAGE if the value is none of it. */
int m3_field_set(void *to, const struct m3_field *field, const char *assignment, struct m3_error *error);
/* "max|lse", "N" for a count, "NUMBER". */
void m3_field_choices(char text[M3_FIELD_CHOICES], const struct m3_field *field);
/* Have its values names, other than numbers? */
int m3_field_is_named(const struct m3_field *field);
/* "max", "0": its default. */
void m3_field_default(char text[M3_FIELD_CHOICES], const struct m3_field *field);
/* Sets all fields to their defaults. */
void m3_fields_reset(void *to, const struct m3_field *fields, int count);
/* Sets the field to what it is in `from`. */
void m3_field_copy(void *to, const void *from, const struct m3_field *field);
int m3_field_is_same(const void *a, const void *b, const struct m3_field *field);
/* "pool=lse": the field as it is. */
void m3_field_print(char *text, size_t size, const void *from, const struct m3_field *field);
/* Sets the field to its value number i, of those that are tried; 0: there are fewer. A number is its default, then NaN:
 * one that is to be found. */
int m3_field_set_tried(void *to, const struct m3_field *field, int i);
/* {"pool":"lse"}: the fields that differ from their defaults, in the order of the table. NULL if memory is short; to be
 * freed. */
char *m3_fields_json(const void *from, const struct m3_field *fields, int count);

#endif
