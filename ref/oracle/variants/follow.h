/* A pass that goes on from a candidate's own layer outputs: what each layer should have made of them, and what honest
 * implementations make of them, row by row. SPEC 7.10. */
#ifndef M3_ORACLE_VARIANTS_FOLLOW_H
#define M3_ORACLE_VARIANTS_FOLLOW_H

#include "io/safetensors.h"
#include "model/engine.h"
#include "oracle/variants/envelope_make.h"

/* The runs that a profile needs for this dump. From its own inputs, one layer of an implementation differs little from
 * another's: if the dump holds the outputs of all layers from `first` to `end` but the last, fewer runs are enough than
 * over a whole pass. */
int64_t m3_follow_runs(const struct m3_profile *profile, const struct m3_safetensors *follow,
                       const struct m3_model *model, int64_t first, int64_t end, int64_t T);

/* The input of a layer, [T,H], from the dump's output of the layer before: to be freed; NULL with status 0: the dump does
 * not hold it in whole, or not by numbers. M3_INTERNAL. */
int m3_follow_input(double **hidden, const struct m3_safetensors *file, int64_t layer, int64_t T, int64_t H,
                    struct m3_error *error);

/* The first of the layers from which a tap of this layer, or for -1 one after all layers, is computed if `follow` is
 * followed; NULL: 0. */
int64_t m3_follow_from(const struct m3_safetensors *follow, const struct m3_model *model, int64_t layer, int64_t T);

/* Runs engine->forward; but after a layer whose whole output `follow` holds, the next one begins from that output. NULL:
 * nothing is followed; nor is it where an MTP module needs the pass from its start. */
int m3_follow_forward(const struct m3_engine *engine, const struct m3_model *model, const struct m3_request *request,
                      const struct m3_safetensors *follow, struct m3_error *error);

/* Runs plan->row_runs implementations that follow plan->follow, and the double engine. *truth holds its taps, *rows the
 * statistic (judge/rows/rows.h). Both are in files without a name, in the folder for temporary files; the caller closes
 * them. NULL on failure; errors as for m3_envelope_make. */
int m3_follow_rows(struct m3_safetensors **truth, struct m3_safetensors **rows, const struct m3_envelope_plan *plan,
                   struct m3_error *error);

#endif
