#include "estimate/chart.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory_stream.h"
#include "estimate/private/plot.h"

/* The number of points between two powers of two, evenly spaced on the axis. */
enum { PER_OCTAVE = 8, MOST_OCTAVES = 33, MOST_MARKS = 64, MOST_POINTS = PER_OCTAVE * MOST_OCTAVES + MOST_MARKS + 2 };
enum panel { PANEL_FLOPS, PANEL_CACHES, PANEL_READS, PANELS };

/* The series of each panel, from the bottom up: costs that do not grow with the context come first. */
static const struct series {
    enum panel panel;
    const char *name;
    int colour;
    const char *key;
} series[] = {
    { PANEL_FLOPS, "all but attention", 3, "flops_decode_linear" },     /* only if its parts are not known */
    { PANEL_FLOPS, "mixture of experts", 0, "flops_decode.moe" },
    { PANEL_FLOPS, "dense MLP", 4, "flops_decode.dense_mlp" },
    { PANEL_FLOPS, "projections q, k, v, o", 3, "flops_decode.projections" },
    { PANEL_FLOPS, "index projections", 5, "flops_decode.index_projections" },
    { PANEL_FLOPS, "lm_head", 7, "flops_decode.lm_head" },
    { PANEL_FLOPS, "chosen blocks", 1, "flops_decode.msa_main" },
    { PANEL_FLOPS, "full attention", 2, "flops_decode.full_attention" },
    { PANEL_FLOPS, "index scores", 6, "flops_decode.msa_index" },
    { PANEL_CACHES, "keys and values", 2, "kv_bytes.main" },
    { PANEL_CACHES, "index keys", 6, "kv_bytes.index" },
    { PANEL_READS, "weights", 0, "decode_read_bytes.weights" },
    { PANEL_READS, "chosen blocks", 1, "decode_read_bytes.kv_selected" },
    { PANEL_READS, "caches of full layers", 2, "decode_read_bytes.kv_full" },
    { PANEL_READS, "index keys", 6, "decode_read_bytes.index_keys" },
};

enum { SERIES = sizeof series / sizeof series[0] };

struct table {
    int64_t contexts[MOST_POINTS];
    int points;
    int64_t marks[MOST_MARKS];
    int mark_count;
    double values[SERIES][MOST_POINTS];
    double all_full[MOST_POINTS];       /* FLOPs if every layer were a full one */
    double by_flops[MOST_POINTS];       /* bytes that could be read during the FLOPs of a step */
    int compute_bound;                  /* at some context */
    struct m3_estimate last;            /* of the last context */
};

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int without_repeats(int64_t *list, int count)
{
    int kept = 0;
    qsort(list, (size_t)count, sizeof *list, ascending);
    for (int i = 0; i < count; i++)
        if (i == 0 || list[i] != list[i - 1]) list[kept++] = list[i];
    return kept;
}

/* The axis begins at 1K, or at 1 if the model's limit or a mark is lower. */
static void choose_contexts(struct table *t, const struct m3_chart_request *chart)
{
    int count = chart->mark_count, points = 0;
    for (int i = 0; i < count; i++) t->marks[i] = chart->marks[i];
    count = without_repeats(t->marks, count);
    int64_t first = chart->last > 1024 && (count == 0 || t->marks[0] >= 1024) ? 1024 : 1;
    for (int k = 0;; k++) {
        double context = (double)first * exp2((double)k / PER_OCTAVE);
        if (context >= (double)chart->last) break;
        t->contexts[points++] = llround(context);
    }
    t->contexts[points++] = chart->last;
    for (int i = 0; i < count; i++) t->contexts[points++] = t->marks[i];
    t->points = without_repeats(t->contexts, points);
    t->mark_count = count;
}

static double value_of(const struct m3_estimate *e, const struct series *s)
{
    if (s == series && !isnan(m3_quantity(e, "flops_decode.projections"))) return 0;
    return m3_quantity(e, s->key);
}

static int fill(struct table *t, const struct m3_config *config, const struct m3_estimate_request *request,
                struct m3_error *error)
{
    struct m3_estimate_request r = *request;
    struct m3_estimate *e = &t->last;
    for (int i = 0; i < t->points; i++) {
        r.context = t->contexts[i];
        int status = m3_estimate(e, config, &r, error);
        if (status) return status;
        for (int s = 0; s < SERIES; s++) t->values[s][i] = value_of(e, &series[s]);
        t->all_full[i] = m3_quantity(e, "flops_decode_all_full_attention");
        if (!r.gpu) continue;
        t->by_flops[i] = m3_quantity(e, "compute_bound_seconds") * (double)r.gpus * (double)r.gpu->bandwidth;
        t->compute_bound |= m3_compute_bound(e) > 0;
    }
    return M3_OK;
}

/* A series that is 0 everywhere is left out. */
static void stack(struct m3_plot *plot, const struct table *t, enum panel panel)
{
    for (int s = 0; s < SERIES; s++) {
        int i = 0;
        while (i < t->points && !(t->values[s][i] > 0)) i++;
        if (series[s].panel != panel || i == t->points) continue;
        plot->stack[plot->series++] = (struct m3_plot_series){ series[s].name, series[s].colour, t->values[s] };
    }
}

/* Returns 0 if its sum is not known. */
static int describe(struct m3_plot *plot, const struct table *t, enum panel panel)
{
    const struct m3_estimate *e = &t->last;
    *plot = (struct m3_plot){ .unit = panel == PANEL_FLOPS ? 'F' : 'B',
                              .contexts = t->contexts,
                              .points = t->points,
                              .marks = t->marks,
                              .mark_count = t->mark_count };
    stack(plot, t, panel);
    switch (panel) {
    case PANEL_FLOPS:
        plot->title = "FLOPs of one decoded token";
        if (e->sparse) plot->line = t->all_full;
        plot->line_name = "full attention everywhere";
        return !isnan(m3_quantity(e, "flops_decode.total"));
    case PANEL_CACHES: plot->title = "Caches of the batch"; return !isnan(m3_quantity(e, "kv_bytes.total"));
    case PANEL_READS:
        plot->title = e->request.gpu ? "Read in one step; on the right, its least time" : "Read in one step";
        if (e->request.gpu) plot->seconds_per_unit = 1 / ((double)e->request.gpus * (double)e->request.gpu->bandwidth);
        if (t->compute_bound) plot->line = t->by_flops;
        plot->line_name = "time of its FLOPs, ms";
        plot->line_counts = plot->line_in_ms = 1;
        return !isnan(m3_quantity(e, "decode_read_bytes.total"));
    default: return 0;
    }
}

static void print_subtitle(char *text, size_t size, const struct m3_estimate *e)
{
    const struct m3_estimate_request *r = &e->request;
    int n = snprintf(text, size, "batch %" PRId64 ", weights %s, keys and values %s", r->batch, r->weights->name,
                     r->kv->name);
    if (e->sparse) n += snprintf(text + n, size - (size_t)n, ", index keys %s", r->index_kv->name);
    if (r->mtp_modules) n += snprintf(text + n, size - (size_t)n, ", %" PRId64 " MTP modules", r->mtp_modules);
    if (r->gpu) snprintf(text + n, size - (size_t)n, ", %" PRId64 " x %s", r->gpus, r->gpu->name);
}

static int no_panel(struct m3_error *error)
{
    return m3_fail(error, M3_USAGE,
                   "--chart: got a model of which only parameters are known, expected one whose "
                   "attention is given");
}

static int draw(char **svg, const struct table *t, const char *title, struct m3_error *error)
{
    struct m3_plot plots[PANELS];
    char subtitle[200];
    struct m3_memory_stream memory;
    int used = 0;
    for (enum panel panel = PANEL_FLOPS; panel < PANELS; panel++) used += describe(&plots[used], t, panel);
    if (!used) return no_panel(error);
    FILE *out = m3_memory_open(&memory);
    if (!out) {
        m3_memory_close(&memory);
        return m3_fail_memory(error, "the chart", 0);
    }
    print_subtitle(subtitle, sizeof subtitle, &t->last);
    m3_plot_begin(out, used, title, subtitle);
    for (int i = 0; i < used; i++) m3_plot_draw(out, i, &plots[i]);
    m3_plot_end(out);
    *svg = m3_memory_close(&memory);
    return *svg ? M3_OK : m3_fail_memory(error, "the chart", memory.length);
}

int m3_estimate_chart(char **svg, const struct m3_config *config, const struct m3_estimate_request *request,
                      const struct m3_chart_request *chart, struct m3_error *error)
{
    *svg = NULL;
    if (chart->last < 1 || chart->mark_count > MOST_MARKS) return no_panel(error);
    struct table *t = calloc(1, sizeof *t);
    if (!t) return m3_fail_memory(error, "the chart", sizeof *t);
    choose_contexts(t, chart);
    int status = fill(t, config, request, error);
    if (!status) status = draw(svg, t, chart->title, error);
    free(t);
    return status;
}
