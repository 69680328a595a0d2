/* Taps of a model, computed from given ones, operator by operator, each by the engine's own stage. */
#ifndef M3_MODEL_GRAPH_EVALUATE_H
#define M3_MODEL_GRAPH_EVALUATE_H

#include "model/engine.h"
#include "model/files/case.h"
#include "model/graph/graph.h"
#include "model/graph/values.h"

enum m3_given {
    M3_GIVEN, /* `values` has its data */
    M3_MADE, /* it is known now */
    M3_NOT_GIVEN, /* it is to be computed */
    M3_LACKING /* it can be neither: M3_WRONG */
};

struct m3_evaluator {
    const struct m3_engine *engine;
    const struct m3_model *named; /* by whose layers taps are named; its graph is followed */
    const struct m3_model *model; /* which computes: the same, or some layers of it */
    int64_t dropped; /* layers of `named` before the first of `model` */
    const struct m3_request *how; /* semantics, replacement, force; its ids and positions are those of the first row
                                   * that is computed: of the text, rows from that one on, no others */
    const struct m3_case *the_case; /* the whole call: its rows and pictures */
    int64_t p0; /* places before row 0 */
    int64_t patches; /* rows of taps of pictures, if not all */
    /* Asked before a tap is computed; may itself evaluate others. NULL: nothing is given. */
    enum m3_given (*give)(void *self, struct m3_tap_values *values);
    void *self;
    struct m3_tap_values *known; /* [count] */
    int count, room;
    struct m3_error *error;
};

/* Rows of a tap, which stay the evaluator's. M3_WRONG without a message: a tap is lacking; or the status of an
 * operator. */
int m3_evaluate_tap(struct m3_tap_values *values, struct m3_evaluator *e, enum m3_tap tap, int64_t layer, int64_t first,
                    int64_t rows);
/* Calls the operator that makes the tap, whatever is known of it. */
int m3_evaluate_call(struct m3_evaluator *e, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows);
/* Adds what was made otherwise. Takes over the values, also on failure. M3_INTERNAL. */
int m3_evaluator_keep(struct m3_evaluator *e, struct m3_tap_values *values);
/* The layer's number in `model`. */
int64_t m3_evaluator_layer(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer);
/* Tells a known mistake which tap comes next, in a layer of `model`. */
int m3_evaluator_announce(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer);
/* What is known of the tap so far; NULL: nothing. */
const struct m3_tap_values *m3_evaluated(const struct m3_evaluator *e, enum m3_tap tap, int64_t layer);
void m3_evaluator_forget(struct m3_evaluator *e);

#endif
