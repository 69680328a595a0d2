/* JSON by jansson, without loss: no digit of a number and no member of an object disappears.
 *
 * When memory is short jansson may continue silently: a number loses its last digit when it is read, an object loses a
 * name when it is written; or it writes beyond its buffers, or aborts. A failed allocation is therefore recorded, for
 * the whole process because jansson's allocator is set for the process, and the record stays: reading fails, no file
 * is committed (io/new_file.h), and a command ends with M3_INTERNAL. Until then jansson gets memory from a reserve; if
 * that is used up too, the process ends at once. */
#ifndef M3_IO_JSON_H
#define M3_IO_JSON_H

#include <jansson.h>
#include <stdio.h>

#include "base/status.h"

/* Records every failure of jansson's allocator from now on, and clears the record and the reserve. Call it once, at the
 * start of the program; the library alone does not change the process. */
void m3_json_watch(void);
int m3_json_failed(void);

/* Of any file of JSON, and of the header of a safetensors file. */
enum { M3_JSON_MOST_BYTES = 100000000 };

/* Loads a whole file; or a text, with `name` as its path in messages. M3_BAD_INPUT names line and column; *root is
 * NULL on failure. An object with a duplicate name is refused, and so is a text whose values would take more than 32
 * bytes of memory per byte and 1 MiB, or more than 512 MiB. */
int m3_json_load(json_t **root, const char *path, struct m3_error *error);
/* The same without the limit of 512 MiB: a server's answer to a long prompt. */
int m3_json_load_long(json_t **root, const char *path, struct m3_error *error);
int m3_json_parse(json_t **root, const char *text, size_t length, const char *name, struct m3_error *error);

/* The same for a text that is metadata; a duplicate name replaces the first. NULL on any failure. */
json_t *m3_json_of_text(const char *text);

/* The value as text, to be freed; NULL if memory is, or was, short. `flags` are those of json_dumps. */
char *m3_json_dump(const json_t *value, size_t flags);

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
