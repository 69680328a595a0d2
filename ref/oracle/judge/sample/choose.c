/* Which rows of a long dump are judged. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/generator.h"
#include "base/minmax.h"
#include "base/row_list.h"
#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/judge/sample/sample.h"

int m3_sample_parse(struct m3_sample_wish *wish, const char *text, struct m3_error *error)
{
    char *end;
    *wish = (struct m3_sample_wish){ 0 };
    if (strcmp(text, "all") == 0) return M3_OK;
    const long long count = strtoll(text, &end, 10);
    if (*end == '\0' && end != text && count > 0 && count <= INT32_MAX) {
        wish->count = count;
        return M3_OK;
    }
    if (strpbrk(text, ":,") && strspn(text, "0123456789:,") == strlen(text)) {
        wish->list = text;
        return M3_OK;
    }
    return m3_fail(error, M3_USAGE,
                   "--rows: got %s, expected a number of rows, a list such as 0:8,100,4090:4096, or all", text);
}

struct choosing {
    struct m3_sample *to;
    const struct m3_safetensors *dump;
    const struct m3_model *model;
    int64_t most;               /* as many rows are chosen before random ones are */
    struct m3_error *error;
};

static void choose(struct choosing *c, int64_t row)
{
    struct m3_sample *s = c->to;
    if (row < 0 || row >= s->of || s->chosen[row] || s->count >= c->most) return;
    s->chosen[row] = 1;
    s->count++;
}

/* ---- a list */

static int take_list(struct choosing *c, const char *list)
{
    struct m3_sample *s = c->to;
    if (m3_rows_mark(s->chosen, list, s->of))
        return m3_fail(c->error, M3_USAGE, "--rows: got %s, expected rows from 0 to %" PRId64 ", such as 0:8,100", list,
                       s->of - 1);
    for (int64_t row = 0; row < s->of; row++) s->count += s->chosen[row];
    return M3_OK;
}

/* ---- where operators fail */

static void take_edges(struct choosing *c)
{
    enum { FIRST = 2, LAST = 4 };
    const int64_t T = c->to->of, block = m3_max(1, c->model->config.block), blocks = T / block;
    const int64_t most = m3_max(1, c->most / 16), step = m3_max(1, (blocks + most - 1) / most);
    for (int64_t i = 0; i < FIRST; i++) choose(c, i);
    for (int64_t i = 1; i <= LAST; i++) choose(c, T - i);
    for (int64_t b = 1; b <= blocks; b += step) choose(c, b * block - 1), choose(c, b * block);
}

/* A tap of all rows, in whole; NULL: the dump has none. */
static const struct m3_tensor *find(const struct choosing *c, enum m3_tap tap, int64_t layer)
{
    char name[96];
    if (m3_tap_name(name, sizeof name, tap, layer)) return NULL;
    const struct m3_tensor *t = m3_safetensors_find(c->dump, name);
    return t && t->rank > 1 && t->shape[0] == c->to->of ? t : NULL;
}

/* The rows whose largest gate or up lies beyond the limit. */
static void take_clamped(struct choosing *c, int64_t layer)
{
    enum { MOST = 2 };
    static const enum m3_tap taps[] = { M3_TAP_MLP_GATE, M3_TAP_MLP_UP };
    for (int i = 0; i < 2; i++) {
        const struct m3_tensor *t = find(c, taps[i], layer);
        int taken = 0;
        for (int64_t k = 0; t && k < t->count && taken < MOST; k++) {
            const double x = m3_decode(t->dtype, t->data, k), limit = c->model->config.swiglu_limit;
            if (!(x >= limit || (i == 1 && x <= -limit))) continue;
            choose(c, k / (t->count / t->shape[0]));
            taken++;
            k += t->count / t->shape[0] - 1 - k % (t->count / t->shape[0]); /* the next row */
        }
    }
}

/* The gap between the n-th largest of `count` scores and the next; infinite: there is no next. */
static double gap_of(double *scores, int64_t count, int64_t n)
{
    for (int64_t i = 0; i <= n && i < count; i++) {
        int64_t best = i;
        for (int64_t k = i + 1; k < count; k++)
            if (scores[k] > scores[best]) best = k;
        const double score = scores[best];
        scores[best] = scores[i];
        scores[i] = score;
    }
    return n < count && isfinite(scores[n]) ? scores[n - 1] - scores[n] : INFINITY;
}

/* The row where the nearest two scores decide, of lines of scores; `bias` [count] is added, if it is there. */
static int take_nearest(struct choosing *c, const struct m3_tensor *t, int64_t n, const double *bias)
{
    if (!t || n < 1) return M3_OK;
    const int64_t count = t->shape[t->rank - 1], lines = t->count / m3_max(1, count);
    double *scores = malloc((size_t)count * sizeof *scores + 1), least = INFINITY;
    int64_t nearest = -1;
    if (!scores) return m3_fail_memory(c->error, t->name, (size_t)count * sizeof *scores);
    for (int64_t i = 0; i < lines; i++) {
        for (int64_t k = 0; k < count; k++)
            scores[k] = m3_decode(t->dtype, t->data, i * count + k) + (bias ? bias[k] : 0);
        const double gap = gap_of(scores, count, n);
        if (!(gap < least)) continue;
        least = gap;
        nearest = i / (lines / t->shape[0]);
    }
    free(scores);
    choose(c, nearest);
    return M3_OK;
}

/* A row of each expert that has none yet. */
static int take_experts(struct choosing *c, int64_t layer)
{
    const struct m3_tensor *t = find(c, M3_TAP_EXPERTS, layer);
    const int64_t E = c->model->config.E;
    if (!t || !m3_holds_ids(t)) return M3_OK;
    const int64_t each = t->count / t->shape[0];
    unsigned char *seen = calloc((size_t)E + 1, 1);
    if (!seen) return m3_fail_memory(c->error, t->name, (size_t)E);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < t->count; i++) {
            const int64_t id = m3_id_at(t, i);
            if (id < 0 || id >= E || seen[id] || (pass == 0 && !c->to->chosen[i / each])) continue;
            if (pass == 1) choose(c, i / each);
            for (int64_t k = i / each * each; k < i / each * each + each && c->to->chosen[i / each]; k++)
                if (m3_id_at(t, k) >= 0 && m3_id_at(t, k) < E) seen[m3_id_at(t, k)] = 1;
        }
    free(seen);
    return M3_OK;
}

static int take_layer(struct choosing *c, int64_t layer)
{
    const struct m3_config *config = &c->model->config;
    const struct m3_weight *bias = layer < config->layers ? &c->model->layers[layer].router_bias : NULL;
    double *added = NULL;
    take_clamped(c, layer);
    if (bias && bias->data) {
        added = malloc((size_t)config->E * sizeof *added + 1);
        if (!added) return m3_fail_memory(c->error, "the router's bias", (size_t)config->E * sizeof *added);
        m3_expand_f64(added, bias, 0, 0, config->E);
    }
    int status = take_nearest(c, find(c, M3_TAP_ROUTER_SCORES, layer), config->K, added);
    if (!status) status = take_nearest(c, find(c, M3_TAP_INDEX_BLOCK_SCORES, layer), config->N, NULL);
    free(added);
    return status;
}

static void take_random(struct choosing *c)
{
    const uint64_t key = m3_draw_key(1, "rows that are judged");
    for (uint64_t i = 0; c->to->count < m3_min(c->most, c->to->of); i++)
        choose(c, (int64_t)m3_draw(key, i, (uint64_t)c->to->of));
}

static int make_room(struct m3_sample *sample, int64_t T, struct m3_error *error)
{
    *sample = (struct m3_sample){ .of = T, .chosen = calloc((size_t)T + 1, 1) };
    return sample->chosen ? M3_OK : m3_fail_memory(error, "rows", (size_t)T);
}

int m3_sample_count(int64_t *count, const struct m3_sample_wish *wish, int64_t of_long, int64_t T,
                    struct m3_error *error)
{
    enum { LONG = 1024 };
    struct m3_sample sample;
    struct choosing c = { .to = &sample, .most = T, .error = error };
    *count = wish->count > 0 ? wish->count : T > LONG ? of_long : 0;
    if (*count >= T) *count = 0;
    if (!wish->list) return M3_OK;
    int status = make_room(&sample, T, error);
    if (!status) status = take_list(&c, wish->list);
    *count = sample.count;
    m3_sample_free(&sample);
    return status;
}

int m3_sample_choose(struct m3_sample *sample, const struct m3_sample_wish *wish, const struct m3_safetensors *dump,
                     const struct m3_model *model, int64_t T, struct m3_error *error)
{
    struct choosing c = { .to = sample, .dump = dump, .model = model, .error = error };
    const int64_t layers = model->config.layers;
    int status = make_room(sample, T, error);
    if (status) return status;
    c.most = wish->list ? T : m3_min(T, wish->count);
    if (wish->list) return take_list(&c, wish->list);
    take_edges(&c);
    for (int64_t layer = 0; layer < layers && !status; layer++) status = take_layer(&c, layer);
    /* Half of the rest is random, which shows most experts already. */
    c.most = sample->count + (m3_min(T, wish->count) - sample->count) / 2;
    if (!status) take_random(&c);
    c.most = m3_min(T, wish->count);
    for (int64_t layer = 0; layer < layers && !status; layer++) status = take_experts(&c, layer);
    if (!status) take_random(&c);
    return status;
}

void m3_sample_free(struct m3_sample *sample)
{
    free(sample->chosen);
    *sample = (struct m3_sample){ 0 };
}
