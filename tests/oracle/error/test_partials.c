/* Products that an engine computes in parts (SPEC 7.5): o_proj, the dense down projection, the shared expert and
 * experts, against an emulation in floats that shares no code with the judge. */
#include "files.h"
#include "passes.h"

#include "oracle/error/profile.h"

TIMEOUT(300);
FIXTURE(make_folder, remove_folder);

static struct pass p;
static struct m3_profile *profile;

enum way { ONE_SHOT, RANK_ORDER, RING, WAYS };
enum mistake { NONE, LEFT_OUT, TWICE, SHIFTED, FACTOR, MISTAKES };
static const char *const way_names[] = { "one-shot", "rank order", "ring" };
static const char *const mistake_names[] = { "honest", "left out", "twice", "shifted", "factor" };
static const char *const reduces[] = { "any", "one_shot", "ring" };

static float bf16(float x) { return (float)to_bits((double)x, 8); }

/* Parts of equal sizes, rounded up. */
static float part(const float *w, const float *x, int64_t cols, int ranks, int r, int shift)
{
    const int64_t each = (cols + ranks - 1) / ranks;
    float sum = 0;
    for (int64_t k = r * each; k < (r + 1) * each && k < cols; k++) sum += w[(k + shift) % cols] * x[k];
    return bf16(sum);
}

/* One output of the engine; a ring starts where the output's column says. */
static float product(const float *w, const float *x, int64_t cols, int ranks, enum way way, int64_t column,
                     enum mistake mistake)
{
    const int first = way == RING ? (int)(column / 7 % ranks) : 0;
    float sum = 0;
    for (int i = 0; i < ranks; i++) {
        const int r = (first + i) % ranks, wrong = r == 1 ? (int)mistake : NONE;
        const float q = part(w, x, cols, ranks, r, wrong == SHIFTED) * (wrong == LEFT_OUT ? 0.0f : 1.0f);
        sum += wrong == TWICE ? 2 * q : q;
        if (way != ONE_SHOT) sum = bf16(sum);
    }
    return bf16(mistake == FACTOR ? bf16(sum) * 1.03f : sum);
}

static float *expanded(const struct m3_weight *w)
{
    double *row = doubles(w->cols);
    float *all = floats(w->rows * w->cols);
    for (int64_t n = 0; n < w->rows; n++) {
        m3_expand_f64(row, w, n, 0, w->cols);
        for (int64_t k = 0; k < w->cols; k++) all[n * w->cols + k] = (float)row[k];
    }
    free(row);
    return all;
}

/* The engine's output of every element: x of the row, w the last matrix. */
static double *outputs(const struct m3_weight *w, const float *x, int64_t T, int ranks, enum way way,
                       enum mistake mistake)
{
    float *matrix = expanded(w);
    double *y = doubles(T * w->rows);
    for (int64_t i = 0; i < T * w->rows; i++)
        y[i] = (double)product(matrix + i % w->rows * w->cols, x + i / w->rows * w->cols, w->cols, ranks, way,
                               i % w->rows, mistake);
    free(matrix);
    return y;
}

/* bf16 with so many ranks (0: in one part) at every tap whose last product engines cut. */
static void open_profile(int ranks, const char *reduce)
{
    char text[4000], parts[400] = "";
    size_t count;
    unsigned char *base = read_bytes("ref/oracle/error/profiles/bf16.json", &count);
    while (base[count - 1] != '}') count--;
    if (ranks)
        snprintf(parts, sizeof parts,
                 ", \"partials\": {\"*.attn_out\": {\"ranks\": %d, \"reduce\": \"%s\"}, \"*.mlp\": {\"ranks\": %d, "
                 "\"reduce\": \"%s\"}, \"*.moe.*\": {\"ranks\": %d, \"reduce\": \"%s\"}}",
                 ranks, reduce, ranks, reduce, ranks, reduce);
    snprintf(text, sizeof text, "%.*s%s}", (int)count - 1, (const char *)base, parts);
    write_text(in_folder("own.json"), text);
    free(base);
    ck_assert_msg(m3_profile_open(&profile, in_folder("own.json"), &p.error) == 0, "%s", p.error.text);
    p.setting.profile = profile;
}

static double one_number; /* the share of elements of the last tap that can have only one value, but for float sums */

static struct m3_tier_result judge(enum m3_tap tap, int64_t layer, const double *got, int ranks, const char *reduce)
{
    const struct m3_tap_values *operands[M3_OPERANDS] = { NULL };
    struct m3_recomputed made;
    open_profile(ranks, reduce);
    pass_operands(&p, operands, tap, layer);
    ck_assert_msg(m3_recompute(&made, &p.setting, tap, layer, operands, 0, INT64_MAX, &p.error) == 0, "%s",
                  p.error.text);
    const struct m3_two_sides values = {
        .reference = made.y.values,
        .candidate = got,
        .bound = made.bound,
        .walk = made.walk,
        .extra = made.y.off.error,
        .extra_variance = made.y.off.variance,
        .count = made.y.rows * made.y.width,
        .n = made.n,
        .f = made.f,
        .u = 0x1p-24,
        .stored = M3_BF16,
    };
    const struct m3_tier_result result = m3_verdict_of(&values);
    int64_t count = 0;
    for (int64_t i = 0; i < values.count; i++) count += made.y.off.error[i] == 0;
    one_number = (double)count / (double)values.count;
    m3_recomputed_free(&made);
    m3_profile_close(profile);
    p.setting.profile = NULL;
    return result;
}

/* The tap's operand, rounded in place to what a bf16 engine stores; as floats too. */
static float *rounded_input(enum m3_tap tap, int64_t layer)
{
    struct m3_tap_values *v = pass_value(&p, tap, layer);
    const int64_t n = v->rows * v->width;
    double *values = doubles(n);
    float *x = floats(n);
    for (int64_t i = 0; i < n; i++) values[i] = (double)(x[i] = bf16((float)v->values[i]));
    free((void *)v->values);
    v->values = values;
    return x;
}

/* Goal:  engines that compute o_proj and the dense down projection in parts pass under the profile that says so, and
 *        fail under plain bf16; a mistake of one rank fails under both.
 * Given: golden/tiny, 120 and 72 columns, 2, 4, 7 and 8 ranks (7 does not divide them).
 * Claim: for each way of adding: no tier under `any` and under its own kind, fail without partials from 4 ranks on;
 *        fail or suspect with a rank left out, added twice, its columns shifted by one, and 3 % too much.
 *        One-shot sums of equal cuts agree but for few elements (mean z^2 below 0.01).
 * Seen to fail with y left as it was, without the ring's other starts, with sizes rounded down, with a tenth of the
 * range, with the mistakes left unplanted. */
TEST(linear)
{
    static const enum m3_tap taps[][2] = { { M3_TAP_ATTN_OUT, M3_TAP_ATTN }, { M3_TAP_MLP, M3_TAP_MLP_ACT } };
    static const int all_ranks[] = { 2, 4, 7, 8 };
    double worst = 0, z2 = 0, least = INFINITY;
    pass_run(&p, "golden/tiny/model", "golden/tiny/case.safetensors", M3_LINEAR_BLAS);
    for (int t = 0; t < 2; t++) {
        float *x = rounded_input(taps[t][1], 0);
        const struct m3_weight *w = m3_graph_weight(p.model, &p.semantics, taps[t][0], 0, 0);
        const int64_t T = pass_value(&p, taps[t][1], 0)->rows;
        for (int i = 0; i < 4; i++)
            for (enum way way = 0; way < WAYS; way++)
                for (enum mistake mistake = 0; mistake < MISTAKES; mistake++) {
                    char what[100];
                    const int ranks = all_ranks[i];
                    double *y = outputs(w, x, T, ranks, way, mistake);
                    snprintf(what, sizeof what, "%s, %d ranks, %s, %s", m3_tap_table[taps[t][0]].name, ranks,
                             way_names[way], mistake_names[mistake]);
                    const struct m3_tier_result any = judge(taps[t][0], 0, y, ranks, reduces[0]);
                    const double by_any = one_number;
                    const struct m3_tier_result own = judge(taps[t][0], 0, y, ranks, reduces[way ? 2 : 1]);
                    if (mistake == NONE)
                        printf("%s: any: |d|/HARD %.3f, z^2 %.3f, one number %.1f %%; own: %.3f, %.3f, %.1f %%\n", what,
                               any.headroom, any.z2, 100 * by_any, own.headroom, own.z2, 100 * one_number);
                    const struct m3_tier_result plain = judge(taps[t][0], 0, y, 0, NULL);
                    if (mistake == NONE) {
                        no_alarm(what, &any, ~0), no_alarm(what, &own, ~0);
                        ck_assert_msg(plain.verdict == M3_VERDICT_FAIL, "%s", what);
                        ck_assert_msg(way != ONE_SHOT || w->cols % ranks || own.z2 < 0.01, "%s: %g", what, own.z2);
                        worst = fmax(worst, any.headroom), z2 = fmax(z2, any.z2);
                    } else {
                        ck_assert_msg(any.verdict != M3_VERDICT_PASS && own.verdict != M3_VERDICT_PASS, "%s: %g %g",
                                      what, any.headroom, any.z2);
                        least = fmin(least, any.z2);
                    }
                    free(y);
                }
        free(x);
    }
    printf("parts: honest |d|/HARD %.3f, mean z^2 %.3f; mistakes: z^2 at least %.3g\n", worst, z2, least);
    pass_end(&p);
}

/* The inputs of the last product of the shared expert in bf16: gate and up are stored, and the activation. */
static float *activations(const float *x, int64_t T, int64_t layer)
{
    const struct m3_weight *gate = m3_graph_weight(p.model, &p.semantics, M3_TAP_SHARED, layer, 0);
    const struct m3_weight *up = m3_graph_weight(p.model, &p.semantics, M3_TAP_SHARED, layer, 1);
    float *w1 = expanded(gate), *w3 = expanded(up), *act = floats(T * gate->rows);
    for (int64_t i = 0; i < T * gate->rows; i++) {
        const float *row = x + i / gate->rows * gate->cols;
        const int64_t at = i % gate->rows * gate->cols;
        float g = fminf(part(w1 + at, row, gate->cols, 1, 0, 0), 7);
        float u = fmaxf(fminf(part(w3 + at, row, gate->cols, 1, 0, 0), 7), -7);
        act[i] = bf16((u + 1) * g / (1 + expf(-1.702f * g)));
    }
    free(w1), free(w3);
    return act;
}

/* Goal:  the same for a gated MLP, where the last product's input is not known exactly.
 * Given: golden/tiny, the shared expert of layer 3, 56 columns.
 * Claim: honest: no tier; a rank left out, added twice or shifted is no pass.
 * Seen to fail with the mistakes left unplanted. What is not known of the input hides the parts' own roundings. */
TEST(shared)
{
    pass_run(&p, "golden/tiny/model", "golden/tiny/case.safetensors", M3_LINEAR_BLAS);
    float *x = rounded_input(M3_TAP_MLP_NORM, 3);
    const int64_t T = pass_value(&p, M3_TAP_MLP_NORM, 3)->rows;
    const struct m3_weight *w = m3_graph_weight(p.model, &p.semantics, M3_TAP_SHARED, 3, 2);
    float *act = activations(x, T, 3);
    for (int ranks = 2; ranks <= 8; ranks += 3)
        for (enum way way = 0; way < WAYS; way++)
            for (enum mistake mistake = 0; mistake < FACTOR; mistake++) {
                char what[100];
                snprintf(what, sizeof what, "%d ranks, %s, %s", ranks, way_names[way], mistake_names[mistake]);
                double *y = outputs(w, act, T, ranks, way, mistake);
                const struct m3_tier_result r = judge(M3_TAP_SHARED, 3, y, ranks, "any");
                if (mistake == NONE) no_alarm(what, &r, ~0);
                else ck_assert_msg(r.verdict != M3_VERDICT_PASS, "%s: %g %g", what, r.headroom, r.z2);
                if (mistake == NONE) printf("shared, %s: |d|/HARD %.3f, z^2 %.3f\n", what, r.headroom, r.z2);
                free(y);
            }
    free(x), free(act);
    pass_end(&p);
}

/* Goal:  where nothing is stored coarser, parts change nothing.
 * Claim: under fp32 with partials the recomputed tap has no further error.
 * Seen to fail with parts of taps that are stored in floats. */
TEST(floats_only)
{
    const struct m3_tap_values *operands[M3_OPERANDS] = { NULL };
    struct m3_recomputed made;
    pass_run(&p, "golden/tiny/model", "golden/tiny/case.safetensors", M3_LINEAR_BLAS);
    write_text(in_folder("own.json"), "{\"name\": \"x\", \"u\": \"f32\", \"partials\": {\"*.attn_out\": "
                                      "{\"ranks\": 8, \"reduce\": \"any\"}}}");
    ck_assert_int_eq(m3_profile_open(&profile, in_folder("own.json"), &p.error), 0);
    p.setting.profile = profile;
    pass_operands(&p, operands, M3_TAP_ATTN_OUT, 0);
    ck_assert_int_eq(m3_recompute(&made, &p.setting, M3_TAP_ATTN_OUT, 0, operands, 0, INT64_MAX, &p.error), 0);
    ck_assert(made.y.off.error == NULL);
    m3_recomputed_free(&made);
    m3_profile_close(profile);
    pass_end(&p);
}
