#include "oracle/judge/choices/private/scorer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/semantics.h"
#include "oracle/judge/choices/margin.h"

/* Unit roundings of a sum with a bias that is not known. */
enum { UNKNOWN_BIAS = 16 };

/* ---- the tensors */

static const struct m3_tensor *beside(const struct m3_side *dump, enum m3_tap tap, int64_t layer, int rank)
{
    char name[96];
    if (m3_tap_name(name, sizeof name, tap, layer) != 0) return NULL;
    const struct m3_tensor *tensor = m3_safetensors_find(dump->file, name);
    return tensor == NULL || tensor->rank != rank || m3_holds_ids(tensor) ? NULL : tensor;
}

/* A companion of the ids, "layers.3.moe.experts.bias", in the reference or its second file, of `count` floats. */
static const struct m3_tensor *companion(const struct m3_scorer *s, const char *ending, int64_t count)
{
    char name[96];
    int length = snprintf(name, sizeof name, "%s%s", s->matched->want->name, ending);
    if (length < 0 || (size_t)length >= sizeof name) return NULL;
    const struct m3_tensor *tensor = m3_safetensors_find(s->matched->reference->file, name);
    if (tensor == NULL && s->rules->companions != NULL) tensor = m3_safetensors_find(s->rules->companions, name);
    return tensor == NULL || tensor->count != count || m3_holds_ids(tensor) ? NULL : tensor;
}

static struct m3_score_tap find_scores(const struct m3_scorer *s, const struct m3_side *dump, int64_t rows)
{
    static const enum m3_tap taps[] = { M3_TAP_ROUTER_SCORES, M3_TAP_ROUTER_LOGITS };
    struct m3_score_tap found = { .allowed = NAN };
    int blocks = s->of == M3_CHOICE_OF_BLOCKS;
    for (int i = 0; i < (blocks ? 1 : 2) && found.tensor == NULL; i++) {
        const struct m3_tensor *tensor =
            beside(dump, blocks ? M3_TAP_INDEX_BLOCK_SCORES : taps[i], s->matched->layer, blocks ? 3 : 2);
        if (tensor == NULL || tensor->shape[0] != rows || tensor->shape[tensor->rank - 1] != s->ids) continue;
        if (blocks && tensor->shape[1] != s->groups) continue;
        found.tensor = tensor;
        found.logits = i;
    }
    return found;
}

/* The allowed distance of a candidate from the reference's scores, by the tolerance of their tap. */
static int find_allowed(struct m3_score_tap *scores, const struct m3_scorer *s, struct m3_error *error)
{
    if (scores->tensor == NULL || s->rules->no_tolerance) return M3_OK;
    const struct m3_tensor *tensor = scores->tensor;
    double allowed, peak = 0;
    int stated;
    int status =
        m3_tolerance(&allowed, &stated, &s->rules->coarse, s->matched->reference->file, tensor->name, "f32_max", error);
    if (status != M3_OK) return status;
    for (int64_t i = 0; i < tensor->count; i++) {
        double size = fabs(m3_decode(tensor->dtype, tensor->data, i));
        if (isfinite(size) && size > peak) peak = size;
    }
    scores->allowed = allowed * peak;
    return M3_OK;
}

/* Reads the arithmetic of the candidate from the profile. */
static void read_profile(struct m3_scorer *s)
{
    const struct m3_profile *profile = s->rules->profile;
    struct m3_arithmetic how = profile != NULL ? m3_profile_arithmetic(profile, 1) : m3_arithmetic_f32();
    s->ties_lowest = profile == NULL || m3_profile_ties_lowest(profile);
    s->router = (struct m3_router_arithmetic){ .u = how.u, .c = how.c, .tanh_scores = how.tanh_scores };
    if (profile == NULL || s->of != M3_CHOICE_OF_EXPERTS) return;
    char name[96];
    s->router.bias = m3_profile_weights(profile, s->matched->want->name);
    snprintf(name, sizeof name, "%s.sum", s->matched->want->name);
    s->router.added = m3_profile_store(profile, name);
    if (m3_tap_name(name, sizeof name, M3_TAP_ROUTER_SCORES, s->matched->layer) == 0)
        s->router.stored = m3_profile_store(profile, name);
}

static int find_tensors(struct m3_scorer *s, struct m3_error *error)
{
    const struct m3_matched *m = s->matched;
    if (s->of == M3_CHOICE_OF_TOKENS) {
        s->want = (struct m3_score_tap){ .tensor = m->want, .allowed = NAN };
        s->got = (struct m3_score_tap){ .allowed = NAN };
    } else {
        s->want = find_scores(s, m->reference, m->want->shape[0]);
        s->got = find_scores(s, m->candidate, m->got->shape[0]);
    }
    if (s->of == M3_CHOICE_OF_EXPERTS) {
        s->bias = companion(s, ".bias", s->ids);
        s->margin = companion(s, ".margin", m->want->shape[0]);
    }
    if (s->rules->profile != NULL && s->got.tensor != NULL)
        s->got.dumped = m3_profile_dump_rounding(s->rules->profile, s->got.tensor->name);
    return find_allowed(&s->want, s, error);
}

int m3_scorer_begin(struct m3_scorer *s, const struct m3_matched *matched, const struct m3_selection_rules *rules,
                    enum m3_choice_of of, int64_t limit, struct m3_error *error)
{
    const struct m3_tensor *want = matched->want;
    *s = (struct m3_scorer){ .matched = matched, .rules = rules, .of = of, .groups = 1, .width = 1 };
    if (of == M3_CHOICE_OF_BLOCKS) s->groups = want->shape[1];
    if (of != M3_CHOICE_OF_TOKENS) s->width = want->shape[want->rank - 1];
    m3_semantics_read(&s->semantics, m3_safetensors_metadata(matched->reference->file, "semantics"));
    read_profile(s);
    if (limit == INT64_MAX || limit == 0) return M3_OK;
    s->ids = limit;
    int status = find_tensors(s, error);
    if (status != M3_OK) return status;

    size_t ids = (size_t)limit;
    s->numbers = calloc(ids, 6 * sizeof *s->numbers);
    s->forced = calloc(ids, 2);
    if (s->numbers == NULL || s->forced == NULL) return m3_fail_memory(error, want->name, ids * 50);
    double **parts[] = { &s->truth, &s->score, &s->bound, &s->proven, &s->moved, &s->biases };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) *parts[i] = s->numbers + i * ids;
    s->marks = s->forced + ids;
    for (int64_t e = 0; s->bias != NULL && e < limit; e++) s->biases[e] = m3_decode(s->bias->dtype, s->bias->data, e);
    return M3_OK;
}

void m3_scorer_end(struct m3_scorer *s)
{
    free(s->numbers);
    free(s->forced);
    *s = (struct m3_scorer){ 0 };
}

/* ---- one decision */

/* x [ids] := the row's scores as dumped; with selection=shared the largest of all groups. */
static void read_scores(double *x, const struct m3_scorer *s, const struct m3_score_tap *scores, int64_t row,
                        int64_t group)
{
    const struct m3_tensor *t = scores->tensor;
    int shared = s->of == M3_CHOICE_OF_BLOCKS && s->semantics.selection == M3_SELECT_SHARED;
    for (int64_t g = shared ? 0 : group; g < (shared ? s->groups : group + 1); g++) {
        for (int64_t id = 0; id < s->ids; id++) {
            double score = m3_decode(t->dtype, t->data, (row * s->groups + g) * s->ids + id);
            if (!shared || g == 0 || score > x[id] || isnan(score)) x[id] = score;
        }
    }
}

/* The last block of the reference's list, which is the row's own block if that is forced. */
static int64_t last_block(const struct m3_scorer *s, const int64_t *want)
{
    int64_t own = -1;
    for (int64_t i = 0; i < s->width; i++) own = m3_max(own, want[i]);
    return own;
}

/* Without local blocks the row's own block need not be in its list, but it is the last one with a score. */
static void find_own(struct m3_scorer *s, const int64_t *want)
{
    s->own = last_block(s, want);
    if (s->semantics.local_blocks != 0) return;
    if (s->want.tensor == NULL) s->own = INT64_MAX;
    else
        for (int64_t id = s->own + 1; id < s->ids; id++)
            if (s->truth[id] != -INFINITY) s->own = id;
}

/* score, bound := the values by which experts are selected, from scores or logits z in `moved` that are known up to u
 * |z| + h. */
static void rank_experts(struct m3_scorer *s, double *score, int logits, double u, double h)
{
    for (int64_t e = 0; e < s->ids; e++) s->proven[e] = u * fabs(s->moved[e]) + h;
    (logits ? m3_choice_by_logits : m3_choice_by_scores)(score, s->bound, s->moved, s->proven, s->biases, s->ids,
                                                         &s->router);
}

static void set_bounds(struct m3_scorer *s, double bound)
{
    for (int64_t id = 0; id < s->ids; id++) s->bound[id] = bound;
}

static struct m3_scores all_scores(const struct m3_scorer *s)
{
    struct m3_scores all = { .score = s->score, .bound = s->bound, .forced = s->forced, .ids = s->ids };
    if (s->as_added) all.twins[0] = s->moved, all.twins[1] = s->biases;
    return all;
}

/* truth := the reference's scores. Returns 0 if they are missing, or are not those by which its set was selected.
 * Leaves the bounds of its own arithmetic in `bound`. */
static int read_truth(struct m3_scorer *s, const struct m3_decision *d, const struct m3_row_pair *row, int64_t group)
{
    if (s->want.tensor == NULL || (s->of == M3_CHOICE_OF_EXPERTS && s->bias == NULL)) return 0;
    set_bounds(s, 0);
    if (s->of == M3_CHOICE_OF_EXPERTS) {
        read_scores(s->moved, s, &s->want, row->want, group);
        rank_experts(s, s->truth, s->want.logits, 0, 0);
    } else {
        read_scores(s->truth, s, &s->want, row->want, group);
    }
    struct m3_scores truth = all_scores(s);
    truth.score = s->truth;
    struct m3_decision same = *d;
    same.got = d->want;
    same.scores = truth;
    same.marks = s->marks;
    return m3_is_admissible(&same);
}

static int by_own_scores(struct m3_scorer *s, const struct m3_row_pair *row, int64_t group)
{
    int experts = s->of == M3_CHOICE_OF_EXPERTS;
    if (s->got.tensor == NULL || (experts && s->bias == NULL)) return 0;
    if (experts) {
        read_scores(s->moved, s, &s->got, row->got, group);
        rank_experts(s, s->score, s->got.logits, s->got.dumped, 0);
    } else {
        read_scores(s->score, s, &s->got, row->got, group);
        for (int64_t id = 0; id < s->ids; id++) s->bound[id] = s->got.dumped * fabs(s->score[id]);
    }
    s->as_added = experts && !s->got.logits && s->got.dumped == 0 && s->ties_lowest;
    s->whose = "candidate";
    s->bounded_by = experts ? "rounding of score plus bias" : s->got.dumped > 0 ? "rounding of the dump" : "none";
    return 1;
}

static int by_given_scores(struct m3_scorer *s, struct m3_decision *d, const struct m3_row_pair *row, int64_t group)
{
    static const enum m3_tap taps[] = { M3_TAP_INDEX_BLOCKS, M3_TAP_EXPERTS, M3_TAP_LOGITS };
    struct m3_given_scores given = {
        .score = s->score, .bound = s->bound, .proven = s->proven, .ids = s->ids, .bounded_by = "given"
    };
    if (s->rules->give == NULL) return 0;
    if (!s->rules->give(s->rules->give_context, &given, taps[s->of], s->matched->layer, row->number, group)) return 0;
    if (given.statistical) d->scores.proven = s->proven;
    s->whose = given.reference ? "reference" : "inputs";
    s->bounded_by = given.bounded_by;
    return 1;
}

/* To be called after read_truth. */
static int by_reference_scores(struct m3_scorer *s, const struct m3_row_pair *row, int64_t group)
{
    if (!(s->want.allowed >= 0)) return 0;
    if (s->of == M3_CHOICE_OF_EXPERTS) {
        read_scores(s->moved, s, &s->want, row->want, group);
        rank_experts(s, s->score, s->want.logits, 0, s->want.allowed);
    } else {
        memcpy(s->score, s->truth, (size_t)s->ids * sizeof *s->score);
        set_bounds(s, s->want.allowed);
    }
    s->whose = "reference";
    s->bounded_by = "what their tap is allowed";
    return 1;
}

static double sigmoid_if(int logits, double z) { return logits ? 1 / (1 + exp(-z)) : z; }

/* Experts without the bias: only the margin, and how far the scores have moved, are known. */
static int by_margin(struct m3_scorer *s, const struct m3_decision *d, const struct m3_row_pair *row, int tainted)
{
    int moved = s->got.tensor != NULL;
    if (s->of != M3_CHOICE_OF_EXPERTS || s->margin == NULL || s->want.tensor == NULL) return 0;
    if (!moved && (tainted || !(s->want.allowed >= 0))) return 0;
    double margin = m3_decode(s->margin->dtype, s->margin->data, row->want), u = s->router.u + s->router.bias;
    if (!(margin >= 0)) return 0;
    memset(s->moved, 0, (size_t)s->ids * sizeof *s->moved);
    if (moved) {
        read_scores(s->truth, s, &s->want, row->want, 0);
        read_scores(s->moved, s, &s->got, row->got, 0);
        for (int64_t e = 0; e < s->ids; e++)
            s->moved[e] = sigmoid_if(s->got.logits, s->moved[e]) - sigmoid_if(s->want.logits, s->truth[e]);
    }
    m3_choice_by_margin(s->score, s->forced, margin, s->moved, d->want, d->got, s->width, s->ids, s->marks);
    set_bounds(s, UNKNOWN_BIAS * u + (moved ? s->got.dumped : s->want.allowed));
    s->whose = moved ? "candidate" : "reference";
    s->bounded_by = "margin of the reference";
    return 1;
}

void m3_scorer_score(struct m3_scorer *s, struct m3_decision *d, const struct m3_row_pair *row, int64_t group)
{
    d->scores = (struct m3_scores){ 0 };
    d->truth = NULL;
    d->marks = s->marks;
    s->whose = s->bounded_by = NULL;
    s->tainted = s->as_added = 0;
    if (s->of == M3_CHOICE_OF_BLOCKS) find_own(s, d->want);
    if (s->ids == 0) return;

    enum m3_tap tap = (enum m3_tap)s->matched->tap;
    int tainted = s->rules->tainted != NULL &&
                  s->rules->tainted(s->rules->taint_context, tap, s->matched->layer, row->number, group);
    memset(s->forced, 0, (size_t)s->ids);
    if (s->of == M3_CHOICE_OF_BLOCKS) m3_forced_blocks(s->forced, last_block(s, d->want), s->width, &s->semantics);
    int truth = read_truth(s, d, row, group);
    if (s->of == M3_CHOICE_OF_BLOCKS) find_own(s, d->want);
    if (truth && !tainted) d->truth = s->truth;
    int known = truth || s->want.tensor == NULL || (s->of == M3_CHOICE_OF_EXPERTS && s->bias == NULL);
    if ((known && by_own_scores(s, row, group)) || by_given_scores(s, d, row, group) ||
        (truth && !tainted && by_reference_scores(s, row, group)) || by_margin(s, d, row, tainted)) {
        const double *proven = d->scores.proven;
        d->scores = all_scores(s);
        d->scores.proven = proven;
    }
    s->tainted = tainted && d->scores.score == NULL;
}
