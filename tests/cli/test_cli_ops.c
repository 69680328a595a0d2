/* Plug-ins in a watched child process: `op NAME --ops LIB` and `run --ops LIB`.
 *
 * Seen to fail with: guard.c without its forbidden pages, without the bytes beside an operand, with inputs that may be
 * written, without the look for unwritten elements; watch.c that takes every end for the usual one; a limit of time
 * that is never checked; results of a copied output that are not copied back; identify.c that takes no results for
 * right ones. */
#include "program.h"

#include "goldens.h"
#include "slice.h"
#include "oracle/operators/operators.h"
#include "same_tensors.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model --case golden/tiny/case.safetensors"

static const char *plugin(const char *name)
{
    static char path[300];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "./%s/tests/%s.so", build ? build : "build", name);
    return path;
}

/* ---- right plug-ins */

/* The input of a golden as options of run; of the long one the first 700 ids, which fill five of its blocks. */
static const char *input_of(const struct golden *c)
{
    static char text[600];
    struct m3_safetensors *file;
    snprintf(text, sizeof text, "--case %s", c->case_path);
    if (c != &cases[BLOCK128]) return text;
    FILE *list = fopen(in_folder("ids"), "w");
    ck_assert_ptr_nonnull(list);
    ck_assert_int_eq(m3_safetensors_open(&file, c->case_path, NULL), 0);
    const struct m3_tensor *ids = m3_safetensors_find(file, "input_ids");
    ck_assert_ptr_nonnull(ids);
    for (int64_t i = 0; i < 700; i++) fprintf(list, "%d\n", (int)m3_decode(ids->dtype, ids->data, i));
    ck_assert_int_eq(fclose(list), 0);
    m3_safetensors_close(file);
    snprintf(text, sizeof text, "--ids @%s", in_folder("ids"));
    return text;
}

/* Goal:  what is watched computes what it computed before, at every call and with every operator.
 * Claim: all operators as a plug-in give the bits that the program's own give, on the input of every golden. */
LOOP_TEST(watched_operators_give_the_same_bits, CASES)
{
    const struct golden *c = &cases[_i];
    const char *input = input_of(c);
    ck_assert_int_eq(m3ref("run %s %s --linear ordered --dump %s", c->model, input, in_folder("a")), 0);
    ck_assert_int_eq(
        m3ref("run %s %s --linear ordered --ops %s --dump %s", c->model, input, plugin("plain_table"), in_folder("b")),
        0);
    same_tensors(in_folder("a"), in_folder("b"));
}

/* Claim: the plain definitions pass all cases of every operator and composite. */
LOOP_TEST(every_operator_is_judged, m3_operator_rows())
{
    const char *name = m3_operator_at(_i)->name;
    /* A plug-in has no derivatives: op says so. */
    const int expected = m3_operator_at(_i)->derivative ? 64 : 0;
    const int status = m3ref("op %s --ops %s --cases 1", name, plugin("plain_table"));
    ck_assert_msg(status == expected, "%s: status %d", name, status);
    ck_assert(has(expected ? "err" : "out", expected ? "got --ops for the derivative" : "pass  "));
}

/* ---- plug-ins that misbehave */

static const struct {
    const char *word, *in_run, *in_op;
} faults[] = {
    { "crash", "rms_norm crashed (SIGSEGV)", "rms_norm crashed (SIGSEGV)" },
    { "abort", "rms_norm crashed (SIGABRT)", "rms_norm crashed (SIGABRT)" },
    { "hang", "rms_norm did not return within 1 s", "rms_norm did not return within 1 s" },
    { "exit", "rms_norm ended the program (exit status 0)", "rms_norm ended the program (exit status 0)" },
    { "past", "touched memory past the end of y", "rms_norm wrote past the end of y" },
    { "far", "touched memory past the end of y", "touched memory past the end of y" },
    { "before", "touched memory before the start of y", "touched memory before the start of y" },
    { "just_before", "rms_norm wrote before the start of y", "rms_norm wrote before the start of y" },
    { "input", "rms_norm crashed (SIGSEGV): wrote to its input x", "wrote to its input x" },
    { "unwritten", "of y unwritten", "of y unwritten" },
    { "status", "layers.0.attn_norm: rms_norm returned status 5", "rms_norm returned status 5" },
};

/* Claim: `run` ends with 70, names the operator and what it did in one line, and writes no file. */
LOOP_TEST(run_names_the_operator, sizeof faults / sizeof faults[0])
{
    ck_assert_int_eq(
        m3ref("run " TINY " --timeout 1 --ops %s,%s --dump %s", plugin("bad_norm"), faults[_i].word, in_folder("d")),
        70);
    ck_assert(has("err", faults[_i].in_run));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(!exists("d"));
}

/* Claim: in `op` the case fails, and no mistake is named; `op --run` ends with 70. */
LOOP_TEST(op_fails_the_case, sizeof faults / sizeof faults[0])
{
    ck_assert_int_eq(m3ref("op rms_norm --timeout 1 --ops %s,%s --all --junit %s", plugin("bad_norm"), faults[_i].word,
                           in_folder("j")),
                     1);
    ck_assert(has("out", faults[_i].in_op));
    ck_assert(has("j", faults[_i].in_op));
    ck_assert(has("out", "11 fail"));
    size_t count;
    unsigned char *out = read_bytes(in_folder("out"), &count);
    ck_assert_ptr_null(strstr((char *)out, "looks like"));
    free(out);
    ck_assert_int_eq(m3ref("op rms_norm --make %s", in_folder("c")), 0);
    ck_assert_int_eq(m3ref("op rms_norm --timeout 1 --ops %s,%s --run %s %s", plugin("bad_norm"), faults[_i].word,
                           in_folder("c"), in_folder("r")),
                     70);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(!exists("r"));
}

/* Claim: the other cases of a plug-in that crashes in one are judged. */
TEST(the_rest_is_judged)
{
    ck_assert_int_eq(m3ref("op rms_norm --ops %s,crash_once --all", plugin("bad_norm")), 1);
    ck_assert(has("out", "1 fail"));
    ck_assert(has("out", "11 of 11 stages judged"));
}

/* ---- time */

/* The number after "NAME": in what was printed. */
static double printed_number(const char *text, const char *name)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(text, quoted);
    ck_assert_msg(at != NULL, "%s: not printed: %s", name, text);
    return strtod(at + strlen(quoted), NULL);
}

/* Claim: a plug-in is timed beside the reference and the limits; these follow from the operands. mtp_join of 3 rows of
 * 8: two norms read 3 x 8 and 8 numbers and write 3 x 8, and have no products; the product of 3 x 16 and 8 x 16 writes
 * 3 x 8. Limits take seconds: a slice has this test or the next one. */
TEST(perf)
{
    size_t count;
    if (!in_slice(0, 2)) return;
    ck_assert_int_eq(
        m3ref("op mtp_join --perf --ops %s --sizes T=3,H=8 --cases 1 --threads 1 --json", plugin("plain_table")), 0);
    unsigned char *out = read_bytes(in_folder("out"), &count);
    const char *text = (char *)out;
    const double bytes = printed_number(text, "bytes"), operations = printed_number(text, "operations");
    ck_assert_double_eq(bytes, 4 * (2 * (3 * 8 + 8 + 3 * 8) + 3 * 16 + 8 * 16 + 3 * 8));
    ck_assert_double_eq(operations, 2 * 3 * 8 * 16);
    ck_assert(printed_number(text, "reference_s") > 0 && printed_number(text, "plugin_s") > 0);
    const double reads = bytes / printed_number(text, "read_bytes_per_s"),
                 products = operations / printed_number(text, "sgemm_operations_per_s"),
                 limit = reads > products ? reads : products;
    ck_assert(limit > 0);
    ck_assert_double_eq_tol(printed_number(text, "limit_s"), limit, 0.001 * limit);
    free(out);
}

/* Claim: the operations of causal attention are counted: 4 x 2 x 4 x (1+2+3+4+5). */
TEST(perf_operations)
{
    if (!in_slice(1, 2)) return;
    ck_assert_int_eq(m3ref("op attend_full --perf --sizes T=5,S=5,Q=2,G=1,D=4 --cases 1 --threads 1 --json"), 0);
    ck_assert(has("out", "\"operations\":480.0"));
}

/* ---- words */

static const struct {
    const char *words, *says;
    int status;
} bad_words[] = {
    { "op route --ops LIB", "got no operator that route calls", 69 },
    { "op rms_norm --ops LIB --precision f64", "compile it with -DM3_REAL_IS_DOUBLE", 69 },
    { "op rms_norm --ops no_such.so", "no_such.so: cannot open", 69 },
    { "op rms_norm --ops LIB,start", "the start of the plug-in crashed (SIGFPE)", 1 },
    { "run " TINY " --ops LIB,start", "the start of the plug-in crashed (SIGFPE)", 70 },
    { "op rms_norm --perf --cases 1 --ops LIB,crash", "rms_norm crashed (SIGSEGV)", 70 },
    { "op route --perf --cases 1 --ops LIB", "got no operator that route calls", 69 },
    { "op rms_norm --perf --check x", "got two of", 64 },
    { "op rms_norm --ops LIB --timeout 0", "--timeout: got 0", 64 },
    { "op rms_norm --ops plain", "expected the file of a plug-in", 64 },
    { "op rms_norm --ops LIB --check -", "expected a file", 64 },
    { "op rms_norm --ops LIB --check no_such_file", "no_such_file", 66 },
    { "op rms_norm --ops LIB --sizes T=0", "T=0", 64 },
};

LOOP_TEST(words, sizeof bad_words / sizeof bad_words[0])
{
    char text[400] = "";
    const char *at = strstr(bad_words[_i].words, "LIB");
    if (at)
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - bad_words[_i].words), bad_words[_i].words,
                 plugin("bad_norm"), at + 3);
    else snprintf(text, sizeof text, "%s", bad_words[_i].words);
    const int status = m3ref("%s", text);
    ck_assert_msg(status == bad_words[_i].status, "%s: status %d", text, status);
    ck_assert(has("err", bad_words[_i].says));
    ck_assert_int_eq(error_lines(), 1);
}
