/* Which taps of two dumps are compared. Used only by compare.c. */
#ifndef M3_ORACLE_JUDGE_PRIVATE_MATCH_H
#define M3_ORACLE_JUDGE_PRIVATE_MATCH_H

#include "oracle/judge/align.h"
#include "oracle/judge/compare.h"

/* *taps [*count], to be freed: the taps that both dumps hold and that match the patterns, in execution order. Taps
 * left out are noted. M3_INTERNAL. */
int m3_match_taps(struct m3_matched **taps, int64_t *count, struct m3_judgement *result,
                  const struct m3_side *reference, const struct m3_side *candidate, const char *patterns,
                  struct m3_error *error);

#endif
