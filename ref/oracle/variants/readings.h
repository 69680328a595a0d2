/* Other readings of the model that may explain a failure: model/semantics.h, for one call. */
#ifndef M3_ORACLE_VARIANTS_READINGS_H
#define M3_ORACLE_VARIANTS_READINGS_H

#include "model/semantics.h"
#include "oracle/error/recompute.h"

enum { M3_MOST_READINGS = 160 };

/* Where a reading has to show. */
struct m3_shows_at {
    const char *tap; /* first at this tap; NULL: at any that the call makes */
    int is_of_logits; /* not in MTP modules alone */
};

/* Lists them and returns how many: those that differ from `own` in one field first, then those that differ in two, of
 * which one needs the other or, at one tap, any two. */
int m3_list_readings(struct m3_semantics others[M3_MOST_READINGS], const struct m3_semantics *own,
                     const struct m3_setting *setting, const struct m3_shows_at *at);

#endif
