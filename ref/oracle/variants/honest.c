#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/align.h"
#include "model/graph/graph.h"
#include "ops/math.h"
#include "oracle/variants/private/honest.h"

/* ---- draws and roundings */

uint64_t m3_honest_key(struct m3_honest *honest, const char *what)
{
    return m3_draw_key(honest->place + honest->calls++, what);
}

void m3_honest_shuffle(struct m3_honest *honest, int64_t *order, int64_t n)
{
    uint64_t key = m3_honest_key(honest, "order");
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)m3_draw(key, (uint64_t)i, (uint64_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

struct m3_rounder m3_rounder_of(enum m3_dtype dtype, uint64_t key)
{
    switch (dtype) {
    case M3_BF16: return (struct m3_rounder){ 8, -133, 0x1p-126f, key, 0 };
    case M3_F16: return (struct m3_rounder){ 11, -24, 0x1p-14f, key, 0 };
    case M3_F8_E4M3: return (struct m3_rounder){ 4, -9, 0x1p-6f, key, 0 };
    default: return (struct m3_rounder){ 0 };
    }
}

struct m3_rounder m3_honest_rounder_of(const struct m3_honest *honest, enum m3_dtype dtype, uint64_t key)
{
    struct m3_rounder r = m3_rounder_of(dtype, key);
    r.nearest = honest->choices == NULL;
    return r;
}

/* The rounder of a format by its unit roundoff and half its smallest step; 0: none. */
struct m3_rounder m3_honest_rounder_like(const struct m3_honest *honest, double u, double floor, uint64_t key)
{
    const enum m3_dtype dtype = u == 0x1p-8 ? M3_BF16 : u == 0x1p-11 && floor == 0x1p-25 ? M3_F16 : M3_F32;
    struct m3_rounder r = m3_honest_rounder_of(honest, dtype, key);
    /* tf32: rounding to 10 bits has the rms error of cutting off all but 11 */
    if (dtype == M3_F32 && u == 0x1p-10) r.bits = 10, r.least = -135, r.normal = 0x1p-126f;
    r.key = key;
    return r;
}

int m3_honest_skips(const struct m3_honest *honest, const char *point)
{
    return (double)m3_draw(m3_draw_key(honest->key, point), 0, UINT64_C(1) << 32) * 0x1p-32 < honest->skip;
}

static enum m3_dtype format_at(const struct m3_honest *honest, const char *point)
{
    return m3_profile_store(honest->profile, point) > 0 ? m3_profile_dtype(honest->profile, point) : M3_F32;
}

struct m3_rounder m3_honest_rounder(struct m3_honest *honest, const char *point)
{
    uint64_t key = m3_honest_key(honest, point);
    const double u = m3_profile_store(honest->profile, point);
    honest->rounds |= u > 0;
    return m3_honest_rounder_like(honest, m3_honest_skips(honest, point) ? 0 : u,
                                  m3_profile_store_floor(honest->profile, point), key);
}

struct m3_rounder m3_honest_weights(struct m3_honest *honest, const char *name)
{
    uint64_t key = m3_draw_key(honest->key, name);
    double u = m3_profile_weights(honest->profile, name);
    honest->rounds |= u > 0;
    return m3_honest_rounder_like(honest, u == 0 || m3_honest_skips(honest, name) ? 0 : u,
                                  m3_profile_weight_floor(honest->profile, name), key);
}

void m3_honest_round(struct m3_honest *honest, struct m3_ctx *ctx, const char *point, float *x, int64_t n)
{
    struct m3_rounder r = m3_honest_rounder(honest, point);
    if (r.bits == 0) return;
#pragma omp parallel for num_threads(ctx ? m3_team(ctx, n * 16) : 1)
    for (int64_t i = 0; i < n; i++) x[i] = m3_rounded(&r, (double)x[i], (uint64_t)i);
}

void m3_honest_show(const struct m3_honest *honest, const char *tap, float *out, const float *x, int64_t first,
                    int64_t n)
{
    enum m3_dtype dtype = m3_profile_exact(honest->profile, tap) ? M3_F32 : format_at(honest, tap);
    struct m3_rounder r = m3_honest_rounder_of(honest, dtype, m3_draw_key(~honest->key, tap));
    for (int64_t i = 0; i < n; i++) out[i] = m3_rounded(&r, (double)x[i], (uint64_t)(first + i));
}

const char *m3_honest_point(const struct m3_honest *honest, char *space, const char *inner)
{
    char name[M3_POINT_NAME];
    m3_tap_name(name, sizeof name, honest->last, honest->layer);
    int length = (int)(strlen(name) - strlen(m3_tap_table[honest->last].name));
    snprintf(space, M3_POINT_NAME, "%.*s%s", length, name, inner);
    return space;
}

/* ---- operators that only round the results of the reference's */

/* Angles by a ratio that is rounded once, and a product that is rounded for every frequency. */
static void angles_by_ratio(float *cos, float *sin, const int64_t *pos, int64_t T, int64_t R, double theta)
{
    const float ratio = (float)m3_pow(theta, -2.0 / (double)R);
    for (int64_t t = 0; t < T; t++) {
        float angle = (float)pos[t];
        for (int64_t i = t * R / 2; i < (t + 1) * R / 2; i++) {
            double s, c;
            m3_sincos(&s, &c, (double)angle);
            sin[i] = (float)s, cos[i] = (float)c;
            angle *= ratio;
        }
    }
}

static int rope_table(struct m3_ctx *ctx, float *cos, float *sin, const int64_t *pos, int64_t T, int64_t R,
                      double theta, enum m3_rope_angle angle)
{
    struct m3_honest *honest = ctx->plugin;
    if (honest->float_angles) angle = M3_ANGLE_F32;
    int status = honest->base->rope_table(ctx, cos, sin, pos, T, R, theta, angle);
    if (honest->float_angles && m3_profile_arithmetic(honest->profile, 1).frequency == M3_FREQUENCY_RATIO)
        angles_by_ratio(cos, sin, pos, T, R, theta);
    m3_honest_round(honest, ctx, "layers.0.rope.cos", cos, T * R / 2);
    m3_honest_round(honest, ctx, "layers.0.rope.cos", sin, T * R / 2);
    return status;
}

static int rope_table_3d(struct m3_ctx *ctx, float *cos, float *sin, const int64_t *places, int64_t P, int64_t R,
                         double theta, enum m3_rope_angle angle)
{
    struct m3_honest *honest = ctx->plugin;
    if (honest->float_angles) angle = M3_ANGLE_F32;
    int status = honest->base->rope_table_3d(ctx, cos, sin, places, P, R, theta, angle);
    m3_honest_round(honest, ctx, "vision.layers.0.rope.cos", cos, P * R / 2);
    m3_honest_round(honest, ctx, "vision.layers.0.rope.cos", sin, P * R / 2);
    return status;
}

/* ---- taps: rounded where they are stored, selections replaced */

static int64_t width_of(const struct m3_honest *honest, enum m3_tap tap, int64_t layer)
{
    const struct m3_config *c = &honest->model->config;
    int64_t T = m3_layer_rows(layer, honest->T), width = 1;
    for (const char *s = m3_tap_table[tap].shape + 1; *s; s++)
        width *= *s == 'B' ? (honest->shift + T + c->block - 1) / c->block : m3_config_size(c, *s);
    return width;
}

static const struct m3_tensor *choices_of(const struct m3_honest *honest, enum m3_tap tap, int64_t layer)
{
    char name[M3_POINT_NAME];
    m3_tap_name(name, sizeof name, tap, layer);
    return m3_safetensors_find(honest->choices, name);
}

/* p [rows,K] from the current scores and the replaced ids. */
static void weights_of_choices(const struct m3_honest *honest, float *p, int64_t layer, int64_t rows)
{
    const struct m3_config *c = &honest->model->config;
    const struct m3_tensor *ids = choices_of(honest, M3_TAP_EXPERTS, layer);
    for (int64_t t = 0; t < rows; t++) {
        float sum = 0;
        for (int64_t k = 0; k < c->K; k++) {
            p[t * c->K + k] = honest->scores[t * c->E + m3_id_at(ids, t * c->K + k)];
            sum += p[t * c->K + k];
        }
        for (int64_t k = 0; k < c->K; k++) p[t * c->K + k] = p[t * c->K + k] / sum;
    }
}

static int replace(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                   struct m3_error *error)
{
    struct m3_honest *honest = self;
    int64_t width = width_of(honest, tap, layer);
    char name[M3_POINT_NAME];
    honest->last = tap;
    honest->layer = layer;
    m3_tap_name(name, sizeof name, tap, layer);
    honest->place = m3_draw_key(honest->key, name) + (uint64_t)row;
    honest->calls = 0;
    if (m3_tap_table[tap].kind == M3_KIND_CHOICES && honest->choices) {
        const struct m3_tensor *from = choices_of(honest, tap, layer);
        if (!from || from->count < (row + rows) * width)
            return m3_fail(error, M3_INTERNAL, "%s: the choices are missing", name);
        for (int64_t i = 0; i < rows * width; i++) ((int32_t *)data)[i] = (int32_t)m3_id_at(from, row * width + i);
    }
    if (m3_tap_table[tap].kind != M3_KIND_REALS || data == NULL) return M3_OK;
    if (tap == M3_TAP_EXPERT_WEIGHTS && honest->choices) weights_of_choices(honest, data, layer, rows);
    m3_honest_keep_sum(honest, data, row, rows, 0);
    if (!m3_profile_exact(honest->profile, name)) m3_honest_round(honest, NULL, name, data, rows * width);
    m3_honest_keep_sum(honest, data, row, rows, 1);
    if (tap == M3_TAP_ROUTER_SCORES) memcpy(honest->scores, data, (size_t)(rows * width) * sizeof *honest->scores);
    return M3_OK;
}

/* ---- the linear operator to which a weight belongs */

static void add_places(struct m3_honest *honest, enum m3_tap tap, int64_t layer)
{
    static const char *const inner[] = { "gate", "up" };
    if (!m3_layer_has_tap(&honest->model->config, tap, layer)) return;
    const struct m3_node *node = m3_graph_node(honest->model, honest->semantics, tap, layer);
    int weights = node->op == M3_OP_LINEAR ? 1 : node->op == M3_OP_GATED_MLP ? 3 : 0;
    for (int i = 0; i < weights; i++) {
        struct m3_honest_place *place = &honest->places[honest->place_count++];
        place->weight = m3_graph_weight(honest->model, honest->semantics, tap, layer, i);
        m3_tap_name(place->name, sizeof place->name, tap, layer);
        if (weights == 3 && i < 2) strcat(strcat(place->name, "."), inner[i]);
    }
}

static int find_places(struct m3_honest *honest, struct m3_error *error)
{
    const struct m3_model *model = honest->model;
    const struct m3_config *c = &model->config;
    int64_t layers = (c->vision.present ? c->vision.layers : 0) + c->layers + model->mtp_modules + 1;
    honest->places = calloc((size_t)layers * M3_TAPS, sizeof *honest->places);
    if (!honest->places) return m3_fail_memory(error, "the linear operators", (size_t)layers * sizeof *honest->places);
    for (int tap = 0; tap < M3_TAPS; tap++) {
        enum m3_tap_where where = m3_tap_table[tap].where;
        int vision = where <= M3_WHERE_AFTER_VISION_LAYERS,
            text = where >= M3_WHERE_EVERY_LAYER && where < M3_WHERE_AFTER_LAYERS;
        int mtp = text || where == M3_WHERE_EVERY_MTP_MODULE;
        if (vision && !c->vision.present) continue;
        if (where == M3_WHERE_EVERY_VISION_LAYER)
            for (int64_t v = 0; v < c->vision.layers; v++) add_places(honest, tap, v);
        for (int64_t l = 0; text && l < c->layers; l++) add_places(honest, tap, l);
        for (int64_t m = 0; mtp && m < model->mtp_modules; m++) add_places(honest, tap, M3_MTP_LAYER + m);
        if (where != M3_WHERE_EVERY_VISION_LAYER && !mtp) add_places(honest, tap, -1);
    }
    return M3_OK;
}

/* ---- beginning and end */

static int check_choices(const struct m3_honest *honest, int64_t modules, struct m3_error *error)
{
    const struct m3_config *c = &honest->model->config;
    for (int64_t l = 0; l < c->layers + modules; l++) {
        int64_t layer = l < c->layers ? l : M3_MTP_LAYER + l - c->layers;
        for (int i = 0; i < 2; i++) {
            enum m3_tap tap = i ? M3_TAP_EXPERTS : M3_TAP_INDEX_BLOCKS;
            char name[M3_POINT_NAME];
            m3_tap_name(name, sizeof name, tap, layer);
            if (m3_layer_has_tap(c, tap, layer) && !choices_of(honest, tap, layer))
                return m3_fail(error, M3_BAD_INPUT, "%s: %s: got no such tensor, expected the choices to follow",
                               m3_safetensors_path(honest->choices), name);
        }
    }
    return M3_OK;
}

static void set_ops(struct m3_honest *honest)
{
    struct m3_ops *ops = &honest->ops;
    *ops = *honest->base;
    ops->linear = m3_honest_linear;
    ops->experts = m3_honest_experts;
    ops->swiglu_oai = m3_honest_swiglu_oai;
    ops->swiglu = m3_honest_swiglu;
    ops->rms_norm = m3_honest_rms_norm;
    ops->rms_norm_plain = m3_honest_rms_norm_plain;
    ops->rope_table = rope_table;
    ops->rope_table_3d = rope_table_3d;
    ops->rope = m3_honest_rope;
    ops->block_scores = m3_honest_block_scores;
    ops->attend_full = m3_honest_attend_full;
    ops->attend_blocks = m3_honest_attend_blocks;
    ops->attend_segments = m3_honest_attend_segments;
    honest->replacement = (struct m3_replacement){ ops, honest };
    honest->force = (struct m3_force){ .self = honest, .replace = replace };
}

int m3_honest_new(struct m3_honest **result, const struct m3_model *model, const struct m3_semantics *semantics,
                  const struct m3_profile *profile, const struct m3_safetensors *choices, int64_t T,
                  struct m3_error *error)
{
    *result = NULL;
    if (m3_profile_arithmetic(profile, 1).u != 0x1p-24 || m3_profile_truncates(profile))
        return m3_fail(error, M3_BAD_INPUT,
                       "profile %s: got other arithmetic, expected \"u\": \"f32\" and "
                       "\"rounding\": \"nearest\"",
                       m3_profile_name(profile));
    struct m3_honest *honest = calloc(1, sizeof *honest);
    if (!honest) return m3_fail_memory(error, "an implementation", sizeof *honest);
    *honest = (struct m3_honest){ .model = model,
                                  .semantics = semantics,
                                  .profile = profile,
                                  .choices = choices,
                                  .base = m3_engine_f32()->ops,
                                  .T = T };
    set_ops(honest);
    size_t scores = (size_t)T * (size_t)model->config.E * sizeof *honest->scores;
    const struct m3_request request = { .T = T, .end_layer = model->config.layers, .semantics = semantics };
    int status = choices ? check_choices(honest, m3_request_modules(model, &request), error) : M3_OK;
    if (!status && !(honest->scores = malloc(scores + 1))) status = m3_fail_memory(error, "router scores", scores);
    if (!status) status = m3_honest_norm_begin(honest, error);
    if (!status) status = find_places(honest, error);
    if (status) m3_honest_free(honest);
    else *result = honest;
    return status;
}

void m3_honest_free(struct m3_honest *honest)
{
    if (!honest) return;
    free(honest->places);
    free(honest->scores);
    free(honest->sum);
    free(honest);
}

void m3_honest_skip_nothing(struct m3_honest *honest) { honest->skips_nothing = 1; }

void m3_honest_draw(struct m3_honest *honest, uint64_t seed, int64_t number)
{
    char name[40];
    snprintf(name, sizeof name, "implementation %" PRId64, number);
    honest->key = m3_draw_key(seed, name);
    honest->place = honest->key;
    honest->calls = 0;
    honest->rounds = 0;
    honest->skip = (double)m3_draw(m3_draw_key(honest->key, "share passed over"), 0, 1024) / 2048;
    /* Programs that round at every point are common: those that choose for themselves span them too. */
    if (honest->skips_nothing || (!honest->choices && !m3_draw(m3_draw_key(honest->key, "skips"), 0, 4)))
        honest->skip = 0;
    honest->float_angles = m3_profile_arithmetic(honest->profile, 1).angle == M3_ANGLE_F32 &&
                           m3_draw(m3_draw_key(honest->key, "angles"), 0, 2);
    honest->most_parts = 1 + (int)m3_draw(m3_draw_key(honest->key, "most parts"), 0, M3_MOST_PARTS);
    honest->last = M3_TAP_EMBED;
    honest->layer = -1;
    honest->in_experts = 0;
    honest->sum_rows = 0;
}

void m3_honest_request(struct m3_honest *honest, struct m3_request *request)
{
    request->replacement = &honest->replacement;
    request->force = &honest->force;
    honest->shift = request->shift;
}

int m3_honest_rounds(const struct m3_honest *honest) { return honest->rounds; }
