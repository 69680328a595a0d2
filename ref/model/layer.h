/* One text layer: attention, full or over chosen blocks, and MLP, dense or of experts. The main model's layers and
 * those of the MTP modules run here. SPEC 6. */
#ifndef M3_MODEL_LAYER_H
#define M3_MODEL_LAYER_H

#include "model/pass.h"

/* Activations of one layer, over all tokens of a call. Norm and rotation work in place, after their input was shown. */
struct m3_activations {
    real *x;                                /* [T,H] the residual stream */
    real *h;                                /* [T,H] what a norm or the attention hands on */
    real *q, *o;                            /* [T,Q,D] */
    real *k, *v, *index_k;                  /* [S,G,D] [S,G,D] [S,X], if there is no cache */
    real *lse;                              /* [T,Q] */
    real *index_q;                          /* [T,G,X] */
    real *scores;                           /* [some rows,G,B] */
    int32_t *blocks;                        /* [T,G,N] */
    real *gate, *up;                        /* [T, widest of dense and shared intermediate] */
    real *router;                           /* [T,E] logits, then scores */
    int32_t *ids;                           /* [T,K] */
    real *p;                                /* [T,K] */
    real *routed, *mlp;                     /* [T,H] */
    real *each;                             /* [T,K,H], only when it is shown */
    real *cos, *sin;                        /* [T,R/2] */
    real *attn_norm, *q_norm, *k_norm, *index_q_norm, *index_k_norm, *mlp_norm, *bias;   /* a layer's vectors */
};

/* For f->rows tokens behind f->p0. Returns f->status; m3_activations_free is fine after either. */
int m3_activations_make(struct m3_pass *f, struct m3_activations *b);
void m3_activations_free(struct m3_activations *b);

/* Where keys and values go when there is no cache; m3_activations_make does it if the pass begins without. */
int m3_activations_keys(struct m3_pass *f, struct m3_activations *b);

/* The rotary angles of all layers, b->cos and b->sin. positions [T]. Returns f->status. */
int m3_layer_angles(struct m3_pass *f, struct m3_activations *b, const int64_t *positions);

/* b->x through model->layers[l], its keys and values into the cache if the request has one. The caller sets f->layer,
 * the number in tap names. Returns f->status. */
int m3_layer_run(struct m3_pass *f, struct m3_activations *b, int64_t l);

#endif
