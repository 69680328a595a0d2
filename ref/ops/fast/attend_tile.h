/* A tile of attention: strips of rows that read the same keys and values, so that a piece of these is still in a near
 * cache when the next strip reads it. The bits do not depend on the tile: channels ascend in a logit, keys ascend in a
 * sum and in an output. */
#ifndef M3_OPS_FAST_ATTEND_TILE_H
#define M3_OPS_FAST_ATTEND_TILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/real.h"

enum { M3_STRIPS = 8 };         /* at most, in a tile */

/* Some rows of a group. The rows' heads lie side by side as lanes: lane r * heads + h. Row r sees the keys up to
 * place p + r. */
struct m3_strip {
    int64_t p, rows, heads;
    const real *k, *v;          /* of its group: rows [D], as far apart as the tile says */
    const int32_t *list;        /* [n] blocks of keys that the strip sees, ascending; NULL: all */
    int64_t n;
    real *o, *lse;              /* of the first row and head; lse may be NULL */
    int64_t o_row, o_head;      /* the distance of the next row's outputs, of the next head's, */
    int64_t lse_row;            /* and of the next row in lse */

    /* The tile sets these. */
    int is_first;               /* of the strips that read its keys: they are not in a cache yet */
    int64_t at, here;           /* entries of the list: the next one, that of the current piece */
    int64_t first, keys;        /* the first key that it saw, and how many it has seen */
    real *q_t;                  /* [D, lanes], the queries transposed: the caller fills them in */
    real *z;                    /* [keys, lanes], the logits */
    real *max;                  /* [lanes] */
    double *sum;                /* [lanes] of exp(z - max) */
};

struct m3_tile {
    int64_t stride, D;          /* rows of keys are `stride` apart */
    int64_t block;              /* keys in a block */
    const unsigned char *seen;  /* as in struct m3_attend */
    int64_t strips;
    struct m3_strip strip[M3_STRIPS];

    /* m3_tile_place and m3_tile_attend set these. */
    real *weights;              /* of a piece of the keys */
    real *values;               /* a copy of those of a piece, side by side, */
    const real *copied;         /* and where the rows came from; NULL: there is no copy yet */
    int64_t side_by_side;       /* strips, if they are the groups of the same rows; otherwise 1 */
};

/* Scratch memory for a tile of `strips` strips of `lanes` lanes, each of which sees at most `keys` keys. */
int64_t m3_tile_bytes(int64_t strips, int64_t lanes, int64_t keys, int64_t D);

/* Sets the pointers of all strips into such memory. */
void m3_tile_place(struct m3_tile *tile, char *memory, int64_t strips, int64_t lanes, int64_t keys, int64_t D);

/* Computes the outputs of all strips. */
void m3_tile_attend(struct m3_tile *tile);

#endif
