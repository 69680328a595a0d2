/* The word of a profile with which the taps that do not pass would pass. */
#include <stdlib.h>
#include <string.h>

#include "oracle/cause/tap.h"
#include "oracle/error/profiles/explain.h"

/* What is judged once more: copies of the items and of the results of those. */
struct explaining {
    const struct m3_judgement *result;
    const struct m3_blaming *given;
    struct m3_blame_item *items;
    struct m3_finding *taps;
};

/* What is judged: the worst row of the culprit, or every tap that does not pass. */
enum extent { ONE_ROW, ALL };

/* A single row may have numbers of few bits where all do not: attention to one key gives its value. */
static int may_pass(const struct m3_finding *tap, enum extent extent)
{
    return tap->verdict == M3_VERDICT_PASS || (extent == ONE_ROW && tap->tiers.tiers == M3_TIER_GRID);
}

/* Sets *passes. */
static int judge(const struct explaining *e, const struct m3_profile *profile, enum extent extent, int *passes)
{
    const struct m3_finding *culprit = e->result->first;
    struct m3_setting setting = *e->given->setting;
    struct m3_blame_options options = *e->given->options;
    struct m3_blaming b = *e->given;
    int status;
    setting.profile = profile;
    m3_coarse_begin(&b.coarse, profile);
    b.setting = &setting, b.options = &options, b.items = e->items, b.trace = NULL, b.named = NULL;
    options.kept = NULL;        /* findings of the profile that is explained */
    if (extent == ONE_ROW) options.first_row = culprit->index[0], options.end_row = culprit->index[0] + 1;
    for (int64_t i = 0; i < b.count; i++) {
        const struct m3_finding *was = e->given->items[i].blamed;
        const int chosen =
            was && m3_finding_is_wrong(was) && was->judged_by != M3_BY_ROWS && (extent == ALL || was == culprit);
        e->items[i] = e->given->items[i];
        e->items[i].needed = 0;
        e->items[i].blamed = NULL;
        if (!chosen) continue;
        struct m3_finding *tap = e->items[i].blamed = &e->taps[was - e->result->findings];
        *tap = *was;
        tap->verdict = M3_VERDICT_NOT_JUDGED;
        tap->note[0] = '\0';
        memset(tap->choices, 0, sizeof tap->choices);
        tap->choice = M3_CHOICE_IDENTICAL;
    }
    m3_blame_mark_needed(&b);
    status = m3_trace_new(&b.trace, &setting, b.error);
    *passes = 1;
    for (int64_t i = 0; i < b.count && !status && *passes; i++) {
        if (b.items[i].needed) status = m3_blame_take(&b, &b.items[i]);
        if (b.items[i].blamed) *passes = may_pass(b.items[i].blamed, extent);
    }
    m3_trace_free(b.trace);
    return status;
}

/* Is nothing wrong under this profile, and all judged? That is what is said, and so exactly that is run. */
static int run_whole(const struct explaining *e, const struct m3_profile *profile, int *passes)
{
    struct m3_setting setting = *e->given->setting;
    struct m3_blame_options options = *e->given->options;
    struct m3_judgement again;
    setting.profile = profile;
    options.profile = NULL;
    options.kept = NULL;
    options.names_mistakes = 0;
    options.is_alone = 1;       /* what is inherited does not change a verdict */
    options.request = NULL;
    const int status = m3_blame(&again, &setting, e->given->side.file, &options, e->given->error);
    *passes = !status && again.status == M3_OK;
    m3_judgement_free(&again);
    return status;
}

static int try(void *self, const struct m3_profile *profile, int *passes)
{
    const struct explaining *e = self;
    const struct m3_finding *culprit = e->result->first;
    const struct m3_blame_item *item = m3_blame_find(e->given, culprit->id, culprit->layer);
    int status = M3_OK;
    *passes = 1;
    if (item && item->dumped)
        status = m3_blame_emulate(passes, e->given, item, culprit->rank > 0 ? culprit->index[0] : 0, profile);
    for (enum extent extent = e->result->first->rank > 0 ? ONE_ROW : ALL; extent <= ALL && !status && *passes; extent++)
        status = judge(e, profile, extent, passes);
    return status || !*passes ? status : run_whole(self, profile, passes);
}

int m3_blame_explain(struct m3_judgement *result, const struct m3_blaming *b)
{
    const struct m3_finding *culprit = result->first;
    if (!culprit || culprit->judged_by == M3_BY_ROWS || !b->options->profile || !b->setting->profile ||
        result->not_comparable > 0)
        return M3_OK;
    /* What looks like a known mistake or another value of a parameter is not excused, nor what is wrong in part. */
    if (result->mistake || culprit->tiers.parameter.name || culprit->is_in_part) return M3_OK;
    const int is_alone = culprit->operators == 1 && !culprit->selection;
    struct explaining e = { .result = result, .given = b };
    e.items = calloc((size_t)b->count + 1, sizeof *e.items);
    e.taps = calloc((size_t)result->count + 1, sizeof *e.taps);
    int status = e.items && e.taps ? m3_explain(result->explained_by, b->options->profile, b->setting->profile,
                                                is_alone ? (int)culprit->id : -1, culprit->layer, try, &e, b->error)
                                   : m3_fail_memory(b->error, "the taps that fail", (size_t)b->count * sizeof *e.items);
    free(e.items);
    free(e.taps);
    return status;
}
