#include <inttypes.h>
#include <stdio.h>

#include "base/minmax.h"
#include "oracle/explain/private/explaining.h"

static int given_matrix(struct m3_explaining *e, const char *name, const struct m3_weight *w)
{
    char tensor[200], from[256];
    m3_explain_weight_name(e, tensor, sizeof tensor, w);
    snprintf(from, sizeof from, "%s, %s", tensor, m3_dtype_name(w->dtype));
    return m3_given_matrix(e->steps, name, from, w);
}

/* Element h of down act(gate x, up x). */
static int gated(struct m3_explaining *e, const struct m3_weight *gate, const struct m3_weight *up,
                 const struct m3_weight *down, int64_t h)
{
    struct m3_steps *s = e->steps;
    char tensor[200], from[256];
    m3_explain_equation(e, "linear");
    m3_explain_weight_name(e, tensor, sizeof tensor, down);
    snprintf(from, sizeof from, "%s, row %" PRId64 ", %s", tensor, h, m3_dtype_name(down->dtype));
    const int x = m3_given_operand(e, "x", 0, 0, gate->cols);
    const int w1 = given_matrix(e, "w gate", gate), w3 = given_matrix(e, "w up", up);
    const int w2 = m3_given_row(s, "w down[h]", from, down, h);
    const int g = m3_step(s, M3_BY_MATRIX, M3_STEP_F32, "gate", "the dot of each row of w gate with x", w1, x);
    const int u = m3_step(s, M3_BY_MATRIX, M3_STEP_F32, "up", "the dot of each row of w up with x", w3, x);
    const int act = m3_explain_gate(e, g, u);
    m3_table_terms(e, act, w2, "act[k]", "w down[h,k]", down, h);
    return m3_step(s, M3_BY_DOT, M3_STEP_F32, "y", "sum over k of act[k] w down[h,k], k ascending from 0", act, w2);
}

int m3_explain_gated_mlp(struct m3_explaining *e)
{
    m3_explain_note(e, "The shared expert reads every token: it has weight 1, no gate and no factor.");
    return gated(e, m3_explain_weight(e, 0), m3_explain_weight(e, 1), m3_explain_weight(e, 2), e->channel);
}

int m3_explain_expert(struct m3_explaining *e)
{
    const int64_t H = e->config->H, k = e->channel / H;
    const struct m3_layer *w = &e->how->model->layers[m3_layer_index(e->config, e->layer)];
    const int32_t *ids = m3_kept_row(e, M3_TAP_EXPERTS, e->layer, e->row);
    if (!ids) return -1;
    const struct m3_expert *expert = &w->experts[ids[k]];
    m3_explain_equation(e, "experts");
    m3_explain_note(e, "Place %" PRId64 " of the token's list is expert %d; this is its output before its weight.", k,
                    ids[k]);
    return gated(e, &expert->w1, &expert->w3, &expert->w2, e->channel % H);
}

/* The places of the list by ascending expert. */
static void ascending(int64_t *places, const int32_t *ids, int64_t K)
{
    for (int64_t k = 0; k < K; k++) {
        int64_t at = k;
        for (; at > 0 && ids[places[at - 1]] > ids[k]; at--) places[at] = places[at - 1];
        places[at] = k;
    }
}

int m3_explain_routed(struct m3_explaining *e)
{
    const char *const heads[] = { "expert", "weight", "output", "product" };
    struct m3_steps *s = e->steps;
    const int64_t K = e->config->K, H = e->config->H;
    const int32_t *ids = m3_kept_row(e, M3_TAP_EXPERTS, e->layer, e->row);
    const float *each = m3_operand_floats(e, 0), *p = m3_operand_floats(e, 1);
    int64_t *places = m3_steps_scratch(s, K, sizeof *places);
    float *weights = m3_steps_scratch(s, K, sizeof *weights), *outputs = m3_steps_scratch(s, K, sizeof *outputs);
    int32_t *experts = m3_steps_scratch(s, K, sizeof *experts);
    if (!ids || !each || !p || !places || !weights || !outputs || !experts) return -1;
    ascending(places, ids, K);
    struct m3_explained_table *table = m3_table(e, 4, heads);
    for (int64_t i = 0; i < K; i++) {
        experts[i] = ids[places[i]];
        weights[i] = p[places[i]];
        outputs[i] = each[places[i] * H + e->channel];
        m3_cell_int(e, table, experts[i]);
        m3_cell_float(e, table, (double)weights[i]);
        m3_cell_float(e, table, (double)outputs[i]);
        m3_cell_float(e, table, (double)(weights[i] * outputs[i]));
    }
    if (table) snprintf(table->title, sizeof table->title, "the experts in the order of the sum, by ascending number");
    m3_explain_equation(e, "experts");
    m3_given_ints(s, "experts", "the chosen ones, ascending", experts, K);
    const int w = m3_given_floats(s, "p", "their weights", weights, K);
    const int y = m3_given_floats(s, "each", "this channel of their outputs", outputs, K);
    const int factor =
        m3_given_number(s, M3_STEP_F32, "factor", "routed_scaling_factor of config.json", e->config->routed_scaling);
    const int sum = m3_step(s, M3_BY_DOT, M3_STEP_F32, "sum", "sum of p each, ascending expert, from 0", w, y);
    return m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "routed", "sum factor: the factor comes last", sum, factor);
}
