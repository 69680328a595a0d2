/* What rank 0 asks of the other ranks. An order travels as these bytes; what follows it depends on its kind. */
#ifndef M3_MODEL_DIVIDED_ORDER_H
#define M3_MODEL_DIVIDED_ORDER_H

#include <stdint.h>

#include "base/semantics.h"
#include "model/model.h"
#include "ranks/ranks.h"

enum m3_order_kind {
    M3_ORDER_OPEN,              /* open the model whose path and hash follow */
    M3_ORDER_FORWARD,           /* a pass: rows, if they are divided, and experts */
    M3_ORDER_MTP,               /* the experts of one module, whose rows rank 0 has */
    M3_ORDER_WORK,              /* send what you have done */
};

struct m3_order {
    int64_t kind;
    int64_t path_bytes;         /* M3_ORDER_OPEN */
    int64_t first_layer, end_layer;     /* 0, -1: all; of the model, then of the pass */
    int64_t real_bytes, plain, linear, threads;
    int64_t T, p0, shift;
    int64_t is_divided;         /* are the rows? What follows is only for ranks that have some */
    int64_t is_step;            /* one of many: pages stay */
    int64_t module, modules;    /* M3_ORDER_MTP; M3_ORDER_FORWARD: how many run */
    int64_t has_seen, gives_final_norm, gives_embedded, logit_rows;
    int64_t images, videos;     /* rows of features; 0, 0: none */
    int64_t has_features;
    struct m3_semantics semantics;
};

/* Rank 0: the passes over this model are divided from now on; the others open the same files. */
int m3_order_open(struct m3_ranks *ranks, struct m3_model *model, const char *path, int64_t first, int64_t end,
                  struct m3_error *error);
/* Rank 0: what each rank has done, [count]. */
int m3_order_work(struct m3_ranks *ranks, struct m3_ranks_work *all, struct m3_error *error);
/* The other ranks: obeys until rank 0 ends the job. What fails is told to rank 0. */
void m3_obey(struct m3_ranks *ranks);

/* Sends bytes from rank 0 to all others; the others receive them. */
int m3_order_send(struct m3_ranks *ranks, void *data, uint64_t bytes, struct m3_error *error);

#endif
