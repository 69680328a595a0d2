/* Which elements of a tap are wrong beyond rounding, and what they have in common. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/pattern/private/pattern.h"

/* An error of more standard deviations is no rounding, in however many elements: by so many, 7 sqrt(3), the tier WALK
 * objects. */
static const double beyond = 12;

static int is_wrong(double got, double want, double variance)
{
    if (got == want || (isnan(got) && isnan(want))) return 0;
    if (!isfinite(got) || !isfinite(want)) return 1;
    return (got - want) * (got - want) > beyond * beyond * variance;
}

static void mark(unsigned char *marks, struct m3_region *g)
{
    const struct m3_pattern_values *v = g->v;
    for (int64_t i = 0; i < v->rows * v->outputs * v->width; i++) {
        marks[i] = (unsigned char)is_wrong(v->got[i], v->want[i], v->variance[i]);
        if (!marks[i]) continue;
        g->nans += isnan(v->got[i]);
        g->infinities += isinf(v->got[i]) != 0;
    }
}

/* Memory for the flags of a region, to be freed as one, and before them for those that where.c needs; NULL: memory is
 * short. */
static unsigned char *region_of(struct m3_region *g, const struct m3_pattern_values *v)
{
    const int64_t both = v->rows + v->place_count;
    unsigned char *flags = calloc((size_t)(2 * both + v->width) + 1, 1);
    *g = (struct m3_region){ .v = v, .end = v->width };
    if (flags) g->rows = flags + both, g->places = g->rows + v->rows, g->elements = g->places + v->place_count;
    return flags;
}

int m3_pattern_find(struct m3_pattern *pattern, const struct m3_pattern_values *v, struct m3_error *error)
{
    const size_t count = (size_t)(v->rows * v->outputs * v->width);
    struct m3_region g;
    unsigned char *flags = region_of(&g, v), *marks = malloc(count + 1);
    int status = flags && marks ? M3_OK : m3_fail_memory(error, "the pattern of errors", count);
    *pattern = (struct m3_pattern){ .where = "" };
    if (!status) mark(marks, &g);
    if (!status) m3_pattern_where(pattern, &g, marks, flags);
    if (!status && g.wrong > 0) status = m3_pattern_what(pattern, &g, error);
    free(flags);
    free(marks);
    return status;
}

int m3_pattern_of_choices(struct m3_pattern *pattern, const unsigned char *is_wrong_set, const int64_t *numbers,
                          int64_t rows, int64_t outputs, const char *place, struct m3_error *error)
{
    const struct m3_pattern_values v = { .numbers = numbers,
                                         .rows = rows,
                                         .outputs = outputs,
                                         .width = 1,
                                         .place_count = outputs,
                                         .place = place,
                                         .element = "" };
    struct m3_region g;
    unsigned char *flags = region_of(&g, &v);
    *pattern = (struct m3_pattern){ .where = "" };
    if (!flags) return m3_fail_memory(error, "the pattern of choices", (size_t)rows);
    m3_pattern_where(pattern, &g, is_wrong_set, flags);
    free(flags);
    return M3_OK;
}
