#include <math.h>

#include "io/markup.h"
#include "oracle/picture/private/picturing.h"
#include "oracle/report/page.h"

static const char *const classes[M3_LEVELS] = { "p0", "p1", "p2", "p3", "p4" };

signed char m3_level_of(double share)
{
    static const double edges[M3_LEVELS] = { 0.25, 0.5, 0.75, 0.99 };
    signed char level = 0;
    if (!(share > 0)) return -1;
    while (level < M3_LEVELS - 1 && share > edges[level]) level++;
    return level;
}

void m3_draw_grid(FILE *out, const struct m3_grid *g)
{
    fprintf(out, "<rect class=\"panel\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", g->x, g->y, g->width,
            g->height);
    fprintf(out, "<g transform=\"translate(%d %d) scale(%.6g %.6g)\">\n", g->x, g->y, (double)g->width / g->columns,
            (double)g->height / g->rows);
    for (int level = 0; level < M3_LEVELS; level++)
        m3_page_runs(out, classes[level], g->levels, g->rows, g->columns, level, 0.5);
    fputs("</g>\n", out);
}

struct scale {
    double least, most;
    const struct m3_lines *lines;
};

static double stretched(const struct m3_lines *l, double value) { return l->is_logarithmic ? log10(value) : value; }

static int is_drawn(const struct m3_lines *l, double value)
{
    return isfinite(value) && (!l->is_logarithmic || value > 0);
}

static struct scale scale_of(const struct m3_lines *l)
{
    struct scale s = { INFINITY, -INFINITY, l };
    const double *const all[] = { l->middle, l->low, l->high };
    for (int k = 0; k < 3; k++)
        for (int i = 0; all[k] && i < l->points; i++) {
            if (!is_drawn(l, all[k][i])) continue;
            s.least = fmin(s.least, stretched(l, all[k][i]));
            s.most = fmax(s.most, stretched(l, all[k][i]));
        }
    if (!l->is_logarithmic) s.least = fmin(0, s.least);
    if (!(s.most > s.least)) s.most = s.least + 1;
    return s;
}

static double x_of(const struct m3_lines *l, int i)
{
    return l->x + (l->points > 1 ? (double)i * l->width / (l->points - 1) : l->width / 2.0);
}

static double y_of(const struct scale *s, double value)
{
    const struct m3_lines *l = s->lines;
    return l->y + l->height * (1 - (stretched(l, value) - s->least) / (s->most - s->least));
}

static void draw_line(FILE *out, const struct scale *s, const double *values, const char *name)
{
    const struct m3_lines *l = s->lines;
    int is_open = 0;
    fprintf(out, "<path class=\"%s\" d=\"", name);
    for (int i = 0; i < l->points; i++) {
        if (!is_drawn(l, values[i])) {
            is_open = 0;
            continue;
        }
        fprintf(out, "%c%.1f %.1f", is_open ? 'L' : 'M', x_of(l, i), y_of(s, values[i]));
        if (!is_open && (i + 1 == l->points || !is_drawn(l, values[i + 1]))) fputs("h6", out);  /* a point alone */
        is_open = 1;
    }
    fputs("\"/>\n", out);
}

void m3_draw_lines(FILE *out, const struct m3_lines *l)
{
    const struct scale s = scale_of(l);
    for (int tick = 0; tick <= 4; tick++) {
        const double at = s.least + (s.most - s.least) * tick / 4, y = l->y + l->height * (1 - tick / 4.0);
        fprintf(out, "<path class=\"grid\" d=\"M%d %.1fh%d\"/>\n<text class=\"end\" x=\"%d\" y=\"%.1f\">%.3g</text>\n",
                l->x, y, l->width, l->x - 6, y + 4, l->is_logarithmic ? pow(10, at) : at);
    }
    const int step = (l->points + 15) / 16;
    for (int i = 0; i < l->points; i += step) {
        fprintf(out, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">", x_of(l, i), l->y + l->height + 16);
        m3_print_markup(out, l->names[i]);
        fputs("</text>\n", out);
    }
    if (l->low) draw_line(out, &s, l->low, "axis");
    if (l->high) draw_line(out, &s, l->high, "axis");
    draw_line(out, &s, l->middle, "taken");
}
