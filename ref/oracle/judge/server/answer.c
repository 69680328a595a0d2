#include "oracle/judge/server/answer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/open.h"
#include "oracle/judge/server/private/reader.h"

/* Servers that cannot write -inf write this; nothing that a model computes is so improbable. */
static const double impossible = -9999;
/* A log-probability may be above 0 by the rounding of float, and a token's value be printed twice with few digits. */
static const double above_zero = 1e-5, agrees = 1e-3;

int m3_reader_refuse(struct m3_reader *r, const char *where, const char *got, const char *expected)
{
    return m3_fail(r->error, M3_BAD_INPUT, "%s: %s: got %s%s%s", r->answer->path, where, got,
                   expected ? ", expected " : "", expected ? expected : "");
}

/* ---- places and entries */

static int grow(void **data, int64_t *room, int64_t count, size_t size, struct m3_error *error)
{
    if (count < *room) return M3_OK;
    const int64_t more = *room < 64 ? 64 : 2 * *room;
    size_t bytes;
    void *larger = __builtin_mul_overflow((size_t)more, size, &bytes) ? NULL : realloc(*data, bytes);
    if (!larger) return m3_fail_memory(error, "the answer", (size_t)more * size);
    *data = larger;
    *room = more;
    return M3_OK;
}

int m3_reader_begin(struct m3_reader *r, int generated, int64_t place, int32_t chosen)
{
    struct m3_answer *a = r->answer;
    int status = grow((void **)&a->places, &r->room_places, a->count, sizeof *a->places, r->error);
    if (status) return status;
    a->places[a->count++] =
        (struct m3_answer_place){ .place = place, .generated = generated, .chosen = chosen, .first = a->entries };
    return M3_OK;
}

static int read_value(struct m3_reader *r, double *out, const json_t *value, enum m3_reader_scale scale,
                      const char *where)
{
    const char *text = json_string_value(value), *const range = scale == M3_LOGARITHMS ? "a log-probability, 0 or less"
                                                                                       : "a probability from 0 to 1";
    char got[48];
    double x = json_number_value(value);
    if (text && (strcmp(text, "-inf") == 0 || strcmp(text, "-Infinity") == 0)) x = -INFINITY;
    else if (!json_is_number(value)) return m3_reader_refuse(r, where, "no number", range);
    snprintf(got, sizeof got, "%.9g", x);
    if (scale == M3_PROBABILITIES) {
        if (!(x >= 0 && x <= 1 + above_zero)) return m3_reader_refuse(r, where, got, range);
        x = log(x);
    }
    if (!(x <= above_zero)) return m3_reader_refuse(r, where, got, range);
    *out = x <= impossible ? -INFINITY : x;
    return M3_OK;
}

static int add(struct m3_reader *r, int32_t id, double logprob)
{
    struct m3_answer *a = r->answer;
    int64_t room = r->room_entries;
    int status = grow((void **)&a->ids, &room, a->entries, sizeof *a->ids, r->error);
    if (!status) status = grow((void **)&a->logprobs, &r->room_entries, a->entries, sizeof *a->logprobs, r->error);
    if (status) return status;
    a->ids[a->entries] = id;
    a->logprobs[a->entries++] = logprob;
    a->places[a->count - 1].count++;
    return M3_OK;
}

int m3_reader_add(struct m3_reader *r, int32_t id, const json_t *value, enum m3_reader_scale scale, const char *where)
{
    double logprob = 0;
    int status = read_value(r, &logprob, value, scale, where);
    if (status) return status;
    r->answer->places[r->answer->count - 1].listed = 1;
    return add(r, id, logprob);
}

struct entry {
    int32_t id;
    double logprob;
};

static int by_id(const void *a, const void *b)
{
    const int32_t x = ((const struct entry *)a)->id, y = ((const struct entry *)b)->id;
    return (x > y) - (x < y);
}

static int sort_entries(struct m3_reader *r, const struct m3_answer_place *p, const char *where)
{
    struct m3_answer *a = r->answer;
    char got[64];
    struct entry *all = malloc((size_t)p->count * sizeof *all + 1);
    if (!all) return m3_fail_memory(r->error, "the answer", (size_t)p->count * sizeof *all);
    for (int64_t i = 0; i < p->count; i++) all[i] = (struct entry){ a->ids[p->first + i], a->logprobs[p->first + i] };
    qsort(all, (size_t)p->count, sizeof *all, by_id);
    int64_t twice = -1;
    for (int64_t i = 0; i < p->count; i++) {
        a->ids[p->first + i] = all[i].id;
        a->logprobs[p->first + i] = all[i].logprob;
        if (i > 0 && all[i].id == all[i - 1].id) twice = all[i].id;
    }
    free(all);
    if (twice < 0) return M3_OK;
    snprintf(got, sizeof got, "token %" PRId64 " twice", twice);
    return m3_reader_refuse(r, where, got, "each token once");
}

int m3_reader_end(struct m3_reader *r, const json_t *chosen_value, enum m3_reader_scale scale, const char *where)
{
    struct m3_answer *a = r->answer;
    const struct m3_answer_place *p = &a->places[a->count - 1];
    double own = 0;
    char got[96];
    int status = M3_OK;
    if (chosen_value && !json_is_null(chosen_value) && p->chosen >= 0) {
        int64_t at = 0;
        status = read_value(r, &own, chosen_value, scale, where);
        while (at < p->count && a->ids[p->first + at] != p->chosen) at++;
        if (!status && at == p->count) status = add(r, p->chosen, own);
        else if (!status && !(fabs(a->logprobs[p->first + at] - own) <= agrees || a->logprobs[p->first + at] == own)) {
            snprintf(got, sizeof got, "%.9g and %.9g for token %d", own, a->logprobs[p->first + at], p->chosen);
            status = m3_reader_refuse(r, where, got, "one log-probability for each token");
        }
    }
    return status ? status : sort_entries(r, &a->places[a->count - 1], where);
}

/* ---- ids */

int64_t m3_reader_id_of_text(const char *text)
{
    static const char prefix[] = "token_id:";
    char *end;
    if (!text || strncmp(text, prefix, sizeof prefix - 1) != 0) return -1;
    text += sizeof prefix - 1;
    if (*text < '0' || *text > '9') return -1;
    const long long id = strtoll(text, &end, 10);
    return *end || id > INT32_MAX ? -1 : id;
}

int m3_reader_id(struct m3_reader *r, int32_t *id, const json_t *value, const char *where)
{
    char got[64], expected[64];
    const json_int_t x = json_is_integer(value) ? json_integer_value(value) : -1;
    if (x >= 0 && x < r->V) {
        *id = (int32_t)x;
        return M3_OK;
    }
    snprintf(got, sizeof got, "the token %" JSON_INTEGER_FORMAT, x);
    snprintf(expected, sizeof expected, "a token id from 0 to %" PRId64, r->V - 1);
    return m3_reader_refuse(r, where, json_is_integer(value) ? got : "no whole number", expected);
}

int m3_reader_ids(struct m3_reader *r, int32_t **ids, int64_t *count, const json_t *list, const char *where)
{
    char at[128];
    if (!json_is_array(list)) return m3_reader_refuse(r, where, "no list", "a list of token ids");
    const size_t n = json_array_size(list);
    free(*ids);
    *count = 0;
    *ids = malloc(n * sizeof **ids + 1);
    if (!*ids) return m3_fail_memory(r->error, where, n * sizeof **ids);
    int status = M3_OK;
    for (size_t i = 0; i < n && !status; i++) {
        snprintf(at, sizeof at, "%s[%zu]", where, i);
        status = m3_reader_id(r, &(*ids)[i], json_array_get(list, i), at);
    }
    if (!status) *count = (int64_t)n;
    return status;
}

/* ---- the file */

/* The first bytes of the file. */
static int begins(char *bytes, size_t *count, size_t room, const char *path, struct m3_error *error)
{
    FILE *file;
    *count = 0;
    int status = m3_open_stream(&file, path, error);
    if (status) return status;
    *count = fread(bytes, 1, room, file);
    if (ferror(file)) status = m3_fail(error, M3_IO, "%s: cannot be read: %s", path, strerror(errno));
    fclose(file);
    return status;
}

/* Does the text begin as server-sent events do? */
static int is_stream(const char *text)
{
    static const char *const fields[] = { "data:", "event:", "id:", "retry:", ":" };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strncmp(text, fields[i], strlen(fields[i])) == 0) return 1;
    return 0;
}

int m3_is_answer(const char *path)
{
    char bytes[64 + 1];
    const size_t length = strlen(path);
    size_t n;
    begins(bytes, &n, sizeof bytes - 1, path, NULL);    /* whoever reads the file reports what is wrong with it */
    bytes[n] = '\0';
    if (length > 5 && strcmp(path + length - 5, ".json") == 0) return 1;
    size_t at = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < n && strchr(" \t\r\n", bytes[at]) && bytes[at]) at++;
    if (at == n || memchr(bytes, '\0', n < 8 ? n : 8)) return 0;        /* a dump begins with its header's length */
    return bytes[at] == '{' || bytes[at] == '[' || bytes[at] == '<' || is_stream(bytes + at);
}

static int check_text(const char *path, struct m3_error *error)
{
    char bytes[256];
    size_t at = 0, n;
    const int status = begins(bytes, &n, sizeof bytes - 1, path, error);
    if (status) return status;
    bytes[n] = '\0';
    while (at < n && strchr(" \t\r\n", bytes[at]) && bytes[at]) at++;
    if (at == n && n < sizeof bytes - 1)
        return m3_fail(error, M3_BAD_INPUT, "%s: got an empty file, expected the JSON answer of a server", path);
    if (bytes[at] == '<')
        return m3_fail(error, M3_BAD_INPUT, "%s: got an HTML page, expected the JSON answer of a server", path);
    if (is_stream(bytes + at))
        return m3_fail(error, M3_BAD_INPUT,
                       "%s: got a stream of events, expected one JSON answer: send \"stream\": false", path);
    return M3_OK;
}

/* What servers send instead of an answer. */
static int check_error_message(struct m3_reader *r, const json_t *root)
{
    const json_t *bad = json_object_get(root, "error");
    const char *object = json_string_value(json_object_get(root, "object"));
    if (!bad && object && strcmp(object, "error") == 0) bad = root;
    if (!bad || json_is_null(bad)) return M3_OK;
    const char *message = json_string_value(json_is_object(bad) ? json_object_get(bad, "message") : bad);
    return m3_fail(r->error, M3_BAD_INPUT, "%s: got the server's error message \"%.300s\", expected an answer",
                   r->answer->path, message ? message : "");
}

static int read_root(struct m3_reader *r, const json_t *root)
{
    char got[64];
    if (json_is_array(root)) {
        snprintf(got, sizeof got, "%zu answers", json_array_size(root));
        if (json_array_size(root) != 1) return m3_reader_refuse(r, "the file", got, "one");
        root = json_array_get(root, 0);
    }
    if (!json_is_object(root)) return m3_reader_refuse(r, "the file", "no JSON object", "the answer of a server");
    int status = check_error_message(r, root);
    if (status) return status;
    const json_t *choices = json_object_get(root, "choices");
    if (json_object_get(root, "completion_probabilities") || json_object_get(root, "tokens_predicted"))
        return m3_read_llama_cpp(r, root);
    if (json_object_get(root, "meta_info")) return m3_read_sglang(r, root);
    if (choices) {
        snprintf(got, sizeof got, "%zu", json_array_size(choices));
        if (json_array_size(choices) != 1) return m3_reader_refuse(r, "choices", got, "one choice");
        return m3_read_openai(r, root, json_array_get(choices, 0));
    }
    if (json_object_get(root, "ids")) return m3_read_plain(r, root);
    if (json_object_get(root, "prompt_logprobs")) return m3_read_openai(r, root, root);
    return m3_reader_refuse(r, "the file", "an object without log-probabilities and without ids",
                            "an answer of vLLM, llama.cpp, SGLang or OpenAI's API, or prompt_ids and ids");
}

int m3_answer_read(struct m3_answer *answer, const char *path, int64_t V, struct m3_error *error)
{
    json_t *root = NULL;
    *answer = (struct m3_answer){ .prompt_count = -1 };
    answer->path = strdup(path);
    if (!answer->path) return m3_fail_memory(error, path, strlen(path));
    struct m3_reader r = { .answer = answer, .V = V, .error = error };
    int status = check_text(path, error);
    if (!status) status = m3_json_load_long(&root, path, error);
    if (!status) status = read_root(&r, root);
    json_decref(root);
    if (!status && answer->without_id > 0)
        m3_fail(&answer->notes, M3_OK, "entries of lists that have a text and no id are left out: %" PRId64,
                answer->without_id);
    if (!status && answer->count == 0 && answer->generated_count == 0)
        status = m3_fail(error, M3_BAD_INPUT, "%s: got no log-probability and no generated token, expected some", path);
    return status;
}

void m3_answer_free(struct m3_answer *answer)
{
    free(answer->path);
    free(answer->prompt);
    free(answer->generated);
    free(answer->places);
    free(answer->ids);
    free(answer->logprobs);
    m3_error_free(&answer->notes);
    *answer = (struct m3_answer){ 0 };
}

/* ---- the prompt */

static int has_entry(const struct m3_answer *a, const struct m3_answer_place *p, int32_t id)
{
    int64_t low = p->first, high = p->first + p->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (a->ids[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low < p->first + p->count && a->ids[low] == id;
}

/* The tokens of the prompt that the log-probabilities are of: each place must have its own token. */
static int settle_places(struct m3_answer *a, const int32_t *ids, const char *source, struct m3_error *error)
{
    for (int64_t i = 0; i < a->count; i++) {
        struct m3_answer_place *p = &a->places[i];
        if (p->generated) continue;
        if (!has_entry(a, p, ids[p->place]))
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: position %" PRId64 ": got log-probabilities of other tokens (%d), expected one of "
                           "token %d, which %s has there",
                           a->path, p->place, p->chosen, ids[p->place], source);
        p->chosen = ids[p->place];
    }
    return M3_OK;
}

int m3_answer_settle(struct m3_answer *a, const int32_t *ids, int64_t T, const char *source, struct m3_error *error)
{
    if (!ids) {
        if (a->prompt_count < 1)
            return m3_fail(error, M3_USAGE,
                           "check: got neither --case nor --ids, expected one of them: %s does not hold the ids of "
                           "the prompt",
                           a->path);
        for (int64_t t = 0; t < a->prompt_count; t++)
            if (a->prompt[t] < 0)
                return m3_fail(error, M3_USAGE,
                               "check: got neither --case nor --ids, expected one of them: %s does not say which "
                               "token is at position %" PRId64 " (vLLM says it with \"return_token_ids\": true)",
                               a->path, t);
        return settle_places(a, a->prompt, "the prompt", error);
    }
    if (a->prompt_count >= 0 && a->prompt_count != T)
        return m3_fail(error, M3_BAD_INPUT, "%s: got a prompt of %" PRId64 " tokens, expected the %" PRId64 " of %s",
                       a->path, a->prompt_count, T, source);
    for (int64_t t = 0; t < a->prompt_count && a->states_prompt; t++)
        if (a->prompt[t] >= 0 && a->prompt[t] != ids[t])
            return m3_fail(error, M3_BAD_INPUT,
                           "%s: position %" PRId64 ": got token %d in the prompt, expected %d, which %s has there",
                           a->path, t, a->prompt[t], ids[t], source);
    int32_t *own = malloc((size_t)T * sizeof *own + 1);
    if (!own) return m3_fail_memory(error, "the prompt", (size_t)T * sizeof *own);
    memcpy(own, ids, (size_t)T * sizeof *own);
    free(a->prompt);
    a->prompt = own;
    a->prompt_count = T;
    return settle_places(a, own, source, error);
}
