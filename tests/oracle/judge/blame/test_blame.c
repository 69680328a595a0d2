/* Blame: the operator that is wrong is named, whatever the dump holds and whatever comes after; a correct one never. */
#include "files.h"

#include "passes.h"

#include "io/safetensors.h"
#include "oracle/judge/blame/blame.h"

static struct pass p;
static struct m3_safetensors *file;
static struct m3_judgement result;
static struct m3_blame_options options;
static struct m3_profile *profile;

static void setup(void)
{
    make_folder();
    options = (struct m3_blame_options){ 0 };
}

TIMEOUT(300);
FIXTURE(setup, remove_folder);

/* ---- dumps of a pass */

struct cut {
    int (*keeps)(enum m3_tap tap, int64_t layer); /* NULL: all taps */
    const int32_t *rows; /* of text taps; NULL: all */
    int64_t row_count;
};

static int kept_rows(const struct cut *cut, enum m3_tap tap, int64_t rows)
{
    int64_t count = 0;
    if (!cut->rows || m3_tap_table[tap].shape[0] != 'T') return (int)rows;
    for (int64_t i = 0; i < cut->row_count; i++) count += cut->rows[i] < rows;
    return (int)count;
}

static int is_kept(const struct cut *cut, enum m3_tap tap, int64_t layer)
{
    return !cut->keeps || cut->keeps(tap, layer);
}

static void declare(struct m3_writer *writer, const struct cut *cut, enum m3_tap tap, int64_t layer,
                    const struct m3_tap_values *v)
{
    int64_t shape[M3_MAX_RANK] = { kept_rows(cut, tap, v->rows) }, rest = v->width;
    const char *letters = m3_tap_table[tap].shape;
    const int rank = (int)strlen(letters);
    char name[96];
    for (int i = 1; i < rank; i++)
        if (letters[i] != 'B') rest /= shape[i] = m3_config_size(&p.model->config, letters[i]);
    for (int i = 1; i < rank; i++)
        if (letters[i] == 'B') shape[i] = rest;
    m3_tap_name(name, sizeof name, tap, layer);
    ck_assert_int_eq(m3_writer_tensor(writer, name, m3_tap_ids(v) ? M3_I32 : M3_F32, rank, shape, &p.error), 0);
}

static void write_values(struct m3_writer *writer, const struct cut *cut, enum m3_tap tap,
                         const struct m3_tap_values *v)
{
    const int64_t rows = kept_rows(cut, tap, v->rows);
    const int cuts = cut->rows && m3_tap_table[tap].shape[0] == 'T';
    float *row = malloc((size_t)v->width * sizeof *row + 1);
    ck_assert_ptr_nonnull(row);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = (cuts ? cut->rows[i] : i) * v->width;
        for (int64_t k = 0; m3_tap_doubles(v) && k < v->width; k++) row[k] = (float)v->values[from + k];
        const void *all = m3_tap_ids(v) ? (const void *)&v->ids[from] : (const void *)row;
        ck_assert_int_eq(m3_writer_write(writer, all, (uint64_t)v->width * 4, &p.error), 0);
    }
    free(row);
}

/* Writes what the pass kept, and opens it. */
static void dump(const struct cut *cut)
{
    struct m3_writer *writer;
    enum m3_tap tap;
    int64_t layer;
    m3_safetensors_close(file);
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("dump"), &p.error), 0);
    if (cut->rows) ck_assert_int_eq(m3_writer_tensor(writer, "rows", M3_I32, 1, &cut->row_count, &p.error), 0);
    for (int64_t i = 0; m3_trace_tap(&p.setting, i, &tap, &layer); i++)
        if (is_kept(cut, tap, layer) && p.values[i].rows) declare(writer, cut, tap, layer, &p.values[i]);
    ck_assert_int_eq(m3_writer_begin(writer, &p.error), 0);
    if (cut->rows) ck_assert_int_eq(m3_writer_write(writer, cut->rows, (uint64_t)cut->row_count * 4, &p.error), 0);
    for (int64_t i = 0; m3_trace_tap(&p.setting, i, &tap, &layer); i++)
        if (is_kept(cut, tap, layer) && p.values[i].rows) write_values(writer, cut, tap, &p.values[i]);
    ck_assert_int_eq(m3_writer_commit(writer, &p.error), 0);
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("dump"), &p.error), 0);
}

static void judge(void)
{
    m3_judgement_free(&result);
    memset(&result, 0xFF, sizeof result);
    const int status = m3_blame(&result, &p.setting, file, &options, &p.error);
    ck_assert_msg(status == 0, "status %d: %s", status, p.error.text ? p.error.text : "");
}

static const struct m3_finding *blamed(const char *name)
{
    for (int64_t i = 0; i < result.count; i++)
        if (strcmp(result.findings[i].tap, name) == 0) return &result.findings[i];
    ck_abort_msg("%s is not among the taps", name);
}

static void forget(void)
{
    m3_judgement_free(&result);
    m3_safetensors_close(file);
    file = NULL;
    m3_profile_close(profile);
    profile = NULL;
    pass_end(&p);
}

/* ---- planted defects */

/* The middle row's first element of one tap, or of every one, is 1 % and 1e-3 off, and the pass continues from
 * there. */
struct defect {
    enum m3_tap tap; /* M3_TAPS: all */
    int64_t layer;
};

/* Not the first choice, but another: of experts one that was not chosen, of blocks one instead of the own. */
static void other_choice(int32_t *ids, enum m3_tap tap, int64_t number)
{
    const struct m3_config *c = &p.model->config;
    const int64_t width = tap == M3_TAP_EXPERTS ? c->K : c->N, most = tap == M3_TAP_EXPERTS ? c->E : number / c->block;
    for (int32_t id = 0; id < most; id++) {
        int taken = 0;
        for (int64_t k = 0; k < width; k++) taken |= ids[k] == id;
        if (taken) continue;
        if (tap == M3_TAP_EXPERTS) ids[0] = id;
        int64_t k = width - 1;
        for (; tap == M3_TAP_INDEX_BLOCKS && k > 0 && ids[k - 1] > id; k--) ids[k] = ids[k - 1];
        if (tap == M3_TAP_INDEX_BLOCKS) ids[k] = id;
        return;
    }
    ck_assert_int_eq(tap, M3_TAP_INDEX_BLOCKS); /* all were chosen: one too few */
    int64_t k = width - 1;
    while (k > 0 && ids[k] < 0) k--;
    ids[k] = -1;
}

static int plant(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows, struct m3_error *e)
{
    const struct defect *d = self;
    const int64_t all = m3_tap_rows(&p.setting, tap, layer), width = m3_tap_width(&p.setting, tap, layer);
    const int64_t number = tap == M3_TAP_INDEX_BLOCKS ? all - 1 : all / 2;
    (void)e;
    if (d->tap != M3_TAPS && (d->tap != tap || d->layer != layer)) return 0;
    if (number < row || number >= row + rows) return 0;
    if (m3_tap_table[tap].kind == M3_KIND_CHOICES) {
        other_choice((int32_t *)data + (number - row) * width, tap, number);
    } else if (m3_tap_table[tap].kind == M3_KIND_COUNTS) {
        ((int32_t *)data)[0] += 2;
    } else {
        float *x = (float *)data + (number - row) * width;
        *x = *x * 1.01f + 1e-3f;
    }
    return 0;
}

static void pass_with(const char *model, const char *the_case, struct defect defect)
{
    const struct m3_force force = { .self = &defect, .replace = plant };
    pass_open(&p, model, the_case);
    pass_forced(&p, M3_LINEAR_BLAS, &force);
}

static const struct {
    const char *model, *the_case;
} cases[] = {
    { "golden/tiny/model", "golden/vision/two_case.safetensors" },
    { "golden/mtp/model", "golden/mtp/case.safetensors" },
    { "golden/m2/model", "golden/m2/case.safetensors" },
};

/* One layer of each kind will do. */
static int is_tried(int of, int64_t layer)
{
    if (of == 0) return layer <= 0 || layer == 3;
    return of == 1 ? layer == M3_MTP_LAYER + 1 : layer == 1;
}

static void names(enum m3_tap tap, int64_t layer)
{
    char name[96];
    m3_tap_name(name, sizeof name, tap, layer);
    ck_assert_int_eq(result.status, M3_WRONG);
    ck_assert_msg(strcmp(result.first->tap, name) == 0, "%s is named, expected %s", result.first->tap, name);
    ck_assert_int_eq(result.first->verdict, M3_VERDICT_FAIL);
}

/* Goal:  an operator's defect is found at its tap, though all that comes after is off.
 * Claim: the culprit is the tap with the defect; at most three more fail, which come of the same call of an operator
 *        (experts, weights, outputs) and were made before the defect was put there.
 * Seen to fail with what is judged not told to the trace, and with the last tap that fails named. */
LOOP_TEST(defect_is_named, 3)
{
    enum m3_tap tap;
    int64_t layer, tried = 0;
    pass_open(&p, cases[_i].model, cases[_i].the_case);
    for (int64_t i = 0; m3_trace_tap(&p.setting, i, &tap, &layer); i++) {
        if (!is_tried(_i, layer)) continue;
        forget();
        pass_with(cases[_i].model, cases[_i].the_case, (struct defect){ tap, layer });
        dump(&(struct cut){ 0 });
        judge();
        names(tap, layer);
        ck_assert_int_le(result.failed, 4);
        tried++;
    }
    printf("%s: %d defects\n", cases[_i].the_case, (int)tried);
    ck_assert_int_ge(tried, _i == 0 ? 75 : _i == 1 ? 30 : 20);
    forget();
}

/* Goal:  drift from other defects hides none.
 * Claim: with a defect in every tap, every tap fails. Seen to fail with the dump not told to the trace. */
LOOP_TEST(every_operator_at_once, 3)
{
    pass_with(cases[_i].model, cases[_i].the_case, (struct defect){ .tap = M3_TAPS });
    dump(&(struct cut){ 0 });
    judge();
    for (int64_t i = 0; i < result.count; i++)
        ck_assert_msg(result.findings[i].verdict == M3_VERDICT_FAIL, "%s: verdict %d", result.findings[i].tap,
                      result.findings[i].verdict);
    ck_assert_int_eq(result.failed, result.count);
    forget();
}

static enum m3_tap alone;
static int64_t alone_in;

/* The tap and what it reads. */
static int with_inputs(enum m3_tap tap, int64_t layer)
{
    enum m3_tap other;
    int64_t at;
    if (tap == alone && layer == alone_in) return 1;
    for (int i = 0; i < M3_OPERANDS; i++)
        if (!m3_graph_operand(&other, &at, p.model, &p.semantics, alone, alone_in, i) && other == tap && at == layer)
            return 1;
    return 0;
}

/* Goal:  a tap and its inputs are enough. Seen to fail with inputs from other layers left out. */
LOOP_TEST(defect_is_named_alone, 3)
{
    pass_with(cases[_i].model, cases[_i].the_case, (struct defect){ .tap = M3_TAPS });
    options.force = 1;
    for (int64_t i = 0; m3_trace_tap(&p.setting, i, &alone, &alone_in); i++) {
        if (!is_tried(_i, alone_in)) continue;
        char name[96];
        m3_tap_name(name, sizeof name, alone, alone_in);
        options.taps = name;
        dump(&(struct cut){ .keeps = with_inputs });
        judge();
        names(alone, alone_in);
        ck_assert_int_eq(result.count, 1);
        ck_assert_int_eq(result.findings[0].operators, 1);
    }
    forget();
}

/* ---- correct dumps */

static uint64_t coin;

static int every_second(enum m3_tap tap, int64_t layer)
{
    (void)tap, (void)layer;
    coin = coin * 6364136223846793005u + 1442695040888963407u;
    return coin >> 63 != 0;
}

/* The draw is by tap, so that a dump that is made twice is the same. */
static int half(enum m3_tap tap, int64_t layer)
{
    const uint64_t before = coin;
    coin += (uint64_t)tap * 1000003 + (uint64_t)layer * 7919;
    const int kept = every_second(tap, layer) ^ every_second(tap, layer) ^ every_second(tap, layer);
    coin = before;
    return kept;
}

static int ends_of_layers(enum m3_tap tap, int64_t layer)
{
    (void)layer;
    return tap == M3_TAP_OUT || tap == M3_TAP_VISION_OUT || tap == M3_TAP_LOGITS || tap == M3_TAP_MTP_LOGITS;
}

static void no_culprit(const char *what)
{
    const struct m3_finding *c = result.first;
    if (c)
        ck_abort_msg("%s: %s verdict %d, tiers %d, headroom %g, z2 %g, choice %d %s", what, c->tap, c->verdict,
                     c->tiers.tiers, c->tiers.headroom, c->tiers.z2, c->choice, c->note);
    ck_assert_int_eq(result.status, M3_OK);
}

/* Goal:  a correct float run has no culprit, however little of it was dumped.
 * Claim: all taps, ten halves of them, ends of layers alone: no culprit, and all taps are judged.
 * Seen to fail with own roundings left out of what is recomputed, with what it inherits left out, or its variance. */
LOOP_TEST(honest, 3)
{
    pass_run(&p, cases[_i].model, cases[_i].the_case, M3_LINEAR_BLAS);
    dump(&(struct cut){ 0 });
    judge();
    no_culprit("all taps");
    ck_assert_int_eq(result.judged, result.count);
    for (coin = 1; coin <= 10; coin++) {
        dump(&(struct cut){ .keeps = half });
        judge();
        no_culprit("half of the taps");
        ck_assert_int_ge(result.judged, result.count * 9 / 10);
    }
    dump(&(struct cut){ .keeps = ends_of_layers });
    judge();
    no_culprit("ends of layers");
    ck_assert_int_eq(result.judged, result.count);
    ck_assert_int_gt(result.findings[result.count - 1].operators, 1);
    forget();
}

/* Goal:  some rows: what needs others says which. Rows from 0 on are enough for everything.
 * Seen to fail with rows of the dump counted from 0. */
TEST(rows)
{
    static const int32_t scattered[] = { 3, 4, 7, 12, 20 }, first[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    pass_run(&p, "golden/tiny/model", "golden/tiny/case.safetensors", M3_LINEAR_BLAS);
    dump(&(struct cut){ .rows = scattered, .row_count = 5 });
    judge();
    ck_assert_ptr_null(result.first);
    ck_assert(result.verdict == M3_VERDICT_PARTIAL && result.status == M3_SUSPECT);
    ck_assert_int_eq(result.not_judged, 5 * 2 + 3);
    ck_assert_str_eq(blamed("layers.0.attn")->note, "missing: layers.0.k_rope, rows 0 to 2");
    ck_assert_str_eq(blamed("layers.3.index.block_scores")->note, "missing: layers.3.index.k_rope, rows 0 to 2");
    ck_assert_int_eq(blamed("layers.3.moe.routed")->rows, 5);
    dump(&(struct cut){ .rows = first, .row_count = 10 });
    judge();
    no_culprit("first rows");
    ck_assert_int_eq(result.judged, result.count);
    forget();
}

/* Goal:  created and inherited are what they say: their sum is how far the candidate is from the truth, which PyTorch
 *        in double has (golden/tiny); of a defect, what comes after inherits all and creates nothing.
 * Seen to fail with the candidate for y in `inherited`. */
TEST(adds_up)
{
    struct m3_safetensors *golden;
    int64_t checked = 0;
    pass_with("golden/tiny/model", "golden/tiny/case.safetensors", (struct defect){ M3_TAP_V_PROJ, 1 });
    ck_assert_int_eq(m3_safetensors_open(&golden, "golden/tiny/golden.safetensors.gz", &p.error), 0);
    dump(&(struct cut){ 0 });
    judge();
    names(M3_TAP_V_PROJ, 1);
    for (int64_t i = 0; i < result.count; i++) {
        const struct m3_finding *tap = &result.findings[i];
        const struct m3_tensor *want = m3_safetensors_find(golden, tap->tap), *got = tap->candidate;
        double d2 = 0, r2 = 0;
        if (tap->selection || tap->id == M3_TAP_EXPERT_OUT || tap->id == M3_TAP_EXPERT_WEIGHTS) continue;
        if (!want || want->count != got->count) continue;
        for (int64_t k = 0; k < want->count; k++) {
            const double r = m3_decode(want->dtype, want->data, k), c = m3_decode(got->dtype, got->data, k);
            if (isfinite(r)) d2 += (c - r) * (c - r), r2 += r * r;
        }
        const double all = sqrt(d2 / r2), slack = 1e-9 + 1e-6 * all;
        ck_assert_msg(all <= tap->inherited + tap->created + slack, "%s: %g", tap->tap, all);
        ck_assert_msg(all >= fabs(tap->inherited - tap->created) - slack, "%s: %g", tap->tap, all);
        checked++;
    }
    ck_assert_int_ge(checked, 80);
    ck_assert(blamed("layers.1.v_proj")->inherited < 1e-6 && blamed("layers.1.v_proj")->created > 1e-5);
    ck_assert(blamed("layers.1.attn")->inherited > 1e-4 && blamed("layers.1.attn")->created < 1e-6);
    ck_assert(blamed("layers.2.q_proj")->inherited > 1e-5 && blamed("layers.2.q_proj")->created < 1e-6);
    ck_assert(blamed("layers.1.k_rope")->inherited < 1e-6);
    m3_safetensors_close(golden);
    forget();
}

/* ---- choices */

static void set_id(const char *tap, int64_t at, int32_t id)
{
    enum m3_tap t;
    int64_t layer;
    ck_assert_int_eq(m3_tap_parse(tap, &t, &layer), 0);
    ((int32_t *)(uintptr_t)pass_value(&p, t, layer)->ids)[at] = id;
}

/* Goal:  ids that are none are a culprit and no operand: what reads them is not judged in their rows.
 * Seen to fail with the row handed to the operator, which refuses the whole tap. */
TEST(ids_that_are_none)
{
    static const int32_t ids[] = { -1, -2, 99, INT32_MAX, INT32_MIN };
    pass_run(&p, "golden/tiny/model", "golden/tiny/case.safetensors", M3_LINEAR_BLAS);
    const struct m3_config *c = &p.model->config;
    for (int i = 0; i < 5; i++) {
        set_id("layers.3.moe.experts", 9 * c->K, ids[i]);
        set_id("layers.4.index.blocks", 60 * c->G * c->N, ids[i] == -1 ? 0x7FFF : ids[i]);
        dump(&(struct cut){ 0 });
        judge();
        names(M3_TAP_EXPERTS, 3);
        ck_assert_int_eq(result.failed, 2);
        ck_assert_str_eq(blamed("layers.3.moe.experts")->note, "id out of range");
        ck_assert_int_eq(blamed("layers.3.moe.experts")->choices[M3_CHOICE_INADMISSIBLE], 1);
        ck_assert_int_eq(blamed("layers.3.moe.weights")->rows_left_out, 1);
        ck_assert_int_eq(blamed("layers.3.moe.expert_out")->rows_left_out, 1);
        ck_assert_int_eq(blamed("layers.4.index.blocks")->verdict, M3_VERDICT_FAIL);
        ck_assert_int_eq(blamed("layers.4.attn")->rows_left_out, 1);
        ck_assert_int_eq(blamed("layers.3.moe.routed")->rows_left_out, 0);
    }
    forget();
}

static int only_experts(enum m3_tap tap, int64_t layer)
{
    (void)layer;
    return tap == M3_TAP_EXPERTS || tap == M3_TAP_EXPERT_WEIGHTS;
}

/* Without any scores a set cannot be judged, but an expert that is chosen twice can.
 * Seen to fail with decisions without scores left out. */
TEST(ids_without_scores)
{
    pass_run(&p, "golden/tiny/model", "golden/tiny/case.safetensors", M3_LINEAR_BLAS);
    const struct m3_config *c = &p.model->config;
    set_id("layers.3.moe.experts", 9 * c->K, (int32_t)pass_value(&p, M3_TAP_EXPERTS, 3)->ids[9 * c->K + 1]);
    dump(&(struct cut){ .keeps = only_experts });
    judge();
    names(M3_TAP_EXPERTS, 3);
    ck_assert_str_eq(result.first->note, "duplicate id");
    ck_assert_int_eq(result.first->rows, 1);
    ck_assert_int_eq(result.judged, 1);
    ck_assert_int_eq(result.not_judged, 5);
    forget();
}

/* In the middle row of layer 3 the best rejected expert scores what the last chosen one does, except for an ulp. */
static int near_tie(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                    struct m3_error *e)
{
    const struct m3_config *c = &p.model->config;
    const int64_t number = p.the_case.T / 2;
    int32_t *last = self;
    (void)e;
    if (layer != 3 || number < row || number >= row + rows) return 0;
    if (tap == M3_TAP_ROUTER_SCORES) {
        float *s = (float *)data + (number - row) * c->E;
        double *bias = doubles(c->E);
        m3_expand_f64(bias, m3_graph_weight(p.model, &p.semantics, M3_TAP_EXPERTS, 3, 0), 0, 0, c->E);
        int32_t order[64];
        for (int32_t i = 0; i < c->E; i++) {
            int32_t k = i;
            for (; k > 0 && s[order[k - 1]] + bias[order[k - 1]] < s[i] + bias[i]; k--) order[k] = order[k - 1];
            order[k] = i;
        }
        last[0] = order[c->K - 1], last[1] = order[c->K];
        s[last[1]] = (float)(s[last[0]] + bias[last[0]] - bias[last[1]]);
        s[last[1]] = nextafterf(s[last[1]], 0);
        free(bias);
    } else if (tap == M3_TAP_EXPERTS) {
        int32_t *ids = (int32_t *)data + (number - row) * c->K;
        for (int64_t k = 0; k < c->K; k++)
            if (ids[k] == last[0]) ids[k] = last[1];
    }
    return 0;
}

static int not_experts(enum m3_tap tap, int64_t layer)
{
    (void)layer;
    return tap != M3_TAP_EXPERTS;
}

/* Goal:  a choice that rounding explains is followed: its own experts are the operands of what comes after.
 * Claim: the planted score alone is wrong; the choice is admissible, and passes; outputs pass. Where the choice is not
 *        dumped, the row in which it could be another is left out, not judged by one of them.
 * Seen to fail with the experts of the scores in double as operands, and with uncertain choices recomputed. */
TEST(legal_other_choice)
{
    int32_t last[2];
    const struct m3_force force = { .self = last, .replace = near_tie };
    pass_open(&p, "golden/tiny/model", "golden/tiny/case.safetensors");
    pass_forced(&p, M3_LINEAR_BLAS, &force);
    dump(&(struct cut){ 0 });
    judge();
    names(M3_TAP_ROUTER_SCORES, 3);
    const struct m3_finding *experts = blamed("layers.3.moe.experts");
    ck_assert_int_eq(experts->verdict, M3_VERDICT_PASS);
    ck_assert_int_eq(experts->choices[M3_CHOICE_ADMISSIBLE], 1);
    ck_assert(experts->gap > 0 && experts->gap <= 1);
    ck_assert(experts->inherited > 0);
    ck_assert_int_eq(blamed("layers.3.moe.expert_out")->verdict, M3_VERDICT_PASS);
    ck_assert_int_eq(blamed("layers.3.out")->verdict, M3_VERDICT_PASS);

    dump(&(struct cut){ .keeps = not_experts });
    judge();
    names(M3_TAP_ROUTER_SCORES, 3);
    ck_assert_int_eq(result.failed, 1);
    ck_assert_int_eq(blamed("layers.3.moe.expert_out")->rows_left_out, 1);
    ck_assert_int_eq(blamed("layers.4.moe.expert_out")->rows_left_out, 0);
    forget();
}

struct true_tie {
    int32_t last[2];
    int lowest;
};

/* In the middle row of layer 3 two experts have one score, and the higher id or the lower is taken. */
static int true_tie(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                    struct m3_error *e)
{
    const struct m3_config *c = &p.model->config;
    const int64_t number = p.the_case.T / 2;
    struct true_tie *tie = self;
    (void)e;
    if (layer != 3 || number < row || number >= row + rows) return 0;
    if (tap == M3_TAP_ROUTER_SCORES) {
        float *s = (float *)data + (number - row) * c->E;
        int32_t order[64];
        for (int32_t i = 0; i < c->E; i++) {
            int32_t k = i;
            for (; k > 0 && s[order[k - 1]] < s[i]; k--) order[k] = order[k - 1];
            order[k] = i;
        }
        tie->last[0] = order[c->K - 1], tie->last[1] = order[c->K];
        s[tie->last[1]] = s[tie->last[0]];
    } else if (tap == M3_TAP_EXPERTS) {
        const int high = tie->last[1] > tie->last[0];
        int32_t *ids = (int32_t *)data + (number - row) * c->K;
        for (int64_t k = 0; k < c->K; k++)
            if (ids[k] == tie->last[0] || ids[k] == tie->last[1]) ids[k] = tie->last[high != tie->lowest];
    }
    return 0;
}

/* Goal:  of two experts with one score and one bias the lower id is taken, although the sum of both is known up to its
 *        rounding only.
 * Given: a model whose biases in layer 3 are all 0.25; two scores made equal; the higher id, or the lower.
 * Claim: the higher fails at the choice. The planted score fails either way.
 * Seen to fail with the code as it was: the higher was a tie. */
TEST(equal_scores)
{
    static float bias[64];
    for (int i = 0; i < 64; i++) bias[i] = 0.25f;
    for (int lowest = 0; lowest < 2; lowest++) {
        struct true_tie tie = { .lowest = lowest };
        const struct m3_force force = { .self = &tie, .replace = true_tie };
        pass_open(&p, "golden/tiny/model", "golden/tiny/case.safetensors");
        struct m3_weight *w =
            (struct m3_weight *)(uintptr_t)m3_graph_weight(p.model, &p.semantics, M3_TAP_EXPERTS, 3, 0);
        w->data = bias, w->dtype = M3_F32;
        pass_forced(&p, M3_LINEAR_BLAS, &force);
        dump(&(struct cut){ 0 });
        judge();
        const struct m3_finding *experts = blamed("layers.3.moe.experts");
        ck_assert_int_eq(experts->verdict, lowest ? M3_VERDICT_PASS : M3_VERDICT_FAIL);
        ck_assert_int_eq(experts->choices[M3_CHOICE_INADMISSIBLE], !lowest);
        ck_assert_str_eq(experts->note, lowest ? "" : "equal scores go to the lower id");
        ck_assert_int_eq(result.failed, lowest ? 1 : 2);
        forget();
    }
}

/* ---- numbers that are none; profiles */

static void set_value(enum m3_tap tap, int64_t layer, int64_t at, double x)
{
    ((double *)(uintptr_t)pass_value(&p, tap, layer)->values)[at] = x;
}

/* Goal:  NaN and infinities fail where they first occur, and are no operands.
 * Seen to fail with NaN as an operand (taps after it fail too). */
TEST(no_numbers)
{
    static const double bad[] = { NAN, INFINITY, -INFINITY };
    pass_run(&p, "golden/tiny/model", "golden/tiny/case.safetensors", M3_LINEAR_BLAS);
    for (int i = 0; i < 3; i++) {
        set_value(M3_TAP_V_PROJ, 3, 40 * p.model->config.G * p.model->config.D, bad[i]);
        dump(&(struct cut){ 0 });
        judge();
        names(M3_TAP_V_PROJ, 3);
        ck_assert_int_eq(result.failed, 1);
        ck_assert_int_eq(result.first->tiers.hard, 1);
        ck_assert_int_eq(result.first->index[0], 40);
        ck_assert(isnan(bad[i]) ? isnan(result.first->got) : result.first->got == bad[i]);
        ck_assert_int_eq(blamed("layers.3.attn")->rows_left_out, p.the_case.T - 40);
    }
    forget();
}

static int to_bf16(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                   struct m3_error *e)
{
    float *x = data;
    const int64_t n = rows * m3_tap_width(&p.setting, tap, layer);
    (void)self, (void)row, (void)e;
    char name[96];
    m3_tap_name(name, sizeof name, tap, layer);
    if (m3_tap_table[tap].kind != M3_KIND_REALS || m3_profile_store(profile, name) == 0) return 0;
    for (int64_t i = 0; i < n; i++) x[i] = (float)to_bits((double)x[i], 8);
    return 0;
}

/* Goal:  what is rounded where the profile says so is no defect; under a profile that does not, the first is.
 * Seen to fail with the profile's storage left out of what is allowed. */
TEST(profiles)
{
    const struct m3_force force = { .self = NULL, .replace = to_bf16 };
    pass_open(&p, "golden/tiny/model", "golden/tiny/case.safetensors");
    ck_assert_int_eq(m3_profile_open(&profile, "bf16", &p.error), 0);
    pass_forced(&p, M3_LINEAR_BLAS, &force);
    dump(&(struct cut){ 0 });
    p.setting.profile = profile;
    judge();
    no_culprit("bf16");
    ck_assert_int_eq(result.judged, result.count);
    p.setting.profile = NULL;
    judge();
    names(M3_TAP_ATTN_NORM, 0);
    forget();
}

/* As to_bf16; one element of embed is cut off instead, which is a unit off. */
static int cut_one(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows,
                   struct m3_error *e)
{
    float *x = data;
    const float whole = tap == M3_TAP_EMBED ? x[3] : 0;
    to_bf16(self, tap, layer, data, row, rows, e);
    if (tap != M3_TAP_EMBED || row > 0) return 0;
    const float step = fabsf(whole) * 0x1p-7f;
    x[3] += x[3] > whole ? -step : step;
    x[3] = (float)to_bits((double)x[3], 8);
    return 0;
}

/* Goal:  embed is the stored row rounded once, under a profile that stores it coarser than the model does.
 * Given: an embedding of random F32 numbers, a pass that stores in BF16, all taps and without embed; then one element
 *        rounded to the other side.
 * Seen to fail with the code as it was: embed had to equal the F32 numbers. */
TEST(exact_is_rounded)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        const struct m3_force force = { .self = NULL, .replace = wrong ? cut_one : to_bf16 };
        pass_open(&p, "golden/tiny/model", "golden/tiny/case.safetensors");
        struct m3_weight *w =
            (struct m3_weight *)(uintptr_t)m3_graph_weight(p.model, &p.semantics, M3_TAP_EMBED, -1, 0);
        float *table = malloc((size_t)(w->rows * w->cols) * sizeof *table);
        uint64_t state = 77;
        ck_assert_ptr_nonnull(table);
        for (int64_t i = 0; i < w->rows * w->cols; i++) table[i] = (float)normal(&state);
        w->data = table, w->dtype = M3_F32;
        ck_assert_int_eq(m3_profile_open(&profile, "bf16", &p.error), 0);
        pass_forced(&p, M3_LINEAR_BLAS, &force);
        p.setting.profile = profile;
        dump(&(struct cut){ 0 });
        judge();
        ck_assert_int_eq(blamed("embed")->verdict, wrong ? M3_VERDICT_FAIL : M3_VERDICT_PASS);
        ck_assert_int_eq(blamed("embed")->tiers.hard, wrong);
        if (!wrong) no_culprit("an embedding in F32");
        free(table);
        forget();
    }
}
