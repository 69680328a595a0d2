#include "oracle/operators/identify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/operators/which.h"

/* Cases with more numbers than this are not tried: every mistake would compute them anew. */
static const int64_t most_elements = 1 << 22;

struct identifying {
    const struct m3_case_file *cases;
    const struct m3_safetensors *results;
    double *distance;           /* [mistakes + 1] the largest over the cases; the last: from the right results */
    unsigned char *are_of;      /* [mistakes] of this operator */
    unsigned char *applies;     /* [mistakes] */
    int64_t tried_cases;
    int threads;
    struct m3_error *error;
};

static int is_large(const struct m3_fragment *call)
{
    int64_t elements = call->drawn ? most_elements + 1 : 0;
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++) elements += call->operands[i].count;
    return elements > most_elements;
}

static void widen(double *most, double distance)
{
    if (!(distance <= *most)) *most = distance;
}

static int try_mistakes(struct identifying *all, const struct m3_fragment *call, const struct m3_results *given)
{
    const int count = m3_operator_mistakes();
    const struct m3_evaluation_how right = { .engine = m3_engine_f64(),
                                             .threads = all->threads,
                                             .linear = M3_LINEAR_ORDERED,
                                             .rows = given->rows,
                                             .count = given->count };
    struct m3_evaluation values;
    int status = m3_evaluate(&values, call, &right, all->error), applies;
    const double from_right = status ? 0 : m3_results_distance(given, &values);
    if (!status) widen(&all->distance[count], from_right);
    m3_evaluation_free(&values);
    for (int k = 0; !status && k < count; k++) {
        if (!all->are_of[k]) continue;
        status = m3_mistake_evaluate(&values, &applies, call, m3_operator_mistake_at(k), given->rows, given->count,
                                     all->error);
        if (!status && applies) {
            all->applies[k] = 1;
            widen(&all->distance[k], m3_results_distance(given, &values));
        } else if (!status) {
            widen(&all->distance[k], from_right);
        }
        m3_evaluation_free(&values);
    }
    all->tried_cases++;
    return status;
}

/* Sampled rows: results of all rows are cut to them. */
static int try_case(struct identifying *all, int64_t i)
{
    struct m3_operator_case one;
    struct m3_fragment *call = NULL;
    struct m3_results given = { 0 };
    int status = m3_case_file_at(&one, all->cases, i, all->error), complete = 1, given_any = 0;
    if (!status) status = m3_case_file_call(&call, all->cases, &one, all->error);
    for (int k = 0; !status && k < M3_OPERATOR_OUTPUTS && call->op->outputs[k].role != M3_ROLE_NONE; k++) {
        struct m3_tensor *t = &given.outputs[k];
        if (!m3_numbered_tensor(t, all->results, one.number, call->op->outputs[k].name)) continue;
        given_any = 1;
        complete &= t->rank > 0 && (!one.rows || t->shape[0] == one.row_count);
    }
    given.rows = one.rows, given.count = one.row_count;
    if (!status && complete && given_any && !is_large(call)) status = try_mistakes(all, call, &given);
    m3_fragment_free(call);
    m3_operator_case_free(&one);
    return status;
}

static void decide(struct m3_identified *found, const struct identifying *all)
{
    const int count = m3_operator_mistakes();
    int best = -1;
    found->right = all->distance[count];
    for (int k = 0; k < count; k++) {
        found->tried += all->applies[k];
        if (all->applies[k] && (best < 0 || all->distance[k] < all->distance[best])) best = k;
    }
    /* Far from both: nothing explains them. */
    if (best < 0 || !(all->distance[best] <= 0.3) || !(20 * all->distance[best] <= found->right)) return;
    found->distance = all->distance[best];
    for (int k = 0; k < count; k++) {
        if (k == best || !all->applies[k] || all->distance[k] > 4 * found->distance + 1e-12) continue;
        const size_t length = strlen(found->others);
        snprintf(found->others + length, sizeof found->others - length, "%s%s", length ? ", " : "",
                 m3_operator_mistake_at(k)->id);
    }
    found->mistake = m3_operator_mistake_at(best);
}

int m3_identify(struct m3_identified *found, const struct m3_case_file *cases, const struct m3_safetensors *results,
                int threads, struct m3_error *error)
{
    const size_t count = (size_t)m3_operator_mistakes() + 1;
    struct identifying all = { .cases = cases, .results = results, .threads = threads, .error = error };
    *found = (struct m3_identified){ 0 };
    all.distance = calloc(count, sizeof *all.distance);
    all.applies = calloc(count, 1);
    const int has_room = all.distance && all.applies;
    int status = has_room ? M3_OK : m3_fail_memory(error, "mistakes", count * sizeof *all.distance);
    if (!status) status = m3_mistakes_of(&all.are_of, cases->op, error);
    for (int64_t i = 0; !status && i < cases->count; i++) status = try_case(&all, i);
    if (!status && all.tried_cases > 0) decide(found, &all);
    free(all.distance);
    free(all.applies);
    free(all.are_of);
    return status;
}
