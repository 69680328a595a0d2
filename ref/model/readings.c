#include "model/readings.h"

#include <stddef.h>

#include "model/fields.h"

static const struct m3_field fields[] = {
    { "kl_phase", offsetof(struct m3_readings, kl_phase), { "sparse", "warmup" }, 0, 0 },
    { "kl_teacher", offsetof(struct m3_readings, kl_teacher), { "prob", "logit", "all" }, 0, 0 },
    { "kl_teacher_norm", offsetof(struct m3_readings, kl_teacher_norm), { "support", "cut", "cutnorm" }, 0, 0 },
    { "kl_over", offsetof(struct m3_readings, kl_over), { "tokens", "blocks" }, 0, 0 },
    { "kl_direction", offsetof(struct m3_readings, kl_direction), { "forward", "reverse" }, 0, 0 },
    { "kl_scale", offsetof(struct m3_readings, kl_scale), { "rsqrt", "1" }, 0, 0 },
    { "kl_tau", offsetof(struct m3_readings, kl_tau), { "" }, 1, 1e6 },
    { "kl_count", offsetof(struct m3_readings, kl_count), { "rows_groups", "rows" }, 0, 0 },
    { "kl_rows", offsetof(struct m3_readings, kl_rows), { "valid", "all" }, 0, 0 },
    { "kl_log_eps", offsetof(struct m3_readings, kl_log_eps), { "" }, 0, 1 },
    { "aux", offsetof(struct m3_readings, aux), { "softmax", "sigmoid" }, 0, 0 },
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

void m3_readings_default(struct m3_readings *readings) { *readings = (struct m3_readings){ .kl_tau = 1 }; }

int m3_readings_has(const char *assignment) { return m3_field_of(fields, FIELDS, assignment) != NULL; }

int m3_readings_set(struct m3_readings *readings, const char *assignment, struct m3_error *error)
{
    int status = m3_field_set(readings, m3_field_of(fields, FIELDS, assignment), assignment, error);
    if (!status && !(readings->kl_tau > 0))
        status = m3_fail(error, M3_USAGE, "--set kl_tau: got 0, expected a number above 0");
    return status;
}

char *m3_readings_json(const struct m3_readings *readings) { return m3_fields_json(readings, fields, FIELDS); }
