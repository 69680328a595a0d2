#include "oracle/error/profile.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "io/json.h"
#include "model/taps.h"
#include "oracle/error/private/operators.h"

/* What an entry of a field with patterns says about the points that its pattern
 * matches. */
struct entry {
    char *pattern;
    enum m3_dtype dtype;            /* M3_DTYPES: deliberately none */
    struct m3_input_rounding input;
    struct m3_partials partials;
};

struct entries {
    struct entry *rows;
    size_t count;
};

struct m3_profile {
    char *name, sha256[65];
    enum m3_dtype dtype;            /* of the arithmetic */
    struct m3_arithmetic how;
    int truncates, flushes, ties_lowest;
    struct entries store, input, weights, partials, exact, dump_rounding;
};

/* ---- points */

#define LENGTH(array) (sizeof(array) / sizeof *(array))

/* The points that a pattern may match. */
enum points { POINTS_ALL, POINTS_TAPS, POINTS_LINEAR, POINTS_WEIGHTS };

static int matches(const char *pattern, const char *point) { return fnmatch(pattern, point, FNM_NOESCAPE) == 0; }

/* A pattern that ends in '*' matches only taps; intermediates of an operator must be named. */
static int may_mean_intermediate(const char *pattern)
{
    size_t length = strlen(pattern);
    return length > 0 && pattern[length - 1] != '*';
}

/* Does the pattern match that tap, or an intermediate of its operator? `mlp` is a linear operator in dense layers. */
static int matches_tap(const char *pattern, enum points which, enum m3_tap tap, int64_t layer)
{
    const struct m3_error_operator *op = m3_error_operators[m3_graph[tap].op];
    const int has_bias = which == POINTS_WEIGHTS && tap == M3_TAP_EXPERTS, linear = which >= POINTS_LINEAR;
    const int is_linear = op == &m3_error_linear || op->linears > 0 || tap == M3_TAP_MLP;
    const int count = linear ? op->linears : which == POINTS_ALL && may_mean_intermediate(pattern) ? M3_POINTS : 0;
    char name[160];
    if (m3_tap_name(name, sizeof name, tap, layer)) return 0;
    if (has_bias || (m3_tap_table[tap].kind == M3_KIND_REALS && (is_linear || !linear)))
        if (matches(pattern, name)) return 1;
    for (int i = 0; i < count && op->points[i]; i++) {
        m3_point_name(name, sizeof name, tap, layer, op->points[i]);
        if (matches(pattern, name)) return 1;
    }
    return 0;
}

/* Does the pattern match a point of that kind in any model? */
static int means_something(const char *pattern, enum points which)
{
    enum { LAYERS = 1024 };
    for (int64_t layer = 0; layer < LAYERS; layer++)
        for (enum m3_tap tap = 0; tap < M3_TAPS; tap++)
            if (matches_tap(pattern, which, tap, layer) || matches_tap(pattern, which, tap, M3_MTP_LAYER + layer))
                return 1;
    return 0;
}

static const struct entry *last_match(const struct entries *entries, const char *point)
{
    enum m3_tap tap;
    int64_t layer;
    int is_tap = m3_tap_parse(point, &tap, &layer) == 0;
    for (size_t i = entries->count; i-- > 0;) {
        const char *pattern = entries->rows[i].pattern;
        if ((is_tap || may_mean_intermediate(pattern)) && matches(pattern, point)) return &entries->rows[i];
    }
    return NULL;
}

/* ---- reading */

struct reading {
    struct m3_profile *profile;
    const char *path;
    struct m3_error *error;
    int status;
};

/* Adds "FILE: FIELD: got VALUE, expected WHAT"; `key`: of an object or list in the field, or NULL. */
static void refuse(struct reading *reading, const char *field, const char *key, const json_t *got, const char *expected)
{
    char *text = got ? json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
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

/* M3_DTYPES if it is not a string with a format for stored values. */
static enum m3_dtype format_of(const json_t *value)
{
    static const struct {
        const char *name;
        enum m3_dtype dtype;
    } formats[] = { { "f64", M3_F64 }, { "f32", M3_F32 }, { "f16", M3_F16 }, { "bf16", M3_BF16 } };
    for (size_t i = 0; json_is_string(value) && i < LENGTH(formats); i++)
        if (strcmp(formats[i].name, json_string_value(value)) == 0) return formats[i].dtype;
    return M3_DTYPES;
}

static double roundoff(enum m3_dtype dtype)
{
    return dtype == M3_F64 ? 0x1p-53 : dtype == M3_F32 ? 0x1p-24 : dtype == M3_F16 ? 0x1p-11 : 0x1p-8;
}

/* A row for a pattern, or NULL. */
static struct entry *add_entry(struct reading *reading, struct entries *entries, const char *field, const char *pattern,
                               enum points which)
{
    if (!means_something(pattern, which)) {
        json_t *got = json_string(pattern);
        refuse(reading, field, NULL, got,
               which >= POINTS_LINEAR ? "a pattern that matches a linear operator"
               : which == POINTS_TAPS ? "a pattern that matches a tap"
                                      : "a pattern that matches a tap or an inner point");
        json_decref(got);
        return NULL;
    }
    struct entry *rows = realloc(entries->rows, (entries->count + 1) * sizeof *rows);
    if (rows) entries->rows = rows;
    char *copy = rows ? strdup(pattern) : NULL;
    if (!copy) {
        reading->status = m3_fail_memory(reading->error, "a profile", sizeof *rows);
        return NULL;
    }
    struct entry *row = &rows[entries->count++];
    *row = (struct entry){ .pattern = copy, .dtype = M3_DTYPES, .input.dtype = M3_DTYPES };
    return row;
}

static int is_object(struct reading *reading, const json_t *value, const char *field)
{
    if (value && !json_is_object(value)) refuse(reading, field, NULL, value, "an object");
    return json_is_object(value);
}

static void read_formats(struct reading *reading, const json_t *object, const char *field, struct entries *entries,
                         enum points which)
{
    if (!is_object(reading, object, field)) return;
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)object, pattern, value)
    {
        enum m3_dtype dtype = format_of(value);
        if (dtype == M3_DTYPES) refuse(reading, field, pattern, value, "\"f64\", \"f32\", \"f16\" or \"bf16\"");
        struct entry *row = add_entry(reading, entries, field, pattern, which);
        if (row) row->dtype = dtype;
    }
}

static void read_input(struct reading *reading, const json_t *object)
{
    static const char *const scales[] = { "block128", "mx32", NULL }, *const exponents[] = { "up", "down", NULL };
    if (!is_object(reading, object, "input")) return;
    const char *pattern;
    json_t *value;
    json_object_foreach((json_t *)object, pattern, value)
    {
        struct entry *row = add_entry(reading, &reading->profile->input, "input", pattern, POINTS_LINEAR);
        if (!row || json_is_null(value)) continue;
        const char *dtype, *scale, *exponent = NULL;
        if (json_unpack(value, "{s:s, s:s, s?s !}", "dtype", &dtype, "scale", &scale, "exponent", &exponent) != 0 ||
            strcmp(dtype, "e4m3") != 0 || (strcmp(scale, scales[0]) != 0 && strcmp(scale, scales[1]) != 0) ||
            (strcmp(scale, scales[1]) == 0) != (exponent != NULL) ||
            (exponent && strcmp(exponent, exponents[0]) != 0 && strcmp(exponent, exponents[1]) != 0)) {
            refuse(reading, "input", pattern, value,
                   "null, {\"dtype\":\"e4m3\",\"scale\":\"block128\"} or {\"dtype\":"
                   "\"e4m3\",\"scale\":\"mx32\",\"exponent\":\"up\" or \"down\"}");
            continue;
        }
        row->input.dtype = M3_F8_E4M3;
        row->input.scaling = exponent ? M3_SCALE_MX32 : M3_SCALE_128X128;
        row->input.exponent_down = exponent && strcmp(exponent, exponents[1]) == 0;
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
        struct entry *row = add_entry(reading, &reading->profile->partials, "partials", pattern, POINTS_LINEAR);
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

static void read_exact(struct reading *reading, const json_t *list)
{
    if (list && !json_is_array(list)) refuse(reading, "exact", NULL, list, "a list of patterns");
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)list, i, value)
    {
        if (json_is_string(value))
            add_entry(reading, &reading->profile->exact, "exact", json_string_value(value), POINTS_TAPS);
        else refuse(reading, "exact", NULL, value, "a pattern");
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
    static const char *const fields[] = { "name",          "u",       "rounding", "flush_subnormals", "angle", "math",
                                          "scores",        "store",   "input",    "weights",          "exact", "ties",
                                          "dump_rounding", "partials" };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        size_t i = 0;
        while (i < LENGTH(fields) && strcmp(fields[i], key) != 0) i++;
        if (i == LENGTH(fields)) refuse(reading, key, NULL, value, "nothing: it is no field of a profile");
    }
}

static void read_fields(struct reading *reading, const json_t *root)
{
    static const char *const rounding[] = { "nearest", "zero", NULL }, *const angle[] = { "f64", "f32", NULL },
                             *const scores[] = { "sigmoid", "tanh", NULL }, *const ties[] = { "lowest", "any", NULL };
    struct m3_profile *p = reading->profile;
    check_names(reading, root);

    const json_t *name = json_object_get(root, "name"), *flush = json_object_get(root, "flush_subnormals");
    if (!json_is_string(name) || json_string_length(name) == 0) refuse(reading, "name", NULL, name, "a name");
    else if (!(p->name = strdup(json_string_value(name))))
        reading->status = m3_fail_memory(reading->error, "a profile", json_string_length(name));
    p->dtype = format_of(json_object_get(root, "u"));
    if (p->dtype == M3_DTYPES)
        refuse(reading, "u", NULL, json_object_get(root, "u"), "\"f64\", \"f32\", \"f16\" or \"bf16\"");
    p->how.u = roundoff(p->dtype);
    if (flush && !json_is_boolean(flush)) refuse(reading, "flush_subnormals", NULL, flush, "true or false");
    p->flushes = json_is_true(flush);
    p->truncates = read_choice(reading, json_object_get(root, "rounding"), "rounding", rounding);
    p->how.angle =
        read_choice(reading, json_object_get(root, "angle"), "angle", angle) == 1 ? M3_ANGLE_F32 : M3_ANGLE_F64;
    p->how.tanh_scores = read_choice(reading, json_object_get(root, "scores"), "scores", scores);
    p->ties_lowest = read_choice(reading, json_object_get(root, "ties"), "ties", ties) == 0;

    read_math(reading, json_object_get(root, "math"));
    read_formats(reading, json_object_get(root, "store"), "store", &p->store, POINTS_ALL);
    read_input(reading, json_object_get(root, "input"));
    read_formats(reading, json_object_get(root, "weights"), "weights", &p->weights, POINTS_WEIGHTS);
    read_partials(reading, json_object_get(root, "partials"));
    read_exact(reading, json_object_get(root, "exact"));
    read_formats(reading, json_object_get(root, "dump_rounding"), "dump_rounding", &p->dump_rounding, POINTS_TAPS);
}

void m3_profile_names(char *names, size_t size)
{
    names[0] = '\0';
    for (size_t i = 0, used = 0; m3_built_in_profiles[i][0]; i++, used = strlen(names))
        snprintf(names + used, size - used, "%s%s", i ? ", " : "", m3_built_in_profiles[i][0]);
}

/* The JSON of a file, or of a built-in profile. */
static int load(json_t **root, const char *name, struct m3_error *error)
{
    char names[200];
    size_t i = 0;
    if (m3_is_json_path(name)) return m3_json_load(root, name, error);
    while (m3_built_in_profiles[i][0] && strcmp(m3_built_in_profiles[i][0], name) != 0) i++;
    const char *text = m3_built_in_profiles[i][1];
    if (text) return m3_json_parse(root, text, strlen(text), name, error);
    m3_profile_names(names, sizeof names);
    return m3_fail(error, M3_ABSENT, "profile %s: got no such profile, expected %s or the path of a JSON file", name,
                   names);
}

static int hash(struct m3_profile *profile, const json_t *root, struct m3_error *error)
{
    char *text = json_dumps(root, JSON_COMPACT);
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
    int status = load(&root, name, error);
    if (status) return status;

    struct reading reading = { .profile = calloc(1, sizeof **profile), .path = name, .error = error };
    if (!reading.profile) reading.status = m3_fail_memory(error, name, sizeof **profile);
    else if (!json_is_object(root))
        reading.status = m3_fail(error, M3_BAD_INPUT, "%s: got another JSON value, expected an object", name);
    else read_fields(&reading, root);
    if (!reading.status) reading.status = hash(reading.profile, root, error);
    json_decref(root);
    if (reading.status) m3_profile_close(reading.profile);
    else *profile = reading.profile;
    return reading.status;
}

static void free_entries(struct entries *entries)
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
    free(profile->name);
    free(profile);
}

/* ---- answers */

const char *m3_profile_name(const struct m3_profile *profile) { return profile->name; }
const char *m3_profile_sha256(const struct m3_profile *profile) { return profile->sha256; }
int m3_profile_truncates(const struct m3_profile *profile) { return profile->truncates; }
int m3_profile_flushes(const struct m3_profile *profile) { return profile->flushes; }
int m3_profile_ties_lowest(const struct m3_profile *profile) { return profile->ties_lowest; }

struct m3_arithmetic m3_profile_arithmetic(const struct m3_profile *profile, int64_t elements)
{
    struct m3_arithmetic how = profile->how;
    how.lambda = m3_lambda(elements);
    return how;
}

double m3_profile_store(const struct m3_profile *profile, const char *point)
{
    double u = roundoff(m3_profile_dtype(profile, point));
    return u > profile->how.u ? u : 0;
}

enum m3_dtype m3_profile_dtype(const struct m3_profile *profile, const char *point)
{
    const struct entry *entry = last_match(&profile->store, point);
    return entry && roundoff(entry->dtype) > profile->how.u ? entry->dtype : profile->dtype;
}

int m3_profile_exact(const struct m3_profile *profile, const char *tap)
{
    return last_match(&profile->exact, tap) != NULL;
}

double m3_profile_dump_rounding(const struct m3_profile *profile, const char *tap)
{
    const struct entry *entry = last_match(&profile->dump_rounding, tap);
    double u = entry ? roundoff(entry->dtype) : 0;
    return u > profile->how.u ? u : 0;
}

enum m3_dtype m3_profile_dumped(const struct m3_profile *profile, const char *tap)
{
    const enum m3_dtype stored = m3_profile_dtype(profile, tap);
    const struct entry *entry = last_match(&profile->dump_rounding, tap);
    return entry && roundoff(entry->dtype) > roundoff(stored) ? entry->dtype : stored;
}

double m3_profile_weights(const struct m3_profile *profile, const char *tap)
{
    for (size_t i = profile->weights.count; i-- > 0;) {
        double u = roundoff(profile->weights.rows[i].dtype);
        if (matches(profile->weights.rows[i].pattern, tap)) return u > profile->how.u ? u : 0;
    }
    return 0;
}

struct m3_input_rounding m3_profile_input(const struct m3_profile *profile, const char *tap)
{
    struct m3_input_rounding none = { .dtype = M3_DTYPES };
    for (size_t i = profile->input.count; i-- > 0;)
        if (matches(profile->input.rows[i].pattern, tap)) return profile->input.rows[i].input;
    return none;
}

struct m3_partials m3_profile_partials(const struct m3_profile *profile, const char *tap)
{
    struct m3_partials how = { 0 };
    if (m3_profile_store(profile, tap) == 0) return how;
    for (size_t i = profile->partials.count; i-- > 0;)
        if (matches(profile->partials.rows[i].pattern, tap)) {
            how = profile->partials.rows[i].partials;
            how.dtype = m3_profile_dtype(profile, tap);
            return how;
        }
    return how;
}
