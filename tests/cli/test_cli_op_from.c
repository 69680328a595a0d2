/* `m3ref op NAME --make CASES --from DUMP`: the round through the program, and bad input: one line and the right
 * status, nothing written. */
#include "program.h"

TIMEOUT(60);
FIXTURE(make_folder, remove_folder);

#define TINY "--model golden/tiny/model --case golden/tiny/case.safetensors"
#define GOLDEN "--from golden/tiny/golden.safetensors.gz"

static int op_status(const char *words)
{
    char text[1024];
    return m3ref("op %s", with_folder(text, words));
}

/* Goal:  cases are cut, run and judged, by files, through standard output and from the companions' own case. */
TEST(round_trip)
{
    ck_assert_int_eq(op_status("select_blocks --make @/c " GOLDEN " --tap layers.3.index.blocks " TINY), 0);
    ck_assert(has("out", "1 case from"));
    ck_assert_int_eq(op_status("select_blocks --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("select_blocks --check @/c @/r"), 0);
    ck_assert_int_eq(op_status("experts --make - " GOLDEN " --tap 'layers.*.moe.routed' " TINY " --dtype bf16"), 0);
    ck_assert(has("err", "3 cases from"));
    copy(in_folder("out"), in_folder("c"));
    ck_assert_int_eq(op_status("experts --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("experts --check @/c @/r --profile bf16"), 0);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1,2,3,4,5 --bounds --dump %s", in_folder("d")), 0);
    ck_assert_int_eq(op_status("attend_full --make @/c --from @/d --tap layers.0.attn --model golden/tiny/model "
                               "--rows 0,2:4"),
                     0);
    ck_assert_int_eq(op_status("attend_full --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("attend_full --check @/c @/r"), 0);
    ck_assert_int_eq(op_status("rms_norm --make @/n --from @/d --tap layers.0.q_norm --model golden/tiny/model "
                               "--dtype f16"),
                     0);
    ck_assert_int_eq(op_status("rms_norm --run @/n @/r"), 0);
    ck_assert_int_eq(op_status("rms_norm --check @/n @/r"), 0);
}

static const struct {
    const char *words;
    int status;
    const char *says;
} bad_words[] = {
    { "rms_norm --make @/x " GOLDEN " --tap nosuch " TINY, 64, "nosuch" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.99.attn_norm " TINY, 64, "layers.99.attn_norm" },
    { "rms_norm --make @/x " GOLDEN " --tap mtp.0.final_norm " TINY, 64, "mtp.0.final_norm" },
    { "select_blocks --make @/x " GOLDEN " --tap layers.0.index.blocks " TINY, 64, "layers.0.index.blocks" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.3.q_proj " TINY, 64, "expected linear" },
    { "attend_full --make @/x " GOLDEN " --tap layers.3.attn " TINY, 64, "attend_blocks or sparse_attention" },
    { "linear_fp8 --make @/x " GOLDEN " --tap layers.3.q_proj " TINY, 64, "expected linear" },
    { "rms_norm --make @/x " GOLDEN " --tap '*.q_proj' " TINY, 64, "*.q_proj" },
    { "rms_norm --make @/x " GOLDEN " " TINY, 64, "--tap" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm", 64, "--model" },
    { "rms_norm --make @/x --tap layers.0.attn_norm", 64, "--from" },
    { "rms_norm --run @/x @/y " GOLDEN " --tap layers.0.attn_norm " TINY, 64, "--make" },
    { "rms_norm --make @/x --sizes small " GOLDEN " --tap layers.0.attn_norm " TINY, 64, "--sizes" },
    { "rope --make @/x " GOLDEN " --tap layers.0.q_rope --model golden/tiny/model", 64, "--case" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm " TINY " --rows 3:2", 64, "3:2" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm " TINY " --rows 1,", 64, "1," },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm " TINY " --rows 100000", 64, "100000" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm " TINY " --rows 99999999999999999999", 64, "--rows" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm --model golden/mtp/model", 65, "model_sha256" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm --model golden/tiny/model "
      "--case golden/readings/case.safetensors",
      65, "case_sha256" },
    { "rms_norm --make @/x --from golden/tiny/case.safetensors --tap layers.0.attn_norm " TINY, 65, "fused" },
    { "linear_bias --make @/x " GOLDEN " --tap vision.layers.0.fc1 " TINY, 65, "vision.layers.0.norm2" },
    { "attend_full --make @/x --from golden/mxfp8/golden.safetensors.gz --tap layers.0.attn --model "
      "golden/mxfp8/model --case golden/mxfp8/case.safetensors",
      65, "some rows" },
    { "rms_norm --make @/x --from @/none --tap layers.0.attn_norm " TINY, 66, "none" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm --model @/none", 66, "none" },
    { "rms_norm --make @/x " GOLDEN " --tap layers.0.attn_norm --model golden/tiny/model --case @/none", 66, "none" },
    { "rms_norm --make @/no/x " GOLDEN " --tap layers.0.attn_norm " TINY, 74, "no/x" },
};
enum { BAD_WORDS = sizeof bad_words / sizeof bad_words[0] };

/* Goal:  wrong words and files: one line that names them, the status, no file. */
LOOP_TEST(words, BAD_WORDS)
{
    const int status = op_status(bad_words[_i].words);
    ck_assert_msg(status == bad_words[_i].status, "%s: status %d", bad_words[_i].words, status);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", bad_words[_i].says));
    ck_assert(!exists("x"));
}

/* Goal:  no input is overwritten. */
TEST(inputs_stay)
{
    copy("golden/tiny/golden.safetensors.gz", in_folder("d.gz"));
    ck_assert_int_eq(op_status("rms_norm --make @/d.gz --from @/d.gz --tap layers.0.attn_norm " TINY), 64);
    ck_assert_int_eq(error_lines(), 1);
}
