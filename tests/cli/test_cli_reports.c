/* What check, blame and compare write besides their verdict, and how they begin and end: report files, --only-failing,
 * a part of the layers, a plan, an interruption.
 *
 * Seen to fail with: the shards of other layers opened; temporary files that have names until they are closed; a child
 * that outlives the program. */
#include "program.h"

#include "same_tensors.h"
#include "xml.h"

TIMEOUT(240);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model"
#define CASE "--case golden/tiny/case.safetensors"

static char *text_of(const char *name)
{
    size_t count;
    return (char *)read_bytes(in_folder(name), &count);
}

static int lines_with(const char *name, const char *words)
{
    char *text = text_of(name);
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)) != NULL; at++) count++;
    free(text);
    return count;
}

/* A run with a mistake, its file named so that it must be escaped: "d'<&>.st". */
static void write_mistaken(char path[200])
{
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --set gate_clamp=both --dump %s", in_folder("d")), 0);
    snprintf(path, 200, "%s", in_folder("d'<&>.st"));
    copy(in_folder("d"), path);
}

/* Goal:  one writer for all commands: the page begins with the cause, holds the command and the sections, is XML and
 *        refers to nothing outside; JUnit skips what the dump lacks. */
static const char *const commands[] = { "check", "blame" };

LOOP_TEST(report_files, 2)
{
    char path[200];
    write_mistaken(path);
    ck_assert_int_eq(
        m3ref("%s " TINY " \"%s\" " CASE " --html %s --junit %s", commands[_i], path, in_folder("h"), in_folder("x")),
        1);
    char *html = text_of("h"), *xml = text_of("x");
    check_xml(html);
    check_xml(xml);
    const char *top = strstr(html, "<div class=\"top"), *files = strstr(html, "<table class=\"files\">");
    const char *cause = strstr(html, "act.gate_lower"), *repeat = strstr(html, "<dd><pre>m3ref ");
    ck_assert(top && files && cause && repeat && top < cause && cause < files && repeat < files);
    ck_assert_ptr_nonnull(strstr(repeat, "'\\''&lt;&amp;&gt;.st' --case"));
    ck_assert_ptr_nonnull(strstr(html, "<a href=\"#spec-511-swiglu_oai\">"));
    ck_assert_ptr_nonnull(strstr(html, "<div id=\"spec-511-swiglu_oai\">\n<p>The activation of every MLP in M3"));
    ck_assert_ptr_null(strstr(html, "http"));
    ck_assert_ptr_nonnull(strstr(xml, "name=\"layers.0.mlp.act\"><failure type=\"fail\" message=\""));
    ck_assert_ptr_nonnull(strstr(xml, "<property name=\"mistake\" value=\"act.gate_lower\"/>"));
    free(html);
    free(xml);
    ck_assert_int_eq(m3ref("%s " TINY " \"%s\" " CASE " --html %s --spec S.md", commands[_i], path, in_folder("h")), 1);
    ck_assert(has("h", "<a href=\"S.md#511-swiglu_oai\">"));
    ck_assert_int_eq(lines_with("h", "<div id=\"spec-"), 0);
}

/* Claim: taps that the dump lacks are skipped test cases, each by name. */
TEST(missing)
{
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --taps 'embed,fused,layers.0.*' --dump %s", in_folder("d")), 0);
    ck_assert_int_eq(m3ref("blame " TINY " %s " CASE " --junit %s", in_folder("d"), in_folder("x")), 0);
    ck_assert_int_eq(lines_with("x", "<skipped message=\"missing: "), 110);
    ck_assert(has("x", "classname=\"layers.1\" name=\"layers.1.attn_norm\"><skipped message=\"missing: "));
    ck_assert(has("x", "tests=\"130\" failures=\"0\" errors=\"0\" skipped=\"110\""));
}

/* Claim: only what fails or is suspect, then the summary. */
TEST(only_failing)
{
    char path[200];
    write_mistaken(path);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(m3ref("%s " TINY " \"%s\" " CASE " --only-failing --json", commands[i], path), 1);
        ck_assert_int_eq(lines_with("out", "\"verdict\":\"pass\""), 0);
        ck_assert_int_ge(lines_with("out", "{\"type\":\"blame\""), 2);
        ck_assert_int_eq(lines_with("out", "{\"type\":\"summary\""), 1);
        ck_assert_int_eq(m3ref("%s " TINY " \"%s\" " CASE " --only-failing", commands[i], path), 1);
        ck_assert_int_eq(lines_with("out", "\npass  ") + lines_with("out", "\nnote  "), 0);
        ck_assert(has("out", "\nfail            layers.0.mlp.act "));
        ck_assert(has("out", "words  HARD: an error is larger than any correct implementation can make it"));
    }
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz \"%s\" --only-failing --json", path), 1);
    ck_assert_int_eq(lines_with("out", "\"verdict\":\"pass\"") + lines_with("out", "\"verdict\":\"identical\""), 0);
}

/* Claim: a comparison without bounds names the stricter command, with the model and the case beside the golden. */
TEST(stricter)
{
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --dump '%s'", in_folder("d e")), 0);
    ck_assert_int_eq(m3ref("compare golden/tiny/golden.safetensors.gz '%s'", in_folder("d e")), 0);
    ck_assert(
        has("out", "so that a small mistake can hide there; for a strict verdict: m3ref check golden/tiny/model '"));
    ck_assert(has("out", "d e' --case golden/tiny/case.safetensors --profile fp32"));
}

/* ---- a part of a model */

static int is_inside(const char *name) { return strstr(name, ".layers.2.") || strstr(name, ".layers.3."); }

static void write_shard(const struct m3_safetensors *from, const char *name, int inside, FILE *index)
{
    struct m3_writer *writer;
    char path[80];
    snprintf(path, sizeof path, "model/%s", name);
    ck_assert_int_eq(m3_writer_new(&writer, in_folder(path), NULL), 0);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < m3_safetensors_count(from); i++) {
            const struct m3_tensor *t = m3_safetensors_at(from, i);
            if (is_inside(t->name) != inside) continue;
            if (!pass) fprintf(index, ", \"%s\": \"%s\"", t->name, name);
            ck_assert_int_eq(pass ? m3_writer_write(writer, t->data, t->bytes, NULL)
                                  : m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, NULL),
                             0);
        }
        if (!pass) ck_assert_int_eq(m3_writer_begin(writer, NULL), 0);
    }
    ck_assert_int_eq(m3_writer_commit(writer, NULL), 0);
}

/* The tiny model in two files: layers 2 and 3 in b, the rest in a. */
static void shard_tiny(void)
{
    struct m3_safetensors *all;
    copy_tiny();
    ck_assert_int_eq(m3_safetensors_open(&all, in_folder("model/model.safetensors"), NULL), 0);
    FILE *index = fopen(in_folder("model/index"), "w");
    ck_assert_ptr_nonnull(index);
    write_shard(all, "a.safetensors", 0, index);
    write_shard(all, "b.safetensors", 1, index);
    fclose(index);
    m3_safetensors_close(all);
    char *entries_text = text_of("model/index"), *text = malloc(strlen(entries_text) + 100);
    sprintf(text, "{\"weight_map\": {%s}}", entries_text + 2);
    write_text(in_folder("model/model.safetensors.index.json"), text);
    free(text);
    free(entries_text);
    unlink(in_folder("model/index"));
    unlink(in_folder("model/model.safetensors"));
}

/* Goal:  one layer of a model is checked with the files that hold its weights.
 * Claim: without the other file the layers 2 and 3 are judged, right and wrong; a dump without the input of layer 2
 *        needs the other file, which is named; with it the same taps are judged. */
TEST(layers)
{
    char mistaken[200];
    shard_tiny();
    write_mistaken(mistaken);
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --dump %s", in_folder("d")), 0);
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --taps 'layers.2.*,layers.3.*' --dump %s", in_folder("inside")), 0);
    ck_assert_int_eq(m3ref("check %s %s " CASE " --layers 2:4 --json", in_folder("model"), in_folder("inside")), 3);
    ck_assert(has("err", "model_sha256"));
    unlink(in_folder("model/a.safetensors"));
    ck_assert_int_eq(m3ref("check %s %s " CASE " --layers 2:4 --json", in_folder("model"), in_folder("d")), 0);
    ck_assert(has("out", "\"judged\":60,\"failed\":0"));
    ck_assert(has("out", "the reference ran from the dump's layers.1.out"));
    ck_assert_int_eq(m3ref("check %s \"%s\" " CASE " --layers 2:4 --json", in_folder("model"), mistaken), 2);
    ck_assert(has("out", "\"culprit\":\"layers.2.moe.expert_out\""));
    ck_assert_int_eq(m3ref("check %s %s " CASE " --layers 2:4", in_folder("model"), in_folder("inside")), 66);
    ck_assert(has("err", "a.safetensors"));
    ck_assert(has("err", "holds no layers.1.out in whole"));
    ck_assert_int_eq(m3ref("check " TINY " %s " CASE " --layers 2:4 --json", in_folder("inside")), 0);
    ck_assert(has("out", "\"judged\":60,\"failed\":0"));
    ck_assert_int_eq(m3ref("check %s %s " CASE " --layers 2:9", in_folder("model"), in_folder("d")), 64);
    ck_assert_int_eq(m3ref("check %s %s " CASE " --layers 3:3", in_folder("model"), in_folder("d")), 64);
}

/* Goal:  some layers of a model run with the files that hold their weights, and write what all files give.
 * Claim: without the other file the taps are those of a run with all, bit for bit; the first layer needs the other
 *        file, which is named; an output may not take the place of a file that is not opened; layers that the model
 *        does not have are refused with one line.
 * Seen to fail with: every file opened; files that are not opened left out of the paths; the layers not checked. */
TEST(run_some_layers)
{
    shard_tiny();
    ck_assert_int_eq(m3ref("run %s " CASE " --layers 0:2 --dump %s", in_folder("model"), in_folder("input")), 0);
    ck_assert_int_eq(m3ref("run %s " CASE " --layers 2:4 --hidden %s --dump %s", in_folder("model"), in_folder("input"),
                           in_folder("want")),
                     0);
    ck_assert_int_eq(m3ref("run %s " CASE " --layers 2:4 --hidden %s --dump %s/a.safetensors", in_folder("model"),
                           in_folder("input"), in_folder("model")),
                     64);
    ck_assert(has("err", "MODEL"));
    ck_assert_int_eq(unlink(in_folder("model/a.safetensors")), 0);
    ck_assert_int_eq(m3ref("run %s " CASE " --layers 2:4 --hidden %s --dump %s", in_folder("model"), in_folder("input"),
                           in_folder("got")),
                     0);
    same_tensors(in_folder("want"), in_folder("got"));
    ck_assert_int_eq(m3ref("run %s " CASE " --layers 0:1", in_folder("model")), 66);
    ck_assert(has("err", "model/a.safetensors: "));
    ck_assert_int_eq(m3ref("run %s " CASE " --layers 5:9 --hidden %s", in_folder("model"), in_folder("input")), 64);
    ck_assert(has("err", "--layers: got 5:9, expected A:B with A < B and B at most 5, the layers of "));
    ck_assert_int_eq(error_lines(), 1);
}

/* Claim: the plan names the files that are needed, says which are absent, and judges or generates nothing.
 * Seen to fail with the tokens of generate left out of the plan, with the cache of run left out, and with the length of a generation not checked. */
TEST(plan)
{
    shard_tiny();
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --dump %s", in_folder("d")), 0);
    unlink(in_folder("model/a.safetensors"));
    ck_assert_int_eq(m3ref("check %s %s " CASE " --layers 2:4 --plan", in_folder("model"), in_folder("d")), 0);
    ck_assert_int_eq(lines_with("out", "file:  "), 1);
    ck_assert(has("out", "file:  b.safetensors, "));
    ck_assert(has("out", "files: 1 of 2 needed, 0 of them absent"));
    ck_assert_int_eq(m3ref("run %s " CASE " --plan", in_folder("model")), 0);
    ck_assert(has("out", "file:  a.safetensors, absent\nfile:  b.safetensors, "));
    ck_assert(has("out", "files: 2 of 2 needed, 1 of them absent"));
    ck_assert_int_eq(m3ref("generate %s --ids 1,2,3 --max-new 4 --plan", in_folder("model")), 0);
    ck_assert(has("out", "file:  a.safetensors, absent\nfile:  b.safetensors, "));
    ck_assert(has("out", "layers: 0 to 4, T 3\npasses: 1 in float, 0 in double, "));
    ck_assert(has("out", "\ntokens: 4, after the first "));
    ck_assert_int_eq(lines_with("out", "tokens: "), 1);
    ck_assert_int_eq(m3ref("run " TINY " --ids 1,2,3 --cache-out %s", in_folder("c")), 0);
    ck_assert_int_eq(
        m3ref("run " TINY " --ids 4 --cache-in %s --dump x --resume %s --plan", in_folder("c"), in_folder("state")), 0);
    ck_assert(has("out", "layers: 0 to 4, T 1 after 3 cached\n"));
    ck_assert(has("out", " GB for taps, with the second copy in the folder of --resume\n"));
    ck_assert_int_eq(m3ref("run " TINY " --ids 4 --cache-in %s --plan", in_folder("d")), 65);
    ck_assert_int_eq(m3ref("generate %s --ids 1,2,3 --plan --json", in_folder("model")), 64);
    ck_assert_int_eq(m3ref("generate %s --ids 1,2,3 --max-new 1048576 --plan", in_folder("model")), 64);
    ck_assert(has("err", "--max-new: got 1048576, which reaches position 1048577, expected below "));
    ck_assert_int_eq(m3ref("check %s %s " CASE " --layers 2:9 --plan", in_folder("model"), in_folder("d")), 64);
}

/* Claim: of a check that is interrupted nothing remains, wherever it is. */
LOOP_TEST(interrupted, 4)
{
    char command[600];
    const char *build = getenv("BUILD");
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --taps layers.*.out --dump %s", in_folder("d")), 0);
    ck_assert_int_eq(mkdir(in_folder("tmp"), 0700), 0);
    snprintf(command, sizeof command,
             "TMPDIR=%s/tmp timeout -s %s %s %s/m3ref check " TINY " %s/d " CASE " --row-runs 2000 --profile bf16 "
             ">/dev/null 2>&1",
             folder, _i % 2 ? "TERM" : "INT", _i < 2 ? "0.3" : "1.5", build ? build : "build", folder);
    const int status = system(command);
    ck_assert_int_eq(WEXITSTATUS(status), 124);
    ck_assert_int_eq(rmdir(in_folder("tmp")), 0);
}

static const char *const watched[] = { "op rms_norm --ops $P", "op rms_norm --perf --ops $P",
                                       "run " TINY " " CASE " --dump $D/dump --ops $P" };

/* Claim: nothing remains of a program that is interrupted while an operator of a plug-in runs in its child: no file,
 * and no process, which would keep the pipe open. The plug-in itself interrupts the program. */
LOOP_TEST(interrupted_plugin, sizeof watched / sizeof *watched)
{
    char command[900];
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    ck_assert_int_eq(mkdir(in_folder("tmp"), 0700), 0);
    snprintf(command, sizeof command,
             "D=%s; P=./%s/tests/bad_norm.so,interrupt; "
             "{ TMPDIR=$D/tmp %s/m3ref %s; echo status $?; } 2>&1 | timeout 60 cat >$D/out",
             folder, build, build, watched[_i]);
    const int status = system(command);
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert(has("out", "status 130\n"));                      /* 128 + SIGINT */
    ck_assert_int_eq(rmdir(in_folder("tmp")), 0);
    ck_assert_int_eq(entries(), 1);
}

static const struct {
    const char *words, *says;
    int status;
} bad[] = {
    { "check " TINY " golden/tiny/golden.safetensors.gz " CASE " --html no/such/h", "no/such", 74 },
    { "blame " TINY " golden/tiny/golden.safetensors.gz " CASE " --junit no/such/x", "no/such", 74 },
    { "check " TINY " golden/tiny/golden.safetensors.gz " CASE " --html golden/tiny/case.safetensors", "--case", 64 },
    { "blame " TINY " golden/tiny/golden.safetensors.gz " CASE " --html h --junit h", "expected two files", 64 },
    { "check " TINY " golden/tiny/golden.safetensors.gz " CASE " --html", "--html needs a value", 64 },
    { "check " TINY " golden/tiny/golden.safetensors.gz " CASE " --all --only-failing", "expected one of them", 64 },
    { "blame " TINY " golden/tiny/golden.safetensors.gz " CASE " --all --only-failing", "expected one of them", 64 },
    { "compare golden/tiny/golden.safetensors.gz x --all --only-failing", "expected one of them", 64 },
    { "check " TINY " golden/tiny/golden.safetensors.gz " CASE " --layers 2", "expected A:B", 64 },
    { "check " TINY " golden/tiny/golden.safetensors.gz --plan", "expected either --case or --ids", 64 },
};

LOOP_TEST(bad_words, sizeof bad / sizeof bad[0])
{
    const int status = m3ref("%s", bad[_i].words);
    ck_assert_msg(status == bad[_i].status, "%s: status %d", bad[_i].words, status);
    ck_assert(has("err", bad[_i].says));
}
