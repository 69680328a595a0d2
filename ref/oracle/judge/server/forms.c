/* The answers of vLLM (prompt_logprobs) and SGLang, and plain lists of ids. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/server/private/reader.h"

enum { WHERE = 160 };

/* ---- vLLM: a list with null, or an object {"id": {"logprob": x, ..}}, for each token of the prompt */

/* Its first name is that of the prompt's own token. */
static int read_object(struct m3_reader *r, json_t *object, int64_t place, const char *where)
{
    const char *key;
    json_t *value;
    char at[WHERE + 32];
    int32_t id = -1, chosen = -1;
    int status = m3_reader_begin(r, 0, place, -1);
    if (!json_is_object(object)) return m3_reader_refuse(r, where, "no object", "ids with their log-probabilities");
    json_object_foreach(object, key, value)
    {
        char *end;
        snprintf(at, sizeof at, "%s.%.24s", where, key);
        json_t *number = json_integer(strtoll(key, &end, 10));
        if (!status && (end == key || *end)) status = m3_reader_refuse(r, at, "another name", "a token id");
        if (!status) status = m3_reader_id(r, &id, number, at);
        json_decref(number);
        if (!status)
            status = m3_reader_add(r, id, json_is_object(value) ? json_object_get(value, "logprob") : value,
                                   M3_LOGARITHMS, at);
        if (status) return status;
        if (chosen < 0) chosen = id;
    }
    r->answer->places[r->answer->count - 1].chosen = chosen;
    if (chosen < 0) return m3_reader_refuse(r, where, "an empty object", "ids with their log-probabilities");
    return m3_reader_end(r, NULL, M3_LOGARITHMS, where);
}

int m3_read_prompt_logprobs(struct m3_reader *r, const json_t *list, const char *where)
{
    struct m3_answer *a = r->answer;
    char at[WHERE];
    if (!json_is_array(list)) return m3_reader_refuse(r, where, "no list", "a list of objects");
    const int64_t n = (int64_t)json_array_size(list);
    if (a->states_prompt && n != a->prompt_count) {
        snprintf(at, sizeof at, "%" PRId64 " positions", n);
        return m3_reader_refuse(r, where, at, "as many as prompt_token_ids has");
    }
    a->form = "vLLM prompt_logprobs";
    if (!a->states_prompt) {
        a->prompt = malloc((size_t)n * sizeof *a->prompt + 1);
        if (!a->prompt) return m3_fail_memory(r->error, where, (size_t)n * sizeof *a->prompt);
        a->prompt_count = n;
    }
    int status = M3_OK;
    for (int64_t i = 0; i < n && !status; i++) {
        json_t *item = json_array_get(list, (size_t)i);
        snprintf(at, sizeof at, "%s[%" PRId64 "]", where, i);
        if (!a->states_prompt) a->prompt[i] = -1;
        if (i == 0 && !json_is_null(item)) status = m3_reader_refuse(r, at, "a value", "null");
        if (json_is_null(item)) a->missing += i > 0;
        else if (!status) status = read_object(r, item, i, at);
        if (!status && !json_is_null(item) && !a->states_prompt) a->prompt[i] = a->places[a->count - 1].chosen;
    }
    return status;
}

/* ---- a token with its list, as chat completions and llama.cpp give them */

int m3_reader_id_of_item(struct m3_reader *r, int32_t *id, const json_t *item, const char *where)
{
    const json_t *number = json_object_get(item, "id"), *text = json_object_get(item, "token");
    *id = -1;
    if (number) return m3_reader_id(r, id, number, where);
    const int64_t found = m3_reader_id_of_text(json_string_value(text));
    if (found < 0) return M3_OK;
    json_t *value = json_integer(found);
    const int status = m3_reader_id(r, id, value, where);
    json_decref(value);
    return status;
}

/* The list under whichever name it has; and how its values are given. */
static const json_t *list_of(const json_t *item, const char **value, enum m3_reader_scale *scale)
{
    static const struct {
        const char *list, *value;
        enum m3_reader_scale scale;
    } names[] = { { "top_logprobs", "logprob", M3_LOGARITHMS },
                  { "top_probs", "prob", M3_PROBABILITIES },
                  { "probs", "prob", M3_PROBABILITIES } };
    *value = json_object_get(item, "prob") && !json_object_get(item, "logprob") ? "prob" : "logprob";
    *scale = strcmp(*value, "prob") == 0 ? M3_PROBABILITIES : M3_LOGARITHMS;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *list = json_object_get(item, names[i].list);
        if (!list || json_is_null(list)) continue;
        *value = names[i].value;
        *scale = names[i].scale;
        return list;
    }
    return NULL;
}

int m3_read_content(struct m3_reader *r, const json_t *item, int generated, int64_t place, int32_t known,
                    const char *where)
{
    enum m3_reader_scale scale;
    const char *value;
    char at[WHERE + 48];
    int32_t chosen, id;
    if (!json_is_object(item)) return m3_reader_refuse(r, where, "no object", "a token with its log-probability");
    int status = m3_reader_id_of_item(r, &chosen, item, where);
    if (status) return status;
    if (chosen >= 0 && known >= 0 && chosen != known) {
        snprintf(at, sizeof at, "token %d", chosen);
        return m3_reader_refuse(r, where, at, "the token that the list of ids has there");
    }
    if (chosen < 0) chosen = known;
    const json_t *list = list_of(item, &value, &scale), *own = json_object_get(item, value);
    status = m3_reader_begin(r, generated, place, chosen);
    for (size_t i = 0; list && i < json_array_size(list) && !status; i++) {
        const json_t *entry = json_array_get(list, i);
        snprintf(at, sizeof at, "%s: entry %zu of its list", where, i);
        status = m3_reader_id_of_item(r, &id, entry, at);
        if (!status && id < 0) r->answer->without_id++;
        else if (!status) status = m3_reader_add(r, id, json_object_get(entry, value), scale, at);
    }
    return status ? status : m3_reader_end(r, own, scale, where);
}

/* ---- SGLang: [log-probability, id, text] */

static int read_pair(struct m3_reader *r, const json_t **value, int32_t *id, const json_t *pair, const char *where)
{
    *value = json_array_get(pair, 0);
    *id = -1;
    if (json_array_size(pair) < 2) return m3_reader_refuse(r, where, "no pair", "[log-probability, token id, text]");
    return m3_reader_id(r, id, json_array_get(pair, 1), where);
}

/* Tokens [n], the first of which is at `offset`; ids receives them. */
static int read_pairs(struct m3_reader *r, const json_t *tokens, const json_t *tops, int generated, int64_t offset,
                      int32_t *ids, const char *where)
{
    char at[WHERE], entry[WHERE + 64];
    const json_t *value = NULL;
    int status = M3_OK;
    const size_t n = json_array_size(tokens);
    if (json_array_size(tops) > 0 && json_array_size(tops) != n) {
        snprintf(at, sizeof at, "%zu tokens and %zu lists of the most likely", n, json_array_size(tops));
        return m3_reader_refuse(r, where, at, "as many of both");
    }
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *top = json_array_get(tops, i), *own;
        int32_t id;
        snprintf(at, sizeof at, "%s[%zu]", where, i);
        status = read_pair(r, &own, &ids[offset + (int64_t)i], json_array_get(tokens, i), at);
        if (status) break;
        if (json_is_null(own)) {
            r->answer->missing += i > 0 || offset > 0;
            continue;
        }
        status = m3_reader_begin(r, generated, offset + (int64_t)i, ids[offset + (int64_t)i]);
        for (size_t k = 0; k < json_array_size(top) && !status; k++) {
            snprintf(entry, sizeof entry, "%s: entry %zu of its list", at, k);
            status = read_pair(r, &value, &id, json_array_get(top, k), entry);
            if (!status) status = m3_reader_add(r, id, value, M3_LOGARITHMS, entry);
        }
        if (!status) status = m3_reader_end(r, own, M3_LOGARITHMS, at);
    }
    return status;
}

/* Longer than any context: the number alone, of an answer of a few bytes, must not take gigabytes. */
enum { MOST_PROMPT = 1 << 24 };

static int read_sglang_prompt(struct m3_reader *r, const json_t *meta, const json_t *tokens)
{
    struct m3_answer *a = r->answer;
    const json_int_t stated = json_integer_value(json_object_get(meta, "prompt_tokens"));
    const int64_t n = (int64_t)json_array_size(tokens), P = stated > n ? (int64_t)stated : n;
    char got[64];
    if (P > MOST_PROMPT) {
        snprintf(got, sizeof got, "%" PRId64, P);
        return m3_reader_refuse(r, "meta_info.prompt_tokens", got, "at most 16777216");
    }
    if (stated > 0 && n > stated) {
        snprintf(got, sizeof got, "%" PRId64 " positions", n);
        return m3_reader_refuse(r, "meta_info.input_token_logprobs", got, "at most prompt_tokens");
    }
    a->prompt = malloc((size_t)P * sizeof *a->prompt + 1);
    if (!a->prompt) return m3_fail_memory(r->error, "the prompt", (size_t)P * sizeof *a->prompt);
    for (int64_t t = 0; t < P; t++) a->prompt[t] = -1;
    a->prompt_count = P;
    a->states_prompt = 1;
    return read_pairs(r, tokens, json_object_get(meta, "input_top_logprobs"), 0, P - n, a->prompt,
                      "meta_info.input_token_logprobs");
}

int m3_read_sglang(struct m3_reader *r, const json_t *root)
{
    struct m3_answer *a = r->answer;
    const json_t *meta = json_object_get(root, "meta_info"), *in = json_object_get(meta, "input_token_logprobs"),
                 *out = json_object_get(meta, "output_token_logprobs"), *ids = json_object_get(root, "output_ids");
    const size_t n = json_array_size(out);
    char got[64];
    int status = M3_OK;
    a->form = "SGLang /generate";
    if (json_array_size(in) > 0) status = read_sglang_prompt(r, meta, in);
    if (!status && ids) status = m3_reader_ids(r, &a->generated, &a->generated_count, ids, "output_ids");
    if (!status && n > 0 && ids && (int64_t)n != a->generated_count) {
        snprintf(got, sizeof got, "%zu positions", n);
        return m3_reader_refuse(r, "meta_info.output_token_logprobs", got, "as many as output_ids has");
    }
    if (!status && n > 0 && !a->generated) a->generated = malloc(n * sizeof *a->generated);
    if (!status && n > 0 && !a->generated) return m3_fail_memory(r->error, "output_ids", n * sizeof *a->generated);
    if (!status && n > 0) {
        a->generated_count = (int64_t)n;
        status = read_pairs(r, out, json_object_get(meta, "output_top_logprobs"), 1, 0, a->generated,
                            "meta_info.output_token_logprobs");
    }
    if (!status && a->count == 0 && a->generated_count == 0)
        return m3_reader_refuse(r, "meta_info", "no log-probabilities",
                                "some: send \"return_logprob\": true, \"logprob_start_len\": 0, "
                                "\"top_logprobs_num\": 20");
    return status;
}

/* ---- {"prompt_ids": [..], "ids": [..]} */

int m3_read_plain(struct m3_reader *r, const json_t *root)
{
    struct m3_answer *a = r->answer;
    const json_t *prompt = json_object_get(root, "prompt_ids");
    int status = M3_OK;
    a->form = "generated ids";
    if (prompt) {
        a->states_prompt = 1;
        status = m3_reader_ids(r, &a->prompt, &a->prompt_count, prompt, "prompt_ids");
    }
    if (!status) status = m3_reader_ids(r, &a->generated, &a->generated_count, json_object_get(root, "ids"), "ids");
    return status;
}
