/* What a stage tells a recorder instead of computing. */
#ifndef M3_MODEL_GRAPH_RECORD_H
#define M3_MODEL_GRAPH_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/weight.h"
#include "model/graph/operators.h"
#include "model/taps.h"

enum { M3_STEP_INPUTS = 4, M3_STEP_WEIGHTS = 2 };

struct m3_recorded {
    enum m3_operator op;
    enum m3_tap tap;
    int is_shown; /* 0: the step only prepares the tap */
    const void *y;
    size_t bytes; /* of y */
    int64_t rows; /* of y */
    int is_noise; /* y is x with the noise of `jitter` */
    const void *in[M3_STEP_INPUTS]; /* from anywhere within what was written; NULLs at the end */
    const struct m3_weight *w[M3_STEP_WEIGHTS];
};

/* Steps as they come, those without a tap too. */
struct m3_recorded_step {
    struct m3_recorded step;
    int64_t layer;
    int64_t in[M3_STEP_INPUTS]; /* steps that wrote what it reads */
    int64_t rows_before[M3_STEP_INPUTS]; /* of what they wrote, before what it reads */
    int in_count;
    int64_t node; /* -1: it has none yet */
};

struct m3_recorder {
    struct m3_recorded_step *steps;
    int64_t count, room;
};

/* Inputs are what the last steps wrote there. M3_INTERNAL. */
int m3_record(struct m3_recorder *recorder, int64_t layer, const struct m3_recorded *step, struct m3_error *error);
/* The numbers at `data` are shown under a tap: those of a step that prepared it, otherwise those of another tap. */
int m3_record_shown(struct m3_recorder *recorder, int64_t layer, enum m3_tap tap, const void *data,
                    struct m3_error *error);

#endif
