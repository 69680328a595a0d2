#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/choices/certificate.h"
#include "oracle/judge/choices/margin.h"

/* The data shared by the decisions of one tap, and memory for one of them. */
struct choosing {
    const struct m3_blaming *b;
    const struct m3_blame_item *item;
    const struct m3_tap_values *scores;      /* known to the trace; NULL: none */
    const struct m3_recomputed *made;   /* the selection in double by those scores */
    struct m3_router_arithmetic router;
    int blocks;
    int64_t groups, width, ids;         /* ids: number of ids with scores */
    struct m3_decision one;
    double *score, *bound, *bias;       /* [ids] */
    unsigned char *forced, *marks;      /* [ids] */
    int64_t *want, *got, *lists;        /* [width] [width] [2 width] */
    unsigned char *wrong;               /* [rows,groups] of the dump */
    struct lacking {
        int64_t want, got;              /* of all wrong sets so far; -2: none, -3: not the same */
        int are_last;                   /* each `want` is the last block of its row */
    } lacking;
};

static int begin(struct choosing *c, const struct m3_blaming *b, const struct m3_blame_item *item,
                 const struct m3_recomputed *made)
{
    const struct m3_setting *s = b->setting;
    const struct m3_config *config = &s->model->config;
    const int blocks = item->tap == M3_TAP_INDEX_BLOCKS;
    const struct m3_arithmetic how = m3_setting_arithmetic(s, 1);
    *c = (struct choosing){ .b = b,
                            .item = item,
                            .made = made,
                            .blocks = blocks,
                            .groups = blocks ? config->G : 1,
                            .router = { .u = how.u, .c = how.c, .tanh_scores = how.tanh_scores } };
    c->scores = m3_trace_get(b->trace, blocks ? M3_TAP_INDEX_BLOCK_SCORES : M3_TAP_ROUTER_SCORES, item->layer);
    c->width = item->width / c->groups;
    c->ids = (c->scores ? c->scores->width / c->groups : 0) + 1;
    const size_t ids = (size_t)c->ids, width = (size_t)c->width;
    c->score = malloc(3 * ids * sizeof *c->score);
    c->forced = calloc(ids, 2);
    c->want = malloc(4 * width * sizeof *c->want);
    if (!c->score || !c->forced || !c->want) return m3_fail_memory(b->error, item->name, 3 * ids * sizeof *c->score);
    c->bound = c->score + ids, c->bias = c->bound + ids;
    c->marks = c->forced + ids;
    c->got = c->want + width, c->lists = c->got + width;
    char sum[96];
    snprintf(sum, sizeof sum, "%s.sum", item->name);
    if (s->profile) c->router.added = m3_profile_store(s->profile, sum);
    if (s->profile) c->router.bias = m3_profile_weights(s->profile, item->name);
    if (!blocks && c->scores)
        m3_expand_f64(c->bias, m3_graph_weight(s->model, s->semantics, M3_TAP_EXPERTS, item->layer, 0), 0, 0,
                      config->E);
    return M3_OK;
}

static void end(struct choosing *c)
{
    free(c->score);
    free(c->forced);
    free(c->want);
    free(c->wrong);
}

/* Scores of the blocks up to the row's own. Returns their number. */
static int64_t score_blocks(struct choosing *c, int64_t number, int64_t at, int64_t group)
{
    const struct m3_config *config = &c->b->setting->model->config;
    const struct m3_tap_values *m = c->scores;
    const int64_t own = (c->b->setting->the_case->p0 + number) / config->block, B = m->width / config->G;
    const int shared = c->b->setting->semantics->selection == M3_SELECT_SHARED;
    for (int64_t k = 0; k <= own; k++) {
        c->score[k] = -INFINITY, c->bound[k] = 0;
        for (int64_t g = shared ? 0 : group; g < (shared ? config->G : group + 1); g++) {
            const int64_t i = at * m->width + g * B + k;
            c->score[k] = fmax(c->score[k], m->values[i]);
            if (m->off.error) c->bound[k] = fmax(c->bound[k], m->off.error[i]);
        }
    }
    memset(c->forced, 0, (size_t)c->ids);
    m3_forced_blocks(c->forced, own, c->width, c->b->setting->semantics);
    return own + 1;
}

static int64_t score_experts(struct choosing *c, int64_t at)
{
    const struct m3_tap_values *s = c->scores;
    const int64_t E = s->width;
    m3_choice_by_scores(c->score, c->bound, s->values + at * E, s->off.error ? s->off.error + at * E : NULL, c->bias, E,
                        &c->router);
    return E;
}

/* What all wrong sets have in common. */
static void note_lacking(struct lacking *l, const struct m3_certificate *z, int64_t last)
{
    const int is_first = l->want == -2;
    l->are_last = z->want == last && (is_first || l->are_last);
    l->want = is_first || l->want == z->want ? z->want : -3;
    l->got = is_first || l->got == z->got ? z->got : -3;
}

/* One decision: row `at` of the scores, `made` of the selections in double; ids [width] of the dump. */
static struct m3_certificate certify(struct choosing *c, int64_t number, int64_t at, int64_t made, int64_t group,
                                     const int32_t *ids)
{
    const struct m3_profile *profile = c->b->setting->profile;
    const int32_t *own = c->made->y.ids + made * c->item->width + group * c->width;
    const int64_t limit = c->blocks ? score_blocks(c, number, at, group) : score_experts(c, at);
    for (int64_t i = 0; i < c->width; i++) c->want[i] = own[i], c->got[i] = ids[i];
    if (c->blocks) m3_drop_unseen(c->got, c->want, c->width, limit - 1, limit, c->score);
    c->one = (struct m3_decision){
        .want = c->want,
        .got = c->got,
        .width = c->width,
        .limit = limit,
        .padded = c->blocks,
        .ties_lowest = !profile || m3_profile_ties_lowest(profile),
        .truth = c->score,
        .lists = c->lists,
        .marks = c->marks,
        .scores = { .score = c->score, .bound = c->bound, .forced = c->blocks ? c->forced : NULL, .ids = limit },
    };
    /* Dumped scores are the very ones to which the bias was added: equal pairs have equal sums. */
    if (!c->blocks && !c->scores->off.error && c->one.ties_lowest) {
        c->one.scores.twins[0] = c->scores->values + at * c->scores->width;
        c->one.scores.twins[1] = c->bias;
    }
    return m3_certify(&c->one);
}

/* A well-formed list of blocks in any order is the same set; attention needs it ascending, -1 last. */
static void sort_list(int32_t *ids, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        for (int64_t j = i; j > 0 && (uint32_t)ids[j - 1] > (uint32_t)ids[j]; j--) {
            int32_t id = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = id;
        }
}

/* Does the truth for the whole model select another set? */
static int differs_from_reference(const struct choosing *c, int64_t number, int64_t group, const int32_t *ids)
{
    const int32_t *r = m3_blame_truth_ids(c->item, number);
    if (!r) return 0;
    for (int64_t i = 0; i < c->width; i++) {
        int found = 0;
        for (int64_t k = 0; k < c->width; k++) found |= r[group * c->width + k] == ids[i];
        if (!found) return 1;
    }
    return 0;
}

static void count(struct m3_finding *out, const struct choosing *c, const struct m3_certificate *z, int64_t number,
                  int64_t group, const int32_t *ids)
{
    out->choices[z->choice]++;
    out->elements++;
    if (z->choice == M3_CHOICE_INADMISSIBLE) out->created++;
    else out->inherited += differs_from_reference(c, number, group, ids);
    if (out->rank > 0 && z->choice <= out->choice) return;
    out->choice = z->choice;
    m3_finding_place(out, c->item->dumped, number, group, c->blocks ? 2 : 1);
    out->got = (double)z->got;
    out->want = (double)z->want;
    out->gap = !z->differs ? NAN : z->gap == 0 ? 0 : -z->gap / z->bound;
    m3_finding_note(out, "%s", z->fault ? z->fault : "");
}

static void finish(struct m3_finding *out)
{
    out->verdict = out->elements == 0                      ? M3_VERDICT_NOT_JUDGED
                   : out->choice == M3_CHOICE_INADMISSIBLE ? M3_VERDICT_FAIL
                                                           : M3_VERDICT_PASS;
    if (out->elements == 0) {
        m3_finding_note(out, "the scores of its rows are missing or no numbers");
        return;
    }
    out->created /= (double)out->elements;
    out->inherited /= (double)out->elements;
}

/* Judges one decision of the dump; marks its row if no operator can use it. Without scores (`at` or `made` below 0)
 * only sets that no scores could select are detected. Returns whether it was judged. */
static int judge_one(struct choosing *c, struct m3_tap_values *dumped, int64_t r, int64_t at, int64_t made,
                     int64_t group)
{
    const struct m3_setting *s = c->b->setting;
    /* A model of one operator (oracle/operators) may have no blocks. */
    const int64_t number = dumped->numbers[r];
    const int64_t own = c->blocks ? (s->the_case->p0 + number) / s->model->config.block : 0;
    int32_t *ids = dumped->ids + r * c->item->width + group * c->width;
    struct m3_certificate z = { .choice = M3_CHOICE_INADMISSIBLE, .want = -1, .got = -1, .gap = NAN };
    int64_t sound;
    for (int64_t i = 0; i < c->width; i++) c->got[i] = ids[i];
    const char *fault =
        m3_ids_fault(c->lists, &sound, c->got, c->width, c->blocks ? own + 1 : s->model->config.E, c->blocks);
    if (fault) dumped->usable[r] = 0;
    else if (c->blocks) sort_list(ids, c->width);
    if (at >= 0 && made >= 0) z = certify(c, number, at, made, group, ids);
    else if (fault) z.fault = fault, z.got = c->lists[sound - 1];
    else return 0;
    if (c->item->blamed) count(c->item->blamed, c, &z, number, group, ids);
    if (z.choice != M3_CHOICE_INADMISSIBLE) return 1;
    c->wrong[r * c->groups + group] = 1;
    note_lacking(&c->lacking, &z, c->blocks ? own : -1);
    return 1;
}

/* Where the wrong sets are, and what each of them lacks, or holds instead. */
static int find_pattern(struct m3_finding *out, const struct choosing *c, const struct m3_tap_values *dumped)
{
    enum { LEAST = 3 };         /* fewer may have it in common by chance */
    const char *const noun = c->blocks ? "block" : "expert";
    struct m3_pattern *pattern = &out->pattern;
    const int status = m3_pattern_of_choices(pattern, c->wrong, dumped->numbers, dumped->rows, c->groups,
                                             c->blocks ? "group" : "set", c->b->error);
    if (status || out->choices[M3_CHOICE_INADMISSIBLE] < LEAST) return status;
    if (c->lacking.are_last && c->lacking.want != 0)
        snprintf(pattern->what, sizeof pattern->what, "each wrong set lacks the last block of its row");
    else if (c->lacking.want >= 0)
        snprintf(pattern->what, sizeof pattern->what, "each wrong set lacks %s %" PRId64, noun, c->lacking.want);
    else if (c->lacking.got >= 0)
        snprintf(pattern->what, sizeof pattern->what, "each wrong set has %s %" PRId64, noun, c->lacking.got);
    return M3_OK;
}

int m3_blame_judge_choices(const struct m3_blaming *b, const struct m3_blame_item *item, struct m3_tap_values *dumped,
                           const struct m3_recomputed *made)
{
    struct m3_finding *out = item->blamed;
    struct choosing c;
    int status = begin(&c, b, item, made);
    int64_t judged = 0;
    if (!status) {
        c.lacking.want = -2;
        c.wrong = calloc((size_t)(dumped->rows * c.groups) + 1, 1);
        if (!c.wrong) status = m3_fail_memory(b->error, item->name, (size_t)(dumped->rows * c.groups));
    }
    for (int64_t r = 0; !status && r < dumped->rows; r++) {
        const int64_t number = dumped->numbers[r];
        if (number >= item->rows) continue;
        const int64_t at = c.scores ? m3_tap_values_row(c.scores, number) : -1,
                      own = m3_tap_values_row(&made->y, number);
        int any = 0;
        for (int64_t g = 0; g < c.groups; g++) any |= judge_one(&c, dumped, r, at, own, g);
        judged += any;
    }
    if (!status && out && out->choice == M3_CHOICE_INADMISSIBLE) status = find_pattern(out, &c, dumped);
    end(&c);
    if (status || !out) return status;
    out->rows = judged;
    out->rows_left_out = dumped->rows - judged;
    out->scores = !c.scores ? "none" : c.scores->off.error ? "recomputed" : "dumped";
    finish(out);
    return M3_OK;
}

int m3_blame_certain_rows(const struct m3_blaming *b, const struct m3_blame_item *item,
                          const struct m3_recomputed *made)
{
    struct m3_tap_values value = { .tap = item->tap, .layer = item->layer, .width = item->width };
    int64_t *numbers = malloc(((size_t)made->y.rows + 1) * sizeof *numbers);
    struct choosing c;
    int status = begin(&c, b, item, made);
    if (!status && !numbers) status = m3_fail_memory(b->error, item->name, (size_t)made->y.rows * sizeof *numbers);
    for (int64_t r = 0; !status && r < made->y.rows; r++) {
        const int64_t number = made->y.numbers ? made->y.numbers[r] : r, at = m3_tap_values_row(c.scores, number);
        const int32_t *ids = made->y.ids + r * made->y.width;
        int certain = at >= 0;
        for (int64_t g = 0; certain && g < c.groups; g++)
            certain = certify(&c, number, at, r, g, ids + g * c.width).certified;
        if (!certain) continue;
        memmove(made->y.ids + value.rows * made->y.width, ids, (size_t)made->y.width * sizeof *ids);
        numbers[value.rows++] = number;
    }
    value.ids = made->y.ids;
    value.numbers = value.rows == item->rows ? NULL : numbers;
    if (!status) status = m3_trace_put(b->trace, &value, b->error);
    free(numbers);
    end(&c);
    return status;
}
