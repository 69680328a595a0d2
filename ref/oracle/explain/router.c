#include <inttypes.h>
#include <stdio.h>

#include "base/minmax.h"
#include "oracle/explain/private/explaining.h"

static const float *row_of(struct m3_explaining *e, enum m3_tap tap) { return m3_kept_row(e, tap, e->layer, e->row); }

/* The bias of the choice, as the operator reads it. */
static int given_bias(struct m3_explaining *e)
{
    const struct m3_layer *w = &e->how->model->layers[m3_layer_index(e->config, e->layer)];
    char name[200];
    m3_explain_weight_name(e, name, sizeof name, &w->router_bias);
    return m3_given_row(e->steps, "bias", name, &w->router_bias, 0);
}

/* All experts, best first, as the operator ranks them when it chooses all of them. */
static int32_t *ranking(struct m3_explaining *e, const float *scores, const double *bias)
{
    const int64_t E = e->config->E;
    int32_t *ids = m3_steps_scratch(e->steps, E, sizeof *ids);
    float *p = m3_steps_scratch(e->steps, E, sizeof *p), *b = m3_steps_scratch(e->steps, E, sizeof *b);
    if (!ids || !p || !b) return NULL;
    for (int64_t i = 0; i < E; i++) b[i] = (float)bias[i];
    if (!m3_engine_f32()->plain->route(&e->ctx, ids, p, scores, b, 1, E, E)) return ids;
    m3_explain_failed(e, "route refuses the scores");
    return NULL;
}

static void show_ranking(struct m3_explaining *e, const int32_t *order, int scores, int biased)
{
    const char *const heads[] = { "rank", "expert", "logit", "score", "bias", "biased score", "weight" };
    const int64_t K = e->config->K, E = e->config->E;
    const float *logits = row_of(e, M3_TAP_ROUTER_LOGITS), *p = row_of(e, M3_TAP_EXPERT_WEIGHTS);
    if (!logits || !p || e->steps->status) return;
    const double *s = e->steps->list[scores].values, *b = e->steps->list[biased].values;
    struct m3_explained_table *table = m3_table(e, 7, heads);
    for (int64_t i = 0; table && i < E; i++) {
        const int32_t id = order[i];
        if (i >= K + M3_SHOWN_TERMS && id != e->channel) continue;
        m3_cell_int(e, table, i + 1);
        m3_cell_int(e, table, id);
        m3_cell_float(e, table, (double)logits[id]);
        m3_cell_float(e, table, s[id]);
        m3_cell_float(e, table, e->steps->list[e->steps->list[biased].of[1]].values[id]);
        m3_cell_float(e, table, b[id]);
        if (i < K) m3_cell_float(e, table, (double)p[i]);
        else m3_cell_text(e, table, "not chosen");
    }
    if (table)
        snprintf(table->title, sizeof table->title, "the ranking by biased score: the first %" PRId64 " are chosen", K);
    if (K < E)
        m3_explain_note(
            e,
            "The margin is %.9g: the biased score of expert %d (the last chosen) exceeds that of expert %d (the "
            "first not chosen) by this much.",
            b[order[K - 1]] - b[order[K]], order[K - 1], order[K]);
}

static void answer(struct m3_explaining *e, const int32_t *order, int biased)
{
    const int64_t K = e->config->K;
    int64_t rank = 0;
    if (e->channel < 0 || e->steps->status) return;
    const double *b = e->steps->list[biased].values;
    while (order[rank] != e->channel) rank++;
    if (rank < K)
        m3_explain_note(e, "Expert %" PRId64 " is chosen: its biased score %.9g is number %" PRId64 ".", e->channel,
                        b[e->channel], rank + 1);
    else
        m3_explain_note(e,
                        "Expert %" PRId64 " is not chosen: its biased score %.9g is number %" PRId64 ", %.9g less than"
                        " that of expert %d, the last chosen.",
                        e->channel, b[e->channel], rank + 1, b[order[K - 1]] - b[e->channel], order[K - 1]);
}

int m3_explain_select_experts(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const int64_t E = e->config->E, K = e->config->K;
    m3_explain_equation(e, "route");
    const int scores = m3_given_operand(e, "s", 0, 0, E), bias = given_bias(e);
    const int biased = m3_step(s, M3_BY_ADD, M3_STEP_F32, "s + bias", "for each expert", scores, bias);
    const int count = m3_given_number(s, M3_STEP_INT, "K", "experts of a token", (double)K);
    const float *x = m3_operand_floats(e, 0);
    if (s->status || !x) return -1;
    const int32_t *order = ranking(e, x, s->list[bias].values);
    if (!order) return -1;
    m3_explain_note(e, "The bias decides which experts are chosen; their weights are made of the scores without it.");
    show_ranking(e, order, scores, biased);
    answer(e, order, biased);
    return m3_step_choice(s, M3_BY_BEST_EXPERTS, "ids", "the K largest of s + bias, largest first",
                          (const int[]){ biased, count, -1 }, order, K);
}

int m3_explain_route(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const int64_t K = e->config->K;
    m3_explain_equation(e, "route");
    const int all = m3_given_operand(e, "s", 0, 0, e->config->E);
    const int32_t *chosen = m3_kept_row(e, M3_TAP_EXPERTS, e->layer, e->row);
    const int ids = m3_given_ints(s, "ids", "the chosen experts, by biased score", chosen, K);
    const int scores = m3_step(s, M3_BY_PICK, M3_STEP_F32, "s[ids]", "their scores, without the bias", all, ids);
    const int sum = m3_step(s, M3_BY_SUM, M3_STEP_F32, "sum", "sum of s[ids], in this order", scores, -1);
    const int k = m3_given_number(s, M3_STEP_INT, "k", "the place in the list", (double)e->channel);
    const int own = m3_step(s, M3_BY_PICK, M3_STEP_F32, "s[ids[k]]", "its element k", scores, k);
    if (s->status) return -1;
    m3_explain_note(e,
                    "Place %" PRId64 " of the list is expert %d. The bias is not part of the weight; "
                    "routed_scaling_factor comes later, in moe.routed.",
                    e->channel, chosen[e->channel]);
    return m3_step(s, M3_BY_DIVIDE, M3_STEP_F32, "p[k]", "s[ids[k]] / sum", own, sum);
}
