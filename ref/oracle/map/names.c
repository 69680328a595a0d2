/* Patterns for the names of another program's tensors: "model.layers.{l}.self_attn.q_proj". */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/map/private/map.h"

enum { MOST_DIGITS = 6 };               /* of the offset in "{l+1}" */

/* What a pattern may end in, to say what is so without it. */
static const char may_be_tuple[] = "[" M3_MAP_FIRST "]";

int m3_map_is_pattern(const char *pattern)
{
    const char *end = strchr(pattern, '[');
    if (end && (end == pattern || strcmp(end, may_be_tuple) != 0)) return 0;
    while ((pattern = strchr(pattern, '{'))) {
        if (!pattern[1] || !strchr("lvmi", pattern[1])) return 0;
        pattern += 2;
        if (*pattern == '+' || *pattern == '-') {
            const size_t digits = strspn(++pattern, "0123456789");
            if (digits == 0 || digits > MOST_DIGITS) return 0;
            pattern += digits;
        }
        if (*pattern++ != '}') return 0;
    }
    return 1;
}

int m3_map_name_fits(const char *pattern, const char *name, int64_t *number, int64_t *part)
{
    while (*pattern && *pattern != '[') {
        if (*pattern != '{') {
            if (*pattern++ != *name++) return 0;
            continue;
        }
        char *end;
        int64_t *target = pattern[1] == 'i' ? part : number;
        if (!isdigit((unsigned char)*name) || (*name == '0' && isdigit((unsigned char)name[1]))) return 0;
        int64_t value = strtoll(name, &end, 10);
        if (value >= INT32_MAX) return 0;       /* also where the number is too long for 64 bits */
        if (pattern[2] != '}') value -= strtoll(pattern + 2, NULL, 10);
        name = end;
        if (*target >= 0 && *target != value) return 0;
        *target = value;
        pattern = strchr(pattern, '}') + 1;
        if (value < 0 || value >= M3_MTP_LAYER) return 0;
    }
    return *name == '\0' || strcmp(name, M3_MAP_FIRST) == 0;
}

int m3_map_name_write(char *name, size_t size, const char *prefix, const char *pattern, int64_t number, int64_t part)
{
    size_t used = (size_t)snprintf(name, size, "%s", prefix);
    while (*pattern && *pattern != '[' && used + 24 < size) {
        if (*pattern != '{') {
            name[used++] = *pattern++;
            continue;
        }
        int64_t offset = pattern[2] != '}' ? strtoll(pattern + 2, NULL, 10) : 0;
        used += (size_t)snprintf(name + used, size - used, "%" PRId64, (pattern[1] == 'i' ? part : number) + offset);
        pattern = strchr(pattern, '}') + 1;
    }
    name[used] = '\0';
    return *pattern && *pattern != '[' ? -1 : 0;
}
