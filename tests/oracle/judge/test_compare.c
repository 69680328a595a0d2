/* The comparison of two dumps as a whole: order, totals, what only one holds, dumps that do not belong together. */
#include "dumps.h"

#include <math.h>

FIXTURE(dumps_setup, dumps_teardown);

/* Goal:  taps without elements are no pass.
 * Seen to fail with the count of elements not checked. */
TEST(nothing_to_judge)
{
    const double none[1] = { 0 };
    dump_one(reference_path, "embed", M3_F64, none, 0, 4, -1);
    dump_one(candidate_path, "embed", M3_F64, none, 0, 4, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_JUDGED);
    ck_assert_int_eq(result.status, M3_NOT_COMPARABLE);
    ck_assert_int_eq(result.not_judged, 1);
}

/* Goal:  a failure outranks what is not comparable, and that outranks a pass.
 * Seen to fail with the two tests of the status exchanged. */
TEST(status_precedence)
{
    const double x[2] = { 1, 2 }, y[2] = { 1, 3 };
    for (int fail = 0; fail < 2; fail++) {
        struct dump dump;
        dump_begin(&dump, reference_path);
        dump_tensor(&dump, "embed", M3_F64, x, 1, 2, -1);
        dump_tensor(&dump, "fused", M3_F64, x, 1, 2, -1);
        dump_end(&dump);
        dump_begin(&dump, candidate_path);
        dump_tensor(&dump, "embed", M3_F64, x, 2, 1, -1);
        dump_tensor(&dump, "fused", M3_F64, fail ? y : x, 1, 2, -1);
        dump_end(&dump);
        ck_assert_int_eq(judge(), M3_OK);
        ck_assert_int_eq(result.status, fail ? M3_WRONG : M3_NOT_COMPARABLE);
        ck_assert_int_eq(result.not_comparable, 1);
        ck_assert_int_eq(result.judged, 1);
    }
}

/* Goal:  stages stand in execution order, layer 9 before 10; the first failure is the divergence; patterns select.
 * Given: taps written in a wrong order, errors in layers.9.out and layers.10.attn_norm.
 * Seen to fail with stages sorted by name, and with the last failure kept. */
TEST(execution_order)
{
    static const char *const names[] = { "logits", "layers.10.attn_norm", "layers.9.out",       "final_norm",
                                         "embed",  "layers.9.mlp",        "layers.2.attn_norm", "fused" };
    static const char *const order[] = { "embed",        "fused",        "layers.2.attn_norm",
                                         "layers.9.mlp", "layers.9.out", "layers.10.attn_norm",
                                         "final_norm",   "logits" };
    const double x[2] = { 1, 2 }, y[2] = { 1, 3 };
    struct dump dump;
    dump_begin(&dump, reference_path);
    for (int i = 0; i < 8; i++) dump_tensor(&dump, names[i], M3_F64, x, 1, 2, -1);
    dump_end(&dump);
    dump_begin(&dump, candidate_path);
    for (int i = 7; i >= 0; i--) dump_tensor(&dump, names[i], M3_F64, i == 1 || i == 2 ? y : x, 1, 2, -1);
    dump_end(&dump);
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert_int_eq(result.count, 8);
    for (int i = 0; i < 8; i++) ck_assert_str_eq(result.findings[i].tap, order[i]);
    ck_assert_str_eq(result.first->tap, "layers.9.out");
    ck_assert_int_eq(result.failed, 2);
    ck_assert_int_eq(result.status, M3_WRONG);

    options.taps = "layers.9.mlp,embed,layers.2.*";
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert_int_eq(result.count, 3);
    ck_assert_int_eq(result.status, M3_OK);
    ck_assert(result.missing == 0 && result.extra == 0);
}

/* Goal:  what only one file holds is counted, and what only the candidate holds makes the run partial; what is no tap
 *        is noted, but companions and rows are not.
 * Seen to fail with ".bound" taken for unknown, and with missing taps counted beyond the patterns. */
TEST(taps_of_one_file)
{
    const double x[2] = { 1, 2 };
    const int32_t row[1] = { 0 };
    struct dump dump;
    dump_begin(&dump, reference_path);
    dump_tensor(&dump, "embed", M3_F64, x, 1, 2, -1);
    dump_tensor(&dump, "embed.bound", M3_F64, x, 1, 2, -1);
    dump_tensor(&dump, "layers.0.mid", M3_F64, x, 1, 2, -1);
    dump_tensor(&dump, "layers.1.mid", M3_F64, x, 1, 2, -1);
    dump_tensor(&dump, "rows", M3_I32, row, 1, -1, -1);
    dump_tensor(&dump, "strange", M3_F64, x, 1, 2, -1);
    dump_tensor(&dump, "layers.0.strange", M3_F64, x, 1, 2, -1);
    dump_end(&dump);
    dump_begin(&dump, candidate_path);
    dump_tensor(&dump, "embed", M3_F64, x, 1, 2, -1);
    dump_tensor(&dump, "logits", M3_F64, x, 1, 2, -1);
    dump_end(&dump);
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert(result.missing == 2 && result.extra == 1 && result.count == 1);
    ck_assert(result.verdict == M3_VERDICT_PARTIAL && result.status == M3_SUSPECT && result.unjudged == 1);
    ck_assert(notes_say("missing in the candidate: 2: layers.0.mid layers.1.mid\n"));
    ck_assert(notes_say("only the candidate holds, not judged: 1: logits"));
    ck_assert(notes_say("of the reference that are no taps, not compared: 2, first "));
    ck_assert(!notes_say("bound"));

    options.taps = "embed,layers.1.*";
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert(result.missing == 1 && result.extra == 0 && result.verdict == M3_VERDICT_PASS);
}

/* Goal:  what a tap looks like is said: log-probabilities for logits, heads exchanged.
 * Claim: log-softmax is x - log(sum of exp(x)), row by row; a wrong shape is not comparable as before.
 * Seen to fail with a hint whenever logits fail: the last case doubles them. */
TEST(hints)
{
    enum { T = 2, V = 3 };
    const double x[T * V] = { 1, 2, 4, 0.5, 3, -1 };
    double log_softmax[T * V], doubled[T * V];
    for (int t = 0; t < T; t++) {
        const double sum = exp(x[t * V]) + exp(x[t * V + 1]) + exp(x[t * V + 2]);
        for (int v = 0; v < V; v++) {
            log_softmax[t * V + v] = x[t * V + v] - log(sum);
            doubled[t * V + v] = 2 * x[t * V + v];
        }
    }
    dump_one(reference_path, "logits", M3_F64, x, T, V, -1);
    dump_one(candidate_path, "logits", M3_F64, log_softmax, T, V, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_FAIL);
    ck_assert_ptr_nonnull(strstr(result.findings[0].note, "log-softmax"));
    dump_one(candidate_path, "logits", M3_F64, doubled, T, V, -1);
    ck_assert(judge_one()->verdict == M3_VERDICT_FAIL && result.findings[0].note[0] == 0);
    dump_one(reference_path, "layers.0.q_rope", M3_F64, x, 2, 3, 1);
    dump_one(candidate_path, "layers.0.q_rope", M3_F64, x, 3, 2, 1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    ck_assert_ptr_nonnull(strstr(result.findings[0].note, "tokens and heads exchanged"));
}

/* Goal:  a long list of missing taps is cut; the count is not. */
TEST(many_missing)
{
    const double x[1] = { 1 };
    struct dump dump;
    char name[32];
    dump_begin(&dump, reference_path);
    dump_tensor(&dump, "embed", M3_F64, x, 1, 1, -1);
    for (int l = 0; l < 20; l++) {
        snprintf(name, sizeof name, "layers.%d.mid", l);
        dump_tensor(&dump, name, M3_F64, x, 1, 1, -1);
    }
    dump_end(&dump);
    dump_one(candidate_path, "embed", M3_F64, x, 1, 1, -1);
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert_int_eq(result.missing, 20);
    ck_assert(notes_say("candidate: 20: layers.0.mid") && notes_say("layers.7.mid ...") && !notes_say("layers.8.mid"));
}

/* Seen to fail with the status of nothing matched set to 0. */
TEST(nothing_in_common)
{
    const double x[1] = { 1 };
    dump_one(reference_path, "embed", M3_F64, x, 1, 1, -1);
    dump_one(candidate_path, "logits", M3_F64, x, 1, 1, -1);
    ck_assert_int_eq(judge(), M3_NOT_COMPARABLE);
    ck_assert_int_eq(result.status, M3_NOT_COMPARABLE);
    ck_assert(error_says("nothing matched") && notes_say("nothing matched"));

    dump_one(candidate_path, "embed", M3_F64, x, 1, 1, -1);
    options.taps = "final_norm";
    ck_assert_int_eq(judge(), M3_NOT_COMPARABLE);
    options.taps = "";
    ck_assert_int_eq(judge(), M3_NOT_COMPARABLE);
    dump_one(reference_path, "model.norm.weight", M3_F64, x, 1, 1, -1);
    options.taps = NULL;
    ck_assert_int_eq(judge(), M3_NOT_COMPARABLE);
}

static void write_meta(const char *path, const char *key, const char *value)
{
    const double x[1] = { 1 };
    struct dump dump;
    dump_begin(&dump, path);
    dump_tensor(&dump, "embed", M3_F64, x, 1, 1, -1);
    if (value != NULL) dump_meta(&dump, key, value);
    dump_end(&dump);
}

/* Goal:  dumps of another model or case are compared by force only; an absent hash is noted.
 * Seen to fail with case_sha256 not compared, and with `force` ignored. */
TEST(hashes)
{
    const char *const keys[] = { "model_sha256", "case_sha256" };
    for (int i = 0; i < 2; i++) {
        options.force = 0;
        write_meta(reference_path, keys[i], "aaaa");
        write_meta(candidate_path, keys[i], "bbbb");
        ck_assert_int_eq(judge(), M3_NOT_COMPARABLE);
        ck_assert_int_eq(result.status, M3_NOT_COMPARABLE);
        ck_assert_int_eq(result.count, 0);
        ck_assert(error_says(keys[i]) && error_says("got bbbb, expected aaaa") && notes_say(keys[i]));
        options.force = 1;
        ck_assert_int_eq(judge(), M3_OK);
        ck_assert_int_eq(result.status, M3_OK);
        ck_assert(notes_say("by force"));

        options.force = 0;
        write_meta(candidate_path, keys[i], "aaaa");
        ck_assert_int_eq(judge(), M3_OK);
        ck_assert_int_eq(result.status, M3_OK);
        write_meta(candidate_path, keys[i], NULL);
        ck_assert_int_eq(judge(), M3_OK);
        ck_assert_int_eq(result.status, M3_OK);
        ck_assert(notes_say(keys[i]) && notes_say("missing in the candidate"));
    }
}

/* Seen to fail with only the reference's format checked. */
TEST(formats)
{
    const struct {
        const char *key, *value;
        int status;
    } files[] = {
        { "format", "m3ref-dump", M3_OK },
        { "format", "pt", M3_BAD_INPUT },
        { "format_version", "1", M3_OK },
        { "format_version", "2", M3_BAD_INPUT },
    };
    for (int i = 0; i < 4; i++) {
        for (int side = 0; side < 2; side++) {
            write_meta(reference_path, files[i].key, side == 0 ? files[i].value : NULL);
            write_meta(candidate_path, files[i].key, side == 1 ? files[i].value : NULL);
            ck_assert_int_eq(judge(), files[i].status);
            if (files[i].status != M3_OK) ck_assert(error_says(side ? candidate_path : reference_path));
        }
    }
    write_meta(reference_path, "semantics", NULL);
    write_meta(candidate_path, "semantics", "{\"pool\":\"lse\"}");
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert(notes_say("semantics differ: got {\"pool\":\"lse\"}, expected {}"));
}
