/* Readings of the losses by name. TRAINING 19.16, 19.17. */
#ifndef M3_MODEL_READINGS_H
#define M3_MODEL_READINGS_H

#include "base/status.h"
#include "train/readings.h"

/* The defaults. */
void m3_readings_default(struct m3_readings *readings);
/* Is this an assignment of a field of struct m3_readings, such as "kl_teacher=logit"? */
int m3_readings_has(const char *assignment);
/* Sets it. M3_USAGE if the value is none of the field. */
int m3_readings_set(struct m3_readings *readings, const char *assignment, struct m3_error *error);
/* The fields that differ from their defaults, as JSON. NULL if memory is short; to be freed. */
char *m3_readings_json(const struct m3_readings *readings);

#endif
