/* A pass that follows the decisions of a dump: chosen blocks, chosen experts and their weights. A candidate that
 * legitimately chose otherwise can so be followed to the end. SPEC 7. */
#ifndef M3_ORACLE_JUDGE_DECISIONS_H
#define M3_ORACLE_JUDGE_DECISIONS_H

#include "model/files/case.h"
#include "model/engine.h"

struct m3_decisions;

/* Every tap index.blocks, moe.experts and moe.weights of the dump, for the rows that it holds; layers without them
 * choose by themselves. *decisions is NULL on failure. M3_ABSENT, M3_IO, M3_BAD_INPUT: no dump, one of another model or
 * case, none of these taps, another shape, experts without weights. */
int m3_decisions_open(struct m3_decisions **decisions, const char *path, const struct m3_model *model,
                      const struct m3_case *c, const struct m3_engine *engine, struct m3_error *notes,
                      struct m3_error *error);
/* For m3_request. Fails with M3_BAD_INPUT where it meets ids that no operator can take: blocks that are not visible,
 * strictly ascending ids and then -1; experts below 0, from E on, or twice; weights that are not finite. */
const struct m3_force *m3_decisions_force(const struct m3_decisions *decisions);
/* How many layers have block lists, and experts, of the dump's. */
void m3_decisions_layers(const struct m3_decisions *decisions, int64_t *blocks, int64_t *experts);
void m3_decisions_close(struct m3_decisions *decisions);

#endif
