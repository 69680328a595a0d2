/* The intermediate tensors of a text layer: the buffers of one layer, over all tokens of a call. */
#ifndef M3_MODEL_ACTIVATIONS_H
#define M3_MODEL_ACTIVATIONS_H

#include "model/forward/stages.h"

/* Keys and values of a layer. */
struct m3_keys {
    real *k, *v, *index_k;      /* [places,G,D] [places,G,D] [places,X] */
};

/* Norms, rotation and activations work in place, after their input has been shown. */
struct m3_activations {
    real *hidden;               /* [T,H] the residual stream */
    real *normed;               /* [T,H] its norm, which a projection, the MLP or the head reads */
    real *branch;               /* [T,H] what is added to `hidden`: attn_out, then mlp */
    real *q, *attn;             /* [T,Q,D] */
    struct m3_keys keys;        /* of all places that the rows see, if there is no cache */
    struct m3_keys own;         /* of the rows, if several ranks have rows */
    real *lse;                  /* [T,Q] */
    real *index_q;              /* [T,G,X] */
    real *block_scores;         /* [some rows,G,B] */
    int32_t *blocks;            /* [T,G,N] */
    real *gate, *up;            /* [T, the larger of I and J]; gate: of the MLP, then its activation */
    real *router;               /* [T,E] logits, then scores */
    int32_t *ids;               /* [T,K] the selected experts */
    real *p;                    /* [T,K] their weights */
    real *expert_out;           /* [T,K,H], only if it is shown */
    real *routed;               /* [T,H] */
    struct m3_angles angles;
};

/* For f->rows tokens after f->p0 cached ones. m3_activations_free may be called whatever f->status is afterwards. */
void m3_activations_make(struct m3_pass *f, struct m3_activations *a);
void m3_activations_free(struct m3_activations *a);

/* Allocates `keys`, where keys and values go without a cache. m3_activations_make calls it if the pass
 * begins without a cache. */
void m3_activations_keys(struct m3_pass *f, struct m3_activations *a);

#endif
