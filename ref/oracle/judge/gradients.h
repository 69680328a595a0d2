/* Judges files of gradients, which `m3ref grad` writes: tensors d.TAP and d.param.TENSOR. ref/train/TRAINING.md, section
 * 19.20.
 *
 * Each is judged as a whole, by relative L2: within 1e-11 if both files are in double, otherwise within 1e-5, or 3e-5 in
 * the vision tower and its projector. A gradient that is zero must be zero. They are in the order in which a backward
 * pass computes them: taps from the last to the first, then parameters. */
#ifndef M3_ORACLE_JUDGE_GRADIENTS_H
#define M3_ORACLE_JUDGE_GRADIENTS_H

#include "model/taps.h"
#include "oracle/judge/align.h"
#include "oracle/judge/compare.h"

/* Is it a tensor of gradients? */
int m3_is_gradient(const char *name);
/* Does the file hold any? */
int m3_holds_gradients(const struct m3_safetensors *file);

/* The tap of a gradient. Returns 0, or -1: it is that of a parameter, whose rows are always complete; then *tap is one
 * without row numbers. */
int m3_gradient_tap(const char *name, enum m3_tap *tap, int64_t *layer);

/* Compares all that both files hold and that match the patterns; fills stages and counts. Notes what one file lacks: a
 * reference whose metadata say `holds` = "part" has no more than it was made for. */
int m3_compare_gradients(struct m3_judgement *result, const struct m3_side *reference, const struct m3_side *candidate,
                         const struct m3_compare_options *options, struct m3_error *error);

#endif
