#include "estimate/private/plot.h"

#include <inttypes.h>
#include <math.h>

#include "io/markup.h"

/* Pixels. Each plot has its title above it, contexts below it, a legend on its right. */
enum { LEFT = 64, WIDTH = 560, HEIGHT = 220, HEAD = 84, ABOVE = 34, BELOW = 52, LEGEND = 688, ROW = 20 };

struct frame {
    FILE *out;
    const struct m3_plot *plot;
    int place;
    double top, most;           /* most: the largest value of the axis */
    double unit;                /* unit of the axis */
    const char *unit_name;
};

int m3_plot_height(int plots) { return HEAD + plots * (ABOVE + HEIGHT + BELOW); }

static void print_style(FILE *out)
{
    static const char *const light[8] = { "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1",
                                          "#9c755f", "#edc948", "#e15759", "#76b7b2" };
    static const char *const dark[8] = { "#6b9bd1", "#ffa452", "#6cc060", "#c996bd",
                                         "#b98f77", "#f5d76a", "#f27a7c", "#8fd3cd" };
    fputs("<style>\ntext { font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #1f2328 }\n"
          ".title { font-size: 18px; font-weight: 600 }\n.head { font-size: 15px; font-weight: 600 }\n"
          ".quiet { fill: #59636e }\n.right { text-anchor: end }\n.middle { text-anchor: middle }\n"
          ".paper { fill: #ffffff }\n.grid { stroke: #d8dee4; fill: none }\n.axis { stroke: #59636e; fill: none }\n"
          ".line { stroke: #1f2328; stroke-width: 2; stroke-dasharray: 7 4; fill: none }\n"
          ".mark { stroke: #59636e; stroke-dasharray: 2 3; fill: none }\n"
          ".dot { fill: #1f2328; stroke: #ffffff; stroke-width: 1.5 }\n"
          ".value { paint-order: stroke; stroke: #ffffff; stroke-width: 4 }\n",
          out);
    for (int i = 0; i < 8; i++) fprintf(out, ".c%d { fill: %s }\n", i, light[i]);
    fputs("@media (prefers-color-scheme: dark) {\ntext { fill: #e6edf3 }\n.quiet { fill: #9da7b3 }\n"
          ".paper { fill: #0d1117 }\n.grid { stroke: #30363d }\n.axis { stroke: #9da7b3 }\n.line { stroke: #e6edf3 }\n"
          ".mark { stroke: #9da7b3 }\n.dot { fill: #e6edf3; stroke: #0d1117 }\n.value { stroke: #0d1117 }\n",
          out);
    for (int i = 0; i < 8; i++) fprintf(out, ".c%d { fill: %s }\n", i, dark[i]);
    fputs("}\n</style>\n", out);
}

void m3_plot_begin(FILE *out, int plots, const char *title, const char *subtitle)
{
    int height = m3_plot_height(plots);
    fprintf(out,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" "
            "width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
            M3_PLOT_WIDTH, height, M3_PLOT_WIDTH, height);
    m3_print_markup(out, title);
    fputs("</title>\n", out);
    print_style(out);
    fputs("<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n<text class=\"title\" x=\"20\" y=\"34\">", out);
    m3_print_markup(out, title);
    fputs("</text>\n<text class=\"quiet\" x=\"20\" y=\"58\">", out);
    m3_print_markup(out, subtitle);
    fputs("</text>\n", out);
}

void m3_plot_end(FILE *out) { fputs("</svg>\n", out); }

/* The coordinates of a context; of a value. */
static double x_of(const struct frame *f, int64_t context)
{
    double first = (double)f->plot->contexts[0], last = (double)f->plot->contexts[f->plot->points - 1];
    return LEFT + (last > first ? WIDTH * log((double)context / first) / log(last / first) : WIDTH);
}

static double y_of(const struct frame *f, double value) { return f->top + HEIGHT * (1 - value / f->most); }

static double sum_at(const struct m3_plot *plot, int point, int series)
{
    double sum = 0;
    for (int i = 0; i < series; i++) sum += plot->stack[i].values[point];
    return sum;
}

/* 1, 2 or 5 times a power of ten, so that at most `steps` of them reach `most`. */
static double nice_step(double most, int steps)
{
    double raw = most / steps, power = pow(10, floor(log10(raw)));
    double times = raw / power;
    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

static void set_scale(struct frame *f)
{
    static const struct {
        double size;
        const char *flop, *bytes;
    } units[] = {
        { 1e18, "EFLOP", "EB" }, { 1e15, "PFLOP", "PB" }, { 1e12, "TFLOP", "TB" }, { 1e9, "GFLOP", "GB" },
        { 1e6, "MFLOP", "MB" },  { 1e3, "kFLOP", "kB" },  { 1, "FLOP", "B" },
    };
    const struct m3_plot *p = f->plot;
    double most = 0;
    for (int i = 0; i < p->points; i++) {
        most = fmax(most, sum_at(p, i, p->series) * (p->line && !p->line_counts ? 1.4 : 1.16));
        if (p->line && p->line_counts) most = fmax(most, p->line[i] * 1.05);
    }
    f->most = most > 0 ? most : 1;
    size_t i = 0;
    while (units[i].size > 1 && units[i].size > f->most) i++;
    f->unit = units[i].size;
    f->unit_name = p->unit == 'F' ? units[i].flop : units[i].bytes;
}

/* "64", "4K", "1M"; "200000" if it is not a whole number of K. */
static void print_context(FILE *out, int64_t context)
{
    if (context % (1 << 20) == 0) fprintf(out, "%" PRId64 "M", context >> 20);
    else if (context % (1 << 10) == 0) fprintf(out, "%" PRId64 "K", context >> 10);
    else fprintf(out, "%" PRId64, context);
}

static void draw_contexts(const struct frame *f)
{
    const int64_t first = f->plot->contexts[0], last = f->plot->contexts[f->plot->points - 1];
    double octaves = log2((double)last / (double)first), before = -1e9;
    int64_t factor = octaves > 24 ? 8 : octaves > 12 ? 4 : 2;
    for (int64_t context = first; context <= last;
         context = context < last && context * factor > last ? last : context * factor) {
        double x = x_of(f, context);
        if (x - before > 40) {
            fprintf(f->out,
                    "<path class=\"grid\" d=\"M%.2f %.2fV%.2f\"/>\n<text class=\"quiet middle\" x=\"%.2f\" "
                    "y=\"%.2f\">",
                    x, f->top, f->top + HEIGHT, x, f->top + HEIGHT + 18);
            print_context(f->out, context);
            fputs("</text>\n", f->out);
        }
        before = x;
        if (context == last) break;
    }
    fprintf(f->out, "<text class=\"quiet middle\" x=\"%d\" y=\"%.2f\">context, tokens</text>\n", LEFT + WIDTH / 2,
            f->top + HEIGHT + 36);
}

static void draw_values(const struct frame *f)
{
    double step = nice_step(f->most / f->unit, 5);
    for (int i = 0; i * step <= f->most / f->unit; i++) {
        double y = y_of(f, i * step * f->unit);
        fprintf(f->out,
                "<path class=\"grid\" d=\"M%d %.2fH%d\"/>\n<text class=\"quiet right\" x=\"%d\" y=\"%.2f\">%.6g"
                "</text>\n",
                LEFT, y, LEFT + WIDTH, LEFT - 8, y + 4, i * step);
    }
    fprintf(f->out, "<text class=\"quiet right\" x=\"%d\" y=\"%.2f\">%s</text>\n", LEFT - 8, f->top - 10, f->unit_name);
}

/* The axis on the right: the same heights in milliseconds. */
static void draw_times(const struct frame *f)
{
    double most = 1e3 * f->most * f->plot->seconds_per_unit, step = nice_step(most, 5);
    for (int i = 0; i * step <= most; i++)
        fprintf(f->out, "<text class=\"quiet\" x=\"%d\" y=\"%.2f\">%.6g</text>\n", LEFT + WIDTH + 8,
                f->top + HEIGHT * (1 - i * step / most) + 4, i * step);
    fprintf(f->out, "<text class=\"quiet\" x=\"%d\" y=\"%.2f\">ms</text>\n", LEFT + WIDTH + 8, f->top - 10);
}

static void draw_stack(const struct frame *f)
{
    const struct m3_plot *p = f->plot;
    for (int s = 0; s < p->series; s++) {
        fprintf(f->out, "<path class=\"c%d\" d=\"", p->stack[s].colour);
        for (int i = 0; i < p->points; i++)
            fprintf(f->out, "%s%.2f %.2f", i ? "L" : "M", x_of(f, p->contexts[i]), y_of(f, sum_at(p, i, s + 1)));
        for (int i = p->points - 1; i >= 0; i--)
            fprintf(f->out, "L%.2f %.2f", x_of(f, p->contexts[i]), y_of(f, sum_at(p, i, s)));
        fputs("Z\"><title>", f->out);
        m3_print_markup(f->out, p->stack[s].name);
        fputs("</title></path>\n", f->out);
    }
}

static void draw_line(const struct frame *f)
{
    const struct m3_plot *p = f->plot;
    fprintf(f->out,
            "<clipPath id=\"plot%d\"><rect x=\"%d\" y=\"%.2f\" width=\"%d\" height=\"%d\"/></clipPath>\n"
            "<path class=\"line\" clip-path=\"url(#plot%d)\" d=\"",
            f->place, LEFT, f->top, WIDTH, HEIGHT, f->place);
    for (int i = 0; i < p->points; i++)
        fprintf(f->out, "%s%.2f %.2f", i ? "L" : "M", x_of(f, p->contexts[i]), y_of(f, p->line[i]));
    fputs("\"><title>", f->out);
    m3_print_markup(f->out, p->line_name);
    fputs("</title></path>\n", f->out);
}

static void write_mark(const struct frame *f, double x, double y, double sum)
{
    int at_start = x<LEFT + 30, at_end = x> LEFT + WIDTH - 30;
    fprintf(f->out, "<text class=\"value%s\" x=\"%.2f\" y=\"%.2f\">%.4g</text>\n",
            at_end     ? " right"
            : at_start ? ""
                       : " middle",
            x + (at_end     ? -8
                 : at_start ? 8
                            : 0),
            y - 10, sum / f->unit);
}

/* Sum of the stack at each mark; with text only where it does not overlap earlier text. */
static void draw_marks(const struct frame *f)
{
    const struct m3_plot *p = f->plot;
    double before = -1e9;
    for (int m = 0, i = 0; m < p->mark_count; m++) {
        while (p->contexts[i] != p->marks[m]) i++;
        double sum = sum_at(p, i, p->series), x = x_of(f, p->marks[m]), y = y_of(f, sum);
        fprintf(f->out,
                "<path class=\"mark\" d=\"M%.2f %.2fV%.2f\"/>\n<circle class=\"dot\" cx=\"%.2f\" cy=\"%.2f\" "
                "r=\"4\"><title>context %" PRId64 ": %.17g %s</title></circle>\n",
                x, f->top, f->top + HEIGHT, x, y, p->marks[m], sum, p->unit == 'F' ? "FLOP" : "B");
        if (x - before <= 52) continue;
        write_mark(f, x, y, sum);
        before = x;
    }
}

static void draw_legend_row(const struct frame *f, int row, const char *name, double value)
{
    double y = f->top + 16 + ROW * (row + 1);
    fprintf(f->out, "<text x=\"%d\" y=\"%.2f\">", LEGEND + 20, y);
    m3_print_markup(f->out, name);
    fprintf(f->out, "</text>\n<text class=\"right\" x=\"%d\" y=\"%.2f\">%.4g</text>\n", M3_PLOT_WIDTH - 16, y,
            value / f->unit);
}

/* From the top of the stack to its bottom, with the values at the end of the axis. */
static void draw_legend(const struct frame *f)
{
    const struct m3_plot *p = f->plot;
    const int end = p->points - 1;
    int row = 0;
    fprintf(f->out, "<text class=\"quiet right\" x=\"%d\" y=\"%.2f\">%s at ", M3_PLOT_WIDTH - 16, f->top + 12,
            f->unit_name);
    print_context(f->out, p->contexts[end]);
    fputs("</text>\n", f->out);
    if (p->line) {
        fprintf(f->out, "<path class=\"line\" d=\"M%d %.2fh16\"/>\n", LEGEND, f->top + 12 + ROW);
        double scale = p->line_in_ms ? 1e3 * p->seconds_per_unit * f->unit : 1;
        draw_legend_row(f, row++, p->line_name, p->line[end] * scale);
    }
    for (int s = p->series - 1; s >= 0; s--, row++) {
        fprintf(f->out, "<rect class=\"c%d\" x=\"%d\" y=\"%.2f\" width=\"14\" height=\"14\" rx=\"2\"/>\n",
                p->stack[s].colour, LEGEND, f->top + 5 + ROW * (row + 1));
        draw_legend_row(f, row, p->stack[s].name, p->stack[s].values[end]);
    }
    if (p->series > 1) draw_legend_row(f, row, "sum", sum_at(p, end, p->series));
}

void m3_plot_draw(FILE *out, int place, const struct m3_plot *plot)
{
    struct frame f = {
        .out = out, .plot = plot, .place = place, .top = HEAD + place * (ABOVE + HEIGHT + BELOW) + ABOVE
    };
    set_scale(&f);
    fprintf(out, "<text class=\"head\" x=\"%d\" y=\"%.2f\">", LEFT, f.top - 12);
    m3_print_markup(out, plot->title);
    fputs("</text>\n", out);
    draw_values(&f);
    draw_contexts(&f);
    draw_stack(&f);
    if (plot->seconds_per_unit > 0) draw_times(&f);
    if (plot->line) draw_line(&f);
    draw_marks(&f);
    fprintf(out, "<path class=\"axis\" d=\"M%d %.2fV%.2fH%d\"/>\n", LEFT, f.top, f.top + HEIGHT, LEFT + WIDTH);
    draw_legend(&f);
}
