#include "oracle/report/page.h"

#include "io/markup.h"

/* Blue for values within the allowance, orange to brown for others; colour-blind readers can distinguish them. The
 * first of each pair is for light screens. */
static const struct {
    const char *name, *light, *dark;
} colours[] = {
    { "paper", "#ffffff", "#0d1117" }, { "panel", "#f3f5f7", "#161b22" }, { "ink", "#1f2328", "#e6edf3" },
    { "quiet", "#59636e", "#9da7b3" }, { "grid", "#d8dee4", "#30363d" },  { "link", "#0550ae", "#79b8ff" },
    { "good", "#0072b2", "#56b4e9" },  { "bad", "#c03a00", "#ff9457" },   { "odd", "#8a5a00", "#f0c05a" },
    { "h0", "#b5cfe6", "#1d3f5c" },    { "h1", "#5b9bd0", "#34709f" },    { "h2", "#f5c26b", "#6b3310" },
    { "h3", "#f0a63c", "#8a4312" },    { "h4", "#e58a1f", "#ab5616" },    { "h5", "#cf6a10", "#cc6f1f" },
    { "h6", "#a94e0a", "#e69138" },    { "h7", "#7d3707", "#f3b866" },    { "h8", "#4a1f04", "#ffe3a8" },
};

static const char rules[] =
    "body { margin: 0 auto; padding: 16px 24px 64px; max-width: 1200px; background: var(--paper); color: var(--ink);\n"
    "  font: 14px/1.45 system-ui, 'DejaVu Sans', sans-serif }\n"
    "h1 { font-size: 22px; margin: 8px 0 } h2 { font-size: 18px; margin: 36px 0 8px } h3 { font-size: 14px;\n"
    "  margin: 20px 0 4px } p { margin: 6px 0 } a { color: var(--link) } svg { display: block; max-width: 100% }\n"
    "table { border-collapse: collapse } td, th { padding: 1px 8px; text-align: left; font-weight: normal;\n"
    "  vertical-align: baseline } .small { font-size: 12px } thead th, .quiet { color: var(--quiet) }\n"
    ".number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }\n"
    "code, .bits { font: 12px ui-monospace, 'DejaVu Sans Mono', monospace; overflow-wrap: anywhere }\n"
    ".verdict { white-space: nowrap; font-weight: 600 }\n"
    ".v0 { color: var(--good) } .v1, .v4, .v5 { color: var(--odd) } .v2 { color: var(--bad) } .v3 { color: var(--quiet) }\n"
    ".top { border: 2px solid currentColor; border-radius: 6px; padding: 4px 16px 10px }\n"
    "h2::first-letter { text-transform: uppercase } .top > * { color: var(--ink) }\n"
    ".sentence { font-size: 16px; font-weight: 600 } dt { color: var(--quiet); font-size: 12px } dd { margin: 0 0 4px }\n"
    "pre { margin: 4px 0; padding: 6px 8px; background: var(--panel); overflow-x: auto; font: 12px ui-monospace,\n"
    "  'DejaVu Sans Mono', monospace } dd pre { white-space: pre-wrap; overflow-wrap: anywhere }\n"
    ".section { max-width: 860px } .section td { border: 1px solid var(--grid) }\n"
    "blockquote { margin: 0; padding-left: 12px; border-left: 2px solid var(--grid) }\n"
    "details { margin: 2px 0 } summary { cursor: pointer; padding: 2px 0 } tr:hover { background: var(--panel) }\n"
    ".stages { table-layout: fixed; width: 100% } .stages th, .stages td { overflow: hidden;\n"
    "  text-overflow: ellipsis; white-space: nowrap } .stages .words { white-space: normal }\n"
    ".side { display: flex; flex-wrap: wrap; gap: 8px 24px } b { text-decoration: underline }\n"
    "svg text { font-size: 11px; fill: var(--quiet) } svg .head { font-size: 15px; font-weight: 600; fill: var(--ink) }\n"
    " .end { text-anchor: end } .middle { text-anchor: middle }\n"
    ".panel { fill: var(--panel) } path, circle.ring { fill: none } .grid { stroke: var(--grid) }\n"
    ".axis { stroke: var(--quiet) } .bar { stroke: var(--good); stroke-width: 4 } .over { stroke: var(--bad);\n"
    "  stroke-width: 4 } .limit { stroke: var(--ink); stroke-width: 2 } .dots { stroke: var(--good);\n"
    "  stroke-width: 5; stroke-linecap: round } .cross { stroke: var(--bad); stroke-width: 1.6 }\n"
    ".halo { stroke: var(--paper); stroke-width: 5 } .ring { stroke: var(--ink); stroke-width: 2 }\n"
    ".want { stroke: var(--quiet); stroke-width: .34 } .got { stroke: var(--good); stroke-width: .34 }\n"
    ".differ { stroke: var(--bad); stroke-width: 1.5; vector-effect: non-scaling-stroke }\n"
    ".p0, .p1, .p2, .p3, .p4 { stroke: var(--good) } .p0 { stroke-width: .2; opacity: .6 }\n"
    ".p1 { stroke-width: .4; opacity: .7 } .p2 { stroke-width: .6; opacity: .8 } .p3 { stroke-width: .8; opacity: .9 }\n"
    ".p4 { stroke-width: 1 } .load { stroke: var(--grid) } .taken { stroke: var(--good); stroke-width: 2 }\n"
    ".moved { stroke: var(--bad); stroke-width: 2 }\n"
    ".h0 { stroke: var(--h0); stroke-width: .25 } .h1 { stroke: var(--h1); stroke-width: .4 }\n"
    ".h2 { stroke: var(--h2); stroke-width: .6 } .h3 { stroke: var(--h3); stroke-width: .7 }\n"
    ".h4 { stroke: var(--h4); stroke-width: .8 } .h5 { stroke: var(--h5); stroke-width: .86 }\n"
    ".h6 { stroke: var(--h6); stroke-width: .92 } .h7 { stroke: var(--h7); stroke-width: .96 }\n"
    ".h8 { stroke: var(--h8); stroke-width: 1 } .h9 { stroke: var(--ink); stroke-width: 1;\n"
    "  stroke-dasharray: .5 .5 }\n";

void m3_page_style(FILE *out)
{
    const int count = sizeof colours / sizeof colours[0];
    fputs("<style>\n:root { color-scheme: light dark;", out);
    for (int i = 0; i < count; i++) fprintf(out, " --%s: %s;", colours[i].name, colours[i].light);
    fputs(" }\n@media (prefers-color-scheme: dark) { :root {", out);
    for (int i = 0; i < count; i++) fprintf(out, " --%s: %s;", colours[i].name, colours[i].dark);
    fprintf(out, " } }\n%s</style>\n", rules);
}

void m3_page_runs(FILE *out, const char *name, const signed char *cells, int rows, int columns, int value, double at)
{
    int any = 0;
    for (int r = 0; r < rows; r++) {
        for (int c = 0, end; c < columns; c = end) {
            for (end = c + 1; end < columns && cells[r * columns + end] == cells[r * columns + c];) end++;
            if (cells[r * columns + c] != value) continue;
            if (!any++) fprintf(out, "<path class=\"%s\" d=\"", name);
            fprintf(out, "M%d %gh%d", c, r + at, end - c);
        }
    }
    if (any) fputs("\"/>\n", out);
}

void m3_page_begin(FILE *out, const char *title, const char *line)
{
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
          "content=\"width=device-width\"/>\n<title>",
          out);
    m3_print_markup(out, title);
    fputs("</title>\n", out);
    m3_page_style(out);
    fputs("</head><body>\n<p class=\"quiet\">", out);
    m3_print_markup(out, line);
    fputs("</p>\n", out);
}

void m3_page_end(FILE *out) { fputs("</body></html>\n", out); }
