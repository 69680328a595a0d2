#include "oracle/error/private/recompute.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

struct slot {
    const struct m3_node *node;
    int64_t group;                  /* index of the first tap of its layer */
    int64_t sum;                    /* slot of the sum that it may read before it is rounded; -1 */
    struct m3_tap_values value;     /* with its own memory; rows 0: not known */
    int is_given, is_known;         /* was put by the caller; is known at present */
    int64_t readers;                /* taps that read it and are not passed */
    int is_passed;                  /* is not computed any more */
};

struct m3_trace {
    struct m3_setting setting;
    struct slot *slots;             /* [count], one for each node of the graph from `first` on */
    const struct m3_node *first;
    int64_t count;
    int64_t at;                     /* the group that the trace has reached */
};

/* Modules run only without cached places, and while they have a row. */
static int64_t modules_of(const struct m3_setting *s)
{
    return s->the_case->p0 > s->the_case->shift ? 0 : m3_max(0, m3_min(s->model->mtp_modules, s->the_case->T - 1));
}

static const struct m3_node *first_of(const struct m3_setting *s)
{
    const struct m3_graph *graph = m3_graph_of(s->model, s->semantics);
    return s->the_case->pictures.P == 0 ? m3_graph_find(graph, M3_TAP_EMBED, -1) : graph->nodes;
}

int m3_trace_tap(const struct m3_setting *s, int64_t index, enum m3_tap *tap, int64_t *layer)
{
    const struct m3_graph *graph = m3_graph_of(s->model, s->semantics);
    const struct m3_node *node = first_of(s) + index;
    if (node >= graph->nodes + graph->count || m3_mtp_module_of(node->layer) >= modules_of(s)) return 0;
    *tap = node->tap;
    *layer = node->layer;
    return 1;
}

/* The slot of a tap; -1: the call does not have it. */
static int64_t slot_of(const struct m3_trace *t, enum m3_tap tap, int64_t layer)
{
    const struct m3_node *node = m3_graph_find(m3_graph_of(t->setting.model, t->setting.semantics), tap, layer);
    return node && node >= t->first && node < t->first + t->count ? node - t->first : -1;
}

/* The slot of operand i of a tap; -1: there is none, or this call does not have it. */
static int64_t operand_of(const struct m3_trace *t, int64_t slot, int i)
{
    const struct m3_node *node = t->slots[slot].node;
    enum m3_tap tap;
    int64_t layer;
    if (m3_setting_operand(&tap, &layer, &t->setting, node->tap, node->layer, i)) return -1;
    return slot_of(t, tap, layer);
}

static void forget(struct slot *s)
{
    m3_tap_values_free(&s->value);
    s->is_known = 0;
}

/* Adds to the readers of what a tap reads, its sum's terms among it. What nobody reads any more is dropped. */
static void count_readers(struct m3_trace *t, int64_t at, int64_t more)
{
    const int64_t of[] = { at, t->slots[at].sum };
    for (int i = 0; i < 2 * M3_OPERANDS; i++) {
        const int64_t reads = of[i % 2] < 0 ? -1 : operand_of(t, of[i % 2], i / 2);
        if (reads < 0) continue;
        t->slots[reads].readers += more;
        if (t->slots[reads].readers == 0) forget(&t->slots[reads]);
    }
}

int m3_trace_new(struct m3_trace **trace, const struct m3_setting *setting, struct m3_error *error)
{
    struct m3_trace *t = *trace = calloc(1, sizeof *t);
    int64_t count = 0;
    enum m3_tap tap;
    int64_t layer;
    if (!t) return m3_fail_memory(error, "a trace", sizeof *t);
    while (m3_trace_tap(setting, count, &tap, &layer)) count++;
    t->setting = *setting;
    t->first = first_of(setting);
    t->count = count;
    t->slots = calloc((size_t)count + 1, sizeof *t->slots);
    if (!t->slots) {
        free(t);
        *trace = NULL;
        return m3_fail_memory(error, "a trace", (size_t)count * sizeof *t->slots);
    }
    for (int64_t i = 0; i < count; i++) {
        struct slot *s = &t->slots[i];
        s->node = t->first + i;
        s->group = i > 0 && s[-1].node->layer == s->node->layer ? s[-1].group : i;
        s->sum = m3_fused_sum(&tap, &layer, setting, s->node->tap, s->node->layer) ? slot_of(t, tap, layer) : -1;
    }
    for (int64_t i = 0; i < count; i++) count_readers(t, i, 1);
    return M3_OK;
}

void m3_trace_free(struct m3_trace *trace)
{
    if (!trace) return;
    for (int64_t i = 0; i < trace->count; i++) forget(&trace->slots[i]);
    free(trace->slots);
    free(trace);
}

/* The tap is not computed any more: drops what it was the last to read, and itself if no tap is left to read it. */
static void pass(struct m3_trace *t, int64_t at)
{
    struct slot *s = &t->slots[at];
    if (!s->is_passed) count_readers(t, at, -1);
    s->is_passed = 1;
    if (s->readers == 0) forget(s);
}

/* Passes the taps before `start`, but not an unknown one that may have to be recomputed for another. */
static void move_on(struct m3_trace *t, int64_t start)
{
    for (int64_t i = start - 1; i >= 0 && start > t->at; i--)
        if (t->slots[i].is_known || t->slots[i].readers == 0) pass(t, i);
    t->at = m3_max(t->at, start);
}

void m3_trace_pass(struct m3_trace *trace, enum m3_tap tap, int64_t layer)
{
    const int64_t at = slot_of(trace, tap, layer);
    if (at >= 0 && trace->slots[at].is_given) pass(trace, at);
}

/* Adds the rounding of the dump to a tap that was used at a finer precision than it was dumped. */
static int add_dump_rounding(struct m3_tap_values *value, const char *name, double u, struct m3_error *error)
{
    const int64_t n = value->rows * value->width;
    struct m3_spread *off = &value->off;
    if (u == 0 || !m3_tap_doubles(value)) return M3_OK;
    if (!off->error) off->error = calloc((size_t)n + 1, sizeof(double));
    if (!off->variance) off->variance = calloc((size_t)n + 1, sizeof(double));
    if (!off->error || !off->variance) return m3_fail_memory(error, name, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++)
        if (isfinite(value->values[i]))
            m3_propagate_store(&(struct m3_spread){ off->error + i, off->variance + i }, value->values + i, 1, u, 0);
    return M3_OK;
}

/* Leaves the rows of the call that an operator can read. */
static void drop_unusable(struct m3_tap_values *v, int64_t all)
{
    const size_t bytes = (size_t)v->width * m3_tap_number_bytes(v->tap, sizeof(double));
    int64_t rows = 0;
    for (int64_t r = 0; r < v->rows; r++) {
        if (!v->usable[r] || v->numbers[r] >= all) continue;
        memmove((char *)v->data + (size_t)rows * bytes, (char *)v->data + (size_t)r * bytes, bytes);
        v->numbers[rows++] = v->numbers[r];
    }
    v->rows = rows;
    free(v->usable);
    v->usable = NULL;
    if (rows != all) return;
    free(v->numbers);
    v->numbers = NULL;
}

int m3_trace_take(struct m3_trace *trace, struct m3_tap_values *value, struct m3_error *error)
{
    const int64_t at = slot_of(trace, value->tap, value->layer);
    struct m3_tap_values own = *value;
    char name[96] = "";
    *value = (struct m3_tap_values){ 0 };
    m3_tap_name(name, sizeof name, own.tap, own.layer);
    if (at < 0) {
        m3_tap_values_free(&own);
        return m3_fail(error, M3_INTERNAL, "%s: got a value for it, expected a tap that this call makes", name);
    }
    if (own.usable) drop_unusable(&own, m3_tap_rows(&trace->setting, own.tap, own.layer));
    struct slot *s = &trace->slots[at];
    int status = M3_OK;
    move_on(trace, s->group);
    forget(s);
    s->value = own;
    if (trace->setting.profile)
        status = add_dump_rounding(&s->value, name, m3_profile_dump_rounding(trace->setting.profile, name), error);
    s->is_known = s->is_given = !status;
    return status;
}

int m3_trace_put(struct m3_trace *trace, const struct m3_tap_values *value, struct m3_error *error)
{
    struct m3_tap_values own;
    const int status = m3_tap_values_copy(&own, value, error);
    return status ? status : m3_trace_take(trace, &own, error);
}

const struct m3_tap_values *m3_trace_get(const struct m3_trace *trace, enum m3_tap tap, int64_t layer)
{
    const int64_t at = slot_of(trace, tap, layer);
    return at >= 0 && trace->slots[at].is_known ? &trace->slots[at].value : NULL;
}

/* A recomputed tap, whose memory it takes over: known up to its own allowance. */
static struct m3_tap_values value_of(const struct m3_trace *t, struct m3_recomputed *y)
{
    const int64_t n = y->y.rows * y->y.width;
    const struct m3_bound bound = { .bound = y->bound, .walk = y->walk, .n = y->n, .f = y->f };
    struct m3_tap_values value = y->y;
    y->y = (struct m3_tap_values){ .off = value.off };
    value.off = (struct m3_spread){ NULL, NULL };
    if (!y->bound) return value;
    value.off = (struct m3_spread){ y->bound, y->walk };
    m3_allowance(y->bound, y->walk, &bound, n, m3_setting_arithmetic(&t->setting, n).u);
    m3_propagate_add(&value.off, &y->y.off, NULL, n);
    y->bound = NULL, y->walk = NULL;
    return value;
}

static void keep(struct m3_trace *t, int64_t at, struct m3_recomputed *y)
{
    t->slots[at].value = value_of(t, y);
    t->slots[at].is_known = 1;
}

/* In a layer without known taps nothing is recomputed, except in the layer of the requested tap: errors that are
 * propagated through whole layers are meaningless. */
static int may_recompute(const struct m3_trace *t, int64_t at, int64_t asked)
{
    const int64_t group = t->slots[at].group;
    if (t->slots[at].node->layer < 0 || group == t->slots[asked].group) return 1;
    for (int64_t i = group; i < t->count && t->slots[i].group == group; i++)
        if (t->slots[i].is_given && m3_tap_table[t->slots[i].node->tap].kind == M3_KIND_REALS) return 1;
    return 0;
}

/* The requested tap and rows. */
struct asked {
    int64_t slot, first, end;
    int fused;                      /* a norm reads its sum before it is rounded */
    m3_recompute_instead *instead;  /* of the requested tap; NULL: the tap itself */
    const struct m3_visit *visit;   /* who receives it in pieces; NULL: nobody */
    enum m3_norm_scale scale;       /* how it forms 1 + w */
};

/* The sum of a norm before its rounding, of the sum's known terms. Returns 0 in *is_made if one is not known. */
static int unrounded_sum(struct m3_tap_values *value, int *is_made, struct m3_trace *t, int64_t sum,
                         struct m3_error *error)
{
    const struct m3_tap_values *terms[M3_OPERANDS] = { NULL };
    const struct m3_node *node = t->slots[sum].node;
    struct m3_setting setting = t->setting;
    struct m3_recomputed made = { 0 };
    int status = M3_OK, known = 1;
    for (int i = 0; i < M3_OPERANDS && !status; i++) {
        const int64_t from = operand_of(t, sum, i);
        if (from < 0) continue;
        const struct slot *term = &t->slots[from];
        known &= term->is_known && (term->is_given || m3_error_operators[term->node->op]->copies);
        terms[i] = &term->value;
    }
    setting.unrounded = 1;
    if (known) status = m3_recompute(&made, &setting, node->tap, node->layer, terms, 0, INT64_MAX, error);
    *is_made = known && !status && !made.missing[0] && made.y.rows == t->slots[sum].value.rows;
    if (*is_made) *value = value_of(t, &made);
    m3_recomputed_free(&made);
    return status;
}

/* The stored sum, and its rounding as a spread: the sum before it was rounded is within. */
static int widened_sum(struct m3_tap_values *value, const struct m3_trace *t, int64_t sum, struct m3_error *error)
{
    const struct slot *s = &t->slots[sum];
    char name[96] = "";
    m3_tap_name(name, sizeof name, s->node->tap, s->node->layer);
    const int status = m3_tap_values_copy(value, &s->value, error);
    if (status) return status;
    return add_dump_rounding(value, name, m3_profile_store(t->setting.profile, name), error);
}

/* What a norm may have read where its sum was given: as `asked` says for the requested tap, any of both for others. */
static int read_sum(struct m3_tap_values *value, struct m3_trace *t, int64_t at, const struct asked *asked,
                    struct m3_error *error)
{
    const int64_t sum = t->slots[at].sum;
    int is_made = 0, status = M3_OK;
    if (sum < 0 || !t->slots[sum].is_known || !t->slots[sum].is_given || (at == asked->slot && !asked->fused))
        return M3_OK;
    if (at == asked->slot) status = unrounded_sum(value, &is_made, t, sum, error);
    return status || is_made ? status : widened_sum(value, t, sum, error);
}

static int recompute(struct m3_recomputed *out, struct m3_trace *t, int64_t at, const struct asked *asked,
                     struct m3_error *error)
{
    const struct m3_tap_values *operands[M3_OPERANDS] = { NULL };
    struct m3_tap_values sum = { 0 };
    *out = (struct m3_recomputed){ 0 };
    for (int i = 0; i < M3_OPERANDS; i++) {
        const int64_t from = operand_of(t, at, i);
        if (from < 0) continue;
        if (!t->slots[from].is_known && may_recompute(t, from, asked->slot)) {
            struct m3_recomputed operand;
            int status = recompute(&operand, t, from, asked, error);
            if (!status && !operand.missing[0]) keep(t, from, &operand);
            if (!status) memcpy(out->missing, operand.missing, sizeof out->missing);
            m3_recomputed_free(&operand);
            if (status || out->missing[0]) return status;
        }
        if (t->slots[from].is_known) operands[i] = &t->slots[from].value;
    }
    const struct m3_node *node = t->slots[at].node;
    const int whole = at != asked->slot;
    struct m3_setting setting = t->setting;
    if (!whole) setting.instead = asked->instead, setting.visit = asked->visit, setting.norm_scale = asked->scale;
    int status = read_sum(&sum, t, at, asked, error);
    if (sum.values) operands[0] = &sum;
    if (!status)
        status = m3_recompute(out, &setting, node->tap, node->layer, operands, whole ? 0 : asked->first,
                              whole ? INT64_MAX : asked->end, error);
    m3_tap_values_free(&sum);
    return status;
}

/* Recomputes a tap; only rows [first, end) where that is possible. */
static int ask(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer, struct asked asked,
               struct m3_error *error)
{
    asked.slot = slot_of(trace, tap, layer);
    *out = (struct m3_recomputed){ 0 };
    if (asked.slot < 0) {
        m3_recompute_missing(out, "%s, which this call does not make", m3_tap_table[tap].name);
        return M3_OK;
    }
    move_on(trace, trace->slots[asked.slot].group);
    const int64_t sum = trace->slots[asked.slot].sum;
    if (asked.fused && (sum < 0 || !trace->slots[sum].is_known || !trace->slots[sum].is_given)) {
        m3_recompute_missing(out, "a sum that was stored");
        return M3_OK;
    }
    return recompute(out, trace, asked.slot, &asked, error);
}

int m3_trace_recompute(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                       struct m3_error *error)
{
    return ask(out, trace, tap, layer, (struct asked){ .end = INT64_MAX, .scale = M3_SCALE_PLAIN }, error);
}

int m3_trace_recompute_rows(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                            int64_t first, int64_t end, struct m3_error *error)
{
    return ask(out, trace, tap, layer, (struct asked){ .first = first, .end = end, .scale = M3_SCALE_PLAIN }, error);
}

int m3_trace_recompute_as(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                          int hypothesis, struct m3_error *error)
{
    const struct m3_profile *profile = trace->setting.profile;
    const int rounded = (hypothesis & M3_AS_ROUNDED) != 0;
    char name[96];
    *out = (struct m3_recomputed){ 0 };
    if (rounded && (!profile || !trace->setting.model->config.gemma_norm ||
                    m3_tap_name(name, sizeof name, tap, layer) || m3_profile_norm_weight(profile, name) == M3_DTYPES)) {
        m3_recompute_missing(out, "a norm that rounds its weights");
        return M3_OK;
    }
    return ask(out, trace, tap, layer,
               (struct asked){ .end = INT64_MAX,
                               .fused = (hypothesis & M3_AS_FUSED) != 0,
                               .scale = rounded ? M3_SCALE_ROUNDED : M3_SCALE_PLAIN },
               error);
}

int m3_trace_derivative(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                        int64_t first, int64_t end, m3_recompute_instead *derivative, const struct m3_visit *visit,
                        struct m3_error *error)
{
    const struct asked asked = { .first = first, .end = end, .instead = derivative, .visit = visit };
    return ask(out, trace, tap, layer, asked, error);
}

int m3_fused_sum(enum m3_tap *sum, int64_t *sum_layer, const struct m3_setting *s, enum m3_tap tap, int64_t layer)
{
    char name[96];
    if (!s->profile || m3_tap_name(name, sizeof name, tap, layer) || !m3_profile_fused_norm(s->profile, name)) return 0;
    if (m3_setting_operand(sum, sum_layer, s, tap, layer, 0)) return 0;
    return m3_graph_node(s->model, s->semantics, *sum, *sum_layer)->op == M3_OP_ADD;
}
