#include "model/readings.h"

#include <stddef.h>

#include "model/fields.h"

static const struct m3_field fields[] = {
    { M3_FIELD(m3_readings, kl_phase, "sparse", "warmup") },
    { M3_FIELD(m3_readings, kl_teacher, "prob", "logit", "all") },
    { M3_FIELD(m3_readings, kl_teacher_norm, "support", "cut", "cutnorm") },
    { M3_FIELD(m3_readings, kl_over, "tokens", "blocks") },
    { M3_FIELD(m3_readings, kl_direction, "forward", "reverse") },
    { M3_FIELD(m3_readings, kl_scale, "rsqrt", "1") },
    { M3_FIELD(m3_readings, kl_tau, ""), .preset = 1, .most = 1e6 },
    { M3_FIELD(m3_readings, kl_count, "rows_groups", "rows") },
    { M3_FIELD(m3_readings, kl_rows, "valid", "all") },
    { M3_FIELD(m3_readings, kl_log_eps, ""), .most = 1 },
    { M3_FIELD(m3_readings, aux, "softmax", "sigmoid") },
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

void m3_readings_default(struct m3_readings *readings) { m3_fields_reset(readings, fields, FIELDS); }

int m3_readings_has(const char *assignment) { return m3_field_of(fields, FIELDS, assignment) != NULL; }

int m3_readings_set(struct m3_readings *readings, const char *assignment, struct m3_error *error)
{
    int status = m3_field_set(readings, m3_field_of(fields, FIELDS, assignment), assignment, error);
    if (!status && !(readings->kl_tau > 0))
        status = m3_fail(error, M3_USAGE, "--set kl_tau: got 0, expected a number above 0");
    return status;
}

char *m3_readings_json(const struct m3_readings *readings) { return m3_fields_json(readings, fields, FIELDS); }
