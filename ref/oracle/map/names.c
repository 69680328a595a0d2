/* Patterns for the names of another program's tensors: "model.layers.{l}.self_attn.q_proj". */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/map/private/map.h"

int m3_map_name_fits(const char *pattern, const char *name, int64_t *number, int64_t *part)
{
    while (*pattern) {
        if (*pattern != '{') {
            if (*pattern++ != *name++) return 0;
            continue;
        }
        char *end;
        int64_t *target = pattern[1] == 'i' ? part : number;
        if (!isdigit((unsigned char)*name) || (*name == '0' && isdigit((unsigned char)name[1]))) return 0;
        int64_t value = strtoll(name, &end, 10);
        if (pattern[2] != '}') value -= strtoll(pattern + 2, NULL, 10);
        name = end;
        if (*target >= 0 && *target != value) return 0;
        *target = value;
        pattern = strchr(pattern, '}');
        if (!pattern++ || value < 0 || value >= M3_MTP_LAYER) return 0;
    }
    return *name == '\0';
}

int m3_map_name_write(char *name, size_t size, const char *prefix, const char *pattern, int64_t number, int64_t part)
{
    size_t used = (size_t)snprintf(name, size, "%s", prefix);
    while (*pattern && used + 24 < size) {
        if (*pattern != '{') {
            name[used++] = *pattern++;
            continue;
        }
        int64_t offset = pattern[2] != '}' ? strtoll(pattern + 2, NULL, 10) : 0;
        used += (size_t)snprintf(name + used, size - used, "%" PRId64, (pattern[1] == 'i' ? part : number) + offset);
        pattern = strchr(pattern, '}');
        if (!pattern++) return -1;
    }
    name[used] = '\0';
    return *pattern ? -1 : 0;
}
