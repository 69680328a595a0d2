#include "oracle/operators/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/blame/blame.h"
#include "oracle/judge/align.h"
#include "oracle/judge/side_by_side.h"
#include "oracle/operators/given.h"
#include "oracle/operators/private.h"

struct checking {
    const struct m3_fragment *f;
    const struct m3_results *results;
    struct m3_setting setting;
    struct m3_finding *stages;
    int count;
    struct m3_error *error;
};

/* ---- results that cannot be judged */

static int holds_ids(const struct m3_operand_row *output)
{
    return output->role == M3_ROLE_TAP && m3_tap_table[output->tap].kind == M3_KIND_CHOICES;
}

/* NULL, or why the result does not fit. */
static const char *misfit(const struct checking *c, int i)
{
    const struct m3_operand_row *output = &c->f->op->outputs[i];
    const struct m3_tensor *t = &c->results->outputs[i];
    int64_t shape[M3_MAX_RANK];
    const int rank = m3_fragment_shape(shape, c->f, output);
    if (holds_ids(output) ? !m3_holds_ids(t) : !m3_holds_floats(t))
        return holds_ids(output) ? "not an integer dtype" : "not a float dtype";
    if (t->rank != rank) return "not the rank of this output";
    const int listed = c->results->rows && t->shape[0] == c->results->count;
    if (t->shape[0] != shape[0] && !listed) return "not the rows of this case";
    for (int d = 1; d < rank; d++)
        if (t->shape[d] != shape[d]) return "not the shape of this output";
    return NULL;
}

static struct m3_finding begin(const struct m3_operand_row *output, const struct m3_tensor *t)
{
    struct m3_finding finding = m3_finding_of(output->name, M3_TAPS, -1, t, t);
    finding.letters = output->letters;
    finding.selection = holds_ids(output);
    return finding;
}

static void refuse(struct m3_finding *finding, const char *why)
{
    finding->verdict = M3_VERDICT_NOT_COMPARABLE;
    m3_finding_note(finding, "%s", why);
}

/* ---- what blame finds, under the name of the output */

static void take_tiers(struct m3_finding *finding, const struct m3_tier_result *tiers)
{
    finding->tiers = *tiers;
    finding->violations = tiers->hard;
    finding->elements = tiers->judged;
    finding->judged_by = M3_BY_BOUNDS;
}

static void take(struct m3_finding *finding, const struct m3_finding *judged)
{
    const struct m3_finding own = *finding;
    *finding = *judged;
    finding->tap = own.tap, finding->id = own.id, finding->layer = own.layer, finding->letters = own.letters;
    finding->made_by = NULL;   /* the report names the operator of the case */
    finding->off = own.off;
    finding->off.rel_l2 = judged->created;
    finding->off.max_abs = fabs(judged->got - judged->want);
    if (!m3_is_judged(judged->verdict)) {
        finding->tiers = own.tiers, finding->n = own.n, finding->f = own.f;
        m3_finding_note(finding, judged->is_blind ? "the profile allows errors as large as the values"
                                                  : "its operands are missing, or are no numbers, in every row");
    } else if (judged->selection) {
        finding->rows = judged->elements;
        finding->differing = judged->choices[M3_CHOICE_TIE] + judged->choices[M3_CHOICE_ADMISSIBLE] +
                             judged->choices[M3_CHOICE_INADMISSIBLE];
        finding->scores = "candidate";
        finding->judged_by = M3_BY_CERTIFICATES;
    } else {
        take_tiers(finding, &judged->tiers);
        finding->off.max_rel = judged->off.max_rel;
    }
}

/* Do later outputs read rows of it that were not sampled? */
static int is_read_whole(const struct m3_operand_row *output)
{
    return output->tap == M3_TAP_VISION_Q_ROPE || output->tap == M3_TAP_VISION_K_ROPE;
}

/* Of sampled rows, outputs that are read as a whole are judged apart: they are recomputed for the others. */
static int judge_taps(struct checking *c, int read_whole)
{
    struct m3_given_call call;
    struct m3_judgement blame = { 0 };
    int at[M3_OPERATOR_OUTPUTS], judged = 0;
    int status = m3_given_operands(&call, c->f, c->results->rows, c->results->count, c->setting.ctx, c->error);
    for (int i = 0; !status && i < c->count; i++) {
        const struct m3_operand_row *output = &c->f->op->outputs[i];
        if (c->stages[i].verdict != M3_VERDICT_NOT_JUDGED || !c->stages[i].candidate) continue;
        if (m3_is_without_tap(c->f, output)) continue;
        if (c->results->rows && is_read_whole(output) != read_whole) continue;
        status = m3_given_output(&call, c->f, output, &c->results->outputs[i]);
        at[judged++] = i;
    }
    if (!status && judged > 0)
        status = m3_blame_given(&blame, &c->setting, call.taps, call.tensors, call.operands, call.count, c->error);
    for (int i = 0; !status && i < blame.count; i++)
        for (int k = 0; k < judged; k++)
            if (c->f->op->outputs[at[k]].tap == blame.findings[i].id) take(&c->stages[at[k]], &blame.findings[i]);
    m3_judgement_free(&blame);
    m3_given_free(&call);
    return status;
}

/* ---- outputs that are no taps */

static void place(struct m3_finding *stage, const struct m3_side_by_side *s, int64_t worst, int64_t width)
{
    if (worst < 0) return;
    m3_finding_place(stage, stage->candidate, s->numbers[worst / width], worst % width, stage->candidate->rank);
    stage->got = s->got[worst], stage->want = s->want[worst];
    stage->off.max_abs = fabs(stage->got - stage->want);
}

static void measure(struct m3_finding *stage, const struct m3_side_by_side *s)
{
    double difference = 0, size = 0, error = 0, peak = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const double d = fabs(s->got[i] - s->want[i]);
        difference += d * d;
        size += s->want[i] * s->want[i];
        if (d > error) error = d;
        if (fabs(s->want[i]) > peak) peak = fabs(s->want[i]);
    }
    stage->off.rel_l2 = difference == 0 ? 0 : sqrt(difference / size);
    stage->off.max_rel = error == 0 ? 0 : error / peak;
}

static int judge_without_tap(struct checking *c, int i)
{
    const struct m3_operand_row *output = &c->f->op->outputs[i];
    const struct m3_tensor *t = &c->results->outputs[i];
    struct m3_finding *stage = &c->stages[i];
    struct m3_recomputed made;
    struct m3_side_by_side s = { 0 };
    const int64_t *listed = c->results->rows;
    int64_t shape[M3_MAX_RANK];
    m3_fragment_shape(shape, c->f, output);
    int status = m3_recompute_without_tap(&made, &c->setting, c->f, output, listed, c->results->count, c->error);
    const int64_t rows = listed ? c->results->count : made.y.rows, width = made.y.width;
    const struct m3_weight given = { .data = t->data, .dtype = t->dtype, .rows = t->shape[0], .cols = width };
    if (!status) status = m3_side_by_side_room(&s, rows * width, rows, output->name, c->error);
    for (int64_t r = 0; !status && r < rows; r++) {
        const int64_t number = listed ? listed[r] : r;
        double *got = m3_side_by_side_row(&s, &made, number, 0);
        if (got) m3_expand_f64(got, &given, t->shape[0] == shape[0] ? number : r, 0, width);
    }
    if (!status) {
        const struct m3_side_by_side_rules rules = {
            .setting = &c->setting, .tap = "layers.0.q_rope", .n = made.n, .f = made.f, .has_extra = 1
        };
        const struct m3_tier_result tiers = m3_side_by_side_verdict(&s, &rules);
        stage->verdict = tiers.verdict;
        take_tiers(stage, &tiers);
        stage->n = made.n, stage->f = made.f;
        measure(stage, &s);
        stage->rows_left_out = rows - s.rows;
        if (!m3_is_judged(stage->verdict)) m3_finding_note(stage, "no element of it can be judged");
        place(stage, &s, tiers.worst, width);
    }
    m3_side_by_side_free(&s);
    m3_recomputed_free(&made);
    return status;
}

int m3_check_call(struct m3_finding *stages, int *stage_count, const struct m3_fragment *f,
                  const struct m3_results *results, const struct m3_profile *profile, struct m3_ctx *ctx,
                  struct m3_error *error)
{
    struct checking c = { .f = f, .results = results, .stages = stages, .error = error };
    c.setting = (struct m3_setting){ .model = &f->model,
                                     .semantics = &f->semantics,
                                     .the_case = &f->the_case,
                                     .profile = profile,
                                     .ctx = ctx,
                                     .need = f->drawn ? m3_drawn_experts_need : NULL,
                                     .need_self = f->drawn };
    int status = M3_OK;
    c.count = *stage_count = m3_operator_outputs(f->op);
    for (int i = 0; i < c.count; i++) {
        const struct m3_operand_row *output = &f->op->outputs[i];
        const struct m3_tensor *t = &results->outputs[i];
        stages[i] = begin(output, t);
        const char *why = t->rank > 0 ? misfit(&c, i) : output->optional ? NULL : "missing";
        if (why) refuse(&stages[i], why);
        else if (t->rank == 0) stages[i].candidate = NULL;
    }
    /* Optional outputs that are not given have no stage. */
    status = judge_taps(&c, 0);
    if (!status && results->rows) status = judge_taps(&c, 1);
    for (int i = 0; !status && i < c.count; i++)
        if (stages[i].verdict == M3_VERDICT_NOT_JUDGED && stages[i].candidate &&
            m3_is_without_tap(f, &f->op->outputs[i]))
            status = judge_without_tap(&c, i);
    return status;
}
