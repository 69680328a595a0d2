/* How close the selections of a pass were: m3_margin_of (certificate.h) for every decision. */
#ifndef M3_ORACLE_JUDGE_MARGIN_H
#define M3_ORACLE_JUDGE_MARGIN_H

#include <stdint.h>

#include "base/semantics.h"
#include "base/weight.h"
#include "io/config.h"

/* margins [T]; s [T,E] scores without the bias, ids [T,K], bias [E]. M3_INTERNAL: memory. */
int m3_margins_of_experts(double *margins, const double *s, const int32_t *ids, const struct m3_weight *bias, int64_t T,
                          int64_t K);
/* margins [T,G]; m [T,G,B] scores, ids [T,G,N]; row t is at place p0 + t. M3_INTERNAL: memory. */
int m3_margins_of_blocks(double *margins, const double *m, const int32_t *ids, const struct m3_config *config,
                         const struct m3_semantics *semantics, int64_t T, int64_t p0, int64_t B);

/* Marks the blocks to which a row with this own block attends whatever their score, as many as have room (SPEC 5.9):
 * the own block, local ones before it, initial ones. forced: zeros on entry. */
void m3_forced_blocks(unsigned char *forced, int64_t own, int64_t N, const struct m3_semantics *semantics);

#endif
