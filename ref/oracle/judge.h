/* The verdict on one tap. Each judge fills a stage whose tap, tensors and, for floats, allowances are set. */
#ifndef M3_ORACLE_JUDGE_H
#define M3_ORACLE_JUDGE_H

#include "oracle/align.h"
#include "oracle/compare.h"

/* Floats (F64, F32, F16, BF16), by relative L2 and by element; counts (I32, I64), by equality. `moe.weights` and
 * `moe.expert_out` are aligned by expert id where both dumps hold `moe.experts`; slots of experts that only one side
 * chose are left out.
 *
 * NaN in the reference: not comparable. NaN in the candidate, or an infinity that only one side has: fail. A reference
 * of zeros: the candidate must be zero. */
void m3_judge_values(struct m3_stage *stage, const struct m3_matched *matched);

/* How far one element of a judged stage of floats is off, in units of what is allowed there; infinite for NaN and for
 * an infinity that only one side has. */
double m3_share_of_allowed(const struct m3_stage *stage, double got, double want);

/* Ids (I32, I64): `index.blocks` [T,G,N], where -1 is no block, and `moe.experts` [T,K].
 *
 * Equal scores go to the lower id, so another set is inadmissible even if its ids have equal scores in the reference,
 * unless the candidate's own scores are there and order its choice so: then its rounding broke a tie that is exact in
 * the reference, and the set is a tie. A tie needs `index.block_scores` of both; experts are ranked by scores plus a
 * bias that no dump holds, so they have no ties. The last block of a row is its own, forced whatever its score: to
 * leave it out is no tie.
 *
 * 0, or M3_INTERNAL if memory is short. */
int m3_judge_selection(struct m3_stage *stage, const struct m3_matched *matched, struct m3_error *error);

/* How many ids such a tap can choose among, by the last dimension of a tap of their scores; INT64_MAX if unknown. */
int64_t m3_id_limit(const struct m3_matched *matched);

/* Sets the verdict and its reason, and returns. */
void m3_judge_not_comparable(struct m3_stage *stage, const char *why);

#endif
