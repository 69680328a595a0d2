/* No output takes the place of an input, or of another output: every pair of them, under every kind of name.
 *
 * Goal:  64, one line with both options, and every file as it was.
 * Given: a folder with one of everything that a command reads. A run of each command that is refused writes nothing, so
 *        all tests share it; its files are hashed by sha256sum before and after.
 * Seen to fail with the program before there was one place for paths: compare wrote over the candidate, the map, the
 * profile, companions and envelope; run and envelope over decisions, a new index, frames; --html and --junit into one
 * file; estimate over its config; op over its plug-in. And with each call of cli/paths.h left out of each command. */
#include "program.h"

static char before[16384];

/* What all files in the folder are, links among them, but what the program has just printed: name, kind, inode, size, and
 * when it last changed, which no program can set. */
static void list_files(char *list, size_t size)
{
    char command[256];
    snprintf(command, sizeof command,
             "cd %s && find . ! -type d ! -name alias ! -name out ! -name err -printf '%%p %%y %%i %%s %%C@\\n' | sort",
             folder);
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    list[fread(list, 1, size - 1, pipe)] = '\0';
    ck_assert_int_eq(pclose(pipe), 0);
}

static int run(const char *arguments)
{
    char text[2000];
    return m3ref("%s", with_folder(text, arguments));
}

#define CASE "--case @/case.safetensors"
#define DUMPS "compare @/t @/c "

/* The same model, its weights under a name of the index's own, which is a link to a file elsewhere. */
static void make_indexed(void)
{
    struct m3_safetensors *file;
    ck_assert_int_eq(mkdir(in_folder("indexed"), 0700), 0);
    copy("golden/tiny/model/config.json", in_folder("indexed/config.json"));
    copy("golden/tiny/model/model.safetensors", in_folder("blob"));
    ck_assert_int_eq(symlink("../blob", in_folder("indexed/weights")), 0);
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("blob"), NULL), M3_OK);
    FILE *index = fopen(in_folder("indexed/model.safetensors.index.json"), "w");
    ck_assert_ptr_nonnull(index);
    for (int64_t i = 0; i < m3_safetensors_count(file); i++)
        fprintf(index, "%s\"%s\": \"weights\"", i ? ",\n" : "{\"weight_map\": {", m3_safetensors_at(file, i)->name);
    fprintf(index, "}}\n");
    ck_assert_int_eq(fclose(index), 0);
    m3_safetensors_close(file);
}

static void setup(void)
{
    make_folder();
    copy_tiny();
    make_indexed();
    copy("golden/tiny/case.safetensors", in_folder("case.safetensors"));
    copy("ref/oracle/error/profiles/bf16.json", in_folder("profile.json"));
    write_text(in_folder("map.json"), "{\"taps\": {\"logits\": {\"from\": \"logits\"}}}");
    copy("golden/photo.png", in_folder("photo.png"));
    ck_assert_int_eq(mkdir(in_folder("video"), 0700), 0);
    copy("golden/photo.png", in_folder("video/1.png"));
    const char *build = getenv("BUILD");
    char path[256], *program;
    snprintf(path, sizeof path, "%s/tests/wrong_rope.so", build ? build : "build");
    copy(path, in_folder("ops.so"));
    snprintf(path, sizeof path, "%s/m3ref", build ? build : "build");
    ck_assert_ptr_nonnull(program = realpath(path, NULL));
    ck_assert_int_eq(setenv("M3REF", program, 1) | setenv("F", folder, 1) | setenv("AT", "@", 1), 0);
    free(program);
    copy("golden/tiny/model/config.json", in_folder("config.svg"));
    copy("golden/train/case.safetensors", in_folder("labels"));
    write_text(in_folder("ids"), "1,2,3\n");
    ck_assert_int_eq(run("op rms_norm --make @/cases --cases 1"), 0);
    ck_assert_int_eq(run("op rms_norm --run @/cases @/results"), 0);
    ck_assert_int_eq(run("run @/model " CASE " --dump @/d --taps 'layers.0.*,layers.2.*,logits' "
                         "--companions @/companions --cache-out @/cache"),
                     0);
    copy(in_folder("d"), in_folder("t"));
    copy(in_folder("d"), in_folder("c"));
    ck_assert_int_eq(run("envelope @/model " CASE " --profile @/profile.json --runs 2 --out @/envelope"), 0);
    ck_assert_int_eq(run(DUMPS "--json"), 0);
    copy(in_folder("out"), in_folder("before"));
    ck_assert_int_eq(link(in_folder("c"), in_folder("hard")), 0);
    ck_assert_int_eq(symlink("c", in_folder("soft")), 0);
    ck_assert_int_eq(symlink(".", in_folder("alias")), 0);
    ck_assert_int_eq(link(in_folder("model/config.json"), in_folder("model/hard.svg")), 0);
    list_files(before, sizeof before);
}

TIMEOUT(60);
FIXTURE_ONCE(setup, remove_folder);

static void expect_refusal(const char *arguments, const char *first, const char *second)
{
    static char after[sizeof before];
    int status = run(arguments);
    ck_assert_msg(status == 64, "%s: exit status %d", arguments, status);
    ck_assert_int_eq(error_lines(), strstr(arguments, "--map") ? 2 : 1); /* a map has a note of its own */
    ck_assert(has("err", first) && has("err", second));
    list_files(after, sizeof after);
    ck_assert_msg(strcmp(before, after) == 0, "%s: got\n%swant\n%s", arguments, after, before);
}

/* Each output of compare against each input. */
static const char *const reports[] = { "--html", "--junit", "--ledger" };
static const struct {
    const char *path, *option;
} compared[] = {
    { "@/t", "REFERENCE" },         { "@/c", "CANDIDATE" },          { "@/companions", "--companions" },
    { "@/envelope", "--envelope" }, { "@/map.json", "--map" },       { "@/profile.json", "--profile" },
    { "@/./c", "CANDIDATE" },       { "@/model/../c", "CANDIDATE" }, { "@/hard", "CANDIDATE" },
    { "@/soft", "CANDIDATE" },      { "@/alias/c", "CANDIDATE" },
};
enum { COMPARED = sizeof compared / sizeof *compared };

LOOP_TEST(compare_over_an_input, 3 * COMPARED)
{
    char arguments[600];
    snprintf(arguments, sizeof arguments,
             DUMPS "--companions @/companions --envelope @/envelope --map @/map.json "
                   "--profile @/profile.json --force %s %s",
             reports[_i / COMPARED], compared[_i % COMPARED].path);
    expect_refusal(arguments, reports[_i / COMPARED], compared[_i % COMPARED].option);
}

/* Each output of run, and of envelope, against each input. */
#define PICTURES "--ids 1,200,201 --image @/photo.png --video @/video "
static const struct {
    const char *arguments, *path, *option;
    int cache; /* may have --cache-out too */
} inputs[] = {
    { "run @/model " CASE, "@/model/config.json", "MODEL", 1 },
    { "run @/model " CASE, "@/model/model.safetensors", "MODEL", 1 },
    { "run @/model " CASE, "@/model/model.safetensors.index.json", "MODEL", 1 },
    { "run @/model " CASE, "@/alias/model/generation_config.json", "MODEL", 1 },
    { "run @/model " CASE, "@/model", "MODEL", 1 },
    { "run @/indexed " CASE, "@/indexed/weights", "MODEL", 1 },
    { "run @/indexed " CASE, "@/blob", "MODEL", 1 },
    { "run @/model " CASE, "@/case.safetensors", "--case", 1 },
    { "run @/model " CASE " --decisions @/d", "@/alias/d", "--decisions", 1 },
    { "run @/model " CASE " --layers 1:2 --hidden @/d", "@/d", "--hidden", 0 },
    { "run @/model " CASE " --ops @/ops.so", "@/ops.so", "--ops", 1 },
    { "run @/model " PICTURES, "@/photo.png", "--image", 1 },
    { "run @/model " PICTURES, "@/video/1.png", "--video", 1 },
    { "run @/model " PICTURES, "@/alias/video/new.png", "--video", 1 },
};

LOOP_TEST(run_over_an_input, sizeof inputs / sizeof *inputs)
{
    char arguments[600];
    snprintf(arguments, sizeof arguments, "%s --dump %s", inputs[_i].arguments, inputs[_i].path);
    expect_refusal(arguments, "--dump", inputs[_i].option);
    snprintf(arguments, sizeof arguments, "%s --dump @/new --companions %s", inputs[_i].arguments, inputs[_i].path);
    expect_refusal(arguments, "--companions", inputs[_i].option);
    if (!inputs[_i].cache) return;
    snprintf(arguments, sizeof arguments, "%s --cache-out %s", inputs[_i].arguments, inputs[_i].path);
    expect_refusal(arguments, "--cache-out", inputs[_i].option);
}

static const struct {
    const char *arguments, *first, *second;
} refused[] = {
    { "run @/model --ids 1 --cache-in @/cache --dump @/cache", "--dump", "--cache-in" },
    { "run @/model --ids 1 --dump @/new --companions @/./new", "--dump", "--companions" },
    { "run @/model --ids 1 --dump @/new --cache-out @/alias/new", "--dump", "--cache-out" },
    { "run @/model --ids 1 --dump @/new --companions @/x --cache-out @/x", "--companions", "--cache-out" },
    { "run @/model --ids 1 --dump @/out", "--dump", "standard output" },
    { DUMPS "--html @/new --junit @/new", "--html", "--junit" },
    { DUMPS "--html @/new --ledger @/alias/new", "--html", "--ledger" },
    { DUMPS "--junit @/new --ledger @/model/../new", "--junit", "--ledger" },
    { DUMPS "--html @/hard --junit @/d --ledger @/alias/d", "--junit", "--ledger" },
    { DUMPS "--json --html @/out", "--html", "standard output" },
    { "envelope @/model " CASE " --profile @/profile.json --out @/profile.json", "--out", "--profile" },
    { "envelope @/model " CASE " --profile bf16 --out @/case.safetensors", "--out", "--case" },
    { "envelope @/model " CASE " --profile bf16 --out @/model/config.json", "--out", "MODEL" },
    { "envelope @/model " CASE " --profile bf16 --out @/model/model.safetensors.index.json", "--out", "MODEL" },
    { "envelope @/model " PICTURES "--profile bf16 --out @/photo.png", "--out", "--image" },
    { "envelope @/model " PICTURES "--profile bf16 --out @/video/1.png", "--out", "--video" },
    { "estimate @/config.svg --chart @/config.svg", "--chart", "MODEL_OR_CONFIG" },
    { "estimate @/model/config.json --chart @/model/hard.svg", "--chart", "MODEL_OR_CONFIG" },
    { "estimate @/model --chart @/model/hard.svg", "--chart", "MODEL" },
    { "grad @/model --case @/labels --dump @/labels", "--dump", "--case" },
    { "grad @/model --case @/labels --dump @/model/config.json", "--dump", "MODEL" },
    { "explain @/model " CASE " --tap logits --token 1 --channel 1 --html @/alias/case.safetensors", "--html",
      "--case" },
    { "explain @/model --ids $AT$F/ids --tap logits --token 1 --channel 1 --html @/ids", "--html", "--ids" },
    { "run @/model --ids $AT$F/ids --dump @/ids", "--dump", "--ids" },
    { "prompt @/model --out @/model/config.json", "--out", "MODEL" },
    { "blame @/model @/c " CASE " --html @/hard", "--html", "CANDIDATE" },
    { "check @/model @/c " CASE " --junit @/soft", "--junit", "CANDIDATE" },
    { "check @/model @/c " CASE " --truth @/case.safetensors", "--truth", "--case" },
    { DUMPS "--baseline @/before --html @/before", "--html", "--baseline" },
    { "op rms_norm --check @/cases @/results --html @/results", "--html", "RESULTS" },
    { "op rms_norm --check @/cases @/results --junit @/cases", "--junit", "CASES" },
    { "op rope --ops @/ops.so --html @/ops.so", "--html", "--ops" },
    { "op rms_norm --make @/d --from @/d --tap layers.0.attn_norm --model @/model", "--make", "--from" },
    { "synth @/model/config.json @/model/config.json", "OUT", "CONFIG" },
    { "synth @/model/config.json @/model", "model: got a folder with files in it", "new or empty" },
    { "synth @/model/config.json @/alias/model", "model: got a folder with files in it", "new or empty" },
};

LOOP_TEST(other_pairs, sizeof refused / sizeof *refused)
{
    expect_refusal(refused[_i].arguments, refused[_i].first, refused[_i].second);
}

/* What the shell appends to. Seen to fail with standard output not among the outputs. */
#define BLAME "$M3REF blame $F/model $F/d --case $F/case.safetensors --json "
static const char *const appended[][2] = {
    { "$M3REF inspect $F/d >>$F/d", "FILE_OR_MODEL" },
    { "$M3REF inspect $F/model >>$F/model/model.safetensors", "MODEL" },
    { BLAME ">>$F/d", "CANDIDATE" },
    { BLAME "--profile $F/profile.json >>$F/profile.json", "--profile" },
    { BLAME "--map $F/map.json >>$F/map.json", "--map" },
    { BLAME ">>$F/case.safetensors", "--case" },
    { BLAME ">>$F/model/config.json", "MODEL" },
    { "$M3REF generate $F/model --case $F/case.safetensors --max-new 1 >>$F/case.safetensors", "--case" },
    { "$M3REF generate $F/model --ids 1 --max-new 1 >>$F/model/config.json", "MODEL" },
    { "$M3REF estimate $F/config.svg >>$F/config.svg", "MODEL_OR_CONFIG" },
};

LOOP_TEST(standard_output_onto_an_input, sizeof appended / sizeof *appended)
{
    char after[sizeof before], command[200];
    snprintf(command, sizeof command, "%s 2>$F/err", appended[_i][0]);
    ck_assert_int_eq(WEXITSTATUS(system(command)), 64);
    ck_assert(has("err", "standard output: got ") && has("err", appended[_i][1]));
    list_files(after, sizeof after);
    ck_assert_str_eq(before, after);
}

/* A missing input comes first, and nothing is made in its place. */
TEST(missing_input)
{
    char after[sizeof before];
    ck_assert_int_eq(run("compare @/t @/none --html @/none"), 66);
    ck_assert_int_eq(run("run @/none --ids 1 --dump @/none"), 66);
    ck_assert_int_eq(run("run @/model --case @/none --dump @/none"), 66);
    ck_assert_int_eq(run("estimate @/none.svg --chart @/none.svg"), 66);
    ck_assert_int_eq(run("synth @/none @/none"), 66);
    list_files(after, sizeof after);
    ck_assert_str_eq(before, after);
}

FIXTURE(setup, remove_folder);
FIXTURE_ONCE(NULL, NULL);

/* What is no clash: a file of one's own in the model's folder, written again; the cache that continues; a file with the
 * name of a profile that is built in; a list of tensors beside them.
 * Seen to fail with every file of the folder refused, --cache-in compared with --cache-out, names taken for paths. */
TEST(allowed)
{
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(run("run @/model --ids 1 --dump @/model/d.safetensors --companions @/model/c.safetensors"), 0);
        ck_assert_int_eq(run("run @/model --ids 1 --cache-in @/cache --cache-out @/alias/cache"), 0);
    }
    ck_assert_int_eq(system("cd $F && $M3REF compare t c --profile fp32 --html fp32 >out &&"
                            "$M3REF compare t c --profile fp32 --html fp32 >out &&"
                            "$M3REF inspect model --json >model/tensors.json"),
                     0);
}
