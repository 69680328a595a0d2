#include "decode/generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "decode/draft.h"

struct state {
    const struct m3_model *model;
    const struct m3_generation *how;
    struct m3_generated *result;
    struct m3_error *error;
    struct m3_request request;          /* of the main model's passes */
    struct m3_drafter *drafter;         /* NULL: not speculative */
    int32_t *ids;                       /* [room] known tokens, then drafts */
    int64_t *positions;                 /* [room] */
    unsigned char *seen;                /* [room] the mask of the case, then ones; NULL: it has none */
    int64_t room;
    int64_t n;                          /* known tokens; all but the last are in the cache */
    int64_t wanted;                     /* tokens still to generate; 0 after a stop id */
    double *logits;                     /* [drafts + 1, V] */
    double *p, *rest;                   /* [V] */
    double *q;                          /* [drafts + 1, V] the distributions of the drafts */
    int32_t *order;                     /* [V] */
    void *hidden, *embedded;            /* [widest pass, H] */
    double start;
};

static size_t row_bytes(const struct state *s) { return (size_t)s->model->config.H * s->how->engine->real_bytes; }

/* Makes room for `places` tokens and their positions, which continue from that of the prompt's last token. */
static int make_room(struct state *s, int64_t places)
{
    if (places <= s->room) return M3_OK;
    int64_t room = m3_max(places, 2 * s->room);
    int32_t *ids = realloc(s->ids, (size_t)room * sizeof *ids);
    if (ids) s->ids = ids;
    int64_t *positions = realloc(s->positions, (size_t)room * sizeof *positions);
    if (positions) s->positions = positions;
    unsigned char *seen = s->seen ? realloc(s->seen, (size_t)room) : NULL;
    int no_seen = s->seen && !seen;
    if (seen) s->seen = seen;
    if (!ids || !positions || no_seen) return m3_fail_memory(s->error, "the tokens", (size_t)room * sizeof *positions);
    for (int64_t t = m3_max(1, s->room); t < room; t++) s->positions[t] = s->positions[t - 1] + 1;
    if (seen) memset(s->seen + s->room, 1, (size_t)(room - s->room));
    s->request.seen = s->seen;
    s->room = room;
    return M3_OK;
}

static int prepare(struct state *s, const struct m3_case *c, int64_t drafts)
{
    const struct m3_config *config = &s->model->config;
    int64_t V = config->V, widest = m3_max(c->T, drafts + 1);
    size_t rows = (size_t)widest * row_bytes(s);
    s->logits = malloc((size_t)((drafts + 1) * V) * sizeof *s->logits);
    s->p = malloc((size_t)V * sizeof *s->p);
    s->rest = malloc((size_t)V * sizeof *s->rest);
    s->q = malloc((size_t)((drafts + 1) * V) * sizeof *s->q);
    s->order = malloc((size_t)V * sizeof *s->order);
    if (drafts) s->hidden = malloc(rows);
    if (drafts && m3_drafter_wants_rows(s->drafter)) s->embedded = malloc(rows);
    if (!s->logits || !s->p || !s->rest || !s->q || !s->order || (drafts && !s->hidden) ||
        (drafts && m3_drafter_wants_rows(s->drafter) && !s->embedded))
        return m3_fail_memory(s->error, "the tokens", rows);

    s->ids = malloc((size_t)c->T * sizeof *s->ids);
    s->positions = malloc((size_t)c->T * sizeof *s->positions);
    if (c->seen) s->seen = malloc((size_t)c->T);
    if (!s->ids || !s->positions || !s->seen != !c->seen)
        return m3_fail_memory(s->error, "the tokens", (size_t)c->T * sizeof *s->positions);
    if (c->seen) memcpy(s->seen, c->seen, (size_t)c->T);
    memcpy(s->ids, c->ids, (size_t)c->T * sizeof *s->ids);
    memcpy(s->positions, c->positions, (size_t)c->T * sizeof *s->positions);
    s->n = s->room = c->T;
    s->wanted = s->how->max_new;
    return make_room(s, c->T + 1);
}

static void release(struct state *s)
{
    void *all[] = { s->ids, s->positions, s->seen, s->logits, s->p, s->rest, s->q, s->order, s->hidden, s->embedded };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    m3_drafter_free(s->drafter);
    m3_cache_free(s->request.cache);
}

/* Runs the main model over the T tokens from `place` on, for the logits of the last `rows` of them. */
static int run_main(struct state *s, int64_t place, int64_t T, int64_t rows)
{
    s->request.ids = s->ids + place;
    s->request.positions = s->positions + place;
    s->request.T = T;
    s->request.logits = s->logits;
    s->request.logit_rows = rows;
    s->request.final_norm = s->hidden;
    s->request.embedded = s->embedded;
    int status = s->how->engine->forward(s->model, &s->request, s->error);
    for (int64_t i = 0; !status && i < rows; i++)
        if (!m3_logits_good(s->logits + i * s->model->config.V, s->model->config.V))
            status = m3_fail(s->error, M3_WRONG, "logits: token %" PRId64 ": got nan or inf, expected numbers",
                             place + T - rows + i);
    if (!status && s->drafter) status = m3_drafter_feed(s->drafter, place, T, s->hidden, s->embedded, s->error);
    return status;
}

/* Adds the next known token; it was drawn from `logits`. */
static void emit(struct state *s, int32_t id, const double *logits)
{
    int64_t V = s->model->config.V;
    const struct m3_token token = { s->result->tokens++, id, m3_logprob(logits, V, id), m3_margin(logits, V, id),
                                    m3_seconds() - s->start };
    s->ids[s->n++] = id;
    s->wanted--;
    for (int64_t i = 0; i < s->how->stops; i++)
        if (s->how->stop[i] == id) s->wanted = 0;
    if (s->how->token) s->how->token(s->how->self, &token);
}

/* Adds a token drawn from the main model's logits. */
static void emit_own(struct state *s, const double *logits)
{
    const struct m3_sampling *how = &s->how->sampling;
    int64_t V = s->model->config.V;
    m3_distribution(s->p, s->order, logits, V, how);
    emit(s, m3_pick(s->p, V, m3_uniform(how->seed, M3_DRAW_TOKEN, s->n)), logits);
}

/* Verifies the drafts after the n known tokens, in order, until one fails or none is left; then adds one more token.
 * Returns how many drafts were kept. */
static int64_t verify(struct state *s, int64_t drafts)
{
    int64_t V = s->model->config.V;
    for (int64_t i = 0; i < drafts; i++) {
        int32_t draft = s->ids[s->n];
        int kept;
        m3_distribution(s->p, s->order, s->logits + i * V, V, &s->how->sampling);
        int32_t id = m3_accept(&kept, draft, s->p, s->q + i * V, s->rest, V, s->how->sampling.seed, s->n);
        emit(s, id, s->logits + i * V);
        if (!kept) return i;
        if (s->wanted == 0) return i + 1;       /* a stop id */
    }
    emit_own(s, s->logits + drafts * V);
    return drafts;
}

/* Frees memory: a step has few hidden states, the prompt had many. */
static void shrink(struct state *s, int64_t drafts)
{
    void *hidden = s->hidden ? realloc(s->hidden, (size_t)(drafts + 1) * row_bytes(s)) : NULL;
    void *embedded = s->embedded ? realloc(s->embedded, (size_t)(drafts + 1) * row_bytes(s)) : NULL;
    if (hidden) s->hidden = hidden;
    if (embedded) s->embedded = embedded;
}

static int step(struct state *s, int64_t modules)
{
    int64_t drafts = m3_min(modules, s->wanted - 1), n = s->n;
    int status = make_room(s, n + drafts + 1);
    if (!status && drafts > 0)
        status =
            m3_drafter_draft(s->drafter, s->ids, n, drafts, s->positions, &s->how->sampling, s->q, s->order, s->error);
    if (!status) status = run_main(s, n - 1, drafts + 1, drafts + 1);
    if (status) return status;

    int64_t kept = verify(s, drafts);
    s->result->main_calls++;
    s->result->drafted += drafts;
    s->result->accepted += kept;
    s->result->steps[kept]++;
    m3_cache_set_length(s->request.cache, M3_CACHE_MAIN, s->n - 1);
    if (s->drafter) m3_drafter_keep(s->drafter, s->n);
    return M3_OK;
}

int m3_generate(struct m3_generated *result, const struct m3_model *model, const struct m3_case *c,
                const struct m3_generation *how, struct m3_error *error)
{
    if (!how->engine || !how->semantics || how->max_new < 1 || how->threads < 1)
        return m3_fail(error, M3_USAGE,
                       "generation: got %" PRId64 " new tokens, %d threads, %s, expected both from 1, an engine and "
                       "semantics",
                       how->max_new, how->threads, how->engine && how->semantics ? "all pointers" : "a NULL pointer");
    int64_t modules = how->speculative ? m3_min(model->mtp_modules, M3_MOST_DRAFTS) : 0;
    *result = (struct m3_generated){ 0 };
    if (how->speculative && modules == 0)
        return m3_fail(error, M3_USAGE, "%s: got no MTP modules, expected at least one to draft tokens",
                       m3_checkpoint_config_path(model->checkpoint));
    struct state s = { .model = model,
                       .how = how,
                       .result = result,
                       .error = error,
                       .start = m3_seconds(),
                       .request = { .end_layer = model->config.layers,
                                    .semantics = how->semantics,
                                    .linear = how->linear,
                                    .threads = how->threads,
                                    .replacement = how->replacement,
                                    .pictures = c->pictures.P > 0 ? &c->pictures : NULL,
                                    .progress = how->progress } };

    int status = m3_cache_new(&s.request.cache, model, how->engine->real_bytes, error);
    if (!status && modules) status = m3_drafter_new(&s.drafter, how->engine, model, modules, &s.request, error);
    if (!status) status = prepare(&s, c, modules);
    if (!status) status = run_main(&s, 0, c->T, 1);
    s.request.pictures = NULL;
    shrink(&s, modules);
    if (!status) emit_own(&s, s.logits);
    while (!status && s.wanted > 0) status = step(&s, modules);
    release(&s);
    return status;
}
