/* Every deliberate mistake (ref/oracle/variants/mistakes.h) is found where SPEC 7.12 says that it first shows, and
 * costs what is printed there. The two tables of that section are what this test reads. */
#include "files.h"
#include "slice.h"

#include <math.h>

#define M3_REAL_IS_DOUBLE
#include "model/semantics.h"
#include "ops/ops.h"
#include "oracle/judge/blame/blame.h"
#include "oracle/judge/compare.h"
#include "oracle/variants/mistakes.h"
#include "oracle/error/profile.h"

/* ---- what runs are made on */

static const struct run_case {
    const char *name, *model, *path, *reading;
} cases[] = {
    { "tiny", "golden/tiny/model", "golden/tiny/case.safetensors", NULL },
    { "far", "golden/tiny/model", "golden/tiny/positions_case.safetensors", NULL },
    { "ties", "golden/tiny/model", "golden/tiny/case.safetensors", NULL },      /* index queries are 0 */
    { "readings", "golden/tiny/model", "golden/readings/case.safetensors", NULL },
    { "local", "golden/tiny/model", "golden/readings/case.safetensors", "local_blocks=2" },
    { "two", "golden/tiny/model", "golden/vision/two_case.safetensors", NULL },
    { "video", "golden/tiny/model", "golden/vision/video_case.safetensors", NULL },
    { "mxfp8", "golden/mxfp8/model", "golden/mxfp8/case.safetensors", NULL },
    { "mtp", "golden/mtp/model", "golden/mtp/case.safetensors", NULL },
    { "m2", "golden/m2/model", "golden/m2/case.safetensors", NULL },
};

enum { CASES = sizeof cases / sizeof cases[0] };

static struct m3_model *model;
static struct m3_semantics semantics;
static struct m3_case the_case;
static struct m3_error error, notes;

static void setup(void) { make_folder(); }

static void teardown(void)
{
    m3_case_free(&the_case);
    m3_model_close(model);
    m3_error_free(&error);
    m3_error_free(&notes);
    remove_folder();
}

TIMEOUT(240);
FIXTURE(setup, teardown);

static void good(int status) { ck_assert_msg(status == 0, "status %d: %s", status, error.text ? error.text : ""); }

static const struct run_case *case_named(const char *name)
{
    for (int i = 0; i < CASES; i++)
        if (strcmp(cases[i].name, name) == 0) return &cases[i];
    ck_abort_msg("no case %s", name);
}

static void open_case(const struct run_case *c)
{
    static const float minus_one[16] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 };
    good(m3_model_open(&model, c->model, &notes, &error));
    good(m3_case_read(&the_case, c->path, &model->config, &error));
    semantics = model->config.semantics;
    if (c->reading) good(m3_semantics_set(&semantics, c->reading, &error));
    for (int64_t l = 0; strcmp(c->name, "ties") == 0 && l < model->config.layers; l++) {
        struct m3_weight *w = &model->layers[l].index_q_norm;
        if (!m3_config_sparse(&model->config, l)) continue;
        ck_assert_int_eq(w->cols, 16);
        w->data = minus_one;
        w->dtype = M3_F32;
    }
}

/* A dump by the double engine, in F32, with the mistake or without one. */
static void dump(const char *name, const struct m3_mistake *mistake)
{
    struct m3_mistaken_run *run;
    good(m3_mistake_install(&run, mistake, model, &semantics, &the_case, &error));
    good(m3_mistake_dump(run, in_folder(name), NULL, 1, &error));
    m3_mistake_remove(run);
}

/* ---- comparing */

static struct m3_safetensors *reference, *candidate;
static struct m3_judgement result;

static void compare(const char *reference_path, const char *candidate_path)
{
    const struct m3_compare_options options = { 0 };
    good(m3_safetensors_open(&reference, reference_path, &error));
    good(m3_safetensors_open(&candidate, candidate_path, &error));
    good(m3_compare(&result, reference, candidate, &options, &error));
}

static void forget(void)
{
    m3_judgement_free(&result);
    m3_safetensors_close(reference);
    m3_safetensors_close(candidate);
}

static const struct m3_finding *stage(const char *tap)
{
    for (int64_t i = 0; i < result.count; i++)
        if (strcmp(result.findings[i].tap, tap) == 0) return &result.findings[i];
    ck_abort_msg("no stage %s", tap);
}

/* Share of the decisions that differ; or relative L2 of finite elements, those that follow from other choices too. */
static double off(const struct m3_finding *s)
{
    const struct m3_tensor *r = s->reference, *c = s->candidate;
    double d2 = 0, r2 = 0;
    if (s->selection) return (double)s->differing / (double)s->rows;
    for (int64_t i = 0; i < r->count; i++) {
        const double want = m3_decode(r->dtype, r->data, i), got = m3_decode(c->dtype, c->data, i);
        if (!isfinite(want) || !isfinite(got)) continue;
        d2 += (got - want) * (got - want);
        r2 += want * want;
    }
    return d2 == 0 ? 0 : sqrt(d2 / r2);
}

/* ---- blaming */

static struct m3_judgement blame;

/* The candidate, of the case at hand. What is found refers into the file, which is `candidate`. */
static void blame_by(const char *profile_name)
{
    const struct m3_blame_options options = { 0 };
    struct m3_profile *profile;
    struct m3_ctx ctx;
    good(m3_profile_open(&profile, profile_name, &error));
    good(m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS));
    const struct m3_setting setting = {
        .model = model, .semantics = &semantics, .the_case = &the_case, .profile = profile, .ctx = &ctx
    };
    good(m3_safetensors_open(&candidate, in_folder("candidate.safetensors"), &error));
    good(m3_blame(&blame, &setting, candidate, &options, &error));
    m3_ctx_free(&ctx);
    m3_profile_close(profile);
}

static void forget_blame(void)
{
    m3_judgement_free(&blame);
    m3_safetensors_close(candidate);
}

/* The culprit is the tap of that name, or of that pattern. */
static void blames(const char *what, const char *tap)
{
    blame_by("fp32");
    ck_assert_msg(blame.status == M3_WRONG && blame.first && m3_tap_matches(tap, blame.first->tap),
                  "%s: status %d, blamed on %s, expected %s", what, blame.status,
                  blame.first ? blame.first->tap : "no tap", tap);
    forget_blame();
}

/* ---- SPEC 7.12 */

struct spec_row {
    char id[64], run[16], first[64], there[16], end[16];
};

enum { SPEC_ROWS = 256 };

/* Rows of a table of that section with so many columns that are words; the two tables have 5 and 1. */
static int spec_rows(struct spec_row *rows, int columns)
{
    FILE *file = fopen("ref/oracle/REFERENCE.md", "r");
    char line[1024];
    int in_table = 0, count = 0;
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file)) {
        struct spec_row r = { .id = "" };
        if (line[0] == '#') in_table = strncmp(line, "## 7.12 ", 8) == 0;
        int found =
            in_table ? sscanf(line, "| %63s | %15s | %63s | %15s | %15s |", r.id, r.run, r.first, r.there, r.end) : 0;
        if (!strchr(r.id, '.') || (found == 5) != (columns == 5)) continue;
        ck_assert_int_lt(count, SPEC_ROWS);
        rows[count++] = r;
    }
    fclose(file);
    return count;
}

/* As printed there: "46%" or "0.18", two digits; "0": no difference beyond that of a correct run. */
static void as_printed(const struct spec_row *r, const char *printed, const struct m3_finding *s)
{
    char *end;
    const double want = strtod(printed, &end), got = off(s) * (*end == '%' ? 100 : 1);
    if (want == 0)
        ck_assert_msg(s->verdict != M3_VERDICT_FAIL && got <= 1e-5, "%s: %s: %g, expected 0", r->id, s->tap, got);
    else if (!(fabs(got - want) <= 0.051 * want))
        ck_abort_msg("%s: %s: got %.3g, printed %s", r->id, s->tap, got, printed);
}

/* Does it change its own taps, but by less than is allowed of a whole tap? */
static int hides(const struct m3_mistake *mistake)
{
    int changes = 0;
    for (int64_t i = 0; i < result.count; i++) {
        const struct m3_finding *s = &result.findings[i];
        if (!m3_tap_matches(mistake->first, s->tap)) continue;
        if (!(off(s) <= 1e-5)) return 0;
        changes |= off(s) > 0;
    }
    return changes;
}

/* What no tap of a profile shows: it may be so there. SPEC 7.12. */
static const struct {
    const char *id, *profile;
} permitted[] = {
    { "rope.fp32_angle", "fp32" },       { "rope.fp32_angle", "bf16" }, { "attn.partial_bf16", "bf16" },
    { "norm.early_round", "bf16" },      { "router.bf16", "bf16" },     { "select.tie", "bf16" },
    { "vision.conv_precision", "bf16" },
};

static int is_permitted(const char *id, const char *profile)
{
    for (size_t i = 0; i < sizeof permitted / sizeof permitted[0]; i++)
        if (strcmp(permitted[i].id, id) == 0 && strcmp(permitted[i].profile, profile) == 0) return 1;
    return 0;
}

/* Its operator is the culprit, at that tap, or there is none. */
static void named(const struct m3_mistake *mistake, const char *tap)
{
    static const char *const profiles[] = { "fp32", "bf16" };
    for (int i = 0; i < 2; i++) {
        blame_by(profiles[i]);
        const struct m3_finding *culprit = blame.first;
        if (is_permitted(mistake->id, profiles[i])) {
            ck_assert_msg(blame.status == M3_OK, "%s, %s: blamed on %s", mistake->id, profiles[i], culprit->tap);
        } else {
            ck_assert_msg(blame.status == M3_WRONG && culprit && m3_tap_matches(tap, culprit->tap),
                          "%s, %s: status %d, blamed on %s, expected %s", mistake->id, profiles[i], blame.status,
                          culprit ? culprit->tap : "no tap", tap);
            const char *choice = strstr(culprit->tap, "blocks") ? "select_blocks" : "route";
            ck_assert_str_eq(culprit->made_by,
                             mistake->op == M3_OP_NONE && culprit->selection ? choice : m3_operator_name(mistake->op));
        }
        forget_blame();
    }
}

/* Goal:  every mistake is found where SPEC 7.12 says.
 * Given: its run, rounded to F32, on the case named there, beside a correct run; half of the mistakes in each slice.
 * Claim: compare: exit status 1; the first divergence is the tap printed, which is one of the mistake's own; the errors
 *        there and at the end are those printed. blame, of half of them: the culprit is that tap and its operator, but
 *        where the profile permits as much. A correct run has no culprit.
 * Seen to fail with a group's own scores for the next group's, figures changed in SPEC, a limit of 0.1 for 1e-5 in
 * compare, the last tap that fails for the culprit. */
LOOP_TEST(found, CASES)
{
    static struct spec_row rows[SPEC_ROWS];
    const int count = spec_rows(rows, 5);
    open_case(&cases[_i]);
    dump("reference.safetensors", NULL);
    dump("candidate.safetensors", NULL);
    blame_by("fp32");
    ck_assert_int_eq(blame.status, M3_OK);
    forget_blame();
    for (int i = 0; i < count; i++) {
        const struct spec_row *r = &rows[i];
        const struct m3_mistake *mistake = m3_mistake_named(r->id);
        if (case_named(r->run) != &cases[_i] || !in_slice(i, 2)) continue;
        ck_assert_msg(mistake != NULL, "no mistake %s", r->id);
        const char *missing = m3_mistake_missing(mistake, model, &semantics, &the_case);
        ck_assert_msg(!missing, "%s: the input has not %s", r->id, missing);

        dump("candidate.safetensors", mistake);
        compare(in_folder("reference.safetensors"), in_folder("candidate.safetensors"));
        const struct m3_finding *first = result.first;
        ck_assert_msg(first && strcmp(first->tap, r->first) == 0, "%s: first at %s, expected %s", r->id,
                      first ? first->tap : "no tap", r->first);
        ck_assert_msg(m3_tap_matches(mistake->first, first->tap) || hides(mistake), "%s: %s", r->id, first->tap);
        ck_assert_int_eq(result.status, M3_WRONG);
        as_printed(r, r->there, first);
        as_printed(r, r->end, stage(strcmp(r->run, "mtp") == 0 ? "mtp.1.logits" : "logits"));
        const char *blamed = hides(mistake) ? mistake->first : r->first;
        forget();
        if (in_slice(i, 4)) named(mistake, blamed);
    }
}

/* ---- readings of which a mistake is right */

static const struct {
    const char *id, *run, *golden;      /* NULL: no golden of that reading; a correct run with it */
} right[] = {
    { "select.shared_heads", "readings", "golden/readings/shared.safetensors.gz" },
    { "select.union", "readings", "golden/readings/union.safetensors.gz" },
    { "select.no_local", "tiny", NULL },
    { "select.local_multi", "local", "golden/readings/local2_own.safetensors.gz" },
    { "select.init_block", "readings", "golden/readings/init1.safetensors.gz" },
    { "select.lse", "readings", "golden/readings/lse.safetensors.gz" },
    { "index.scale", "readings", "golden/readings/rsqrt.safetensors.gz" },
    { "rope.fp32_angle", "far", NULL },
    { "act.gate_lower", "readings", "golden/readings/clamp_both.safetensors.gz" },
    { "vision.no_boundary", "two", "golden/vision/two_none.safetensors.gz" },
    { "mtp.handover", "mtp", "golden/mtp/post_norm.safetensors.gz" },
    { "mtp.row0", "mtp", "golden/mtp/zero_position0.safetensors.gz" },
};

enum { RIGHT = sizeof right / sizeof right[0] };

/* Goal:  a mistake that a reading permits is right there.
 * Given: its run, beside the public code's in that reading, else a correct run.
 * Claim: every stage that both hold passes (a golden of a reading holds some taps, the run all); every mistake with a
 *        reading is tried, and no other.
 * Seen to fail with pool=lse for index_scale=rsqrt. */
LOOP_TEST(readings, RIGHT)
{
    const struct m3_mistake *mistake = m3_mistake_named(right[_i].id);
    int with = 0;
    for (int i = 0; i < m3_mistake_count(); i++) with += m3_mistake_at(i)->reading != NULL;
    ck_assert_int_eq(with, RIGHT);
    ck_assert(mistake != NULL && mistake->reading != NULL);
    open_case(case_named(right[_i].run));
    dump("candidate.safetensors", mistake);
    good(m3_semantics_set(&semantics, mistake->reading, &error));
    if (!right[_i].golden) dump("reference.safetensors", NULL);
    compare(right[_i].golden ? right[_i].golden : in_folder("reference.safetensors"),
            in_folder("candidate.safetensors"));
    ck_assert_msg(result.verdict == M3_VERDICT_PASS, "%s: first at %s", right[_i].id,
                  result.first != NULL ? result.first->tap : "no tap");
    ck_assert_int_eq(result.judged, result.count);
    forget();
}

/* ---- mistakes of no name */

enum kind { ZERO, ROW_BEFORE, ROWS_TURNED, LAYER_BEFORE, KINDS };

struct spoilt {
    const char *tap;
    enum kind kind;
    const struct m3_force *usual;       /* what a run does besides */
    double *before;             /* that tap of the layer before */
    int64_t width;
};

/* What a kind makes of x [rows,width]. */
static void spoil(struct spoilt *s, double *x, int64_t rows)
{
    const size_t row = (size_t)s->width * sizeof *x;
    double *copy = malloc((size_t)rows * row);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, x, (size_t)rows * row);
    for (int64_t t = 0; t < rows; t++) {
        if (s->kind == ZERO) memset(x + t * s->width, 0, row);
        if (s->kind == ROW_BEFORE && t > 0) memcpy(x + t * s->width, copy + (t - 1) * s->width, row);
        if (s->kind == LAYER_BEFORE) memcpy(x + t * s->width, s->before + t * s->width, row);
        if (s->kind == ROWS_TURNED) memcpy(x + t * s->width, copy + (rows - 1 - t) * s->width, row);
    }
    free(copy);
}

static int force(void *self, enum m3_tap tap, int64_t layer, void *data, int64_t row, int64_t rows, struct m3_error *e)
{
    struct spoilt *s = self;
    char name[96], next[96];
    good(s->usual->replace(s->usual->self, tap, layer, data, row, rows, e));
    m3_tap_name(name, sizeof name, tap, layer);
    m3_tap_name(next, sizeof next, tap, layer + 1);
    const struct m3_setting setting = { .model = model, .semantics = &semantics, .the_case = &the_case };
    const int here = strcmp(name, s->tap) == 0, before = layer >= 0 && strcmp(next, s->tap) == 0;
    if (here || before) s->width = m3_tap_width(&setting, tap, layer);
    if (before) {
        s->before = realloc(s->before, (size_t)(rows * s->width) * sizeof *s->before);
        memcpy(s->before, data, (size_t)(rows * s->width) * sizeof *s->before);
    }
    if (here) spoil(s, data, rows);
    return M3_OK;
}

static void dump_with(const char *name, struct spoilt *spoilt, const struct m3_replacement *ops)
{
    const struct m3_force how = { .self = spoilt, .replace = force };
    struct m3_mistaken_run *run;
    good(m3_mistake_install(&run, NULL, model, &semantics, &the_case, &error));
    struct m3_request *request = m3_mistaken_request(run);
    if (spoilt) {
        spoilt->usual = request->force;
        request->force = &how;
    }
    if (ops) request->replacement = ops;
    good(m3_mistake_dump(run, in_folder(name), NULL, 1, &error));
    m3_mistake_remove(run);
}

/* The candidate diverges at that tap, and not before. */
static void diverges_at(const char *what, const char *tap)
{
    compare(in_folder("reference.safetensors"), in_folder("candidate.safetensors"));
    ck_assert_int_eq(result.status, M3_WRONG);
    ck_assert_msg(result.first && strcmp(result.first->tap, tap) == 0, "%s: first at %s, expected %s", what,
                  result.first ? result.first->tap : "no tap", tap);
    forget();
}

/* Goal:  results that were not computed, or are another's, are found.
 * Given: one tap in turn that is zero, of the row before, of the layer before, or with its rows in reverse; the pass
 *        continues from it. A slice has each tap in one way, and each way with a quarter of the taps.
 * Claim: it is the first divergence, and the culprit.
 * Seen to fail with a limit of 10 for 1e-5 in compare. */
TEST(not_computed)
{
    /* clang-format off */
    static const char *const taps[] = {
        "embed", "layers.1.attn_norm", "layers.1.q_proj", "layers.1.k_norm", "layers.1.k_rope", "layers.1.v_proj",
        "layers.1.attn_lse", "layers.1.attn", "layers.1.attn_out", "layers.1.mid", "layers.1.mlp.gate",
        "layers.1.mlp.act", "layers.1.mlp", "layers.3.index.q_proj", "layers.3.index.k_norm", "layers.3.index.q_rope",
        "layers.3.attn_lse", "layers.3.attn", "layers.3.mlp_norm", "layers.3.moe.router_logits",
        "layers.3.moe.weights", "layers.3.moe.expert_out", "layers.3.moe.routed", "layers.3.moe.shared",
        "layers.3.mlp", "layers.3.out", "final_norm", "logits",
    };
    /* clang-format on */
    open_case(case_named("tiny"));
    dump("reference.safetensors", NULL);
    for (size_t i = 0; i < sizeof taps / sizeof taps[0]; i++)
        for (enum kind kind = ZERO; kind < KINDS; kind++) {
            struct spoilt spoilt = { .tap = taps[i], .kind = kind };
            const enum kind kinds = strchr(taps[i], '.') ? KINDS : LAYER_BEFORE;
            if (kind >= kinds || !in_slice((int64_t)(i + kind), (int)kinds)) continue;
            dump_with("candidate.safetensors", &spoilt, NULL);
            diverges_at(taps[i], taps[i]);
            blames(taps[i], taps[i]);
            free(spoilt.before);
        }
}

/* Goal:  NaN is found wherever it stands.
 * Given: a correct dump with one NaN, in each float tap in turn, a third of them in each slice.
 * Claim: that tap fails first; of every tenth, that it is the culprit, of all in ten slices.
 * Seen to fail with elements that are NaN left out of what compare measures; with one element beyond HARD let pass. */
TEST(nan_anywhere)
{
    static const float nan_f32 = NAN;
    open_case(case_named("tiny"));
    dump("reference.safetensors", NULL);
    good(m3_safetensors_open(&reference, in_folder("reference.safetensors"), &error));
    uint64_t header;
    const char *start = m3_safetensors_header(reference, &header);
    int64_t tried = 0;
    for (int64_t i = 0; i < m3_safetensors_count(reference); i++) {
        const struct m3_tensor *t = m3_safetensors_at(reference, i);
        const long place = (const char *)t->data - start + t->count / 2 * (long)sizeof nan_f32;
        size_t bytes;
        if (t->dtype != M3_F32 || t->rank < 2) continue;         /* taps: a bias comes with one */
        const int with_blame = in_slice(tried, 10);
        if (!in_slice(tried++, 3) && !with_blame) continue;
        unsigned char *all = read_bytes(in_folder("reference.safetensors"), &bytes);
        memcpy(all + place, &nan_f32, sizeof nan_f32);
        write_bytes(in_folder("candidate.safetensors"), all, bytes);
        free(all);
        struct m3_safetensors *mine = reference;
        char name[96];
        snprintf(name, sizeof name, "%s", t->name);
        diverges_at("NaN", name);
        if (with_blame) blames("NaN", name);
        reference = mine;
    }
    m3_safetensors_close(reference);
    ck_assert_int_ge(tried, 115);
}

/* Call `at` of linear leaves out one product; -1: every call rounds each sum to bf16. */
struct careless {
    int64_t at, calls;
};

static int careless_linear(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias,
                           int64_t T)
{
    struct careless *c = ctx->plugin;
    int status = m3_engine_f64()->ops->linear(ctx, y, x, w, bias, T);
    const int64_t t = T - 1, n = w->rows / 2, k = w->cols / 2;
    double *numbers = malloc((size_t)w->cols * sizeof *numbers);
    ck_assert_ptr_nonnull(numbers);
    if (c->calls++ == c->at) {
        m3_expand_f64(numbers, w, n, 0, w->cols);
        y[t * w->rows + n] -= x[t * w->cols + k] * numbers[k];
    }
    for (int64_t r = 0; r < w->rows && c->at < 0; r++) {
        m3_expand_f64(numbers, w, r, 0, w->cols);
        for (int64_t i = 0; i < T; i++) {
            float sum = 0;
            for (int64_t j = 0; j < w->cols; j++) {
                uint32_t bits;
                sum += (float)(x[i * w->cols + j] * numbers[j]);
                memcpy(&bits, &sum, sizeof bits);
                bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
                memcpy(&sum, &bits, sizeof sum);
            }
            y[i * w->rows + r] = (double)sum + (bias ? bias[r] : 0);
        }
    }
    free(numbers);
    return status;
}

/* Goal:  a sum without one product, or is kept in bf16, is found.
 * Given: one of the calls of linear leaves out one product of one element (H products each, except for o_proj and
 *        down); all of them round every partial sum.
 * Claim: the tap of that call is the first divergence and the culprit; with sums in bf16 the first linear's.
 * Seen to fail with a limit of 0.1 for 1e-5 in compare; with one element beyond HARD let pass. */
TEST(careless_sums)
{
    /* clang-format off */
    static const struct { int64_t at; const char *tap; } calls[] = {
        { 0, "layers.0.q_proj" }, { 1, "layers.0.k_proj" }, { 2, "layers.0.v_proj" }, { 3, "layers.0.attn_out" },
        { 4, "layers.0.mlp.gate" }, { 5, "layers.0.mlp.up" }, { 6, "layers.0.mlp" }, { 17, "layers.2.index.q_proj" },
        { 18, "layers.2.index.k_proj" }, { 19, "layers.2.attn_out" }, { 20, "layers.2.moe.router_logits" },
        { 23, "layers.2.moe.shared" }, { 44, "logits" }, { -1, "layers.0.q_proj" },
    };
    /* clang-format on */
    open_case(case_named("tiny"));
    dump("reference.safetensors", NULL);
    struct m3_ops ops = *m3_engine_f64()->ops;
    ops.linear = careless_linear;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct careless careless = { calls[i].at, 0 };
        const struct m3_replacement replacement = { &ops, &careless };
        dump_with("candidate.safetensors", NULL, &replacement);
        diverges_at(calls[i].tap, calls[i].tap);
        blames(calls[i].tap, calls[i].tap);
    }
}

/* Goal:  tokens in another order are found.
 * Given: a run whose dump claims the case, on its ids with two of them exchanged.
 * Claim: `embed` diverges, and is the culprit.
 * Seen to fail with a limit of 10 for 1e-5 in compare. */
TEST(shuffled_tokens)
{
    open_case(case_named("tiny"));
    dump("reference.safetensors", NULL);
    const int32_t first = the_case.ids[3];
    ck_assert_int_ne(first, the_case.ids[40]);
    the_case.ids[3] = the_case.ids[40];
    the_case.ids[40] = first;
    dump("candidate.safetensors", NULL);
    the_case.ids[40] = the_case.ids[3];
    the_case.ids[3] = first;
    diverges_at("ids", "embed");
    blames("ids", "embed");
}

/* ---- the lists themselves */

/* Goal:  every known bug is a mistake here, or SPEC says why not.
 * Given: both tables of SPEC 7.12; the number of known bugs.
 * Claim: the first has every mistake once, in order; no bug is in both; together they are that many.
 * Seen to fail with a row of either table left out. */
TEST(complete)
{
    static struct spec_row made[SPEC_ROWS], others[SPEC_ROWS];
    const int mistakes = spec_rows(made, 5), rest = spec_rows(others, 1);
    int forms = 0;      /* second ones of the same bug */
    ck_assert_int_eq(mistakes, m3_mistake_count());
    for (int i = 0; i < mistakes; i++) {
        ck_assert_str_eq(made[i].id, m3_mistake_at(i)->id);
        ck_assert_ptr_eq(m3_mistake_named(made[i].id), m3_mistake_at(i));
        for (int j = 0; j < i; j++) ck_assert_str_ne(made[i].id, made[j].id);
        for (int j = 0; j < rest; j++) ck_assert_str_ne(made[i].id, others[j].id);
        forms += strchr(made[i].id, ':') != NULL;
    }
    for (int i = 0; i < rest; i++)
        for (int j = 0; j < i; j++) ck_assert_str_ne(others[i].id, others[j].id);
    ck_assert_int_eq(mistakes - forms + rest, 162);
    ck_assert_ptr_null(m3_mistake_at(-1));
    ck_assert_ptr_null(m3_mistake_at(mistakes));
    ck_assert_ptr_null(m3_mistake_named("rope"));
}

/* Goal:  an input on which a mistake cannot show is told from one on which it can.
 * Given: the M2 model, which is without all that most mistakes need; a prompt that fits into one list.
 * Claim: what is missing, by name; nothing where it is there.
 * Seen to fail with a list's worth of keys taken for more. */
TEST(what_is_lacking)
{
    static const struct {
        const char *id, *missing;
    } m2[] = {
        { "select.union", "a sparse layer" },
        { "norm.no_plus_one", "norms of Gemma's form" },
        { "norm.qk_plain", "a norm of each head of q and k" },
        { "act.alpha", "the activation of SwiGLU-OAI" },
        { "moe.no_shared", "a shared expert" },
        { "quant.requant", "matrices with a scale per 32 columns" },
        { "vision.gelu_tanh", "a picture" },
        { "vision.no_boundary", "a second picture, or a long video" },
        { "mtp.row0", "a module of multi-token prediction" },
        { "rope.fp32_angle", "a position of 10,000 or more" },
        { "rope.full", NULL },
        { "norm.rank_heads", NULL },
        { "gqa.tile", NULL },
        { "router.no_bias", NULL },
    };
    static const struct run_case small = { "m2", "golden/m2/model", "golden/m2/case.safetensors", NULL };
    open_case(&small);
    for (size_t i = 0; i < sizeof m2 / sizeof m2[0]; i++) {
        const char *missing = m3_mistake_missing(m3_mistake_named(m2[i].id), model, &semantics, &the_case);
        ck_assert_msg(m2[i].missing ? missing && strcmp(missing, m2[i].missing) == 0 : !missing, "%s: %s", m2[i].id,
                      missing ? missing : "nothing");
    }
    m3_case_free(&the_case);
    m3_model_close(model);
    open_case(case_named("tiny"));
    const char *whole = m3_mistake_missing(m3_mistake_named("norm.rank_heads"), model, &semantics, &the_case);
    ck_assert(whole && strcmp(whole, "a norm over all heads of q and k") == 0);
    the_case.T = 12;
    const char *missing = m3_mistake_missing(m3_mistake_named("attn.dense"), model, &semantics, &the_case);
    ck_assert(missing && strcmp(missing, "more blocks than a list holds") == 0);
    the_case.T = 13;
    ck_assert_ptr_null(m3_mistake_missing(m3_mistake_named("attn.dense"), model, &semantics, &the_case));
}
