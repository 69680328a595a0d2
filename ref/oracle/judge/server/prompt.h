/* Token lists that make an answer of a server tell much: few decisions that rounding may turn, clamps that are reached,
 * long enough for a choice of blocks. SPEC 7.18. */
#ifndef M3_ORACLE_SERVER_PROMPT_H
#define M3_ORACLE_SERVER_PROMPT_H

#include "base/progress.h"
#include "model/model.h"

/* What the reference does with a list of tokens. */
struct m3_prompt_figures {
    int64_t decisions, narrow; /* choices of blocks and experts; those with a narrow margin */
    int64_t clamped; /* elements of gate and up beyond the limit */
    int64_t clamped_tokens; /* tokens that have such an element in some layer */
    double least, median; /* margins, as a share of the largest score of their choice */
};

struct m3_prompt_plan {
    const struct m3_model *model;
    const struct m3_semantics *semantics;
    int64_t tokens;
    uint64_t seed;
    int64_t draws; /* candidates for each part of the list */
    int threads;
    const unsigned char *left_out; /* [V] 1: the token is not drawn */
    struct m3_progress progress;
};

/* A margin below this share of the largest score is narrow: rounding to BF16 may turn the choice. */
extern const double m3_prompt_narrow;

/* ids [tokens]; the same plan gives the same. M3_USAGE: no token may be drawn. */
int m3_prompt_search(int32_t *ids, struct m3_prompt_figures *figures, const struct m3_prompt_plan *plan,
                     struct m3_error *error);

/* left_out [V] := 1 for placeholders of pictures, and for the special tokens that config.json, generation_config.json
 * and tokenizer_config.json in the model directory name. *count: how many. */
int m3_prompt_special(unsigned char *left_out, int64_t *count, const struct m3_model *model, const char *folder,
                      struct m3_error *error);

#endif
