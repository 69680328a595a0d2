/* answer_power MODEL CASE PROFILE [HONEST [ANSWER.json ..]]: what `m3ref check` says of the log-probabilities of the
 * TOP most likely tokens at each position of the case, if they come from
 *
 *     mistake   each known mistake that can show here, in the arithmetic of the profile
 *     honest    HONEST implementations of the profile, drawn with a seed that no check uses
 *     answer    the files: answers to the same case, from other programs
 *
 * A line for each: kind, name, verdict, worst quotient, what decided, effect (the most that the mistake alone, without
 * rounding, changes a log-probability), and z, share and name of the mistake of the filter. The honest implementations
 * run once for all. With 0 for HONEST only the files are judged. For scripts/answer_power.py. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/case.h"
#include "oracle/error/profile.h"
#include "oracle/cause/answer.h"
#include "oracle/variants/honest.h"
#include "oracle/variants/honest_rows.h"
#include "oracle/variants/mistakes.h"

enum { TOP = 20, SEED = 20261123 };

/* Everything is asked of every run: all ids at all positions. */
struct bench {
    struct m3_model *model;
    struct m3_profile *profile;
    struct m3_case the_case;
    struct m3_question all;
    struct m3_asked *asked;
    int32_t *ids;
    struct m3_told truth, *runs, *wrong; /* wrong: of each known mistake, without rounding; or empty */
    int64_t run_count;
    struct m3_error error;
};

static struct m3_request request_of(const struct bench *b)
{
    const struct m3_case *c = &b->the_case;
    return (struct m3_request){ .ids = c->ids,
                                .positions = c->positions,
                                .T = c->T,
                                .seen = c->seen,
                                .pictures = c->pictures.P ? &c->pictures : NULL,
                                .end_layer = b->model->config.layers,
                                .semantics = &b->model->config.semantics,
                                .linear = M3_LINEAR_BLAS,
                                .threads = 1 };
}

static void ask_all(struct bench *b)
{
    const int64_t V = b->model->config.V, count = b->the_case.T - 1;
    b->asked = calloc((size_t)count, sizeof *b->asked);
    b->ids = calloc((size_t)(count * V), sizeof *b->ids);
    for (int64_t i = 0; i < count * V; i++) b->ids[i] = (int32_t)(i % V);
    for (int64_t i = 0; i < count; i++)
        b->asked[i] =
            (struct m3_asked){ .row = i, .first = i * V, .count = V, .chosen = b->the_case.ids[i + 1], .listed = 1 };
    b->all = (struct m3_question){
        .asked = b->asked, .count = count, .ids = b->ids, .entries = count * V, .V = V, .scale = 1
    };
}

static int honest_run(struct bench *b, struct m3_told *told, struct m3_honest *honest, uint64_t seed, int64_t number)
{
    struct m3_request request = request_of(b);
    m3_honest_draw(honest, seed, number);
    m3_honest_request(honest, &request);
    int status = m3_told_new(told, &b->all, 0, &b->error);
    return status ? status
                  : m3_ask(told, &b->all, m3_engine_f32(), b->model, &request, (enum m3_softmax)(number % M3_SOFTMAXES),
                           &b->error);
}

/* The part of `all` that the question asks. */
static int part(struct m3_told *to, const struct m3_told *all, const struct m3_question *q, struct bench *b)
{
    const int64_t V = b->model->config.V;
    int status = m3_told_new(to, q, all->other != NULL, &b->error);
    for (int64_t i = 0; i < q->count && !status; i++) {
        const struct m3_asked *asked = &q->asked[i];
        const double *row = all->logprobs + asked->row * V;
        const double of_truth = row[b->truth.top[asked->row]];
        int64_t above = 0;
        double best = -INFINITY;
        to->top[i] = all->top[asked->row];
        for (int64_t e = asked->first; e < asked->first + asked->count; e++) {
            to->logprobs[e] = row[q->ids[e]];
            if (all->other) to->other[e] = all->other[asked->row * V + q->ids[e]];
            best = fmax(best, to->logprobs[e]);
        }
        for (int64_t v = 0; v < V; v++) above += row[v] > of_truth;
        to->rank[i] = above;
        for (int k = 0; k < M3_TOLD_LEADERS && all->leaders; k++) {
            to->leaders[i * M3_TOLD_LEADERS + k] = all->leaders[asked->row * M3_TOLD_LEADERS + k];
            to->gaps[i * M3_TOLD_LEADERS + k] = all->gaps[asked->row * M3_TOLD_LEADERS + k];
        }
        to->top_deficit[i] = asked->listed > 0 && asked->count > 1 ? row[to->top[i]] - best : 0;
    }
    return status;
}

/* The filters for the known mistakes, whose runs stand in `wrong`. */
static int move(struct bench *b, struct m3_server *r, const struct m3_weighing *w)
{
    struct m3_causes causes = m3_causes_begin();
    int status = M3_OK;
    for (int i = 0; i < m3_mistake_count() && !status; i++) {
        struct m3_told wrong = { 0 };
        const struct m3_cause cause = { .mistake = m3_mistake_at(i) };
        if (!b->wrong[i].logprobs || m3_cause_permitted(cause.mistake, r->is_fine)) continue;
        status = part(&wrong, &b->wrong[i], w->question, b);
        if (!status) status = m3_cause_try(&causes, &cause, w, &wrong, r->is_fine, &b->error);
        m3_told_free(&wrong);
    }
    if (!status) status = m3_causes_settle(r, &causes, w, &b->error);
    return status;
}

/* Prints the verdict on numbers that a program gave. */
static int judge(struct bench *b, const char *kind, const char *name, double effect, const struct m3_question *q,
                 const double *got)
{
    struct m3_weighing w = {
        .question = q, .got = got, .run_count = b->run_count, .resolution = m3_resolution_of(got, q->entries)
    };
    struct m3_server r = { .count = q->count, .stages = q->count, .z = NAN };
    r.is_fine = strcmp(m3_profile_name(b->profile), "fp32") == 0;
    r.places = calloc((size_t)q->count, sizeof *r.places);
    w.runs = calloc((size_t)b->run_count, sizeof *w.runs);
    for (int64_t i = 0; i < q->count; i++) r.places[i].verdict = M3_VERDICT_NOT_JUDGED;
    int status = part(&w.truth, &b->truth, q, b);
    for (int64_t i = 0; i < b->run_count && !status; i++) status = part(&w.runs[i], &b->runs[i], q, b);
    if (!status) status = m3_weigh(&r, &w, &b->error);
    if (!status && !r.is_fine) status = move(b, &r, &w);
    static const char *const verdicts[] = { "pass", "suspect", "fail", "not judged", "not comparable", "partial" };
    if (!status)
        printf("%s\t%s\t%s\t%.4g\t%s\t%.4g\t%.2f\t%.2f\t%s\n", kind, name, verdicts[r.verdict], r.quotient,
               r.by ? r.by : "", effect, r.z_toward, r.share, r.mistake ? r.mistake : "");
    fflush(stdout);
    for (int64_t i = 0; i < b->run_count; i++) m3_told_free(&w.runs[i]);
    m3_told_free(&w.truth);
    free(w.runs);
    m3_server_free(&r);
    return status;
}

static const double *sorted_by;
static int by_value(const void *a, const void *b)
{
    const double x = sorted_by[*(const int32_t *)a], y = sorted_by[*(const int32_t *)b];
    return (x < y) - (x > y);
}
static int by_id(const void *a, const void *b) { return *(const int32_t *)a - *(const int32_t *)b; }

/* The TOP most likely tokens of each position. */
static int judge_top(struct bench *b, const char *kind, const char *name, double effect, const struct m3_told *told)
{
    const int64_t V = b->model->config.V, top = V < TOP ? V : TOP, count = b->all.count;
    struct m3_asked *asked = calloc((size_t)count, sizeof *asked);
    int32_t *ids = calloc((size_t)(count * top), sizeof *ids), *order = calloc((size_t)V, sizeof *order);
    double *got = calloc((size_t)(count * top), sizeof *got);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t v = 0; v < V; v++) order[v] = (int32_t)v;
        sorted_by = told->logprobs + i * V;
        qsort(order, (size_t)V, sizeof *order, by_value);
        qsort(order, (size_t)top, sizeof *order, by_id);
        for (int64_t k = 0; k < top; k++) {
            ids[i * top + k] = order[k];
            got[i * top + k] = (double)(float)sorted_by[order[k]];
        }
        asked[i] =
            (struct m3_asked){ .row = i, .first = i * top, .count = top, .chosen = b->asked[i].chosen, .listed = top };
    }
    const struct m3_question q = {
        .asked = asked, .count = count, .ids = ids, .entries = count * top, .V = V, .scale = 1
    };
    const int status = judge(b, kind, name, effect, &q, got);
    free(asked);
    free(ids);
    free(order);
    free(got);
    return status;
}

/* A run with a mistake; profile NULL: without rounding. */
static int mistaken(struct bench *b, struct m3_told *told, const struct m3_mistake *mistake,
                    const struct m3_profile *profile, struct m3_error *error)
{
    struct m3_mistaken_run *run;
    int status = m3_mistake_install(&run, mistake, b->model, &b->model->config.semantics, &b->the_case, error);
    if (status) return status;
    if (profile) m3_mistake_store(run, profile);
    status = m3_told_new(told, &b->all, 0, error);
    if (!status)
        status = m3_ask(told, &b->all, m3_engine_f64(), m3_mistaken_model(run), m3_mistaken_request(run),
                        M3_SOFTMAX_F32_MAX, error);
    m3_mistake_remove(run);
    return status;
}

static int make_wrong(struct bench *b)
{
    b->wrong = calloc((size_t)m3_mistake_count(), sizeof *b->wrong);
    for (int i = 0; i < m3_mistake_count(); i++) {
        struct m3_error why = { 0 };
        if (!m3_mistake_missing(m3_mistake_at(i), b->model, &b->model->config.semantics, &b->the_case) &&
            mistaken(b, &b->wrong[i], m3_mistake_at(i), NULL, &why))
            m3_told_free(&b->wrong[i]);
        m3_error_free(&why);
    }
    return M3_OK;
}

static int judge_mistakes(struct bench *b)
{
    struct m3_told right = { 0 };
    int status = mistaken(b, &right, NULL, NULL, &b->error);
    for (int i = 0; i < m3_mistake_count() && !status; i++) {
        const struct m3_mistake *mistake = m3_mistake_at(i);
        struct m3_told exact = { 0 }, told = { 0 };
        struct m3_error why = { 0 };
        double effect = 0;
        if (m3_mistake_missing(mistake, b->model, &b->model->config.semantics, &b->the_case)) continue;
        int failed = mistaken(b, &exact, mistake, NULL, &why);
        for (int64_t e = 0; e < b->all.entries && !failed; e++)
            effect = fmax(effect, fabs(exact.logprobs[e] - right.logprobs[e]));
        if (!failed) failed = mistaken(b, &told, mistake, b->profile, &why);
        if (!failed) status = judge_top(b, "mistake", mistake->id, effect, &told);
        m3_told_free(&exact);
        m3_told_free(&told);
        m3_error_free(&why);
    }
    m3_told_free(&right);
    return status;
}

static int judge_answer(struct bench *b, const char *path)
{
    struct m3_answer a = { 0 };
    int status = m3_answer_read(&a, path, b->model->config.V, &b->error);
    if (!status) status = m3_answer_settle(&a, b->the_case.ids, b->the_case.T, "the case", &b->error);
    struct m3_asked *asked = calloc((size_t)a.count + 1, sizeof *asked);
    int64_t count = 0;
    for (int64_t i = 0; i < a.count; i++)
        if (!a.places[i].generated)
            asked[count++] = (struct m3_asked){ .row = a.places[i].place - 1,
                                                .first = a.places[i].first,
                                                .count = a.places[i].count,
                                                .chosen = a.places[i].chosen,
                                                .listed = a.places[i].listed * (a.places[i].count - 1) };
    const struct m3_question q = {
        .asked = asked, .count = count, .ids = a.ids, .entries = a.entries, .V = b->model->config.V, .scale = 1
    };
    if (!status) status = judge(b, "answer", path, 0, &q, a.logprobs);
    free(asked);
    m3_answer_free(&a);
    return status;
}

static int judge_honest(struct bench *b, int64_t count)
{
    struct m3_honest *honest;
    int status =
        m3_honest_new(&honest, b->model, &b->model->config.semantics, b->profile, NULL, b->the_case.T, &b->error);
    for (int64_t i = 0; i < count && !status; i++) {
        struct m3_told told = { 0 };
        char name[32];
        snprintf(name, sizeof name, "%lld", (long long)i);
        status = honest_run(b, &told, honest, SEED, i);
        if (!status) status = judge_top(b, "honest", name, 0, &told);
        m3_told_free(&told);
    }
    m3_honest_free(honest);
    return status;
}

static int make_runs(struct bench *b)
{
    struct m3_request request = request_of(b);
    struct m3_honest *honest = NULL;
    const int64_t needed = m3_honest_rows_needed(b->profile);
    b->run_count = needed > 32 ? needed : 32;
    b->runs = calloc((size_t)b->run_count, sizeof *b->runs);
    int status = m3_told_new(&b->truth, &b->all, 1, &b->error);
    if (!status) status = m3_ask(&b->truth, &b->all, m3_engine_f64(), b->model, &request, M3_SOFTMAX_F64, &b->error);
    if (!status)
        status =
            m3_honest_new(&honest, b->model, &b->model->config.semantics, b->profile, NULL, b->the_case.T, &b->error);
    for (int64_t i = 0; i < b->run_count && !status; i++) status = honest_run(b, &b->runs[i], honest, 1, i);
    m3_honest_free(honest);
    return status;
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };
    struct m3_error notes = { 0 };
    if (argc < 4) return M3_USAGE;
    int status = m3_model_open(&b.model, argv[1], &notes, &b.error);
    if (!status) status = m3_case_read(&b.the_case, argv[2], &b.model->config, &b.error);
    if (!status) status = m3_profile_open(&b.profile, argv[3], &b.error);
    if (!status) {
        ask_all(&b);
        status = make_runs(&b);
    }
    if (!status) status = make_wrong(&b);
    if (!status && (argc < 5 || atoi(argv[4]) > 0)) status = judge_mistakes(&b);
    if (!status && argc > 4) status = judge_honest(&b, atoi(argv[4]));
    for (int i = 5; i < argc && !status; i++) status = judge_answer(&b, argv[i]);
    if (status) fprintf(stderr, "%s\n", b.error.text ? b.error.text : "");
    for (int64_t i = 0; b.runs && i < b.run_count; i++) m3_told_free(&b.runs[i]);
    m3_told_free(&b.truth);
    free(b.runs);
    free(b.asked);
    free(b.ids);
    m3_case_free(&b.the_case);
    m3_model_close(b.model);
    m3_profile_close(b.profile);
    m3_error_free(&b.error);
    m3_error_free(&notes);
    return status;
}
