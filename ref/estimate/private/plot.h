/* Axes, stacked areas, lines and legends in SVG. It does not depend on models. Used only by chart.c. */
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
    struct m3_plot_series stack[8];     /* the first is at the bottom */
    int series;
    const char *line_name;      /* of a line above the stack; NULL: none */
    const double *line;         /* [points]; may exceed the top of the plot */
    int line_counts;            /* the axis includes the line too */
    int line_in_ms;             /* the legend shows the line in units of the right axis */
    double seconds_per_unit;    /* for an axis on the right; 0: none */
    const int64_t *marks;       /* contexts among those above */
    int mark_count;
};

/* The height of the whole picture with this number of plots. */
int m3_plot_height(int plots);

/* The picture's frame: its head, with styles for light and for dark screens, and its end. `title` and `subtitle` may
 * contain any byte: those that XML does not allow become '?'. */
void m3_plot_begin(FILE *out, int plots, const char *title, const char *subtitle);
void m3_plot_draw(FILE *out, int place, const struct m3_plot *plot);    /* the place-th from the top */
void m3_plot_end(FILE *out);

#endif
