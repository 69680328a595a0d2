/* The pattern of a tap's wrong values, in the few words of a last line: where they are, and what they are. Only what is
 * clearly so is said: a wrong lead is worse than none. SPEC 7.12. */
#ifndef M3_ORACLE_JUDGE_PATTERN_PATTERN_H
#define M3_ORACLE_JUDGE_PATTERN_PATTERN_H

#include <stdint.h>

#include "base/status.h"

/* Which items of one kind hold all that is wrong, for programs. noun NULL: nothing is said of this kind. */
struct m3_pattern_items {
    const char *noun; /* static: "row", "head" */
    int64_t few[3], few_count; /* their numbers, if they are so few and not adjacent; else 0 */
    int64_t first, end, step; /* numbers from `first` to below `end`; step 0: so many of them, somewhere: */
    int64_t wrong, all;
};

struct m3_pattern {
    char where[160]; /* "rows 96 to 117, head 3"; "": everywhere, or nothing can be said */
    char what[160]; /* the wrong values are "the right ones times 0.75", "zeros"; "": nothing can be said */
    struct m3_pattern_items items[3]; /* rows; places, such as heads; elements, such as channels */
};

/* Values that the wrong ones may be: those of another tap. NaN: there is none. */
struct m3_pattern_other {
    const char *text; /* "equal to what layers.7.attn holds" */
    double (*at)(const void *self, int64_t row, int64_t i); /* element i of row [row] of those below */
    const void *self;
};

/* A tap beside what it should be: rows of outputs, such as heads, that have `width` elements each. */
struct m3_pattern_values {
    const double *got, *want, *variance; /* [rows,outputs,width]; variance: of a right error */
    const int64_t *numbers; /* [rows] ascending; NULL: from 0 */
    int64_t rows, outputs, width;
    const int32_t *places; /* [rows,outputs] the expert of an output; NULL: its own number */
    int64_t place_count; /* experts; outputs of a row */
    const char *place, *element; /* what they are called: "head", "channel" */
    const struct m3_pattern_other *others; /* [other_count] */
    int64_t other_count;
};

/* M3_INTERNAL. */
int m3_pattern_find(struct m3_pattern *pattern, const struct m3_pattern_values *values, struct m3_error *error);

/* The same of decisions [rows,outputs] of which some are wrong: only where they are. M3_INTERNAL. */
int m3_pattern_of_choices(struct m3_pattern *pattern, const unsigned char *is_wrong, const int64_t *numbers,
                          int64_t rows, int64_t outputs, const char *place, struct m3_error *error);

/* Divides a row of a tap with these letters and this shape into outputs and their elements; 0: it cannot be told. */
int m3_pattern_divide(struct m3_pattern_values *values, const char *letters, const int64_t *shape);
/* "row", "head", "channel" of a tap with these letters (model/taps.def); NULL: the dimension has no name. */
const char *m3_axis_name(const char *letters, int axis);

#endif
