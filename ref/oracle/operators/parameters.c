#include "oracle/operators/parameters.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/semantics.h"

#define NUMBER(name, value, what)                                                                                      \
    {                                                                                                                  \
        #name, M3_PARAMETER_NUMBER, value, what
#define COUNT(name, value, what)                                                                                       \
    {                                                                                                                  \
        #name, M3_PARAMETER_COUNT, value, what
#define CONFIG(field) .of = M3_OF_CONFIG, .at = offsetof(struct m3_config, field)
#define VISION(field) .at_in_vision = offsetof(struct m3_config, vision.field)
#define CALL(field) .of = M3_OF_CALL, .at = offsetof(struct m3_parameters, field)
#define READING(name, what) { #name, M3_PARAMETER_WORD, NULL, what, .of = M3_OF_SEMANTICS }

static const struct m3_call_parameter all[] = { NUMBER(eps, "1e-6", "added to the mean of squares, or to the variance"),
                                                CONFIG(eps), VISION(eps), .least = -INFINITY },
                                      NUMBER(theta, "5000000", "base of the angles"), CONFIG(rope_theta),
                                      VISION(rope_theta), .least = DBL_TRUE_MIN
}
, COUNT(R, "64", "channels of a head that are rotated"), CONFIG(R), .least = 1, .is_even = 1
}
, COUNT(block, "128", "keys in a block"), CONFIG(block), .least = 1
}
, COUNT(N, "16", "width of a list of blocks"), CONFIG(N), .least = 1
}
, COUNT(K, "4", "experts of a token"), CONFIG(K), .least = 1
}
, COUNT(p0, "0", "places before row 0"), CALL(p0)
}
, COUNT(id, "0", "the placeholder's id"), CALL(id)
}
, COUNT(merge, "2", "patches that are merged, per side"), CALL(merge), .least = 1
}
, COUNT(segment_frames, "0", "steps of a segment of a video; 0: no limit"), CONFIG(vision.segment_max_frames)
}
, NUMBER(factor, "2", "of the routed sum"), CONFIG(routed_scaling), .least = -INFINITY
}
, NUMBER(alpha, "1.702", "of SwiGLU-OAI"), CONFIG(swiglu_alpha), .least = -INFINITY
}
, NUMBER(limit, "7", "clamp of gate and up"), CONFIG(swiglu_limit), .least = -INFINITY
}
, { "activation", M3_PARAMETER_WORD, "swiglu_oai", "between the matrices", .of = M3_OF_CONFIG },
    NUMBER(eps_noise, "0.01", "size of the noise"), .of = M3_OF_SEMANTICS, .at = offsetof(struct m3_semantics, jitter),
    .least = -INFINITY
}
, READING(pool, "SPEC 4"), READING(index_scale, "SPEC 4"), READING(selection, "SPEC 4"),
    READING(init_blocks, "first blocks that are always chosen"),
    READING(local_blocks, "last blocks that are always chosen"), READING(local_rule, "SPEC 4"),
    READING(gate_clamp, "SPEC 4"), READING(rope_angle, "SPEC 4"), READING(vision_boundary, "SPEC 4"),
    READING(mtp_join, "SPEC 4"), READING(mtp_zero_position0, "SPEC 4"),
}
;

static const struct m3_call_parameter *named(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].name, name) == 0) return &all[i];
    return NULL;
}

/* The field of the semantics that a word is; NULL: the activation. */
static const struct m3_field *field_of(const struct m3_call_parameter *p)
{
    return p->type == M3_PARAMETER_WORD ? m3_semantics_field(p->name) : NULL;
}

void m3_parameter_choices(char text[M3_PARAMETER_TEXT], const struct m3_call_parameter *p)
{
    const struct m3_field *field = field_of(p);
    if (field && m3_field_is_named(field)) m3_field_choices(text, field);
    else
        snprintf(text, M3_PARAMETER_TEXT, "%s",
                 p->type == M3_PARAMETER_WORD && !field ? "swiglu_oai|swiglu" : "number");
}

const struct m3_call_parameter *m3_parameter_in(char value[M3_PARAMETER_TEXT], const char *list, int i)
{
    char entry[64];
    for (; *list && i > 0; i--) {
        list += strcspn(list, ",");
        list += *list == ',';
    }
    snprintf(entry, sizeof entry, "%.*s", (int)strcspn(list, ","), list);
    const size_t length = strcspn(entry, "=");
    const int replaced = entry[length] == '=';
    entry[length] = '\0';
    const struct m3_call_parameter *p = entry[0] ? named(entry) : NULL;
    if (!p || !value) return p;
    if (!replaced && !p->value) m3_field_default(value, field_of(p));
    else snprintf(value, M3_PARAMETER_TEXT, "%s", replaced ? entry + length + 1 : p->value);
    return p;
}

void *m3_parameter_place(const struct m3_parameters *in, const struct m3_call_parameter *p)
{
    char *const of[] = { (char *)in->config, (char *)in->semantics, (char *)(uintptr_t)in };
    return of[p->of] + (in->in_vision && p->at_in_vision ? p->at_in_vision : p->at);
}

double m3_parameter_number(const struct m3_parameters *in, const struct m3_call_parameter *p)
{
    const void *at = m3_parameter_place(in, p);
    return p->type == M3_PARAMETER_NUMBER ? *(const double *)at : (double)*(const int64_t *)at;
}

const char *m3_parameter_word(char text[M3_PARAMETER_TEXT], const struct m3_parameters *in,
                              const struct m3_call_parameter *p)
{
    const struct m3_field *field = field_of(p);
    if (!field) return in->config->oai ? "swiglu_oai" : "swiglu";
    m3_field_print(text, M3_PARAMETER_TEXT, in->semantics, field);
    return strchr(text, '=') + 1;
}

static int set_number(struct m3_parameters *to, const struct m3_call_parameter *p, double x)
{
    if (!isfinite(x) || x < p->least) return 0;
    *(double *)m3_parameter_place(to, p) = x;
    return 1;
}

static int set_count(struct m3_parameters *to, const struct m3_call_parameter *p, double x)
{
    if (x != floor(x) || !(x >= p->least && x <= INT32_MAX) || (p->is_even && fmod(x, 2) != 0)) return 0;
    *(int64_t *)m3_parameter_place(to, p) = (int64_t)x;
    return 1;
}

static int set_word(struct m3_parameters *to, const char *name, const char *value, struct m3_error *error)
{
    char assignment[64];
    if (strcmp(name, "activation") == 0) {
        to->config->oai = strcmp(value, "swiglu_oai") == 0;
        return to->config->oai || strcmp(value, "swiglu") == 0 ? M3_OK : M3_USAGE;
    }
    snprintf(assignment, sizeof assignment, "%s=%s", name, value);
    return m3_semantics_set_one(to->semantics, assignment, error);
}

/* The value as text: JSON numbers and strings are both accepted, as the command line knows no difference. */
static int set_text(struct m3_parameters *to, const struct m3_call_parameter *p, const char *text, const char *name,
                    struct m3_error *error)
{
    struct m3_error why = { 0 };
    char *end, choices[M3_PARAMETER_TEXT];
    int fits;
    if (p->type == M3_PARAMETER_WORD) {
        fits = !set_word(to, p->name, text, &why);
    } else {
        const double x = strtod(text, &end);
        fits = *text && !*end && (p->type == M3_PARAMETER_NUMBER ? set_number(to, p, x) : set_count(to, p, x));
    }
    m3_error_free(&why);
    if (fits) return M3_OK;
    m3_parameter_choices(choices, p);
    return m3_fail(error, M3_BAD_INPUT, "%s: parameter %s: got %s, expected %s", name, p->name, text,
                   strcmp(choices, "number") != 0   ? choices
                   : p->type == M3_PARAMETER_NUMBER ? "a number"
                   : p->is_even                     ? "an even number above 0"
                                                    : "a whole number in range");
}

static int set_value(struct m3_parameters *to, const struct m3_call_parameter *p, const json_t *value, const char *name,
                     struct m3_error *error)
{
    char text[64] = "a value of another type";
    if (json_is_string(value)) snprintf(text, sizeof text, "%s", json_string_value(value));
    else if (json_is_integer(value)) snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value)) snprintf(text, sizeof text, "%.17g", json_real_value(value));
    return set_text(to, p, text, name, error);
}

int m3_parameters_set(struct m3_parameters *to, const char *list, const json_t *given, const char *name,
                      struct m3_error *error)
{
    const struct m3_call_parameter *p;
    char text[M3_PARAMETER_TEXT];
    const char *key;
    json_t *value;
    int status = M3_OK;
    to->merge = 2;
    for (int i = 0; !status && (p = m3_parameter_in(text, list, i)); i++) status = set_text(to, p, text, name, error);
    json_object_foreach((json_t *)(uintptr_t)given, key, value)
    {
        int known = 0;
        for (int i = 0; !known && (p = m3_parameter_in(NULL, list, i)); i++) known = strcmp(p->name, key) == 0;
        if (status) break;
        if (!known)
            status = m3_fail(error, M3_BAD_INPUT, "%s: got parameter %s, expected %s%s", name, key,
                             *list ? "one of " : "none", list);
        else status = set_value(to, p, value, name, error);
    }
    return status;
}
