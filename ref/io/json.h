/* JSON by jansson, without loss: no digit of a number and no member of an object disappears.
 *
 * When memory is short jansson may continue silently: a number loses its last digit when it is read, an object loses a
 * name when it is written. A failed allocation is therefore recorded, for the whole process because jansson's
 * allocator is set for the process, and the record stays: reading fails, no file is committed (io/new_file.h), and a
 * command ends with M3_INTERNAL. */
#ifndef M3_IO_JSON_H
#define M3_IO_JSON_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

/* Records every failure of jansson's allocator from now on, and clears the record. Call it once, at the start of the
 * program; the library alone does not change the process. */
void m3_json_watch(void);
int m3_json_failed(void);

/* Loads a whole file; or a text, with `name` as its path in messages. M3_BAD_INPUT names line and column; *root is
 * NULL on failure. An object with a duplicate name is refused. */
int m3_json_load(json_t **root, const char *path, struct m3_error *error);
int m3_json_parse(json_t **root, const char *text, size_t length, const char *name, struct m3_error *error);

/* Like json_object_set_new and json_array_append_new. A failure is recorded, also an earlier one that made `value`
 * NULL. */
void m3_json_set(json_t *object, const char *key, json_t *value);
void m3_json_append(json_t *array, json_t *value);
/* Moves every member of `more` into `object` and frees `more`. A failure is recorded. */
void m3_json_update(json_t *object, json_t *more);

json_t *m3_json_number(double value); /* "nan", "inf", "-inf" as strings */
/* Writes one object on one line and frees it; NULL means that memory was short. M3_IO, M3_INTERNAL. */
int m3_json_line(FILE *out, json_t *object, struct m3_error *error);

/* Is the name of a profile or map a path? Other names are built in. */
int m3_is_json_path(const char *name);

#endif
