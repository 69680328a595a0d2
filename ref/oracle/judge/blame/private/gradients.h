/* What the judge of gradients shares: the candidate's values, and the derivative of the operator of a tap. */
#ifndef M3_ORACLE_BLAME_PRIVATE_GRADIENTS_H
#define M3_ORACLE_BLAME_PRIVATE_GRADIENTS_H

#include "oracle/judge/blame/private/blame.h"
#include "oracle/error/backward/derivative.h"

enum { OWNED = 64 }; /* more than the arrays that any gradient needs */

struct m3_gradients {
    struct m3_judgement *result;
    const struct m3_blaming *b;
    const struct m3_setting *s;
    struct m3_backward_arithmetic how;
    struct m3_arithmetic plain;
    int has_aux, has_mtp; /* losses that reach other tensors, too: router logits; embedding and lm_head */
    void *owned[OWNED]; /* freed when a gradient has been judged */
    int owned_count;
    char missing[128]; /* the first tensor that the candidate does not hold */
    struct m3_expert shared; /* a gated MLP as one expert */
    int64_t others; /* gradients that are not recomputed; the first of them */
    const char *first_other;
    int status;
};

/* ---- derivative.c. Memory lives until m3_gradients_forget; after a failure g->status is set, and if the candidate does
 * not hold a tensor, g->missing names it */

void *m3_gradients_keep(struct m3_gradients *g, void *memory, size_t bytes);
double *m3_gradients_room(struct m3_gradients *g, int64_t n);
void m3_gradients_forget(struct m3_gradients *g);
/* A tensor of the candidate as numbers. */
double *m3_gradients_reals(struct m3_gradients *g, const char *name, int64_t count);
const struct m3_blame_item *m3_gradients_item(struct m3_gradients *g, enum m3_tap tap, int64_t layer);
/* The candidate's gradient of a tap. */
double *m3_gradients_arriving(struct m3_gradients *g, const struct m3_blame_item *item);
int m3_gradients_is_index(enum m3_tap tap);

/* The derivative of the operator of tap y, without outputs; `of` is NONE if blame cannot recompute it. */
void m3_gradients_request(struct m3_gradients *g, struct m3_derivative_request *r, const struct m3_blame_item *y);
/* That of all experts of a layer. */
void m3_gradients_of_experts(struct m3_gradients *g, struct m3_derivative_request *r, int64_t layer);
/* y [n] += output `at` of the request; allowed [n] += what it may be off. */
void m3_gradients_add(struct m3_gradients *g, struct m3_derivative_request *r, int at, double *y, double *allowed,
                      int64_t n);

#endif
