/* The rank of a comparison's float stages among legitimate implementations (envelope.h). SPEC 7.10.
 *
 * The runs of an envelope make exactly the selections of the truth: a candidate is ranked up to the first selection
 * that differs from the reference's or was not compared. */
#ifndef M3_ORACLE_JUDGE_RANKING_H
#define M3_ORACLE_JUDGE_RANKING_H

#include "oracle/judge/align.h"
#include "oracle/judge/finding/finding.h"
#include "oracle/judge/rows/envelope.h"

/* The reasons why a stage is not ranked. */
enum m3_unranked { M3_UNRANKED_CHOICES, M3_UNRANKED_ROWS, M3_UNRANKED_ABSENT, M3_UNRANKED_BLIND, M3_UNRANKED_REASONS };

struct m3_ranking {
    const struct m3_envelope *envelope;         /* NULL: nothing is ranked */
    int64_t same_choices;                       /* selection taps equal to the reference's so far */
    int64_t unranked[M3_UNRANKED_REASONS];
    const char *first[M3_UNRANKED_REASONS];     /* a tap of each */
};

/* Notes where the reference contradicts the envelope. */
void m3_ranking_begin(struct m3_ranking *ranking, struct m3_judgement *result, const struct m3_envelope *envelope,
                      const struct m3_safetensors *reference);

/* Counts selections equal to the reference's. Call it after each judged selection, in execution order. */
void m3_ranking_choose(struct m3_ranking *ranking, const struct m3_finding *stage);

/* Sets percentile, envelope_* and beyond_envelope of a float stage that was measured over `elements`. Returns why it is
 * not ranked; M3_UNRANKED_REASONS if it is, or if nothing is. */
enum m3_unranked m3_ranking_rank(struct m3_ranking *ranking, struct m3_finding *stage, const struct m3_matched *matched,
                                 int64_t elements);

/* Sets result->envelope, and notes what is not ranked. M3_INTERNAL: memory is short. */
int m3_ranking_end(const struct m3_ranking *ranking, struct m3_judgement *result, struct m3_error *error);

#endif
