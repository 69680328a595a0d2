/* Reading maps from files. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "oracle/map/private/map.h"

enum { MAP_NAMES = 256 };

struct reading {
    struct m3_map *map;
    const char *tap;                        /* NULL: outside taps */
    struct m3_error *error;
};

static const struct {
    const char *name;
    enum m3_map_step_kind kind;
} step_names[] = {
    { "only", M3_STEP_ONLY },         { "drop", M3_STEP_DROP },     { "shape", M3_STEP_SHAPE },
    { "axes", M3_STEP_AXES },         { "slice", M3_STEP_SLICE },   { "pick", M3_STEP_PICK },
    { "unrepeat", M3_STEP_UNREPEAT }, { "repeat", M3_STEP_REPEAT }, { "join", M3_STEP_JOIN },
    { "sum", M3_STEP_SUM },           { "times", M3_STEP_TIMES },   { "plus", M3_STEP_PLUS },
    { "ids", M3_STEP_IDS },           { "blocks", M3_STEP_BLOCKS }, { "scores", M3_STEP_SCORES },
    { "scatter", M3_STEP_SCATTER },   { "divide", M3_STEP_DIVIDE },
};

static int refuse(const struct reading *r, const char *field, const char *got, const char *expected)
{
    return m3_fail(r->error, M3_BAD_INPUT, "%s: %s%s%s: got %s, expected %s", r->map->path, r->tap ? r->tap : "",
                   r->tap ? ": " : "", field, got, expected);
}

/* Reports a wrong value, shown as JSON text. */
static int refuse_value(const struct reading *r, const char *field, const json_t *value, const char *expected)
{
    char *text = value ? m3_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (text && strlen(text) > 60) strcpy(text + 57, "...");
    int status = refuse(r, field, text ? text : "nothing", expected);
    free(text);
    return status;
}

int64_t m3_map_size(const char *text, const struct m3_map_sizes *sizes)
{
    int64_t sum = 0;
    int unknown = 0;
    for (const char *p = text;; p++) {
        int64_t term = 1;
        int factors = 0, divide = 0;
        for (; *p && *p != '+'; factors++) {
            int64_t factor;
            if (*p == '/' && factors > 0 && !divide) {
                divide = 1;
                p++;
                if (!isalnum((unsigned char)*p)) return M3_MAP_SIZE_BAD;
            }
            if (isdigit((unsigned char)*p)) {
                char *end;
                errno = 0;
                factor = strtoll(p, &end, 10);
                if (errno) return M3_MAP_SIZE_BAD;
                p = end;
            } else if (isupper((unsigned char)*p) || *p == 'r') {
                factor = sizes->of[(int)*p++];
                if (factor == 0) unknown = factor = 1;
            } else {
                return M3_MAP_SIZE_BAD;
            }
            if (divide && !unknown && (factor == 0 || term % factor)) return M3_MAP_SIZE_BAD;
            if (divide && factor) term /= factor;
            else if (__builtin_mul_overflow(term, factor, &term)) return M3_MAP_SIZE_BAD;
        }
        if (factors == 0 || __builtin_add_overflow(sum, term, &sum)) return M3_MAP_SIZE_BAD;
        if (*p == '\0') return unknown ? M3_MAP_SIZE_UNKNOWN : sum;
    }
}

/* Is it a text that could be a size? Letters are checked when the map is used. */
static int is_size(const json_t *value)
{
    struct m3_map_sizes none = { .tokens = 0 };
    return json_is_string(value) && m3_map_size(json_string_value(value), &none) != M3_MAP_SIZE_BAD;
}

static int read_axis(const struct reading *r, int *axis, const char *field, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= M3_MAX_RANK)
        return refuse_value(r, field, value, "an axis from 0");
    *axis = (int)json_integer_value(value);
    return M3_OK;
}

/* `only` ignores the sizes that it does not name. */
static int read_shape(const struct reading *r, struct m3_map_step *step, const char *field, const json_t *value)
{
    const char *const expected = "a list of up to 8 sizes, at most one of them \"*\"";
    int rests = 0;
    if (!json_is_array(value) || json_array_size(value) > M3_MAX_RANK) return refuse_value(r, field, value, expected);
    step->count = (int)json_array_size(value);
    for (int i = 0; i < step->count; i++) {
        const json_t *size = json_array_get(value, (size_t)i);
        int rest = json_is_string(size) && strcmp(json_string_value(size), "*") == 0;
        rests += rest;
        if ((!rest && !is_size(size)) || (rests > 1 && step->kind == M3_STEP_SHAPE))
            return refuse_value(r, field, value, expected);
        step->sizes[i] = json_string_value(size);
    }
    return M3_OK;
}

static int read_axes(const struct reading *r, struct m3_map_step *step, const json_t *value)
{
    unsigned seen = 0;
    step->count = (int)json_array_size(value);
    int good = json_is_array(value) && step->count > 0 && step->count <= M3_MAX_RANK;
    for (int i = 0; good && i < step->count; i++) {
        const json_t *axis = json_array_get(value, (size_t)i);
        good = json_is_integer(axis) && json_integer_value(axis) >= 0 && json_integer_value(axis) < step->count;
        if (good) seen |= 1u << (step->axes[i] = (int)json_integer_value(axis));
    }
    if (!good || seen != (1u << step->count) - 1) return refuse_value(r, "axes", value, "every axis once");
    return M3_OK;
}

/* Reads the fields of an object: each name in `names` into the size at the same index; others are refused. */
static int read_sizes(const struct reading *r, struct m3_map_step *step, const char *field, const json_t *value,
                      const char *const names[3], const char **const places[3])
{
    const char *key;
    json_t *each;
    if (!json_is_object(value)) return refuse_value(r, field, value, "an object with \"axis\"");
    int status = read_axis(r, &step->axis, field, json_object_get(value, "axis"));
    json_object_foreach((json_t *)value, key, each)
    {
        int known = strcmp(key, "axis") == 0;
        for (int i = 0; !status && i < 3 && names[i]; i++) {
            if (strcmp(key, names[i]) != 0) continue;
            known = 1;
            if (!is_size(each)) status = refuse_value(r, key, each, "a size such as \"QD+GD\"");
            else *places[i] = json_string_value(each);
        }
        if (!status && !known) status = refuse(r, field, key, "a known field");
    }
    return status;
}

static int read_slice(const struct reading *r, struct m3_map_step *step, const json_t *value)
{
    static const char *const names[3] = { "from", "to", "every" };
    const char **const places[3] = { &step->from, &step->to, &step->every };
    step->from = "0";
    step->every = "1";
    return read_sizes(r, step, "slice", value, names, places);
}

/* unrepeat and repeat */
static int read_times(const struct reading *r, struct m3_map_step *step, const char *field, const json_t *value)
{
    static const char *const names[3] = { "times" };
    const char **const places[3] = { &step->every };
    int status = read_sizes(r, step, field, value, names, places);
    return status || step->every ? status : refuse(r, "times", "nothing", "a size such as \"Q/G\"");
}

static int read_pick(const struct reading *r, struct m3_map_step *step, const json_t *value)
{
    const json_t *order = json_object_get(value, "order");
    const char *key;
    json_t *each;
    json_object_foreach((json_t *)value, key,
                        each) if (strcmp(key, "axis") != 0 && strcmp(key, "order") != 0) return refuse(r, "pick", key,
                                                                                                       "a known field");
    int status = read_axis(r, &step->axis, "pick", json_object_get(value, "axis"));
    if (status) return status;
    if (json_array_size(order) == 0 || json_array_size(order) > INT32_MAX)
        return refuse_value(r, "order", order, "a list of places");
    step->count = (int)json_array_size(order);
    step->order = calloc((size_t)step->count, sizeof *step->order);
    if (!step->order) return m3_fail_memory(r->error, r->map->path, (size_t)step->count * sizeof *step->order);
    for (int i = 0; i < step->count; i++) {
        const json_t *place = json_array_get(order, (size_t)i);
        if (!json_is_integer(place) || json_integer_value(place) < 0)
            return refuse_value(r, "order", place, "a place from 0");
        step->order[i] = json_integer_value(place);
    }
    return M3_OK;
}

/* times and divide: a number, or the field of the config that has it. */
static int read_factor(const struct reading *r, struct m3_map_step *step, const char *name, const json_t *value)
{
    const char *field = json_string_value(value), *const inverse = "1/";
    if (json_is_number(value) && (json_number_value(value) != 0 || step->kind == M3_STEP_TIMES)) {
        step->number = json_number_value(value);
        return M3_OK;
    }
    if (field && step->kind == M3_STEP_TIMES && strncmp(field, inverse, strlen(inverse)) == 0) {
        step->kind = M3_STEP_DIVIDE;
        field += strlen(inverse);
    }
    step->field = field;
    if (field && m3_map_field(field) >= 0) return M3_OK;
    return refuse_value(r, name, value,
                        step->kind == M3_STEP_DIVIDE
                            ? "a number that is not 0, or a field such as \"routed_scaling_factor\""
                            : "a number, or a field of the config such as \"swiglu_alpha\"");
}

static int read_step(const struct reading *r, struct m3_map_step *step, const json_t *given)
{
    const char *name = json_object_iter_key(json_object_iter((json_t *)given));
    if (json_object_size(given) != 1) return refuse_value(r, "steps", given, "an object of one field, the step");
    const json_t *value = json_object_get(given, name);
    step->kind = M3_STEP_KINDS;
    for (size_t i = 0; i < sizeof step_names / sizeof *step_names; i++)
        if (strcmp(name, step_names[i].name) == 0) step->kind = step_names[i].kind;
    switch (step->kind) {
    case M3_STEP_DROP:
    case M3_STEP_JOIN: return read_axis(r, &step->axis, name, value);
    case M3_STEP_ONLY:
    case M3_STEP_SHAPE: return read_shape(r, step, name, value);
    case M3_STEP_AXES: return read_axes(r, step, value);
    case M3_STEP_SLICE: return read_slice(r, step, value);
    case M3_STEP_PICK: return read_pick(r, step, value);
    case M3_STEP_UNREPEAT:
    case M3_STEP_REPEAT: return read_times(r, step, name, value);
    case M3_STEP_TIMES:
    case M3_STEP_DIVIDE: return read_factor(r, step, name, value);
    case M3_STEP_PLUS:
        step->number = json_number_value(value);
        return json_is_number(value) ? M3_OK : refuse_value(r, name, value, "a number");
    case M3_STEP_SCATTER:
        if (!is_size(value)) return refuse_value(r, name, value, "a size such as \"T\"");
        step->sizes[0] = json_string_value(value);
        return M3_OK;
    case M3_STEP_SUM:
    case M3_STEP_IDS:
    case M3_STEP_SCORES:
    case M3_STEP_BLOCKS: return json_is_true(value) ? M3_OK : refuse_value(r, name, value, "true");
    case M3_STEP_KINDS: break;
    }
    return refuse(r, "steps", name, "a known step");
}

/* Is it the name of a tap, with its number written as {l}, {v} or {m}? */
static int is_tap(const char *name)
{
    char whole[M3_MAP_NAME];
    const char *brace = strchr(name, '{');
    enum m3_tap tap;
    int64_t layer;
    if (strcmp(name, "rows") == 0 || strcmp(name, "sequences") == 0 || strcmp(name, "vision.rows") == 0) return 1;
    if (!brace) return m3_tap_parse(name, &tap, &layer) == 0;
    if (!brace[1] || !strchr("lvm", brace[1]) || brace[2] != '}' || strlen(name) >= sizeof whole) return 0;
    snprintf(whole, sizeof whole, "%.*s0%s", (int)(brace - name), name, brace + 3);
    return m3_tap_parse(whole, &tap, &layer) == 0;
}

static int read_sources(const struct reading *r, struct m3_map_recipe *recipe, const json_t *from)
{
    size_t count = json_is_array(from) ? json_array_size(from) : 1;
    if (count == 0 || count > M3_MAP_SOURCES) return refuse_value(r, "from", from, "1 to 8 names");
    for (size_t i = 0; i < count; i++) {
        const json_t *name = json_is_array(from) ? json_array_get(from, i) : from;
        if (!json_is_string(name) || json_string_length(name) == 0 || json_string_length(name) >= M3_MAP_NAME - 40)
            return refuse_value(r, "from", name, "the name of a tensor");
        if (!m3_map_is_pattern(json_string_value(name)))
            return refuse_value(r, "from", name,
                                "numbers in names as {l}, {v}, {m} or {i}, perhaps with + or - and digits, and [.0] "
                                "only at the end");
        recipe->sources[recipe->source_count++] = json_string_value(name);
    }
    return M3_OK;
}

static int read_recipe(struct reading *r, const char *tap, json_t *given)
{
    struct m3_map_recipe *recipe = &r->map->recipes[r->map->recipe_count++];
    const char *key;
    json_t *value;
    *recipe = (struct m3_map_recipe){ .tap = tap };
    if (!json_is_object(given)) return refuse_value(r, "recipe", given, "an object with \"from\"");
    json_object_foreach(given, key, value) if (strcmp(key, "from") != 0 && strcmp(key, "steps") != 0 &&
                                               strcmp(key, "why") != 0) return refuse(r, "recipe", key,
                                                                                      "a known field");
    int status = read_sources(r, recipe, json_object_get(given, "from"));
    const json_t *steps = json_object_get(given, "steps");
    if (!status && steps && (!json_is_array(steps) || json_array_size(steps) > M3_MAP_STEPS))
        status = refuse_value(r, "steps", steps, "a list of at most 12 steps");
    for (size_t i = 0; !status && i < json_array_size(steps); i++)
        status = read_step(r, &recipe->steps[recipe->step_count++], json_array_get(steps, i));
    return status;
}

/* A tap has one recipe, or a list from which the first complete one is used. */
static int read_taps(struct reading *r, json_t *taps)
{
    const char *tap;
    json_t *value;
    size_t count = 0;
    if (json_object_size(taps) == 0) return refuse_value(r, "taps", taps, "an object of recipes");
    json_object_foreach(taps, tap, value) count += json_is_array(value) ? json_array_size(value) : 1;
    r->map->recipes = calloc(count + 1, sizeof *r->map->recipes);
    if (!r->map->recipes) return m3_fail_memory(r->error, r->map->path, count * sizeof *r->map->recipes);
    json_object_foreach(taps, tap, value)
    {
        r->tap = tap;
        int status = is_tap(tap) ? M3_OK : refuse(r, "taps", tap, "the name of a tap");
        if (!status && !json_is_array(value)) status = read_recipe(r, tap, value);
        for (size_t i = 0; !status && json_is_array(value) && i < json_array_size(value); i++)
            status = read_recipe(r, tap, json_array_get(value, i));
        if (status) return status;
    }
    r->tap = NULL;
    return M3_OK;
}

/* Two entries for one tap: "layers.{l}.mlp" and "layers.0.mlp". The order of a file does not say which counts; what
 * stands before a base does. */
static int check_clashes(struct reading *r, const json_t *taps)
{
    const char *tap, *other;
    json_t *value, *unused;
    json_object_foreach((json_t *)(uintptr_t)taps, tap, value) if (strchr(tap, '{'))
        json_object_foreach((json_t *)(uintptr_t)taps, other, unused)
    {
        int64_t number = -1, part = -1;
        r->tap = other;
        if (!strchr(other, '{') && m3_map_name_fits(tap, other, &number, &part))
            return refuse(r, "taps", tap, "one entry for this tap");
    }
    r->tap = NULL;
    return M3_OK;
}

static int read_prefixes(const struct reading *r, const json_t *prefixes)
{
    r->map->prefixes[r->map->prefix_count++] = "";
    if (!prefixes) return M3_OK;
    if (!json_is_array(prefixes) || json_array_size(prefixes) >= M3_MAP_PREFIXES)
        return refuse_value(r, "prefixes", prefixes, "at most 3 texts");
    for (size_t i = 0; i < json_array_size(prefixes); i++) {
        const char *prefix = json_string_value(json_array_get(prefixes, i));
        if (!prefix || strlen(prefix) > 30 || strchr(prefix, '{'))
            return refuse_value(r, "prefixes", prefixes, "texts of at most 30 characters");
        r->map->prefixes[r->map->prefix_count++] = prefix;
    }
    return M3_OK;
}

void m3_map_names(char *names, size_t size)
{
    names[0] = '\0';
    for (size_t i = 0, used = 0; m3_built_in_maps[i][0]; i++, used = strlen(names))
        snprintf(names + used, size - used, "%s%s", i ? ", " : "", m3_built_in_maps[i][0]);
}

/* The versions that a map was tried with, in one line. */
static void join_versions(char *text, size_t size, const json_t *map)
{
    const json_t *versions = json_object_get(map, "versions");
    text[0] = '\0';
    for (size_t i = 0, used = 0; i < json_array_size(versions) && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "; " : "",
                                 json_string_value(json_array_get(versions, i)));
}

static int load_built_in(json_t **json, const char *name, struct m3_error *error)
{
    for (size_t i = 0; m3_built_in_maps[i][0]; i++)
        if (strcmp(name, m3_built_in_maps[i][0]) == 0)
            return m3_json_parse(json, m3_built_in_maps[i][1], strlen(m3_built_in_maps[i][1]), name, error);
    return M3_ABSENT;
}

int m3_map_list(void (*print)(void *self, const char *name, const char *versions), void *self)
{
    struct m3_error error = { 0 };
    int status = M3_OK;
    for (size_t i = 0; !status && m3_built_in_maps[i][0]; i++) {
        char versions[400];
        json_t *json = NULL;
        status = load_built_in(&json, m3_built_in_maps[i][0], &error);
        join_versions(versions, sizeof versions, json);
        if (!status) print(self, m3_built_in_maps[i][0], versions);
        json_decref(json);
    }
    m3_error_free(&error);
    return status;
}

/* Recipes of a built-in map, for the taps that this one does not name. A map leads to no other file. */
static int read_base(const struct reading *r)
{
    const json_t *name = json_object_get(r->map->json, "base");
    json_t *base = NULL, *own = json_object_get(r->map->json, "taps");
    if (!name) return M3_OK;
    int status = json_is_string(name) ? load_built_in(&base, json_string_value(name), r->error) : M3_ABSENT;
    char names[MAP_NAMES];
    m3_map_names(names, sizeof names);
    if (status == M3_ABSENT) return refuse_value(r, "base", name, names);
    if (status) return status;
    int bad = 0;
    if (!own) bad = json_object_set_new(r->map->json, "taps", own = json_object());
    bad |= json_object_update_missing(own, json_object_get(base, "taps"));
    bad |= json_object_update_missing(r->map->json, base);
    json_decref(base);
    return bad ? refuse(r, "base", "a map without taps", "a map") : M3_OK;
}

static int read_files(const struct reading *r)
{
    const json_t *files = json_object_get(r->map->json, "files"), *divided = json_object_get(r->map->json, "divided");
    const char *what = json_string_value(files);
    r->map->divided = "";
    if (files && (!what || (strcmp(what, "ranks") != 0 && strcmp(what, "chunks") != 0)))
        return refuse_value(r, "files", files, "\"ranks\" or \"chunks\"");
    if (what) r->map->files = strcmp(what, "ranks") == 0 ? M3_FILES_RANKS : M3_FILES_CHUNKS;
    if (!divided) return M3_OK;
    const char *letters = json_string_value(divided);
    if (!letters || r->map->files != M3_FILES_RANKS || strspn(letters, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != strlen(letters))
        return refuse_value(r, "divided", divided, "letters of sizes, such as \"QGI\", of a map of ranks");
    r->map->divided = letters;
    return M3_OK;
}

static int read_rule(struct reading *r, struct m3_map_rule *rule, const json_t *value)
{
    static const struct {
        const char *word;
        enum m3_map_rule_kind kind;
    } words[] = {
        { "equal", M3_RULE_EQUAL },   { "sum", M3_RULE_SUM },   { "rows", M3_RULE_ROWS },
        { "zigzag", M3_RULE_ZIGZAG }, { "last", M3_RULE_LAST },
    };
    for (size_t i = 0; json_is_string(value) && i < sizeof words / sizeof *words; i++)
        if (strcmp(json_string_value(value), words[i].word) == 0) {
            rule->kind = words[i].kind;
            return M3_OK;
        }
    if (json_object_size(value) != 1 || !json_object_get(value, "concat"))
        return refuse_value(r, "rule", value,
                            "\"equal\", \"sum\", {\"concat\": AXIS}, \"rows\", \"zigzag\" or \"last\"");
    rule->kind = M3_RULE_CONCAT;
    return read_axis(r, &rule->axis, "concat", json_object_get(value, "concat"));
}

/* "*" is the rule of all taps that no other rule names, and so comes last. */
static int read_rules(struct reading *r, const json_t *rules)
{
    const char *tap;
    json_t *value;
    if (!rules) return M3_OK;
    if (!json_is_object(rules) || r->map->files == M3_FILES_NONE)
        return refuse_value(r, "rules", rules, "an object, in a map with \"files\"");
    r->map->rules = calloc(json_object_size(rules) + 1, sizeof *r->map->rules);
    if (!r->map->rules) return m3_fail_memory(r->error, r->map->path, 0);
    for (int others = 0; others < 2; others++) json_object_foreach((json_t *)(uintptr_t)rules, tap, value)
        {
            const int is_other = strcmp(tap, "*") == 0;
            if (is_other != others) continue;
            r->tap = tap;
            int status = is_other || is_tap(tap) ? M3_OK : refuse(r, "rules", tap, "the name of a tap, or *");
            if (!status) status = read_rule(r, &r->map->rules[r->map->rule_count], value);
            if (status) return status;
            r->map->rules[r->map->rule_count++].tap = is_other ? NULL : tap;
        }
    r->tap = NULL;
    return M3_OK;
}

/* Does a size name the sequences? */
static int names_b(const struct m3_map *map)
{
    int names = 0;
    for (int64_t i = 0; i < map->recipe_count; i++)
        for (int s = 0; s < map->recipes[i].step_count; s++) {
            const struct m3_map_step *step = &map->recipes[i].steps[s];
            const char *const texts[] = { step->from, step->to, step->every };
            const int shaped = step->kind == M3_STEP_SHAPE || step->kind == M3_STEP_ONLY;
            for (int k = 0; shaped && k < step->count; k++) names |= strchr(step->sizes[k], 'B') != NULL;
            for (int k = 0; k < 3; k++) names |= texts[k] && strchr(texts[k], 'B') != NULL;
        }
    return names;
}

static int check_versions(const struct reading *r, const json_t *versions)
{
    int good = !versions || json_is_array(versions);
    for (size_t i = 0; good && i < json_array_size(versions); i++) good = json_is_string(json_array_get(versions, i));
    return good ? M3_OK : refuse_value(r, "versions", versions, "a list of texts, such as \"vLLM 0.32.0\"");
}

static int read_map(struct m3_map *map, struct m3_error *error)
{
    static const char *const known[] = { "name", "source", "notes",   "prefixes", "taps",
                                         "base", "files",  "divided", "rules",    "versions" };
    struct reading r = { map, NULL, error };
    const char *key;
    json_t *value;
    if (!json_is_object(map->json)) return refuse(&r, "map", "another JSON value", "an object");
    json_object_foreach((json_t *)map->json, key, value)
    {
        int found = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= strcmp(key, known[i]) == 0;
        if (!found) return refuse(&r, "map", key, "a known field");
    }
    int status = read_base(&r);
    if (!status) status = check_versions(&r, json_object_get(map->json, "versions"));
    if (!status) status = read_prefixes(&r, json_object_get(map->json, "prefixes"));
    if (!status) status = read_files(&r);
    if (!status) status = read_rules(&r, json_object_get(map->json, "rules"));
    if (status || (map->files != M3_FILES_NONE && !json_object_get(map->json, "taps"))) return status;
    status = read_taps(&r, json_object_get(map->json, "taps"));
    if (!status && !json_object_get(map->json, "base")) status = check_clashes(&r, json_object_get(map->json, "taps"));
    map->names_b = !status && names_b(map);
    return status;
}

int m3_map_open(struct m3_map **map, const char *name, struct m3_error *error)
{
    *map = NULL;
    struct m3_map *opened = calloc(1, sizeof *opened);
    if (opened) opened->path = strdup(name);
    if (!opened || !opened->path) {
        m3_map_close(opened);
        return m3_fail_memory(error, name, sizeof *opened);
    }
    int is_file = m3_is_json_path(name);
    int status = is_file ? m3_json_load(&opened->json, name, error) : load_built_in(&opened->json, name, error);
    char names[MAP_NAMES];
    m3_map_names(names, sizeof names);
    if (status == M3_ABSENT && !is_file)
        m3_fail(error, status, "%s: no such map: expected %s or a file, with a / or .json in its name", name, names);
    if (!status) status = read_map(opened, error);
    if (status) m3_map_close(opened);
    else *map = opened;
    return status;
}

void m3_map_close(struct m3_map *map)
{
    if (!map) return;
    free(map->rules);
    for (int64_t i = 0; i < map->recipe_count; i++)
        for (int s = 0; s < map->recipes[i].step_count; s++) free(map->recipes[i].steps[s].order);
    free(map->recipes);
    json_decref(map->json);
    free(map->path);
    free(map);
}
