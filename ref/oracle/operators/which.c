#include "oracle/operators/which.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/align.h"
#include "oracle/operators/derivative.h"
#include "oracle/operators/own_graph.h"
#include "oracle/variants/mistakes_backward.h"

int m3_operator_mistakes(void) { return m3_mistake_count() + m3_backward_mistakes(); }

const struct m3_mistake *m3_operator_mistake_at(int i)
{
    return i < m3_mistake_count() ? m3_mistake_at(i) : m3_backward_mistake_at(i - m3_mistake_count());
}

/* ---- which taps a call computes */

static int is_first(const struct m3_mistake *mistake, enum m3_tap tap, int64_t layer)
{
    char name[96];
    return m3_tap_name(name, sizeof name, tap, layer) == 0 && m3_tap_matches(mistake->first, name);
}

/* An output, or a tap between the operands and an output. The patterns of mistakes name layers: any number will do. */
static int shows_in(const struct m3_mistake *mistake, const struct m3_operator_row *op, const struct m3_node *node)
{
    const int64_t layers[] = { -1, 0, 1, 2, 3, 4, 5, M3_MTP_LAYER, M3_MTP_LAYER + 1 };
    if (!node || m3_operator_reads(op, node->tap)) return 0;
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        if (is_first(mistake, node->tap, layers[i])) return 1;
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i]->layer == node->layer && shows_in(mistake, op, node->inputs[i])) return 1;
    return 0;
}

static int is_of(const struct m3_mistake *mistake, const struct m3_operator_row *op, const struct m3_graph *own)
{
    if (op->derivative) return m3_backward_mistake_is_of(mistake, op->derivative);
    for (int i = 0; i < M3_OPERATOR_OUTPUTS && op->outputs[i].role != M3_ROLE_NONE; i++) {
        const enum m3_tap tap = op->outputs[i].tap;
        if (op->outputs[i].role != M3_ROLE_TAP) continue;
        if (shows_in(mistake, op, m3_graph_find(own, tap, m3_operator_layer(op, tap)))) return 1;
    }
    return 0;
}

int m3_mistakes_of(unsigned char **are_of, const struct m3_operator_row *op, struct m3_error *error)
{
    const int count = m3_operator_mistakes();
    struct m3_graph own;
    *are_of = malloc((size_t)count + 1);
    int status = *are_of ? M3_OK : m3_fail_memory(error, "mistakes", (size_t)count);
    if (!status) status = m3_operator_graph(&own, op, M3_MTP_CONCAT, error);
    for (int k = 0; k < count && !status; k++) (*are_of)[k] = is_of(m3_operator_mistake_at(k), op, &own) != 0;
    if (*are_of) m3_graph_free(&own);
    return status;
}

/* Results are rounded to float, as those of other mistakes are. */
static void round_outputs(struct m3_derivative_call *call, const struct m3_fragment *f)
{
    for (int i = 0; i < m3_operator_outputs(f->op); i++) {
        double *x = call->outputs[i];
        for (int64_t k = 0; k < call->counts[i]; k++) x[k] = (double)(float)x[k];
    }
}

static int evaluate_backward(struct m3_evaluation *result, int *applies, const struct m3_fragment *f,
                             const struct m3_mistake *mistake, struct m3_error *error)
{
    struct m3_derivative_call call;
    struct m3_error why = { 0 };
    *result = (struct m3_evaluation){ 0 };
    int status = m3_derivative_call_make(&call, f, m3_engine_f64(), 1, error);
    const int failed = status ? status : m3_backward_mistake_run(mistake, &call.request, &why);
    *applies = !failed;
    if (!status && failed == M3_INTERNAL) status = m3_fail_memory(error, mistake->id, 0);
    if (!failed) round_outputs(&call, f);
    if (!failed) m3_derivative_give(result, &call, f, m3_engine_f64());
    m3_derivative_call_free(&call);
    m3_error_free(&why);
    return status;
}

int m3_mistake_evaluate(struct m3_evaluation *result, int *applies, const struct m3_fragment *f,
                        const struct m3_mistake *mistake, const int64_t *rows, int64_t count, struct m3_error *error)
{
    if (f->op->derivative) return evaluate_backward(result, applies, f, mistake, error);
    struct m3_mistaken_run *run;
    struct m3_error why = { 0 };
    *result = (struct m3_evaluation){ 0 };
    *applies = 0;
    int status = m3_mistake_install(&run, mistake, &f->model, &f->semantics, &f->the_case, &why);
    if (!status) {
        const struct m3_request *request = m3_mistaken_request(run);
        const struct m3_evaluation_how how = { .engine = m3_engine_f64(),
                                               .threads = 1,
                                               .linear = M3_LINEAR_ORDERED,
                                               .replacement = request->replacement,
                                               .force = request->force,
                                               .model = m3_mistaken_model(run),
                                               .semantics = request->semantics,
                                               .rows = rows,
                                               .count = count };
        status = m3_evaluate(result, f, &how, &why);
        m3_mistake_remove(run);
    }
    *applies = !status;
    m3_error_free(&why);
    return status == M3_INTERNAL ? m3_fail_memory(error, mistake->id, 0) : M3_OK;
}

/* ---- distances */

static double real_distance(const struct m3_tensor *a, const struct m3_tensor *b, double least)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const double x = m3_decode(a->dtype, a->data, i), y = m3_decode(b->dtype, b->data, i);
        if (x == y) continue;
        if (!isfinite(x) || !isfinite(y)) return INFINITY;
        difference += (x - y) * (x - y);
    }
    for (int64_t i = 0; i < b->count; i++) {
        const double y = m3_decode(b->dtype, b->data, i);
        if (isfinite(y)) size += y * y;
    }
    size = fmax(size, least * least * (double)b->count);
    return difference == 0 ? 0 : size == 0 ? INFINITY : sqrt(difference / size);
}

static double id_distance(const struct m3_tensor *a, const struct m3_tensor *b)
{
    int64_t different = 0;
    for (int64_t i = 0; i < b->count; i++) different += m3_id_at(a, i) != m3_id_at(b, i);
    return b->count > 0 ? (double)different / (double)b->count : 0;
}

double m3_results_distance(const struct m3_results *a, const struct m3_evaluation *b)
{
    double most = 0;
    for (int i = 0; i < M3_OPERATOR_OUTPUTS; i++) {
        const struct m3_tensor *x = &a->outputs[i], *y = &b->outputs[i];
        if (x->rank == 0 || y->rank == 0) continue;
        if (x->count != y->count) return INFINITY;
        const double d =
            y->dtype == M3_I32 ? (m3_holds_ids(x) ? id_distance(x, y) : INFINITY) : real_distance(x, y, b->least);
        if (!(d <= most)) most = d;
    }
    return most;
}
