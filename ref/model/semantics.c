#include "model/semantics.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "io/json.h"
#include "model/fields.h"

static const struct m3_field fields[] = {
    { "selection", offsetof(struct m3_semantics, selection), { "group", "shared", "union" }, 0, 0 },
    { "pool", offsetof(struct m3_semantics, pool), { "max", "lse" }, 0, 0 },
    { "index_scale", offsetof(struct m3_semantics, index_scale), { "1", "rsqrt" }, 0, 0 },
    { "gate_clamp", offsetof(struct m3_semantics, gate_clamp), { "upper", "both" }, 0, 0 },
    { "init_blocks", offsetof(struct m3_semantics, init_blocks), { NULL }, 0, 0 },
    { "local_blocks", offsetof(struct m3_semantics, local_blocks), { NULL }, 1, 0 },
    { "local_rule", offsetof(struct m3_semantics, local_rule), { "last", "own" }, 0, 0 },
    { "rope_angle", offsetof(struct m3_semantics, rope_angle), { "f64", "f32" }, 0, 0 },
    { "vision_boundary", offsetof(struct m3_semantics, vision_boundary), { "segment", "none" }, 0, 0 },
    { "mtp_handover", offsetof(struct m3_semantics, mtp_handover), { "pre_norm", "post_norm" }, 0, 0 },
    { "mtp_embed", offsetof(struct m3_semantics, mtp_embed), { "id", "fused" }, 0, 0 },
    { "mtp_zero_position0", offsetof(struct m3_semantics, mtp_zero_position0), { "false", "true" }, 0, 0 },
    { "mtp_join", offsetof(struct m3_semantics, mtp_join), { "concat", "additive" }, 0, 0 },
    { "block_anchor", offsetof(struct m3_semantics, block_anchor), { "sequence", "slot" }, 0, 0 },
    { "jitter", offsetof(struct m3_semantics, jitter), { "" }, 0, 1 },
    { "jitter_seed", offsetof(struct m3_semantics, jitter_seed), { NULL }, 0, 0 },
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

int m3_semantics_set(struct m3_semantics *semantics, const char *assignment, struct m3_error *error)
{
    const char *equals = strchr(assignment, '=');
    if (!equals) return m3_fail(error, M3_USAGE, "--set: got %s, expected FIELD=VALUE", assignment);

    const struct m3_field *field = m3_field_of(fields, FIELDS, assignment);
    if (field) return m3_field_set(semantics, field, assignment, error);
    return m3_fail(error, M3_USAGE,
                   "--set: got the field %.*s, expected one of selection, pool, index_scale, gate_clamp, "
                   "init_blocks, local_blocks, local_rule, rope_angle, vision_boundary, mtp_handover, mtp_embed, "
                   "mtp_zero_position0, mtp_join, block_anchor, jitter, jitter_seed",
                   (int)(equals - assignment), assignment);
}

char *m3_semantics_json(const struct m3_semantics *semantics) { return m3_fields_json(semantics, fields, FIELDS); }

static void read_field(struct m3_semantics *semantics, const char *name, const json_t *value)
{
    char text[128];
    struct m3_error ignored = { 0 };
    int length = 0;
    if (json_is_string(value)) length = snprintf(text, sizeof text, "%s=%s", name, json_string_value(value));
    else if (json_is_integer(value))
        length = snprintf(text, sizeof text, "%s=%" JSON_INTEGER_FORMAT, name, json_integer_value(value));
    else if (json_is_real(value)) length = snprintf(text, sizeof text, "%s=%.17g", name, json_real_value(value));
    if (length > 0 && (size_t)length < sizeof text) m3_semantics_set(semantics, text, &ignored);
    m3_error_free(&ignored);
}

void m3_semantics_read(struct m3_semantics *semantics, const char *json)
{
    *semantics = (struct m3_semantics){ 0 };
    semantics->local_blocks = 1;
    json_t *object = json != NULL ? m3_json_of_text(json) : NULL, *value;
    const char *name;
    json_object_foreach(object, name, value) read_field(semantics, name, value);
    json_decref(object);
}

int m3_semantics_are_same(const char *a, const char *b)
{
    struct m3_semantics x, y;
    m3_semantics_read(&x, a);
    m3_semantics_read(&y, b);
    return memcmp(&x, &y, sizeof x) == 0;
}
