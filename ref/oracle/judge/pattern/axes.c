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

int m3_pattern_divide(struct m3_pattern_values *v, const char *letters, const int64_t *shape)
{
    const int has_places = letters[1] && (letters[2] || strchr("QEK", letters[1])), last = has_places ? 2 : 1;
    if (!letters[1] || (letters[last] && letters[last + 1])) return 0;
    v->outputs = v->place_count = has_places ? shape[1] : 1;
    v->width = letters[last] ? shape[last] : 1;
    v->place = has_places ? m3_axis_name(letters, 1) : "";
    v->element = letters[last] ? m3_axis_name(letters, last) : "";
    return v->place && v->element;
}
