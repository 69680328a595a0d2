/* One rank's share of a pass. Rank 0 has the call; the others receive what their rows need. Every rank runs the same
 * layers over its own rows, and in each layer gets the keys of the rows before them, and hands rows to the ranks that
 * have their experts. A rank without rows only has experts. */
#ifndef M3_MODEL_DIVIDED_SHARE_H
#define M3_MODEL_DIVIDED_SHARE_H

#include "model/forward/activations.h"
#include "model/divided/order.h"
#include "model/divided/part.h"
#include "model/forward/text.h"

struct m3_share {
    struct m3_ranks *ranks;
    int rank, count;
    struct m3_division division;        /* of the rows of the current part */
    struct m3_order order;
    struct m3_request request;          /* of the pass, with the ids and positions of the rank's rows */
    const struct m3_request *whole;     /* rank 0: the caller's; otherwise NULL */
    int32_t *ids, *all_ids;             /* [rows], [T] */
    int64_t *positions, *all_positions;
    unsigned char *seen;                /* [p0 + T] */
    unsigned char *marks;               /* [M3_TAPS, 1 + layers and modules]: which taps go to rank 0 */
    real *features;                     /* the ranks' but 0's copy */
};

/* Does the model have ranks that can divide this pass? Operators that replace the reference's, a copy of the model with
 * other weights, and forces that do not say which taps they change exist on rank 0 alone. */
int m3_share_divides(const struct m3_model *model, const struct m3_request *request);

/* Rank 0 begins a pass: the others hear of it. *f continues with the share's request; `features` may be NULL. */
void m3_share_begin(struct m3_pass *f, struct m3_share *share, struct m3_features *features);
void m3_share_begin_module(struct m3_pass *f, struct m3_share *share, const struct m3_mtp_request *r);
/* Ends it on any rank; if it has failed, the others hear of that. */
void m3_share_end(struct m3_pass *f);
/* The other ranks' part of a pass, for struct m3_engine. */
int m3_share_obey(const struct m3_model *model, struct m3_ranks *ranks, const struct m3_order *order,
                  struct m3_error *error);

/* What rank 0 does with a tap of the current layer. */
enum { M3_MARK_SHOWN = 1, M3_MARK_FORCED = 2 };
int m3_share_mark(const struct m3_pass *f, enum m3_tap tap);

#endif
