#include "oracle/operators/parameters.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/semantics.h"

/* clang-format off */
static const struct m3_call_parameter all[] = {
    { "eps", M3_PARAMETER_NUMBER, "1e-6", NULL, "added to the mean of squares, or to the variance" },
    { "theta", M3_PARAMETER_NUMBER, "5000000", NULL, "base of the angles" },
    { "R", M3_PARAMETER_COUNT, "64", NULL, "channels of a head that are rotated" },
    { "block", M3_PARAMETER_COUNT, "128", NULL, "keys in a block" },
    { "N", M3_PARAMETER_COUNT, "16", NULL, "width of a list of blocks" },
    { "K", M3_PARAMETER_COUNT, "4", NULL, "experts of a token" },
    { "p0", M3_PARAMETER_COUNT, "0", NULL, "places before row 0" },
    { "id", M3_PARAMETER_COUNT, "0", NULL, "the placeholder's id" },
    { "merge", M3_PARAMETER_COUNT, "2", NULL, "patches that are merged, per side" },
    { "segment_frames", M3_PARAMETER_COUNT, "0", NULL, "steps of a segment of a video; 0: no limit" },
    { "factor", M3_PARAMETER_NUMBER, "2", NULL, "of the routed sum" },
    { "alpha", M3_PARAMETER_NUMBER, "1.702", NULL, "of SwiGLU-OAI" },
    { "limit", M3_PARAMETER_NUMBER, "7", NULL, "clamp of gate and up" },
    { "activation", M3_PARAMETER_WORD, "swiglu_oai", "swiglu_oai|swiglu", "between the matrices" },
    { "eps_noise", M3_PARAMETER_NUMBER, "0.01", NULL, "size of the noise" },
    { "pool", M3_PARAMETER_WORD, "max", "max|lse", "SPEC 4" },
    { "index_scale", M3_PARAMETER_WORD, "1", "1|rsqrt", "SPEC 4" },
    { "selection", M3_PARAMETER_WORD, "group", "group|shared|union", "SPEC 4" },
    { "init_blocks", M3_PARAMETER_WORD, "0", NULL, "first blocks that are always chosen" },
    { "local_blocks", M3_PARAMETER_WORD, "1", NULL, "last blocks that are always chosen" },
    { "local_rule", M3_PARAMETER_WORD, "last", "last|own", "SPEC 4" },
    { "gate_clamp", M3_PARAMETER_WORD, "upper", "upper|both", "SPEC 4" },
    { "rope_angle", M3_PARAMETER_WORD, "f64", "f64|f32", "SPEC 4" },
    { "vision_boundary", M3_PARAMETER_WORD, "segment", "segment|none", "SPEC 4" },
    { "mtp_join", M3_PARAMETER_WORD, "concat", "concat|additive", "SPEC 4" },
    { "mtp_zero_position0", M3_PARAMETER_WORD, "false", "false|true", "SPEC 4" },
};
/* clang-format on */

const struct m3_call_parameter *m3_parameter_named(const char *name)
{
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].name, name) == 0) return &all[i];
    return NULL;
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
    const struct m3_call_parameter *p = entry[0] ? m3_parameter_named(entry) : NULL;
    if (p && value) snprintf(value, M3_PARAMETER_TEXT, "%s", replaced ? entry + length + 1 : p->value);
    return p;
}

static int set_number(struct m3_parameters *to, const char *name, double x)
{
    struct m3_config *c = to->config;
    if (!isfinite(x)) return 0;
    if (strcmp(name, "eps") == 0) *(to->in_vision ? &c->vision.eps : &c->eps) = x;
    else if (strcmp(name, "theta") == 0) *(to->in_vision ? &c->vision.rope_theta : &c->rope_theta) = x;
    else if (strcmp(name, "factor") == 0) c->routed_scaling = x;
    else if (strcmp(name, "alpha") == 0) c->swiglu_alpha = x;
    else if (strcmp(name, "limit") == 0) c->swiglu_limit = x;
    else to->semantics->jitter = x;
    return strcmp(name, "theta") != 0 || x > 0;
}

static int set_count(struct m3_parameters *to, const char *name, int64_t n)
{
    struct m3_config *c = to->config;
    int64_t *at = strcmp(name, "R") == 0       ? &c->R
                  : strcmp(name, "block") == 0 ? &c->block
                  : strcmp(name, "N") == 0     ? &c->N
                  : strcmp(name, "K") == 0     ? &c->K
                  : strcmp(name, "p0") == 0    ? &to->p0
                  : strcmp(name, "id") == 0    ? &to->id
                  : strcmp(name, "merge") == 0 ? &to->merge
                                               : &c->vision.segment_max_frames;
    const int may_be_0 = at == &to->p0 || at == &to->id || at == &c->vision.segment_max_frames;
    if (n < !may_be_0 || n > INT32_MAX || (at == &c->R && n % 2)) return 0;
    *at = n;
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
    return m3_semantics_set(to->semantics, assignment, error);
}

/* The value as text: JSON numbers and strings are both accepted, as the command line knows no difference. */
static int set_text(struct m3_parameters *to, const struct m3_call_parameter *p, const char *text, const char *name,
                    struct m3_error *error)
{
    struct m3_error why = { 0 };
    char *end;
    int fits;
    if (p->type == M3_PARAMETER_WORD) {
        fits = !set_word(to, p->name, text, &why);
    } else {
        const double x = strtod(text, &end);
        fits = *text && !*end &&
               (p->type == M3_PARAMETER_NUMBER ? set_number(to, p->name, x)
                                               : x == floor(x) && fabs(x) < 1e15 && set_count(to, p->name, (int64_t)x));
    }
    m3_error_free(&why);
    if (fits) return M3_OK;
    return m3_fail(error, M3_BAD_INPUT, "%s: parameter %s: got %s, expected %s", name, p->name, text,
                   p->words                         ? p->words
                   : p->type == M3_PARAMETER_NUMBER ? "a number"
                   : strcmp(p->name, "R") == 0      ? "an even number above 0"
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
