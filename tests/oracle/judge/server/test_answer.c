/* What servers answer, read: every form gives the same numbers, and what is no answer is refused by name.
 *
 * Seen to fail with: probabilities taken for log-probabilities; a token that is twice in a position; an id of V
 * accepted; an echoed prompt left among the generated tokens, with and without ids beside it; llama.cpp's positions
 * counted without those that it leaves out, or taken from the left only. */
#include "files.h"

#include <math.h>

#include "oracle/judge/server/answer.h"

FIXTURE(make_folder, remove_folder);

#define CANDIDATES "tests/candidates/answer_"
enum { V = 211, PROMPT = 40, NEW = 20 };

static struct m3_answer answer_of(const char *form)
{
    char path[256];
    struct m3_answer a;
    struct m3_error error = { 0 };
    snprintf(path, sizeof path, CANDIDATES "%s.json", form);
    const int status = m3_answer_read(&a, path, V, &error);
    ck_assert_msg(status == M3_OK, "%s: %s", form, error.text ? error.text : "");
    return a;
}

/* The place of a token in the answer; NULL: none. */
static const struct m3_answer_place *place_of(const struct m3_answer *a, int generated, int64_t place)
{
    for (int64_t i = 0; i < a->count; i++)
        if (a->places[i].generated == generated && a->places[i].place == place) return &a->places[i];
    return NULL;
}

static const struct {
    const char *form;
    int has_prompt, has_generated;
} forms[] = { { "vllm", 1, 0 },        { "vllm_echo", 1, 1 }, { "vllm_chat", 1, 1 },
              { "vllm_tokens", 0, 1 }, { "llama_cpp", 0, 1 }, { "llama_cpp_post", 0, 1 } };

/* Claim: each form gives the entries of SGLang's answer, which the same run made; ids ascending. */
LOOP_TEST(same_numbers, sizeof forms / sizeof *forms)
{
    struct m3_answer want = answer_of("sglang"), a = answer_of(forms[_i].form);
    ck_assert_int_eq(want.count, PROMPT + NEW - 1);
    ck_assert_int_eq(a.count, forms[_i].has_prompt * (PROMPT - 1) + forms[_i].has_generated * NEW);
    ck_assert_int_eq(a.missing, 0);
    for (int64_t i = 0; i < a.count; i++) {
        const struct m3_answer_place *p = &a.places[i], *w = place_of(&want, p->generated, p->place);
        ck_assert_ptr_nonnull(w);
        ck_assert_int_eq(p->chosen, w->chosen);
        ck_assert_int_eq(p->count, w->count);
        ck_assert(p->count == 20 || p->count == 21);
        ck_assert(p->listed);
        for (int64_t e = 0; e < p->count; e++) {
            ck_assert_int_eq(a.ids[p->first + e], want.ids[w->first + e]);
            ck_assert(e == 0 || a.ids[p->first + e] > a.ids[p->first + e - 1]);
            ck_assert(fabs(a.logprobs[p->first + e] - want.logprobs[w->first + e]) <= 1e-6);
        }
    }
    m3_answer_free(&a);
    m3_answer_free(&want);
}

/* Claim: the tokens are those of the plain answer, wherever the form states them. */
TEST(same_tokens)
{
    static const char *const with_prompt[] = { "vllm", "vllm_echo", "sglang" };
    static const char *const with_tokens[] = { "vllm",      "vllm_echo",      "vllm_chat", "vllm_tokens",
                                               "llama_cpp", "llama_cpp_post", "sglang" };
    struct m3_answer want = answer_of("plain");
    ck_assert_int_eq(want.prompt_count, PROMPT);
    ck_assert_int_eq(want.generated_count, NEW);
    for (size_t i = 0; i < sizeof with_tokens / sizeof *with_tokens; i++) {
        struct m3_answer a = answer_of(with_tokens[i]);
        ck_assert_msg(a.generated_count == NEW, "%s: %d", with_tokens[i], (int)a.generated_count);
        for (int64_t t = 0; t < NEW; t++) ck_assert_int_eq(a.generated[t], want.generated[t]);
        m3_answer_free(&a);
    }
    for (size_t i = 0; i < sizeof with_prompt / sizeof *with_prompt; i++) {
        struct m3_answer a = answer_of(with_prompt[i]);
        ck_assert_int_eq(a.prompt_count, PROMPT);
        for (int64_t t = 0; t < PROMPT; t++) ck_assert_int_eq(a.prompt[t], want.prompt[t]);
        ck_assert_int_eq(m3_answer_settle(&a, NULL, 0, NULL, NULL), M3_OK);
        m3_answer_free(&a);
    }
    m3_answer_free(&want);
}

/* Claim: a prompt that is not that of the answer is an error that names the position. */
TEST(other_prompt)
{
    static const char *const all[] = { "vllm", "vllm_echo", "vllm_chat", "sglang" };
    struct m3_answer plain = answer_of("plain");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct m3_answer a = answer_of(all[i]);
        struct m3_error error = { 0 };
        int32_t ids[PROMPT + 1] = { 0 };
        for (int64_t t = 0; t < PROMPT; t++) ids[t] = plain.prompt[t];
        ck_assert_int_eq(m3_answer_settle(&a, ids, PROMPT, "--ids", &error), M3_OK);
        ck_assert_int_eq(m3_answer_settle(&a, ids, PROMPT + 1, "--ids", &error), M3_BAD_INPUT);
        ck_assert_ptr_nonnull(strstr(error.text, "expected the 41 of --ids"));
        m3_error_free(&error);
        ids[0] = (ids[0] + 1) % V;
        const int first = m3_answer_settle(&a, ids, PROMPT, "--ids", NULL);
        ck_assert_int_eq(first, strcmp(all[i], "vllm_chat") == 0 ? M3_OK : M3_BAD_INPUT);
        m3_answer_free(&a);
        a = answer_of(all[i]);
        ids[0] = plain.prompt[0];
        for (int32_t id = 0; id < V; id++) {            /* a token for which position 17 has no number */
            const struct m3_answer_place *p = place_of(&a, 0, 17);
            int64_t e = p->first;
            while (e < p->first + p->count && a.ids[e] != id) e++;
            if (e == p->first + p->count) ids[17] = id;
        }
        ck_assert_int_eq(m3_answer_settle(&a, ids, PROMPT, "--ids", &error), M3_BAD_INPUT);
        ck_assert_msg(strstr(error.text, "position 17") != NULL, "%s", error.text);
        m3_error_free(&error);
        m3_answer_free(&a);
    }
    m3_answer_free(&plain);
}

#define CHAT(items) "{\"choices\":[{\"logprobs\":{\"content\":[" items "]}}]}"
#define LLAMA(items) "{\"completion_probabilities\":[" items "]}"
#define VLLM(items) "{\"choices\":[{\"prompt_logprobs\":[null," items "]}]}"
#define SGLANG(items) "{\"output_ids\":[5],\"meta_info\":{" items "}}"

#define ECHO(prompt, after)                                                                                            \
    "{\"choices\":[{\"prompt_token_ids\":[" prompt "],\"token_ids\":" after ",\"logprobs\":{\"tokens\":["              \
    "\"token_id:1\",\"token_id:2\",\"token_id:3\"],\"token_logprobs\":[null,-1,-2],\"top_logprobs\":null}}],"          \
    "\"usage\":{\"prompt_tokens\":2}}"

static const struct {
    const char *text, *says;
} refused[] = {
    { "", "got an empty file" },
    { "  \n", "got an empty file" },
    { "<html><body>502 Bad Gateway</body></html>", "got an HTML page" },
    { "data: {\"choices\":[]}\n", "\"stream\": false" },
    { "\n: ping\n\ndata: {\"choices\":[]}\n", "\"stream\": false" },
    { "event: message\ndata: {\"choices\":[]}\n", "\"stream\": false" },
    { "{\"choices\":[{\"logprobs\":{\"content\":[{\"token\":", "line 1, column" },
    { "[]", "got 0 answers, expected one" },
    { "[{},{}]", "got 2 answers, expected one" },
    { "[3]", "no JSON object" },
    { "{}", "without log-probabilities" },
    { "{\"error\":{\"message\":\"model not found\"}}", "error message \"model not found\"" },
    { "{\"object\":\"error\",\"message\":\"too long\"}", "error message \"too long\"" },
    { "{\"choices\":[]}", "got 0, expected one choice" },
    { "{\"choices\":[{},{}]}", "got 2, expected one choice" },
    { "{\"choices\":[{\"text\":\"x\"}]}", "\"prompt_logprobs\": 20" },
    { CHAT("{\"token\":\"Hello\",\"logprob\":-1,\"top_logprobs\":[]}"), "return_tokens_as_token_ids" },
    { CHAT("{\"token\":\"token_id:211\",\"logprob\":-1}"), "expected a token id from 0 to 210" },
    { CHAT("{\"token\":\"token_id:5\",\"logprob\":0.5}"), "got 0.5, expected a log-probability, 0 or less" },
    { CHAT("{\"token\":\"token_id:5\",\"logprob\":NaN}"), "line 1, column" },
    { CHAT("{\"token\":\"token_id:5\",\"logprob\":\"NaN\"}"), "got no number" },
    { CHAT("{\"token\":\"token_id:5\",\"logprob\":-1,\"top_logprobs\":[{\"token\":\"token_id:7\",\"logprob\":-2},"
           "{\"token\":\"token_id:7\",\"logprob\":-2}]}"),
      "got token 7 twice" },
    { CHAT("{\"token\":\"token_id:5\",\"logprob\":-1,\"top_logprobs\":[{\"token\":\"token_id:5\",\"logprob\":-2}]}"),
      "one log-probability for each token" },
    { "{\"choices\":[{\"logprobs\":{\"tokens\":[\"token_id:5\",\"token_id:6\"],\"token_logprobs\":[-1]}}]}",
      "got 2 tokens, 1 token_logprobs" },
    { "{\"choices\":[{\"token_ids\":[5,6],\"logprobs\":{\"tokens\":[\"a\"],\"token_logprobs\":[-1]}}]}",
      "as many as token_ids has" },
    { "{\"choices\":[{\"token_ids\":[5,6],\"logprobs\":{\"tokens\":[\"a\",\"token_id:7\"],\"token_logprobs\":[-1,-2]}}]}",
      "got token 7 at position 1, expected that of token_ids" },
    { "{\"choices\":[{\"token_ids\":[5],\"logprobs\":{\"content\":[{\"token\":\"token_id:7\",\"logprob\":-1}]}}]}",
      "content[0]: got token 7" },
    { ECHO("1,3", "[3]"), "got other tokens than in prompt_token_ids" },
    { ECHO("1", "[2,3]"), "got other tokens than in prompt_token_ids" },
    { VLLM("{\"5\":{\"logprob\":-1},\"211\":{\"logprob\":-2}}"), "expected a token id from 0 to 210" },
    { VLLM("{\"5\":{\"logprob\":-1},\"5\":{\"logprob\":-2}}"), "duplicate" },
    { VLLM("{\"five\":{\"logprob\":-1}}"), "expected a token id" },
    { VLLM("{\"5\":{\"rank\":1}}"), "got no number" },
    { VLLM("[]"), "got no object" },
    { VLLM("{}"), "an empty object" },
    { "{\"choices\":[{\"prompt_token_ids\":[1,2,3],\"prompt_logprobs\":[null,{\"2\":-1}]}]}",
      "got 2 positions, expected as many as prompt_token_ids has" },
    { LLAMA("{\"content\":\"x\",\"probs\":[{\"tok_str\":\"x\",\"prob\":0.5}]}"), "too old" },
    { LLAMA("{\"id\":5,\"prob\":1.5,\"top_probs\":[]}"), "expected a probability from 0 to 1" },
    { LLAMA("{\"id\":-1,\"logprob\":-1}"), "expected a token id" },
    { LLAMA("{\"id\":5}"), "no log-probability" },
    { "{\"tokens\":[5],\"completion_probabilities\":[{\"id\":5,\"logprob\":-1},{\"id\":5,\"logprob\":-1}]}",
      "at most as many as tokens has" },
    { "{\"tokens\":[5,6],\"completion_probabilities\":[{\"id\":6,\"logprob\":-1},{\"id\":5,\"logprob\":-1}]}",
      "other tokens than in tokens" },
    { "{\"tokens_predicted\":2,\"completion_probabilities\":[{\"id\":5,\"logprob\":-1}]}",
      "got 1 positions of 2 tokens, expected all, or the tokens beside them: send \"return_tokens\": true" },
    { "{\"tokens_predicted\":3,\"content\":\"x\"}", "\"n_probs\": 20" },
    { SGLANG("\"output_token_logprobs\":[[-1,5,null],[-1,6,null]]"), "as many as output_ids has" },
    { SGLANG("\"output_token_logprobs\":[[-1,5,null]],\"output_top_logprobs\":[[],[]]"), "as many of both" },
    { SGLANG("\"output_token_logprobs\":[[-1]]"), "no pair" },
    { SGLANG("\"prompt_tokens\":16777217,\"input_token_logprobs\":[[-1,5,null]]"), "prompt_tokens: got 16777217" },
    { "{\"meta_info\":{\"prompt_tokens\":3}}", "return_logprob" },
    { "{\"prompt_ids\":[1,2],\"ids\":[]}", "no log-probability and no generated token" },
    { "{\"prompt_ids\":[1,\"2\"],\"ids\":[3]}", "prompt_ids[1]" },
    { "{\"prompt_ids\":[1,2],\"ids\":[3.5]}", "no whole number" },
};

LOOP_TEST(refusals, sizeof refused / sizeof *refused)
{
    struct m3_answer a;
    struct m3_error error = { 0 };
    write_bytes(in_folder("answer.json"), refused[_i].text, strlen(refused[_i].text));
    ck_assert(m3_is_answer(in_folder("answer.json")));
    ck_assert_int_eq(m3_answer_read(&a, in_folder("answer.json"), V, &error), M3_BAD_INPUT);
    ck_assert_msg(error.text && strstr(error.text, refused[_i].says), "got: %s", error.text ? error.text : "");
    ck_assert_int_eq(error.count, 1);
    m3_answer_free(&a);
    m3_error_free(&error);
}

/* Claim: -9999 and "-Infinity" are impossible tokens; a chosen token outside its list joins it; null is missing. */
TEST(special_values)
{
    static const char text[] = "{\"choices\":[{\"prompt_token_ids\":[1,2,3,4],\"prompt_logprobs\":[null,"
                               "{\"2\":{\"logprob\":-9999.0},\"9\":{\"logprob\":-0.5}},null,{\"4\":\"-Infinity\"}]}]}";
    static const char outside[] = CHAT("{\"token\":\"token_id:5\",\"logprob\":-7.5,\"top_logprobs\":"
                                       "[{\"token\":\"token_id:9\",\"logprob\":-1},"
                                       "{\"token\":\"token_id:2\",\"logprob\":-2}]}");
    struct m3_answer a;
    write_bytes(in_folder("a.json"), text, strlen(text));
    ck_assert_int_eq(m3_answer_read(&a, in_folder("a.json"), V, NULL), M3_OK);
    ck_assert_int_eq(a.count, 2);
    ck_assert_int_eq(a.missing, 1);
    ck_assert(isinf(a.logprobs[0]) && a.logprobs[1] == -0.5 && isinf(a.logprobs[2]));
    m3_answer_free(&a);
    write_bytes(in_folder("a.json"), outside, strlen(outside));
    ck_assert_int_eq(m3_answer_read(&a, in_folder("a.json"), V, NULL), M3_OK);
    ck_assert_int_eq(a.entries, 3);
    ck_assert(a.ids[0] == 2 && a.ids[1] == 5 && a.ids[2] == 9 && a.logprobs[1] == -7.5);
    m3_answer_free(&a);
}

static struct m3_answer answer_in(const char *text)
{
    struct m3_answer a;
    struct m3_error error = { 0 };
    write_bytes(in_folder("a.json"), text, strlen(text));
    const int status = m3_answer_read(&a, in_folder("a.json"), V, &error);
    ck_assert_msg(status == M3_OK, "%s", error.text ? error.text : "");
    return a;
}

/* Claim: an echoed prompt is the prompt, also where its ids are stated beside it. */
TEST(echo_with_ids)
{
    struct m3_answer a = answer_in(ECHO("1,2", "[3]"));
    ck_assert(a.prompt_count == 2 && a.prompt[0] == 1 && a.prompt[1] == 2);
    ck_assert(a.generated_count == 1 && a.generated[0] == 3 && a.count == 2 && a.missing == 0);
    ck_assert(!a.places[0].generated && a.places[0].place == 1 && a.places[0].chosen == 2);
    ck_assert(a.places[1].generated && a.places[1].place == 0 && a.places[1].chosen == 3);
    m3_answer_free(&a);
}

#define ITEM(id) "{\"id\":" #id ",\"logprob\":-0." #id "}"
#define TOKENS(ids, items) "{\"tokens\":[" ids "],\"tokens_predicted\":4,\"completion_probabilities\":[" items "]}"

/* Claim: llama.cpp gives nothing for a stop word and for half a character; what it gives is put where it belongs, or
 * left out if that is not known. */
static const struct {
    const char *text;
    int64_t places[3], count, missing;
    int has_note;
} shorter[] = {
    { TOKENS("5,6,7,8", ITEM(5) "," ITEM(6)), { 0, 1 }, 2, 0, 1 },
    { TOKENS("5,6,5,5", ITEM(5)), { 0 }, 1, 0, 1 },
    { TOKENS("5,6,7,8", ITEM(5) "," ITEM(7) "," ITEM(8)), { 0, 2, 3 }, 3, 1, 0 },
    { TOKENS("5,6,6,8", ITEM(5) "," ITEM(6) "," ITEM(8)), { 0, 3 }, 2, 2, 0 },
    { TOKENS("6,5,5,8", ITEM(6) "," ITEM(5) "," ITEM(5)), { 0, 1, 2 }, 3, 0, 1 },
};

LOOP_TEST(shorter_lists, sizeof shorter / sizeof *shorter)
{
    struct m3_answer a = answer_in(shorter[_i].text);
    ck_assert_int_eq(a.generated_count, 4);
    ck_assert_int_eq(a.count, shorter[_i].count);
    ck_assert_int_eq(a.missing, shorter[_i].missing);
    ck_assert_int_eq(a.notes.count, shorter[_i].has_note);
    for (int64_t i = 0; i < a.count; i++) {
        const struct m3_answer_place *p = &a.places[i];
        ck_assert_int_eq(p->place, shorter[_i].places[i]);
        ck_assert_int_eq(p->chosen, a.generated[p->place]);
        ck_assert_double_eq_tol(a.logprobs[p->first], -0.1 * p->chosen, 1e-12);
    }
    m3_answer_free(&a);
}

/* Claim: entries without ids are left out, and a note says so. */
TEST(texts_in_lists)
{
    struct m3_answer a = answer_in(CHAT("{\"token\":\"token_id:5\",\"logprob\":-1,\"top_logprobs\":"
                                        "[{\"token\":\"token_id:5\",\"logprob\":-1},"
                                        "{\"token\":\" w\",\"logprob\":-2}]}"));
    ck_assert(a.entries == 1 && a.without_id == 1 && strstr(a.notes.text, "no id are left out: 1"));
    m3_answer_free(&a);
    a = answer_in("{\"choices\":[{\"logprobs\":{\"tokens\":[\"token_id:5\"],\"token_logprobs\":[-1],"
                  "\"top_logprobs\":[{\"5\":-1,\"17\":-2}]}}]}");
    ck_assert(a.entries == 1 && a.without_id == 2);
    m3_answer_free(&a);
}

/* Claim: dumps are no answers. */
TEST(dumps)
{
    ck_assert(!m3_is_answer("tests/candidates/case.safetensors"));
    ck_assert(!m3_is_answer("tests/candidates/bf16.safetensors.gz"));
    ck_assert(!m3_is_answer("golden/tiny/positions.safetensors"));
    ck_assert(!m3_is_answer("missing"));
}
