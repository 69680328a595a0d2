/* What a text layer computes with: the buffers of one layer, over all tokens of a call. */
#ifndef M3_MODEL_ACTIVATIONS_H
#define M3_MODEL_ACTIVATIONS_H

#include "model/stages.h"

/* Norms, rotation and activations work in place, once their input was shown. */
struct m3_activations {
    real *hidden;               /* [T,H] the residual stream */
    real *normed;               /* [T,H] the norm of it that a projection, the MLP or the head reads */
    real *branch;               /* [T,H] what is added to it: attn_out, then mlp */
    real *q, *attn;             /* [T,Q,D] */
    real *k, *v, *index_k;      /* [T,G,D] [T,G,D] [T,X], if there is no cache */
    real *lse;                  /* [T,Q] */
    real *index_q;              /* [T,G,X] */
    real *block_scores;         /* [some rows,G,B] */
    int32_t *blocks;            /* [T,G,N] */
    real *gate, *up;            /* [T, the wider of I and J]; gate: of the MLP, then its activation */
    real *router;               /* [T,E] logits, then scores */
    int32_t *ids;               /* [T,K] the chosen experts */
    real *p;                    /* [T,K] their weights */
    real *expert_out;           /* [T,K,H], only if it is shown */
    real *routed;               /* [T,H] */
    struct m3_angles angles;
};

/* For f->rows tokens after f->p0 cached ones; m3_activations_free is fine whatever f->status is then. */
void m3_activations_make(struct m3_pass *f, struct m3_activations *a);
void m3_activations_free(struct m3_activations *a);

/* Where keys and values go when there is no cache; m3_activations_make does it if the pass begins without. */
void m3_activations_keys(struct m3_pass *f, struct m3_activations *a);

#endif
