/* JSON values that the reports share. */
#ifndef M3_ORACLE_REPORT_PRIVATE_JSON_VALUES_H
#define M3_ORACLE_REPORT_PRIVATE_JSON_VALUES_H

#include "io/json.h"
#include "oracle/judge/compare.h"

extern const char *const m3_verdict_names[], *const m3_choice_names[];      /* by enum m3_verdict, enum m3_choice */

json_t *m3_json_known(double value);            /* NaN, for what is not known: null */
json_t *m3_json_text(const char *text);         /* NULL: null */
json_t *m3_json_notes(const struct m3_error *lines);

#endif
