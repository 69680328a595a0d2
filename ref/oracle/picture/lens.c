#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/minmax.h"
#include "model/engine.h"
#include "oracle/picture/private/picturing.h"

enum { SHOWN_TOKENS = 12, WIDE = 72, HIGH = 18 };

/* The most likely next token if the layer were the last, and its probability. Buffers: x, normed [H], logits [V]. */
struct lens {
    float *x, *normed, *logits;
    struct m3_request how;
    int64_t id;
    double probability;
};

static int call(struct m3_picturing *p, const struct lens *l, enum m3_tap tap, const float *in, float *y)
{
    const struct m3_tap_request r = {
        .how = &l->how, .tap = tap, .layer = -1, .in = { in }, .rows = 1, .places = 1, .y = y
    };
    return m3_engine_f32()->tap(p->request->model, &r, p->error);
}

static void look(struct m3_picturing *p, struct lens *l, const struct m3_tensor *out, int64_t row)
{
    const int64_t H = out->shape[1], V = p->request->model->config.V;
    double sum = 0;
    for (int64_t i = 0; i < H; i++) l->x[i] = (float)m3_picture_at(out, row * H + i);
    p->status = call(p, l, M3_TAP_FINAL_NORM, l->x, l->normed);
    if (!p->status) p->status = call(p, l, M3_TAP_LOGITS, l->normed, l->logits);
    l->id = 0;
    for (int64_t v = 1; v < V; v++)
        if (l->logits[v] > l->logits[l->id]) l->id = v;
    for (int64_t v = 0; v < V; v++) sum += exp((double)l->logits[v] - (double)l->logits[l->id]);
    l->probability = 1 / sum;
}

static void draw_row(struct m3_picturing *p, FILE *out, struct lens *l, int place, int64_t layer, int tokens)
{
    const struct m3_tensor *x = m3_picture_tap(p, M3_TAP_OUT, layer);
    signed char levels[SHOWN_TOKENS];
    int64_t ids[SHOWN_TOKENS];
    const int y = 24 + place * HIGH;
    for (int t = 0; t < tokens && !p->status; t++) {
        look(p, l, x, x->shape[0] - tokens + t);
        levels[t] = m3_level_of(l->probability);
        ids[t] = l->id;
    }
    if (p->status) return;
    fprintf(out, "<text class=\"end\" x=\"84\" y=\"%d\">layers.%" PRId64 "</text>\n", y + 13, layer);
    for (int t = 0; t < tokens; t++) {
        m3_draw_grid(out, &(struct m3_grid){ 92 + t * WIDE, y, 22, HIGH - 2, 1, 1, levels + t });
        fprintf(out, "<text x=\"%d\" y=\"%d\">%" PRId64 "</text>\n", 118 + t * WIDE, y + 13, ids[t]);
    }
}

static int open_lens(struct m3_picturing *p, struct lens *l)
{
    const struct m3_config *c = &p->request->model->config;
    *l = (struct lens){ .x = calloc((size_t)c->H, sizeof *l->x),
                        .normed = calloc((size_t)c->H, sizeof *l->x),
                        .logits = calloc((size_t)c->V, sizeof *l->x) };
    static const int32_t no_id;
    static const int64_t no_position;
    l->how = (struct m3_request){ .ids = &no_id,
                                  .positions = &no_position,
                                  .T = 1,
                                  .end_layer = c->layers,
                                  .semantics = &c->semantics,
                                  .linear = M3_LINEAR_ORDERED,
                                  .threads = p->request->threads };
    if (l->x && l->normed && l->logits) return M3_OK;
    return m3_fail_memory(p->error, "logit lens", (size_t)c->V * sizeof(float));
}

void m3_picture_lens(struct m3_picturing *p)
{
    int64_t layers[M3_PICTURE_LAYERS];
    const struct m3_model *model = p->request->model;
    int count = m3_picture_layers(p, M3_TAP_OUT, layers);
    while (count > 0 && m3_mtp_module_of(layers[count - 1]) >= 0) count--;
    if (!model || count == 0 || p->status) {
        if (!model && count > 0)
            m3_fail(&p->picture->notes, M3_OK, "The logit lens is not drawn: no --model was given.");
        return;
    }
    int64_t rows = SHOWN_TOKENS;
    for (int i = 0; i < count; i++) {
        const struct m3_tensor *x = m3_picture_tap(p, M3_TAP_OUT, layers[i]);
        rows = m3_min(rows, x->shape[0]);
        if (x->shape[1] == model->config.H) continue;
        p->status = m3_fail(p->error, M3_BAD_INPUT, "%s: %s: got width %" PRId64 ", expected %" PRId64 " of --model",
                            m3_safetensors_path(p->request->dump), x->name, x->shape[1], model->config.H);
        return;
    }
    struct lens l;
    const int64_t T = m3_picture_tap(p, M3_TAP_OUT, layers[0])->shape[0];
    FILE *out = m3_panel_begin(p, 100 + (int)rows * WIDE, 36 + count * HIGH, "logit lens");
    if (!out) return;
    p->status = open_lens(p, &l);
    for (int t = 0; t < rows; t++)
        fprintf(out, "<text x=\"%d\" y=\"14\">t=%" PRId64 "</text>\n", 92 + t * WIDE, m3_picture_row(p, T - rows + t));
    for (int i = 0; i < count && !p->status; i++) draw_row(p, out, &l, i, layers[i], (int)rows);
    m3_panel_note(
        p, "The id of the most likely next token if each layer were the last: its output through the final norm and "
           "lm_head. The bar grows with its probability: up to 25, 50, 75, 99 %% and more.");
    m3_panel_end(p);
    free(l.x);
    free(l.normed);
    free(l.logits);
}
