/* A dump of an engine's steps: prefill chunks, decode rows, drafts that are verified. An engine computes a row again if a
 * request was preempted, or if its draft was rejected; and it does not compute what another request left in the cache. So
 * each *history* of a request becomes a sequence of its own: all that was in the cache when its last row was computed.
 * SPEC 7.19. */
#ifndef M3_ORACLE_JUDGE_BATCH_STEPS_H
#define M3_ORACLE_JUDGE_BATCH_STEPS_H

#include "io/safetensors.h"
#include "model/files/batch.h"

/* The rows of a dump, in the order in which they were computed: [count]. */
struct m3_step_rows {
    int64_t count;
    const int64_t *requests, *rows, *tokens;
    const char *path;
};

struct m3_history {
    int64_t request, length; /* tokens */
    int64_t first; /* its first row that no earlier history has */
    int is_dropped; /* the engine went on without its last rows */
    int32_t *tokens; /* [length] */
    int64_t *at; /* [length] the row of the dump; -1: the dump does not hold it */
};

/* The last history of request r is history r; dropped ones follow, in the order of time. */
struct m3_histories {
    int64_t count, requests;
    struct m3_history *all; /* [count] */
};

/* `requests`: the tokens of each request, which rows that were not computed need; they may be fewer or more than were
 * computed. M3_BAD_INPUT: a row before which a token is unknown; a first token that is not the request's. M3_INTERNAL.
 * Free the histories in any case. */
int m3_histories_find(struct m3_histories *histories, const struct m3_step_rows *rows, const struct m3_batch *requests,
                      struct m3_error *error);
void m3_histories_free(struct m3_histories *histories);

/* A dump that says with `tokens` [N], beside `rows` and `sequences`, what each of its rows was computed from: numbers its
 * rows by history, and makes the batch that of the histories. *dump becomes a view that keeps the dump open. Does nothing
 * if it says no tokens, or if each row was computed once and only once. Notes say which sequence is which request.
 * M3_BAD_INPUT, M3_INTERNAL. */
int m3_steps_unroll(struct m3_safetensors **dump, struct m3_batch *batch, struct m3_error *notes,
                    struct m3_error *error);

#endif
