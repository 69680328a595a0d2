#include <inttypes.h>
#include <stdio.h>

#include "oracle/explain/private/explaining.h"

/* eps as the operators take it: rounded to float, then widened. */
static int given_eps(struct m3_explaining *e, double eps)
{
    return m3_given_number(e->steps, M3_STEP_F64, "eps", "config.json, rounded to float", (double)(float)eps);
}

int m3_explain_rms_norm(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const struct m3_weight *w = m3_explain_weight(e, 0);
    const int64_t n = w->cols, first = e->channel / n * n, i = e->channel - first;
    const int is_gemma = e->config->gemma_norm;
    char name[200];
    m3_explain_weight_name(e, name, sizeof name, w);
    m3_explain_equation(e, is_gemma ? "rms_norm" : "rms_norm_plain");
    if (n < e->kept[0].width)
        m3_explain_note(e,
                        "Each head of %" PRId64 " channels is normalised alone: this is channel %" PRId64
                        " of head %" PRId64 ".",
                        n, i, first / n);

    const int x = m3_given_operand(e, "x", 0, first, n), all = m3_given_row(s, "w", name, w, 0);
    const int at = m3_given_number(s, M3_STEP_INT, "i", "the channel", (double)i);
    const int x_i = m3_step(s, M3_BY_PICK, M3_STEP_F32, "x[i]", "its element i", x, at);
    const int w_i = m3_step(s, M3_BY_PICK, M3_STEP_F32, "w[i]", "its element i", all, at);
    const int one = m3_given_number(s, M3_STEP_F64, "1", "", 1);
    const int H = m3_given_number(s, M3_STEP_F64, "H", "the number of channels that are normalised", (double)n);
    const int eps = given_eps(e, e->config->eps);

    const int squares = m3_step(s, M3_BY_DOT, M3_STEP_F64, "squares", "sum of x[i] * x[i], in double, ascending", x, x);
    const int mean = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "mean square", "squares / H", squares, H);
    const int shifted = m3_step(s, M3_BY_ADD, M3_STEP_F64, "under the root", "mean square + eps", mean, eps);
    const int root = m3_step(s, M3_BY_SQRT, M3_STEP_F64, "root", "its square root", shifted, -1);
    const int inverse = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "1 / root", "still in double", one, root);
    const int factor = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "factor", "1 / root, rounded to float", inverse, -1);
    const int scaled = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "scaled", "x[i] * factor", x_i, factor);
    if (!is_gemma) return m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "y", "scaled * w[i]", scaled, w_i);
    m3_explain_note(e, "The stored weight is an offset from 1: the channel is multiplied by 1 + w[i] (SPEC 5.2).");
    const int weight = m3_step(s, M3_BY_ADD, M3_STEP_F32, "1 + w", "1 + w[i]", one, w_i);
    return m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "y", "scaled * (1 + w)", scaled, weight);
}

int m3_explain_layer_norm(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const struct m3_weight *w = m3_explain_weight(e, 0), *bias = m3_explain_weight(e, 1);
    char w_name[200], b_name[200];
    m3_explain_weight_name(e, w_name, sizeof w_name, w);
    m3_explain_weight_name(e, b_name, sizeof b_name, bias);
    m3_explain_equation(e, "layer_norm");

    const int x = m3_given_operand(e, "x", 0, 0, w->cols), all = m3_given_row(s, "w", w_name, w, 0);
    const int shift = m3_given_row(s, "b", b_name, bias, 0);
    const int at = m3_given_number(s, M3_STEP_INT, "i", "the channel", (double)e->channel);
    const int w_i = m3_step(s, M3_BY_PICK, M3_STEP_F32, "w[i]", "its element i", all, at);
    const int b_i = m3_step(s, M3_BY_PICK, M3_STEP_F32, "b[i]", "its element i", shift, at);
    const int one = m3_given_number(s, M3_STEP_F64, "1", "", 1);
    const int H = m3_given_number(s, M3_STEP_F64, "H", "the number of channels", (double)w->cols);
    const int eps = given_eps(e, e->config->vision.eps);

    const int sum = m3_step(s, M3_BY_SUM, M3_STEP_F64, "sum", "sum of x[i], in double, ascending", x, -1);
    const int mean = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "mean", "sum / H", sum, H);
    const int d = m3_step(s, M3_BY_SUBTRACT, M3_STEP_F64, "d", "x - mean, each channel, in double", x, mean);
    const int squares = m3_step(s, M3_BY_DOT, M3_STEP_F64, "squares", "sum of d[i] * d[i], in double, ascending", d, d);
    const int variance = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "variance", "squares / H", squares, H);
    const int shifted = m3_step(s, M3_BY_ADD, M3_STEP_F64, "under the root", "variance + eps", variance, eps);
    const int root = m3_step(s, M3_BY_SQRT, M3_STEP_F64, "root", "its square root", shifted, -1);
    const int factor = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "factor", "1 / root, in double", one, root);
    const int d_i = m3_step(s, M3_BY_PICK, M3_STEP_F64, "d[i]", "its element i", d, at);
    const int scaled = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F64, "scaled", "d[i] * factor, in double", d_i, factor);
    const int rounded = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "normalised", "scaled, rounded to float", scaled, -1);
    const int weighted = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "weighted", "normalised * w[i]", rounded, w_i);
    return m3_step(s, M3_BY_ADD, M3_STEP_F32, "y", "weighted + b[i]", weighted, b_i);
}
