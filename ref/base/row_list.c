#include "base/row_list.h"

#include <stdlib.h>
#include <string.h>

/* One number, or A:B. */
static int take(unsigned char *chosen, const char **at, int64_t count)
{
    char *end;
    if (**at < '0' || **at > '9') return -1;
    const int64_t first = strtoll(*at, &end, 10);
    if (first >= count) return -1;
    int64_t last = first + 1;
    if (*end == ':') {
        if (end[1] < '0' || end[1] > '9') return -1;
        last = strtoll(end + 1, &end, 10);
    }
    if (last <= first || last > count || (*end && *end != ',')) return -1;
    memset(chosen + first, 1, (size_t)(last - first));
    *at = end + (*end == ',' && end[1]);
    return *end == ',' && !end[1] ? -1 : 0;
}

int m3_rows_mark(unsigned char *chosen, const char *list, int64_t count)
{
    const char *at = list;
    do
        if (take(chosen, &at, count)) return -1;
    while (*at);
    return 0;
}
