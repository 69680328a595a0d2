/* `--ops plain`: the plain definitions in the whole model, both engines, against every golden and against what the
 * program runs otherwise.
 *
 * Seen to fail with: attend.c that divides the values before they are summed; visible.c that hides a segment's later
 * rows; block_scores.c without the attention mask; linear.c with descending k; fast/attend.c with a run of values that
 * begins a key late; an engine whose plain table is the default one; --linear taken at its word. */
#include "program.h"

#include "cli/cli.h"
#include "goldens.h"
#include "model/plugin.h"
#include "ops/ops.h"
#include "same_tensors.h"
#include "slice.h"

TIMEOUT(300);
FIXTURE(make_folder, remove_folder);

#define PHOTO "golden/tiny/model --ids 198,68,74,12,125,87,200,119,165,195,199,203 --image golden/photo.png"
#define POSITIONS "golden/tiny/model --case golden/tiny/positions_case.safetensors"

/* What the list of goldens has not: pictures from a file; outputs of RoPE at a million, on rows that compare is told
 * to take for the same. */
static const struct {
    const char *input, *golden, *options;
    int64_t stages;
} others[] = {
    { PHOTO, "golden/vision/photo.safetensors.gz", "", 169 },
    { POSITIONS, "golden/tiny/positions.safetensors", "--force", 8 },
};

enum { OTHERS = sizeof others / sizeof *others, ALL = CASES + OTHERS };

/* What `run` is told of a golden: model, input, readings. */
static void input_of(char *text, size_t room, int i)
{
    if (i >= CASES) {
        snprintf(text, room, "%s", others[i - CASES].input);
        return;
    }
    char reading[100], *rest = NULL;
    size_t length = (size_t)snprintf(text, room, "%s --case %s", cases[i].model, cases[i].case_path);
    snprintf(reading, sizeof reading, "%s", cases[i].reading ? cases[i].reading : "");
    for (char *one = strtok_r(reading, " ", &rest); one; one = strtok_r(NULL, " ", &rest))
        length += (size_t)snprintf(text + length, room - length, " --set %s", one);
    ck_assert_uint_lt(length, room);
}

/* Stages of the last line that compare printed. */
static int64_t judged(void)
{
    size_t count;
    long long stages = -1;
    unsigned char *out = read_bytes(in_folder("out"), &count);
    for (const char *line = (char *)out; (line = strstr(line, "pass  ")); line++) {
        long long first, all;
        if (sscanf(line, "pass  %lld of %lld stages", &first, &all) == 2) stages = first;
    }
    free(out);
    return stages;
}

/* Goal:  what a student reads is what the program computes.
 * Claim: every golden passes; the dump has the bits of the default with ordered sums, whatever --linear says. A slice has
 *        each golden in one of the two precisions. */
LOOP_TEST(golden_and_the_usual_bits, 2 * ALL)
{
    const int i = _i / 2;
    if (!in_slice(i + _i, 2)) return;
    const char *precision = _i % 2 ? "f64" : "f32";
    const char *golden = i < CASES ? cases[i].golden : others[i - CASES].golden;
    const int64_t stages = i < CASES ? cases[i].stages : others[i - CASES].stages;
    char input[1000];
    input_of(input, sizeof input, i);

    ck_assert_int_eq(m3ref("run %s --precision %s --ops plain --linear blas --threads 2 --dump %s", input, precision,
                           in_folder("plain.safetensors")),
                     0);
    ck_assert(has("out", "linear ordered"));
    ck_assert_msg(m3ref("compare %s %s %s", golden, in_folder("plain.safetensors"),
                        i < CASES ? "" : others[i - CASES].options) == 0,
                  "%s", input);
    ck_assert_int_ge(judged(), stages);

    ck_assert_int_eq(m3ref("run %s --precision %s --linear ordered --threads 3 --dump %s", input, precision,
                           in_folder("usual.safetensors")),
                     0);
    same_tensors(in_folder("plain.safetensors"), in_folder("usual.safetensors"));
}

/* Claim: no golden of a model is left out. */
TEST(every_golden)
{
    static const char *const folders[] = { "tiny", "block128", "mxfp8",    "f8block", "fourbit",
                                           "mtp",  "m2",       "readings", "vision" };
    int files = 0;
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
        char path[64];
        snprintf(path, sizeof path, "golden/%s", folders[f]);
        DIR *dir = opendir(path);
        ck_assert_ptr_nonnull(dir);
        for (struct dirent *entry; (entry = readdir(dir));) files += strstr(entry->d_name, ".safetensors.gz") != NULL;
        closedir(dir);
    }
    ck_assert_int_eq(files, CASES + 1);         /* and the photograph's */
}

/* Claim: the word gives the plain table of the engine, whole, which has other bodies than the default. */
LOOP_TEST(another_table, 2)
{
    const struct m3_engine *engine = _i ? m3_engine_f64() : m3_engine_f32();
    struct m3_cli_ops ops = { .name = "plain" };
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_cli_ops_open(&ops, engine, &error), M3_OK);
    const struct m3_ops *got = m3_plugin_replacement(ops.plugin)->ops;
    ck_assert(memcmp(got, engine->plain, sizeof *got) == 0);
    ck_assert(got->linear != engine->ops->linear && got->attend_blocks != engine->ops->attend_blocks);
    m3_cli_ops_close(&ops);
}

/* Goal:  generation runs them too; the word is reserved, whatever files there are; it takes no other words.
 * Claim: the tokens of the public layers; 64 and one line. */
TEST(the_word)
{
    ck_assert_int_eq(m3ref("generate golden/mtp/model --ids 1,2,3 --max-new 8 --speculative --ops plain"), 0);
    ck_assert(has("out", "tokens: 33,44,18,57,42,64,50,86\n"));
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1 --ops plain,avx2 --dump %s", in_folder("d")), 64);
    ck_assert(has("err", "--ops: got plain,avx2, expected plain alone: it takes no words\n") && error_lines() == 1);
    ck_assert(!exists("d"));
    ck_assert_int_eq(m3ref("run --help"), 0);
    ck_assert(has("out", "--ops plain "));

    char program[512], command[1200];
    const char *build = getenv("BUILD");
    ck_assert_ptr_nonnull(realpath(build ? build : "build", program));
    char *model = realpath("golden/tiny/model", NULL);
    write_text(in_folder("plain"), "not a library");
    snprintf(command, sizeof command, "cd %s && %s/m3ref run %s --ids 1,2 --ops plain >/dev/null", folder, program,
             model);
    ck_assert_int_eq(system(command), 0);
    free(model);
}
