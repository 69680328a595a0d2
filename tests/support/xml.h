/* Reads the program's XML output: is it well formed, and where is each text? Include in one test file. */
#ifndef M3_TESTS_XML_H
#define M3_TESTS_XML_H

#include <check.h>
#include <ctype.h>
#include <string.h>

/* The position after the next `end`, which must exist. */
static inline const char *past(const char *at, const char *end)
{
    const char *found = strstr(at, end);
    ck_assert_msg(found != NULL, "no %s after %.40s", end, at);
    return found + strlen(end);
}

/* How often a word occurs in a text. */
static inline int places(const char *text, const char *word)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) count++;
    return count;
}

static inline const char *past_name(const char *at)
{
    ck_assert(isalpha((unsigned char)*at));
    while (isalnum((unsigned char)*at) || *at == '-' || *at == ':') at++;
    return at;
}

static inline const char *past_reference(const char *at)
{
    static const char *const names[] = { "&amp;", "&lt;", "&gt;", "&quot;" };
    for (int i = 0; i < 4; i++)
        if (strncmp(at, names[i], strlen(names[i])) == 0) return at + strlen(names[i]);
    size_t digits = strncmp(at, "&#", 2) == 0 ? strspn(at + 2, "0123456789") : 0;
    ck_assert_msg(digits > 0 && at[2 + digits] == ';', "no reference: %.20s", at);
    return at + 3 + digits;
}

/* Skips text without tags, up to one of `ends`. */
static inline const char *past_text(const char *at, const char *ends)
{
    while (*at && !strchr(ends, *at)) {
        ck_assert_msg((unsigned char)*at < 127 && ((unsigned char)*at >= 32 || *at == '\n'), "byte %d", *at);
        if (*at == '&') at = past_reference(at);
        else at++;
    }
    return at;
}

/* Skips NAME="VALUE" ..., up to '>' or '/'. */
static inline const char *past_attributes(const char *at)
{
    while (*at == ' ') {
        at = past_name(at + 1);
        ck_assert(at[0] == '=' && at[1] == '"');
        at = past_text(at + 2, "\"<");
        ck_assert_int_eq(*at++, '"');
    }
    return at;
}

/* Checks an element after the line that says what the file is: tags closed in order, attributes in quotes, no loose
 * '<' or '&'. Returns the number of elements. */
static inline int check_xml(const char *at)
{
    struct {
        const char *name;
        size_t length;
    } open[16];
    int depth = 0, elements = 0;
    at = past(at, ">\n");
    do {
        at = past_text(at, "<");
        ck_assert_msg(*at == '<', "%d elements are left open", depth);
        int closes = at[1] == '/';
        const char *name = at + 1 + closes, *end = past_name(name);
        at = past_attributes(end);
        if (closes) {
            depth--;
            ck_assert_msg(depth >= 0 && open[depth].length == (size_t)(end - name) &&
                              strncmp(open[depth].name, name, open[depth].length) == 0,
                          "at %.40s", name);
        } else {
            elements++;
            open[depth].name = name;
            open[depth].length = (size_t)(end - name);
            if (*at != '/') depth++;
            else at++;
            ck_assert_int_lt(depth, 16);
        }
        ck_assert_msg(*at++ == '>', "at %.40s", name);
    } while (depth > 0);
    ck_assert_str_eq(at, "\n");
    return elements;
}

#endif
