/* The work of a pass by kind, for an estimate of its time: each kind runs at a rate of its own (rates.h). */
#ifndef M3_ESTIMATE_WORK_H
#define M3_ESTIMATE_WORK_H

#include "io/config.h"
#include "model/graph/graph.h"

enum m3_work_kind {
    M3_WORK_PRODUCTS, /* matrix products of attention, dense MLP, shared expert and router: multiplications */
    M3_WORK_EXPERTS, /* routed experts: multiplications */
    M3_WORK_INDEX, /* block scores and their selection: multiplications */
    M3_WORK_ATTENTION, /* its core: multiplications */
    M3_WORK_ROWS, /* norms, rotations, activations, sums: numbers */
    M3_WORK_HEAD, /* final norm and logits: multiplications */
    M3_WORK_KINDS,
};

struct m3_work {
    double of[M3_WORK_KINDS];
};

extern const char *const m3_work_names[M3_WORK_KINDS];

/* The kind of what ends with the tap of this node. */
enum m3_work_kind m3_work_of(const struct m3_node *node);

/* Adds layer l of a pass over T rows after p0 places. */
void m3_work_add_layer(struct m3_work *work, const struct m3_config *config, int64_t l, int64_t T, int64_t p0);
/* Adds `rows` rows of logits. */
void m3_work_add_head(struct m3_work *work, const struct m3_config *config, int64_t rows);
/* Adds the tower and the projector for P patches, as products. */
void m3_work_add_vision(struct m3_work *work, const struct m3_config *config, int64_t P);

/* How many of a layer's experts T rows choose, if all are equally likely. */
double m3_work_experts_chosen(const struct m3_config *config, int64_t T);

#endif
