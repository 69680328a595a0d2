/* Taps that are excluded from judgement by value because a selection differs from the reference's. SPEC 7.8.
 *
 * After a flip of row t in layer l the candidate computes something else: row t of the later taps in the layer and in
 * all later layers is another result, not a wrong one. Rows after t see it in later layers through attention: their
 * drift is legitimate, and only measured drift shows how large it may be. */
#ifndef M3_ORACLE_JUDGE_TAINT_H
#define M3_ORACLE_JUDGE_TAINT_H

#include "model/taps.h"
#include "oracle/judge/compare.h"

enum m3_tainted {
    M3_TAINT_NONE,              /* judged normally */
    M3_TAINT_DRIFT,             /* judged by measured drift, or not at all */
    M3_TAINT_OTHER,             /* another computation: not judged by value */
};

struct m3_taint;

/* last_layer: the last known layer of the text model. NULL if memory is short; m3_taint_free(NULL) does nothing. */
struct m3_taint *m3_taint_new(int64_t last_layer);
void m3_taint_free(struct m3_taint *taint);

/* Adds a flip. Flips must come in execution order: layers ascending, blocks before experts. group -1: a selection of
 * experts. Later flips of a row in the same layer are merged with its first. M3_INTERNAL if memory is short. */
int m3_taint_add(struct m3_taint *taint, int64_t layer, int64_t row, int64_t group, struct m3_error *error);

/* The taint of a tap's row from the flips added so far. group: the group of heads in question, in attn and attn_lse of
 * text layers; -1: any. `moe.expert_out` is judged slot by slot: slots of the same expert are not changed by a flip. */
enum m3_tainted m3_taint_of(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row, int64_t group);

/* Is a row of this tap tainted for some groups and not for others? */
int m3_taint_is_partial(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row);
int m3_taint_is_empty(const struct m3_taint *taint);

#endif
