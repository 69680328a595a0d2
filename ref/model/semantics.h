/* Semantics fields by name: FIELD=VALUE on the command line, JSON in a dump. SPEC 4. */
#ifndef M3_MODEL_SEMANTICS_H
#define M3_MODEL_SEMANTICS_H

#include "base/semantics.h"
#include "base/status.h"
#include "model/fields.h"

enum { M3_SEMANTICS_TEXT = 256 };

/* Sets fields: "pool=lse", or "pool=lse,index_scale=rsqrt". M3_USAGE if there is no such field or value. */
int m3_semantics_set(struct m3_semantics *semantics, const char *assignments, struct m3_error *error);
/* The same for one field alone. */
int m3_semantics_set_one(struct m3_semantics *semantics, const char *assignment, struct m3_error *error);
/* A field by its name, or its number; NULL: none. */
const struct m3_field *m3_semantics_field(const char *name);
const struct m3_field *m3_semantics_at(int i);
/* How `other` differs from `own`, as for m3_semantics_set; "": not at all. */
void m3_semantics_changes(char text[M3_SEMANTICS_TEXT], const struct m3_semantics *own,
                          const struct m3_semantics *other);

/* Another reading, which differs in one field from a given one. */
struct m3_other_reading {
    struct m3_semantics semantics;
    const struct m3_field *field;
};
/* Number i of those that may explain a failure, those with names of values first; 0: there are fewer. Its jitter may be
 * NaN: any size. */
int m3_other_reading(struct m3_other_reading *other, const struct m3_semantics *own, int i);
/* Does it show first at such a tap? */
int m3_reading_shows(const struct m3_other_reading *other, const char *tap);
/* Does one have an effect only with the other? */
int m3_readings_belong(const struct m3_other_reading *a, const struct m3_other_reading *b);
/* Adds the change that `more` makes. */
void m3_readings_join(struct m3_other_reading *to, const struct m3_other_reading *more);

/* {"pool":"lse"}: the fields that differ from the released reading, in the order of the struct. NULL if memory is
 * short; to be freed. */
char *m3_semantics_json(const struct m3_semantics *semantics);

/* Reads a reading from such JSON; fields that it does not contain keep their released value. Unreadable JSON, or NULL,
 * means the released reading. */
void m3_semantics_read(struct m3_semantics *semantics, const char *json);
/* Are they the same reading, as read so? */
int m3_semantics_are_same(const char *a, const char *b);

#endif
