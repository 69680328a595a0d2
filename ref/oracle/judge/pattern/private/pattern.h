/* Shared by the files of this folder. */
#ifndef M3_ORACLE_JUDGE_PATTERN_PRIVATE_PATTERN_H
#define M3_ORACLE_JUDGE_PATTERN_PRIVATE_PATTERN_H

#include "oracle/judge/pattern/pattern.h"

/* What holds the wrong elements: these rows, of these places, elements [first,end). */
struct m3_region {
    const struct m3_pattern_values *v;
    unsigned char *rows, *places, *elements;    /* [rows] [place_count] [width] */
    int64_t first, end;
    int64_t wrong, nans, infinities;            /* elements; those of them that are no numbers */
};

static inline int64_t m3_number_of_row(const struct m3_pattern_values *v, int64_t row)
{
    return v->numbers ? v->numbers[row] : row;
}

/* The place of an output; -1: not known. */
static inline int64_t m3_place_of(const struct m3_pattern_values *v, int64_t row, int64_t output)
{
    const int64_t place = v->places ? v->places[row * v->outputs + output] : output;
    return place < v->place_count ? place : -1;
}

/* Is the output in the region? */
static inline int m3_region_has(const struct m3_region *g, int64_t row, int64_t output)
{
    const int64_t place = m3_place_of(g->v, row, output);
    return g->rows[row] && place >= 0 && g->places[place];
}

/* where.c: narrows the region to the wrong elements, and says where they are. If what is outside is no rounding either,
 * the region is everything, and nothing is said. `room`: for rows + places flags, all 0. */
void m3_pattern_where(struct m3_pattern *pattern, struct m3_region *region, const unsigned char *is_wrong,
                      unsigned char *room);

/* what.c: what explains nearly all errors of the region, and those of nearly all of its outputs. M3_INTERNAL. */
int m3_pattern_what(struct m3_pattern *pattern, const struct m3_region *region, struct m3_error *error);

/* moved.c: values of another row, head, channel or tap? Says which. */
void m3_pattern_moved(struct m3_pattern *pattern, const struct m3_region *region);

/* A value that could stand in the place of element c of an output; NaN: there is none. */
struct m3_guess {
    double (*at)(const struct m3_guess *guess, int64_t row, int64_t output, int64_t c);
    const struct m3_region *region;
    double number;                      /* a factor, a constant */
    int64_t by, from;                   /* rows or outputs to move by; the row or output that all come from */
    const double *own;                  /* [rows,outputs] numbers of the outputs */
    const struct m3_pattern_other *other;
};

/* what.c: does it explain the errors of the region, or of one of its outputs? An output whose errors are no larger than
 * roundings tells nothing: then it does not. */
int m3_guess_explains(const struct m3_guess *guess);
int m3_guess_explains_one(const struct m3_guess *guess, int64_t row, int64_t output);

#endif
