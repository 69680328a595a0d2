/* What explains an answer that does not pass: a temperature, another reading of the model, a known mistake. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/cause/answer.h"
#include "oracle/variants/mistakes.h"
#include "oracle/variants/readings.h"

/* Of honest runs the worst quotient is 1. A mistake may also make roundings larger: what is much nearer than the truth
 * and than all else explains an answer up to a larger quotient. */
static const double explains_below = 1.5, much_nearer = 1.5, roughly_below = 4, far_nearer = 8, alone = 2;
/* Of m3_weigh_toward. */
static const double suspect_from = 6, least_share = 0.35, fails_from = 12, fails_share = 0.5;

/* ---- temperature */

/* The factor of the logits by which the differences within each position fit best; NaN: none. */
static double best_scale(const struct m3_weighing *w)
{
    const struct m3_question *q = w->question;
    double xy = 0, xx = 0;
    for (int64_t i = 0; i < q->count; i++) {
        const struct m3_asked *asked = &q->asked[i];
        double mean_got = 0, mean_want = 0, n = 0;
        for (int64_t e = asked->first; e < asked->first + asked->count; e++)
            if (isfinite(w->got[e])) mean_got += w->got[e], mean_want += w->truth.logprobs[e], n++;
        for (int64_t e = asked->first; e < asked->first + asked->count; e++) {
            if (!isfinite(w->got[e])) continue;
            const double x = w->truth.logprobs[e] - mean_want / n;
            xy += x * (w->got[e] - mean_got / n);
            xx += x * x;
        }
    }
    return xx > 0 ? xy / xx : NAN;
}

static int ask_double(struct m3_told *told, const struct m3_question *q, const struct m3_server_plan *plan,
                      const struct m3_model *model, struct m3_request *request, struct m3_error *error)
{
    request->threads = plan->setting->ctx->threads;
    return m3_ask(told, q, m3_engine_f64(), model, request, M3_SOFTMAX_F64, error);
}

/* A right run of the reading; or one with the mistake. Without rounding, as the truth is. *told stays empty where the
 * mistake does not apply, or NaN arises: that explains nothing. */
static int run_cause(struct m3_told *told, const struct m3_question *q, const struct m3_server_plan *plan,
                     const struct m3_mistake *mistake, const struct m3_semantics *semantics, struct m3_error *error)
{
    const struct m3_setting *s = plan->setting;
    struct m3_mistaken_run *run = NULL;
    struct m3_error ignored = { 0 };
    *told = (struct m3_told){ 0 };
    int status = m3_mistake_install(&run, mistake, s->model, semantics, s->the_case, &ignored);
    if (!status) status = m3_told_new(told, q, 0, &ignored);
    if (!status) status = ask_double(told, q, plan, m3_mistaken_model(run), m3_mistaken_request(run), &ignored);
    if (status) m3_told_free(told);
    m3_error_free(&ignored);
    m3_mistake_remove(run);
    return status == M3_INTERNAL ? m3_fail_memory(error, "a run with a mistake", 0) : M3_OK;
}

static int try_temperature(struct m3_server *r, const struct m3_server_plan *plan, const struct m3_weighing *w,
                           double own, struct m3_error *error)
{
    struct m3_question scaled = *w->question;
    struct m3_told told;
    const double scale = best_scale(w);
    if (!(scale > 0.05 && scale < 20) || fabs(scale - 1) < 0.02) return M3_OK;
    scaled.scale *= scale;
    int status = run_cause(&told, &scaled, plan, NULL, plan->setting->semantics, error);
    double worst = NAN;
    if (!status && told.logprobs) status = m3_weigh_against(&worst, w, &told, r->is_fine, error);
    m3_told_free(&told);
    /* A temperature changes the size of all errors. */
    if (!status && worst <= explains_below * fmax(scale, 1) && worst * much_nearer < own) r->temperature = 1 / scale;
    return status;
}

/* ---- readings and mistakes */

/* Programs of a coarse profile may round so (SPEC 7.12). */
static const char *const permitted[] = { "attn.partial_bf16", "norm.early_round",      "router.bf16",
                                         "select.tie",        "vision.conv_precision", "rope.fp32_angle" };

int m3_cause_permitted(const struct m3_mistake *mistake, int is_fine)
{
    for (size_t i = 0; i < sizeof permitted / sizeof *permitted; i++)
        if (!is_fine && strcmp(permitted[i], mistake->id) == 0) return 1;
    return is_fine && strcmp(mistake->id, "rope.fp32_angle") == 0;
}

struct m3_causes m3_causes_begin(void) { return (struct m3_causes){ .worst = INFINITY, .second = INFINITY }; }

int m3_cause_try(struct m3_causes *best, const struct m3_cause *cause, const struct m3_weighing *w,
                 const struct m3_told *told, int is_fine, struct m3_error *error)
{
    double worst, z = 0, share = 0;
    int status = m3_weigh_against(&worst, w, told, is_fine, error);
    if (!status && !is_fine) status = m3_weigh_toward(&z, &share, w, told, error);
    if (worst < best->worst) {
        best->second = best->worst;
        best->worst = worst;
        best->near = *cause;
    } else if (worst > best->worst && worst < best->second) best->second = worst; /* equal: the same cause twice */
    if (status || share < least_share || !(z > best->z)) return status;
    best->z = z;
    best->share = share;
    best->toward = *cause;
    return status;
}

static int is_listed(const struct m3_semantics *semantics, const struct m3_semantics *list, int count)
{
    for (int i = 0; i < count; i++)
        if (memcmp(semantics, &list[i], sizeof *semantics) == 0) return 1;
    return 0;
}

/* Is it what a mistake does that correct implementations may make? */
static int is_permitted(const struct m3_semantics *reading, const struct m3_semantics *own, int is_fine)
{
    for (int i = 0; i < m3_mistake_count(); i++) {
        const struct m3_mistake *mistake = m3_mistake_at(i);
        struct m3_semantics same = *own;
        struct m3_error ignored = { 0 };
        if (!mistake->reading || !m3_cause_permitted(mistake, is_fine)) continue;
        const int status = m3_semantics_set(&same, mistake->reading, &ignored);
        m3_error_free(&ignored);
        if (!status && is_listed(&same, reading, 1)) return 1;
    }
    return 0;
}

static int try_cause(struct m3_causes *best, struct m3_server *r, const struct m3_server_plan *plan,
                     const struct m3_weighing *w, const struct m3_cause *cause, const struct m3_semantics *semantics,
                     struct m3_error *error)
{
    struct m3_told told;
    r->tried++;
    int status = run_cause(&told, w->question, plan, cause->mistake, semantics, error);
    if (told.logprobs && !status) status = m3_cause_try(best, cause, w, &told, r->is_fine, error);
    m3_told_free(&told);
    return status;
}

/* The size of a noise is not looked for in an answer. A mistake that is another reading is tried as that. */
static int try_all(struct m3_causes *best, struct m3_server *r, const struct m3_server_plan *plan,
                   const struct m3_weighing *w, struct m3_error *error)
{
    const struct m3_setting *s = plan->setting;
    const struct m3_shows_at at = { .is_of_logits = 1 };
    struct m3_semantics readings[M3_MOST_READINGS + 1];
    const int count = m3_list_readings(readings, s->semantics, s, &at), all = count + m3_mistake_count();
    int status = M3_OK;
    readings[count] = *s->semantics;
    for (int i = 0; i < count && !status; i++) {
        struct m3_cause cause = { .mistake = NULL };
        m3_semantics_changes(cause.reading, s->semantics, &readings[i]);
        m3_tell(&plan->progress, "cause", i, all);
        if (isnan(readings[i].jitter) || is_permitted(&readings[i], s->semantics, r->is_fine)) continue;
        status = try_cause(best, r, plan, w, &cause, &readings[i], error);
    }
    for (int i = count; i < all && !status; i++) {
        struct m3_cause cause = { .mistake = m3_mistake_at(i - count) };
        struct m3_semantics same = *s->semantics;
        const char *reading = cause.mistake->reading;
        if (m3_mistake_missing(cause.mistake, s->model, s->semantics, s->the_case)) continue;
        if (m3_cause_permitted(cause.mistake, r->is_fine)) continue;
        if (reading) status = m3_semantics_set(&same, reading, error);
        if (status || (reading && is_listed(&same, readings, count + 1))) continue;
        if (reading) snprintf(cause.reading, sizeof cause.reading, "%s", reading);
        m3_tell(&plan->progress, "cause", i, all);
        status = try_cause(best, r, plan, w, &cause, s->semantics, error);
    }
    return status;
}

static int explains(const struct m3_causes *best, double own)
{
    if (best->worst <= explains_below) return best->worst * much_nearer < own;
    return best->worst <= roughly_below && best->worst * far_nearer < own && best->worst * alone < best->second;
}

static void name(struct m3_server *r, const struct m3_cause *cause)
{
    if (cause->mistake) {
        r->mistake = cause->mistake->id;
        r->mistake_what = cause->mistake->what;
    }
    memcpy(r->reading, cause->reading, sizeof r->reading);
}

/* An answer that has moved far toward a mistake is not right, however far apart honest runs are. */
static void move_toward(struct m3_server *r, const struct m3_causes *best)
{
    const int fails = best->z > fails_from && best->share > fails_share;
    r->z_toward = best->z;
    r->share = best->share;
    if (r->verdict == M3_VERDICT_FAIL) return;
    r->verdict = fails ? M3_VERDICT_FAIL : M3_VERDICT_SUSPECT;
    r->status = m3_run_status(r->verdict);
}

int m3_causes_settle(struct m3_server *r, const struct m3_causes *best, const struct m3_weighing *w,
                     struct m3_error *error)
{
    const int is_bad = r->verdict == M3_VERDICT_FAIL || r->verdict == M3_VERDICT_SUSPECT;
    const int moved = best->z > suspect_from;
    double own = NAN;
    if (is_bad && m3_weigh_against(&own, w, &w->truth, r->is_fine, error)) return M3_INTERNAL;
    if (is_bad && explains(best, own)) name(r, &best->near);
    else if (moved) name(r, &best->toward);
    if (moved) move_toward(r, best);
    return M3_OK;
}

int m3_find_cause(struct m3_server *r, const struct m3_server_plan *plan, const struct m3_weighing *w,
                  struct m3_error *error)
{
    double own;
    int status = m3_weigh_against(&own, w, &w->truth, r->is_fine, error);
    const int is_bad = r->verdict == M3_VERDICT_FAIL || r->verdict == M3_VERDICT_SUSPECT;
    struct m3_causes causes = m3_causes_begin();
    if (!(own >= 0) || (!is_bad && r->is_fine)) return status;  /* NaN: nothing but generated tokens */
    if (is_bad) status = try_temperature(r, plan, w, own, error);
    if (status || r->temperature > 0) return status;
    status = try_all(&causes, r, plan, w, error);
    return status ? status : m3_causes_settle(r, &causes, w, error);
}
