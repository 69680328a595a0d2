/* Axes, stacked areas, lines and legends in SVG. Knows no models. Used by chart.c alone. */
#ifndef M3_ESTIMATE_PRIVATE_PLOT_H
#define M3_ESTIMATE_PRIVATE_PLOT_H

#include <stdint.h>
#include <stdio.h>

enum { M3_PLOT_WIDTH = 960 };

struct m3_plot_series {
    const char *name;
    int colour;                 /* 0 .. 7 */
    const double *values;       /* [points] */
};

struct m3_plot {
    const char *title;
    char unit;                  /* 'F' FLOP, 'B' bytes */
    const int64_t *contexts;    /* [points] ascending: the axis is logarithmic, from the first to the last */
    int points;
    struct m3_plot_series stack[8];     /* the first lies at the bottom */
    int series;
    const char *line_name;      /* of a line over the stack; NULL: none */
    const double *line;         /* [points]; may leave the plot at its top */
    int line_counts;            /* the axis reaches up to the line too */
    int line_in_ms;             /* the legend gives the line in terms of the axis on the right */
    double seconds_per_unit;    /* of an axis on the right; 0: none */
    const int64_t *marks;       /* contexts among those above */
    int mark_count;
};

/* Size of the whole picture with so many plots. */
int m3_plot_height(int plots);

/* The picture's frame: its head, with styles for light and for dark screens, and its end. `title` and `subtitle` may
 * hold any byte: what XML cannot have becomes '?'. */
void m3_plot_begin(FILE *out, int plots, const char *title, const char *subtitle);
void m3_plot_draw(FILE *out, int place, const struct m3_plot *plot);    /* the place-th from the top */
void m3_plot_end(FILE *out);

#endif
