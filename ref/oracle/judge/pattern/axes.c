/* What the dimensions of a tap are called. */
#include <stddef.h>
#include <string.h>

#include "oracle/judge/pattern/pattern.h"

const char *m3_axis_name(const char *letters, int axis)
{
    static const struct {
        const char *letters, *name;
    } names[] = {
        { "TPM", "row" }, { "QA", "head" }, { "DHWUILYZXC", "channel" }, { "E", "expert" }, { "K", "slot" },
        { "V", "token" }, { "B", "block" },
    };
    const char letter = letters[axis];
    /* A group of heads has one key; of blocks it chooses one list. */
    if (letter == 'G') return letters[axis + 1] == 'B' || letters[axis + 1] == 'N' ? "group" : "head";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (letter && strchr(names[i].letters, letter)) return names[i].name;
    return NULL;
}
