/* Generates tokens one by one: each from the main model, or drafted by MTP modules and verified by the main model.
 * SPEC 13. */
#ifndef M3_DECODE_GENERATE_H
#define M3_DECODE_GENERATE_H

#include "base/progress.h"
#include "decode/sampling.h"
#include "model/files/case.h"
#include "model/engine.h"

/* Drafts per step: with more rows a verified token could differ from the token that the model would give alone. */
enum { M3_MOST_DRAFTS = M3_ALONE_ROWS - 1 };

struct m3_token {
    int64_t index;              /* from 0 */
    int32_t id;
    double logprob;             /* ln of the model's own probability, before temperature, top_k and top_p */
    double margin;              /* its logit minus the largest other logit */
    double seconds;             /* since the start */
};

struct m3_generation {
    const struct m3_engine *engine;
    const struct m3_semantics *semantics;
    enum m3_linear linear;
    int threads;
    const struct m3_replacement *replacement;       /* operators to use; or NULL */
    struct m3_sampling sampling;
    int64_t max_new;                                /* >= 1 */
    const int32_t *stop;                            /* [stops] ids that end the output; the last token may be one */
    int64_t stops;
    int speculative;                                /* needs a model with MTP modules */
    void (*token)(void *self, const struct m3_token *token);        /* called for each token; or NULL */
    struct m3_progress progress;
    void *self;                                     /* of `token` */
};

struct m3_generated {
    int64_t tokens, drafted, accepted;
    int64_t main_calls;                             /* not counting the prefill */
    int64_t steps[M3_MOST_DRAFTS + 1];              /* how many main calls kept that many drafts */
};

/* Continues after the tokens of the case. */
int m3_generate(struct m3_generated *result, const struct m3_model *model, const struct m3_case *c,
                const struct m3_generation *how, struct m3_error *error);

#endif
