#ifndef _GNU_SOURCE
#define _GNU_SOURCE             /* mincore, MAP_ANONYMOUS */
#endif
#include "estimate/rates.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/generator.h"
#include "base/minmax.h"
#include "io/safetensors.h"

/* Rows and vocabulary of the small model; multiplications of one of its passes; seconds for all of them. */
enum { MOST_ROWS = 512, MOST_V = 4096, LEAST_WIDTH = 256, KINDS_OF_LAYERS = 4, MOST_RUNS = 40, WARM_ROWS = 16 };
static const double most_work = 40e9, most_seconds = 0.7;

/* ---- weights: windows of noise, so that no two of them in a row are the same memory */

enum { NOISE = 128 << 20, SCALES = 32 << 20 };

struct pool {
    unsigned char *bytes;               /* [NOISE] BF16, [NOISE] codes, [SCALES] */
    size_t next[2];
    const struct m3_weight *stored;     /* a matrix of the model; NULL: BF16 */
};

/* Shared, because the pass gives pages back after each layer, and those of private memory would be lost. */
static const size_t POOL = 2 * (size_t)NOISE + SCALES;

static int make_pool(struct pool *p, struct m3_error *error)
{
    enum { PIECE = 1 << 16 };

    p->bytes = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->bytes == MAP_FAILED) return m3_fail_memory(error, "--plan", POOL);
    const uint64_t key = m3_draw_key(1, "plan");
    for (size_t i = 0; i < PIECE; i += 2) {
        const float value = (float)((int)m3_draw(key, i, 255) - 127) / 4096;
        const uint16_t bits = m3_bf16_of(value);
        memcpy(p->bytes + i, &bits, sizeof bits);
    }
    for (size_t i = PIECE; i < NOISE; i += PIECE) memcpy(p->bytes + i, p->bytes, PIECE);
    if (!p->stored || (p->stored->dtype != M3_F8_E4M3 && !m3_weight_is_packed(p->stored))) return M3_OK;
    unsigned char *codes = p->bytes + NOISE;            /* no NaN among them */
    for (size_t i = 0; i < PIECE; i++) codes[i] = (unsigned char)m3_draw(key, i, 120);
    for (size_t i = PIECE; i < NOISE; i += PIECE) memcpy(codes + i, codes, PIECE);
    const int is_exponent = p->stored->scaling == M3_SCALE_MX32 || p->stored->scaling == M3_SCALE_MXFP4;
    memset(codes + NOISE, is_exponent ? 119 : 0x3C, SCALES);    /* about 0.01: results are normal numbers */
    return M3_OK;
}

/* The scales of codes of 8 bits are fewer. */
static size_t scale_bytes(const struct m3_weight *w)
{
    if (!m3_weight_is_packed(w) || w->group < 1) return 0;
    return (size_t)(w->rows * ((w->cols + w->group - 1) / w->group)) * m3_dtype_bytes(w->scale_dtype);
}

static int fits(const struct m3_weight *w) { return m3_weight_bytes(w) <= NOISE && scale_bytes(w) <= SCALES; }

/* A matrix of the model, as it is stored, or in BF16. */
static struct m3_weight shaped(const struct m3_weight *stored, int64_t rows, int64_t cols)
{
    struct m3_weight w = { .dtype = M3_BF16 };
    if (rows > 1 && stored) w = *stored;
    w.rows = rows, w.cols = cols;
    return w;
}

static const void *window(struct pool *p, int is_code, size_t bytes)
{
    if (p->next[is_code] + bytes > NOISE) p->next[is_code] = 0;
    const void *begin = p->bytes + (is_code ? NOISE : 0) + p->next[is_code];
    p->next[is_code] += (bytes + 4095) / 4096 * 4096;
    return begin;
}

static int give(struct pool *p, struct m3_weight *w, struct m3_error *error)
{
    const struct m3_weight shape = *w;
    if (w->rows * w->cols == 0) return M3_OK;
    *w = shaped(p->stored, shape.rows, shape.cols);
    w->id = shape.id;
    if (!fits(w))
        return m3_fail(error, M3_INTERNAL,
                       "--plan: a matrix [%" PRId64 ",%" PRId64 "]: got %zu bytes, expected at most %d", w->rows,
                       w->cols, m3_weight_bytes(w), NOISE);
    if (w->scales) w->scales = p->bytes + POOL - SCALES;
    if (w->zeros) w->zeros = p->bytes + POOL - SCALES;
    w->data = window(p, w->dtype == M3_F8_E4M3 || m3_weight_is_packed(w), m3_weight_bytes(w));
    return M3_OK;
}

static int give_layer(struct pool *p, struct m3_layer *l, int64_t experts, struct m3_error *error)
{
    struct m3_weight *all[] = { &l->attn_norm,    &l->mlp_norm,     &l->q_proj,       &l->k_proj, &l->v_proj,
                                &l->o_proj,       &l->q_norm,       &l->k_norm,       &l->gate,   &l->up,
                                &l->index_q_proj, &l->index_k_proj, &l->index_q_norm, &l->down,   &l->index_k_norm };
    const struct m3_weight *stored = p->stored;
    int status = M3_OK;
    for (size_t i = 0; !status && i < sizeof all / sizeof *all; i++) status = give(p, all[i], error);
    for (int64_t e = 0; !status && l->experts && e < experts; e++) {
        status = give(p, &l->experts[e].w1, error);
        if (!status) status = give(p, &l->experts[e].w3, error);
        if (!status) status = give(p, &l->experts[e].w2, error);
    }
    p->stored = NULL;           /* these are not stored in codes */
    if (!status) status = give(p, &l->router, error);
    if (!status) status = give(p, &l->router_bias, error);
    p->stored = stored;
    return status;
}

/* ---- the small model */

static int64_t halved(int64_t width) { return width > LEAST_WIDTH ? width / 2 / 128 * 128 : width; }

static double total(const struct m3_config *c, int64_t T, int64_t p0)
{
    struct m3_work work = { 0 };
    double sum = 0;
    for (int64_t l = 0; l < c->layers; l++) m3_work_add_layer(&work, c, l, T, p0);
    m3_work_add_head(&work, c, m3_min(T, 64));
    for (int kind = 0; kind < M3_WORK_KINDS; kind++) sum += work.of[kind];
    return sum;
}

/* A row chooses one expert, among so few that each has as many rows. */
static void take_one_expert(struct m3_config *c)
{
    if (c->K < 2) return;
    c->E = m3_max(1, c->E / c->K);
    c->K = 1;
}

/* Is there noise for the largest matrix? */
static int all_fit(const struct m3_config *c, const struct m3_weight *stored)
{
    const int64_t heads = m3_max(c->Q * c->D, c->G * c->X), mlp = m3_max(c->F, c->shared_intermediate);
    const struct m3_weight in_layers = shaped(stored, m3_max(heads, m3_max(mlp, c->dense_intermediate)), c->H);
    const struct m3_weight others = shaped(NULL, m3_max(c->V, c->E), c->H);
    return fits(&in_layers) && fits(&others);
}

/* One layer of each kind; narrower than the model's, until a pass is short and the noise suffices. */
static int make_config(struct m3_config *c, const struct m3_rates_request *r, int64_t T, int64_t p0,
                       struct m3_error *error)
{
    int has[KINDS_OF_LAYERS] = { 0 };
    *c = *r->config;
    c->vision = (struct m3_vision_config){ .image_token = -1, .video_token = -1 };
    c->sparse = calloc(KINDS_OF_LAYERS, 1);
    c->moe = calloc(KINDS_OF_LAYERS, 1);
    if (!c->sparse || !c->moe) return m3_fail_memory(error, "--plan", KINDS_OF_LAYERS);
    c->layers = c->mtp_modules = 0;
    for (int64_t l = r->first; l < r->end; l++) {
        const int sparse = m3_config_sparse(r->config, l), moe = m3_config_moe(r->config, l);
        if (has[2 * sparse + moe]++) continue;
        c->sparse[c->layers] = (unsigned char)sparse;
        c->moe[c->layers++] = (unsigned char)moe;
    }
    c->V = m3_min(c->V, MOST_V);
    if (T < r->T && c->E > 0) c->E = m3_max(c->K, c->E * T / r->T);     /* as many rows for each */
    const double most = r->engine->real_bytes == sizeof(double) ? most_work / 3 : most_work;
    if (total(c, T, p0) > most) take_one_expert(c);
    for (int i = 0; i < 12 && (total(c, T, p0) > most || !all_fit(c, r->stored)); i++) {
        if (i % 3 == 0) c->F = halved(c->F), c->shared_intermediate = halved(c->shared_intermediate);
        if (i % 3 == 0) c->dense_intermediate = halved(c->dense_intermediate);
        if (i % 3 == 1 && c->G % 2 == 0 && c->Q % 2 == 0) c->G /= 2, c->Q /= 2;
        if (i % 3 == 2) c->H = halved(c->H);
    }
    return M3_OK;
}

static int make_model(struct m3_model **model, struct pool *pool, const struct m3_rates_request *r, int64_t T,
                      int64_t p0, struct m3_error *error)
{
    struct m3_config c;
    *model = NULL;
    int status = make_config(&c, r, T, p0, error);
    if (status) m3_config_free(&c);
    else status = m3_model_without_weights(model, &c, 0, error);
    if (status) return status;
    struct m3_model *m = *model;
    for (int64_t l = 0; !status && l < m->config.layers; l++)
        status = give_layer(pool, &m->layers[l], m->config.E, error);
    pool->stored = NULL;
    if (!status) status = give(pool, &m->embed, error);
    if (!status) status = give(pool, &m->final_norm, error);
    return status ? status : give(pool, &m->lm_head, error);
}

/* ---- one pass, timed by its taps */

struct timer {
    struct m3_rates *rates;
    const struct m3_model *model;
    double last;
};

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    (void)self, (void)layer;
    return tap != M3_TAP_LOGITS && tap != M3_TAP_EXPERT_OUT;    /* these are computed only if they are wanted */
}

static void take(struct timer *t, enum m3_work_kind kind)
{
    const double now = m3_seconds();
    t->rates->seconds[kind] += now - t->last;
    t->last = now;
}

static int tick(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                struct m3_error *error)
{
    struct timer *t = self;
    (void)data, (void)row, (void)rows, (void)error;
    take(t, m3_work_of(m3_graph_node(t->model, &t->model->config.semantics, tap, layer)));
    return M3_OK;
}

/* Places before the rows hold noise: equal keys would all be in the same blocks. */
static int make_cache(struct m3_cache **cache, const struct m3_model *model, size_t real_bytes, int64_t p0, int64_t T,
                      struct m3_error *error)
{
    const struct m3_config *c = &model->config;
    int status = m3_cache_new(cache, model, real_bytes, error);
    if (!status) status = m3_cache_reserve(*cache, M3_CACHE_MAIN, p0 + T, error);
    for (int64_t l = 0; !status && l < c->layers; l++) {
        const struct m3_cached *held = m3_cache_at(*cache, l);
        void *all[] = { held->k, held->v, held->index_k };
        for (int i = 0; i < 3; i++)
            for (int64_t n = 0; all[i] && n < p0 * (i == 2 ? c->X : c->G * c->D); n++) {
                const double x = (double)((n * 2654435761) >> 8 & 255) / 128 - 1;
                if (real_bytes == sizeof(double)) ((double *)all[i])[n] = x;
                else ((float *)all[i])[n] = (float)x;
            }
    }
    if (!status) m3_cache_set_length(*cache, M3_CACHE_MAIN, p0);
    return status;
}

static int run(const struct m3_rates_request *r, const struct m3_model *model, struct m3_request request, int64_t p0,
               struct m3_rates *rates, struct m3_error *error)
{
    double logits[MOST_V];
    struct m3_rates warm = { .seconds = { 0 } };
    struct timer timer = { .rates = &warm, .model = model };
    const struct m3_sink sink = { .self = &timer, .wants = wants, .write = tick };
    struct m3_work one = { 0 };
    for (int64_t l = 0; l < model->config.layers; l++) m3_work_add_layer(&one, &model->config, l, request.T, p0);
    m3_work_add_head(&one, &model->config, m3_min(request.T, 64));
    request.sink = &sink;
    request.logits = logits;
    request.logit_rows = 1;
    const int64_t T = request.T;
    double begin = m3_seconds();
    int status = M3_OK;
    for (int i = 0; !status && i < MOST_RUNS; i++) {
        if (i == 1) begin = m3_seconds();
        request.T = i ? T : m3_min(T, WARM_ROWS);      /* the first pass warms up threads and caches */
        timer.last = m3_seconds();
        status = r->engine->forward(model, &request, error);
        take(&timer, M3_WORK_HEAD);
        if (request.cache) m3_cache_set_length(request.cache, M3_CACHE_MAIN, p0);
        for (int kind = 0; kind < M3_WORK_KINDS; kind++) timer.rates->work[kind] += one.of[kind];
        timer.rates = rates;
        if (i > 0 && m3_seconds() - begin > most_seconds) break;
    }
    return status;
}

int m3_rates_measure(struct m3_rates *rates, const struct m3_rates_request *r, struct m3_error *error)
{
    const int64_t T = m3_min(r->T, MOST_ROWS), more = r->T - T;
    const int64_t p0 = m3_min(4096, r->has_cache && r->T == T ? r->p0 : more / 2);
    struct pool pool = { .stored = r->stored };
    struct m3_model *model = NULL;
    struct m3_cache *cache = NULL;
    int32_t ids[MOST_ROWS];
    int64_t positions[MOST_ROWS];
    *rates = (struct m3_rates){ .seconds = { 0 } };
    int status = make_pool(&pool, error);
    if (status) return status;
    status = make_model(&model, &pool, r, T, p0, error);
    if (!status && (p0 > 0 || r->has_cache)) status = make_cache(&cache, model, r->engine->real_bytes, p0, T, error);
    for (int64_t t = 0; !status && t < T; t++) ids[t] = (int32_t)(t * 7 % model->config.V), positions[t] = p0 + t;
    if (!status) {
        struct m3_request request = { .ids = ids, .positions = positions, .T = T, .linear = r->linear };
        request.end_layer = model->config.layers;
        request.semantics = &model->config.semantics;
        request.threads = r->threads;
        request.cache = cache;
        status = run(r, model, request, p0, rates, error);
    }
    m3_cache_free(cache);
    m3_model_close(model);
    munmap(pool.bytes, POOL);
    return status;
}

double m3_rates_time(const struct m3_rates *rates, const struct m3_work *work, enum m3_work_kind kind)
{
    return rates->work[kind] > 0 ? work->of[kind] * rates->seconds[kind] / rates->work[kind] : 0;
}

/* ---- the disk */

/* The pages of [begin, begin + bytes) that are in memory, as a share. */
static double resident(const unsigned char *begin, size_t bytes)
{
    enum { MOST = 256 };
    unsigned char in_memory[MOST];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = m3_min((int64_t)(bytes / page), MOST);
    int64_t found = 0;
    if (pages == 0 || mincore((void *)(uintptr_t)begin, pages * page, in_memory) != 0) return 1;
    for (size_t i = 0; i < pages; i++) found += in_memory[i] & 1;
    return (double)found / (double)pages;
}

static const unsigned char *page_of(const struct m3_tensor *t)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return (const unsigned char *)(((uintptr_t)t->data + page - 1) / page * page);
}

/* Reads a piece as a pass does: it is asked for, then used. */
static double read_piece(const unsigned char *bytes, size_t count)
{
    const double begin = m3_seconds();
    volatile unsigned char sum = 0;
    m3_pages_ask(bytes, count);
    for (size_t i = 0; i < count; i += 4096) sum = (unsigned char)(sum + bytes[i]);
    return m3_seconds() - begin;
}

void m3_rates_disk(struct m3_disk_rates *rates, const struct m3_checkpoint *checkpoint)
{
    enum { PIECES = 64 };
    const size_t page = 4096, piece = 1 << 20;
    const double most = 0.4;
    const int64_t count = m3_checkpoint_count(checkpoint);
    double all = 0, held = 0, took = 0, got = 0;
    for (int64_t i = 0; i < count; i++) {
        const char *path;
        const struct m3_tensor *t = m3_checkpoint_at(checkpoint, i, &path);
        if (t->bytes < 2 * page) continue;
        const double share = resident(page_of(t), t->bytes - page);
        all += (double)t->bytes;
        held += share * (double)t->bytes;
        if (share > 0 || t->bytes < 2 * piece || took > most || got >= (double)(PIECES * piece)) continue;
        took += read_piece(page_of(t), piece);
        got += (double)piece;
        m3_pages_release(page_of(t), piece);
    }
    *rates = (struct m3_disk_rates){ all > 0 ? held / all : 1, took > 0 ? got / took : 0 };
}
