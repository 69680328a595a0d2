/* What explains an answer that does not pass: a temperature, another reading of the model, a known mistake. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/semantics.h"
#include "oracle/server/private/judge.h"
#include "oracle/variants/mistakes.h"

/* Of honest runs the worst quotient is 1. A mistake may also make roundings larger: what is much nearer than the truth
 * and than all else explains an answer up to a larger quotient. */
static const double explains_below = 1.5, much_nearer = 1.5, roughly_below = 4, far_nearer = 8, alone = 2;

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

/* A right run of the reading; or one with the mistake. */
static int try_run(double *worst, const struct m3_question *q, const struct m3_server_plan *plan,
                   const struct m3_weighing *w, const struct m3_mistake *mistake, const char *reading, int is_fine,
                   struct m3_error *error)
{
    const struct m3_setting *s = plan->setting;
    struct m3_semantics semantics = *s->semantics;
    struct m3_mistaken_run *run = NULL;
    struct m3_told told = { 0 };
    *worst = INFINITY;
    int status = reading ? m3_semantics_set(&semantics, reading, error) : M3_OK;
    if (status || (reading && memcmp(&semantics, s->semantics, sizeof semantics) == 0)) return status;
    struct m3_error ignored = { 0 };
    status = m3_mistake_install(&run, mistake, s->model, &semantics, s->the_case, &ignored);
    if (!status) {
        m3_mistake_store(run, s->profile);
        status = m3_told_new(&told, q, 0, &ignored);
        if (!status)
            status = ask_double(&told, q, plan, m3_mistaken_model(run), m3_mistaken_request(run), &ignored);
        if (!status) *worst = m3_weigh_against(w, &told, is_fine);
        if (isnan(*worst)) *worst = INFINITY;
    }
    if (status == M3_INTERNAL) m3_fail_memory(error, "a run with a mistake", 0);
    else status = M3_OK;        /* the mistake does not apply, or gives NaN: it explains nothing */
    m3_error_free(&ignored);
    m3_told_free(&told);
    m3_mistake_remove(run);
    return status;
}

static int try_temperature(double *worst, struct m3_server *r, const struct m3_server_plan *plan,
                           const struct m3_weighing *w, double own, struct m3_error *error)
{
    struct m3_question scaled = *w->question;
    const double scale = best_scale(w);
    if (!(scale > 0.05 && scale < 20) || fabs(scale - 1) < 0.02) return M3_OK;
    scaled.scale *= scale;
    int status = try_run(worst, &scaled, plan, w, NULL, NULL, r->is_fine, error);
    /* A temperature changes the size of all errors. */
    if (!status && *worst <= explains_below * fmax(scale, 1) && *worst * much_nearer < own) r->temperature = 1 / scale;
    return status;
}

/* ---- readings and mistakes */

static const char *const readings[] = { "pool=lse",      "index_scale=rsqrt", "selection=shared", "selection=union",
                                        "init_blocks=1", "local_blocks=2",    "gate_clamp=both",  "vision_boundary=none" };
enum { READINGS = sizeof readings / sizeof *readings };

static int is_known_reading(const char *reading)
{
    for (int i = 0; i < READINGS; i++)
        if (strcmp(readings[i], reading) == 0) return 1;
    return 0;
}

struct best {
    double worst, second;
    const struct m3_mistake *mistake;
    const char *reading;
};

static int try_all(struct best *best, struct m3_server *r, const struct m3_server_plan *plan,
                   const struct m3_weighing *w, struct m3_error *error)
{
    const struct m3_setting *s = plan->setting;
    int status = M3_OK;
    for (int i = 0; i < READINGS + m3_mistake_count() && !status; i++) {
        const struct m3_mistake *mistake = i < READINGS ? NULL : m3_mistake_at(i - READINGS);
        const char *reading = mistake ? NULL : readings[i];
        double worst;
        if (mistake && (m3_mistake_missing(mistake, s->model, s->semantics, s->the_case) ||
                        (mistake->reading && is_known_reading(mistake->reading))))
            continue;
        if (plan->progress) plan->progress(plan->progress_self, "cause", i + 1, READINGS + m3_mistake_count());
        r->tried++;
        status = try_run(&worst, w->question, plan, w, mistake, reading, r->is_fine, error);
        if (worst < best->worst) *best = (struct best){ worst, best->worst, mistake, reading };
        else if (worst < best->second) best->second = worst;
    }
    return status;
}

static int explains(const struct best *best, double own)
{
    if (best->worst <= explains_below) return best->worst * much_nearer < own;
    return best->worst <= roughly_below && best->worst * far_nearer < own && best->worst * alone < best->second;
}

int m3_find_cause(struct m3_server *r, const struct m3_server_plan *plan, const struct m3_weighing *w,
                  struct m3_error *error)
{
    const double own = m3_weigh_against(w, &w->truth, r->is_fine);
    struct best best = { .worst = INFINITY, .second = INFINITY };
    double worst = INFINITY;
    if (!(own > 0)) return M3_OK;               /* nothing but generated tokens */
    int status = try_temperature(&worst, r, plan, w, own, error);
    if (status || r->temperature > 0) return status;
    status = try_all(&best, r, plan, w, error);
    if (status || !explains(&best, own)) return status;
    if (best.mistake) {
        r->mistake = best.mistake->id;
        r->mistake_what = best.mistake->what;
    }
    const char *reading = best.mistake ? best.mistake->reading : best.reading;
    if (reading) snprintf(r->reading, sizeof r->reading, "%s", reading);
    return M3_OK;
}
