/* Semantics fields by name: FIELD=VALUE on the command line, JSON in a dump. SPEC 4. */
#ifndef M3_MODEL_SEMANTICS_H
#define M3_MODEL_SEMANTICS_H

#include "base/semantics.h"
#include "base/status.h"

/* Sets a field from an assignment such as "pool=lse". M3_USAGE if there is no such field or value. */
int m3_semantics_set(struct m3_semantics *semantics, const char *assignment, struct m3_error *error);

/* {"pool":"lse"}: the fields that differ from the released reading, in the order of the struct. NULL if memory is
 * short; to be freed. */
char *m3_semantics_json(const struct m3_semantics *semantics);

/* Reads a reading from such JSON; fields that it does not contain keep their released value. Unreadable JSON, or NULL,
 * means the released reading. */
void m3_semantics_read(struct m3_semantics *semantics, const char *json);
/* Are they the same reading, as read so? */
int m3_semantics_are_same(const char *a, const char *b);

#endif
