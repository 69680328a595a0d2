/* What a server answered: token ids with log-probabilities, or generated ids alone. SPEC 7.18.
 *
 * Forms that are read: vLLM and other servers with OpenAI's API (completions, chat), llama.cpp's /completion, SGLang's
 * /generate, and {"prompt_ids": [..], "ids": [..]}. */
#ifndef M3_ORACLE_SERVER_ANSWER_H
#define M3_ORACLE_SERVER_ANSWER_H

#include <stdint.h>

#include "base/status.h"

/* One token of the answer, with the log-probabilities that the server gave at its place. */
struct m3_answer_place {
    int64_t place;              /* in the prompt, or among the generated tokens */
    int generated;
    int32_t chosen;             /* the token that is there; -1: unknown */
    int listed;                 /* the entries include a list of the most likely tokens */
    int64_t first, count;       /* entries */
};

struct m3_answer {
    char *path;
    const char *form;           /* "vLLM prompt_logprobs" */
    int32_t *prompt;            /* [prompt_count]; -1: the answer does not say which token is there */
    int64_t prompt_count;       /* -1: the answer does not say */
    int states_prompt;          /* the ids are stated as such; otherwise they are read from the log-probabilities */
    int32_t *generated;         /* [generated_count] */
    int64_t generated_count;
    struct m3_answer_place *places;     /* those with log-probabilities: the prompt's, then the generated */
    int64_t count;
    int32_t *ids;               /* [entries] ascending in each place */
    double *logprobs;           /* [entries] natural; -inf: the server said that the token is impossible */
    int64_t entries;
    int64_t missing;            /* places, other than the first, for which the server gave null or nothing */
    int64_t without_id;         /* entries that are left out, because they have a text only */
    struct m3_error notes;
};

/* Is the file such an answer, or meant to be one (JSON, HTML, an empty file named .json)? Otherwise it is a dump. */
int m3_is_answer(const char *path);

/* Ids must be below V. M3_BAD_INPUT names the place in the file: no JSON, an error message of a server, no token ids
 * (and which option gives them), numbers that are no log-probabilities, ids twice, lists of different lengths. Free it
 * in any case. */
int m3_answer_read(struct m3_answer *answer, const char *path, int64_t V, struct m3_error *error);
void m3_answer_free(struct m3_answer *answer);

/* Compares the prompt with ids [T] that are known otherwise, and takes those; the ids of the answer must be the same
 * where it says them. `source` names where they come from. NULL: the answer must say all. M3_BAD_INPUT names the
 * position. */
int m3_answer_settle(struct m3_answer *answer, const int32_t *ids, int64_t T, const char *source,
                     struct m3_error *error);

#endif
