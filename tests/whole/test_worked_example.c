/* README's example: a bf16 run of the tiny model by the public PyTorch code is right under the profile that says so,
 * and the same run with SwiGLU's + 1 removed is wrong, at the operator that it was removed from. tests/candidates holds
 * both runs; scripts/candidates.py makes them. */
#include "program.h"
#include "xml.h"

#include <jansson.h>

#define MODEL "golden/tiny/model"
#define CASE "tests/candidates/case.safetensors"
#define HONEST "tests/candidates/bf16.safetensors.gz"
#define WRONG "tests/candidates/bf16_without_plus_one.safetensors.gz"

enum {
    T = 19,
    G = 2,
    SPARSE_LAYERS = 3,
    K = 5,
    TAPS = 4 + 2 * 18 + 3 * 30,         /* of the model, its two dense and three sparse layers; without pictures */
    LACKING = 5,                        /* attn_lse of five layers, which transformers does not give */
    WRONG_TAPS = 4 + 2 * 17 + 29 + 2,   /* of the last two layers only what they give */
    DECISIONS = SPARSE_LAYERS * (T * G + T) + T,
};

static const char *reference(void) { return in_folder("reference.safetensors"); }

/* Once for all tests: none changes it. */
static void setup(void)
{
    make_folder();
    ck_assert_int_eq(m3ref("run " MODEL " --case " CASE " --precision f64 --bounds --dump %s", reference()), 0);
}

TIMEOUT(60);
FIXTURE_ONCE(setup, remove_folder);

static int compare(const char *candidate, const char *options)
{
    return m3ref("compare %s %s --map transformers %s", reference(), candidate, options);
}

static int blame(const char *candidate, const char *options)
{
    return m3ref("blame " MODEL " %s --case " CASE " --map transformers %s", candidate, options);
}

/* Lines of a file of the folder as JSON; the last of `out` is the summary. To be dropped. */
static json_t *lines(const char *name)
{
    json_t *all = json_array();
    FILE *file = fopen(in_folder(name), "r");
    ck_assert_ptr_nonnull(file);
    for (json_t *line; (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL));) json_array_append_new(all, line);
    ck_assert(feof(file));
    fclose(file);
    return all;
}

static json_t *last(const json_t *all) { return json_array_get(all, json_array_size(all) - 1); }

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static int number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(json_is_integer(value), "no %s", key);
    return (int)json_integer_value(value);
}

/* Goal:  every stage that transformers gives is judged and passes.
 * Seen to fail with gate and up exchanged in ref/oracle/map/maps/transformers.json. */
TEST(honest_passes)
{
    ck_assert_int_eq(compare(HONEST, "--profile bf16 --json"), 0);
    json_t *all = lines("out"), *line;
    size_t i;
    json_array_foreach(all, i, line) if (strcmp(text(line, "type"), "stage") == 0)
        ck_assert_str_eq(text(line, "verdict"), "pass");
    const json_t *summary = last(all);
    ck_assert_str_eq(text(summary, "verdict"), "pass");
    ck_assert(json_is_null(json_object_get(summary, "first_divergence")));
    ck_assert_int_eq(number(summary, "stages"), TAPS - LACKING);
    ck_assert_int_eq(number(summary, "judged"), TAPS - LACKING);
    ck_assert_int_eq(number(summary, "missing"), LACKING);
    json_decref(all);
}

/* Goal:  what bf16 rounds is wrong where fp32 was promised.
 * Seen to fail with --profile of compare taken for bf16 whatever it says. */
TEST(honest_is_no_fp32)
{
    ck_assert_int_eq(compare(HONEST, "--profile fp32"), 1);
    ck_assert(has("out", "first divergence layers.0.attn_norm"));
    ck_assert(has("out", "looks like: fp32 accumulation, stored in bf16"));
    ck_assert_int_eq(blame(HONEST, "--profile fp32"), 1);
}

/* The experts of a layer as the candidate's file has them. */
static void same_experts(const json_t *decision, const struct m3_tensor *experts)
{
    int64_t ids[K];
    ck_assert(experts->dtype == M3_I64 && experts->count == T * K);
    memcpy(ids, (const int64_t *)experts->data + number(decision, "row") * K, sizeof ids);
    for (size_t k = 0; k < K; k++)
        ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(decision, "ids"), k)), ids[k]);
}

/* Goal:  a line for each choice of blocks (rows x groups), experts (rows) and next tokens, with all fields; two of the
 *        choices are others than the reference's, and the candidate's own scores chose them; none is inadmissible.
 * Seen to fail with gate and up exchanged in the map, and with note under another name. */
TEST(ledger)
{
    static const char *const fields[] = { "type",       "tap",       "row",   "group",     "ids",
                                          "want",       "gap",       "bound", "verdict",   "scores",
                                          "bounded_by", "certified", "last",  "runner_up", "note" };
    static const char tensor[] = "model.language_model.layers.4.mlp.gate.2";
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    char option[600];
    int blocks = 0, experts = 0, tokens = 0, admissible = 0;
    json_t *line;
    size_t i;
    snprintf(option, sizeof option, "--profile bf16 --ledger %s", in_folder("ledger"));
    ck_assert_int_eq(compare(HONEST, option), 0);
    ck_assert_int_eq(m3_safetensors_open(&file, HONEST, &error), 0);
    ck_assert_ptr_nonnull(m3_safetensors_find(file, tensor));
    json_t *all = lines("ledger");
    json_array_foreach(all, i, line)
    {
        ck_assert_uint_eq(json_object_size(line), sizeof fields / sizeof *fields);
        for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) ck_assert(json_object_get(line, fields[f]));
        const char *tap = text(line, "tap"), *verdict = text(line, "verdict");
        const int other = strcmp(verdict, "admissible") == 0;
        if (strstr(tap, ".index.blocks")) blocks++;
        if (strstr(tap, ".moe.experts")) experts++;
        if (strcmp(tap, "logits") == 0) tokens++;
        if (strcmp(tap, "layers.4.moe.experts") == 0) same_experts(line, m3_safetensors_find(file, tensor));
        ck_assert(other || strcmp(verdict, "identical") == 0 || strcmp(verdict, "permuted") == 0);
        if (other) ck_assert_str_eq(text(line, "scores"), "candidate");
        admissible += other;
    }
    ck_assert(blocks == SPARSE_LAYERS * T * G && experts == SPARSE_LAYERS * T && tokens == T);
    ck_assert_int_eq(admissible, 2);
    ck_assert_uint_eq(json_array_size(all), DECISIONS);
    json_decref(all);
    m3_safetensors_close(file);
}

/* Goal:  the mistake's places are what fails, its first comes first; what lies after is not blamed. Of layers 3 and 4 the
 *        dump holds the outputs alone: they are judged as a whole, by rows. Without the weights what layer 2's experts
 *        are given has drifted too far to see theirs: compare finds the first two.
 * Seen to fail with the last tap that fails for the culprit. */
TEST(wrong_fails)
{
    static const char *const places[] = { "layers.0.mlp.act",    "layers.1.mlp.act", "layers.2.moe.expert_out",
                                          "layers.2.moe.shared", "layers.3.out",     "layers.4.out" };
    for (int blamed = 0; blamed < 2; blamed++) {
        ck_assert_int_eq((blamed ? blame : compare)(WRONG, "--profile bf16 --json"), 1);
        json_t *all = lines("out"), *line;
        int failed = 0;
        size_t i;
        json_array_foreach(all, i, line)
        {
            if (line == last(all) || strcmp(text(line, "verdict"), "fail") != 0) continue;
            ck_assert_int_lt(failed, blamed ? 6 : 2);
            ck_assert_str_eq(text(line, "tap"), places[failed++]);
        }
        ck_assert_int_eq(failed, blamed ? 6 : 2);
        ck_assert_str_eq(text(last(all), blamed ? "culprit" : "first_divergence"), "layers.0.mlp.act");
        ck_assert_str_eq(text(last(all), "verdict"), "fail");
        if (blamed) ck_assert_str_eq(text(last(all), "operator"), "activation");
        json_decref(all);
    }
    ck_assert_int_eq(blame(WRONG, "--profile bf16"), 1);
    ck_assert(has("out", "\nculprit  layers.0.mlp.act  activation, SPEC 5.11 swiglu_oai\n"));
}

/* Goal:  nothing is blamed in the correct run, and everything is judged.
 * Seen to fail with gate and up exchanged in the map. */
TEST(honest_is_not_blamed)
{
    ck_assert_int_eq(blame(HONEST, "--profile bf16 --json"), 0);
    json_t *all = lines("out");
    const json_t *summary = last(all);
    ck_assert(json_is_null(json_object_get(summary, "culprit")));
    ck_assert_str_eq(text(summary, "verdict"), "pass");
    ck_assert_int_eq(number(summary, "taps"), TAPS - LACKING);
    ck_assert_int_eq(number(summary, "judged"), TAPS - LACKING);
    json_decref(all);
}

/* Goal:  the reports say the same: a test case per stage, the failing ones with their names; what is missing is skipped.
 * Seen to fail with gate and up exchanged in the map. */
TEST(reports)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        char options[1200];
        size_t count;
        snprintf(options, sizeof options, "--profile bf16 --html %s --junit %s", in_folder("page"), in_folder("junit"));
        ck_assert_int_eq(compare(wrong ? WRONG : HONEST, options), wrong);
        char *junit = (char *)read_bytes(in_folder("junit"), &count);
        check_xml(junit);
        ck_assert_int_eq(places(junit, "<testcase "), TAPS);
        ck_assert_int_eq(places(junit, "<skipped"), wrong ? TAPS - 69 + 4 : LACKING);  /* 4 are not judged */
        ck_assert_int_eq(places(junit, "<failure "), wrong ? 2 : 0);
        ck_assert_int_eq(places(junit, "name=\"layers.0.mlp.act\"><failure "), wrong);
        free(junit);
        ck_assert(has("page", wrong ? "<title>m3ref compare: fail</title>" : "<title>m3ref compare: pass</title>"));
        ck_assert(has("page", wrong ? "first divergence layers.0.mlp.act" : "layers.4.moe.experts: expert load"));
        ck_assert(has("page", "href=\"#spec-511-swiglu_oai\"") && has("page", "id=\"spec-511-swiglu_oai\""));
    }
}

/* Goal:  a reference without companions, and companions in a file of their own, find the mistake as well.
 * Seen to fail with the bias of the experts not looked for in that file: an admissible choice was called wrong. */
TEST(other_references)
{
    char options[600];
    ck_assert_int_eq(m3ref("run " MODEL " --case " CASE " --precision f64 --dump %s --companions %s",
                           in_folder("plain.safetensors"), in_folder("companions.safetensors")),
                     0);
    ck_assert_int_eq(m3ref("compare %s " WRONG " --map transformers --profile bf16", in_folder("plain.safetensors")),
                     1);
    snprintf(options, sizeof options, "--profile bf16 --companions %s", in_folder("companions.safetensors"));
    ck_assert_int_eq(m3ref("compare %s " HONEST " --map transformers %s", in_folder("plain.safetensors"), options), 0);
    ck_assert_int_eq(m3ref("compare %s " WRONG " --map transformers %s", in_folder("plain.safetensors"), options), 1);
    ck_assert(has("out", "first divergence layers.0.mlp.act"));
}

/* The tiny model with another epsilon: the same tensors and shapes, another model. */
static void other_model(void)
{
    size_t count;
    copy_tiny();
    char *config = (char *)read_bytes(in_folder("model/config.json"), &count);
    char *epsilon = strstr(config, "1e-06");
    ck_assert_ptr_nonnull(epsilon);
    memcpy(epsilon, "1e-05", 5);
    write_text(in_folder("model/config.json"), config);
    free(config);
}

/* Goal:  another case or model says so, whatever the numbers are.
 * Seen to fail with the hashes not compared, by compare and by blame. */
TEST(not_comparable)
{
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz " HONEST " --map transformers"), 3);
    ck_assert(has("err", "case_sha256"));
    ck_assert_int_eq(m3ref("blame " MODEL " " HONEST " --case golden/tiny/case.safetensors --map transformers"), 3);
    ck_assert(has("err", "case_sha256"));
    ck_assert_int_eq(m3ref("compare golden/mxfp8/golden.safetensors.gz " HONEST " --map transformers"), 3);
    ck_assert(has("err", HONEST));
    other_model();
    ck_assert_int_eq(m3ref("run %s --case " CASE " --dump %s", in_folder("model"), in_folder("other")), 0);
    ck_assert_int_eq(m3ref("compare %s " HONEST " --map transformers --profile bf16", in_folder("other")), 3);
    ck_assert(has("err", "model_sha256"));
    ck_assert_int_eq(m3ref("blame %s " HONEST " --case " CASE " --map transformers --profile bf16", in_folder("model")),
                     3);
    ck_assert(has("err", "model_sha256"));
}
