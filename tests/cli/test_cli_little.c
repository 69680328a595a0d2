/* Dumps that hold layer outputs or logits alone are judged among honest implementations beside the truth, which
 * `run --bounds --profile` writes (SPEC 7.10). The candidates are the public code's (tests/candidates). */
#include "program.h"

TIMEOUT(300);
FIXTURE(make_folder, remove_folder);

#define MODEL "golden/tiny/model --case tests/candidates/case.safetensors "
#define RIGHT "tests/candidates/bf16.safetensors.gz --map transformers --profile bf16 "
#define WRONG "tests/candidates/bf16_without_plus_one.safetensors.gz --map transformers --profile bf16 "

static void make_truth(const char *more)
{
    ck_assert_int_eq(m3ref("run " MODEL "--precision f64 --top 0 %s --dump %s", more, in_folder("truth")), 0);
}

/* Goal:  a right dump of little passes and a wrong one fails, and nothing changes for a full dump.
 * Given: the public PyTorch code in bf16, and the same without SwiGLU's + 1.
 * Claim: layer outputs alone, logits alone: exit status 0 and 1; without the implementations, 3 for the right one.
 * Seen to fail with compare not given the implementations, with choices of the truth. */
TEST(little)
{
    make_truth("--bounds --profile bf16");
    ck_assert_int_eq(m3ref("compare %s " RIGHT "--taps 'layers.*.out' --json", in_folder("truth")), 0);
    ck_assert(has("out", "\"judged_by\":\"honest implementations of the profile\""));
    ck_assert(has("out", "\"judged\":5"));
    ck_assert_int_eq(m3ref("compare %s " RIGHT "--taps logits", in_folder("truth")), 0);
    ck_assert_int_eq(m3ref("compare %s " WRONG "--taps 'layers.*.out'", in_folder("truth")), 1);
    ck_assert(has("out", "the 75% quantile of the rows' errors is"));
    ck_assert_int_eq(m3ref("compare %s " WRONG "--taps logits", in_folder("truth")), 1);
    ck_assert_int_eq(m3ref("compare %s " RIGHT, in_folder("truth")), 0);
    ck_assert(has("out", "pass  125 of 125 stages judged"));
    ck_assert_int_eq(entries(), 3);
}

/* Goal:  the implementations in a file of companions are used too; those of another profile are not, with a note.
 * Seen to fail with the reference alone looked at, with the profile not compared. */
TEST(elsewhere)
{
    char more[600];
    snprintf(more, sizeof more, "--companions %s --profile bf16 --runs 8", in_folder("beside"));
    make_truth(more);
    ck_assert_int_eq(
        m3ref("compare %s " RIGHT "--taps logits --companions %s", in_folder("truth"), in_folder("beside")), 0);
    make_truth("--bounds --profile fp32 --runs 2");
    ck_assert_int_eq(m3ref("compare %s " RIGHT "--taps logits", in_folder("truth")), 3);
    ck_assert(has("out", "honest implementations: got those of profile fp32, expected bf16: not used"));
}

static const struct {
    int status;
    const char *arguments, *says;
} refused[] = {
    { 64, "--profile bf16", "got --profile without --bounds" },
    { 64, "--bounds --runs 4", "got --runs without --profile" },
    { 64, "--bounds --profile bf16 --runs 1", "--runs" },
    { 64, "--bounds --profile bf16 --layers 0:2", "got --profile with --layers" },
    { 66, "--bounds --profile bf17", "bf17" },
};

/* Goal:  each refusal has its status and words, and leaves no file. */
LOOP_TEST(refusals, sizeof refused / sizeof *refused)
{
    char words[400];
    snprintf(words, sizeof words, "--dump %s %s", in_folder("x"), refused[_i].arguments);
    ck_assert_int_eq(m3ref("run " MODEL "%s", words), refused[_i].status);
    ck_assert(has("err", refused[_i].says));
    ck_assert(access(in_folder("x"), F_OK) != 0);
}
