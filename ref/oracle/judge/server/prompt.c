#include "oracle/judge/server/prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "io/json.h"
#include "io/open.h"
#include "model/engine.h"
#include "ops/ops.h"

const double m3_prompt_narrow = 1.0 / 64;

enum { PART = 16, MOST_PARTS = 8 };

/* ---- a pass that measures its own decisions */

struct measuring {
    const struct m3_ops *base;
    struct m3_prompt_figures figures;
    unsigned char *token_clamped;       /* [T] */
    double *margins;                    /* [room] */
    int64_t room;
    int failed;
};

static void add_margin(struct measuring *m, double margin)
{
    struct m3_prompt_figures *f = &m->figures;
    if (f->decisions == m->room) {
        const int64_t room = m->room ? 2 * m->room : 1024;
        double *larger = realloc(m->margins, (size_t)room * sizeof *larger);
        if (!larger) {
            m->failed = 1;
            return;
        }
        m->margins = larger;
        m->room = room;
    }
    m->margins[f->decisions++] = margin;
    f->narrow += !(margin >= m3_prompt_narrow);
}

static int is_among(const int32_t *ids, int64_t n, int64_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return 1;
    return 0;
}

/* The least chosen score minus the greatest of the others. */
static int route(struct m3_ctx *ctx, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                 int64_t K)
{
    struct measuring *m = ctx->plugin;
    const int status = m->base->route(ctx, ids, p, s, bias, T, E, K);
    for (int64_t t = 0; t < T && !status && K < E; t++) {
        double least = INFINITY, next = -INFINITY, largest = 0;
        for (int64_t e = 0; e < E; e++) {
            const double score = (double)s[t * E + e] + (bias ? (double)bias[e] : 0);
            largest = fmax(largest, fabs(score));
            if (is_among(ids + t * K, K, e)) least = fmin(least, score);
            else next = fmax(next, score);
        }
        add_margin(m, (least - next) / largest);
    }
    return status;
}

/* Of the blocks that were not forced. A list has at least one forced block, the row's own. */
static int select_blocks(struct m3_ctx *ctx, int32_t *ids, const real *scores, const struct m3_index *d)
{
    struct measuring *m = ctx->plugin;
    const int status = m->base->select_blocks(ctx, ids, scores, d);
    for (int64_t r = 0; r < d->T * d->G && !status; r++) {
        const int64_t own = (d->p0 + r / d->G) / d->block;
        const real *row = scores + r * d->B;
        double least = INFINITY, next = -INFINITY, largest = 0;
        for (int64_t b = 0; b <= own; b++) {
            const int is_forced = b > own - d->semantics->local_blocks || b < d->semantics->init_blocks;
            const double score = (double)row[b];
            if (!isfinite(score) || is_forced) continue;
            largest = fmax(largest, fabs(score));
            if (is_among(ids + r * d->N, d->N, b)) least = fmin(least, score);
            else next = fmax(next, score);
        }
        if (isfinite(least) && isfinite(next) && largest > 0) add_margin(m, fabs(least - next) / largest);
    }
    return status;
}

static void count_clamped(struct measuring *m, const real *gate, const real *up, int64_t t, int64_t n,
                          const struct m3_activation *act)
{
    for (int64_t i = 0; i < n; i++) {
        const int is_clamped = gate[i] > act->limit || up[i] > act->limit || up[i] < -act->limit;
        m->figures.clamped += is_clamped;
        m->token_clamped[t] |= (unsigned char)is_clamped;
    }
}

static int swiglu_oai(struct m3_ctx *ctx, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                      const struct m3_activation *act)
{
    struct measuring *m = ctx->plugin;
    for (int64_t t = 0; t < T; t++) count_clamped(m, gate + t * F, up + t * F, t, F, act);
    return m->base->swiglu_oai(ctx, y, gate, up, T, F, act);
}

static int experts(struct m3_ctx *ctx, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                   const struct m3_expert *all, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                   real factor)
{
    struct measuring *m = ctx->plugin;
    const int64_t H = all[0].w1.cols, F = all[0].w1.rows;
    int status = m->base->experts(ctx, routed, each, x, ids, p, all, act, T, E, K, factor);
    const size_t mark = m3_scratch_mark(ctx);
    real *gate = m3_scratch_take(ctx, F, sizeof *gate), *up = m3_scratch_take(ctx, F, sizeof *up);
    if (!status && (!gate || !up)) status = M3_INTERNAL;
    for (int64_t i = 0; i < T * K && act->oai && !status; i++) {
        const struct m3_expert *e = &all[ids[i]];
        status = m->base->linear(ctx, gate, x + i / K * H, &e->w1, NULL, 1);
        if (!status) status = m->base->linear(ctx, up, x + i / K * H, &e->w3, NULL, 1);
        if (!status) count_clamped(m, gate, up, i / K, F, act);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(struct m3_prompt_figures *figures, const struct m3_prompt_plan *plan, const int32_t *ids,
                   const int64_t *positions, int64_t T, struct m3_error *error)
{
    struct measuring m = { .base = m3_engine_f32()->ops };
    struct m3_ops ops = *m.base;
    const struct m3_replacement replacement = { &ops, &m };
    const struct m3_request request = { .ids = ids,
                                        .positions = positions,
                                        .T = T,
                                        .end_layer = plan->model->config.layers,
                                        .semantics = plan->semantics,
                                        .threads = plan->threads,
                                        .replacement = &replacement };
    ops.route = route;
    ops.select_blocks = select_blocks;
    ops.swiglu_oai = swiglu_oai;
    ops.experts = experts;
    m.token_clamped = calloc((size_t)T, 1);
    if (!m.token_clamped) return m3_fail_memory(error, "a prompt", (size_t)T);
    int status = m3_engine_f32()->forward(plan->model, &request, error);
    if (!status && m.failed) status = m3_fail_memory(error, "margins", (size_t)m.room * sizeof *m.margins);
    for (int64_t t = 0; t < T; t++) m.figures.clamped_tokens += m.token_clamped[t];
    const int64_t n = m.figures.decisions;
    m.figures.least = m.figures.median = NAN;
    if (n > 0) {
        qsort(m.margins, (size_t)n, sizeof *m.margins, by_size);
        m.figures.least = m.margins[0];
        m.figures.median = m.margins[n / 2];
    }
    *figures = m.figures;
    free(m.margins);
    free(m.token_clamped);
    return status;
}

/* ---- the search */

/* More tokens with clamped elements, fewer narrow decisions. */
static double worth_of(const struct m3_prompt_figures *f, int64_t T)
{
    const double narrow = f->decisions > 0 ? (double)f->narrow / (double)f->decisions : 0;
    return (double)f->clamped_tokens / (double)T - 4 * narrow;
}

static void draw_part(int32_t *to, int64_t n, const struct m3_prompt_plan *plan, const int32_t *allowed,
                      int64_t allowed_count, int64_t part, int64_t draw)
{
    char name[64];
    snprintf(name, sizeof name, "prompt %lld.%lld", (long long)part, (long long)draw);
    const uint64_t key = m3_draw_key(plan->seed, name);
    for (int64_t i = 0; i < n; i++) to[i] = allowed[m3_draw(key, (uint64_t)i, (uint64_t)allowed_count)];
}

static int search(int32_t *ids, int32_t *best, const int64_t *positions, const int32_t *allowed, int64_t allowed_count,
                  struct m3_prompt_figures *figures, const struct m3_prompt_plan *plan, struct m3_error *error)
{
    const int64_t T = plan->tokens, size = m3_max(PART, (T + MOST_PARTS - 1) / MOST_PARTS);
    const int64_t parts = (T + size - 1) / size;
    int status = M3_OK;
    for (int64_t part = 0; part < parts && !status; part++) {
        const int64_t first = part * size, n = m3_min(size, T - first);
        double most = -INFINITY;
        for (int64_t draw = 0; draw < plan->draws && !status; draw++) {
            struct m3_prompt_figures found;
            m3_tell(&plan->progress, "draw", part * plan->draws + draw, parts * plan->draws);
            draw_part(ids + first, n, plan, allowed, allowed_count, part, draw);
            status = measure(&found, plan, ids, positions, first + n, error);
            if (status || worth_of(&found, first + n) <= most) continue;
            most = worth_of(&found, first + n);
            memcpy(best + first, ids + first, (size_t)n * sizeof *best);
            *figures = found;
        }
        memcpy(ids + first, best + first, (size_t)n * sizeof *ids);
    }
    return status;
}

int m3_prompt_search(int32_t *ids, struct m3_prompt_figures *figures, const struct m3_prompt_plan *plan,
                     struct m3_error *error)
{
    const int64_t V = plan->model->config.V, T = plan->tokens;
    int32_t *allowed = malloc((size_t)V * sizeof *allowed), *best = malloc((size_t)T * sizeof *best);
    int64_t *positions = malloc((size_t)T * sizeof *positions), count = 0;
    int status = allowed && best && positions ? M3_OK : m3_fail_memory(error, "a prompt", (size_t)T * sizeof *best);
    for (int64_t v = 0; v < V && !status; v++)
        if (!plan->left_out[v]) allowed[count++] = (int32_t)v;
    for (int64_t t = 0; t < T && !status; t++) positions[t] = t;
    if (!status && count == 0)
        status = m3_fail(error, M3_USAGE, "prompt: got no token that may be drawn, expected some");
    if (!status) status = search(ids, best, positions, allowed, count, figures, plan, error);
    free(allowed);
    free(best);
    free(positions);
    return status;
}

/* ---- special tokens */

static void leave_out(unsigned char *left_out, int64_t V, json_int_t id)
{
    if (id >= 0 && id < V) left_out[id] = 1;
}

static void leave_out_named(unsigned char *left_out, int64_t V, const json_t *object)
{
    static const char *const names[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(object, names[i]);
        if (json_is_integer(value)) leave_out(left_out, V, json_integer_value(value));
        for (size_t k = 0; k < json_array_size(value); k++)
            leave_out(left_out, V, json_integer_value(json_array_get(value, k)));
    }
}

static int read_beside(unsigned char *left_out, int64_t V, const char *folder, const char *name, struct m3_error *error)
{
    char path[4096];
    const char *key;
    json_t *root, *value;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int exists, status = m3_look_for(&exists, path, error);
    if (!status && exists) status = m3_json_load(&root, path, error);
    if (status || !exists) return status;
    leave_out_named(left_out, V, root);
    leave_out_named(left_out, V, json_object_get(root, "text_config"));
    json_object_foreach(json_object_get(root, "added_tokens_decoder"), key, value)
        leave_out(left_out, V, strtoll(key, NULL, 10));
    json_decref(root);
    return M3_OK;
}

int m3_prompt_special(unsigned char *left_out, int64_t *count, const struct m3_model *model, const char *folder,
                      struct m3_error *error)
{
    static const char *const files[] = { "config.json", "generation_config.json", "tokenizer_config.json" };
    const int64_t V = model->config.V;
    int status = M3_OK;
    memset(left_out, 0, (size_t)V);
    leave_out(left_out, V, model->config.vision.image_token);
    leave_out(left_out, V, model->config.vision.video_token);
    for (size_t i = 0; i < sizeof files / sizeof *files && !status; i++)
        status = read_beside(left_out, V, folder, files[i], error);
    *count = 0;
    for (int64_t v = 0; v < V; v++) *count += left_out[v];
    return status;
}
