/* Ids from a file and from standard input, and the text that is shown beside ids.
 *
 * Runs $BUILD/m3ref (build/m3ref) in the repository's root. */
#include "program.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model"

/* The last line of out, to be freed with *text. */
static const char *last_line(char **text)
{
    size_t size;
    *text = (char *)read_bytes(in_folder("out"), &size);
    ck_assert_uint_gt(size, 0);
    (*text)[size - 1] = '\0';
    const char *line = strrchr(*text, '\n');
    return line ? line + 1 : *text;
}

/* The same ids give the same line, wherever they come from and whatever separates them.
 * Seen to fail with the first id of a file left out, and with <image> taken for <video>. */
TEST(sources)
{
    static const char *const texts[] = { "5,17,200,3", "5 17 200 3\n", "\n 5 ,\t17,\r\n200\n\n3 ", "5,17,<image>,3" };
    char *want, *got;
    ck_assert_int_eq(m3ref("run " TINY " --ids '5,17,<image>,3' --image golden/photo.png"), 0);
    const char *line = last_line(&want);
    ck_assert_int_eq(strncmp(line, "next tokens: ", 13), 0);
    for (int i = 0; i < 4; i++)
        for (int standard = 0; standard < 2; standard++) {
            write_text(in_folder("ids"), texts[i]);
            ck_assert_int_eq(
                m3ref("run " TINY " --image golden/photo.png --ids %s%s", standard ? "- <" : "@", in_folder("ids")), 0);
            ck_assert_str_eq(last_line(&got), line);
            free(got);
        }
    free(want);
}

/* What the plan of a check says, in GB. */
static double planned_memory(const char *profile)
{
    size_t bytes;
    double memory = 0;
    const int status = m3ref("check " TINY " golden/tiny/golden.safetensors.gz --plan --ids @%s --profile %s",
                             in_folder("ids"), profile);
    ck_assert_int_eq(status, 0);
    char *out = (char *)read_bytes(in_folder("out"), &bytes);
    const char *at = strstr(out, "memory: about ");
    ck_assert(at && sscanf(at, "memory: about %lf", &memory) == 1);
    free(out);
    return memory;
}

/* 100,000 ids: the plan counts them, its memory does not grow with T x T, and a wrong one at the end is found at its place.
 * A cache takes 448 numbers for each token besides, 4 bytes each; a profile of coarse numbers 16 arrays of 2^20 doubles.
 * Seen to fail without the latter, with a reader that stops after 65,536 bytes, with the block scores of all rows in the plan, and without the
 * cache in it. */
TEST(many)
{
    enum { COUNT = 100000 };
    FILE *file = fopen(in_folder("ids"), "w");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < COUNT; i++) fprintf(file, "%d\n", i % 200);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(m3ref("generate " TINY " --plan --max-new 1 --ids @%s", in_folder("ids")), 0);
    ck_assert(has("out", "100000") || has("out", "100,000"));
    ck_assert(has("out", "memory: about 0."));
    ck_assert_int_eq(m3ref("run " TINY " --plan --ids @%s", in_folder("ids")), 0);
    ck_assert(has("out", "memory: about 0.63 GB"));
    ck_assert_int_eq(m3ref("run " TINY " --plan --ids @%s --cache-out %s", in_folder("ids"), in_folder("cache")), 0);
    ck_assert(has("out", "memory: about 0.81 GB"));
    ck_assert_double_eq_tol(planned_memory("bf16") - planned_memory("fp32"), 0.134, 0.011);
    file = fopen(in_folder("ids"), "a");
    fprintf(file, "211\n");
    fclose(file);
    ck_assert_int_eq(m3ref("run " TINY " --ids - <%s", in_folder("ids")), 65);
    ck_assert(has("err", "standard input: token 100000: got id 211, expected 0 to 210"));
}

static const struct {
    const char *text, *message;
} bad[] = {
    { "", "got no ids" },
    { " \n", "got no ids" },
    { "1,2,,3", "id 2: got ,3" },
    { "1,2,\n", "id 2: got the end" },
    { ",1", "id 0: got ,1" },
    { "1 x 3\n", "id 1: got x, expected numbers, <image>, <video> separated by commas or white space" },
    { "1;2", "id 0: got 1;2" },
    { "1\x1B[31m", "id 0: got 1?[31m" },
    { "<image><image>", "id 0: got <image><image>" },
    { "99999999999999999999", "id 0" },
    { "1 -1", "got id -1" },
    { "1,2.5", "id 1: got 2.5" },
};

/* One line, with the place, and status 65. Seen to fail with a comma at the end allowed, and with status 64. */
LOOP_TEST(bad_ids, sizeof bad / sizeof *bad)
{
    write_text(in_folder("ids"), bad[_i].text);
    ck_assert_int_eq(m3ref("run " TINY " --ids @%s", in_folder("ids")), 65);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", in_folder("ids")));
    ck_assert(has("err", bad[_i].message));
    ck_assert_int_eq(m3ref("generate " TINY " --ids - <%s", in_folder("ids")), 65);
    ck_assert(has("err", "standard input: "));
}

TEST(bad_files)
{
    write_bytes(in_folder("ids"),
                "1,\0"
                "2",
                4);
    ck_assert_int_eq(m3ref("run " TINY " --ids @%s", in_folder("ids")), 65);
    ck_assert(has("err", "a byte of 0"));
    ck_assert_int_eq(m3ref("run " TINY " --ids @%s", in_folder("none")), 66);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert_int_eq(m3ref("run " TINY " --ids @"), 66);
    ck_assert_int_eq(m3ref("run " TINY " --ids @%s", folder), 65);
    ck_assert_int_eq(m3ref("run " TINY " --chat %s", in_folder("none")), 66);
    ck_assert_int_eq(m3ref("run " TINY " --prompt a --chat %s", in_folder("ids")), 64);
    ck_assert_int_eq(m3ref("run " TINY " --prompt a --ids 1"), 64);
    ck_assert(has("err", "got 2 of --case, --ids, --prompt and --chat, expected one"));
}

/* The file is an input: no output replaces it. Seen to fail without it in cli/paths.c. */
TEST(kept)
{
    write_text(in_folder("ids"), "1,2,3");
    ck_assert_int_eq(m3ref("run " TINY " --ids @%s --dump %s", in_folder("ids"), in_folder("ids")), 64);
    ck_assert_int_eq(m3ref("run " TINY " --ids - --dump %s <%s", in_folder("ids"), in_folder("ids")), 64);
    ck_assert(has("ids", "1,2,3"));
}

/* Without Python, or without the package, --prompt is refused by name, in one line. */
TEST(no_python)
{
    const char *build = getenv("BUILD");
    char command[1000];
    snprintf(command, sizeof command, "PATH=%s %s/m3ref run " TINY " --prompt a >%s 2>%s", folder,
             build ? build : "build", in_folder("out"), in_folder("err"));
    int status = system(command);
    ck_assert_int_eq(WEXITSTATUS(status), 69);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", "python3: got no such program, expected the Python package m3ref"));
    write_text(in_folder("python3"), "#!/bin/sh\necho one >&2\necho No module named m3ref >&2\nexit 1\n");
    ck_assert_int_eq(chmod(in_folder("python3"), 0700), 0);
    status = system(command);
    ck_assert_int_eq(WEXITSTATUS(status), 69);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", "got No module named m3ref, expected the Python package m3ref"));
}

/* What stands in for Python gets the text as it is, and what it answers are the ids; its errors keep their status.
 * Seen to fail with the text as an argument, with every error as 69, and with PYTHONSAFEPATH twice. */
TEST(stand_in)
{
    const char *build = getenv("BUILD");
    char command[1400];
    snprintf(command, sizeof command,
             "PATH=%s:$PATH %s/m3ref run " TINY " --prompt \"a 'b' \\$c\" --linear ordered >%s 2>%s", folder,
             build ? build : "build", in_folder("out"), in_folder("err"));
    char script[700];
    snprintf(script, sizeof script, "#!/bin/sh\ncat >%s/text\necho \"$@\" >%s/words\necho 1,2,3\n", folder, folder);
    write_text(in_folder("python3"), script);
    ck_assert_int_eq(chmod(in_folder("python3"), 0700), 0);
    ck_assert_int_eq(WEXITSTATUS(system(command)), 0);
    ck_assert(has("text", "a 'b' $c"));
    ck_assert(has("words", "-m m3ref.text encode " TINY "\n"));
    size_t length;
    char *got, *want;
    const char *line = last_line(&got);
    ck_assert_int_eq(m3ref("run " TINY " --ids 1,2,3 --linear ordered"), 0);
    ck_assert_str_eq(line, last_line(&want));
    free(got);
    free(want);
    static const int statuses[] = { 64, 65, 66, 69, 74 };
    for (int i = 0; i < 5; i++) {
        snprintf(script, sizeof script, "#!/bin/sh\necho m3ref: because >&2\nexit %d\n", statuses[i]);
        write_text(in_folder("python3"), script);
        ck_assert_int_eq(WEXITSTATUS(system(command)), statuses[i]);
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(has("err", "m3ref: because\n"));
    }
    snprintf(script, sizeof script,
             "#!/bin/sh\ntr '\\0' '\\n' </proc/$$/environ | grep ^PYTHONSAFEPATH >%s/safe\necho 1\n", folder);
    write_text(in_folder("python3"), script);
    ck_assert_int_eq(setenv("PYTHONSAFEPATH", "", 1), 0);
    ck_assert_int_eq(WEXITSTATUS(system(command)), 0);
    char *safe = (char *)read_bytes(in_folder("safe"), &length);
    ck_assert_uint_eq(length, sizeof "PYTHONSAFEPATH=1");
    ck_assert_int_eq(memcmp(safe, "PYTHONSAFEPATH=1\n", length), 0);
    free(safe);
    write_text(in_folder("python3"), "#!/bin/sh\nkill -9 $$\n");
    ck_assert_int_eq(WEXITSTATUS(system(command)), 69);
    ck_assert(has("err", "was ended by signal 9"));
}

/* The text of each token stands at the end of its line, the whole text in the last one; in JSON beside the id.
 * Seen to fail with the text of the next id, with controls as they are, and without the last line. */
TEST(texts)
{
    char json[8000] = "{\"model\": {\"vocab\": {", *text;
    copy_tiny();
    for (int i = 0; i < 211; i++) sprintf(json + strlen(json), "%s\"w%d<\\u001b\\\"\": %d", i ? ", " : "", i, i);
    strcat(json, "}}}");
    ck_assert_int_eq(m3ref("generate %s --ids 1,2,3 --max-new 2 --json", in_folder("model")), 0);
    ck_assert(has("out", ",\"text\":null,"));
    ck_assert_int_eq(m3ref("generate %s --ids 1,2,3 --max-new 2", in_folder("model")), 0);
    int first, second;
    ck_assert_int_eq(sscanf(last_line(&text), "tokens: %d,%d", &first, &second), 2);
    free(text);

    char want[200];
    write_text(in_folder("model/tokenizer.json"), json);
    ck_assert_int_eq(m3ref("generate %s --ids 1,2,3 --max-new 2", in_folder("model")), 0);
    snprintf(want, sizeof want, "text: \"w%d<\\x1b\\\"w%d<\\x1b\\\"\"", first, second);
    ck_assert_str_eq(last_line(&text), want);
    free(text);
    snprintf(want, sizeof want, "  \"w%d<\\x1b\\\"\"\n", second);
    ck_assert(has("out", want));
    ck_assert_int_eq(m3ref("generate %s --ids 1,2,3 --max-new 2 --json", in_folder("model")), 0);
    snprintf(want, sizeof want, "\"id\":%d,\"text\":\"w%d<\\u001B\\\"\",", second, second);
    ck_assert(has("out", want));
    ck_assert_int_eq(m3ref("run %s --ids 1,2,3", in_folder("model")), 0);
    snprintf(want, sizeof want, "next tokens: %d \"w%d<\\x1b\\\"\" (", first, first);
    ck_assert(has("out", want));

    write_text(in_folder("model/tokenizer.json"), "{");
    ck_assert_int_eq(m3ref("run %s --ids 1,2,3", in_folder("model")), 0);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", "tokens are shown without their text"));
    snprintf(want, sizeof want, "next tokens: %d (", first);
    ck_assert(has("out", want));
}
