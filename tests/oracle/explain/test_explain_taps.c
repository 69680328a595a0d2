/* explain: every tap of every golden, against a pass and against steps that are followed here once more.
 *
 * Seen to fail with: rms_norm's factor not rounded to float; the squares of layer_norm summed in float; keys of another
 * group; forced blocks left out; experts in descending order; the bias of a linear left out; all channels of a head
 * rotated; a clamp left out; a segment that begins at row 0; a plain rope with another sign, and a plain linear in
 * descending order; an equation that differs from its operator's comment. */
#include "files.h"
#include "goldens.h"

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "passes.h"
#include "model/semantics.h"
#include "oracle/explain/explain.h"

TIMEOUT(600);

/* ---- a step followed from the recorded numbers of its operands */

static const double *values_of(const struct m3_steps *s, int step) { return s->list[step].values; }

/* Element i of an operand; a single number serves all. NaN beyond it: a sum has fewer or more results than terms. */
static double at(const struct m3_steps *s, int step, int64_t i)
{
    const int64_t count = s->list[step].count;
    return i < count || count == 1 ? values_of(s, step)[count == 1 ? 0 : i] : NAN;
}

static double product(enum m3_step_type type, double sum, double a, double b)
{
    if (type == M3_STEP_F64) return sum + a * b;
    const float p = (float)a * (float)b;
    return (double)((float)sum + p);
}

static double dot(const struct m3_steps *s, const struct m3_explained_step *x)
{
    double sum = 0;
    for (int64_t i = 0; i < s->list[x->of[0]].count; i++)
        sum = product(x->type, sum, values_of(s, x->of[0])[i], x->of[1] < 0 ? 1 : values_of(s, x->of[1])[i]);
    return sum;
}

static double matrix(const struct m3_steps *s, const struct m3_explained_step *x, int64_t row)
{
    const struct m3_weight *w = &s->list[x->of[0]].matrix;
    double sum = 0;
    for (int64_t k = 0; k < w->cols; k++) {
        float number;
        m3_expand_f32(&number, w, row, k, 1);
        sum = product(M3_STEP_F32, sum, (double)number, values_of(s, x->of[1])[k]);
    }
    return sum;
}

static double rounded(enum m3_step_type type, double a) { return type == M3_STEP_F32 ? (double)(float)a : a; }

/* The value, and how far the recorded one may be off, relatively: functions only. Double arithmetic on floats, rounded
 * to float, is float arithmetic for + - * / and the root. */
static double follow(double *off, const struct m3_steps *s, const struct m3_explained_step *x, int64_t i)
{
    const double a = x->by == M3_BY_MATRIX ? 0 : at(s, x->of[0], i), b = x->of[1] < 0 ? 0 : at(s, x->of[1], i);
    double best = -INFINITY;
    *off = 0;
    switch (x->by) {
    case M3_BY_ADD: return rounded(x->type, a + b);
    case M3_BY_SUBTRACT: return rounded(x->type, a - b);
    case M3_BY_MULTIPLY: return rounded(x->type, a * b);
    case M3_BY_DIVIDE: return rounded(x->type, a / b);
    case M3_BY_SQRT: return sqrt(a);
    case M3_BY_ROUND: return rounded(x->type, a);
    case M3_BY_AT_MOST: return fmin(a, b);
    case M3_BY_AT_LEAST: return fmax(a, b);
    case M3_BY_EXP: *off = 2 * DBL_EPSILON; return exp(a);
    case M3_BY_LN: *off = 2 * DBL_EPSILON; return log(a);
    case M3_BY_POW: *off = 2 * DBL_EPSILON; return pow(a, b);
    case M3_BY_COS: *off = 2 * DBL_EPSILON; return cos(a);
    case M3_BY_SIN: *off = 2 * DBL_EPSILON; return sin(a);
    case M3_BY_TAIL: *off = 1e-10; return erfc(fabs(a) / sqrt(2)) / 2;
    case M3_BY_SOFTMAX_EXP: *off = FLT_EPSILON; return exp(a);
    case M3_BY_LARGEST:
        for (int64_t j = 0; j < s->list[x->of[0]].count; j++) best = fmax(best, at(s, x->of[0], j));
        return best;
    case M3_BY_SUM:
    case M3_BY_DOT: return dot(s, x);
    case M3_BY_MATRIX: return matrix(s, x, i);
    case M3_BY_PICK: return values_of(s, x->of[0])[(int64_t)at(s, x->of[1], i)];
    default: ck_abort_msg("%s: not followed", x->name);
    }
    return NAN;
}

/* ---- choices: the best that is left, again and again */

static int64_t best_left(const double *scores, int64_t n, const char *taken)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!taken[i] && scores[i] > -INFINITY && (best < 0 || scores[i] > scores[best])) best = i;
    return best;
}

static void follow_choice(const struct m3_steps *s, const struct m3_explained_step *x)
{
    const struct m3_explained_step *scores = &s->list[x->of[0]];
    char *taken = calloc((size_t)scores->count, 1);
    if (x->by == M3_BY_BEST_EXPERTS) {
        ck_assert_int_eq(x->count, (int64_t)at(s, x->of[1], 0));
        for (int64_t k = 0; k < x->count; k++) {
            const int64_t best = best_left(scores->values, scores->count, taken);
            ck_assert_int_eq((int64_t)x->values[k], best);
            taken[best] = 1;
        }
    } else {
        const struct m3_explained_step *forced = &s->list[x->of[1]];
        int64_t count = forced->count, n = 0;
        ck_assert_int_eq(x->count, (int64_t)at(s, x->of[2], 0));
        for (int64_t i = 0; i < count; i++) taken[(int64_t)forced->values[i]] = 1;
        for (int64_t best; count < x->count && (best = best_left(scores->values, scores->count, taken)) >= 0; count++)
            taken[best] = 1;
        for (int64_t b = 0; b < scores->count; b++)
            if (taken[b]) ck_assert_int_eq((int64_t)x->values[n++], b);
        for (; n < x->count; n++) ck_assert_int_eq((int64_t)x->values[n], -1);
    }
    free(taken);
}

static void follow_all(const struct m3_explanation *e)
{
    for (int n = 0; n < e->steps.count; n++) {
        const struct m3_explained_step *x = &e->steps.list[n];
        for (int i = 0; i < M3_STEP_OPERANDS; i++) ck_assert_int_lt(x->of[i], n);
        if (x->by == M3_BY_GIVEN) continue;
        if (x->by == M3_BY_BEST_BLOCKS || x->by == M3_BY_BEST_EXPERTS) {
            follow_choice(&e->steps, x);
            continue;
        }
        for (int64_t i = 0; i < x->count; i++) {
            double off;
            const double want = follow(&off, &e->steps, x, i), got = x->values[i];
            ck_assert_msg(got == want || fabs(got - want) <= off * fabs(want) + (off > 0 ? DBL_MIN : 0) ||
                              (off > 0 && fabs(got - want) <= FLT_MIN),
                          "%s, step %d, %s[%d]: got %.17g, expected %.17g", e->name, n, x->name, (int)i, got, want);
        }
    }
}

/* ---- what went in, and what came out */

static struct pass pass;

static const struct m3_tap_values *value(enum m3_tap tap, int64_t layer)
{
    const struct m3_tap_values *v = pass_value(&pass, tap, layer);
    ck_assert_ptr_nonnull(v);
    return v;
}

/* Numbers that are said to be from a row of a tap are somewhere in that row, side by side. */
static int check_given(const struct m3_explained_step *x)
{
    char name[112];
    enum m3_tap tap;
    int64_t layer;
    long long row;
    snprintf(name, sizeof name, "%s", x->formula);
    char *comma = strstr(name, ", row ");
    if (x->by != M3_BY_GIVEN || x->type != M3_STEP_F32 || !comma || sscanf(comma, ", row %lld", &row) != 1) return 0;
    if (strchr(comma + 6, ',') || strchr(comma + 6, ' ')) return 0;     /* a weight; or changed by a reading */
    *comma = '\0';
    if (m3_tap_parse(name, &tap, &layer)) return 0;
    const struct m3_tap_values *v = value(tap, layer);
    ck_assert_int_lt(row, v->rows);
    for (int64_t i = 0; i + x->count <= v->width; i++)
        if (memcmp(v->values + row * v->width + i, x->values, (size_t)x->count * sizeof(double)) == 0) return 1;
    ck_abort_msg("%s of %s: not in the row", x->name, x->formula);
    return 0;
}

/* Is it a step that follows from what went in? Some numbers are only copied. */
static void check_origin(const struct m3_explanation *e, enum m3_operator op)
{
    const struct m3_explained_step *result = &e->steps.list[e->result];
    const int may_be_given = op == M3_OP_NONE || op == M3_OP_INPUT || op == M3_OP_ROPE || op == M3_OP_ROPE_3D ||
                             (op == M3_OP_BLOCK_SCORES && result->values[0] == -INFINITY) ||
                             (op == M3_OP_ATTEND && (result->values[0] == -INFINITY || result->values[0] == 0));
    ck_assert_msg(result->by != M3_BY_GIVEN || may_be_given, "%s: the result is given", e->name);
    ck_assert_int_gt(e->equation_count, 0);
    ck_assert_ptr_nonnull(e->words);
}

static void check_result(const struct m3_explanation *e, enum m3_tap tap, int64_t layer)
{
    const struct m3_explained_step *result = &e->steps.list[e->result];
    const struct m3_tap_values *v = value(tap, layer);
    int64_t flat = 0;
    for (int i = 0; i < e->rank; i++) {
        const char letter = e->letters[i + 1];
        const int64_t size =
            letter == 'B' ? v->width / pass.model->config.G : m3_config_size(&pass.model->config, letter);
        flat = flat * size + e->index[i];
    }
    if (tap == M3_TAP_INDEX_BLOCKS) flat *= pass.model->config.N;
    for (int64_t i = 0; i < result->count; i++) {
        const int64_t element = e->row * v->width + flat + i;
        const double want = m3_tap_ids(v) ? v->ids[element] : v->values[element];
        ck_assert_msg(memcmp(&want, &result->values[i], sizeof want) == 0, "%s: got %.9g, expected %.9g", e->name,
                      result->values[i], want);
    }
}

static int64_t explained, from_taps;
static unsigned char seen_operators[M3_OPERATORS];

static void explain(enum m3_tap tap, int64_t layer, int64_t row, const char *channel)
{
    struct m3_explanation e;
    const struct m3_explain_how how = { .model = pass.model,
                                        .the_case = &pass.the_case,
                                        .semantics = &pass.semantics,
                                        .threads = 1,
                                        .tap = tap,
                                        .layer = layer,
                                        .row = row,
                                        .channel = channel };
    const int status = m3_explain_tap(&e, &how, &pass.error);
    if (status) m3_error_print(&pass.error, stderr);
    ck_assert_msg(status == M3_OK, "%s, row %d, channel %s", e.name, (int)row, channel ? channel : "-");
    const enum m3_operator op = m3_graph_node(pass.model, &pass.semantics, tap, layer)->op;
    check_result(&e, tap, layer);
    check_origin(&e, op);
    follow_all(&e);
    for (int i = 0; i < e.steps.count; i++) from_taps += check_given(&e.steps.list[i]);
    seen_operators[op] = 1;
    explained++;
    m3_explanation_free(&e);
}

/* The largest element of two rows, and another element of the last one. */
static void explain_rows(enum m3_tap tap, int64_t layer)
{
    const struct m3_tap_values *v = value(tap, layer);
    const int is_small = v->rows <= 64;
    char channel[32];
    ck_assert_int_gt(v->rows, 0);
    if (is_small) explain(tap, layer, v->rows / 2, NULL);
    /* Of choices a candidate: a block of the last group, an expert. */
    const int64_t E = pass.model->config.E, places = m3_layer_rows(layer, pass.the_case.T),
                  block = pass.model->config.block;
    const int64_t B = (places + block - 1) / block;
    const int64_t other = tap == M3_TAP_EXPERTS        ? E / 2
                          : tap == M3_TAP_INDEX_BLOCKS ? (pass.model->config.G - 1) * B + B / 2
                                                       : (explained * 7 + 3) % v->width;
    snprintf(channel, sizeof channel, "%lld", (long long)other);
    explain(tap, layer, v->rows - 1, is_small || explained % 2 ? channel : NULL);
    if (is_small) explain(tap, layer, 0, NULL);
}

/* Every explanation is a pass of its own. Of the long golden fewer rows, which choose 4 of up to 6 blocks: as there, the
 * last rows leave blocks out. */
static void open_golden(const struct golden *g)
{
    char text[100], *rest = NULL;
    pass_open(&pass, g->model, g->case_path);
    if (g == &cases[BLOCK128]) {
        pass.the_case.T = 700;
        pass.model->config.N = 4;
    }
    snprintf(text, sizeof text, "%s", g->reading ? g->reading : "");
    for (char *one = strtok_r(text, " ", &rest); one; one = strtok_r(NULL, " ", &rest))
        ck_assert_int_eq(m3_semantics_set(&pass.semantics, one, &pass.error), 0);
    pass_forced(&pass, M3_LINEAR_ORDERED, NULL);
}

/* Goal:  the steps recombine to the bits of the result, for every tap of the goldens.
 * Claim: result and operands are those of a pass; each step follows from its operands, by other code than the tool's. */
LOOP_TEST(every_tap, CASES)
{
    const struct golden *g = &cases[_i];
    struct m3_safetensors *file;
    open_golden(g);
    ck_assert_int_eq(m3_safetensors_open(&file, g->golden, &pass.error), 0);
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(m3_safetensors_at(file, i)->name, &tap, &layer) == 0) explain_rows(tap, layer);
    }
    ck_assert_int_ge(explained, g->stages);
    ck_assert_int_ge(from_taps, explained / 3);
    m3_safetensors_close(file);
    pass_end(&pass);
}

/* Claim: every tap of the pass too, and so every operator of the graph: the pictures, the modules, M2. */
TEST(every_operator)
{
    static const int goldens[] = { 0, VIDEO, MTP, M2 };
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        enum m3_tap tap;
        int64_t layer;
        open_golden(&cases[goldens[i]]);
        for (int64_t n = 0; m3_trace_tap(&pass.setting, n, &tap, &layer); n++)
            if (value(tap, layer)->rows > 0) explain(tap, layer, value(tap, layer)->rows - 1, NULL);
        pass_end(&pass);
    }
    for (int op = 0; op < M3_OPERATORS; op++) ck_assert_msg(seen_operators[op], "%s", m3_operator_name(op));
}

/* Claim: an equation is the one above the plain function in the file, whose name is in ops.h. */
TEST(equations)
{
    for (int i = 0; m3_equation_at(i); i++) {
        const struct m3_equation *q = m3_equation_at(i);
        size_t count;
        char line[200];
        if (!q->file) continue;
        char *text = (char *)read_bytes(q->file, &count), *ops = (char *)read_bytes("ref/ops/ops.h", &count);
        for (int l = 0; q->lines[l]; l++) {
            snprintf(line, sizeof line, " *     %s\n", q->lines[l]);
            ck_assert_msg(strstr(text, line) != NULL, "%s lacks %s", q->file, line);
        }
        snprintf(line, sizeof line, "int %s(struct m3_ctx *", q->function);
        ck_assert_msg(strstr(text, line) != NULL, "%s lacks %s", q->file, line);
        snprintf(line, sizeof line, " *  %s ", q->name);
        ck_assert_msg(strstr(ops, line) != NULL, "ops.h lacks %s", line);
        free(text);
        text = (char *)read_bytes("SPEC.md", &count);
        snprintf(line, sizeof line, "\n### %s\n", q->section);
        ck_assert_msg(strstr(text, line) != NULL, "SPEC.md lacks %s", line);
        free(text);
        free(ops);
    }
}
