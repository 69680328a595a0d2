#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/explain/private/explaining.h"

/* What the matrix reads: for a module [norm of the embedding ; norm of the hidden state], or, if the join is additive,
 * [zeros ; hidden state]. */
static int input(struct m3_explaining *e)
{
    const int64_t n = m3_explain_weight(e, 0)->cols, H = e->config->H;
    if (e->tap != M3_TAP_MTP_EH_PROJ) return m3_given_operand(e, "x", 0, 0, n);
    const int is_sum = e->node->adds_input;
    const float *first = is_sum ? NULL : m3_operand_floats(e, 0), *second = m3_operand_floats(e, 1);
    float *joined = m3_steps_scratch(e->steps, n, sizeof *joined);
    if (!joined || !second) return -1;
    memset(joined, 0, (size_t)n * sizeof *joined);
    if (first) memcpy(joined, first, (size_t)H * sizeof *joined);
    memcpy(joined + H, second, (size_t)H * sizeof *joined);
    return m3_given_floats(e->steps, "x", is_sum ? "zeros, then the hidden state" : "embed_norm, then hidden_norm",
                           joined, n);
}

static void say_stored(struct m3_explaining *e, const struct m3_weight *w)
{
    static const char *const forms[] = {
        [M3_SCALE_128X128] = "a scale for each 128 x 128 block",
        [M3_SCALE_MX32] = "a power of two for each 32 columns",
        [M3_SCALE_NVFP4] = "a scale for each 16 columns and one for the tensor",
        [M3_SCALE_MXFP4] = "a power of two for each 32 columns",
        [M3_SCALE_INT4] = "a scale and a zero point for each group of columns",
        [M3_SCALE_INT4_PAIRS] = "a scale for each group of columns",
    };
    if (w->scaling == M3_UNSCALED) return;
    m3_explain_note(e, "The weights are stored as %s with %s: w = (number of the code - zero point) scale (SPEC 3.3).",
                    m3_dtype_name(w->dtype), forms[w->scaling]);
}

/* The most likely next tokens of the row. */
static void show_next(struct m3_explaining *e)
{
    const char *const heads[] = { "token", "logit", "probability" };
    const int64_t V = e->config->V;
    const float *logits = m3_kept_row(e, e->tap, e->layer, e->row);
    double *all = m3_steps_scratch(e->steps, V, sizeof *all), sum = 0;
    for (int64_t v = 0; all && v < V; v++) all[v] = (double)logits[v];
    int64_t found;
    const int64_t *places = m3_largest(e, &found, all, V, M3_SHOWN_TERMS);
    if (!all || !places) return;
    for (int64_t v = 0; v < V; v++) sum += exp(all[v] - all[places[0]]);
    struct m3_explained_table *table = m3_table(e, 3, heads);
    for (int64_t i = 0; table && i < found; i++) {
        m3_cell_int(e, table, places[i]);
        m3_cell_float(e, table, all[places[i]]);
        m3_cell_text(e, table, "%.2f%%", 100 * exp(all[places[i]] - all[places[0]]) / sum);
    }
    if (table) snprintf(table->title, sizeof table->title, "the most likely next tokens after this row");
}

int m3_explain_linear(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const struct m3_weight *w = m3_explain_weight(e, 0), *bias = m3_explain_weight(e, 1);
    char name[200], from[256];
    m3_explain_weight_name(e, name, sizeof name, w);
    snprintf(from, sizeof from, "%s, row %" PRId64 ", %s", name, e->channel, m3_dtype_name(w->dtype));
    m3_explain_equation(e, "linear");
    const int x = input(e), w_n = m3_given_row(s, "w[n]", from, w, e->channel);
    m3_table_terms(e, x, w_n, "x[k]", "w[n,k]", w, e->channel);
    say_stored(e, w);
    int y = m3_step(s, M3_BY_DOT, M3_STEP_F32, "sum", "sum over k of x[k] w[n,k], k ascending from 0", x, w_n);
    if (bias) {
        m3_explain_weight_name(e, name, sizeof name, bias);
        const int b = m3_given_row(s, "bias", name, bias, 0);
        const int n = m3_given_number(s, M3_STEP_INT, "n", "the row of w", (double)e->channel);
        const int b_n = m3_step(s, M3_BY_PICK, M3_STEP_F32, "bias[n]", "its element n", b, n);
        y = m3_step(s, M3_BY_ADD, M3_STEP_F32, "y", "sum + bias[n]", y, b_n);
    }
    if (e->node->adds_input) {
        m3_explain_equation(e, "add");
        const int embedding = m3_given_operand(e, "embedding", 0, e->channel, 1);
        y = m3_step(s, M3_BY_ADD, M3_STEP_F32, "y", "embedding + sum", embedding, y);
    }
    if (e->tap == M3_TAP_LOGITS) show_next(e);
    if (e->tap == M3_TAP_MTP_LOGITS) m3_explain_draft(e);
    return y;
}
