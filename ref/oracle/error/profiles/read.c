#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "io/json.h"
#include "oracle/error/private/compose.h"
#include "oracle/error/private/profile.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

struct reading {
    struct m3_profile *profile;
    struct m3_graph every_tap;          /* for what patterns may match */
    const char *path;
    struct m3_error *error;
    int status;
};

/* Adds "FILE: FIELD: got VALUE, expected WHAT"; `key`: of an object or list in the field, or NULL. */
static void refuse(struct reading *reading, const char *field, const char *key, const json_t *got, const char *expected)
{
    char *text = got ? m3_json_dump(got, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    reading->status =
        m3_fail(reading->error, M3_BAD_INPUT, "%s: %s%s%s%s: got %.60s, expected %s", reading->path, field,
                key ? "[\"" : "", key ? key : "", key ? "\"]" : "", text ? text : "nothing", expected);
    free(text);
}

/* The index of the word in words; -1 after refuse. An absent field means the first word. */
static int read_choice(struct reading *reading, const json_t *value, const char *field, const char *const words[])
{
    if (!value) return 0;
    char expected[120] = "";
    for (int i = 0; words[i]; i++) {
        if (json_is_string(value) && strcmp(json_string_value(value), words[i]) == 0) return i;
        size_t used = strlen(expected);
        snprintf(expected + used, sizeof expected - used, "%s\"%s\"", i ? " or " : "", words[i]);
    }
    refuse(reading, field, NULL, value, expected);
    return -1;
}

/* A format of stored values, of operands of products (tf32), or of keys and values in a cache. */
struct format {
    const char *name;
    enum m3_dtype dtype;            /* M3_DTYPES: of caches only */
    struct m3_read_rounding read;
};

#define FORMATS "\"f64\", \"f32\", \"tf32\", \"f16\" or \"bf16\""

static const struct format formats[] = {
    { "f64", M3_F64, { 0x1p-53, 0, 0 } },
    { "f32", M3_F32, { 0x1p-24, 0x1p-150, 0 } },
    { "tf32", M3_F32, { 0x1p-10, 0x1p-136, 0 } },       /* devices round to nearest, or cut the lower bits off */
    { "f16", M3_F16, { 0x1p-11, 0x1p-25, 0 } },
    { "bf16", M3_BF16, { 0x1p-8, 0x1p-134, 0 } },
    { "f8_e4m3", M3_DTYPES, { 0x1p-4, 0x1p-10, 448 } },
    { "f8_e5m2", M3_DTYPES, { 0x1p-3, 0x1p-17, 57344 } },
};

/* NULL if it is not a string with the name of a format. */
static const struct format *format_named(const json_t *value)
{
    for (size_t i = 0; json_is_string(value) && i < LENGTH(formats); i++)
        if (strcmp(formats[i].name, json_string_value(value)) == 0) return &formats[i];
    return NULL;
}

double m3_profile_roundoff(enum m3_dtype dtype)
{
    return dtype == M3_F64 ? 0x1p-53 : dtype == M3_F32 ? 0x1p-24 : dtype == M3_F16 ? 0x1p-11 : 0x1p-8;
}

/* A row for a pattern, or NULL. */
static struct m3_profile_entry *add_entry(struct reading *reading, struct m3_profile_entries *entries,
                                          const char *field, const char *pattern, enum m3_profile_points which)
{
    static const char *const expected[] = {
        [M3_POINTS_ALL] = "a pattern that matches a tap or an inner point",
        [M3_POINTS_TAPS] = "a pattern that matches a tap",
        [M3_POINTS_NORMS] = "a pattern that matches a norm of a sum",
        [M3_POINTS_RMS_NORMS] = "a pattern that matches a norm with a root mean square",
        [M3_POINTS_KEYS] = "a pattern that matches what attention or block scores read",
        [M3_POINTS_LINEAR] = "a pattern that matches a linear operator",
        [M3_POINTS_WEIGHTS] = "a pattern that matches a linear operator",
    };
    if (!m3_profile_means_something(pattern, which, &reading->every_tap)) {
        json_t *got = json_string(pattern);
        refuse(reading, field, NULL, got, expected[which]);
        json_decref(got);
        return NULL;
    }
    struct m3_profile_entry *rows = realloc(entries->rows, (entries->count + 1) * sizeof *rows);
    if (rows) entries->rows = rows;
    char *copy = rows ? strdup(pattern) : NULL;
    if (!copy) {
        reading->status = m3_fail_memory(reading->error, "a profile", sizeof *rows);
        return NULL;
    }
    struct m3_profile_entry *row = &rows[entries->count++];
    *row = (struct m3_profile_entry){ .pattern = copy, .dtype = M3_DTYPES, .input.dtype = M3_DTYPES };
    return row;
}

static int is_object(struct reading *reading, const json_t *value, const char *field)
{
    if (value && !json_is_object(value)) refuse(reading, field, NULL, value, "an object");
    return json_is_object(value);
}

static void read_formats(struct reading *reading, const json_t *object, const char *field,
                         struct m3_profile_entries *entries, enum m3_profile_points which)
{
    if (!is_object(reading, object, field)) return;
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)object, pattern, value)
    {
        const struct format *format = format_named(value);
        const int is_read = which == M3_POINTS_KEYS;
        if (!format || (format->dtype == M3_DTYPES && !is_read)) {
            refuse(reading, field, pattern, value,
                   is_read ? "\"f64\", \"f32\", \"tf32\", \"f16\", \"bf16\", \"f8_e4m3\" or \"f8_e5m2\"" : FORMATS);
            continue;
        }
        struct m3_profile_entry *row = add_entry(reading, entries, field, pattern, which);
        if (row) row->dtype = format->dtype, row->read = format->read;
    }
}

/* The rule of a format without scales. Returns 0 if it is none. */
static int read_plain_input(struct m3_input_rounding *rule, const struct format *format)
{
    if (!format || format->dtype == M3_DTYPES || format->read.u < 0x1p-11) return 0;
    *rule = (struct m3_input_rounding){ .dtype = format->dtype, .u = format->read.u, .floor = format->read.floor };
    return 1;
}

static int read_scaled_input(struct m3_input_rounding *rule, const char *scale, const char *exponent)
{
    static const char *const scales[] = { "block128", "mx32", "token", "tensor" };
    size_t which = 0;
    while (which < LENGTH(scales) && strcmp(scales[which], scale) != 0) which++;
    const int down = exponent && strcmp(exponent, "down") == 0, is_mx = which == 1;
    if (which == LENGTH(scales) || is_mx != (exponent != NULL) || (is_mx && !down && strcmp(exponent, "up") != 0))
        return 0;
    *rule = (struct m3_input_rounding){ .dtype = M3_F8_E4M3, .codes = M3_CODES_E4M3, .exponent_down = down };
    if (which < 2) rule->scaling = is_mx ? M3_SCALE_MX32 : M3_SCALE_128X128;
    else rule->group = which == 2 ? M3_GROUP_ROW : M3_GROUP_TENSOR;
    return 1;
}

/* A rule whose format says how many numbers share a scale. */
static int read_blocks(struct m3_input_rounding *rule, const char *dtype, const char *exponent)
{
    static const char *const names[] = { [M3_CODES_Q8_0] = "q8_0", "q8_k", "nvfp4", "mxfp4" };
    size_t codes = M3_CODES_Q8_0;
    while (codes < LENGTH(names) && strcmp(names[codes], dtype) != 0) codes++;
    if (codes == LENGTH(names) || (codes == M3_CODES_MXFP4) != (exponent != NULL)) return 0;
    if (exponent && strcmp(exponent, "up") != 0 && strcmp(exponent, "down") != 0) return 0;
    *rule = (struct m3_input_rounding){ .dtype = M3_U8, .codes = (enum m3_codes)codes };
    rule->exponent_down = exponent && strcmp(exponent, "down") == 0;
    return 1;
}

static void read_input(struct reading *reading, const json_t *object)
{
    if (!is_object(reading, object, "input")) return;
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)object, pattern, value)
    {
        struct m3_profile_entry *row = add_entry(reading, &reading->profile->input, "input", pattern, M3_POINTS_LINEAR);
        if (!row || json_is_null(value)) continue;
        const char *dtype, *scale = NULL, *exponent = NULL;
        int ok = json_unpack(value, "{s:s, s?s, s?s !}", "dtype", &dtype, "scale", &scale, "exponent", &exponent) == 0;
        if (ok && scale) ok = strcmp(dtype, "e4m3") == 0 && read_scaled_input(&row->input, scale, exponent);
        else if (ok && !read_blocks(&row->input, dtype, exponent))
            ok = !exponent && read_plain_input(&row->input, format_named(json_object_get(value, "dtype")));
        if (ok) continue;
        refuse(reading, "input", pattern, value,
               "null, {\"dtype\":\"tf32\", \"f16\", \"bf16\", \"q8_0\", \"q8_k\" or \"nvfp4\"}, {\"dtype\":\"mxfp4\","
               "\"exponent\":\"up\" or \"down\"}, {\"dtype\":\"e4m3\",\"scale\":\"block128\", \"token\" or "
               "\"tensor\"} or {\"dtype\":\"e4m3\",\"scale\":\"mx32\",\"exponent\":\"up\" or \"down\"}");
    }
}

static void read_partials(struct reading *reading, const json_t *object)
{
    static const char *const reduces[] = { "any", "one_shot", "ring" };
    if (!is_object(reading, object, "partials")) return;
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)object, pattern, value)
    {
        struct m3_profile_entry *row =
            add_entry(reading, &reading->profile->partials, "partials", pattern, M3_POINTS_LINEAR);
        if (!row || json_is_null(value)) continue;
        const char *reduce;
        json_int_t ranks;
        size_t which = 0;
        int is_bad = json_unpack(value, "{s:I, s:s !}", "ranks", &ranks, "reduce", &reduce) != 0;
        while (!is_bad && which < LENGTH(reduces) && strcmp(reduces[which], reduce) != 0) which++;
        if (is_bad || which == LENGTH(reduces) || ranks < 2 || ranks > M3_RANKS)
            refuse(reading, "partials", pattern, value,
                   "null or {\"ranks\":2 to 64,\"reduce\":\"any\", \"one_shot\" or \"ring\"}");
        else row->partials = (struct m3_partials){ .ranks = (int)ranks, .reduce = (enum m3_reduce)which };
    }
}

static void read_list(struct reading *reading, const json_t *root, const char *field,
                      struct m3_profile_entries *entries, enum m3_profile_points which)
{
    const json_t *list = json_object_get(root, field);
    if (list && !json_is_array(list)) refuse(reading, field, NULL, list, "a list of patterns");
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)list, i, value)
    {
        if (json_is_string(value)) add_entry(reading, entries, field, json_string_value(value), which);
        else refuse(reading, field, NULL, value, "a pattern");
    }
}

static void read_math(struct reading *reading, const json_t *object)
{
    struct m3_arithmetic *how = &reading->profile->how;
    how->c = 4;
    how->c_turn = how->angle == M3_ANGLE_F32 ? 4 : 1;
    if (!is_object(reading, object, "math")) return;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        int *to = strcmp(key, "exp") == 0 ? &how->c : strcmp(key, "sin") == 0 ? &how->c_turn : NULL;
        json_int_t c = json_integer_value(value);
        if (!to) refuse(reading, "math", key, value, "nothing: the fields are \"exp\" and \"sin\"");
        else if (!json_is_integer(value) || c < 1 || c > 1024) refuse(reading, "math", key, value, "1 to 1024");
        else *to = (int)c;
    }
}

static void check_names(struct reading *reading, const json_t *root)
{
    static const char *const fields[] = {
        "name",          "u",          "rounding", "flush_subnormals", "angle",       "math",
        "scores",        "store",      "input",    "weights",          "exact",       "ties",
        "dump_rounding", "fused_norm", "read",     "partials",         "norm_weight", "weight_first",
        "what",          "sources",    "alpha"
    };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        size_t i = 0;
        while (i < LENGTH(fields) && strcmp(fields[i], key) != 0) i++;
        if (i == LENGTH(fields)) refuse(reading, key, NULL, value, "nothing: it is no field of a profile");
    }
}

/* Fields that only people read: one line, and the source of each rounding. */
static void check_words(struct reading *reading, const json_t *root)
{
    const json_t *what = json_object_get(root, "what"), *sources = json_object_get(root, "sources");
    const char *of;
    json_t *source;
    if (what && (!json_is_string(what) || strchr(json_string_value(what), '\n')))
        refuse(reading, "what", NULL, what, "one line of text");
    if (!is_object(reading, sources, "sources")) return;
    json_object_foreach((json_t *)sources, of, source) if (!json_is_string(source))
        refuse(reading, "sources", of, source, "a text");
}

static void read_fields(struct reading *reading, const json_t *root)
{
    static const char *const rounding[] = { "nearest", "zero", NULL },
                             *const angle[] = { "f64", "f32", "f32_exp2", "f32_ratio", NULL },
                             *const scores[] = { "sigmoid", "tanh", NULL }, *const ties[] = { "lowest", "any", NULL };
    struct m3_profile *p = reading->profile;
    check_names(reading, root);
    check_words(reading, root);

    const json_t *name = json_object_get(root, "name"), *flush = json_object_get(root, "flush_subnormals");
    if (!json_is_string(name) || json_string_length(name) == 0) refuse(reading, "name", NULL, name, "a name");
    else if (!(p->name = strdup(json_string_value(name))))
        reading->status = m3_fail_memory(reading->error, "a profile", json_string_length(name));
    const struct format *format = format_named(json_object_get(root, "u"));
    p->dtype = format && strcmp(format->name, "tf32") != 0 ? format->dtype : M3_DTYPES;
    if (p->dtype == M3_DTYPES)
        refuse(reading, "u", NULL, json_object_get(root, "u"), "\"f64\", \"f32\", \"f16\" or \"bf16\"");
    p->how.u = m3_profile_roundoff(p->dtype);
    if (flush && !json_is_boolean(flush)) refuse(reading, "flush_subnormals", NULL, flush, "true or false");
    p->flushes = json_is_true(flush);
    p->truncates = read_choice(reading, json_object_get(root, "rounding"), "rounding", rounding);
    const int formed = read_choice(reading, json_object_get(root, "angle"), "angle", angle);
    p->how.angle = formed >= 1 ? M3_ANGLE_F32 : M3_ANGLE_F64;
    if (formed >= 1) p->how.frequency = (enum m3_float_frequency)(formed - 1);
    p->how.tanh_scores = read_choice(reading, json_object_get(root, "scores"), "scores", scores);
    p->ties_lowest = read_choice(reading, json_object_get(root, "ties"), "ties", ties) == 0;

    const struct format *alpha = format_named(json_object_get(root, "alpha"));
    p->alpha = alpha && alpha->dtype != M3_DTYPES ? alpha->dtype : M3_F64;
    if (json_object_get(root, "alpha") && (!alpha || alpha->dtype == M3_DTYPES || alpha->read.u == 0x1p-10))
        refuse(reading, "alpha", NULL, json_object_get(root, "alpha"), "\"f64\", \"f32\", \"f16\" or \"bf16\"");

    read_math(reading, json_object_get(root, "math"));
    read_formats(reading, json_object_get(root, "store"), "store", &p->store, M3_POINTS_ALL);
    read_input(reading, json_object_get(root, "input"));
    read_formats(reading, json_object_get(root, "weights"), "weights", &p->weights, M3_POINTS_WEIGHTS);
    read_partials(reading, json_object_get(root, "partials"));
    read_list(reading, root, "exact", &p->exact, M3_POINTS_TAPS);
    read_list(reading, root, "weight_first", &p->weight_first, M3_POINTS_TAPS);
    read_list(reading, root, "fused_norm", &p->fused_norm, M3_POINTS_NORMS);
    read_formats(reading, json_object_get(root, "read"), "read", &p->read, M3_POINTS_KEYS);
    read_formats(reading, json_object_get(root, "norm_weight"), "norm_weight", &p->norm_weight, M3_POINTS_RMS_NORMS);
    read_formats(reading, json_object_get(root, "dump_rounding"), "dump_rounding", &p->dump_rounding, M3_POINTS_TAPS);
}

static int hash(struct m3_profile *profile, const json_t *root, struct m3_error *error)
{
    char *text = m3_json_dump(root, JSON_COMPACT);
    struct m3_sha256 *sha256 = m3_sha256_new();
    if (sha256 && text) m3_sha256_add(sha256, text, strlen(text));
    int status = sha256 ? m3_sha256_end(sha256, profile->sha256) : M3_INTERNAL;
    int short_of = !text || status;
    free(text);
    return short_of ? m3_fail_memory(error, "a hash", 0) : M3_OK;
}

int m3_profile_open(struct m3_profile **profile, const char *name, struct m3_error *error)
{
    *profile = NULL;
    json_t *root;
    int status = m3_profile_compose(&root, name, error);
    if (status) return status;

    struct reading reading = { .profile = calloc(1, sizeof **profile), .path = name, .error = error };
    if (!reading.profile) reading.status = m3_fail_memory(error, name, sizeof **profile);
    else reading.status = m3_graph_record_every_tap(&reading.every_tap, error);
    if (!reading.status) read_fields(&reading, root);
    m3_graph_free(&reading.every_tap);
    m3_profile_forget_words(root);
    if (!reading.status) reading.status = hash(reading.profile, root, error);
    json_decref(root);
    if (reading.status) m3_profile_close(reading.profile);
    else *profile = reading.profile;
    return reading.status;
}

static void free_entries(struct m3_profile_entries *entries)
{
    for (size_t i = 0; i < entries->count; i++) free(entries->rows[i].pattern);
    free(entries->rows);
}

void m3_profile_close(struct m3_profile *profile)
{
    if (!profile) return;
    free_entries(&profile->store);
    free_entries(&profile->input);
    free_entries(&profile->weights);
    free_entries(&profile->partials);
    free_entries(&profile->exact);
    free_entries(&profile->dump_rounding);
    free_entries(&profile->fused_norm);
    free_entries(&profile->read);
    free_entries(&profile->norm_weight);
    free_entries(&profile->weight_first);
    free(profile->name);
    free(profile);
}
