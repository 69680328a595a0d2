#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/engine.h"
#include "ops/ops.h"
#include "oracle/picture/private/picturing.h"

enum { SHOWN_LAYERS = 16 };

int64_t m3_picture_block(struct m3_picturing *p, int64_t layer)
{
    const struct m3_tensor *m = m3_picture_tap(p, M3_TAP_INDEX_BLOCK_SCORES, layer);
    if (!m || m3_safetensors_find(p->request->dump, "rows")) return 0;
    const int64_t T = m->shape[0], G = m->shape[1], B = m->shape[2];
    if (B == 1) return T;
    for (int64_t t = 0; t < T; t++)
        if (isfinite(m3_picture_at(m, t * G * B + 1))) return t;
    return 0;
}

/* The last row of a layer. */
struct row {
    float *q, *k, *v;           /* [Q,D] [T,G,D] [T,G,D] */
    const struct m3_tensor *lse, *blocks;
    struct m3_attend d;
    int64_t T;
};

static float *floats(struct m3_picturing *p, const struct m3_tensor *t, int64_t first, int64_t n)
{
    float *values = p->status ? NULL : malloc((size_t)n * sizeof *values + 1);
    if (!values && !p->status) p->status = m3_fail_memory(p->error, t->name, (size_t)n * sizeof *values);
    for (int64_t i = 0; values && i < n; i++) values[i] = (float)m3_picture_at(t, first + i);
    return values;
}

static void close_row(struct row *r)
{
    free(r->q);
    free(r->k);
    free(r->v);
}

/* Returns 0 if the dump lacks a part of it. */
static int open_row(struct m3_picturing *p, struct row *r, int64_t layer)
{
    const struct m3_tensor *q = m3_picture_tap(p, M3_TAP_Q_ROPE, layer), *k = m3_picture_tap(p, M3_TAP_K_ROPE, layer);
    const struct m3_tensor *v = m3_picture_tap(p, M3_TAP_V_PROJ, layer);
    const int64_t block = m3_picture_block(p, layer);
    *r = (struct row){ .lse = m3_picture_tap(p, M3_TAP_ATTN_LSE, layer),
                       .blocks = m3_picture_tap(p, M3_TAP_INDEX_BLOCKS, layer) };
    if (!q || !k || !v || !r->lse || !r->blocks || block == 0) return 0;
    const int64_t T = r->T = q->shape[0], Q = q->shape[1], D = q->shape[2], G = k->shape[1];
    if (k->shape[0] != T || k->count != T * G * D || v->count != k->count || Q % G || r->lse->count != T * Q ||
        r->blocks->shape[0] != T || r->blocks->shape[1] != G)
        return 0;
    r->d = (struct m3_attend){
        .T = 1, .p0 = T - 1, .Q = Q, .G = G, .D = D, .block = block, .N = 1, .selection = M3_SELECT_GROUP
    };
    r->q = floats(p, q, (T - 1) * Q * D, Q * D);
    r->k = floats(p, k, 0, k->count);
    r->v = floats(p, v, 0, v->count);
    return !p->status;
}

/* mass [Q,N]: exp(lse over the keys of the n-th block alone - lse over all), by the plain operator. Returns 0 if the
 * masses of a head do not add up to 1: the run then attended to other keys. */
static int fill(struct m3_picturing *p, double *mass, const struct row *r)
{
    struct m3_ctx ctx;
    const int64_t Q = r->d.Q, G = r->d.G, N = r->blocks->shape[2];
    float *o = calloc((size_t)(Q * r->d.D), sizeof *o), *lse = calloc((size_t)Q, sizeof *lse);
    int32_t *lists = calloc((size_t)G, sizeof *lists);
    int status = m3_ctx_init(&ctx, p->request->threads, M3_LINEAR_ORDERED), adds_up = 1;
    if (!o || !lse || !lists) status = M3_INTERNAL;
    for (int64_t n = 0; n < N && !status; n++) {
        for (int64_t g = 0; g < G; g++) lists[g] = m3_picture_id(r->blocks, ((r->T - 1) * G + g) * N + n);
        status = m3_engine_f32()->plain->attend_blocks(&ctx, o, lse, r->q, r->k, r->v, lists, &r->d);
        for (int64_t h = 0; h < Q && !status; h++)
            mass[h * N + n] = exp((double)lse[h] - m3_picture_at(r->lse, (r->T - 1) * Q + h));
    }
    for (int64_t h = 0; h < Q && !status; h++) {
        double sum = 0;
        for (int64_t n = 0; n < N; n++) sum += mass[h * N + n];
        adds_up &= fabs(sum - 1) < 1e-3;
    }
    m3_ctx_free(&ctx);
    free(o);
    free(lse);
    free(lists);
    if (status == M3_INTERNAL) p->status = m3_fail_memory(p->error, "attention mass", (size_t)Q);
    return !status && adds_up;
}

static void draw(struct m3_picturing *p, const struct row *r, const double *mass, int64_t layer)
{
    const int64_t Q = r->d.Q, G = r->d.G, N = r->blocks->shape[2], each = Q / G;
    const int wide = (int)m3_max(8, m3_min(34, 200 / N)), high = (int)m3_max(4, m3_min(14, 160 / each));
    char name[64], title[128];
    signed char *levels = malloc((size_t)(Q * N));
    m3_picture_layer_name(name, sizeof name, layer);
    snprintf(title, sizeof title, "attention mass of the chosen blocks, %s", name);
    const int width = (int)m3_max(60 + G * (N * wide + 24), 420);
    FILE *out = levels ? m3_panel_begin(p, width, (int)(48 + each * high), title) : NULL;
    if (!levels) p->status = m3_fail_memory(p->error, title, (size_t)(Q * N));
    for (int64_t i = 0; out && i < Q * N; i++) levels[i] = mass[i] < 0.005 ? -1 : m3_level_of(mass[i]);
    for (int64_t g = 0; out && g < G; g++) {
        const int x = 56 + (int)(g * (N * wide + 24));
        fprintf(out, "<text x=\"%d\" y=\"12\">group %" PRId64 "</text>\n", x, g);
        for (int64_t n = 0; n < N && wide >= 16; n++)
            fprintf(out, "<text class=\"middle\" x=\"%d\" y=\"27\">%.0f</text>\n", x + (int)n * wide + wide / 2,
                    m3_picture_at(r->blocks, ((r->T - 1) * G + g) * N + n));
        m3_draw_grid(
            out, &(struct m3_grid){ x, 32, (int)N * wide, (int)each * high, (int)each, (int)N, levels + g * each * N });
    }
    if (out) {
        m3_panel_note(p,
                      "The last row, token %" PRId64
                      ": a row is a query head of the group, a column one of its chosen blocks, "
                      "named above it (-1: the list is shorter). The bar grows with the share of the softmax that the "
                      "keys of the block hold: up to 25, 50, 75, 99 %% and more.",
                      r->T - 1);
        m3_panel_end(p);
    }
    free(levels);
}

static void say_other_keys(struct m3_picturing *p, int64_t layer)
{
    char name[64];
    m3_picture_layer_name(name, sizeof name, layer);
    m3_fail(&p->picture->notes, M3_OK,
            "The attention mass of %s is not drawn: its last row attended to other keys than its blocks.", name);
}

static void draw_layer(struct m3_picturing *p, int64_t layer)
{
    struct row r;
    if (open_row(p, &r, layer)) {
        const size_t count = (size_t)(r.d.Q * r.blocks->shape[2]);
        double *mass = calloc(count, sizeof *mass);
        if (!mass) p->status = m3_fail_memory(p->error, "attention mass", count * sizeof *mass);
        else if (fill(p, mass, &r)) draw(p, &r, mass, layer);
        else if (!p->status) say_other_keys(p, layer);
        free(mass);
    }
    close_row(&r);
}

void m3_picture_mass(struct m3_picturing *p)
{
    int64_t layers[M3_PICTURE_LAYERS];
    const int count = (int)m3_min(m3_picture_layers(p, M3_TAP_INDEX_BLOCKS, layers), SHOWN_LAYERS);
    for (int i = 0; i < count && !p->status; i++) draw_layer(p, layers[i]);
}
