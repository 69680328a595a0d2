/* Pictures to rows of the token stream: vision tower and projector. SPEC 6. */
#ifndef M3_MODEL_VISION_H
#define M3_MODEL_VISION_H

#include "model/forward/stages.h"
#include "model/forward/text.h"

/* features->rows are to be freed; *features, which is zero before, stays so if the request has no pictures. */
void m3_vision_forward(struct m3_pass *f, struct m3_features *features);

/* Activations of one layer, over the patches of all pictures. Rotation and GELU work in place, after their input has
 * been shown. */
struct m3_tower {
    real *pixels;                           /* [P,C] */
    real *hidden;                           /* [P,W] the residual stream */
    real *branch;                           /* [P,W] the branch: norm1, attn_out, norm2, mlp */
    real *q, *k, *v, *attn;                 /* [P,A,U] */
    real *wide;                             /* [P,L], then [P,Y], then [M,Y]: before a GELU, and after it */
    struct m3_angles angles;
    int64_t *places;                        /* [P,3] time, row, column */
    int64_t *ends, segments;
};

/* Its parts, for f->rows patches, in the order in which they run. m3_tower_free may be called whatever f->status is. */
void m3_tower_make(struct m3_pass *f, struct m3_tower *a);
void m3_tower_patches(struct m3_pass *f, struct m3_tower *a);      /* to hidden states, and the place of each patch */
void m3_tower_layer(struct m3_pass *f, struct m3_tower *a, const struct m3_vision_layer *w);
/* projected [P,H], features [M,H]; leaves f->rows M. */
void m3_tower_project(struct m3_pass *f, struct m3_tower *a, real *projected, real *features);
void m3_tower_free(struct m3_tower *a);

#endif
