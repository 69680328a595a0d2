/* Losses and their gradients, and the update of the router's bias. ref/train/TRAINING.md has a section for each.
 *
 *  name            outputs              inputs                        meaning                                   section
 *  cross_entropy   loss dz[T,V]         z[T,V] targets[T]             - sum of ln softmax(z)[target] / divisor  19.15
 *  balance_count   chosen mass[E]       l[M,E]                        what balance adds over the rows           19.16
 *  balance         dl[M,E], loss        l[M,E] chosen mass[E]         E sum over e of f_e p_e                   19.16
 *  index_loss      loss dq[T,G,X] dk    q k of both branches          KL(teacher || student) of every row       19.17
 *  bias_update     bias[E]              load[E]                       bias +:= rate sign(mean load - load)      19.18
 *
 * Losses are given without their weight; gradients are those of weight * loss. Everything inside is double, in
 * ascending order; a gradient is rounded once. Statuses and failures are as in ops/ops.h. */
#ifndef M3_TRAIN_LOSSES_H
#define M3_TRAIN_LOSSES_H

#include "ops/ops.h"
#include "train/readings.h"

/* Adds the loss of T rows to *loss. targets[t]: what row t predicts, below 0 if it is not scored; then its dz is 0.
 * divisor > 0: the number of scored rows of all calls. dz may be z. */
int m3_cross_entropy(struct m3_ctx *, double *loss, real *dz, const real *z, const int32_t *targets, int64_t T,
                     int64_t V, double divisor, double weight);

/* Adds M rows of router logits [M,E]: to chosen[e] how many have e among their K largest, to mass[e] the sum of their
 * softmax. counts [M]: 0 for rows that do not count; or NULL. Returns how many count. */
int64_t m3_balance_count(double *chosen, double *mass, const real *l, const unsigned char *counts, int64_t M, int64_t E,
                         int64_t K);
/* The loss of `rows` counted rows. */
double m3_balance_loss(const double *chosen, const double *mass, int64_t rows, int64_t E);
/* Adds the gradient of weight * loss to dl: that of M rows among `rows`. */
void m3_balance_gradient(real *dl, const real *l, const double *chosen, const unsigned char *counts, int64_t M,
                         int64_t E, int64_t rows, double weight);

/* The same for the reading aux=sigmoid, a loss of one layer, with the choice of the model itself, ids [M,K]. */
void m3_balance_sigmoid_chosen(double *chosen, const int32_t *ids, const unsigned char *counts, int64_t M, int64_t K);
int64_t m3_balance_sigmoid_mass(double *mass, const real *l, const unsigned char *counts, int64_t M, int64_t E);
double m3_balance_sigmoid_loss(const double *chosen, const double *mass, int64_t rows, int64_t E, int64_t K);
void m3_balance_sigmoid_gradient(real *dl, const real *l, const double *chosen, const unsigned char *counts, int64_t M,
                                 int64_t E, int64_t K, int64_t rows, double weight);

/* Sizes of the two branches; rows and keys as in m3_attend, without a cache. */
struct m3_index_loss {
    int64_t T, Q, G, D, X;
    const unsigned char *seen;      /* [T] 0: padding, which is no key and adds nothing as a row; NULL: none */
    const int32_t *blocks;          /* [T,G,N] the sparse phase: keys of the chosen blocks; NULL: warm-up, all keys */
    int64_t block, N;
    int64_t rows;                   /* that the sum is divided by: those of all sequences */
    struct m3_readings readings;    /* 0: the paper's; kl_phase and kl_rows are the caller's: blocks and rows */
};

/* Adds to *loss. dq, q [T,G,X] and dk, k [T,X] of the index branch; main_q [T,Q,D] and main_k [T,G,D], which get no
 * gradient; all after RoPE. */
int m3_index_loss(struct m3_ctx *, double *loss, real *dq, real *dk, const real *q, const real *k, const real *main_q,
                  const real *main_k, const struct m3_index_loss *d, double weight);

/* load [E]: rows that chose each expert. An expert with the average load keeps its bias. */
void m3_bias_update(real *bias, const int64_t *load, int64_t E, real rate);

#endif
