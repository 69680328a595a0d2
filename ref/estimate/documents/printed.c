#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/documents/documents.h"

static const struct {
    const char *name;
    double scale;
} units[] = {
    { "", 1 },         { "x", 1 },        { "%", 0.01 },  { "K", 1e3 },   { "M", 1e6 },      { "B", 1e9 },
    { "G", 1e9 },      { "T", 1e12 },     { "P", 1e15 },  { "E", 1e18 },  { "bytes", 1 },    { "KB", 1e3 },
    { "MB", 1e6 },     { "GB", 1e9 },     { "TB", 1e12 }, { "PB", 1e15 }, { "KiB", 0x1p10 }, { "MiB", 0x1p20 },
    { "GiB", 0x1p30 }, { "TiB", 0x1p40 }, { "s", 1 },     { "ms", 1e-3 }, { "us", 1e-6 },
};

static const char digits[] = "0123456789";

/* Digits with or without commas; with them, groups of three after the first. Commas are dropped from the copy. */
static const char *copy_whole(char *to, size_t room, const char *text)
{
    size_t group = strspn(text, digits), n = 0;
    int commas = 0;
    if (group == 0) return NULL;
    for (;;) {
        if (n + group >= room || (commas && group != 3)) return NULL;
        memcpy(to + n, text, group);
        n += group;
        text += group;
        if (*text != ',') break;
        if (!commas && group > 3) return NULL;
        commas = 1;
        group = strspn(++text, digits);
    }
    to[n] = '\0';
    return text;
}

static int find_unit(struct m3_printed_number *number, const char *text)
{
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(text, units[i].name) == 0) {
            number->scale = units[i].scale;
            number->unit = text;
            return 1;
        }
    return 0;
}

int m3_printed_parse(struct m3_printed_number *number, const char *text, struct m3_error *error)
{
    enum { MOST_DIGITS = 40 };
    char plain[4 * MOST_DIGITS] = "";
    const char *at = copy_whole(plain, MOST_DIGITS, text + (*text == '~' || *text == '='));
    int good = at != NULL;
    *number = (struct m3_printed_number){ 0 };
    if (good && *at == '.') {
        size_t count = strspn(at + 1, digits);
        good = count > 0 && count < MOST_DIGITS;
        if (good) strncat(plain, at, count + 1);
        at += good ? count + 1 : 0;
        number->decimals = good ? (int)count : 0;
    }
    if (good && *at == 'e') {
        size_t count = strspn(at + 1, digits);
        good = count > 0 && count < 3;
        if (good) strncat(plain, at, count + 1);
        at += good ? count + 1 : 0;
    }
    good = good && find_unit(number, at + (*at == ' '));
    if (!good)
        return m3_fail(error, M3_BAD_INPUT, "printed figure: got %s, expected a decimal number and a unit or none",
                       text);
    const char *raised = strchr(plain, 'e');
    number->value = strtod(plain, NULL) * number->scale;
    number->half = 0.5 * pow(10, (raised ? atoi(raised + 1) : 0) - number->decimals) * number->scale;
    return M3_OK;
}
