#include "oracle/judge/server/server.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/cause/answer.h"
#include "oracle/judge/server/private/judge.h"
#include "oracle/variants/honest.h"
#include "oracle/variants/honest_rows.h"
#include "oracle/variants/mistakes.h"

/* More log-probabilities of one position tell nothing new: the largest are kept. */
enum { MOST_ENTRIES = 1024, LEAST_RUNS = 32 };

/* Everything that one check holds. */
struct checking {
    const struct m3_server_plan *plan;
    const struct m3_answer *answer;
    struct m3_asked *asked;
    int32_t *ids;
    double *got, *others;
    struct m3_question question;
    struct m3_weighing weighing;
};

/* ---- the case */

int m3_server_case(struct m3_case *c, const struct m3_answer *answer, const struct m3_config *config,
                   struct m3_error *error)
{
    const int64_t more = answer->generated_count > 0 ? answer->generated_count - 1 : 0, T = c->T + more;
    const int64_t next = m3_case_reach(c) + 1;
    if (more == 0) return M3_OK;
    for (int64_t i = 0; i < more && c->pictures.P > 0; i++)
        if (answer->generated[i] == config->vision.image_token || answer->generated[i] == config->vision.video_token)
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: generated token %" PRId64 ": got the placeholder %d, expected none beside pictures",
                           answer->path, i, answer->generated[i]);
    int32_t *ids = realloc(c->ids, (size_t)T * sizeof *ids);
    if (ids) c->ids = ids;
    int64_t *positions = realloc(c->positions, (size_t)T * sizeof *positions);
    if (positions) c->positions = positions;
    unsigned char *seen = c->seen ? realloc(c->seen, (size_t)(c->places + more)) : NULL;
    if (seen) c->seen = seen;
    if (!ids || !positions || (c->seen && !seen)) return m3_fail_memory(error, "the case", (size_t)T * sizeof *ids);
    for (int64_t i = 0; i < more; i++) {
        c->ids[c->T + i] = answer->generated[i];
        c->positions[c->T + i] = next + i;
        if (seen) seen[c->places + i] = 1;
    }
    if (seen) c->places += more;
    c->T = T;
    return M3_OK;
}

/* ---- the question */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* The least of the MOST_ENTRIES largest; -inf: all are kept. NaN: memory is short. */
static double least_kept(const struct m3_answer *a, const struct m3_answer_place *p)
{
    if (p->count <= MOST_ENTRIES) return -INFINITY;
    double *sorted = malloc((size_t)p->count * sizeof *sorted);
    if (!sorted) return NAN;
    memcpy(sorted, a->logprobs + p->first, (size_t)p->count * sizeof *sorted);
    qsort(sorted, (size_t)p->count, sizeof *sorted, by_value);
    const double least = sorted[MOST_ENTRIES - 1];
    free(sorted);
    return least;
}

/* How many entries from `first` on are the most likely ones: the chosen token may only stand beside them. */
static int64_t listed_of(const struct checking *c, const struct m3_answer_place *p, int64_t first)
{
    const int64_t end = c->question.entries;
    int64_t least = first;
    for (int64_t e = first; e < end; e++)
        if (c->got[e] < c->got[least]) least = e;
    return !p->listed ? 0 : end - first - (end - first > 1 && c->ids[least] == p->chosen);
}

static int ask_place(struct checking *c, const struct m3_answer_place *p, int64_t row, struct m3_error *error)
{
    struct m3_question *q = &c->question;
    const double least = least_kept(c->answer, p);
    if (isnan(least)) return m3_fail_memory(error, "the answer", (size_t)p->count * sizeof(double));
    const int64_t first = q->entries;
    for (int64_t e = p->first; e < p->first + p->count; e++) {
        if (!(c->answer->logprobs[e] >= least) && c->answer->ids[e] != p->chosen) continue;
        c->ids[q->entries] = c->answer->ids[e];
        c->got[q->entries++] = c->answer->logprobs[e];
    }
    c->asked[q->count++] = (struct m3_asked){ .row = row,
                                              .first = first,
                                              .count = q->entries - first,
                                              .chosen = p->chosen,
                                              .generated = p->generated,
                                              .listed = listed_of(c, p, first) };
    return M3_OK;
}

/* Places in the order of their rows: of the prompt, then of the generated tokens, those without numbers too if their
 * tokens are judged. The first token of the sequence is predicted by no row. */
static int ask_all(struct checking *c, struct m3_server *r, struct m3_error *error)
{
    const struct m3_answer *a = c->answer;
    const int64_t P = c->plan->prompt;
    int64_t next = 0;
    int status = M3_OK;
    for (int64_t i = 0; i < a->count && !status; i++) {
        const struct m3_answer_place *p = &a->places[i];
        for (; p->generated && c->plan->judges_tokens && next < p->place; next++)
            c->asked[c->question.count++] = (struct m3_asked){
                .row = P + next - 1, .first = c->question.entries, .chosen = a->generated[next], .generated = 1
            };
        if (p->generated) next = p->place + 1;
        const int64_t row = (p->generated ? P : 0) + p->place - 1;
        if (row < 0)
            m3_fail(&r->notes, M3_OK, "position 0: its log-probabilities are left out: no token comes before it");
        else status = ask_place(c, p, row, error);
    }
    for (; c->plan->judges_tokens && next < a->generated_count && !status; next++)
        c->asked[c->question.count++] = (struct m3_asked){
            .row = P + next - 1, .first = c->question.entries, .chosen = a->generated[next], .generated = 1
        };
    return status;
}

static int make_question(struct checking *c, struct m3_server *r, struct m3_error *error)
{
    const struct m3_server_plan *plan = c->plan;
    const size_t places = (size_t)(c->answer->count + c->answer->generated_count) + 1,
                 entries = (size_t)c->answer->entries + 1;
    c->asked = calloc(places, sizeof *c->asked);
    c->ids = malloc(entries * sizeof *c->ids);
    c->got = malloc(entries * sizeof *c->got);
    r->places = calloc(places, sizeof *r->places);
    if (!c->asked || !c->ids || !c->got || !r->places)
        return m3_fail_memory(error, "the answer", entries * sizeof *c->got);
    c->question = (struct m3_question){ .asked = c->asked,
                                        .ids = c->ids,
                                        .V = plan->setting->model->config.V,
                                        .scale = plan->processed ? 1 / plan->sampling.temperature : 1,
                                        .judges_tokens = plan->judges_tokens,
                                        .sampling = plan->sampling };
    int status = ask_all(c, r, error);
    if (status) return status;
    r->count = c->question.count;
    r->stages = r->count + c->answer->missing;
    if (r->count == 0)
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: got nothing that can be judged, expected log-probabilities of a token after another",
                       c->answer->path);
    for (int64_t i = 0; i < r->count; i++)
        r->places[i] = (struct m3_server_place){ .place = c->asked[i].row + 1,
                                                 .generated = c->asked[i].generated,
                                                 .chosen = c->asked[i].chosen,
                                                 .ids = c->asked[i].count,
                                                 .nearest = NAN,
                                                 .honest = NAN,
                                                 .got = NAN,
                                                 .want = NAN,
                                                 .worst = -1,
                                                 .verdict = M3_VERDICT_NOT_JUDGED };
    return M3_OK;
}

/* ---- runs */

static struct m3_request request_of(const struct m3_setting *s)
{
    struct m3_request request = m3_case_request(s->the_case);
    request.end_layer = s->model->config.layers;
    request.semantics = s->semantics;
    request.linear = s->ctx->linear;
    request.threads = s->ctx->threads;
    return request;
}

static int run_truth(struct checking *c, struct m3_error *error)
{
    const struct m3_setting *s = c->plan->setting;
    struct m3_request request = request_of(s);
    m3_tell(&c->plan->progress, "run", 0, c->weighing.run_count + 1);
    int status = m3_told_new(&c->weighing.truth, &c->question, 1, error);
    if (!status)
        status = m3_ask(&c->weighing.truth, &c->question, m3_engine_f64(), s->model, &request, M3_SOFTMAX_F64, error);
    c->question.best = c->weighing.truth.top;
    return status;
}

static int run_honest(struct checking *c, struct m3_error *error)
{
    const struct m3_setting *s = c->plan->setting;
    struct m3_weighing *w = &c->weighing;
    const int64_t T = s->the_case->T;
    struct m3_honest *honest = NULL;
    struct m3_honest_margins *margins = NULL;
    w->runs = calloc((size_t)w->run_count, sizeof *w->runs);
    w->others = c->others = malloc((size_t)T * sizeof *c->others + 1);
    if (!w->runs || !c->others) return m3_fail_memory(error, "honest runs", (size_t)w->run_count * sizeof *w->runs);
    int status = m3_honest_new(&honest, s->model, s->semantics, s->profile, NULL, T, error);
    if (!status) status = m3_honest_margins_new(&margins, s->model, s->semantics, T, error);
    for (int64_t i = 0; i < w->run_count && !status; i++) {
        struct m3_request request = request_of(s);
        m3_tell(&c->plan->progress, "run", i + 1, w->run_count + 1);
        m3_honest_draw(honest, c->plan->seed, i);
        m3_honest_request(honest, &request);
        status = m3_told_new(&w->runs[i], &c->question, 0, error);
        if (!status)
            status = m3_ask_honest(&w->runs[i], margins, &c->question, s->model, &request,
                                   (enum m3_softmax)(i % M3_SOFTMAXES), error);
    }
    if (!status) m3_honest_margins_others(c->others, margins, M3_TAP_LOGITS, -1, 0);
    m3_honest_margins_free(margins);
    m3_honest_free(honest);
    return status;
}

/* Does the profile compute and store everything in float? */
static int is_fine(const struct m3_profile *profile)
{
    char name[96];
    for (int tap = 0; tap < M3_TAPS; tap++) {
        if (m3_tap_name(name, sizeof name, (enum m3_tap)tap, 0) != 0) continue;
        const struct m3_input_rounding input = m3_profile_input(profile, name);
        if (m3_profile_store(profile, name) > 0 || m3_input_roundoff(&input) > 0) return 0;
    }
    return 1;
}

static void add_notes(struct m3_server *r, const struct checking *c)
{
    const struct m3_answer *a = c->answer;
    int64_t large = 0;
    for (int64_t i = 0; i < a->count; i++) large += a->places[i].count > MOST_ENTRIES;
    m3_add_notes(&r->notes, &a->notes);
    if (large > 0)
        m3_fail(&r->notes, M3_OK,
                "%" PRId64 " positions have more than %d log-probabilities; the largest of each are judged", large,
                MOST_ENTRIES);
    if (a->missing > 0) m3_fail(&r->notes, M3_OK, "positions without log-probabilities: %" PRId64, a->missing);
    if (r->count > 0 && r->count < 16)
        m3_fail(&r->notes, M3_OK, "only %" PRId64 " positions: the limits are wider below 16", r->count);
    if (a->generated_count > 0 && !c->plan->judges_tokens)
        m3_fail(
            &r->notes, M3_OK,
            "the choice of the generated tokens was not judged: --temperature says how they were drawn (0: greedy)");
}

int m3_server_check(struct m3_server *r, const struct m3_server_plan *plan, const struct m3_answer *answer,
                    struct m3_error *error)
{
    struct checking c = { .plan = plan, .answer = answer };
    const int64_t needed = m3_max(LEAST_RUNS, m3_honest_rows_needed(plan->setting->profile));
    *r = (struct m3_server){ .form = answer->form,
                             .tokens = plan->prompt + answer->generated_count,
                             .runs = plan->runs < 0 ? needed : plan->runs,
                             .is_fine = is_fine(plan->setting->profile),
                             .z = NAN,
                             .verdict = M3_VERDICT_NOT_COMPARABLE,
                             .status = M3_NOT_COMPARABLE };
    int status = make_question(&c, r, error);
    c.weighing = (struct m3_weighing){ .question = &c.question,
                                       .got = c.got,
                                       .run_count = r->runs,
                                       .tokens = plan->setting->the_case->ids,
                                       .resolution = status ? 0 : m3_resolution_of(c.got, c.question.entries) };
    if (!status) status = run_truth(&c, error);
    if (!status) status = run_honest(&c, error);
    if (!status) status = m3_weigh(r, &c.weighing, error);
    if (!status && !plan->no_causes) status = m3_find_cause(r, plan, &c.weighing, error);
    if (!status) {
        add_notes(r, &c);
        m3_server_say(r, plan);
    }
    for (int64_t i = 0; c.weighing.runs && i < c.weighing.run_count; i++) m3_told_free(&c.weighing.runs[i]);
    m3_told_free(&c.weighing.truth);
    free(c.weighing.runs);
    free(c.asked);
    free(c.ids);
    free(c.got);
    free(c.others);
    return status;
}

void m3_server_free(struct m3_server *r)
{
    free(r->places);
    m3_error_free(&r->notes);
    *r = (struct m3_server){ 0 };
}
