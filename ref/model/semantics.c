#include "model/semantics.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "model/fields.h"

static const struct m3_field fields[] = {
    { M3_FIELD(m3_semantics, selection, "group", "shared", "union"),
      .shows = { "*.index.blocks", "*.attn", "*.attn_lse" } },
    { M3_FIELD(m3_semantics, pool, "max", "lse"), .shows = { "*.index.block_scores" }, .with = "index_scale" },
    { M3_FIELD(m3_semantics, index_scale, "1", "rsqrt"), .shows = { "*.index.block_scores" } },
    { M3_FIELD(m3_semantics, gate_clamp, "upper", "both"), .shows = { "*.mlp.act", "*.mlp", "*.moe.*" } },
    { M3_FIELD(m3_semantics, init_blocks, NULL), .shows = { "*.index.blocks" }, .tried = 2 },
    { M3_FIELD(m3_semantics, local_blocks, NULL), .preset = 1, .shows = { "*.index.blocks" }, .tried = 3 },
    { M3_FIELD(m3_semantics, local_rule, "last", "own"), .shows = { "*.index.blocks" }, .with = "local_blocks" },
    { M3_FIELD(m3_semantics, rope_angle, "f64", "f32"), .shows = { "*_rope" } },
    { M3_FIELD(m3_semantics, vision_boundary, "segment", "none"), .shows = { "vision.*.attn", "vision.*_rope" } },
    { M3_FIELD(m3_semantics, mtp_handover, "pre_norm", "post_norm"), .shows = { "mtp.*" } },
    { M3_FIELD(m3_semantics, mtp_embed, "id", "fused"), .shows = { "mtp.*" } },
    { M3_FIELD(m3_semantics, mtp_zero_position0, "false", "true"), .shows = { "mtp.*" } },
    { M3_FIELD(m3_semantics, mtp_join, "concat", "additive"), .shows = { "mtp.*" } },
    { M3_FIELD(m3_semantics, block_anchor, "sequence", "slot") }, /* changes the case: oracle/judge/check/several.c */
    { M3_FIELD(m3_semantics, jitter, ""), .most = 1, .shows = { "*.moe.*" } },
    { M3_FIELD(m3_semantics, jitter_seed, NULL), .shows = { "*.moe.*" }, .tried = 9, .with = "jitter" },
};

enum { FIELDS = sizeof fields / sizeof fields[0] };

static int wrong_field(const char *assignment, struct m3_error *error)
{
    char names[FIELDS * 32];
    int at = 0;
    for (int i = 0; i < FIELDS; i++)
        at += snprintf(names + at, sizeof names - (size_t)at, "%s%s", i > 0 ? ", " : "", fields[i].name);
    return m3_fail(error, M3_USAGE, "--set: got the field %.*s, expected one of %s", (int)strcspn(assignment, "="),
                   assignment, names);
}

int m3_semantics_set_one(struct m3_semantics *semantics, const char *assignment, struct m3_error *error)
{
    if (!strchr(assignment, '=')) return m3_fail(error, M3_USAGE, "--set: got %s, expected FIELD=VALUE", assignment);
    const struct m3_field *field = m3_field_of(fields, FIELDS, assignment);
    return field ? m3_field_set(semantics, field, assignment, error) : wrong_field(assignment, error);
}

int m3_semantics_set(struct m3_semantics *semantics, const char *assignments, struct m3_error *error)
{
    int status = M3_OK;
    for (const char *at = assignments; !status && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char *one = strndup(at, strcspn(at, ","));
        status = one ? m3_semantics_set_one(semantics, one, error) : m3_fail_memory(error, "--set", strlen(at));
        free(one);
    }
    return status;
}

const struct m3_field *m3_semantics_field(const char *name)
{
    for (int i = 0; i < FIELDS; i++)
        if (strcmp(fields[i].name, name) == 0) return &fields[i];
    return NULL;
}

const struct m3_field *m3_semantics_at(int i) { return i < FIELDS ? &fields[i] : NULL; }

void m3_semantics_changes(char text[M3_SEMANTICS_TEXT], const struct m3_semantics *own,
                          const struct m3_semantics *other)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < FIELDS; i++) {
        if (m3_field_is_same(own, other, &fields[i]) || at + 64 > M3_SEMANTICS_TEXT) continue;
        if (at > 0) text[at++] = ',';
        m3_field_print(text + at, M3_SEMANTICS_TEXT - at, other, &fields[i]);
        at += strlen(text + at);
    }
}

/* ---- other readings */

int m3_other_reading(struct m3_other_reading *other, const struct m3_semantics *own, int i)
{
    for (int f = 0; f < 2 * FIELDS; f++) {
        const struct m3_field *field = &fields[f % FIELDS];
        if (!field->shows[0] || m3_field_is_named(field) != (f < FIELDS)) continue;
        *other = (struct m3_other_reading){ *own, field };
        for (int value = 0; m3_field_set_tried(&other->semantics, field, value); value++)
            if (!m3_field_is_same(&other->semantics, own, field) && i-- == 0) return 1;
    }
    return 0;
}

int m3_reading_shows(const struct m3_other_reading *other, const char *tap)
{
    for (int i = 0; i < M3_FIELD_SHOWS && other->field->shows[i]; i++)
        if (fnmatch(other->field->shows[i], tap, 0) == 0) return 1;
    return 0;
}

int m3_readings_belong(const struct m3_other_reading *a, const struct m3_other_reading *b)
{
    const char *x = a->field->with, *y = b->field->with;
    return (x && strcmp(x, b->field->name) == 0) || (y && strcmp(y, a->field->name) == 0);
}

void m3_readings_join(struct m3_other_reading *to, const struct m3_other_reading *more)
{
    m3_field_copy(&to->semantics, &more->semantics, more->field);
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
    if (length > 0 && (size_t)length < sizeof text) m3_semantics_set_one(semantics, text, &ignored);
    m3_error_free(&ignored);
}

void m3_semantics_read(struct m3_semantics *semantics, const char *json)
{
    *semantics = (struct m3_semantics){ 0 };
    m3_fields_reset(semantics, fields, FIELDS);
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
