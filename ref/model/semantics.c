#include "model/semantics.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

/* One row per field: names of an enumeration, released value first; or a count; or a number from 0 to 1. */
struct field {
    const char *name;
    size_t offset;
    const char *values[4];      /* first is "": a number */
    int64_t released;           /* of a count */
};

static const struct field fields[] = {
    { "selection", offsetof(struct m3_semantics, selection), { "group", "shared", "union" }, 0 },
    { "pool", offsetof(struct m3_semantics, pool), { "max", "lse" }, 0 },
    { "index_scale", offsetof(struct m3_semantics, index_scale), { "1", "rsqrt" }, 0 },
    { "gate_clamp", offsetof(struct m3_semantics, gate_clamp), { "upper", "both" }, 0 },
    { "init_blocks", offsetof(struct m3_semantics, init_blocks), { NULL }, 0 },
    { "local_blocks", offsetof(struct m3_semantics, local_blocks), { NULL }, 1 },
    { "local_rule", offsetof(struct m3_semantics, local_rule), { "last", "own" }, 0 },
    { "rope_angle", offsetof(struct m3_semantics, rope_angle), { "f64", "f32" }, 0 },
    { "vision_boundary", offsetof(struct m3_semantics, vision_boundary), { "segment", "none" }, 0 },
    { "mtp_handover", offsetof(struct m3_semantics, mtp_handover), { "pre_norm", "post_norm" }, 0 },
    { "mtp_embed", offsetof(struct m3_semantics, mtp_embed), { "id", "fused" }, 0 },
    { "mtp_zero_position0", offsetof(struct m3_semantics, mtp_zero_position0), { "false", "true" }, 0 },
    { "mtp_join", offsetof(struct m3_semantics, mtp_join), { "concat", "additive" }, 0 },
    { "block_anchor", offsetof(struct m3_semantics, block_anchor), { "sequence", "slot" }, 0 },
    { "jitter", offsetof(struct m3_semantics, jitter), { "" }, 0 },
    { "jitter_seed", offsetof(struct m3_semantics, jitter_seed), { NULL }, 0 },
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

/* All enumerations of struct m3_semantics have the same representation: small, none negative. */
static unsigned *choice_of(const struct m3_semantics *s, const struct field *f)
{
    return (unsigned *)(void *)((char *)(uintptr_t)s + f->offset);
}

static int64_t *count_of(const struct m3_semantics *s, const struct field *f)
{
    return (int64_t *)(void *)((char *)(uintptr_t)s + f->offset);
}

static double *number_of(const struct m3_semantics *s, const struct field *f)
{
    return (double *)(void *)((char *)(uintptr_t)s + f->offset);
}

static int is_number(const struct field *f) { return f->values[0] && !*f->values[0]; }

static int set_choice(struct m3_semantics *semantics, const struct field *f, const char *value, struct m3_error *error)
{
    for (unsigned i = 0; i < 4 && f->values[i]; i++)
        if (strcmp(f->values[i], value) == 0) {
            *choice_of(semantics, f) = i;
            return M3_OK;
        }
    return m3_fail(error, M3_USAGE, "--set %s: got %s, expected %s, %s%s%s", f->name, value, f->values[0], f->values[1],
                   f->values[2] ? ", " : "", f->values[2] ? f->values[2] : "");
}

static int set_count(struct m3_semantics *semantics, const struct field *f, const char *value, struct m3_error *error)
{
    char *end;
    errno = 0;
    long long count = strtoll(value, &end, 10);
    if (errno || end == value || *end || count < 0 || count > INT32_MAX)
        return m3_fail(error, M3_USAGE, "--set %s: got %s, expected a number from 0 to %d", f->name, value, INT32_MAX);
    *count_of(semantics, f) = count;
    return M3_OK;
}

static int set_number(struct m3_semantics *semantics, const struct field *f, const char *value, struct m3_error *error)
{
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end || !(number >= 0 && number <= 1))
        return m3_fail(error, M3_USAGE, "--set %s: got %s, expected a number from 0 to 1", f->name, value);
    *number_of(semantics, f) = number;
    return M3_OK;
}

int m3_semantics_set(struct m3_semantics *semantics, const char *assignment, struct m3_error *error)
{
    const char *equals = strchr(assignment, '=');
    if (!equals) return m3_fail(error, M3_USAGE, "--set: got %s, expected FIELD=VALUE", assignment);

    for (int i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        if (strlen(f->name) != (size_t)(equals - assignment) || strncmp(f->name, assignment, strlen(f->name))) continue;
        if (is_number(f)) return set_number(semantics, f, equals + 1, error);
        return f->values[0] ? set_choice(semantics, f, equals + 1, error) : set_count(semantics, f, equals + 1, error);
    }
    return m3_fail(error, M3_USAGE,
                   "--set: got the field %.*s, expected one of selection, pool, index_scale, gate_clamp, "
                   "init_blocks, local_blocks, local_rule, rope_angle, vision_boundary, mtp_handover, mtp_embed, "
                   "mtp_zero_position0, mtp_join, block_anchor, jitter, jitter_seed",
                   (int)(equals - assignment), assignment);
}

char *m3_semantics_json(const struct m3_semantics *semantics)
{
    json_t *object = json_object();
    int bad = !object;
    for (int i = 0; !bad && i < FIELDS; i++) {
        const struct field *f = &fields[i];
        if (is_number(f))
            bad = *number_of(semantics, f) != 0 &&
                  json_object_set_new(object, f->name, json_real(*number_of(semantics, f)));
        else if (f->values[0] && *choice_of(semantics, f) != 0)
            bad = json_object_set_new(object, f->name, json_string(f->values[*choice_of(semantics, f)]));
        else if (!f->values[0] && *count_of(semantics, f) != f->released)
            bad = json_object_set_new(object, f->name, json_integer(*count_of(semantics, f)));
    }
    char *text = bad ? NULL : m3_json_dump(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

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
    for (int i = 0; i < FIELDS; i++)
        if (!fields[i].values[0]) *count_of(semantics, &fields[i]) = fields[i].released;
    json_t *object = json != NULL ? m3_json_of_text(json) : NULL, *value;
    const char *name;
    json_object_foreach(object, name, value) read_field(semantics, name, value);
    json_decref(object);
}
