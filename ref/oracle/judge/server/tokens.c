/* Tokens that the model's logits do not allow: generated ones, and lists that lack the most likely token. */
#include <math.h>
#include <stdlib.h>

#include "oracle/judge/server/private/judge.h"

/* The generated tokens, or the lists. */
struct side {
    const struct m3_weighing *w;
    int of_lists;
    double *margins;            /* [count] what rounding may do to a deficit */
};

static const double *deficits(const struct side *s, const struct m3_told *told)
{
    return s->of_lists ? told->top_deficit : told->deficit;
}

static int is_asked(const struct side *s, int64_t i)
{
    const struct m3_asked *asked = &s->w->question->asked[i];
    if (s->of_lists) return asked->listed > 0 && asked->count > 1;
    return s->w->question->judges_tokens && asked->generated && asked->chosen >= 0;
}

/* The most that an honest run differs from the truth at the place, and what nine of ten places stay below. */
static int find_margins(struct side *s, struct m3_error *error)
{
    const int64_t n = s->w->question->count;
    const double *of_truth = deficits(s, &s->w->truth);
    s->margins = calloc(2 * (size_t)n + 1, sizeof *s->margins);
    if (!s->margins) return m3_fail_memory(error, "margins", (size_t)n * sizeof *s->margins);
    for (int64_t a = 0; a < s->w->run_count; a++)
        for (int64_t i = 0; i < n; i++)
            s->margins[i] = fmax(s->margins[i], fabs(deficits(s, &s->w->runs[a])[i] - of_truth[i]));
    const double usual = n > 0 ? m3_quantile(s->margins, n, 0.9, s->margins + n) : 0;
    for (int64_t i = 0; i < n; i++) s->margins[i] = M3_SERVER_FAILS * fmax(s->margins[i], usual);
    return M3_OK;
}

/* Do neither the margin nor an honest run allow what stands at the place? */
static int is_beyond(const struct side *s, int64_t i)
{
    const double deficit = deficits(s, &s->w->truth)[i];
    int allowed = deficit <= 0 || deficit <= s->margins[i];
    for (int64_t a = 0; a < s->w->run_count && !allowed; a++) allowed = deficits(s, &s->w->runs[a])[i] <= 0;
    return !allowed;
}

/* How far the run's most likely token is below the truth's, in the truth; at least, if it is no leader. */
static double behind(const struct side *s, const struct m3_told *run, int64_t i)
{
    const int32_t *leaders = s->w->truth.leaders + i * M3_TOLD_LEADERS;
    int64_t k = 0;
    while (k + 1 < M3_TOLD_LEADERS && leaders[k + 1] >= 0 && leaders[k] != run->top[i]) k++;
    return s->w->truth.gaps[i * M3_TOLD_LEADERS + k];
}

/* Rounding can exchange an expert or a block, and then a whole position is another, in honest runs too: the most that
 * the deficits of one of them are together, if it had answered. */
static double honest_sum(const struct side *s)
{
    double most = 0;
    for (int64_t a = 0; a < s->w->run_count; a++) {
        const struct m3_told *run = &s->w->runs[a];
        double sum = 0;
        for (int64_t i = 0; i < s->w->question->count; i++)
            if (is_asked(s, i)) sum += behind(s, run, i);
        most = fmax(most, sum);
    }
    return most;
}

static enum m3_verdict verdict_of(double sum, double honest)
{
    static const double fails_above = 3, suspect_above = 2;     /* one exchanged expert decides such a sum */
    if (!(sum <= fails_above * honest)) return M3_VERDICT_FAIL;
    return sum > suspect_above * honest ? M3_VERDICT_SUSPECT : M3_VERDICT_PASS;
}

/* Judges each place, and all together: *beyond places are not allowed. */
static enum m3_verdict weigh(struct m3_server *r, const struct side *s, int64_t *beyond)
{
    double sum = 0;
    for (int64_t i = 0; i < s->w->question->count; i++) {
        struct m3_server_place *p = &r->places[i];
        if (!is_asked(s, i)) continue;
        const int is_wrong = is_beyond(s, i);
        if (is_wrong || !s->of_lists) p->deficit = deficits(s, &s->w->truth)[i], p->margin = s->margins[i];
        if (!is_wrong && !s->of_lists && p->verdict == M3_VERDICT_NOT_JUDGED) p->verdict = M3_VERDICT_PASS;
        if (!is_wrong) continue;
        p->verdict = M3_VERDICT_FAIL;
        sum += p->deficit;
        ++*beyond;
    }
    return *beyond > 0 ? verdict_of(sum, honest_sum(s)) : M3_VERDICT_PASS;
}

/* How likely a sampled generation is, in standard deviations. */
static void weigh_likelihood(struct m3_server *r, const struct side *s)
{
    const struct m3_told *truth = &s->w->truth;
    double surprise = 0, variance = 0;
    for (int64_t i = 0; i < s->w->question->count; i++) {
        if (!is_asked(s, i)) continue;
        r->generated++;
        surprise += truth->surprise[i];
        variance += truth->variance[i];
    }
    if (s->w->question->sampling.temperature > 0 && variance > 0) r->z = surprise / sqrt(variance);
}

int m3_weigh_tokens(struct m3_server *r, const struct m3_weighing *w, struct m3_error *error)
{
    struct side lists = { .w = w, .of_lists = 1 }, tokens = { .w = w };
    int64_t without = 0;
    int status = find_margins(&lists, error);
    if (!status) status = find_margins(&tokens, error);
    if (!status) {
        r->by_lists = weigh(r, &lists, &without);
        r->by_tokens = weigh(r, &tokens, &r->forbidden);
        weigh_likelihood(r, &tokens);
    }
    free(lists.margins);
    free(tokens.margins);
    return status;
}
