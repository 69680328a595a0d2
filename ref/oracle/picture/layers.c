#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/choices/margin.h"
#include "oracle/picture/private/picturing.h"

/* One value for each of some layers, with a band. */
struct by_layer {
    char names[M3_PICTURE_LAYERS][24];
    const char *name[M3_PICTURE_LAYERS];
    double middle[M3_PICTURE_LAYERS], low[M3_PICTURE_LAYERS], high[M3_PICTURE_LAYERS];
    int count;
};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Adds a layer with the least, the median and the greatest of its finite values, which are sorted. */
static void add(struct by_layer *b, const char *name, double *values, int64_t n)
{
    int64_t finite = 0;
    if (b->count == M3_PICTURE_LAYERS) return;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(values[i])) values[finite++] = values[i];
    qsort(values, (size_t)finite, sizeof *values, ascending);
    snprintf(b->names[b->count], sizeof b->names[0], "%s", name);
    b->name[b->count] = b->names[b->count];
    b->low[b->count] = finite ? values[0] : NAN;
    b->middle[b->count] = finite ? values[finite / 2] : NAN;
    b->high[b->count++] = finite ? values[finite - 1] : NAN;
}

static double *room(struct m3_picturing *p, int64_t n)
{
    double *values = p->status ? NULL : calloc((size_t)n + 1, sizeof *values);
    if (!values && !p->status) p->status = m3_fail_memory(p->error, "a picture", (size_t)n * sizeof *values);
    return values;
}

static void draw(struct m3_picturing *p, const struct by_layer *b, const char *title, const char *note, int has_high)
{
    FILE *out = b->count > 0 ? m3_panel_begin(p, M3_PANEL_WIDTH, 250, title) : NULL;
    if (!out) return;
    m3_draw_lines(out, &(struct m3_lines){ 70, 14, 900, 200, b->count, b->name, b->middle, b->low,
                                           has_high ? b->high : NULL, 1 });
    m3_panel_note(p, "%s", note);
    m3_panel_end(p);
}

/* ---- the size of the residual stream */

static void add_norms(struct m3_picturing *p, struct by_layer *b, enum m3_tap tap, int64_t layer, const char *name)
{
    const struct m3_tensor *x = m3_picture_tap(p, tap, layer);
    const int64_t T = x ? x->shape[0] : 0, H = x ? x->shape[1] : 0;
    double *rms = x ? room(p, T) : NULL;
    for (int64_t t = 0; rms && t < T; t++) {
        double sum = 0;
        for (int64_t i = 0; i < H; i++) sum += m3_picture_at(x, t * H + i) * m3_picture_at(x, t * H + i);
        rms[t] = sqrt(sum / (double)H);
    }
    if (rms) add(b, name, rms, T);
    free(rms);
}

void m3_picture_norms(struct m3_picturing *p)
{
    int64_t layers[M3_PICTURE_LAYERS];
    const int count = m3_picture_layers(p, M3_TAP_OUT, layers);
    struct by_layer *b = calloc(1, sizeof *b);
    if (!b && !p->status) p->status = m3_fail_memory(p->error, "a picture", sizeof *b);
    if (b && count > 0) add_norms(p, b, M3_TAP_FUSED, -1, "fused");
    for (int i = 0; b && i < count; i++) {
        char name[24];
        const int64_t module = m3_mtp_module_of(layers[i]);
        snprintf(name, sizeof name, module < 0 ? "%" PRId64 : "mtp.%" PRId64, module < 0 ? layers[i] : module);
        add_norms(p, b, M3_TAP_OUT, layers[i], name);
    }
    if (b)
        draw(
            p, b, "size of the residual stream by layer",
            "Root mean square of the output of each layer, on a logarithmic axis: the median over the tokens, and thin "
            "lines for the least and the greatest.",
            1);
    free(b);
}

/* ---- how close the choices were */

/* Are all ids experts? */
static int are_below(const struct m3_tensor *ids, int64_t E)
{
    for (int64_t i = 0; i < ids->count; i++)
        if (!(m3_picture_at(ids, i) >= 0 && m3_picture_at(ids, i) < (double)E)) return 0;
    return 1;
}

/* Margins of the dump, or, with the model, of its scores. */
static double *margins_of(struct m3_picturing *p, int64_t *n, int64_t layer)
{
    char name[128];
    const struct m3_tensor *ids = m3_picture_tap(p, M3_TAP_EXPERTS, layer), *scores, *held;
    m3_tap_name(name, sizeof name - 8, M3_TAP_EXPERTS, layer);
    strcat(name, ".margin");
    held = m3_safetensors_find(p->request->dump, name);
    if (!ids) return NULL;
    *n = held ? held->count : ids->shape[0];
    if (held) {
        double *margins = room(p, *n);
        for (int64_t i = 0; margins && i < *n; i++) margins[i] = m3_picture_at(held, i);
        return margins;
    }
    const struct m3_model *model = p->request->model;
    scores = m3_picture_tap(p, M3_TAP_ROUTER_SCORES, layer);
    const int64_t index = model ? m3_layer_index(&model->config, layer) : -1;
    if (!scores || !model || index >= model->config.layers + model->mtp_modules) return NULL;
    const struct m3_weight *bias = &model->layers[index].router_bias;
    if (bias->cols != scores->shape[1] || scores->shape[0] != *n || !are_below(ids, bias->cols)) return NULL;
    double *s = room(p, scores->count), *margins = room(p, *n);
    int32_t *list = calloc((size_t)ids->count + 1, sizeof *list);
    for (int64_t i = 0; s && i < scores->count; i++) s[i] = m3_picture_at(scores, i);
    for (int64_t i = 0; list && i < ids->count; i++) list[i] = m3_picture_id(ids, i);
    if (!p->status && (!list || m3_margins_of_experts(margins, s, list, bias, *n, ids->shape[1])))
        p->status = m3_fail_memory(p->error, "margins", (size_t)*n);
    free(s);
    free(list);
    return margins;
}

void m3_picture_margins(struct m3_picturing *p)
{
    int64_t layers[M3_PICTURE_LAYERS], n;
    const int count = m3_picture_layers(p, M3_TAP_EXPERTS, layers);
    struct by_layer *b = calloc(1, sizeof *b);
    if (!b && !p->status) p->status = m3_fail_memory(p->error, "a picture", sizeof *b);
    for (int i = 0; b && i < count; i++) {
        char name[24];
        const int64_t module = m3_mtp_module_of(layers[i]);
        double *margins = margins_of(p, &n, layers[i]);
        snprintf(name, sizeof name, module < 0 ? "%" PRId64 : "mtp.%" PRId64, module < 0 ? layers[i] : module);
        if (margins) add(b, name, margins, n);
        free(margins);
    }
    if (b && count > 0 && b->count == 0)
        m3_fail(&p->picture->notes, M3_OK,
                "Margins of the router are not drawn: the dump has no companions (m3ref run "
                "--bounds), and no --model was given.");
    if (b)
        draw(
            p, b, "margins of the router by layer",
            "By how much the last expert that is chosen leads the first that is not, biased scores, on a logarithmic axis: "
            "the median over the tokens, and a thin line for the least. Rounding above the least changes a choice.",
            0);
    free(b);
}
