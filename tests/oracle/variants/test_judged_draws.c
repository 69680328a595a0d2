/* Honest implementations drawn for a profile, and runs with a mistake in its arithmetic, as compare and blame judge
 * their dumps (SPEC 7.8, 7.10). The draws know nothing of bounds, nor the judges of draws: each checks the other. */
#include "program.h"
#include "mistaken.h"
#include "slice.h"

#include <sys/resource.h>

#define MODEL "golden/tiny/model"
#define CASE "golden/tiny/case.safetensors"

static struct m3_error error, notes;
static struct m3_model *model;
static struct m3_case the_case;
static struct m3_profile *profile;
static struct m3_honest *honest;

static void good(int status) { ck_assert_msg(status == 0, "status %d: %s", status, error.text ? error.text : ""); }

static void make_truth(void)
{
    make_folder();
    ck_assert_int_eq(m3ref("run " MODEL " --case " CASE " --precision f64 --bounds --dump %s", in_folder("truth")), 0);
}

static void setup(void)
{
    good(m3_model_open(&model, MODEL, &notes, &error));
    good(m3_case_read(&the_case, CASE, &model->config, &error));
}

static void teardown(void)
{
    m3_honest_free(honest);
    m3_profile_close(profile);
    m3_case_free(&the_case);
    m3_model_close(model);
}

TIMEOUT(300);
FIXTURE(setup, teardown);
FIXTURE_ONCE(make_truth, remove_folder);

static void under(const char *name, int skips_nothing)
{
    m3_honest_free(honest);
    m3_profile_close(profile);
    good(m3_profile_open(&profile, name, &error));
    good(m3_honest_new(&honest, model, &model->config.semantics, profile, NULL, the_case.T, &error));
    if (skips_nothing) m3_honest_skip_nothing(honest);
}

static void draw(int number, const char *taps)
{
    good(honest_dump(in_folder("candidate"), taps, honest, number, model, &the_case, &error));
}

static void make_mistake(const char *id, const char *taps)
{
    const struct m3_mistake *mistake = NULL;
    for (int i = 0; i < m3_mistake_count(); i++)
        if (strcmp(m3_mistake_at(i)->id, id) == 0) mistake = m3_mistake_at(i);
    ck_assert_msg(mistake != NULL, "%s", id);
    good(mistaken_dump(in_folder("candidate"), taps, mistake, model, &the_case, profile, &error));
}

static int compare(const char *name)
{
    char truth[512];
    snprintf(truth, sizeof truth, "%s", in_folder("truth"));
    return m3ref("compare %s %s --profile %s", truth, in_folder("candidate"), name);
}

static int blame(const char *name, const char *more)
{
    return m3ref("blame " MODEL " %s --case " CASE " --profile %s %s", in_folder("candidate"), name, more);
}

/* Goal:  draws span what a profile allows, and nothing beyond it; and clean dumps are judged in full, the outputs of
 *        experts in fp8 among them, whose errors lie in no known mistake's direction.
 * Given: full dumps of draws that skip no rounding, under a third of the profiles in each slice.
 * Claim: compare and blame pass each draw under its profile, all 130 stages judged; blame calls some of the draws wrong
 *        under the plain profile, where only the word explains them.
 * Seen to fail with parts that are not rounded, norms that read the stored sum and caches that are not rounded (no draw
 * fails under the plain profile), and with experts in fp8 left unjudged. */
static const struct {
    const char *name, *plain;
} profiles[] = {
    { "bf16+tp4", "bf16" }, { "bf16+fused_norm", "bf16" }, { "bf16+kv_e4m3", "bf16" }, { "bf16+kv_e5m2", "bf16" },
    { "fp8", "bf16" },      { "fp8+act_token", "bf16" },
};

LOOP_TEST(draws, sizeof profiles / sizeof *profiles)
{
    int explained = 0;
    if (!in_slice(_i, 3)) return;
    under(profiles[_i].name, 1);
    for (int number = 0; number < 3; number++) {
        draw(number, NULL);
        ck_assert_int_eq(compare(profiles[_i].name), 0);
        ck_assert(has("out", "pass  130 of 130 stages judged"));
        ck_assert_int_eq(blame(profiles[_i].name, ""), 0);
        ck_assert(has("out", "pass  130 of 130 taps judged"));
        explained += blame(profiles[_i].plain, "") == 1;
    }
    ck_assert_int_gt(explained, 0);
}

/* Goal:  rows of equal tokens, whose errors are alike, are not taken for many that agree.
 * Given: 100 tokens of one, two or three kinds; draws of a profile that skip no rounding; half of them in each slice.
 * Claim: blame passes each, or says of a tap in 8 bits that so few rows cannot tell it from a mistake.
 * Seen to fail with no row marked as like another, and with equal keys counted as independent. */
static const struct {
    const char *name;
    int kinds;
} equal[] = { { "bf16", 1 }, { "bf16", 2 }, { "fp8", 1 }, { "fp8", 2 }, { "fp8+kv_e4m3", 3 } };

LOOP_TEST(equal_tokens, sizeof equal / sizeof *equal)
{
    enum { TOKENS = 100 };
    int64_t ids[TOKENS];
    char text[TOKENS * 4] = "";
    size_t length = 0;
    if (!in_slice(_i, 2)) return;
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = 5 + 6 * (i % equal[_i].kinds);
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%d", i ? "," : "", (int)ids[i]);
    }
    m3_case_free(&the_case);
    good(m3_case_from_ids(&the_case, ids, TOKENS, NULL, &model->config, &error));
    under(equal[_i].name, 1);
    for (int number = 0; number < 2; number++) {
        draw(number, NULL);
        const int status =
            m3ref("blame " MODEL " %s --ids %s --profile %s", in_folder("candidate"), text, equal[_i].name);
        ck_assert_msg(status == 0 || last_line_has("partial"), "draw %d", number);
    }
}

/* A check whose kept findings may have so many bytes: with more it stops. */
static int check_up_to(rlim_t bytes)
{
    struct rlimit all;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &all), 0);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ bytes, all.rlim_max }), 0);
    const int status = m3ref("check " MODEL " %s --case " CASE " --profile bf16 --resume %s", in_folder("candidate"),
                             in_folder("kept"));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &all), 0);
    return status;
}

/* Goal:  what check --resume keeps is of the profile that was asked for, not of the word that explains the failure.
 * Given: a draw of bf16+tp4, which fails under bf16; a check that was never stopped, and one that was.
 * Claim: both name the word.
 * Seen to fail with the kept findings given to the runs of the words: too many findings, and no word. */
TEST(word_after_resume)
{
    under("bf16+tp4", 1);
    draw(0, NULL);
    ck_assert_int_eq(check_up_to(RLIM_INFINITY), 1);
    ck_assert(last_line_has("with --profile bf16+tp4 nothing is wrong"));
    ck_assert_int_eq(check_up_to(100000), M3_IO);
    ck_assert_int_eq(check_up_to(RLIM_INFINITY), 1);
    ck_assert(has("err", "taps had been judged before"));
    ck_assert(last_line_has("with --profile bf16+tp4 nothing is wrong"));
}

/* Goal:  in fp8 the sums of a layer are judged from the candidate's own taps, and the experts by drift.
 * Claim: each mistake is found where it was made; two of them in each slice.
 * Seen to fail with experts left unjudged, and unjudged stages no inputs of later ones. */
static const struct {
    const char *id, *tap;
} in_fp8[] = {
    { "moe.no_scale", "layers.2.moe.routed" },
    { "moe.no_shared", "layers.2.mlp" },
    { "moe.scale_shared", "layers.2.mlp" },
    { "act.swap", "layers.2.moe.expert_out" },
};

LOOP_TEST(mistakes_in_fp8, sizeof in_fp8 / sizeof *in_fp8)
{
    char first[80];
    if (!in_slice(_i, 2)) return;
    under("fp8", 1);
    make_mistake(in_fp8[_i].id, NULL);
    ck_assert_int_gt(compare("fp8"), 0);
    snprintf(first, sizeof first, "first divergence %s;", in_fp8[_i].tap);
    ck_assert(has("out", first));
}

/* Goal:  blame judges layer outputs and logits alone by what honest implementations make of the candidate's outputs.
 * Claim: draws pass; a mistake is found in the first layer that has it, which reads outputs that are right; without the
 *        implementations the run is partial; the same dump cut to the logits fails too.
 * Seen to fail with each layer run from the run's own output instead of the candidate's. */
TEST(blamed_outputs)
{
    under("bf16", 0);
    for (int number = 0; number < 2; number++) {
        draw(number, "layers.*.out,logits");
        ck_assert_int_eq(blame("bf16", ""), 0);
        ck_assert(has("out", "pass  6 of 6 taps judged"));
    }
    draw(0, "logits");
    ck_assert_int_eq(blame("bf16", ""), 0);
    make_mistake("moe.no_scale", "layers.*.out,logits");
    ck_assert_int_eq(blame("bf16", ""), 1);
    ck_assert(has("out", "culprit  layers.2.out"));
    ck_assert(has("out", "the 75% quantile of the rows' errors is"));
    ck_assert_int_eq(blame("bf16", "--row-runs 0"), 2);
    ck_assert(has("out", "partial"));
    make_mistake("moe.no_scale", "logits");
    ck_assert_int_eq(blame("bf16", ""), 1);
}

/* The word W of "with --profile PROFILE+W nothing is wrong"; "" if nothing of the kind is said. */
static void word_said(char word[64])
{
    size_t count;
    char *out = (char *)read_bytes(in_folder("out"), &count);
    const char *said = strstr(out, "with --profile ");
    word[0] = '\0';
    if (said) ck_assert_int_eq(sscanf(said, "with --profile %63s", word), 1);
    free(out);
}

/* Goal:  no word of a profile excuses a mistake, and what is said of a word is so.
 * Given: mistakes under bf16, two or three of them in each slice.
 * Claim: a word is not named beside a known mistake; with the profile that is named the same command passes.
 * Seen to fail with words tried whether or not a mistake is named. */
TEST(words_are_tried)
{
    static const char *const ids[] = { "select.lse",   "select.union",      "select.mean_heads", "select.no_local",
                                       "index.scale",  "attn.partial_bf16", "rope.full",         "rope.after_norm_swap",
                                       "gqa.tile",     "norm.qk_plain",     "norm.early_round",  "router.softmax",
                                       "router.bf16",  "act.alpha",         "act.silu",          "act.swap",
                                       "moe.no_scale", "moe.no_shared" };
    under("bf16", 1);
    for (int i = 0; i < (int)(sizeof ids / sizeof *ids); i++) {
        char profile[64];
        if (!in_slice(i, 9)) continue;
        make_mistake(ids[i], NULL);
        m3ref("check " MODEL " %s --case " CASE " --profile bf16", in_folder("candidate"));
        word_said(profile);
        if (!profile[0]) continue;
        ck_assert_msg(!has("out", "It looks like the known mistake"), "%s: %s beside a mistake", ids[i], profile);
        ck_assert_msg(m3ref("check " MODEL " %s --case " CASE " --profile %s", in_folder("candidate"), profile) == 0,
                      "%s: %s does not pass", ids[i], profile);
    }
}
