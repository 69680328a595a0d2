/* JSON loses nothing: if an allocation of jansson fails, a command ends with 70 and leaves no file.
 *
 * Goal:  for every allocation of jansson that fails, alone: exit status 70 and no new file, or every byte as without.
 * Given: commands in this process, each run in a child whose n-th allocation of jansson gives NULL; a sample of
 *        all n, and the last ones, which are those of what is written.
 * Seen to fail with the program before failures were noted (a dump with a name missing in its header, verdicts and
 * reports with a stage missing, status 0; messages about a complete config), with m3_json_failed that returns 0,
 * with it left out of m3_new_file_commit, and of m3_cli_end. */
#include "files.h"
#include "slice.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "cli/cli.h"
#include "io/json.h"
#include "io/new_file.h"

#define CASE "--case golden/tiny/case.safetensors --threads 1 "
#define RUN "run golden/tiny/model " CASE
#define TAPS "--taps layers.2.*,layers.3.*,logits "
enum { MOST_WORDS = 24, MOST_FILES = 4 };

static const struct job {
    int (*command)(int argc, char **argv);
    const char *words;             /* @ is the folder */
    const char *files[MOST_FILES]; /* that it writes */
    int prints;                    /* what it prints does not differ from run to run */
    long sample;                   /* of the allocations */
} jobs[] = {
    { m3_cli_estimate, "estimate golden/configs/minimax-m3.json --gpu h200 --json", { NULL }, 1, 400 },
    { m3_cli_estimate, "estimate golden/configs/minimax-m3.json --context 4K --chart @/a.svg", { "a.svg" }, 1, 30 },
    { m3_cli_run, RUN "--dump @/new --companions @/comp --cache-out @/cache", { "new", "comp", "cache" }, 0, 30 },
    { m3_cli_compare, "compare @/t @/d --json", { NULL }, 1, 40 },
    { m3_cli_compare,
      "compare @/t @/d --html @/a.html --junit @/a.xml --ledger @/a.jsonl",
      { "a.html", "a.xml", "a.jsonl" },
      1,
      40 },
    { m3_cli_blame, "blame golden/tiny/model @/d " CASE "--json", { NULL }, 1, 25 },
    { m3_cli_generate, "generate golden/mtp/model --ids 1,2,3 --max-new 3 --speculative --json", { NULL }, 0, 25 },
    { m3_cli_inspect, "inspect @/d --json", { NULL }, 1, 25 },
};

static long *calls, fails_at; /* calls: shared with the children */

static void *failing(size_t bytes) { return ++*calls == fails_at ? NULL : malloc(bytes); }

/* Runs the command in a child; its n-th allocation fails. */
static int run(const struct job *job, long n)
{
    *calls = 0;
    pid_t child = fork();
    if (child == 0) {
        char text[600], *words[MOST_WORDS + 1] = { NULL };
        int count = 0;
        with_folder(text, job->words);
        for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[count++] = word;
        fails_at = n;
        json_set_alloc_funcs(failing, free);
        m3_json_watch();
        if (!freopen(in_folder("out"), "w", stdout) || !freopen(in_folder("err"), "w", stderr)) _exit(99);
        exit(job->command(count, words));
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "%s: allocation %ld fails: ended by a signal", job->words, n);
    return WEXITSTATUS(status);
}

/* Is the file equal to the one written without a failure? */
static int is_whole(const char *name, const char *whole)
{
    size_t got_count, want_count;
    unsigned char *got = read_bytes(in_folder(name), &got_count), *want = read_bytes(in_folder(whole), &want_count);
    int equal = got_count == want_count && memcmp(got, want, want_count) == 0;
    free(got);
    free(want);
    return equal;
}

static void fail_one(const struct job *job, long n, int clean)
{
    char whole[80];
    int status = run(job, n);
    ck_assert_msg(status == 70 || status == clean, "%s: allocation %ld fails: status %d", job->words, n, status);
    for (int f = 0; f < MOST_FILES && job->files[f]; f++) {
        snprintf(whole, sizeof whole, "%s.whole", job->files[f]);
        int made = access(in_folder(job->files[f]), F_OK) == 0;
        ck_assert_msg(made == (status == clean), "%s: allocation %ld fails: status %d, file %s", job->words, n, status,
                      made ? "made" : "missing");
        ck_assert_msg(!made || is_whole(job->files[f], whole), "%s: allocation %ld: %s differs", job->words, n, whole);
        if (made) remove(in_folder(job->files[f]));
    }
    ck_assert_msg(status == 70 || !job->prints || is_whole("out", "out.whole"), "%s: allocation %ld fails: prints less",
                  job->words, n);
}

static void setup(void)
{
    static const struct job dump = { m3_cli_run, RUN TAPS "--dump @/d", { NULL }, 0, 0 };
    static const struct job truth = { m3_cli_run, RUN TAPS "--precision f64 --bounds --dump @/t", { NULL }, 0, 0 };
    make_folder();
    calls = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(calls != MAP_FAILED);
    ck_assert_int_eq(run(&dump, 0), 0);
    ck_assert_int_eq(run(&truth, 0), 0);
}

TIMEOUT(120);
FIXTURE(setup, remove_folder);

LOOP_TEST(one_allocation_fails, sizeof jobs / sizeof *jobs)
{
    const struct job *job = &jobs[_i];
    enum { LAST = 20 };
    char whole[80];
    int clean = run(job, 0);
    const long total = *calls;
    ck_assert_int_lt(clean, 64);
    ck_assert_int_gt(total, 100);
    rename(in_folder("out"), in_folder("out.whole"));
    for (int f = 0; f < MOST_FILES && job->files[f]; f++) {
        snprintf(whole, sizeof whole, "%s.whole", job->files[f]);
        ck_assert_int_eq(rename(in_folder(job->files[f]), in_folder(whole)), 0);
    }
    for (long n = 1; n <= total; n++) {
        const long draw = n * job->sample / total;
        const int is_last = n > total - LAST && in_slice(n, 2);
        if (is_last || (draw != (n - 1) * job->sample / total && in_slice(draw, 10))) fail_one(job, n, clean);
    }
}

FIXTURE(make_folder, remove_folder);

/* ---- reading */

TEST(reads)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        { "{\"a\": 1", "bad.json: line 1, column 7: " },
        { "{\"a\": 1,\n\"a\": 2}", "bad.json: line 2, column 3: " },
        { "", "bad.json: line 1, column 0: " },
        { "{} {}", "bad.json: line 1, column 4: end of file expected" },
    };
    json_t *root;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct m3_error error = { 0 };
        write_text(in_folder("bad.json"), bad[i].text);
        ck_assert_int_eq(m3_json_load(&root, in_folder("bad.json"), &error), M3_BAD_INPUT);
        ck_assert_ptr_null(root);
        ck_assert_msg(strstr(error.text, bad[i].words) != NULL, "%s", error.text);
        m3_error_free(&error);
        ck_assert_int_eq(m3_json_parse(&root, bad[i].text, strlen(bad[i].text), "bad.json", &error), M3_BAD_INPUT);
        ck_assert_msg(strstr(error.text, bad[i].words) == error.text, "%s", error.text);
        m3_error_free(&error);
    }
    ck_assert_int_eq(m3_json_load(&root, in_folder("none.json"), NULL), M3_ABSENT);
    ck_assert_int_eq(m3_json_parse(&root, "[6144]", 6, "good", NULL), M3_OK);
    ck_assert_int_eq(json_integer_value(json_array_get(root, 0)), 6144);
    json_decref(root);
    ck_assert(m3_is_json_path("./fp32") && m3_is_json_path("a.json") && m3_is_json_path("/a"));
    ck_assert(!m3_is_json_path("fp32") && !m3_is_json_path(".json") && !m3_is_json_path("a.jsonl"));
}

/* A value that could not be made is noted where it is put, and no file is committed; a new watch forgets it. */
TEST(notes_what_is_missing)
{
    json_t *object = json_object(), *list = json_array();
    struct m3_error error = { 0 };
    m3_json_set(object, "a", json_integer(1));
    m3_json_append(list, json_null());
    m3_json_update(object, json_pack("{s:i}", "b", 2));
    ck_assert(!m3_json_failed());
    ck_assert_int_eq(json_object_size(object), 2);
    for (int i = 0; i < 3; i++) {
        if (i == 0) m3_json_set(object, "c", NULL);
        else if (i == 1) m3_json_append(list, NULL);
        else m3_json_update(object, NULL);
        ck_assert(m3_json_failed());
        json_t *root;
        ck_assert_int_eq(m3_json_parse(&root, "[]", 2, "good", &error), M3_INTERNAL);
        ck_assert_int_eq(m3_json_line(stdout, json_object(), NULL), M3_INTERNAL);
        ck_assert_int_eq(m3_new_file_write(in_folder("new"), "words", 5, NULL), M3_INTERNAL);
        ck_assert_int_eq(file_count(), 0);
        m3_json_watch();
        ck_assert(!m3_json_failed());
    }
    m3_error_free(&error);
    json_decref(object);
    json_decref(list);
}
