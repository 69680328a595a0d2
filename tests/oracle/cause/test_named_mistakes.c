/* Which known mistake explains a dump that fails: blame names it, and never names one where there is none. */
#include "judged.h"
#include "slice.h"

#include "model/semantics.h"
#include "oracle/report/report.h"

static struct m3_semantics semantics;

static void setup(void) { make_folder(); }

static void forget(void)
{
    m3_judgement_free(&result);
    m3_safetensors_close(file);
    file = NULL;
}

static void teardown(void)
{
    m3_profile_close(profile);
    close_golden();
}

TIMEOUT(240);
FIXTURE(setup, teardown);

static void open_model(const char *name, const char *profile_name)
{
    open_golden(name);
    good(m3_profile_open(&profile, profile_name, &error));
    semantics = model->config.semantics;
}

static void judge(const char *path)
{
    const struct m3_blame_options options = { .names_mistakes = 1 };
    const struct m3_setting setting = {
        .model = model, .semantics = &semantics, .the_case = &the_case, .profile = profile, .ctx = &ctx
    };
    good(m3_safetensors_open(&file, path, &error));
    good(m3_blame(&result, &setting, file, &options, &error));
}

static int says(const char *text) { return result.notes.text && strstr(result.notes.text, text) != NULL; }

/* The first that is named is this one, or has the same results there. */
static int is_named(const char *id)
{
    for (int64_t i = 0; i < result.count && result.mistake; i++) {
        const struct m3_finding *tap = &result.findings[i];
        if (!tap->mistake) continue;
        return strcmp(tap->mistake->id, id) == 0 || strstr(tap->same_results, id) != NULL;
    }
    return 0;
}

/* ---- */

static const struct world {
    const char *model, *profile, *taps;
    int percent;                /* of the dumps that blame finds wrong */
    int parts;                  /* so many slices take all mistakes */
} worlds[] = {
    { "tiny", "fp32", NULL, 100, 2 },
    { "mtp", "fp32", NULL, 100, 2 },
    { "m2", "fp32", NULL, 100, 1 },
    { "tiny", "bf16", NULL, 95, 5 },
    { "mtp", "bf16", NULL, 95, 2 },
    { "m2", "bf16", NULL, 95, 1 },
    { "mxfp8", "fp8", NULL, 95, 5 },
    { "tiny", "fp32", "layers.*.out,logits", 95, 5 },
    { "mtp", "fp32", "layers.*.out,mtp.*.layer.out,logits,mtp.*.logits", 95, 2 },
};

enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* Goal:  a known mistake is named by what it gives.
 * Given: a dump of every mistake that can show in the model: all taps, or the outputs of layers and the logits alone. In
 *        the longer worlds a part of the mistakes in each slice.
 * Claim: of the dumps that fail or are suspect, so many are named right at the first tap that is named; mistakes with
 *        the same results count as one. Of dumps that pass, and of the right one, none is named.
 * Seen to fail with any mistake that can be made taken for the explanation, at taps that pass too; with a layer that
 * does not get what load.next_layer takes of the next one. */
LOOP_TEST(every_mistake, WORLDS)
{
    const struct world *w = &worlds[_i];
    char missed[2048] = "";
    int flagged = 0, named = 0;
    open_model(w->model, w->profile);
    for (int k = -1; k < m3_mistake_count(); k++) {
        const struct m3_mistake *mistake = k < 0 ? NULL : m3_mistake_at(k);
        if (mistake && m3_mistake_missing(mistake, model, &semantics, &the_case)) continue;
        if (mistake && !in_slice(k, w->parts)) continue;
        good(mistaken_dump(in_folder("dump"), w->taps, mistake, model, &the_case, profile, &error));
        judge(in_folder("dump"));
        if (!mistake || result.status == M3_OK) {
            ck_assert_msg(!result.mistake, "%s: named %s", mistake ? mistake->id : "right", result.mistake);
        } else {
            const size_t length = strlen(missed);
            flagged++;
            named += is_named(mistake->id);
            if (!is_named(mistake->id))
                snprintf(missed + length, sizeof missed - length, " %s (%s)", mistake->id,
                         result.mistake ? result.mistake : "none");
        }
        forget();
    }
    ck_assert_int_ge(w->parts * flagged, strcmp(w->model, "m2") == 0 ? 12 : 40);
    ck_assert_msg(100 * named >= w->percent * flagged, "%s %s: %d of %d; missed:%s", w->model, w->profile, named,
                  flagged, missed);
}

/* Goal:  legitimate rounding is no mistake.
 * Given: dumps of implementations that add in other orders and round at random, under each profile; two of four in each
 *        slice.
 * Claim: whatever the verdict, no mistake is named.
 * Seen to fail as every_mistake. */
LOOP_TEST(honest, 6)
{
    static const char *const profiles[] = { "fp32", "bf16", "fp8" };
    static const char *const taps[] = { NULL, "layers.*.out,logits" };
    struct m3_honest *drawn;
    open_model("tiny", profiles[_i % 3]);
    good(m3_honest_new(&drawn, model, &model->config.semantics, profile, NULL, the_case.T, &error));
    for (int number = 0; number < 4; number++) {
        if (!in_slice(number, 2)) continue;
        good(honest_dump(in_folder("dump"), taps[_i / 3], drawn, number, model, &the_case, &error));
        judge(in_folder("dump"));
        ck_assert_msg(!result.mistake, "number %d: named %s", number, result.mistake);
        forget();
    }
    m3_honest_free(drawn);
}

/* ---- errors that are no known mistake */

/* A number in the middle of a tap is 1 % off; or all are. */
static void spoil(const char *tap, int all)
{
    size_t bytes;
    uint64_t header;
    good(m3_safetensors_open(&file, in_folder("right"), &error));
    const struct m3_tensor *t = m3_safetensors_find(file, tap);
    ck_assert_ptr_nonnull(t);
    const size_t at = (size_t)((const char *)t->data - (const char *)m3_safetensors_header(file, &header));
    const int64_t count = t->count;
    m3_safetensors_close(file);
    file = NULL;
    unsigned char *copy = read_bytes(in_folder("right"), &bytes);
    for (int64_t i = all ? 0 : count / 2; i < (all ? count : count / 2 + 1); i++) {
        float x;
        memcpy(&x, copy + at + (size_t)i * sizeof x, sizeof x);
        x = x * 1.01F + 1e-3F;
        memcpy(copy + at + (size_t)i * sizeof x, &x, sizeof x);
    }
    write_bytes(in_folder("dump"), copy, bytes);
    free(copy);
}

/* Goal:  an error that is no known mistake is not given the name of one.
 * Given: a right dump; in one tap in turn one number, or all of them, is 1 % off; the other one in the next slice.
 * Claim: the tap is the culprit, no mistake is named, and the note says how many were tried.
 * Seen to fail with 1 for 20 times nearer in naming.c. */
TEST(unknown_errors)
{
    static const char *const taps[] = { "embed",
                                        "layers.0.attn_norm",
                                        "layers.1.q_norm",
                                        "layers.1.q_rope",
                                        "layers.0.attn_lse",
                                        "layers.2.index.block_scores",
                                        "layers.2.attn",
                                        "layers.1.mlp.act",
                                        "layers.3.moe.router_scores",
                                        "layers.3.moe.weights",
                                        "layers.3.moe.expert_out",
                                        "layers.3.moe.routed",
                                        "layers.3.mlp" };
    int said = 0;
    open_model("tiny", "fp32");
    good(mistaken_dump(in_folder("right"), NULL, NULL, model, &the_case, profile, &error));
    for (size_t i = 0; i < 2 * sizeof taps / sizeof taps[0]; i++) {
        if (!in_slice((int64_t)(i / 2 + i), 2)) continue;
        spoil(taps[i / 2], i % 2);
        judge(in_folder("dump"));
        ck_assert_msg(result.first && strcmp(result.first->tap, taps[i / 2]) == 0, "%s: blamed on %s", taps[i / 2],
                      result.first ? result.first->tap : "no tap");
        ck_assert_msg(!result.mistake, "%s: named %s", taps[i / 2], result.mistake);
        said += says("explains it");
        forget();
    }
    ck_assert_int_ge(said, 10);
}

/* ---- what is said */

/* Goal:  two mistakes in different operators are both named; one that a reading permits with that reading.
 * Given: a dump of a run with select.shared_heads, as its reading, and rope.interleaved.
 * Claim: both are named where they are put; the note and the JSON say so.
 * Seen to fail as every_mistake. */
TEST(pair)
{
    struct m3_mistaken_run *run;
    char *text = NULL;
    size_t size;
    open_model("tiny", "fp32");
    struct m3_semantics shared = semantics;
    good(m3_semantics_set(&shared, "selection=shared", &error));
    good(m3_mistake_install(&run, m3_mistake_named("rope.interleaved"), model, &shared, &the_case, &error));
    good(m3_mistake_dump(run, in_folder("dump"), NULL, 1, &error));
    m3_mistake_remove(run);
    judge(in_folder("dump"));
    ck_assert_msg(says("layers.0.q_rope looks like rope.interleaved (neighbours (2i, 2i+1) are turned as pairs): the "
                       "results of this mistake are within") &&
                      says("layers.2.index.blocks looks like select.shared_heads") &&
                      says("--set selection=shared explains it"),
                  "%s", result.notes.text ? result.notes.text : "no notes");
    FILE *out = open_memstream(&text, &size);
    good(m3_report_json(out, &result, M3_REPORT_ALL, &error));
    fclose(out);
    ck_assert_str_eq(result.mistake, "rope.interleaved");
    ck_assert_ptr_nonnull(strstr(text, "\"mistake\":\"select.shared_heads\""));
    ck_assert_ptr_nonnull(strstr(strstr(text, "\"summary\""), "\"mistake\":\"rope.interleaved\""));
    free(text);
    forget();
}

/* Goal:  what a mistake does to later taps is not taken for other mistakes.
 * Given: a run whose layers have the next one's weights, under a profile whose inputs are codes of 4 bits.
 * Claim: no other mistake is named.
 * Seen to fail, at the outputs of experts, with mistakes tried only where they first show. */
TEST(one_name)
{
    int named = 0;
    open_model("tiny", "nvfp4");
    const struct m3_mistake *mistake = m3_mistake_named("load.next_layer");
    good(mistaken_dump(in_folder("dump"), NULL, mistake, model, &the_case, profile, &error));
    judge(in_folder("dump"));
    for (int64_t i = 0; i < result.count; i++) {
        const struct m3_mistake *one = result.findings[i].mistake;
        ck_assert_msg(!one || one == mistake, "%s: named %s", result.findings[i].tap, one ? one->id : "");
        named += one == mistake;
    }
    ck_assert_int_gt(named, 10);
    forget();
}

/* Goal:  a mistake is named on a sequence of which only some rows are tried.
 * Given: 300 tokens, and mistakes of attention, caches, selection, norms and rotation, a third of them in each slice.
 * Claim: they are named.
 * Seen to fail as every_mistake. */
TEST(long_sequence)
{
    static const char *const ids[] = {
        "norm.qk_full_vector", "rope.after_norm_swap", "rope.full",         "attn.block_noncausal", "select.order",
        "select.mean_heads",   "router.softmax",       "act.swap",          "select.layer_reuse",   "cache.one_late",
        "cache.index_late",    "cache.index_lost",     "cache.overwritten", "cache.stale_value",    "cache.blind_step",
        "cache.step_list",     "cache.prefix_part",    "attn.no_own_key",   "attn.next_key",        "rope.position",
        "norm.half_head",      "moe.capacity"
    };
    enum { T = 300 };
    int64_t tokens[T];
    struct m3_pictures none = { 0 };
    open_model("tiny", "fp32");
    m3_case_free(&the_case);
    for (int i = 0; i < T; i++) tokens[i] = (i * 37 + i * i % 11) % 60;
    good(m3_case_from_ids(&the_case, tokens, T, &none, &model->config, &error));
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        if (!in_slice((int64_t)i, 3)) continue;
        good(mistaken_dump(in_folder("dump"), NULL, m3_mistake_named(ids[i]), model, &the_case, profile, &error));
        judge(in_folder("dump"));
        ck_assert_msg(is_named(ids[i]), "%s: named %s at %s", ids[i], result.mistake ? result.mistake : "none",
                      result.first ? result.first->tap : "no tap");
        forget();
    }
}

/* Goal:  an allowance that would pass what is wrong passes nothing.
 * Given: runs whose experts have a known mistake, and right ones, under profiles whose inputs are codes of 4 or 8 bits.
 * Claim: each of the first fails, by its name. The golden, which holds some rows, does: its experts are judged.
 * Seen to fail without directions; with mistakes that are not made from the rows of a golden. */
LOOP_TEST(blind_passes, 6)
{
    static const char *const profiles[] = {
        "fp8", "mxfp4", "nvfp4", "bf16+act_nvfp4", "fp32+act_mxfp4", "bf16+act_mx"
    };
    static const char *const ids[] = { "act.alpha", "act.silu", "act.params_dropped", "act.no_plus_one", "act.swap" };
    open_model("common", profiles[_i]);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        const struct m3_mistake *mistake = m3_mistake_named(ids[i]);
        good(mistaken_dump(in_folder("dump"), NULL, mistake, model, &the_case, NULL, &error));
        judge(in_folder("dump"));
        ck_assert_msg(result.status == M3_WRONG && is_named(ids[i]), "%s: %s: status %d, %s", profiles[_i], ids[i],
                      result.status, result.mistake ? result.mistake : "none");
        forget();
    }
    /* Without errors of its own nothing hides behind them. */
    judge("golden/common/golden.safetensors.gz");
    ck_assert_msg(result.status == M3_OK, "%s: the right one: %d", profiles[_i], result.status);
    forget();
}
