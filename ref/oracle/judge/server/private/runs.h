/* What a run of the model says where the server answered. */
#ifndef M3_ORACLE_SERVER_PRIVATE_RUNS_H
#define M3_ORACLE_SERVER_PRIVATE_RUNS_H

#include "model/engine.h"
#include "oracle/judge/server/server.h"
#include "oracle/variants/honest_margins.h"

/* One place of the answer: row of the logits that predicts it, and its entries. */
struct m3_asked {
    int64_t row, first, count;
    int32_t chosen;             /* -1: unknown */
    int generated;
    int64_t listed;             /* how many of the entries are the most likely ones; 0: none */
};

/* All that is asked of each run. */
struct m3_question {
    const struct m3_asked *asked;       /* [count] rows ascending */
    int64_t count;
    const int32_t *ids;                 /* [entries] */
    const int32_t *best;                /* [count] the truth's most likely tokens; NULL: not known yet */
    int64_t entries, V;
    double scale;                       /* of the logits, before the softmax: 1 / temperature, or 1 */
    int judges_tokens;
    struct m3_server_sampling sampling;
};

enum { M3_TOLD_LEADERS = 64 };

/* What one run gives. */
struct m3_told {
    double *logprobs;           /* [entries] */
    double *other;              /* [entries] NULL, or: what another row says of the same ids */
    int32_t *top;               /* [count] its most likely token */
    double *deficit;            /* [count] logits: how far the chosen token is below what sampling allows */
    double *top_deficit;        /* [count] how far the most likely entry is below the most likely token; 0: none */
    int64_t *rank;              /* [count] how many tokens it takes for more likely than `best` of the question */
    int32_t *leaders;           /* [count, M3_TOLD_LEADERS] NULL, or: its most likely tokens, in order; then -1 */
    double *gaps;               /* [count, M3_TOLD_LEADERS] how far their logits are below the first */
    double *surprise, *variance;        /* [count] ln p of the sampled token minus its mean; its variance */
};

/* How a program computes ln softmax: in double, or in float by one of two formulas. */
enum m3_softmax { M3_SOFTMAX_F64, M3_SOFTMAX_F32_MAX, M3_SOFTMAX_F32_SUM, M3_SOFTMAXES };

/* `is_truth`: with `other` and `leaders`. */
int m3_told_new(struct m3_told *told, const struct m3_question *q, int is_truth, struct m3_error *error);
void m3_told_free(struct m3_told *told);

/* Runs the pass and keeps what is asked; `request` is complete but for the sink. */
int m3_ask(struct m3_told *told, const struct m3_question *q, const struct m3_engine *engine,
           const struct m3_model *model, struct m3_request *request, enum m3_softmax softmax, struct m3_error *error);
/* The same of an honest run in float; `margins` takes how sure its choices are. */
int m3_ask_honest(struct m3_told *told, struct m3_honest_margins *margins, const struct m3_question *q,
                  const struct m3_model *model, struct m3_request *request, enum m3_softmax softmax,
                  struct m3_error *error);

#endif
