#include <math.h>
#include <stdlib.h>

#include "oracle/judge/choices/private/scorer.h"

/* The data shared by all decisions of one tap. */
struct selection {
    struct m3_finding *stage;
    struct m3_scorer scorer;
    struct m3_decision decision;        /* of the current ids in want and got */
    int64_t *want, *got;                /* [width] */
    int64_t groups, layer;
    int64_t proven;                     /* decisions proven inadmissible */
    int64_t room;                       /* capacity of stage->flips */
    const struct m3_decision_sink *sink;
};

static const struct m3_tensor *beside(const struct m3_safetensors *file, enum m3_tap tap, int64_t layer, int rank)
{
    char name[64];
    if (m3_tap_name(name, sizeof name, tap, layer) != 0) return NULL;
    const struct m3_tensor *tensor = m3_safetensors_find(file, name);
    if (tensor == NULL || tensor->rank != rank || m3_holds_ids(tensor)) return NULL;
    return tensor;
}

/* The reference's scores are tried first. */
int64_t m3_id_limit(const struct m3_matched *matched)
{
    const int blocks = matched->tap == M3_TAP_INDEX_BLOCKS;
    static const enum m3_tap expert_taps[] = { M3_TAP_ROUTER_SCORES, M3_TAP_ROUTER_LOGITS };
    const struct m3_side *dumps[] = { matched->reference, matched->candidate };
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < (blocks ? 1 : 2); j++) {
            enum m3_tap tap = blocks ? M3_TAP_INDEX_BLOCK_SCORES : expert_taps[j];
            int rank = blocks ? 3 : 2;
            const struct m3_tensor *scores = beside(dumps[i]->file, tap, matched->layer, rank);
            if (scores != NULL) return scores->shape[rank - 1];
        }
    }
    return INT64_MAX;
}

/* Makes a decision the place of the stage. */
static void show(struct selection *s, const struct m3_certificate *c, int64_t row, int64_t group)
{
    struct m3_finding *stage = s->stage;
    stage->rank = s->groups > 1 || s->scorer.of == M3_CHOICE_OF_BLOCKS ? 2 : 1;
    stage->index[0] = row;
    stage->index[1] = group;
    stage->want = (double)c->want;
    stage->got = (double)c->got;
    m3_finding_note(stage, "%s", c->fault ? c->fault : "");
    stage->gap = c->gap;
    stage->bound = c->bound;
    stage->scores = s->scorer.whose;
    stage->bounded_by = s->scorer.bounded_by;
}

/* gap / bound; with bound 0 any gap is infinite. */
static double in_bounds(const struct m3_certificate *c) { return c->gap == 0 && c->bound == 0 ? 0 : c->gap / c->bound; }

static int add_flip(struct selection *s, int64_t row, int64_t group, struct m3_error *error)
{
    struct m3_finding *stage = s->stage;
    if (stage->differing == s->room) {
        int64_t room = 2 * s->room + 16;
        struct m3_flip *more = realloc(stage->flips, (size_t)room * sizeof *more);
        if (more == NULL) return m3_fail_memory(error, stage->tap, (size_t)room * sizeof *more);
        stage->flips = more;
        s->room = room;
    }
    stage->flips[stage->differing++] = (struct m3_flip){ .layer = s->layer, .row = row, .group = group };
    return M3_OK;
}

/* The first of the candidate's blocks that the row does not see; -1: there is none. */
static int64_t drop_unseen(struct selection *s)
{
    const struct m3_scorer *scorer = &s->scorer;
    const double *scores = scorer->want.tensor != NULL ? scorer->truth : NULL;
    if (scorer->of != M3_CHOICE_OF_BLOCKS) return -1;
    return m3_drop_unseen(s->got, s->want, s->decision.width, scorer->own, s->decision.limit, scores);
}

/* Judges the decision in s->want and s->got. */
static int judge_decision(struct selection *s, const struct m3_row_pair *row, int64_t group, struct m3_error *error)
{
    struct m3_finding *stage = s->stage;
    struct m3_scorer *scorer = &s->scorer;
    int64_t shown_group = scorer->of == M3_CHOICE_OF_BLOCKS ? group : -1;
    m3_scorer_score(scorer, &s->decision, row, group);
    const int64_t unseen = drop_unseen(s);
    struct m3_certificate c = m3_certify(&s->decision);
    if (c.differs && c.got < 0 && unseen >= 0) c.got = unseen;
    int tainted = scorer->tainted && c.unknown;
    int status = c.differs ? add_flip(s, row->number, shown_group, error) : M3_OK;
    if (status == M3_OK && s->sink != NULL) {
        const struct m3_judged_decision judged = { .tap = stage->tap,
                                                   .row = row->number,
                                                   .group = shown_group,
                                                   .decision = &s->decision,
                                                   .certificate = &c,
                                                   .scores = scorer->whose,
                                                   .bounded_by = scorer->bounded_by,
                                                   .tainted = tainted };
        status = s->sink->write(s->sink->self, &judged, error);
    }
    if (tainted) {
        stage->tainted++;
        return status;
    }
    stage->rows++;
    stage->choices[c.choice]++;
    stage->certified += c.certified;
    s->proven += c.choice == M3_CHOICE_INADMISSIBLE && !c.suspect;
    if (scorer->whose != NULL && stage->scores == NULL) {
        stage->scores = scorer->whose;
        stage->bounded_by = scorer->bounded_by;
    }
    double least = in_bounds(&c);
    if (least < stage->least_gap || isnan(stage->least_gap)) stage->least_gap = least;
    if (c.choice > stage->choice) {
        stage->choice = c.choice;
        show(s, &c, row->number, group);
    }
    return status;
}

static void load(int64_t *ids, const struct m3_tensor *tensor, int64_t place, int64_t width)
{
    for (int64_t i = 0; i < width; i++) ids[i] = m3_id_at(tensor, place * width + i);
}

/* The reference's ids are not a set: the decision cannot be judged. */
static void refuse(struct selection *s, int64_t row, int64_t group)
{
    const struct m3_certificate nothing = { .want = -1, .got = -1, .gap = NAN, .bound = NAN };
    int64_t count;
    m3_ids_fault(s->decision.lists, &count, s->want, s->decision.width, s->decision.limit, s->decision.padded);
    show(s, &nothing, row, group);
    if (count > 0) s->stage->want = (double)s->decision.lists[0];
    m3_judge_not_comparable(s->stage, "the reference's ids are out of range or duplicate");
}

/* Judges all decisions of all rows that both sides have. */
static int judge_decisions(struct selection *s, const struct m3_matched *matched, struct m3_row_walk *walk,
                           struct m3_error *error)
{
    struct m3_decision *d = &s->decision;
    struct m3_row_pair row;
    int status = M3_OK;
    while (status == M3_OK && m3_row_walk_next(walk, &row)) {
        for (int64_t g = 0; g < s->groups && status == M3_OK; g++) {
            int64_t count;
            load(s->want, matched->want, row.want * s->groups + g, d->width);
            load(s->got, matched->got, row.got * s->groups + g, d->width);
            if (m3_ids_fault(d->lists, &count, s->want, d->width, d->limit, d->padded) != NULL) {
                refuse(s, row.number, g);
                return M3_OK;
            }
            status = judge_decision(s, &row, g, error);
        }
    }
    return status;
}

static void close_stage(struct selection *s)
{
    struct m3_finding *stage = s->stage;
    if (stage->verdict == M3_VERDICT_NOT_COMPARABLE) return;
    stage->verdict = M3_VERDICT_PASS;
    if (stage->choice == M3_CHOICE_INADMISSIBLE) stage->verdict = s->proven > 0 ? M3_VERDICT_FAIL : M3_VERDICT_SUSPECT;
    if (stage->rows > 0 && s->decision.width > 0) return;
    stage->verdict = M3_VERDICT_NOT_JUDGED;
    m3_finding_note(stage, "no decision to compare");
}

/* Allocates memory and scores for a tap of `groups` decisions per row. Call selection_end after any result. */
static int selection_begin(struct selection *s, struct m3_finding *stage, const struct m3_matched *matched,
                           const struct m3_selection_rules *rules, enum m3_choice_of of, int64_t limit,
                           struct m3_error *error)
{
    int status = m3_scorer_begin(&s->scorer, matched, rules, of, limit, error);
    size_t width = (size_t)s->scorer.width;
    /* One more than needed, so that no ids at all is not an error. */
    s->want = calloc(width + 1, 4 * sizeof *s->want);
    if (s->want == NULL && status == M3_OK) status = m3_fail_memory(error, stage->tap, width * 4 * sizeof *s->want);
    if (status != M3_OK) return status;
    s->got = s->want + width;
    s->stage = stage;
    s->groups = s->scorer.groups;
    s->layer = matched->layer;
    s->sink = rules->decisions;
    s->decision = (struct m3_decision){ .want = s->want,
                                        .got = s->got,
                                        .width = s->scorer.width,
                                        .limit = limit,
                                        .padded = of == M3_CHOICE_OF_BLOCKS,
                                        .ties_lowest = s->scorer.ties_lowest,
                                        .slots_fixed = rules->slots_fixed && of == M3_CHOICE_OF_EXPERTS,
                                        .lists = s->got + width };
    stage->choice = M3_CHOICE_IDENTICAL;
    stage->gap = stage->bound = stage->least_gap = NAN;
    return M3_OK;
}

static void selection_end(struct selection *s, int status)
{
    if (status == M3_OK) close_stage(s);
    else if (s->stage != NULL) {
        free(s->stage->flips);
        s->stage->flips = NULL;
    }
    m3_scorer_end(&s->scorer);
    free(s->want);
}

/* Does each set have another number of ids than the reference's, not only other padding? */
static int has_other_count(const struct m3_tensor *want, const struct m3_tensor *got)
{
    const int last = want->rank - 1;
    for (int i = 1; i < last; i++)
        if (want->shape[i] != got->shape[i]) return 0;
    if (got->rank != want->rank || want->shape[last] == 0) return 0;
    return want->shape[last] != got->shape[last] && m3_most_ids(want) != m3_most_ids(got);
}

/* Such sets are all wrong, and the cause of what differs after them. */
static void fail_count(struct m3_finding *stage, const struct m3_tensor *want, int blocks)
{
    stage->verdict = M3_VERDICT_FAIL;
    m3_finding_note(stage, "another number of %s than the reference chooses", blocks ? "blocks" : "experts");
    stage->choice = M3_CHOICE_INADMISSIBLE;
    stage->rows = stage->differing = want->count / want->shape[want->rank - 1];
    stage->choices[M3_CHOICE_INADMISSIBLE] = stage->rows;
    stage->gap = stage->bound = stage->least_gap = NAN;
}

int m3_judge_selection(struct m3_finding *stage, const struct m3_matched *matched,
                       const struct m3_selection_rules *rules, struct m3_error *error)
{
    int blocks = matched->tap == M3_TAP_INDEX_BLOCKS, rank = blocks ? 3 : 2;
    struct m3_row_walk walk;
    const char *why = NULL;
    if (!m3_holds_ids(matched->want) || !m3_holds_ids(matched->got)) why = "not an integer dtype";
    else if (matched->want->rank != rank) why = "not the rank of this tap";
    else why = m3_row_walk_begin(&walk, matched);
    if (why != NULL) {
        m3_judge_not_comparable(stage, why);
        if (m3_holds_ids(matched->want) && m3_holds_ids(matched->got) && matched->want->rank == rank &&
            matched->got->rank == rank && has_other_count(matched->want, matched->got))
            fail_count(stage, matched->want, blocks);
        return M3_OK;
    }
    struct selection s = { 0 };
    int status = selection_begin(&s, stage, matched, rules, blocks ? M3_CHOICE_OF_BLOCKS : M3_CHOICE_OF_EXPERTS,
                                 m3_id_limit(matched), error);
    if (status == M3_OK) status = judge_decisions(&s, matched, &walk, error);
    selection_end(&s, status);
    return status;
}

/* The id of the largest value of a row [V], the lowest on a tie; -1 if there is a NaN. */
static int64_t greatest(const struct m3_tensor *logits, int64_t row)
{
    int64_t V = logits->shape[1], best = -1;
    double most = -INFINITY;
    for (int64_t id = 0; id < V; id++) {
        double x = m3_decode(logits->dtype, logits->data, row * V + id);
        if (isnan(x)) return -1;
        if (best >= 0 && !(x > most)) continue;
        best = id;
        most = x;
    }
    return best;
}

int m3_judge_next_token(struct m3_finding *stage, const struct m3_matched *logits, const struct m3_finding *floats,
                        const struct m3_selection_rules *rules, struct m3_error *error)
{
    struct m3_row_walk walk;
    struct m3_row_pair row;
    *stage = (struct m3_finding){ .tap = NULL };
    if (floats->verdict == M3_VERDICT_NOT_COMPARABLE || floats->elements + floats->rows_left_out == 0 ||
        logits->want->rank != 2 || logits->want->shape[1] == 0)
        return M3_OK;
    if (m3_row_walk_begin(&walk, logits) != NULL) return M3_OK;

    *stage = m3_finding_of(floats->tap, floats->id, floats->layer, floats->reference, floats->candidate);
    stage->selection = 1;
    struct selection s = { 0 };
    int status = selection_begin(&s, stage, logits, rules, M3_CHOICE_OF_TOKENS, logits->want->shape[1], error);
    while (status == M3_OK && m3_row_walk_next(&walk, &row)) {
        s.want[0] = greatest(logits->want, row.want);
        s.got[0] = greatest(logits->got, row.got);
        status = judge_decision(&s, &row, 0, error);
    }
    selection_end(&s, status);
    return status;
}
