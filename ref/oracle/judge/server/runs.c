#include "oracle/judge/server/private/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

int m3_told_new(struct m3_told *told, const struct m3_question *q, int is_truth, struct m3_error *error)
{
    const size_t entries = (size_t)q->entries + 1, count = (size_t)q->count + 1, leaders = count * M3_TOLD_LEADERS;
    *told = (struct m3_told){ 0 };
    told->logprobs = calloc(entries, sizeof *told->logprobs);
    told->other = is_truth ? calloc(entries, sizeof *told->other) : NULL;
    told->leaders = is_truth ? malloc(leaders * sizeof *told->leaders) : NULL;
    told->gaps = is_truth ? calloc(leaders, sizeof *told->gaps) : NULL;
    told->top = calloc(count, sizeof *told->top);
    told->rank = calloc(count, sizeof *told->rank);
    told->deficit = calloc(count, sizeof *told->deficit);
    told->top_deficit = calloc(count, sizeof *told->top_deficit);
    told->surprise = calloc(count, sizeof *told->surprise);
    told->variance = calloc(count, sizeof *told->variance);
    if (told->logprobs && told->top && told->rank && told->deficit && told->top_deficit && told->surprise &&
        told->variance && (!is_truth || (told->other && told->leaders && told->gaps)))
        return M3_OK;
    return m3_fail_memory(error, "a run's log-probabilities", entries * sizeof *told->logprobs);
}

void m3_told_free(struct m3_told *told)
{
    free(told->logprobs);
    free(told->other);
    free(told->leaders);
    free(told->gaps);
    free(told->top);
    free(told->rank);
    free(told->deficit);
    free(told->top_deficit);
    free(told->surprise);
    free(told->variance);
    *told = (struct m3_told){ 0 };
}

/* ---- one row of logits */

struct asking {
    struct m3_told *told;
    struct m3_honest_margins *margins; /* NULL: nobody asks */
    const struct m3_question *q;
    size_t real;
    enum m3_softmax softmax;
    int failed;                         /* memory was short */
};

static double logit_at(const void *row, size_t real, int64_t i)
{
    return real == sizeof(double) ? ((const double *)row)[i] : (double)((const float *)row)[i];
}

/* ln softmax of a logit: `most` is the largest logit, `sum` the sum of exp(logit - most). */
static double logprob_of(double x, double most, double sum, enum m3_softmax softmax)
{
    switch (softmax) {
    case M3_SOFTMAX_F32_MAX: return (double)((float)(x - most) - (float)log(sum));
    case M3_SOFTMAX_F32_SUM: return (double)((float)x - (float)(most + log(sum)));
    default: return x - most - log(sum);
    }
}

static int by_logit(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The least logit that may be drawn: of the top_k largest, those that together have the probability top_p, the one
 * that reaches it included. sorted: room for [V]. Fills the moments of ln p of a drawn token. */
static double least_allowed(double *mean, double *variance, double *sorted, const double *logits, int64_t V,
                            const struct m3_server_sampling *s)
{
    double all = 0, kept = 0, square = 0;
    int64_t n = V, k = 0;
    memcpy(sorted, logits, (size_t)V * sizeof *sorted);
    if (s->top_k > 0 || s->top_p < 1) qsort(sorted, (size_t)V, sizeof *sorted, by_logit);
    if (s->top_k > 0) n = m3_min(V, s->top_k);
    double most = -INFINITY, least = INFINITY;
    for (int64_t i = 0; i < V; i++) most = sorted[i] > most ? sorted[i] : most;
    for (int64_t i = 0; i < n; i++) all += exp((sorted[i] - most) / s->temperature);
    while (k < n && (k == 0 || s->top_p >= 1 || kept < s->top_p * all))
        kept += exp((sorted[k++] - most) / s->temperature);
    *mean = 0;
    for (int64_t i = 0; i < k; i++) {
        const double logp = (sorted[i] - most) / s->temperature - log(kept), p = exp(logp);
        if (sorted[i] < least) least = sorted[i];
        if (!(p > 0)) continue;
        *mean += p * logp;
        square += p * logp * logp;
    }
    *variance = square - *mean * *mean;
    *mean += log(kept) + most / s->temperature;         /* for a chosen logit / temperature, without the rest */
    return least;
}

static void ask_token(struct asking *a, int64_t i, const double *logits, double most, double *sorted)
{
    const struct m3_question *q = a->q;
    const struct m3_asked *asked = &q->asked[i];
    const struct m3_server_sampling *s = &q->sampling;
    if (!q->judges_tokens || !asked->generated || asked->chosen < 0) return;
    const double own = logits[asked->chosen];
    double mean = 0;
    if (s->temperature == 0) {
        a->told->deficit[i] = most - own;
        return;
    }
    a->told->deficit[i] = least_allowed(&mean, &a->told->variance[i], sorted, logits, q->V, s) - own;
    a->told->surprise[i] = own / s->temperature - mean;
}

/* The most likely tokens, with how far they are below the first. */
static void find_leaders(struct m3_told *told, int64_t i, const double *logits, int64_t V)
{
    int32_t *ids = told->leaders + i * M3_TOLD_LEADERS;
    double *values = told->gaps + i * M3_TOLD_LEADERS;
    int count = 0;
    for (int64_t v = 0; v < V; v++) {
        int at = count < M3_TOLD_LEADERS ? count++ : M3_TOLD_LEADERS;
        if (at == M3_TOLD_LEADERS && !(logits[v] > values[--at])) continue;
        for (; at > 0 && logits[v] > values[at - 1]; at--) ids[at] = ids[at - 1], values[at] = values[at - 1];
        ids[at] = (int32_t)v;
        values[at] = logits[v];
    }
    for (int k = count; k < M3_TOLD_LEADERS; k++) ids[k] = -1;
    for (int k = count - 1; k >= 0; k--) values[k] = values[0] - values[k];
}

static int64_t rank_of(int32_t id, const double *logits, int64_t V)
{
    int64_t above = 0;
    for (int64_t v = 0; v < V; v++) above += logits[v] > logits[id];
    return above;
}

static void ask_row(struct asking *a, int64_t i, const void *row, double *logits, double *sorted)
{
    const struct m3_question *q = a->q;
    const struct m3_asked *asked = &q->asked[i];
    double most = -INFINITY, sum = 0, best = -INFINITY;
    for (int64_t v = 0; v < q->V; v++) {
        logits[v] = logit_at(row, a->real, v);
        if (logits[v] > most) most = logits[v], a->told->top[i] = (int32_t)v;
    }
    for (int64_t v = 0; v < q->V; v++) sum += exp((logits[v] - most) * q->scale);
    for (int64_t k = asked->first; k < asked->first + asked->count; k++) {
        a->told->logprobs[k] = logprob_of(logits[q->ids[k]] * q->scale, most * q->scale, sum, a->softmax);
        if (logits[q->ids[k]] > best) best = logits[q->ids[k]];
    }
    if (asked->listed > 0 && asked->count > 1) a->told->top_deficit[i] = most - best;
    if (q->best) a->told->rank[i] = rank_of(q->best[i], logits, q->V);
    if (a->told->leaders) find_leaders(a->told, i, logits, q->V);
    ask_token(a, i, logits, most, sorted);
    /* What this row says of the ids of another place, half the answer away. */
    const struct m3_asked *far = &q->asked[(i + q->count / 2) % q->count];
    for (int64_t k = far->first; a->told->other && k < far->first + far->count; k++)
        a->told->other[k] = logprob_of(logits[q->ids[k]] * q->scale, most * q->scale, sum, M3_SOFTMAX_F64);
}

/* ---- a pass */

static int wants(void *self, enum m3_tap tap, int64_t layer)
{
    const struct asking *a = self;
    return tap == M3_TAP_LOGITS || (a->margins && m3_honest_margins_wants(tap, layer));
}

/* The first place asked of rows from `row` on. */
static int64_t first_of(const struct m3_question *q, int64_t row)
{
    int64_t low = 0, high = q->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (q->asked[middle].row < row) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int keep(void *self, enum m3_tap tap, int64_t layer, const void *data, int64_t row, int64_t rows,
                struct m3_error *error)
{
    struct asking *a = self;
    const struct m3_question *q = a->q;
    const int64_t first = first_of(q, row), end = first_of(q, row + rows);
    if (tap != M3_TAP_LOGITS) return m3_honest_margins_take(a->margins, tap, layer, data, row, rows, error);
#pragma omp parallel if (end - first > 1 && q->V > 4096)
    {
        double *logits = malloc(2 * (size_t)q->V * sizeof *logits + 1);
        if (!logits) {
#pragma omp atomic write
            a->failed = 1;
        }
#pragma omp for
        for (int64_t i = first; i < end; i++)
            if (logits)
                ask_row(a, i, (const char *)data + (size_t)(q->asked[i].row - row) * (size_t)q->V * a->real, logits,
                        logits + q->V);
        free(logits);
    }
    return a->failed ? m3_fail_memory(error, "a row of logits", 2 * (size_t)q->V * sizeof(double)) : M3_OK;
}

static int ask(struct asking *a, const struct m3_engine *engine, const struct m3_model *model,
               struct m3_request *request, struct m3_error *error)
{
    const struct m3_sink sink = { .self = a, .wants = wants, .write = keep };
    request->sink = &sink;
    const int status = engine->forward(model, request, error);
    request->sink = NULL;
    return status;
}

int m3_ask(struct m3_told *told, const struct m3_question *q, const struct m3_engine *engine,
           const struct m3_model *model, struct m3_request *request, enum m3_softmax softmax, struct m3_error *error)
{
    struct asking a = { .told = told, .q = q, .real = engine->real_bytes, .softmax = softmax };
    return ask(&a, engine, model, request, error);
}

int m3_ask_honest(struct m3_told *told, struct m3_honest_margins *margins, const struct m3_question *q,
                  const struct m3_model *model, struct m3_request *request, enum m3_softmax softmax,
                  struct m3_error *error)
{
    const struct m3_engine *engine = m3_engine_f32();
    struct asking a = { .told = told, .margins = margins, .q = q, .real = engine->real_bytes, .softmax = softmax };
    return ask(&a, engine, model, request, error);
}
