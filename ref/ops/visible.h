/* Which keys a row sees: the only difference between attend_full, attend_blocks and attend_segments. SPEC 3.4, 5.7,
 * 5.8, 5.10, 5.19. */
#ifndef M3_OPS_VISIBLE_H
#define M3_OPS_VISIBLE_H

#include "ops/ops.h"

/* What hides keys; NULL hides none. Row t is at place p0 + t. */
struct m3_mask {
    int64_t p0;
    const unsigned char *seen;      /* [keys] 0: no row sees this key */
    const int32_t *blocks;          /* [T,G,N] the blocks of keys that a row and group attends to; -1: none */
    int64_t block, G, N;            /* block b is the keys b * block .. b * block + block - 1 */
    enum m3_selection selection;    /* M3_SELECT_UNION: the blocks of all groups of the row together */
    const int64_t *ends;            /* segment s ends before row ends[s]; a row sees all of its own, later rows too */
};

/* Does row t of key head g see key j? */
int m3_visible(const struct m3_mask *mask, int64_t t, int64_t g, int64_t j);

#endif
