/* Reads companions, which `run --bounds` writes into a dump and `run --companions` into a second file: bounds, gains
 * and margins of taps, and the parts of model and case that are needed to recompute norms, rotations, attention,
 * scores, activations and sums without the weights. SPEC 3.5, 7.8. */
#ifndef M3_ORACLE_JUDGE_COMPANIONS_H
#define M3_ORACLE_JUDGE_COMPANIONS_H

#include "base/semantics.h"
#include "io/safetensors.h"
#include "model/files/case.h"
#include "model/model.h"
#include "model/taps.h"

struct m3_companions;

/* Is it the name of a companion, `rows` or `vision.rows`? */
int m3_is_companion(const char *name);
/* Does the file hold companions? */
int m3_companions_in(const struct m3_safetensors *file);

/* Loads the companions of `dump`, from itself (file NULL) or from a second file. Both must stay open while *companions
 * is used. M3_BAD_INPUT, naming the tensor, what was found and what was expected: no companions, an invalid config,
 * shapes that do not fit it; M3_NOT_COMPARABLE: companions of another model, case or reading. *companions is NULL on
 * failure. */
int m3_companions_load(struct m3_companions **companions, const struct m3_safetensors *dump,
                       const struct m3_safetensors *file, struct m3_error *error);
void m3_companions_free(struct m3_companions *companions);                      /* NULL is fine */

/* Norm weights, biases and router biases have data; all other weights have a shape and data NULL. */
const struct m3_model *m3_companions_model(const struct m3_companions *companions);
const struct m3_semantics *m3_companions_semantics(const struct m3_companions *companions);
const struct m3_case *m3_companions_case(const struct m3_companions *companions);       /* grids without pixels */

/* The companions of one tap. Pointers lead into the file, or to copies that this struct owns; NULL: not there. */
struct m3_companion {
    int64_t rows, width;            /* of the tap in the dump: its first dimension, and the product of the others */
    const double *bound, *walk;     /* [rows,width] */
    const double *gain;             /* row r at gain + r * gain_stride */
    int64_t gain_stride;            /* 0: the same for every row; width */
    const double *intermediates, *intermediates_walk; /* [rows,width] per unit of the roundoff of storing them */
    const double *margin; /* [decisions]: [rows] or [rows,groups] */
    int64_t decisions;
    int64_t n, f; /* steps of the bound; -1 without a bound */
    double *owned[6];
};

/* Returns 0, M3_BAD_INPUT (a shape other than the tap's, steps that are not a number) or M3_INTERNAL. A tap without
 * companions has NULLs. Call m3_companion_free after any of them. */
int m3_companion_read(struct m3_companion *out, const struct m3_companions *companions, enum m3_tap tap, int64_t layer,
                      struct m3_error *error);
void m3_companion_free(struct m3_companion *companion);

#endif
