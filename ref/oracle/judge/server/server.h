/* The verdict on a server's answer: log-probabilities, compared with those of honest implementations of the profile;
 * generated tokens, compared with what the logits allow. SPEC 7.18. */
#ifndef M3_ORACLE_SERVER_SERVER_H
#define M3_ORACLE_SERVER_SERVER_H

#include "base/progress.h"
#include "model/semantics.h"
#include "oracle/error/recompute.h"
#include "oracle/error/tiers/verdict.h"
#include "oracle/judge/server/answer.h"

/* How the server drew its tokens. */
struct m3_server_sampling {
    double temperature;         /* 0: greedy */
    int64_t top_k;              /* 0: all */
    double top_p;
};

struct m3_server_plan {
    const struct m3_setting *setting;   /* its case is the prompt, with the tokens that m3_server_case adds */
    const char *name;                   /* of the answer, as the user gave it */
    const char *profile;                /* the text that names setting->profile */
    int64_t prompt;                     /* tokens of the prompt in the case */
    int64_t runs;                       /* honest implementations; -1: as many as the profile needs */
    uint64_t seed;
    int judges_tokens;                  /* the sampling is known: the generated tokens are judged too */
    int processed;                      /* log-probabilities are of logits / temperature */
    int no_causes;                      /* known mistakes and readings are not tried */
    struct m3_server_sampling sampling;
    struct m3_progress progress;
};

/* One judged position: the token at `place` of the sequence. */
struct m3_server_place {
    int64_t place;
    int generated;
    int32_t chosen;             /* -1: unknown */
    int64_t ids;                /* log-probabilities */
    double nearest, honest;     /* rms distance to the nearest run; the largest of an honest run. NaN: no ids */
    int32_t worst;              /* the id that is farthest from the truth, with both numbers */
    double got, want;
    double deficit, margin;     /* logits: how far the token is below what sampling allows; what rounding may do */
    enum m3_verdict verdict;    /* fail: no honest run explains it */
};

enum { M3_SERVER_SHARES = 4 };  /* 50, 75, 90, 100 % of the positions */

struct m3_server {
    const char *form;
    int64_t tokens, runs, stages, judged, failed, suspect;      /* positions; tokens: of the sequence */
    struct m3_server_place *places;                             /* [count] in the order of the sequence */
    int64_t count;
    const struct m3_server_place *first;        /* the first that no honest run explains; NULL: none */
    double nearest[M3_SERVER_SHARES], nearest_largest[M3_SERVER_SHARES];
    double error, error_largest;                /* 75 % of the positions, from the truth */
    double quotient;                            /* the worst, of what is suspect */
    int64_t first_bad, last_bad; /* only these positions are off, which decided; 0: all count, or nothing is wrong */
    const char *by; /* the quantile that decided: "75 % of the positions"; NULL: none did */
    enum m3_verdict distances; /* by log-probabilities alone */
    int is_fine; /* the profile stores everything in float */
    int64_t rank_changes, rank_unexplained; /* another most likely token than the truth; than any honest run */
    int64_t generated, forbidden; /* generated tokens that were judged; that sampling does not allow */
    enum m3_verdict by_tokens, by_lists; /* the generated tokens; lists that lack the most likely token */
    double z; /* of the likelihood of a sampled generation; NaN: none */
    enum m3_verdict verdict;
    enum m3_status status;
    const char *mistake; /* id and description of the known mistake, or NULL */
    const char *mistake_what;
    char reading[M3_SEMANTICS_TEXT]; /* or "" */
    double temperature; /* that explains the log-probabilities; 0: none */
    double z_toward, share; /* how far the answer has moved toward it; 0: not that far */
    int tried; /* mistakes and readings */
    struct m3_error notes;
    char sentence[2048];
};

/* Adds the generated tokens, except the last, to the case of the prompt. */
int m3_server_case(struct m3_case *c, const struct m3_answer *answer, const struct m3_config *config,
                   struct m3_error *error);

/* The answer must be settled. Free it in any case. Errors as for m3_honest_new and of passes. */
int m3_server_check(struct m3_server *result, const struct m3_server_plan *plan, const struct m3_answer *answer,
                    struct m3_error *error);
void m3_server_free(struct m3_server *result);

/* A few lines for people, of which the last is the sentence; or a line of JSON for each position, and the summary. */
int m3_server_text(FILE *out, const struct m3_server *result, int all, struct m3_error *error);
int m3_server_json(FILE *out, const struct m3_server *result, struct m3_error *error);

#endif
