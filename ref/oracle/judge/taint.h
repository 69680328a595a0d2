/* What a choice that differs from the reference's takes out of judgement by value. SPEC 7.8.
 *
 * After a flip of row t in layer l the candidate computes something else: row t of what follows in the layer and of all
 * later layers is another result, not a wrong one. Rows after t see it in later layers through attention: their drift
 * is legitimate, and only measured drift can tell how large it may be. */
#ifndef M3_ORACLE_JUDGE_TAINT_H
#define M3_ORACLE_JUDGE_TAINT_H

#include "model/taps.h"
#include "oracle/judge/compare.h"

enum m3_tainted {
    M3_TAINT_NONE,              /* judged as ever */
    M3_TAINT_DRIFT,             /* judged by measured drift, or not at all */
    M3_TAINT_OTHER,             /* another computation: not judged by value */
};

struct m3_taint;

/* last_layer: of the text model, as far as it is known. NULL if memory is short; m3_taint_free(NULL) is fine. */
struct m3_taint *m3_taint_new(int64_t last_layer);
void m3_taint_free(struct m3_taint *taint);

/* In execution order: layers ascending, blocks before experts. group -1: a choice of experts. A row's later flips in
 * the same layer add to its first. M3_INTERNAL if memory is short. */
int m3_taint_add(struct m3_taint *taint, int64_t layer, int64_t row, int64_t group, struct m3_error *error);

/* Of a tap's row, as far as flips have been added. group: that of the heads asked for, in attn and attn_lse of text
 * layers; -1: any of them. `moe.expert_out` is asked slot by slot: slots of the same expert are what they were. */
enum m3_tainted m3_taint_of(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row, int64_t group);

/* Is a row of this tap tainted for some groups and not for others? */
int m3_taint_is_partial(const struct m3_taint *taint, enum m3_tap tap, int64_t layer, int64_t row);
int m3_taint_is_empty(const struct m3_taint *taint);

#endif
