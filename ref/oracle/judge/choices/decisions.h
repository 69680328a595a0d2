/* A pass that uses the decisions of a dump: selected blocks, selected experts and their weights. It follows a
 * candidate that legitimately selected otherwise to the end. SPEC 7. */
#ifndef M3_ORACLE_JUDGE_DECISIONS_H
#define M3_ORACLE_JUDGE_DECISIONS_H

#include "model/files/case.h"
#include "model/engine.h"

struct m3_decisions;

/* Reads every tap index.blocks, moe.experts and moe.weights of the dump, for the rows that it holds; layers without
 * them select for themselves. *decisions is NULL on failure. M3_ABSENT, M3_IO; M3_BAD_INPUT: not a dump, a dump of
 * another model or case, without these taps, with another shape, or with experts but no weights. */
int m3_decisions_open(struct m3_decisions **decisions, const char *path, const struct m3_model *model,
                      const struct m3_case *c, const struct m3_engine *engine, struct m3_error *notes,
                      struct m3_error *error);
/* For m3_request. Fails with M3_BAD_INPUT at ids that no operator can use: blocks that are not visible, strictly
 * ascending ids followed by -1; experts below 0, from E on, or twice; weights that are not finite. */
const struct m3_force *m3_decisions_force(const struct m3_decisions *decisions);
/* The number of layers with block lists, and with experts, from the dump. */
void m3_decisions_layers(const struct m3_decisions *decisions, int64_t *blocks, int64_t *experts);
void m3_decisions_close(struct m3_decisions *decisions);

#endif
