#include <math.h>
#include <stdlib.h>

#include "model/taps.h"
#include "oracle/judge.h"

/* What all decisions of one tap share. */
struct selection {
    const struct m3_tensor *want, *got;
    int64_t groups, width;              /* decisions of a row; ids of a decision */
    int64_t limit;                      /* ids are below it; INT64_MAX if unknown */
    int blocks;                         /* -1 is no id */
    const struct m3_tensor *want_scores, *got_scores;   /* [rows, groups, limit] floats, for blocks; NULL: none */
};

/* One decision: the ids of both sides, ascending once read; then only those that the other side lacks. */
struct decision {
    int64_t *want, *got;
    int64_t wants, gots;
    int64_t forced;                     /* the reference's last id */
    const char *fault;
};

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Reads one decision's ids without the -1 of blocks, ascending. NULL, or what is wrong with them. */
static const char *read_set(int64_t *ids, int64_t *count, const struct selection *s, const struct m3_tensor *tensor,
                            int64_t place)
{
    const char *fault = NULL;
    *count = 0;
    for (int64_t i = 0; i < s->width; i++) {
        int64_t id = m3_id_at(tensor, place * s->width + i);
        if (s->blocks && id == -1) continue;
        if (id < 0 || id >= s->limit) fault = "id out of range";
        ids[(*count)++] = id;
    }
    qsort(ids, (size_t)*count, sizeof *ids, ascending);
    for (int64_t i = 1; i < *count && fault == NULL; i++)
        if (ids[i] == ids[i - 1]) fault = "duplicate id";
    return fault;
}

static int same_slots(const struct selection *s, int64_t want, int64_t got)
{
    for (int64_t i = 0; i < s->width; i++)
        if (m3_id_at(s->want, want * s->width + i) != m3_id_at(s->got, got * s->width + i)) return 0;
    return 1;
}

/* Leaves in each of two ascending lists only what the other lacks. A duplicate lacks its second partner. */
static void keep_differences(struct decision *d)
{
    int64_t i = 0, j = 0, wants = 0, gots = 0;
    while (i < d->wants || j < d->gots) {
        if (j == d->gots || (i < d->wants && d->want[i] < d->got[j])) d->want[wants++] = d->want[i++];
        else if (i == d->wants || d->got[j] < d->want[i]) d->got[gots++] = d->got[j++];
        else i++, j++;
    }
    d->wants = wants;
    d->gots = gots;
}

static double score(const struct m3_tensor *scores, int64_t place, int64_t id)
{
    return m3_decode(scores->dtype, scores->data, place * scores->shape[2] + id);
}

/* A tie: all ids of the difference have one score in the reference. */
static int tied(const struct selection *s, const struct decision *d, int64_t want)
{
    if (s->want_scores == NULL || d->wants != d->gots || d->want[d->wants - 1] == d->forced) return 0;
    double level = score(s->want_scores, want, d->want[0]);
    if (!(level > -INFINITY)) return 0;
    for (int64_t i = 0; i < d->wants; i++)
        if (score(s->want_scores, want, d->want[i]) != level ||
            score(s->want_scores, want, d->got[i]) != level) return 0;
    return 1;
}

/* Do the candidate's own scores, the lower id first where they are equal, rank all that it took before all it left? */
static int own_scores_agree(const struct selection *s, const struct decision *d, int64_t got)
{
    if (s->got_scores == NULL) return 0;
    for (int64_t i = 0; i < d->gots; i++) {
        for (int64_t j = 0; j < d->wants; j++) {
            double took = score(s->got_scores, got, d->got[i]), left = score(s->got_scores, got, d->want[j]);
            if (!(took > left || (took == left && d->got[i] < d->want[j]))) return 0;
        }
    }
    return 1;
}

/* One decision, the places of which are `want` and `got`. Sets d->fault if it is not identical, permuted or a tie. */
static enum m3_choice judge_decision(struct decision *d, const struct selection *s, int64_t want, int64_t got)
{
    int64_t wants = d->wants;
    d->forced = wants > 0 ? d->want[wants - 1] : -1;
    d->fault = read_set(d->got, &d->gots, s, s->got, got);
    if (d->fault == NULL && d->gots != wants) d->fault = "wrong count";
    keep_differences(d);
    if (d->fault != NULL) return M3_INADMISSIBLE;
    if (d->wants == 0) return same_slots(s, want, got) ? M3_IDENTICAL : M3_PERMUTED;

    int tie = tied(s, d, want);
    if (tie && own_scores_agree(s, d, got)) return M3_TIE;
    d->fault = tie ? "equal scores go to the lower id" : "another set";
    return M3_INADMISSIBLE;
}

/* Shows a decision as the place of the stage. */
static void show(struct m3_stage *stage, const struct selection *s, const struct decision *d,
                 const struct m3_row_pair *row, int64_t group)
{
    int64_t want = d->wants > 0 ? d->want[0] : -1, got = d->gots > 0 ? d->got[0] : -1;
    stage->rank = s->want->rank - 1;
    stage->index[0] = row->number;
    stage->index[1] = group;
    stage->want = (double)want;
    stage->got = (double)got;
    stage->note = d->fault;
    stage->gap = NAN;
    if (s->want_scores == NULL || want < 0 || got < 0 || got >= s->limit) return;
    int64_t place = row->want * s->groups + group;
    stage->gap = score(s->want_scores, place, want) - score(s->want_scores, place, got);
}

static const struct m3_tensor *beside(const struct m3_safetensors *file, enum m3_tap tap, int64_t layer, int rank)
{
    char name[64];
    if (m3_tap_name(name, sizeof name, tap, layer) != 0) return NULL;
    const struct m3_tensor *tensor = m3_safetensors_find(file, name);
    if (tensor == NULL || tensor->rank != rank || m3_holds_ids(tensor)) return NULL;
    return tensor;
}

/* The scores of one dump that are [rows, groups, limit] of its ids. */
static const struct m3_tensor *block_scores(const struct selection *s, const struct m3_side *dump,
                                            const struct m3_tensor *ids, int64_t layer)
{
    const struct m3_tensor *scores = beside(dump->file, M3_TAP_INDEX_BLOCK_SCORES, layer, 3);
    if (scores == NULL || scores->shape[0] != ids->shape[0] || scores->shape[1] != s->groups) return NULL;
    return scores->shape[2] == s->limit ? scores : NULL;
}

/* The reference's scores come first. */
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

/* All decisions of all rows that both sides have. */
static void judge_decisions(struct m3_stage *stage, const struct selection *s, struct decision *d,
                            struct m3_row_walk *walk)
{
    struct m3_row_pair row;
    stage->choice = M3_IDENTICAL;
    while (m3_row_walk_next(walk, &row)) {
        for (int64_t g = 0; g < s->groups; g++) {
            int64_t want = row.want * s->groups + g, got = row.got * s->groups + g;
            if (read_set(d->want, &d->wants, s, s->want, want) != NULL) {
                d->gots = 0;
                show(stage, s, d, &row, g);
                m3_judge_not_comparable(stage, "the reference's ids are out of range or duplicate");
                return;
            }
            enum m3_choice choice = judge_decision(d, s, want, got);
            stage->rows++;
            stage->choices[choice]++;
            if (choice == M3_TIE || choice == M3_INADMISSIBLE) stage->differing++;
            if (choice <= stage->choice) continue;
            stage->choice = choice;
            show(stage, s, d, &row, g);
        }
    }
    stage->verdict = stage->choice == M3_INADMISSIBLE ? M3_FAIL : M3_PASS;
    if (stage->rows > 0 && s->width > 0) return;
    stage->verdict = M3_NOT_JUDGED;
    stage->note = "no decision to compare";
}

int m3_judge_selection(struct m3_stage *stage, const struct m3_matched *matched, struct m3_error *error)
{
    int blocks = matched->tap == M3_TAP_INDEX_BLOCKS, rank = blocks ? 3 : 2;
    struct m3_row_walk walk;
    const char *why = NULL;
    if (!m3_holds_ids(matched->want) || !m3_holds_ids(matched->got)) why = "not an integer dtype";
    else if (matched->want->rank != rank) why = "not the rank of this tap";
    else why = m3_row_walk_begin(&walk, matched);
    if (why != NULL) {
        m3_judge_not_comparable(stage, why);
        return M3_OK;
    }

    struct selection s = { .want = matched->want, .got = matched->got, .blocks = blocks,
                           .groups = blocks ? matched->want->shape[1] : 1, .width = matched->want->shape[rank - 1],
                           .limit = m3_id_limit(matched) };
    if (blocks) {
        s.want_scores = block_scores(&s, matched->reference, matched->want, matched->layer);
        s.got_scores = block_scores(&s, matched->candidate, matched->got, matched->layer);
    }
    /* One more than needed: no ids at all is no failure. */
    int64_t *ids = calloc((size_t)s.width + 1, 2 * sizeof *ids);
    if (ids == NULL) return m3_fail_memory(error, stage->tap, (size_t)s.width * 2 * sizeof *ids);
    struct decision d = { .want = ids, .got = ids + s.width };
    judge_decisions(stage, &s, &d, &walk);
    free(ids);
    return M3_OK;
}
