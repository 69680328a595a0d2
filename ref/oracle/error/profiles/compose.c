#include "oracle/error/private/compose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "oracle/error/profile.h"

enum { MOST_FILES = 8 };        /* that build on each other: a file may name itself */

/* Adds the names of the list to `names`, separated by commas. */
static void list_names(char *names, size_t size, const char *const list[][2])
{
    names[0] = '\0';
    for (size_t i = 0, used = 0; list[i][0]; i++, used = strlen(names))
        snprintf(names + used, size - used, "%s%s", i ? ", " : "", list[i][0]);
}

void m3_profile_names(char *names, size_t size) { list_names(names, size, m3_built_in_profiles); }

void m3_profile_words(char *names, size_t size)
{
    list_names(names, size, m3_profile_word_texts);
    const size_t used = strlen(names);
    snprintf(names + used, size - used, ", tp2, tp4, .. tp%d", M3_RANKS);
}

/* The text of a name in the list, or NULL. */
static const char *text_of(const char *const list[][2], const char *name, size_t length)
{
    size_t i = 0;
    while (list[i][0] && (strlen(list[i][0]) != length || memcmp(list[i][0], name, length) != 0)) i++;
    return list[i][1];
}

size_t m3_profile_base_length(const char *text)
{
    /* The path of a file may hold a '+' too, but after it comes a '.' or '/'. */
    const char *words = text;
    for (const char *at = text; *at; at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789_+", *at)) words = at + 1;
    const char *plus = strchr(words, '+');
    return plus ? (size_t)(plus - text) : strlen(text);
}

/* ---- one profile above another */

/* Moves the entries of `above` after those of `below`: of several patterns that match, the last decides. */
static int append(json_t *below, const json_t *above)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)above, key, value)
    {
        json_object_del(below, key);
        if (json_object_set(below, key, value) != 0) return -1;
    }
    return 0;
}

static int put_above(json_t *below, const json_t *above, const char *text, struct m3_error *error)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)above, key, value)
    {
        json_t *field = json_object_get(below, key);
        const int both = json_is_object(field) && json_is_object(value);
        if (both ? append(field, value) : json_object_set(below, key, value))
            return m3_fail_memory(error, text, json_object_size(above));
    }
    return M3_OK;
}

/* ---- bases and words */

static int compose(json_t **root, const char *text, int files, struct m3_error *error);

/* `base` with its words, after the folder of `file` if it names a file beside it; NULL: no memory. */
static char *base_beside(const char *base, const char *file)
{
    const size_t length = m3_profile_base_length(base);
    const int is_file = length > 5 && memcmp(base + length - 5, ".json", 5) == 0;
    const char *slash = is_file ? strrchr(file, '/') : NULL;
    const size_t folder = slash ? (size_t)(slash - file) + 1 : 0;
    char *whole = malloc(folder + strlen(base) + 1);
    if (!whole) return NULL;
    memcpy(whole, file, folder);
    strcpy(whole + folder, base);
    return whole;
}

/* Replaces *root, which has a "base", by that base with the fields of *root above it. */
static int put_on_base(json_t **root, const char *path, int files, struct m3_error *error)
{
    json_t *above = *root, *base = json_object_get(above, "base");
    *root = NULL;
    const char *text = json_string_value(base);
    char *whole = NULL;
    int status = M3_OK;
    if (!text)
        status = m3_fail(error, M3_BAD_INPUT, "%s: base: got another JSON value, expected the name of a profile", path);
    else if (memchr(text, '/', m3_profile_base_length(text)))
        status =
            m3_fail(error, M3_BAD_INPUT,
                    "%s: base: got \"%.100s\", expected a built-in profile or the name of a file in the same folder",
                    path, text);
    else if (files >= MOST_FILES)
        status =
            m3_fail(error, M3_BAD_INPUT, "%s: base: got more than %d files that build on each other", path, MOST_FILES);
    else if (!(whole = base_beside(text, path))) status = m3_fail_memory(error, path, 0);
    if (!status) status = compose(root, whole, files + 1, error);
    if (!status) {
        json_object_del(above, "base");
        status = put_above(*root, above, path, error);
    }
    free(whole);
    json_decref(above);
    return status;
}

/* A built-in profile or a file, with its base. */
static int load(json_t **root, const char *name, int files, struct m3_error *error)
{
    char names[400];
    if (m3_is_json_path(name)) {
        int status = m3_json_load(root, name, error);
        if (!status && !json_is_object(*root))
            status = m3_fail(error, M3_BAD_INPUT, "%s: got another JSON value, expected an object", name);
        return status || !json_object_get(*root, "base") ? status : put_on_base(root, name, files, error);
    }
    const char *text = text_of(m3_built_in_profiles, name, strlen(name));
    if (text) {
        int status = m3_json_parse(root, text, strlen(text), name, error);
        return status || !json_object_get(*root, "base") ? status : put_on_base(root, name, files, error);
    }
    m3_profile_names(names, sizeof names);
    return m3_fail(error, M3_ABSENT, "profile %s: got no such profile, expected %s or the path of a JSON file", name,
                   names);
}

/* "tp8": the products that engines cut by columns are computed in 8 parts. NULL if it is no such word. */
static json_t *parts_word(const char *word, size_t length)
{
    static const char *const cut[] = { "*.attn_out", "*.mlp", "*.moe.shared", "*.moe.expert_out" };
    int ranks = 2;
    char name[16];
    while (ranks <= M3_RANKS &&
           (snprintf(name, sizeof name, "tp%d", ranks), strlen(name) != length || memcmp(name, word, length) != 0))
        ranks *= 2;
    json_t *patterns = ranks <= M3_RANKS ? json_object() : NULL;
    for (size_t i = 0; patterns && i < sizeof cut / sizeof *cut; i++)
        m3_json_set(patterns, cut[i], json_pack("{s:i, s:s}", "ranks", ranks, "reduce", "any"));
    return patterns ? json_pack("{s:o}", "partials", patterns) : NULL;
}

void m3_profile_forget_words(json_t *root)
{
    json_object_del(root, "what");
    json_object_del(root, "sources");
}

/* Puts the word, without its '+', above the profile. */
static int add_word(json_t *root, const char *word, size_t length, const char *text, struct m3_error *error)
{
    const char *overlay = text_of(m3_profile_word_texts, word, length);
    json_t *above = parts_word(word, length);
    char names[800];
    int status = M3_OK;
    if (overlay) status = m3_json_parse(&above, overlay, strlen(overlay), text, error);
    if (above) m3_profile_forget_words(above);
    if (!above && !status) {
        m3_profile_words(names, sizeof names);
        return m3_fail(error, M3_BAD_INPUT, "profile %s: got the word \"%.*s\", expected one of %s", text, (int)length,
                       word, names);
    }
    if (!status) status = put_above(root, above, text, error);
    json_decref(above);
    return status;
}

/* "bf16" of a profile with the words "+tp8": its name is "bf16+tp8". A name that is none is refused later. */
static int add_to_name(json_t *root, const char *words, const char *text, struct m3_error *error)
{
    const char *name = json_string_value(json_object_get(root, "name"));
    if (!name || !*name || !*words) return M3_OK;
    return json_object_set_new(root, "name", json_sprintf("%s%s", name, words)) ? m3_fail_memory(error, text, 0)
                                                                                : M3_OK;
}

static int compose(json_t **root, const char *text, int files, struct m3_error *error)
{
    const char *words = text + m3_profile_base_length(text);
    char *name = strndup(text, m3_profile_base_length(text));
    *root = NULL;
    int status = name ? load(root, name, files, error) : m3_fail_memory(error, text, 0);
    for (const char *word = words; !status && *word == '+';) {
        const size_t length = strcspn(++word, "+");
        status = add_word(*root, word, length, text, error);
        word += length;
    }
    if (!status) status = add_to_name(*root, words, text, error);
    free(name);
    if (status) json_decref(*root), *root = NULL;
    return status;
}

int m3_profile_compose(json_t **root, const char *text, struct m3_error *error)
{
    return compose(root, text, 1, error);
}

int m3_profile_list(m3_profile_say *say, void *self)
{
    const char *const(*const lists[])[2] = { m3_built_in_profiles, m3_profile_word_texts };
    int status = M3_OK;
    for (int words = 0; words < 2; words++)
        for (size_t i = 0; lists[words][i][0] && !status; i++) {
            json_t *root;
            struct m3_error ignored = { 0 };
            const char *text = lists[words][i][1];
            status = m3_json_parse(&root, text, strlen(text), lists[words][i][0], &ignored);
            if (!status) say(self, words, lists[words][i][0], json_string_value(json_object_get(root, "what")));
            json_decref(root);
            m3_error_free(&ignored);
        }
    if (!status)
        say(self, 1, "tp2, tp4, .. tp64",
            "products in 2, 4, .. 64 parts, each rounded, as tensor-parallel engines form them");
    return status;
}
