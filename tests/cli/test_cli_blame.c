/* `m3ref blame`: what it accepts, where it prints, its exit status; plug-ins with a known mistake are named. */
#include "program.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>

#include "base/weight.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model"
#define CASE "--case golden/tiny/case.safetensors"

static const char *build(void) { return getenv("BUILD") ? getenv("BUILD") : "build"; }

static void dump_of(const char *options)
{
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --dump %s %s", in_folder("dump"), options), 0);
}

static int blame(const char *options) { return m3ref("blame " TINY " %s " CASE " %s", in_folder("dump"), options); }

/* Overwrites bytes of a tensor of the dump. */
static void poke(const char *tensor, size_t offset, const void *bytes, size_t count)
{
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    uint64_t header;
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("dump"), &error), M3_OK);
    const struct m3_tensor *t = m3_safetensors_find(file, tensor);
    ck_assert_ptr_nonnull(t);
    long at = (long)((const char *)t->data - (const char *)m3_safetensors_header(file, &header)) + (long)offset;
    m3_safetensors_close(file);
    FILE *out = fopen(in_folder("dump"), "r+b");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fseek(out, at, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(bytes, 1, count, out), count);
    ck_assert_int_eq(fclose(out), 0);
}

/* Lines of `out` as JSON; the last is the summary. To be dropped. */
static json_t *lines(void)
{
    json_t *all = json_array();
    FILE *file = fopen(in_folder("out"), "r");
    ck_assert_ptr_nonnull(file);
    for (json_t *line; (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL));) json_array_append_new(all, line);
    fclose(file);
    return all;
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static int lines_of(const char *file)
{
    size_t count;
    unsigned char *bytes = read_bytes(in_folder(file), &count);
    int lines = 0;
    for (size_t i = 0; i < count; i++) lines += bytes[i] == '\n';
    free(bytes);
    return lines;
}

static int starts(const char *file, const char *text)
{
    size_t count;
    unsigned char *bytes = read_bytes(in_folder(file), &count);
    const int does = strncmp((char *)bytes, text, strlen(text)) == 0;
    free(bytes);
    return does;
}

/* A correct run: exit 0, one line a tap and what a reader wants to know; nothing on stderr. */
TEST(honest)
{
    dump_of("");
    ck_assert_int_eq(blame("--all"), 0);
    ck_assert(has("out", "inherited") && has("out", "\npass  130 of 130 taps judged\n"));
    ck_assert_int_eq(error_lines(), 0);
    ck_assert_int_eq(blame(""), 0);
    ck_assert_int_eq(lines_of("out"), 2);
    dump_of("--precision f64");
    ck_assert_int_eq(blame("--threads 1"), 0);
    dump_of("--set gate_clamp=both --set selection=shared");
    ck_assert_int_eq(blame(""), 1);
    ck_assert_int_eq(blame("--set gate_clamp=both --set selection=shared"), 0);
}

static const struct {
    const char *plugin, *culprit, *operator, *section;
} mistakes[] = {
    { "wrong_rope", "layers.0.q_rope", "rope", "5.6 rope" },
    { "wrong_route", "layers.2.moe.experts", "route", "5.14 route" },
};

/* Goal:  a plug-in's mistake is named; as text and as JSON; also where only ends of layers are dumped.
 * Seen to fail with the last failing tap for the first. */
LOOP_TEST(plugins, 2)
{
    char options[200], line[200];
    snprintf(options, sizeof options, "--ops ./%s/tests/%s.so", build(), mistakes[_i].plugin);
    dump_of(options);
    ck_assert_int_eq(blame(""), 1);
    ck_assert_int_le(lines_of("out"), 25);
    snprintf(line, sizeof line, "fail  %s row ", mistakes[_i].culprit);
    ck_assert(starts("out", line) && has("out", "; next: check the program's "));
    snprintf(line, sizeof line, "\nculprit  %s  %s, SPEC %s\n", mistakes[_i].culprit, mistakes[_i].operator,
             mistakes[_i].section);
    ck_assert(has("out", line));
    ck_assert_int_eq(blame("--json"), 1);
    json_t *all = lines(), *last = json_array_get(all, json_array_size(all) - 1);
    ck_assert_str_eq(text(last, "type"), "summary");
    ck_assert_str_eq(text(last, "culprit"), mistakes[_i].culprit);
    ck_assert_str_eq(text(last, "verdict"), "fail");
    ck_assert_int_eq(json_integer_value(json_object_get(last, "judged")), 130);
    json_decref(all);

    snprintf(options, sizeof options, "--taps 'layers.*.out' --ops ./%s/tests/%s.so", build(), mistakes[_i].plugin);
    dump_of(options);
    ck_assert_int_eq(blame(""), 1);
    ck_assert(has("out", _i ? "culprit  layers.2.out" : "culprit  layers.0.out"));
    ck_assert(has("out", "that were not dumped"));
    ck_assert(!_i || starts("out", "fail  layers.2.out row "));
    ck_assert(has("out", "; next: dump "));
}

/* The picture path: height and width exchanged. */
TEST(vision_plugin)
{
    ck_assert_int_eq(m3ref("run " TINY " --case golden/vision/two_case.safetensors "
                           "--ops ./%s/tests/wrong_vision_rope.so --dump %s",
                           build(), in_folder("dump")),
                     0);
    ck_assert_int_eq(m3ref("blame " TINY " %s --case golden/vision/two_case.safetensors", in_folder("dump")), 1);
    ck_assert(has("out", "\nculprit  vision.layers.0.q_rope  rope_3d, SPEC 5.6 rope\n"));
}

/* Goal:  every line has the fixed keys, numbers that are none are strings. */
TEST(json)
{
    const float nan = NAN;
    dump_of("");
    poke("layers.1.mid", 4 * 96 * 30, &nan, sizeof nan);
    ck_assert_int_eq(blame("--json"), 1);
    json_t *all = lines(), *line;
    size_t i;
    int seen = 0;
    ck_assert_uint_eq(json_array_size(all), 131);
    json_array_foreach(all, i, line)
    {
        if (i == 130) continue;
        ck_assert_str_eq(text(line, "type"), "blame");
        ck_assert(*text(line, "tap") && *text(line, "operator") && *text(line, "section"));
        static const char *const numbers[] = { "inherited", "created", "allowed" };
        for (int k = 0; k < 3; k++) {
            const json_t *number = json_object_get(line, numbers[k]);
            const int broken = strcmp(text(line, "tap"), "layers.1.mid") == 0;
            ck_assert(json_is_number(number) || (json_is_string(number) && broken));
        }
        if (strcmp(text(line, "tap"), "layers.1.mid") != 0) {
            ck_assert_str_eq(text(line, "verdict"), "pass");
            continue;
        }
        ck_assert_str_eq(text(line, "verdict"), "fail");
        ck_assert_str_eq(text(line, "created"), "nan");
        ck_assert_str_eq(text(line, "got"), "nan");
        ck_assert_str_eq(text(line, "tier"), "hard");
        ck_assert_int_eq(json_integer_value(json_object_get(line, "violations")), 1);
        ck_assert_int_eq(json_integer_value(json_array_get(json_object_get(line, "index"), 0)), 30);
        seen++;
    }
    ck_assert_int_eq(seen, 1);
    json_decref(all);
}

/* Goal:  an error that no order of summation makes probable, but that none excludes, is suspect: exit 2.
 * Given: a tap of 96 products, every element 3e-6 of itself too large: 96 roundings allow 5.7e-6. */
TEST(suspect)
{
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    dump_of("");
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("dump"), &error), M3_OK);
    const struct m3_tensor *t = m3_safetensors_find(file, "logits");
    float *moved = malloc(t->bytes);
    memcpy(moved, t->data, t->bytes);
    for (int64_t i = 0; i < t->count; i++) moved[i] *= 1 + 3e-6f;
    const size_t bytes = t->bytes;
    m3_safetensors_close(file);
    poke("logits", 0, moved, bytes);
    free(moved);
    ck_assert_int_eq(blame(""), 2);
    ck_assert(has("out", "\nculprit  logits  linear, SPEC 5.4 linear\n"));
    ck_assert(has("out", "\nsuspect  130 of 130 taps judged, 1 suspect; logits row "));
    ck_assert_int_eq(blame("--json"), 2);
    ck_assert(has("out", "\"verdict\":\"suspect\""));
}

/* The folder `name` with a random model: experts and a shared expert of this width. */
static void make_model(const char *name, const char *options, int layers, int H, int F, double alpha)
{
    char config[2000], moe[40] = "1";
    for (int l = 1; l < layers; l++) strcat(moe, ", 1");
    snprintf(
        config, sizeof config,
        "{\"architectures\": [\"MiniMaxM3SparseForCausalLM\"], \"model_type\": \"minimax_m3_vl\", \"text_config\": {"
        "\"hidden_size\": %d, \"intermediate_size\": %d, \"shared_intermediate_size\": %d, \"swiglu_alpha\": %g, "
        "\"num_hidden_layers\": %d, \"moe_layer_freq\": [%s], \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 1, \"head_dim\": 128, \"vocab_size\": 64, \"max_position_embeddings\": 4096, "
        "\"rms_norm_eps\": 1e-06, \"use_gemma_norm\": true, \"rope_theta\": 5000000, \"rotary_dim\": 64, "
        "\"partial_rotary_factor\": 0.5, \"hidden_act\": \"swigluoai\", \"use_qk_norm\": true, "
        "\"qk_norm_type\": \"per_head\", \"dense_intermediate_size\": 64, \"num_local_experts\": 2, "
        "\"num_experts_per_tok\": 1, \"n_shared_experts\": 1, \"scoring_func\": \"sigmoid\", "
        "\"use_routing_bias\": true, \"swiglu_limit\": 7.0, \"routed_scaling_factor\": 2.0, "
        "\"sparse_attention_config\": {\"use_sparse_attention\": false}}}",
        H, F, F, alpha, layers, moe);
    write_text(in_folder("config.json"), config);
    ck_assert_int_eq(m3ref("synth %s %s %s", in_folder("config.json"), in_folder(name), options), 0);
}

/* Goal:  a parameter of experts that is a little off is named at large widths too.
 * Given: a layer of 2,048 channels with experts of 1,024, run with alpha 1.71 in place of 1.702.
 * Claim: experts and the shared one are suspect, and alpha is named with its value; with the right alpha both pass.
 * Seen to fail with the bound's steps for roundings to one side, as of a single sum. */
TEST(wide_alpha)
{
    make_model("right", "", 1, 2048, 1024, 1.702);
    make_model("other", "", 1, 2048, 1024, 1.71);
    for (int wrong = 0; wrong < 2; wrong++) {
        const char *const from = in_folder(wrong ? "other" : "right");
        ck_assert_int_eq(m3ref("run %s --ids 1,5,9,30,22,17,60,2 --dump %s", from, in_folder("dump")), 0);
        const int status = m3ref("blame %s %s --ids 1,5,9,30,22,17,60,2 --profile fp32 --force", in_folder("right"),
                                 in_folder("dump"));
        ck_assert_int_eq(status, wrong ? 2 : 0);
        ck_assert_int_eq(has("out", "culprit  layers.0.moe.expert_out"), wrong);
        ck_assert_int_eq(has("out", "alpha looks like 1.7"), wrong);
    }
}

/* Goal:  what lies in a single row is not taken for a mistake, if the rounding of one value before the tap would do.
 * Given: a right engine in PyTorch, in BF16, of a model with this shared expert: a single up is beyond its limit, and its
 *        activation is rounded to where the missing clamp would move it.
 * Claim: the tap passes.
 * Seen to fail without the rule for one row (act.no_clamp, 0.6 +- inf). */
TEST(one_clamp)
{
    const char *const ids = "1,1,2,1,1,1,0,2,1,0,1,0,1,1,1,2,0,0,2,2,0,0,0,2,2,2,1,1,0,1,0,0,0,0,2,2,0,1,2,2";
    make_model("model", "--seed 220", 3, 256, 56, 1.702);
    ck_assert_int_eq(m3ref("blame %s tests/candidates/one_clamp.safetensors.gz --ids %s --profile bf16 "
                           "--taps layers.2.moe.shared",
                           in_folder("model"), ids),
                     0);
    ck_assert(has("out", "pass  1 of 1 tap judged"));
}

/* Another model or case, unless forced; nothing that matches; nothing that can be judged. */
TEST(not_comparable)
{
    dump_of("");
    ck_assert_int_eq(m3ref("blame " TINY " %s --case golden/readings/case.safetensors", in_folder("dump")), 3);
    ck_assert(has("err", "case_sha256"));
    ck_assert_int_eq(m3ref("blame golden/mxfp8/model %s --case golden/mxfp8/case.safetensors", in_folder("dump")), 3);
    ck_assert(has("err", "model_sha256"));
    ck_assert_int_eq(
        m3ref("blame golden/mxfp8/model %s --case golden/mxfp8/case.safetensors --force", in_folder("dump")), 3);
    ck_assert(has("out", "not the rows of this call"));
    ck_assert_int_eq(blame("--taps nothing.*"), 3);
    ck_assert(has("err", "nothing matched"));
    dump_of("--taps logits");
    ck_assert_int_eq(blame(""), 3);
    ck_assert(has("out", "missing: ") && has("out", "\nnot comparable  0 of 1 tap judged, 1 not judged; "));
}

/* Goal:  a correct run is no pass where a tap of it could not be judged: exit 2, with the number in the last line.
 * Given: the end of the last layer, of whose inputs nothing was dumped, and the logits, which can be made of it.
 * Seen to fail with exit 0 for whatever was not judged. */
TEST(partial)
{
    dump_of("--taps layers.4.out,logits");
    ck_assert_int_eq(blame(""), 2);
    ck_assert(has("out", "\npartial  1 of 2 taps judged, 1 not judged"));
    ck_assert_int_eq(blame("--json"), 2);
    ck_assert(has("out", "\"verdict\":\"partial\"") && has("out", "\"unjudged\":1"));
    ck_assert_int_eq(blame("--taps logits"), 0);
}

/* Goal:  one expert or one block fewer than the model has is the culprit, not what is computed from them.
 * Given: runs of the model with another number in its config, accepted by force.
 * Seen to fail with such lists not comparable: moe.routed and attn_lse were named. */
LOOP_TEST(another_number, 2)
{
    static const char *const cases[][3] = {
        { "\"num_experts_per_tok\": 5", "\"num_experts_per_tok\": 4", "layers.2.moe.experts" },
        { "\"sparse_topk_blocks\": 3", "\"sparse_topk_blocks\": 2", "layers.2.index.blocks" },
    };
    char line[100];
    size_t count;
    copy_tiny();
    char *config = (char *)read_bytes(in_folder("model/config.json"), &count), *at = strstr(config, cases[_i][0]);
    ck_assert_ptr_nonnull(at);
    memcpy(at, cases[_i][1], strlen(cases[_i][1]));
    write_text(in_folder("model/config.json"), config);
    free(config);
    snprintf(line, sizeof line, "%s", in_folder("model"));
    ck_assert_int_eq(m3ref("run %s " CASE " --dump %s", line, in_folder("dump")), 0);
    snprintf(line, sizeof line, "fail  %s: another number of ", cases[_i][2]);
    ck_assert_int_eq(blame("--force"), 1);
    ck_assert(starts("out", line));
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz %s --force", in_folder("dump")), 1);
    ck_assert(starts("out", line));
}

TEST(files)
{
    ck_assert_int_eq(blame(""), 66);
    ck_assert(has("err", "dump"));
    write_text(in_folder("dump"), "no safetensors file");
    ck_assert_int_eq(blame(""), 65);
    write_safetensors(in_folder("dump"),
                      "{\"__metadata__\":{\"format\":\"something\"},\"embed\":{\"dtype\":\"F32\","
                      "\"shape\":[1],\"data_offsets\":[0,4]}}",
                      4);
    ck_assert_int_eq(blame(""), 65);
    ck_assert(has("err", "m3ref-dump"));
    dump_of("");
    ck_assert_int_eq(m3ref("blame nowhere %s " CASE, in_folder("dump")), 66);
    ck_assert_int_eq(m3ref("blame " TINY " %s --case nowhere", in_folder("dump")), 66);
    ck_assert_int_eq(blame("--profile nothing"), 66);
    ck_assert_int_eq(entries(), 3);      /* dump, out, err: nothing is left behind */
}

TEST(usage)
{
    static const char *const refused[] = {
        "blame " TINY " " CASE,          "blame", "blame a b c " CASE, "blame a b", "blame a b " CASE " --nothing",
        "blame a b " CASE " --threads 0"
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ck_assert_int_eq(m3ref("%s", refused[i]), 64);
        ck_assert_int_eq(error_lines(), 1);
    }
    ck_assert_int_eq(m3ref("blame --help"), 0);
    static const char *const flags[] = { "--case",    "--profile", "--taps", "--json",     "--set",
                                         "--threads", "--force",   "--all",  "Exit status" };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) ck_assert(has("out", flags[i]));
}

/* A gzip container is the same file; the printed result does not depend on threads. */
TEST(gzip_and_threads)
{
    size_t one, two;
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --dump %s", in_folder("dump.gz")), 0);
    ck_assert_int_eq(m3ref("blame " TINY " %s " CASE " --threads 1 --json", in_folder("dump.gz")), 0);
    unsigned char *a = read_bytes(in_folder("out"), &one);
    ck_assert_int_eq(m3ref("blame " TINY " %s " CASE " --threads 3 --json", in_folder("dump.gz")), 0);
    unsigned char *b = read_bytes(in_folder("out"), &two);
    ck_assert_str_eq((char *)a, (char *)b);
    free(a);
    free(b);
}
