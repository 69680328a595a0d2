#include "oracle/judge/blame/blame.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/origin.h"
#include "oracle/cause/tap.h"
#include "oracle/judge/blame/private/blame.h"
#include "oracle/judge/finding/kept.h"
#include "oracle/judge/gradients.h"
#include "oracle/judge/hints.h"
#include "oracle/judge/logits.h"

static int by_execution(const void *a, const void *b)
{
    const struct m3_blame_item *x = a, *y = b;
    return m3_tap_order(x->tap, x->layer, y->tap, y->layer);
}

struct m3_blame_item *m3_blame_find(const struct m3_blaming *b, enum m3_tap tap, int64_t layer)
{
    const struct m3_blame_item key = { .tap = tap, .layer = layer };
    return bsearch(&key, b->items, (size_t)b->count, sizeof key, by_execution);
}

struct m3_blame_item *m3_blame_operand(const struct m3_blaming *b, const struct m3_blame_item *item, int i)
{
    enum m3_tap tap;
    int64_t layer;
    const struct m3_setting *s = b->setting;
    if (m3_setting_operand(&tap, &layer, s, item->tap, item->layer, i)) return NULL;
    return m3_blame_find(b, tap, layer);
}

/* ---- the dump and its origin */

static int check_origin(struct m3_judgement *result, const struct m3_blaming *b, const struct m3_safetensors *file)
{
    const struct m3_origin_use use = { .verdict = "judged", .force = b->options->force, .status = M3_NOT_COMPARABLE };
    struct m3_origin expected;
    int status = m3_origin_of_model(&expected, b->setting->model, b->setting->the_case, b->error);
    return status ? status : m3_origin_check(file, &expected, &use, &result->notes, b->error);
}

/* ---- the taps to judge */

static const char *section_of(const struct m3_setting *s, const struct m3_blame_item *item)
{
    const struct m3_config *c = &s->model->config;
    const int64_t l = m3_layer_index(c, item->layer);
    const struct m3_node *node = m3_graph_node(s->model, s->semantics, item->tap, item->layer);
    const char *const *sections = m3_tap_sections(node);
    if (!sections[1]) return sections[0];
    return (item->tap == M3_TAP_MLP ? m3_config_moe(c, l) : m3_config_sparse(c, l)) ? sections[1] : sections[0];
}

/* A hint at what the tensor of another shape is, or `why`. */
static const char *hint(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_tensor *t,
                        const char *why)
{
    const char *letters = m3_tap_table[item->tap].shape;
    int64_t shape[M3_MAX_RANK] = { item->rows };
    const int rank = (int)strlen(letters);
    for (int i = 1; i < rank; i++)
        shape[i] = letters[i] == 'B' ? -1 : m3_config_size(&b->setting->model->config, letters[i]);
    return m3_shape_hint(rank, shape, t, why);
}

/* Does the tensor have the tap's shape, in the rows that the dump numbers, and its kind of numbers? Returns NULL, or
 * the mismatch. */
static const char *fits(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_tensor *t)
{
    const struct m3_tap_row *row = &m3_tap_table[item->tap];
    const struct m3_tensor *rows = m3_side_rows(item->side, item->tap);
    if (row->kind == M3_KIND_REALS && !m3_holds_floats(t)) return "not a float dtype";
    if (row->kind != M3_KIND_REALS && !m3_holds_ids(t)) return "not an integer dtype";
    if (t->rank != (int)strlen(row->shape)) return hint(b, item, t, "not the rank of this tap");
    if (t->shape[0] != (rows ? rows->count : item->rows)) return hint(b, item, t, "not the rows of this call");
    for (int i = 1; i < t->rank; i++)
        if (row->shape[i] != 'B' && t->shape[i] != m3_config_size(&b->setting->model->config, row->shape[i]))
            return hint(b, item, t, "not the shape of this tap");
    return t->count == t->shape[0] * item->width ? NULL : "not the shape of this tap";
}

/* Does each set have another number of ids than the model chooses, not only other padding? */
static int has_other_count(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_tensor *t)
{
    const struct m3_config *config = &b->setting->model->config;
    const char *shape = m3_tap_table[item->tap].shape;
    const int last = (int)strlen(shape) - 1;
    if (m3_tap_table[item->tap].kind != M3_KIND_CHOICES || !m3_holds_ids(t) || t->rank != last + 1) return 0;
    for (int i = 1; i < last; i++)
        if (t->shape[i] != m3_config_size(config, shape[i])) return 0;
    int64_t most = m3_config_size(config, shape[last]);
    if (item->tap == M3_TAP_INDEX_BLOCKS) {
        const int64_t places = b->setting->the_case->p0 + item->rows;
        const int64_t visible = (places + config->block - 1) / config->block;
        if (visible < most && t->shape[last] >= visible) most = visible;
    }
    return t->shape[last] != m3_config_size(config, shape[last]) && m3_most_ids(t) != most;
}

/* Such sets are all wrong, and the cause of what differs after them. No operator can read them. */
static void fail_count(struct m3_finding *out, const struct m3_tensor *t)
{
    const int64_t width = t->shape[t->rank - 1];
    out->verdict = M3_VERDICT_FAIL;
    out->choice = M3_CHOICE_INADMISSIBLE;
    out->rows = t->shape[0];
    out->elements = out->choices[M3_CHOICE_INADMISSIBLE] = width > 0 ? t->count / width : 0;
    out->created = 1;
    m3_finding_note(out, "another number of %s than the model chooses: got %" PRId64,
                    out->id == M3_TAP_INDEX_BLOCKS ? "blocks" : "experts", m3_most_ids(t));
}

void m3_blame_begin_tap(struct m3_blaming *b, struct m3_blame_item *item, struct m3_finding *out,
                        const struct m3_tensor *t, const char *why)
{
    const struct m3_setting *s = b->setting;
    const struct m3_node *node = m3_graph_node(s->model, s->semantics, item->tap, item->layer);
    *out =
        m3_finding_recomputed(t, item->tap, item->layer,
                              m3_operator_name(node->op == M3_OP_NONE ? M3_OP_INPUT : node->op), section_of(s, item));
    item->blamed = out;
    if (!why) return;
    out->verdict = M3_VERDICT_NOT_COMPARABLE;
    m3_finding_note(out, "%s", why);
    if (has_other_count(b, item, t)) fail_count(out, t);
}

/* Takes logits of another shape as the tap has them: *t. *why: they are refused. */
static int read_logits(const struct m3_tensor **t, const char **why, struct m3_judgement *result,
                       const struct m3_blaming *b, struct m3_blame_item *item)
{
    const struct m3_logits *before = result->logits;
    const struct m3_logits_shape shape = { .tap = item->tap, .rows = item->rows, .V = item->width };
    int status = m3_logits_read(&result->logits, why, *t, &b->side, &shape, &result->notes, b->error);
    if (status || result->logits == before) return status;
    *t = &result->logits->tensor;
    item->side = &result->logits->side;
    return M3_OK;
}

int m3_blame_list_items(struct m3_blaming *b)
{
    enum m3_tap tap;
    int64_t layer, room = 0;
    while (m3_trace_tap(b->setting, room, &tap, &layer)) room++;
    b->items = calloc((size_t)room + 1, sizeof *b->items);
    if (!b->items) return m3_fail_memory(b->error, "the list of taps", (size_t)room * sizeof *b->items);
    for (b->count = 0; b->count < room; b->count++) {
        struct m3_blame_item *item = &b->items[b->count];
        m3_trace_tap(b->setting, b->count, &item->tap, &item->layer);
        m3_tap_name(item->name, sizeof item->name, item->tap, item->layer);
        item->rows = m3_tap_rows(b->setting, item->tap, item->layer);
        item->width = m3_tap_width(b->setting, item->tap, item->layer);
    }
    return M3_OK;
}

/* A result for each tap that the dump has and that matches. */
static int list_taps(struct m3_judgement *result, struct m3_blaming *b)
{
    int status = m3_blame_list_items(b);
    if (status) return status;
    result->findings = calloc((size_t)(b->count + m3_safetensors_count(b->side.file)) + 1, sizeof *result->findings);
    result->missing_taps = calloc((size_t)b->count + 1, sizeof *result->missing_taps);
    if (!result->findings || !result->missing_taps)
        return m3_fail_memory(b->error, "the list of taps", (size_t)b->count * sizeof *result->findings);
    for (int64_t i = 0; i < b->count; i++) {
        struct m3_blame_item *item = &b->items[i];
        const struct m3_tensor *t = m3_safetensors_find(b->side.file, item->name);
        const char *why = NULL;
        item->side = &b->side;
        if (t && read_logits(&t, &why, result, b, item)) return M3_INTERNAL;
        if (t && !why) why = fits(b, item, t);
        if (t && !why) item->dumped = t;
        if (!m3_tap_matches(b->options->taps, item->name) || !m3_setting_judges(b->setting, item->tap, item->layer))
            continue;
        if (t) m3_blame_begin_tap(b, item, &result->findings[result->count++], t, why);
        else m3_judgement_miss(result, item->name);
        if (t && item->side != &b->side) item->blamed->logits = result->logits;
    }
    return M3_OK;
}

/* Of a norm that may read its sum before it is rounded: the terms of the sum. */
static void mark_terms(struct m3_blaming *b, const struct m3_blame_item *item)
{
    enum m3_tap tap;
    int64_t layer;
    if (!m3_fused_sum(&tap, &layer, b->setting, item->tap, item->layer)) return;
    const struct m3_blame_item *sum = m3_blame_find(b, tap, layer);
    for (int j = 0; sum && sum->dumped && j < M3_OPERANDS; j++) {
        struct m3_blame_item *term = m3_blame_operand(b, sum, j);
        if (term && term->dumped) term->needed = 1;
    }
}

/* The operands of judged taps, and the taps needed to recompute operands that were not dumped. */
void m3_blame_mark_needed(struct m3_blaming *b)
{
    for (int64_t i = b->count - 1; i >= 0; i--) {
        struct m3_blame_item *item = &b->items[i];
        const int judged = item->blamed && item->dumped;
        item->needed |= judged;
        if (!item->needed || (item->dumped && !judged)) continue;
        for (int j = 0; j < M3_OPERANDS; j++) {
            struct m3_blame_item *operand = m3_blame_operand(b, item, j);
            if (operand) operand->needed = 1;
        }
        if (judged) mark_terms(b, item);
    }
}

/* ---- in execution order */

/* The grid of the case as numbers, to be compared for equality. */
static int counts_as_numbers(struct m3_recomputed *made, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    const int64_t n = made->y.rows * made->y.width;
    const size_t room = (size_t)n + 1;
    double *values = malloc(room * sizeof *values);
    made->bound = calloc(room, sizeof *made->bound);
    made->walk = calloc(room, sizeof *made->walk);
    made->f = 1;
    for (int64_t i = 0; values && i < n; i++) values[i] = (double)made->y.ids[i];
    free(made->y.ids);
    made->y.values = values;
    if (!values || !made->bound || !made->walk) return m3_fail_memory(b->error, item->name, room * sizeof *values);
    return M3_OK;
}

/* A tap whose operator refuses its inputs is not judged: the operator's message says why. */
static int recompute(struct m3_recomputed *made, const struct m3_blaming *b, const struct m3_blame_item *item)
{
    struct m3_error why = { 0 };
    const int has_span = item->blamed && b->options->end_row > 0;
    const int64_t first = has_span ? b->options->first_row : 0, end = has_span ? b->options->end_row : INT64_MAX;
    int status = m3_trace_recompute_rows(made, b->trace, item->tap, item->layer, first, end, &why);
    const int refused = status == M3_WRONG;
    if (refused) {
        m3_recomputed_free(made);
        const char *lines = m3_error_lines(&why), *text = lines ? lines : "";
        snprintf(made->missing, sizeof made->missing, "inputs that its operator accepts: %.*s",
                 (int)strcspn(text, "\n"), text);
    } else if (status) {
        m3_fail_because(b->error, status, &why);
    }
    m3_error_free(&why);
    if (!status && made->y.data && m3_tap_table[item->tap].kind == M3_KIND_COUNTS)
        status = counts_as_numbers(made, b, item);
    return refused ? M3_OK : status;
}

static void not_judged(struct m3_finding *out, const struct m3_recomputed *made, int64_t rows)
{
    out->verdict = M3_VERDICT_NOT_JUDGED;
    out->rows_left_out = rows;
    m3_finding_note(out, "missing: %s", made->missing);
}

static int choices(const struct m3_blaming *b, struct m3_blame_item *item, struct m3_tap_values *dumped)
{
    struct m3_recomputed made = { 0 };
    int status = recompute(&made, b, item);
    if (!status && !item->dumped) {
        if (!made.missing[0]) status = m3_blame_certain_rows(b, item, &made);
    } else if (!status) {
        status = m3_blame_judge_choices(b, item, dumped, &made);
        if (item->blamed && made.missing[0] && item->blamed->elements == 0)
            not_judged(item->blamed, &made, dumped->rows);
        if (!status && !made.missing[0]) status = m3_blame_name_mistake(b, item, dumped, &made);
    }
    m3_recomputed_free(&made);
    return status;
}

/* A norm may have read its sum before it was rounded, or may have rounded 1 + w; ranks may have added two terms before
 * they were rounded: what explains the tap better counts. */
static int try_others(const struct m3_blaming *b, struct m3_blame_item *item, const struct m3_tap_values *dumped)
{
    int status = M3_OK;
    for (int as = 1; as <= M3_HYPOTHESES && !status; as++) {
        const struct m3_finding before = *item->blamed;
        struct m3_recomputed made = { 0 };
        if (before.verdict != M3_VERDICT_FAIL && before.verdict != M3_VERDICT_SUSPECT) return M3_OK;
        status = as < M3_HYPOTHESES ? m3_trace_recompute_as(&made, b->trace, item->tap, item->layer, as, b->error)
                                    : m3_blame_reduced_once(&made, b, item);
        if (!status && !made.missing[0]) {
            item->blamed->note[0] = 0;
            status = m3_blame_judge_values(b, item, dumped, &made);
            if (!m3_verdict_is_better(&item->blamed->tiers, &before.tiers)) *item->blamed = before;
        }
        m3_recomputed_free(&made);
    }
    return status;
}

/* Was it judged before the judge was stopped? What was named then is known now. */
static int is_kept(const struct m3_blaming *b, struct m3_finding *out)
{
    int64_t budget;
    if (!m3_kept_find(out, &budget, b->options->kept)) return 0;
    if (!b->named) return 1;
    b->named->budget = budget;
    if (out->is_first_named && b->named->count < M3_MOST_NAMED) b->named->mistakes[b->named->count++] = out->mistake;
    return 1;
}

static int floats(const struct m3_blaming *b, struct m3_blame_item *item, struct m3_tap_values *dumped)
{
    struct m3_recomputed made = { 0 };
    if (is_kept(b, item->blamed)) return M3_OK;
    int status = recompute(&made, b, item);
    if (!status && made.missing[0]) not_judged(item->blamed, &made, dumped->rows);
    else if (!status) status = m3_blame_judge_values(b, item, dumped, &made);
    if (!status) status = try_others(b, item, dumped);
    if (!status && !made.missing[0]) status = m3_blame_name_mistake(b, item, dumped, &made);
    if (!status && !made.missing[0]) status = m3_blame_score(b, item, dumped, &made);
    if (!status) status = m3_kept_add(b->options->kept, item->blamed, b->named ? b->named->budget : 0, b->error);
    m3_recomputed_free(&made);
    return status;
}

/* Pixels that are not in the dump are put too: what a profile says about dumped pixels applies to the case's. */
static int put_pixels(const struct m3_blaming *b, const struct m3_blame_item *item)
{
    struct m3_recomputed made = { 0 };
    int status = recompute(&made, b, item);
    struct m3_tap_values value = made.y;
    value.off = (struct m3_spread){ NULL, NULL };
    if (!status && !made.missing[0]) status = m3_trace_put(b->trace, &value, b->error);
    m3_recomputed_free(&made);
    return status;
}

int m3_blame_judge_tap(const struct m3_blaming *b, struct m3_blame_item *item, struct m3_tap_values *dumped)
{
    const enum m3_tap_kind kind = m3_tap_table[item->tap].kind;
    int status = M3_OK;
    if (kind == M3_KIND_CHOICES) status = choices(b, item, dumped);
    else if (item->dumped && item->blamed) status = floats(b, item, dumped);
    else if (!item->dumped && item->tap == M3_TAP_VISION_PIXELS) status = put_pixels(b, item);
    if (!status && item->dumped && kind != M3_KIND_COUNTS) status = m3_trace_take(b->trace, dumped, b->error);
    return status;
}

int m3_blame_take(const struct m3_blaming *b, struct m3_blame_item *item)
{
    struct m3_tap_values dumped = { 0 };
    int status = item->dumped ? m3_blame_read(&dumped, b, item) : M3_OK;
    if (!status) status = m3_blame_judge_tap(b, item, &dumped);
    m3_tap_values_free(&dumped);
    if (!status && item->dumped) m3_trace_pass(b->trace, item->tap, item->layer);
    return status;
}

/* ---- the whole */

static void note_others(struct m3_judgement *result, const struct m3_blaming *b)
{
    int64_t others = 0;
    const char *first = NULL;
    for (int64_t i = 0; i < m3_safetensors_count(b->side.file); i++) {
        const char *name = m3_safetensors_at(b->side.file, i)->name;
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(name, &tap, &layer) || m3_blame_find(b, tap, layer)) continue;
        result->extra += m3_tap_matches(b->options->taps, name);
        if (others++ == 0) first = name;
    }
    if (others)
        m3_fail(&result->notes, M3_OK,
                "taps of the candidate that this model does not produce for this case: %" PRId64 ", first %s", others,
                first);
}

int m3_blame(struct m3_judgement *result, const struct m3_setting *setting, const struct m3_safetensors *candidate,
             const struct m3_blame_options *options, struct m3_error *error)
{
    enum { TRIED = 96 };
    struct m3_blame_named named = { .budget = TRIED };
    struct m3_blaming b = { .setting = setting, .options = options, .error = error };
    m3_coarse_begin(&b.coarse, setting->profile);
    if (options->names_mistakes) b.named = &named;
    *result =
        (struct m3_judgement){ .status = M3_NOT_COMPARABLE, .verdict = M3_VERDICT_NOT_COMPARABLE, .is_recomputed = 1 };
    int status = m3_side_begin(&b.side, candidate, error);
    if (!status) status = check_origin(result, &b, candidate);
    if (!status) status = list_taps(result, &b);
    if (!status) note_others(result, &b);
    const int has_gradients = !status && m3_holds_gradients(candidate);
    if (!status && result->count == 0 && !has_gradients)
        status = m3_fail(error, M3_NOT_COMPARABLE, "%s: nothing matched: got no tap of this model and case%s%s",
                         m3_safetensors_path(candidate), options->taps ? " that matches " : "",
                         options->taps ? options->taps : "");
    if (!status) m3_blame_mark_needed(&b);
    if (!status) status = m3_trace_new(&b.trace, setting, error);
    if (!status) status = m3_blame_all(&b);
    m3_blame_drop_truth(&b);
    result->double_passes = b.double_passes;
    if (!status) status = m3_blame_settle(result, &b);
    const int64_t taps = result->count;
    if (!status && has_gradients) status = m3_blame_gradients(result, &b);
    const int64_t all = result->count;
    if (!status) m3_judgement_settle(result, result->extra);
    result->count = taps;
    if (!status && b.named) m3_blame_say_mistakes(result);
    /* What no forward tap did wrong, no word about the forward pass explains. */
    if (!status && result->first && result->first - result->findings < taps) status = m3_blame_explain(result, &b);
    result->count = all;
    m3_trace_free(b.trace);
    free(b.items);
    return status;
}
