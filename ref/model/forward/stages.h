/* The stages of a forward pass, one for each operator of ops.h: they only say which tap is computed from which inputs.
 *
 * A stage does nothing after the pass has failed, or on a rank without rows. Otherwise it calls the pass's operator for
 * the current rows, with the pass's context and the config's numbers, and shows the result as `tap`; prepares(tap) shows
 * nothing. A failure is reported under that tap and ends the pass.
 *
 * Arguments: a tap before each output, then inputs, weights, dimensions; ops.h gives the shapes. The same buffer as
 * output and input means in place. Names have no prefix because only an engine's own entry is an exported symbol. */
#ifndef M3_MODEL_STAGES_H
#define M3_MODEL_STAGES_H

#include "model/forward/pass.h"

/* Rotary angles of all rows of a part, used by every layer. */
struct m3_angles {
    real *cos, *sin; /* [T,R/2] */
    int64_t R; /* channels of a head that are rotated */
};

/* Shows a tap that is already computed: an operator's second output, or another name for the same numbers. */
void show(struct m3_pass *f, int tap, void *data);

/* A stored vector as `real`, in scratch memory that the end of the stage releases. NULL if memory is short. */
real *expanded(struct m3_pass *f, const struct m3_weight *w);

void embed(struct m3_pass *f, int tap, real *y, const int32_t *ids);
/* y := x, its rows of one id := M rows of features */
void scatter(struct m3_pass *f, int tap, real *y, const real *x, const real *features, int64_t id, int64_t M);

/* Gemma form or plain form, as the config says. w [H]; a shorter w norms each head separately. */
void rms_norm(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w);
void layer_norm(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w,
                const struct m3_weight *bias);
void linear(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w);
/* linear with a bias */
void affine(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_weight *w,
            const struct m3_weight *bias);
void add(struct m3_pass *f, int tap, real *y, const real *a, const real *b);

void rope_table(struct m3_pass *f, int tap, struct m3_angles *angles, const int64_t *positions);
void rope_table_3d(struct m3_pass *f, int tap, struct m3_angles *angles, const int64_t *places);
void rope(struct m3_pass *f, int tap, real *y, const real *x, const struct m3_angles *angles);

void attend_full(struct m3_pass *f, int lse_tap, real *lse, int tap, real *o, const real *q, const real *k,
                 const real *v);
/* places: of the whole call; it gives the stride B of the scores. */
void block_scores(struct m3_pass *f, int tap, real *scores, const real *q, const real *k, int64_t places);
void select_blocks(struct m3_pass *f, int tap, int32_t *blocks, const real *scores, int64_t places);
/* block_scores and select_blocks, M3_SCORE_ROWS rows at a time: scores has room for no more. */
void choose_blocks(struct m3_pass *f, int scores_tap, real *scores, int tap, int32_t *blocks, const real *q,
                   const real *k);
void attend_blocks(struct m3_pass *f, int lse_tap, real *lse, int tap, real *o, const real *q, const real *k,
                   const real *v, const int32_t *blocks);
void attend_segments(struct m3_pass *f, int tap, real *o, const real *q, const real *k, const real *v,
                     const int64_t *ends, int64_t segments);

/* swiglu_oai or swiglu, as the config says. */
void gated_activation(struct m3_pass *f, int tap, real *y, const real *gate, const real *up, int64_t F);
void gelu(struct m3_pass *f, int tap, real *y, const real *x);
void sigmoid(struct m3_pass *f, int tap, real *y, const real *x);

/* Only in training; does nothing if the semantics have no jitter. */
void jitter(struct m3_pass *f, int tap, real *y, const real *x);
void route(struct m3_pass *f, int ids_tap, int32_t *ids, int p_tap, real *p, const real *scores,
           const struct m3_weight *bias);
void experts(struct m3_pass *f, int each_tap, real *each, int tap, real *routed, const real *x, const int32_t *ids,
             const real *p, const struct m3_expert *w);

/* y [P,C] := the pixels of the case */
void read_pixels(struct m3_pass *f, int tap, real *y, const float *pixels, int64_t C);
/* One half of every row of joined [T,2H] := x [T,H], or zeros for NULL; the first half before the second. */
void put_half(struct m3_pass *f, int tap, real *joined, const real *x, int half);
/* The first rows of y [T,H] := x [rows,H]; NULL: they stay. */
void put_rows(struct m3_pass *f, int tap, real *y, const real *x, int64_t rows);

#endif
