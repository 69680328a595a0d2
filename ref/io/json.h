/* JSON by jansson, with no byte lost: not one of a name, and no member of an object.
 *
 * Where memory is short jansson may go on without a word: a number loses its last digit as it is read, an object a
 * name as it is written. So a failed allocation is noted, for the whole process because jansson's allocator is set for
 * the process, and the note stays: reading fails, no file is committed (io/new_file.h), and a command ends with
 * M3_INTERNAL. */
#ifndef M3_IO_JSON_H
#define M3_IO_JSON_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

/* Notes every failure of jansson's allocator from now on, and forgets those before. Once, at the start of the program:
 * a library leaves the process as it is. */
void m3_json_watch(void);
int m3_json_failed(void);

/* The whole of a file; of a text, with `name` for its path in findings. M3_BAD_INPUT says line and column; *root is
 * NULL on failure. Names that occur twice in an object are refused. */
int m3_json_load(json_t **root, const char *path, struct m3_error *error);
int m3_json_parse(json_t **root, const char *text, size_t length, const char *name, struct m3_error *error);

/* As json_object_set_new and json_array_append_new. A failure, also one before that made `value` NULL, is noted. */
void m3_json_set(json_t *object, const char *key, json_t *value);
void m3_json_append(json_t *array, json_t *value);
/* Puts every member of `more` into `object`, and drops `more`. A failure is noted. */
void m3_json_update(json_t *object, json_t *more);

json_t *m3_json_number(double value); /* "nan", "inf", "-inf" as strings */
/* Writes one object on one line, and drops it; NULL: memory is short. M3_IO, M3_INTERNAL. */
int m3_json_line(FILE *out, json_t *object, struct m3_error *error);

/* Is `name`, of a profile or map, that of a file? Others are built in. */
int m3_is_json_path(const char *name);

#endif
