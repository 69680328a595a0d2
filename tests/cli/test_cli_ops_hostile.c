/* Plug-ins that do something to their process: `run --ops LIB` and `op NAME --ops LIB` report it by the operator's name
 * with their own status, leave no file and no process, and end in time.
 *
 * Seen to fail with: watch.c without its process group, without its wait for signals, without the look for closed files, without standard error in
 * the place of standard output, without the end of copied processes; guard.c and plugin.c that pass on every status;
 * ops.c that takes --ops-guard for nothing; arithmetic that is left as the library, or its operator, changed it. */
#include "program.h"
#include "same_tensors.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model --ids 1,2,3"

static const char *plugin(const char *name)
{
    static char path[300];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "./%s/tests/%s", build ? build : "build", name);
    return path;
}

static const struct {
    const char *plugin, *says;
    int lines; /* on standard error */
} faults[] = {
    { "worse_norm.so,end", "rms_norm ended the program (exit status 3)", 1 },
    { "worse_norm.so,thread", "rms_norm ended the program (exit status 0)", 1 },
    { "worse_norm.so,jump", "rms_norm crashed (SIGSEGV)", 1 },
    { "worse_norm.so,spin", "rms_norm did not return within 1 s", 1 },
    { "worse_norm.so,byte", "touched memory past the end of y", 1 },
    { "worse_norm.so,close", "rms_norm closed standard output or standard error", 1 },
    { "worse_norm.so,close_and_crash", "rms_norm crashed (SIGABRT)", 1 },
    { "worse_norm.so,handler", "rms_norm ended the program (exit status 0)", 1 },
    { "worse_norm.so,deaf", "rms_norm did not return within 1 s", 1 },
    { "worse_norm.so,group", "rms_norm crashed (Terminated)", 1 },
    { "worse_norm.so,up", "rms_norm left the processor with another rounding", 1 },
    { "worse_norm.so,down", "rms_norm left the processor with another rounding", 1 },
    { "worse_norm.so,truncate", "rms_norm left the processor with another rounding", 1 },
    { "worse_norm.so,flush", "rms_norm left the processor with another rounding", 1 },
    { "worse_norm.so,trap", "rms_norm left the processor with another rounding", 1 },
    { "worse_norm.so,status1", "rms_norm returned status 1", 1 },
    { "worse_norm.so,status2", "rms_norm returned status 2", 1 },
    { "worse_norm.so,status3", "rms_norm returned status 3", 1 },
    { "worse_norm.so,status65", "rms_norm returned status 65", 1 },
    { "worse_norm.so,status69", "rms_norm returned status 69", 1 },
    { "worse_norm.so,status256", "rms_norm returned status 256", 1 },
    { "worse_norm.so,status-1", "rms_norm returned status -1", 1 },
    { "throwing_norm.so", "rms_norm crashed (SIGABRT)", 2 }, /* the first is the C++ library's */
};

/* Claim: status 70, a line that names the operator, and no dump, within the time limit. */
LOOP_TEST(run_names_the_operator, sizeof faults / sizeof faults[0])
{
    ck_assert_int_eq(m3ref("run " TINY " --timeout 1 --ops %s --dump %s", plugin(faults[_i].plugin), in_folder("d")),
                     70);
    ck_assert(has("err", faults[_i].says));
    ck_assert_int_eq(error_lines(), faults[_i].lines);
    ck_assert_int_eq(entries(), 2); /* out and err */
}

/* Claim: the case fails with the same words. */
LOOP_TEST(op_fails_the_case, sizeof faults / sizeof faults[0])
{
    ck_assert_int_eq(m3ref("op rms_norm --cases 1 --timeout 1 --ops %s --all", plugin(faults[_i].plugin)), 1);
    ck_assert(has("out", faults[_i].says));
    ck_assert(has("out", " fail"));
}

/* Claim: what a plug-in prints does not reach standard output, which a program may read. */
TEST(prints)
{
    size_t count;
    ck_assert_int_eq(m3ref("generate " TINY " --max-new 2 --json --ops %s", plugin("worse_norm.so,print")), 0);
    unsigned char *got = read_bytes(in_folder("out"), &count);
    ck_assert_ptr_null(strstr((char *)got, "aaaa"));
    ck_assert_ptr_nonnull(strstr((char *)got, "{\"type\":\"summary\",\"tokens\":2}"));
    free(got);
    unsigned char *err = read_bytes(in_folder("err"), &count);
    ck_assert_uint_ge(count, 2 << 20);
    free(err);
}

/* Runs with the output in a pipe, whose reader sees its end only when no process holds it any more. */
static int run_in_pipe(const char *before, const char *word)
{
    char command[900];
    const char *build = getenv("BUILD");
    snprintf(command, sizeof command,
             "{ %s %s/m3ref run " TINY " --ops %s --dump %s; echo status $?; } 2>&1 | timeout 60 cat >%s", before,
             build ? build : "build", plugin(word), in_folder("d"), in_folder("out"));
    const int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Claim: processes that a plug-in leaves behind end with the program, and copies of it do not go on with its work. */
TEST(forks)
{
    static const char *const words[] = { "worse_norm.so,stay", "worse_norm.so,fork" };
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(run_in_pipe("", words[i]), 0);
        ck_assert(has("out", "status 0"));
        size_t count;
        unsigned char *out = read_bytes(in_folder("out"), &count);
        char *first = strstr((char *)out, "next tokens: ");
        ck_assert_ptr_nonnull(first);
        ck_assert_ptr_null(strstr(first + 1, "next tokens: "));
        free(out);
        ck_assert_int_eq(entries(), 2); /* out, d */
    }
}

/* Claim: they end too when a signal ends the program (124: `timeout` sent it), as Ctrl-C does; nohup's is ignored. */
TEST(is_stopped)
{
    static const char *const signals[] = { "timeout --foreground -s TERM 1", "timeout --foreground -s INT 1",
                                           "timeout --foreground -s HUP 1" };
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        ck_assert_int_eq(run_in_pipe(signals[i], "worse_norm.so,stay_and_hang"), 0);
        ck_assert(has("out", "status 124"));
        ck_assert(!has("out", "next tokens"));
    }
    ck_assert_int_eq(run_in_pipe("sh -c 'trap \"\" HUP; \"$@\" & sleep 0.7; kill -HUP $!; wait $!' --",
                                 "worse_norm.so,stay_and_hang --timeout 2"),
                     0);
    ck_assert(has("out", "status 70") && has("out", "rms_norm did not return within 2 s"));
}

/* Claim: how a library leaves the processor's arithmetic when it is loaded changes no result. */
TEST(loads)
{
    ck_assert_int_eq(m3ref("run " TINY " --dump %s", in_folder("a")), 0);
    ck_assert_int_eq(m3ref("run " TINY " --ops %s --dump %s", plugin("worse_norm.so,none"), in_folder("b")), 0);
    same_tensors(in_folder("a"), in_folder("b"));
}

/* Claim: a plug-in that does not start has no say about files and results either. */
TEST(start)
{
    static const struct {
        const char *word;
        int status;
    } all[] = { { "start1", 69 }, { "start2", 69 }, { "start65", 69 }, { "start64", 64 }, { "start70", 70 } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[60];
        snprintf(name, sizeof name, "worse_norm.so,%s", all[i].word);
        ck_assert_int_eq(m3ref("run " TINY " --ops %s", plugin(name)), all[i].status);
        ck_assert(has("err", "the plug-in did not start: got status"));
        ck_assert_int_eq(error_lines(), 1);
    }
}

/* Claim: --ops-guard watches the library of `make cuda` like any other; without it, it ends the program itself. Alone
 * it guards nothing, and says so. */
TEST(ops_guard)
{
    static const char *const options[] = { "--ops cuda,end", "--ops cuda,end --ops-guard" };
    static const int statuses[] = { 3, 70 };
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    for (int i = 0; i < 2; i++) {
        char command[1400];
        snprintf(command, sizeof command,
                 "cp %s/m3ref %s/m3ref && cp %s %s/libm3ref_cuda.so && %s/m3ref run " TINY " %s >/dev/null 2>%s", build,
                 folder, plugin("worse_norm.so"), folder, folder, options[i], in_folder("err"));
        const int status = system(command);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), statuses[i]);
    }
    ck_assert(has("err", "cuda,end: rms_norm ended the program (exit status 3)"));
    ck_assert_int_eq(m3ref("run " TINY " --ops-guard"), 64);
    ck_assert(has("err", "--ops-guard: expected --ops LIB"));
    ck_assert_int_eq(m3ref("op rms_norm --cases 1 --ops-guard --ops %s", plugin("plain_table.so")), 0);
    ck_assert_int_eq(m3ref("generate " TINY " --max-new 1 --ops-guard --ops %s", plugin("plain_table.so")), 0);
}
