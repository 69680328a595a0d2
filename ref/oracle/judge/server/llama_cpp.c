/* The answers of llama.cpp's /completion. It gives no log-probabilities for the tokens of a stop word, nor for a token
 * that ends within a character: its list may be shorter than that of the tokens. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/server/private/reader.h"

enum { WHERE = 160 };

static const char llama_ids[] =
    "token ids: this server is too old to give them; those from December 2024 on do, as \"id\"";

static int read_ids(struct m3_reader *r, int32_t *ids, const json_t *list, int64_t n)
{
    char at[WHERE];
    int status = M3_OK;
    for (int64_t i = 0; i < n && !status; i++) {
        const json_t *item = json_array_get(list, (size_t)i);
        snprintf(at, sizeof at, "completion_probabilities[%" PRId64 "]", i);
        status = m3_reader_id_of_item(r, &ids[i], item, at);
        if (!status && ids[i] < 0) status = m3_reader_refuse(r, at, "texts of tokens", llama_ids);
    }
    return status;
}

/* Where the tokens of the list stand among all tokens [m]; -1: at one of several places. Returns 0, or -1 if they do not
 * stand there in this order. */
static int align(int64_t *places, const int32_t *ids, int64_t n, const int32_t *tokens, int64_t m)
{
    int64_t at = 0;
    for (int64_t k = 0; k < n; k++) {
        while (at < m && tokens[at] != ids[k]) at++;
        if (at == m) return -1;
        places[k] = at++;
    }
    if (at == n) return 0;              /* only the end is missing: the stop word */
    at = m - 1;
    for (int64_t k = n - 1; k >= 0; k--) {
        while (tokens[at] != ids[k]) at--;
        if (places[k] != at--) places[k] = -1;
    }
    return 0;
}

static int read_places(struct m3_reader *r, const json_t *list, const int32_t *ids, const int64_t *places, int64_t n)
{
    struct m3_answer *a = r->answer;
    char at[WHERE];
    int64_t end = 0;
    int status = M3_OK;
    for (int64_t i = 0; i < n && !status; i++) {
        snprintf(at, sizeof at, "completion_probabilities[%" PRId64 "]", i);
        if (places[i] < 0) continue;
        a->missing += places[i] - end;
        end = places[i] + 1;
        status = m3_read_content(r, json_array_get(list, (size_t)i), 1, places[i], ids[i], at);
        if (!status && a->places[a->count - 1].count == 0)
            status = m3_reader_refuse(r, at, "no log-probability", "\"logprob\" or \"prob\"");
    }
    if (!status && end < a->generated_count)
        m3_fail(&a->notes, M3_OK, "the server gave no log-probabilities of the last %" PRId64 " tokens",
                a->generated_count - end);
    return status;
}

/* Without the tokens themselves, the list must have all of them. */
static int check_count(struct m3_reader *r, const json_t *root, int64_t n)
{
    const json_int_t predicted = json_integer_value(json_object_get(root, "tokens_predicted"));
    char got[64];
    if (predicted <= n) return M3_OK;
    snprintf(got, sizeof got, "%" PRId64 " positions of %" JSON_INTEGER_FORMAT " tokens", n, predicted);
    return m3_reader_refuse(r, "completion_probabilities", got,
                            "all, or the tokens beside them: send \"return_tokens\": true");
}

static int read_list(struct m3_reader *r, const json_t *root, const json_t *list, int64_t n, int32_t *ids,
                     int64_t *places)
{
    struct m3_answer *a = r->answer;
    char got[64];
    int status = read_ids(r, ids, list, n);
    if (status) return status;
    if (a->generated_count == 0) {
        status = check_count(r, root, n);
        free(a->generated);
        a->generated = malloc((size_t)n * sizeof *ids);
        if (!a->generated) return m3_fail_memory(r->error, "tokens", (size_t)n * sizeof *ids);
        memcpy(a->generated, ids, (size_t)n * sizeof *ids);
        a->generated_count = n;
    }
    snprintf(got, sizeof got, "%" PRId64 " positions", n);
    if (!status && n > a->generated_count)
        status = m3_reader_refuse(r, "completion_probabilities", got, "at most as many as tokens has");
    if (!status && align(places, ids, n, a->generated, a->generated_count))
        status = m3_reader_refuse(r, "completion_probabilities", "other tokens than in tokens", "the same");
    return status ? status : read_places(r, list, ids, places, n);
}

int m3_read_llama_cpp(struct m3_reader *r, const json_t *root)
{
    struct m3_answer *a = r->answer;
    const json_t *list = json_object_get(root, "completion_probabilities"), *tokens = json_object_get(root, "tokens");
    const int64_t n = (int64_t)json_array_size(list);
    int status = M3_OK;
    a->form = "llama.cpp /completion";
    if (json_array_size(tokens) > 0) status = m3_reader_ids(r, &a->generated, &a->generated_count, tokens, "tokens");
    if (status || (!list && a->generated_count > 0)) return status;
    if (n == 0)
        return m3_reader_refuse(r, "completion_probabilities", "none", "log-probabilities: send \"n_probs\": 20");
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    int64_t *places = calloc((size_t)n, sizeof *places);
    status = ids && places ? read_list(r, root, list, n, ids, places)
                           : m3_fail_memory(r->error, "tokens", (size_t)n * sizeof *places);
    free(ids);
    free(places);
    return status;
}
