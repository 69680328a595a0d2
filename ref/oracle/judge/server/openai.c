/* Answers of OpenAI's API: completions and chat completions, with what vLLM adds to them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/server/private/reader.h"

static const char with_ids[] =
    "token ids: vLLM gives them with \"return_tokens_as_token_ids\": true; llama.cpp's /completion (\"n_probs\") and "
    "SGLang's /generate (\"return_logprob\") give ids by themselves";

/* The first `prompt` tokens of the generated ones are the prompt: the server was asked to echo it. */
static int split_echo(struct m3_reader *r, int64_t prompt)
{
    struct m3_answer *a = r->answer;
    if (a->prompt_count >= 0 &&
        (a->prompt_count != prompt || memcmp(a->prompt, a->generated, (size_t)prompt * sizeof *a->prompt) != 0))
        return m3_reader_refuse(r, "choices[0].logprobs.tokens", "other tokens than in prompt_token_ids", "the same");
    free(a->prompt);
    a->prompt = malloc((size_t)prompt * sizeof *a->prompt + 1);
    if (!a->prompt) return m3_fail_memory(r->error, "the prompt", (size_t)prompt * sizeof *a->prompt);
    memcpy(a->prompt, a->generated, (size_t)prompt * sizeof *a->prompt);
    a->prompt_count = prompt;
    a->states_prompt = 1;
    a->generated_count -= prompt;
    memmove(a->generated, a->generated + prompt, (size_t)a->generated_count * sizeof *a->generated);
    for (int64_t i = 0; i < a->count; i++) {
        a->places[i].generated = a->places[i].place >= prompt;
        if (a->places[i].generated) a->places[i].place -= prompt;
    }
    return M3_OK;
}

/* token_ids beside tokens that may be texts. */
static int check_ids(struct m3_reader *r, const json_t *tokens, const char *where)
{
    const struct m3_answer *a = r->answer;
    const int64_t n = (int64_t)json_array_size(tokens);
    char at[128];
    snprintf(at, sizeof at, "%" PRId64 " positions", n);
    if (a->generated_count != n) return m3_reader_refuse(r, where, at, "as many as token_ids has");
    for (int64_t i = 0; i < n; i++) {
        const json_t *token = json_array_get(tokens, (size_t)i);
        const int64_t id = m3_reader_id_of_text(json_string_value(token));
        snprintf(at, sizeof at, "token %" PRId64 " at position %" PRId64, id, i);
        if (id >= 0 && id != a->generated[i]) return m3_reader_refuse(r, where, at, "that of token_ids");
    }
    return M3_OK;
}

/* The chosen ids: stated as token_ids, or in the texts. M3_OK with no ids: there are none. */
static int chosen_ids(struct m3_reader *r, const json_t *tokens, const char *where)
{
    struct m3_answer *a = r->answer;
    const int64_t n = (int64_t)json_array_size(tokens);
    char at[128];
    if (a->generated_count > 0) return check_ids(r, tokens, where);
    free(a->generated);
    a->generated = calloc((size_t)n + 1, sizeof *a->generated);
    if (!a->generated) return m3_fail_memory(r->error, where, (size_t)n * sizeof *a->generated);
    for (int64_t i = 0; i < n; i++) {
        const json_t *token = json_array_get(tokens, (size_t)i);
        const json_t *id = json_object_get(token, "id");
        const json_t *text = json_is_object(token) ? json_object_get(token, "token") : token;
        json_t *number = json_is_integer(id) ? json_incref((json_t *)(uintptr_t)id)
                                             : json_integer(m3_reader_id_of_text(json_string_value(text)));
        snprintf(at, sizeof at, "%s[%" PRId64 "]", where, i);
        int status = json_integer_value(number) < 0 ? m3_reader_refuse(r, at, "the text of a token", with_ids)
                                                    : m3_reader_id(r, &a->generated[i], number, at);
        json_decref(number);
        if (status) return status;
    }
    a->generated_count = n;
    return M3_OK;
}

/* {"token_id:17": -0.5, ..}; texts are left out. */
static int add_object(struct m3_reader *r, json_t *object, const char *where)
{
    const char *key;
    json_t *value;
    char at[192];
    int status = M3_OK;
    json_object_foreach(object, key, value)
    {
        const int64_t found = m3_reader_id_of_text(key);
        int32_t id;
        if (found < 0) r->answer->without_id++;
        if (status || found < 0) continue;
        snprintf(at, sizeof at, "%s.%.40s", where, key);
        json_t *number = json_integer(found);
        status = m3_reader_id(r, &id, number, at);
        json_decref(number);
        if (!status) status = m3_reader_add(r, id, value, M3_LOGARITHMS, at);
    }
    return status;
}

static int read_completion(struct m3_reader *r, const json_t *root, const json_t *logprobs)
{
    struct m3_answer *a = r->answer;
    const json_t *tokens = json_object_get(logprobs, "tokens"), *own = json_object_get(logprobs, "token_logprobs"),
                 *tops = json_object_get(logprobs, "top_logprobs");
    const size_t n = json_array_size(tokens);
    const int echo = n > 0 && json_is_null(json_array_get(own, 0));
    char at[128];
    if (json_array_size(own) != n || (json_array_size(tops) > 0 && json_array_size(tops) != n)) {
        snprintf(at, sizeof at, "%zu tokens, %zu token_logprobs and %zu top_logprobs", n, json_array_size(own),
                 json_array_size(tops));
        return m3_reader_refuse(r, "choices[0].logprobs", at, "as many of each");
    }
    if (echo) a->generated_count = 0;           /* token_ids holds those after the prompt only */
    int status = chosen_ids(r, tokens, "choices[0].logprobs.tokens");
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *value = json_array_get(own, i);
        snprintf(at, sizeof at, "choices[0].logprobs, token %zu", i);
        if (json_is_null(value)) {
            a->missing += i > 0;
            continue;
        }
        status = m3_reader_begin(r, 1, (int64_t)i, a->generated[i]);
        if (!status) status = add_object(r, json_array_get(tops, i), at);
        if (!status) status = m3_reader_end(r, value, M3_LOGARITHMS, at);
    }
    if (status || !echo) return status;
    const json_t *usage = json_object_get(json_object_get(root, "usage"), "prompt_tokens");
    const int64_t P = json_is_integer(usage) ? (int64_t)json_integer_value(usage) : (int64_t)n;
    if (P < 1 || P > (int64_t)n) return m3_reader_refuse(r, "usage.prompt_tokens", "another number", "that of tokens");
    return split_echo(r, P);
}

static int read_chat(struct m3_reader *r, const json_t *content)
{
    struct m3_answer *a = r->answer;
    char at[128];
    int status = chosen_ids(r, content, "choices[0].logprobs.content");
    for (size_t i = 0; i < json_array_size(content) && !status; i++) {
        snprintf(at, sizeof at, "choices[0].logprobs.content[%zu]", i);
        status = m3_read_content(r, json_array_get(content, i), 1, (int64_t)i, a->generated[i], at);
    }
    return status;
}

static const json_t *either(const json_t *choice, const json_t *root, const char *name)
{
    const json_t *found = json_object_get(choice, name);
    if (!found || json_is_null(found)) found = json_object_get(root, name);
    return found && !json_is_null(found) ? found : NULL;
}

/* Log-probabilities of generated tokens without ids beside those of a prompt with ids are left out. */
static int is_without_ids(const struct m3_answer *a, const json_t *tokens)
{
    const json_t *first = json_array_get(tokens, 0);
    const json_t *text = json_is_object(first) ? json_object_get(first, "token") : first;
    return a->count > 0 && a->generated_count == 0 && !json_object_get(first, "id") &&
           m3_reader_id_of_text(json_string_value(text)) < 0;
}

int m3_read_openai(struct m3_reader *r, const json_t *root, const json_t *choice)
{
    struct m3_answer *a = r->answer;
    const json_t *prompt_ids = either(choice, root, "prompt_token_ids"), *ids = either(choice, root, "token_ids"),
                 *prompt = either(choice, root, "prompt_logprobs"), *logprobs = json_object_get(choice, "logprobs"),
                 *tokens = json_object_get(logprobs, "tokens"), *content = json_object_get(logprobs, "content");
    int status = M3_OK;
    if (prompt_ids) {
        a->states_prompt = 1;
        status = m3_reader_ids(r, &a->prompt, &a->prompt_count, prompt_ids, "prompt_token_ids");
    }
    if (!status && ids) status = m3_reader_ids(r, &a->generated, &a->generated_count, ids, "token_ids");
    if (!status && prompt) status = m3_read_prompt_logprobs(r, prompt, "prompt_logprobs");
    if (!a->form) a->form = content ? "OpenAI chat completion" : "OpenAI completion";
    if (status || (!json_array_size(tokens) && !json_array_size(content))) {
        if (!status && a->count == 0 && a->generated_count == 0)
            return m3_reader_refuse(r, "choices[0].logprobs", "none",
                                    "log-probabilities: send \"prompt_logprobs\": 20 to vLLM, or \"logprobs\" with "
                                    "\"return_tokens_as_token_ids\": true");
        return status;
    }
    if (is_without_ids(a, json_array_size(tokens) ? tokens : content)) {
        m3_fail(&a->notes, M3_OK,
                "log-probabilities of generated tokens are left out, because they have no ids (\"%s\")",
                "return_tokens_as_token_ids");
        return M3_OK;
    }
    return json_array_size(tokens) ? read_completion(r, root, logprobs) : read_chat(r, content);
}
