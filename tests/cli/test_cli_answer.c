/* `m3ref check` of servers' answers, and `m3ref prompt`.
 *
 * Seen to fail with: rows of the logits shifted by one; the nearest run taken over none; the generated tokens never
 * judged; a temperature that is not undone; a prompt that keeps the first draw of each part. */
#include "program.h"

#define TINY "golden/tiny/model"
#define ANSWER "tests/candidates/answer_"
#define IDS                                                                                                            \
    "--ids 31,42,107,152,71,78,98,154,14,100,174,66,205,83,63,138,98,18,135,52,182,42,173,210,196,133,116,132,168,11," \
    "199,3,202,141,110,116,182,20,198,122"

static int last_line_has(const char *text)
{
    size_t count;
    unsigned char *out = read_bytes(in_folder("out"), &count);
    while (count > 0 && out[count - 1] == '\n') out[--count] = '\0';
    const char *line = strrchr((char *)out, '\n');
    line = line ? line + 1 : (char *)out;
    const int found = strstr(line, text) != NULL;
    if (!found) fprintf(stderr, "the last line lacks \"%s\": %s\n", text, line);
    free(out);
    return found;
}

/* Claim: the answers of the public PyTorch code in bf16 pass, whatever their form, with the tokens it chose. */
static const char *const honest[] = { "vllm", "llama_cpp" };

START_TEST(public_code)
{
    ck_assert_int_eq(
        m3ref("check " TINY " " ANSWER "%s.json " IDS " --profile bf16 --temperature 0 --no-causes", honest[_i]), 0);
    ck_assert(last_line_has("pass: Nothing is wrong in " ANSWER));
    ck_assert(last_line_has("allow its 20 generated tokens"));
}
END_TEST

/* Claim: the same model without SwiGLU's + 1 is wrong from the first position on, and the mistake is named. */
START_TEST(without_plus_one)
{
    ck_assert_int_eq(m3ref("check " TINY " " ANSWER "vllm_without_plus_one.json --profile bf16 --row-runs 16 --json"),
                     1);
    ck_assert(last_line_has("\"verdict\":\"fail\""));
    ck_assert(last_line_has("\"first_position\":1,"));
    ck_assert(last_line_has("\"mistake\":\"act.no_plus_one\""));
    ck_assert(last_line_has("\"judged\":39,"));
    ck_assert(has("out", "\"type\":\"position\",\"position\":1,"));
}
END_TEST

/* Claim: greedy tokens of the wrong model are not allowed, and the first is named; those that were drawn are allowed at
 * the temperature at which they were drawn, not as greedy ones. */
START_TEST(generations)
{
    ck_assert_int_eq(m3ref("check " TINY " " ANSWER "plain.json --profile bf16 --row-runs 8"), 0);
    ck_assert_int_eq(m3ref("check " TINY " " ANSWER "plain_without_plus_one.json --profile bf16 --row-runs 8"), 1);
    ck_assert(last_line_has("The first is token"));
    ck_assert_int_eq(m3ref("check " TINY " " ANSWER "sampled.json --profile bf16 --row-runs 8 --temperature 1"), 0);
    ck_assert(has("out", "likelihood z"));
    ck_assert_int_eq(m3ref("check " TINY " " ANSWER "sampled.json --profile bf16 --row-runs 8"), 1);
    ck_assert_int_eq(
        m3ref("check " TINY " " ANSWER "sampled.json --profile bf16 --row-runs 8 --temperature 1 --top-k 2"), 1);
}
END_TEST

/* A vLLM answer with the log-probabilities multiplied and shifted: at a temperature, without its normalisation. */
static void change_answer(const char *to, double scale, double shift)
{
    char line[1024];
    snprintf(line, sizeof line,
             "python3 -c \"import json; a = json.load(open('" ANSWER "vllm.json')); "
             "[e.update(logprob=e['logprob'] * %g + %g) for p in a['choices'][0]['prompt_logprobs'][1:] "
             "for e in p.values()]; json.dump(a, open('%s', 'w'))\"",
             scale, shift, to);
    ck_assert_int_eq(system(line), 0);
}

START_TEST(small_changes)
{
    change_answer(in_folder("shifted.json"), 1, -0.2);
    ck_assert_int_eq(m3ref("check " TINY " %s --profile bf16 --no-causes --row-runs 8", in_folder("shifted.json")), 1);
}
END_TEST

static const struct {
    const char *words, *says;
    int status;
} bad[] = {
    { "check " TINY " " ANSWER "openai.json " IDS, "return_tokens_as_token_ids", 65 },
    { "check " TINY " " ANSWER "llama_cpp_old.json " IDS, "too old", 65 },
    { "check " TINY " " ANSWER "llama_cpp.json", "expected one of them", 64 },
    { "check " TINY " " ANSWER "vllm_chat.json", "position 0", 64 },
    { "check " TINY " " ANSWER "vllm.json --ids 1,2,3", "got a prompt of 40 tokens, expected the 3 of --ids", 65 },
    { "check " TINY " " ANSWER "vllm.json --map vllm", "--map", 64 },
    { "check " TINY " " ANSWER "vllm.json --truth t", "--truth", 64 },
    { "check " TINY " " ANSWER "vllm.json --processed", "--processed", 64 },
    { "check " TINY " " ANSWER "vllm.json --top-k 3", "--top-k", 64 },
    { "check " TINY " " ANSWER "vllm.json --row-runs 0", "--row-runs", 64 },
    { "check " TINY " " ANSWER "vllm.json --row-runs 1", "--row-runs", 64 },
    { "check " TINY " " ANSWER "vllm.json --profile none", "none", 66 },
    { "check " TINY " no_such_answer.json " IDS, "no_such_answer.json", 66 },
    { "check " TINY " golden/tiny/golden.safetensors.gz --case golden/tiny/case.safetensors --temperature 1",
      "expected a server's answer", 64 },
    { "prompt " TINY " --tokens 15", "--tokens", 64 },
    { "prompt " TINY " --out list.txt", "--out", 64 },
    { "prompt " TINY " --selection --tokens 16 --seed x", "--seed", 64 },
    { "prompt no_such_model", "no_such_model", 66 },
};

START_TEST(bad_words)
{
    const int status = m3ref("%s", bad[_i].words);
    ck_assert_msg(status == bad[_i].status, "%s: status %d", bad[_i].words, status);
    ck_assert(has("err", bad[_i].says));
}
END_TEST

/* Claim: a prompt is the same for the same seed, has no placeholder, is a case that the model runs, and says whether
 * it is long enough for a choice of blocks. */
START_TEST(prompt)
{
    size_t first_count, second_count;
    ck_assert_int_eq(m3ref("prompt " TINY " --tokens 32 --draws 2 --seed 7 --out %s", in_folder("p.safetensors")), 0);
    unsigned char *first = read_bytes(in_folder("out"), &first_count);
    ck_assert(has("out", "selection   20 tokens more than the chosen blocks hold (12)"));
    ck_assert(!strstr((char *)first, ",200,") && !strstr((char *)first, ",201,"));
    ck_assert_int_eq(m3ref("prompt " TINY " --tokens 32 --draws 2 --seed 7 --threads 1"), 0);
    unsigned char *second = read_bytes(in_folder("out"), &second_count);
    ck_assert(first_count == second_count && memcmp(first, second, first_count) == 0);
    ck_assert_int_eq(m3ref("run " TINY " --case %s", in_folder("p.safetensors")), 0);
    ck_assert_int_eq(m3ref("prompt " TINY " --tokens 32 --draws 2 --seed 8"), 0);
    unsigned char *other = read_bytes(in_folder("out"), &second_count);
    ck_assert(first_count != second_count || memcmp(first, other, first_count) != 0);
    ck_assert_int_eq(m3ref("prompt golden/block128/model --tokens 16 --draws 1 --json --out %s", in_folder("p.json")),
                     0);
    ck_assert(has("out", "\"beyond_selection\":0"));
    ck_assert(has("p.json", "\"prompt_ids\":["));
    free(first);
    free(second);
    free(other);
}
END_TEST

Suite *m3_suite(void)
{
    Suite *s = suite_create("cli_answer");
    TCase *t = tcase_create("cli_answer");
    suite_add_tcase(s, t);
    tcase_set_timeout(t, 240);
    tcase_add_checked_fixture(t, make_folder, remove_folder);
    tcase_add_loop_test(t, public_code, 0, sizeof honest / sizeof *honest);
    tcase_add_test(t, without_plus_one);
    tcase_add_test(t, generations);
    tcase_add_test(t, small_changes);
    tcase_add_loop_test(t, bad_words, 0, sizeof bad / sizeof bad[0]);
    tcase_add_test(t, prompt);
    return s;
}
