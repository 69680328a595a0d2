/* The program as its users run it: what README shows, every kind of bad input, what must not be left behind.
 *
 * Runs $BUILD/m3ref (build/m3ref) in the repository's root. Each failure has one line, the right exit status, and no
 * output file. Seen to fail with: ids unchecked; hashes of --hidden unchecked; index tensors of a switched-off branch
 * taken as extra; a dump over an input let through; SIGXFSZ left alone; NaN let through; a shard that may stand outside
 * the folder; a temporary file left behind. */
#include "program.h"

#include "base/weight.h"
#include "io/safetensors.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

/* Replaces the first `from` in a text file. */
static void replace(const char *path, const char *from, const char *to)
{
    size_t count;
    unsigned char *bytes = read_bytes(path, &count);
    char *at = strstr((char *)bytes, from);
    ck_assert_msg(at != NULL, "%s lacks %s", path, from);
    FILE *out = fopen(path, "wb");
    ck_assert_ptr_nonnull(out);
    fwrite(bytes, 1, (size_t)(at - (char *)bytes), out);
    fputs(to, out);
    fputs(at + strlen(from), out);
    ck_assert_int_eq(fclose(out), 0);
    free(bytes);
}

static void write_ids(const char *path, const char *name, const int64_t *ids, int64_t T)
{
    struct m3_writer *writer;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_writer_new(&writer, path, &error), M3_OK);
    ck_assert_int_eq(m3_writer_tensor(writer, "input_ids", M3_I64, 1, &T, &error), M3_OK);
    if (name) ck_assert_int_eq(m3_writer_tensor(writer, name, M3_I64, 1, &T, &error), M3_OK);
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    for (int i = 0; i < (name ? 2 : 1); i++)
        ck_assert_int_eq(m3_writer_write(writer, ids, (uint64_t)T * 8, &error), M3_OK);
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
}

#define TINY "golden/tiny/model --case golden/tiny/case.safetensors"

/* What the README promises of the tiny model. */
TEST(run_then_compare)
{
    ck_assert_int_eq(m3ref("run " TINY " --dump %s", in_folder("d.safetensors")), 0);
    ck_assert(has("out", "next tokens: "));
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz %s", in_folder("d.safetensors")), 0);
    ck_assert(has("out", "130 of 130 stages judged"));
    ck_assert_int_eq(
        m3ref("run " TINY " --dump %s --precision f64 --linear ordered --threads 1", in_folder("d.safetensors.gz")), 0);
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz %s", in_folder("d.safetensors.gz")), 0);
}

/* One byte of a weight's exponent: the first stage that uses it is named, those before it pass. */
static const struct {
    const char *tensor, *stage;
} changes[] = {
    { "layers.1.self_attn.k_proj.weight", "layers.1.k_proj" },
    { "layers.2.self_attn.index_q_proj.weight", "layers.2.index.q_proj" },
    { "layers.3.block_sparse_moe.experts.4.w2.weight", "layers.3.moe.expert_out" },
    { "layers.4.self_attn.o_proj.weight", "layers.4.attn_out" },
};

LOOP_TEST(one_byte_of_a_weight, sizeof changes / sizeof changes[0])
{
    char tensor[200], stage[200];
    copy_tiny();
    snprintf(tensor, sizeof tensor, "language_model.model.%s", changes[_i].tensor);
    snprintf(stage, sizeof stage, "note  first divergence %s", changes[_i].stage);
    patch(tensor, 3, "\x47", 1);
    ck_assert_int_eq(
        m3ref("run %s --case golden/tiny/case.safetensors --dump %s", in_folder("model"), in_folder("d.safetensors")),
        0);
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz %s", in_folder("d.safetensors")), 1);
    ck_assert(has("out", stage));
}

/* A plug-in that turns all channels: the first stage of the first layer that has RoPE is named. */
TEST(plug_in_with_a_mistake)
{
    const char *build = getenv("BUILD");
    ck_assert_int_eq(m3ref("run " TINY " --dump %s --ops ./%s/tests/wrong_rope.so", in_folder("d.safetensors"),
                           build ? build : "build"),
                     0);
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz %s --html %s --junit %s",
                           in_folder("d.safetensors"), in_folder("a.html"), in_folder("a.xml")),
                     1);
    ck_assert(has("out", "first divergence layers.0.q_rope"));
    ck_assert(has("a.html", "<strong>first divergence layers.0.q_rope;"));
    ck_assert(has("a.html", "id=\"heat-layers.0.q_rope\""));
    ck_assert(has("a.xml", "name=\"layers.0.k_norm\"/>") && has("a.xml", "name=\"layers.0.q_rope\"><failure"));
    ck_assert_int_eq(m3ref("run " TINY " --precision f64 --ops ./%s/tests/wrong_rope.so", build ? build : "build"), 69);
    ck_assert_int_eq(m3ref("run " TINY " --ops ./no-such-library.so"), 69);
    ck_assert_int_eq(error_lines(), 1);
}

/* Goal:  a plug-in that keeps something is opened once for all passes of a command, gets its words, and is stopped.
 * Given: a prompt and two more tokens: three passes; words that it refuses; words for one that takes none.
 * Claim: one start that saw three calls; 69 and its own line, or one that names it.
 * Seen to fail with words not cut off, no stop, a status without a line. */
TEST(plug_in_that_keeps_something)
{
    char plugin[256];
    const char *build = getenv("BUILD");
    size_t count;
    snprintf(plugin, sizeof plugin, "--ops ./%s/tests/counting_embed.so", build ? build : "build");
    ck_assert_int_eq(m3ref("generate golden/tiny/model --ids 1,2,3 --max-new 3 %s,%s", plugin, in_folder("calls")), 0);
    unsigned char *calls = read_bytes(in_folder("calls"), &count);
    ck_assert_str_eq((char *)calls, "embed 3\n");
    free(calls);

    ck_assert_int_eq(m3ref("run " TINY " %s,refuse", plugin), 69);
    ck_assert(has("err", "m3ref: counting_embed: no abacus\n") && error_lines() == 1);
    ck_assert_int_eq(m3ref("run " TINY " %s,silent", plugin), 69);
    ck_assert(has("err", "counting_embed.so: the plug-in did not start: got status 69, expected 0") &&
              error_lines() == 1);
    ck_assert_int_eq(m3ref("run " TINY " --ops ./%s/tests/wrong_rope.so,fast", build ? build : "build"), 69);
    ck_assert(has("err", "wrong_rope.so: got \"fast\" after the name, expected nothing") && error_lines() == 1);
}

/* Layers in two calls, hidden states handed over in a dump: the same bits as in one. */
TEST(layers_in_two_parts)
{
    ck_assert_int_eq(m3ref("run " TINY " --dump %s", in_folder("all.safetensors")), 0);
    ck_assert_int_eq(m3ref("run " TINY " --layers 0:3 --dump %s", in_folder("a.safetensors")), 0);
    ck_assert_int_eq(m3ref("run " TINY " --layers 3:5 --hidden %s --dump %s", in_folder("a.safetensors"),
                           in_folder("b.safetensors")),
                     0);
    ck_assert_int_eq(m3ref("inspect --sha256 %s", in_folder("all.safetensors")), 0);
    copy(in_folder("out"), in_folder("whole"));
    for (int part = 0; part < 2; part++) {
        char line[300];
        ck_assert_int_eq(m3ref("inspect --sha256 %s", in_folder(part ? "b.safetensors" : "a.safetensors")), 0);
        FILE *lines = fopen(in_folder("out"), "r");
        int count = 0;
        for (; fgets(line, sizeof line, lines); count++) ck_assert(has("whole", line));
        fclose(lines);
        ck_assert_int_gt(count, 40);
    }
}

/* Other readings of the model, by name: each is told from the released one. Float angles are not at 67 positions:
 * there the golden's tolerance, public code's own float angles, allows them. */
TEST(other_readings)
{
    static const struct {
        const char *reading;
        int status;
    } readings[] = {
        { "selection=shared", 1 }, { "selection=union", 1 }, { "pool=lse", 1 },       { "index_scale=rsqrt", 1 },
        { "gate_clamp=both", 1 },  { "init_blocks=1", 1 },   { "local_blocks=2", 1 }, { "rope_angle=f32", 0 },
    };
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        ck_assert_int_eq(m3ref("run " TINY " --set %s --dump %s", readings[i].reading, in_folder("d.safetensors")), 0);
        int status = m3ref("compare golden/tiny/golden.safetensors.gz %s", in_folder("d.safetensors"));
        ck_assert_msg(status == readings[i].status, "%s: compare exits %d", readings[i].reading, status);
    }
    ck_assert_int_eq(m3ref("run " TINY " --set pool=max --set local_rule=last --dump %s", in_folder("d.safetensors")),
                     0);
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz %s", in_folder("d.safetensors")), 0);
    ck_assert_int_eq(m3ref("run " TINY " --set pool=mean"), 64);
    ck_assert_int_eq(m3ref("run " TINY " --set flavour=1"), 64);
}

/* NaN in a weight reaches the scores: an error that names layer, token, block; and nothing is written. */
TEST(nan_is_an_error)
{
    copy_tiny();
    patch("language_model.model.layers.3.self_attn.index_k_proj.weight", 0, "\xC0\x7F", 2);
    ck_assert_int_eq(
        m3ref("run %s --case golden/tiny/case.safetensors --dump %s", in_folder("model"), in_folder("d.safetensors")),
        1);
    ck_assert(has("err", "layers.3.index.block_scores"));
    ck_assert(has("err", "token 0"));
    ck_assert(has("err", "block 0"));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(!exists("d.safetensors"));
    ck_assert_int_eq(entries(), 3);
    patch("language_model.model.layers.0.mlp.down_proj.weight", 2, "\xC0\x7F", 2);
    ck_assert_int_eq(m3ref("run %s --ids 1,2,3", in_folder("model")), 1);
    ck_assert(has("err", "layers.0.out"));
}

/* A dump of another model, or with NaN, does not enter a run. */
TEST(hidden_of_another_model)
{
    copy_tiny();
    replace(in_folder("model/config.json"), "1048576", "1048575");
    ck_assert_int_eq(m3ref("run %s --case golden/tiny/case.safetensors --layers 0:3 --dump %s", in_folder("model"),
                           in_folder("a.safetensors")),
                     0);
    ck_assert_int_eq(m3ref("run " TINY " --layers 3:5 --hidden %s", in_folder("a.safetensors")), 65);
    ck_assert(has("err", "model_sha256"));
    ck_assert_int_eq(m3ref("run " TINY " --layers 2:5 --hidden %s", in_folder("a.safetensors")), 65);
}

/* use_sparse_attention false: every layer attends in full, and the index tensors are noted, not extra. */
TEST(sparse_switched_off)
{
    copy_tiny();
    replace(in_folder("model/config.json"), "\"use_sparse_attention\": true", "\"use_sparse_attention\": false");
    ck_assert_int_eq(
        m3ref("run %s --case golden/tiny/case.safetensors --dump %s", in_folder("model"), in_folder("d.safetensors")),
        0);
    ck_assert(has("err", "12 tensors of the index branch are not used"));
    ck_assert_int_eq(m3ref("compare --force golden/tiny/golden.safetensors.gz %s", in_folder("d.safetensors")), 1);
    ck_assert(has("out", "first divergence layers.2.attn_lse"));
}

/* The dump is not written over what the run reads. */
TEST(dump_over_an_input)
{
    copy_tiny();
    copy("golden/tiny/case.safetensors", in_folder("case.safetensors"));
    ck_assert_int_eq(m3ref("run %s --ids 1 --dump %s", in_folder("model"), in_folder("model/model.safetensors")), 64);
    ck_assert_int_eq(m3ref("run %s --case %s --dump %s", in_folder("model"), in_folder("case.safetensors"),
                           in_folder("case.safetensors")),
                     64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --dump ''"), 64);
    ck_assert_int_eq(m3ref("run %s --case %s", in_folder("model"), in_folder("case.safetensors")), 0);
}

TEST(wrong_usage)
{
    ck_assert_int_eq(m3ref(" "), 64);
    ck_assert_int_eq(m3ref("walk"), 64);
    ck_assert_int_eq(m3ref("run"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids ''"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1,x"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 211"), 64);
    ck_assert(has("err", "got id 211, expected 0 to 210"));
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids -1"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 99999999999999999999"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --threads 0"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --precision f16"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --layers 2:9"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --layers 3"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --taps logits"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --dump %s --taps nothing.*", in_folder("d")), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --frobnicate"), 64);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --bounds"), 64);
    ck_assert(!exists("d"));
    for (int i = 0; i < 5; i++) {
        static const char *const commands[] = { "run", "compare", "inspect", "synth", "bench" };
        ck_assert_int_eq(m3ref("%s --help", commands[i]), 0);
        ck_assert(has("out", "usage: m3ref"));
    }
}

TEST(bad_case)
{
    const int64_t ids[] = { 3, 211, 5 }, few[] = { 3, 4, 5 };
    write_ids(in_folder("ids"), NULL, ids, 3);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case %s", in_folder("ids")), 65);
    ck_assert(has("err", "token 1: got id 211, expected 0 to 210"));
    write_ids(in_folder("ids"), NULL, ids, 0);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case %s", in_folder("ids")), 65);
    write_ids(in_folder("ids"), "attention_mask", few, 3);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case %s", in_folder("ids")), 65);
    ck_assert(has("err", "attention_mask: place 0: got 3, expected 0 or 1"));
    write_ids(in_folder("ids"), "attention_masks", few, 3);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case %s", in_folder("ids")), 65);
    ck_assert(has("err", "attention_masks: got a tensor that this version does not support"));
    write_ids(in_folder("ids"), "pixel_values", few, 3);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case %s", in_folder("ids")), 65);
    ck_assert(has("err", "pixel_values"));
    ck_assert_int_eq(m3ref("run golden/tiny/model --case golden/tiny/golden.safetensors.gz"), 65);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case golden/tiny/model/config.json"), 65);
    ck_assert_int_eq(m3ref("run golden/tiny/model --case %s", in_folder("absent")), 66);
    ck_assert_int_eq(error_lines(), 1);
}

/* Positions beyond the model's own limit need a flag. */
TEST(long_positions)
{
    copy_tiny();
    replace(in_folder("model/config.json"), "1048576", "66");
    ck_assert_int_eq(m3ref("run %s --case golden/tiny/case.safetensors", in_folder("model")), 65);
    ck_assert(has("err", "max_position_embeddings 66"));
    ck_assert_int_eq(m3ref("run %s --case golden/tiny/case.safetensors --allow-long", in_folder("model")), 0);
}

TEST(bad_model)
{
    static const struct {
        const char *from, *to, *words;
        int status;
    } changes[] = {
        { "\"hidden_size\": 96,", "", "hidden_size", 65 },
        { "\"vocab_size\": 211", "\"vocab_size\": 212", "lm_head.weight: got [211,96] BF16, expected [212,96]", 65 },
        { "\"num_hidden_layers\": 5", "\"num_hidden_layers\": \"five\"", "num_hidden_layers", 65 },
        { "\"model_type\": \"minimax_m3_vl\"", "\"model_type\": \"llama\"", "llama", 65 },
        { "{", "{{", "config.json", 65 },
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        remove_folder();
        make_folder();
        copy_tiny();
        replace(in_folder("model/config.json"), changes[i].from, changes[i].to);
        ck_assert_int_eq(m3ref("run %s --ids 1,2 --dump %s", in_folder("model"), in_folder("d")), changes[i].status);
        ck_assert(has("err", changes[i].words));
        ck_assert_int_eq(entries(), 3);
    }
    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("no-model")), 66);
    ck_assert_int_eq(error_lines(), 1);
}

/* All findings in one pass: a missing, an extra, a misshaped and a mistyped tensor. */
TEST(every_finding_at_once)
{
    struct m3_safetensors *file;
    struct m3_writer *writer;
    struct m3_error error = { 0 };
    copy_tiny();
    ck_assert_int_eq(m3_safetensors_open(&file, "golden/tiny/model/model.safetensors", &error), M3_OK);
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("model/model.safetensors"), &error), M3_OK);
    for (int64_t pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
            const struct m3_tensor *t = m3_safetensors_at(file, i);
            const char *name = t->name;
            enum m3_dtype dtype = t->dtype;
            int64_t shape[M3_MAX_RANK];
            memcpy(shape, t->shape, sizeof shape);
            if (strcmp(name, "language_model.model.layers.1.self_attn.v_proj.weight") == 0)
                name = "language_model.model.layers.1.self_attn.z_proj.weight";
            if (strstr(name, "layers.2.self_attn.k_norm")) shape[0] = 10, dtype = M3_F32;
            if (strstr(name, "layers.4.block_sparse_moe.gate.weight")) dtype = M3_I32;
            if (pass == 0) ck_assert_int_eq(m3_writer_tensor(writer, name, dtype, t->rank, shape, &error), M3_OK);
            else ck_assert_int_eq(m3_writer_write(writer, t->data, t->bytes, &error), M3_OK);
        }
        if (pass == 0) ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    }
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
    m3_safetensors_close(file);

    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("model")), 65);
    ck_assert(has("err", "layers.1.self_attn.v_proj.weight: got no such tensor, expected [40,96]"));
    ck_assert(has("err", "layers.1.self_attn.z_proj.weight: got a tensor that a model of this config does not have"));
    ck_assert(has("err", "layers.2.self_attn.k_norm.weight: got [10] F32, expected [20] BF16"));
    ck_assert(has("err", "layers.4.block_sparse_moe.gate.weight: got [11,96] I32, expected [11,96] F32"));
    ck_assert_int_eq(error_lines(), 4);
    ck_assert_int_eq(m3ref("inspect %s", in_folder("model")), 65);
    ck_assert_int_eq(error_lines(), 4);
}

TEST(bad_files)
{
    size_t count;
    unsigned char *bytes = read_bytes("golden/tiny/model/model.safetensors", &count);
    copy_tiny();
    write_bytes(in_folder("model/model.safetensors"), bytes, count - 100);
    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("model")), 65);
    write_bytes(in_folder("model/model.safetensors"), bytes, 5);
    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("model")), 65);
    bytes[3] = 0x7F;
    write_bytes(in_folder("model/model.safetensors"), bytes, count);
    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("model")), 65);
    ck_assert_int_eq(error_lines(), 1);
    free(bytes);
}

TEST(bad_index)
{
    copy_tiny();
    ck_assert_int_eq(rename(in_folder("model/model.safetensors"), in_folder("model/a.safetensors")), 0);
    write_text(in_folder("model/model.safetensors.index.json"),
               "{\"weight_map\":{\"lm_head.weight\":\"b.safetensors\"}}");
    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("model")), 66);
    ck_assert(has("err", "b.safetensors"));
    write_text(in_folder("model/model.safetensors.index.json"),
               "{\"weight_map\":{\"lm_head.weight\":\"../a.safetensors\"}}");
    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("model")), 65);
    write_text(in_folder("model/model.safetensors.index.json"), "{\"weight_map\":[1,2]}");
    ck_assert_int_eq(m3ref("run %s --ids 1", in_folder("model")), 65);
}

/* A disk that is full: one line, status 74, the old file as it was, nothing beside it. */
TEST(full_disk)
{
    char command[1024];
    const char *build = getenv("BUILD");
    write_text(in_folder("d.safetensors"), "old");
    snprintf(command, sizeof command, "ulimit -f 200; %s/m3ref run " TINY " --dump %s >%s 2>%s",
             build ? build : "build", in_folder("d.safetensors"), in_folder("out"), in_folder("err"));
    int status = system(command);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 74);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("d.safetensors", "old"));
    ck_assert_int_eq(entries(), 3);
    ck_assert_int_eq(m3ref("run " TINY " --dump %s", in_folder("no/folder/d.safetensors")), 74);
}

/* synth makes the weights that the goldens' own script made: two programs, one specification. Routers and biases of
 * three models are not made so: further bits, or BF16.
 * Seen to fail with plain norms around 0, and with their values cut instead of rounded. */
TEST(synth_agrees_with_the_scripts)
{
    static const struct {
        const char *model, *options;
        int routers;
    } models[] = {
        { "tiny/model", "--dtype bf16", 6 },
        { "block128/model", "--dtype bf16", 0 },
        { "mxfp8/model", "--dtype mxfp8", 0 },
        { "f8block/model", "--dtype f8_block", 0 },
        { "m2/model", "--dtype f8_block --seed 3", 6 },
        { "m2/mtp_model", "--dtype bf16 --mtp 2", 6 },
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char name[8];
        snprintf(name, sizeof name, "made%zu", i);
        const char *folder = in_folder(name);
        char line[400];
        int differ = 0, same = 0;
        ck_assert_int_eq(m3ref("synth golden/%s/config.json %s %s", models[i].model, folder, models[i].options), 0);
        ck_assert_int_eq(m3ref("inspect --sha256 %s", folder), 0);
        copy(in_folder("out"), in_folder("ours"));
        ck_assert_int_eq(m3ref("inspect --sha256 golden/%s", models[i].model), 0);
        size_t count;
        char *ours = (char *)read_bytes(in_folder("ours"), &count);
        FILE *theirs = fopen(in_folder("out"), "r");
        while (fgets(line, sizeof line, theirs)) {
            if (strstr(ours, line)) same++;
            else
                differ += !strstr(line, "block_sparse_moe.gate.weight") && !strstr(line, "e_score_correction_bias")
                              ? 1000
                              : 1;
        }
        fclose(theirs);
        free(ours);
        ck_assert_int_eq(differ, models[i].routers);
        ck_assert_int_gt(same, 50);
    }
    ck_assert_int_eq(m3ref("synth golden/tiny/model/config.json %s", in_folder("made0")), 64);
    ck_assert_int_eq(m3ref("synth golden/tiny/model/config.json %s --dtype f7", in_folder("new")), 64);
    ck_assert_int_eq(m3ref("synth %s %s", in_folder("absent.json"), in_folder("new")), 66);
}

/* Another seed makes another model, the same seed the same; the flat config means the same model. */
TEST(synth_seed)
{
    ck_assert_int_eq(m3ref("synth golden/tiny/config_flat.json %s --seed 1", in_folder("a")), 0);
    ck_assert_int_eq(m3ref("synth golden/tiny/model/config.json %s --seed 1", in_folder("b")), 0);
    ck_assert_int_eq(m3ref("synth golden/tiny/model/config.json %s --seed 2", in_folder("c")), 0);
    const char *models[] = { "a", "b", "c" };
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(m3ref("run %s --case golden/tiny/case.safetensors --dump %s --taps logits",
                               in_folder(models[i]), in_folder("d.safetensors")),
                         0);
        ck_assert_int_eq(m3ref("inspect --sha256 %s", in_folder("d.safetensors")), 0);
        copy(in_folder("out"), in_folder(i == 0 ? "first" : i == 1 ? "second" : "third"));
    }
    size_t count;
    char *first = (char *)read_bytes(in_folder("first"), &count),
         *second = (char *)read_bytes(in_folder("second"), &count),
         *third = (char *)read_bytes(in_folder("third"), &count);
    ck_assert_str_eq(first, second);
    ck_assert_str_ne(first, third);
    free(first);
    free(second);
    free(third);
}

TEST(inspect_lists)
{
    ck_assert_int_eq(
        m3ref("inspect golden/mxfp8/model --json --tensors language_model.*layers.0.self_attn.q_proj.weight*"), 0);
    ck_assert(has("out", "\"dtype\":\"F8_E4M3\""));
    ck_assert(has("out", "\"type\":\"summary\",\"tensors\":2"));
    ck_assert_int_eq(m3ref("inspect golden/tiny/golden.safetensors.gz"), 0);
    ck_assert(has("out", "layers.4.moe.experts"));
    ck_assert_int_eq(m3ref("inspect %s", in_folder("absent")), 66);
    ck_assert_int_eq(m3ref("inspect golden/tiny/model --tensors nothing"), 64);
}
