/* Semantics fields by name: FIELD=VALUE on the command line, JSON in a dump. SPEC 4. */
#ifndef M3_MODEL_SEMANTICS_H
#define M3_MODEL_SEMANTICS_H

#include "base/semantics.h"
#include "base/status.h"

/* "pool=lse". M3_USAGE if there is no such field or value. */
int m3_semantics_set(struct m3_semantics *semantics, const char *assignment, struct m3_error *error);

/* {"pool":"lse"}: the fields that are not the released reading, in the order of the struct. NULL if memory is short;
 * to be freed. */
char *m3_semantics_json(const struct m3_semantics *semantics);

/* The reading that such JSON says: the released one but for its fields. What cannot be read, NULL included, says
 * nothing. */
void m3_semantics_read(struct m3_semantics *semantics, const char *json);

#endif
