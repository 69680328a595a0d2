/* JSON values shared by the reports. */
#ifndef M3_ORACLE_REPORT_PRIVATE_JSON_VALUES_H
#define M3_ORACLE_REPORT_PRIVATE_JSON_VALUES_H

#include "io/json.h"
#include "oracle/judge/compare.h"
#include "oracle/report/report.h"

json_t *m3_json_known(double value);            /* NaN, which means unknown: null */
json_t *m3_json_text(const char *text);         /* NULL: null */
json_t *m3_json_place(const int64_t *index, int rank);
json_t *m3_json_sequence(int64_t in_sequence);          /* its number, from 0; null if there is one sequence */
json_t *m3_json_tiers(int tiers);               /* names of the tiers that fail, of enum m3_tier */
json_t *m3_json_notes(const struct m3_error *lines);
/* "parameter", "estimate", ..; null where no parameter looks off. */
json_t *m3_json_parameter(const struct m3_parameter *found);
/* Calls m3_json_update and returns the object. */
json_t *m3_json_join(json_t *object, json_t *more);
/* Flushes the lines. M3_IO. */
int m3_json_end(FILE *out, struct m3_error *error);

#endif
