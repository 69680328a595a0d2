/* Computes the companions of a tap from the taps before it. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "oracle/error/intermediates.h"
#include "oracle/judge/choices/margin.h"
#include "oracle/judge/companions/private/companions_write.h"

static int append(struct m3_companions_writer *c, const struct m3_watched *w, enum m3_companion_field field,
                  const double *values, int64_t n, struct m3_error *error)
{
    return m3_writer_append(c->file, w->index[field], values, (uint64_t)n * sizeof *values, error);
}

/* Combines a bound and a spread into one bound and one walk, the whole allowance. */
static void whole_allowance(struct m3_recomputed *made, double u)
{
    const double steps = (double)(made->n + made->f);
    for (int64_t i = 0; i < made->y.rows * made->y.width; i++) {
        made->bound[i] = (m3_bound_allowed(made->bound[i], steps, u) + made->y.off.error[i]) / u;
        made->walk[i] = sqrt(made->walk[i] * made->walk[i] + 3 * made->y.off.variance[i] / (u * u));
    }
    made->n = 0, made->f = 1;
}

static int write_bounds(struct m3_companions_writer *c, const struct m3_watched *w, int64_t row, int64_t rows,
                        struct m3_error *error)
{
    struct m3_recomputed made;
    char name[96] = "";
    m3_tap_name(name, sizeof name, w->tap, w->layer);
    int status = m3_trace_recompute_rows(&made, c->trace, w->tap, w->layer, row, row + rows, error);
    if (!status && made.y.off.error) whole_allowance(&made, m3_setting_arithmetic(&c->setting, 1).u);
    if (!status && (made.missing[0] || made.y.rows != rows || made.n != w->n || made.f != w->f))
        status =
            m3_fail(error, M3_INTERNAL,
                    "%s: bounds of %" PRId64 " rows with %" PRId64 " + %" PRId64 " steps, expected %" PRId64
                    " with %" PRId64 " + %" PRId64 "; missing: %s",
                    name, made.y.rows, made.n, made.f, rows, w->n, w->f, made.missing[0] ? made.missing : "nothing");
    if (!status) status = append(c, w, M3_COMPANION_BOUND, made.bound, rows * made.y.width, error);
    if (!status) status = append(c, w, M3_COMPANION_WALK, made.walk, rows * made.y.width, error);
    m3_recomputed_free(&made);
    return status;
}

/* Input i of the call that makes the tap; NULL: there is none. */
static const struct m3_tap_values *input_of(const struct m3_companions_writer *c, const struct m3_watched *w, int i)
{
    const struct m3_node *node = m3_graph_node(c->setting.model, c->setting.semantics, w->tap, w->layer);
    const struct m3_node *input = m3_call_input(node, i);
    return input ? m3_trace_get(c->trace, input->tap, input->layer) : NULL;
}

/* Writes the gains of a probed tap, from its input, selections and weights. */
static int write_probed(struct m3_companions_writer *c, const struct m3_watched *w, int64_t T, struct m3_error *error)
{
    const struct m3_tap_values *x = input_of(c, w, 0), *ids = input_of(c, w, 1), *p = input_of(c, w, 2);
    const int64_t n = T * m3_tap_width(&c->setting, w->tap, w->layer);
    double *gain = malloc((size_t)n * sizeof *gain + 1);
    double *ones = malloc((size_t)(T * c->setting.model->config.K) * sizeof *ones + 1);
    int status = gain && ones ? M3_OK : m3_fail_memory(error, "gain", (size_t)n * sizeof *gain);
    for (int64_t i = 0; !status && i < T * c->setting.model->config.K; i++) ones[i] = 1;
    if (!status)
        status = m3_gain_probed(gain, &c->setting, w->tap, w->layer, x->values, ids ? ids->ids : NULL,
                                p ? p->values : ones, T, error);
    if (!status) status = append(c, w, M3_COMPANION_GAIN, gain, n, error);
    free(gain);
    free(ones);
    return status;
}

/* The same taps, except the sum of experts. */
static int write_intermediates(struct m3_companions_writer *c, const struct m3_watched *w, int64_t T,
                               struct m3_error *error)
{
    const struct m3_tap_values *x = input_of(c, w, 0), *ids = input_of(c, w, 1);
    const int64_t n = T * m3_tap_width(&c->setting, w->tap, w->layer);
    double *values = malloc((size_t)(2 * n) * sizeof *values + 1);
    int status = values ? m3_intermediates(values, values + n, &c->setting, w->tap, w->layer, x->values,
                                           ids ? ids->ids : NULL, T, error)
                        : m3_fail_memory(error, "intermediates", (size_t)(2 * n) * sizeof *values);
    if (!status) status = append(c, w, M3_COMPANION_INTERMEDIATES, values, n, error);
    if (!status) status = append(c, w, M3_COMPANION_INTERMEDIATES_WALK, values + n, n, error);
    free(values);
    return status;
}

static int write_rows_gain(struct m3_companions_writer *c, const struct m3_watched *w, struct m3_error *error)
{
    const int64_t n = m3_tap_width(&c->setting, w->tap, w->layer);
    double *gain = malloc((size_t)n * sizeof *gain + 1);
    int status = gain ? m3_gain_rows(gain, &c->setting, w->tap, w->layer, error)
                      : m3_fail_memory(error, "gain", (size_t)n * sizeof *gain);
    if (!status) status = append(c, w, M3_COMPANION_GAIN, gain, n, error);
    free(gain);
    return status;
}

static int write_vector(struct m3_companions_writer *c, const struct m3_watched *w, enum m3_companion_field field,
                        int i, struct m3_error *error)
{
    const struct m3_weight *v = m3_graph_weight(c->setting.model, c->setting.semantics, w->tap, w->layer, i);
    double *values = malloc((size_t)v->cols * sizeof *values + 1);
    if (!values) return m3_fail_memory(error, m3_companion_names[field], (size_t)v->cols * sizeof *values);
    m3_expand_f64(values, v, 0, 0, v->cols);
    int status = append(c, w, field, values, v->cols, error);
    free(values);
    return status;
}

/* Written as in a dump. */
static int write_experts_bias(struct m3_companions_writer *c, const struct m3_watched *w, struct m3_error *error)
{
    const struct m3_weight *bias = m3_graph_weight(c->setting.model, c->setting.semantics, w->tap, w->layer, 0);
    const size_t bytes = (size_t)bias->cols * sizeof(float);
    float *values = malloc(bytes + 1);
    if (!values) return m3_fail_memory(error, m3_companion_names[M3_COMPANION_BIAS], bytes);
    m3_expand_f32(values, bias, 0, 0, bias->cols);
    int status = m3_writer_append(c->file, w->index[M3_COMPANION_BIAS], values, bytes, error);
    free(values);
    return status;
}

static int write_margins(struct m3_companions_writer *c, const struct m3_watched *w, const int32_t *ids, int64_t rows,
                         struct m3_error *error)
{
    const enum m3_tap of = w->tap == M3_TAP_EXPERTS ? M3_TAP_ROUTER_SCORES : M3_TAP_INDEX_BLOCK_SCORES;
    const struct m3_tap_values *scores = m3_trace_get(c->trace, of, w->layer);
    const struct m3_config *config = &c->setting.model->config;
    const int64_t decisions = rows * (w->tap == M3_TAP_EXPERTS ? 1 : config->G);
    const struct m3_weight *bias = m3_graph_weight(c->setting.model, c->setting.semantics, w->tap, w->layer, 0);
    double *margins = malloc((size_t)decisions * sizeof *margins + 1);
    int status = margins ? M3_OK : m3_fail_memory(error, "margin", (size_t)decisions * sizeof *margins);
    if (!status && bias) status = m3_margins_of_experts(margins, scores->values, ids, bias, rows, config->K);
    else if (!status)
        status = m3_margins_of_blocks(margins, scores->values, ids, config, c->setting.semantics, rows, c->the_case->p0,
                                      scores->width / config->G);
    if (status && margins) m3_fail_memory(error, "margins", 0);
    if (!status) status = append(c, w, M3_COMPANION_MARGIN, margins, decisions, error);
    free(margins);
    return status;
}

int m3_companions_write_rows(struct m3_companions_writer *c, const struct m3_watched *w, const int32_t *ids,
                             int64_t row, int64_t rows, struct m3_error *error)
{
    int status = M3_OK;
    if (w->index[M3_COMPANION_BOUND] >= 0) status = write_bounds(c, w, row, rows, error);
    if (!status && w->index[M3_COMPANION_MARGIN] >= 0) status = write_margins(c, w, ids, rows, error);
    if (status || row > 0) return status;
    if (w->gain == M3_GAIN_ROWS && w->index[M3_COMPANION_GAIN] >= 0) status = write_rows_gain(c, w, error);
    if (!status && w->gain == M3_GAIN_PROBED && w->index[M3_COMPANION_GAIN] >= 0)
        status = write_probed(c, w, rows, error);
    if (!status && w->index[M3_COMPANION_INTERMEDIATES] >= 0) status = write_intermediates(c, w, rows, error);
    if (!status && w->index[M3_COMPANION_WEIGHT] >= 0) status = write_vector(c, w, M3_COMPANION_WEIGHT, 0, error);
    if (w->index[M3_COMPANION_BIAS] < 0 || status) return status;
    return w->tap == M3_TAP_EXPERTS ? write_experts_bias(c, w, error) : write_vector(c, w, M3_COMPANION_BIAS, 1, error);
}
