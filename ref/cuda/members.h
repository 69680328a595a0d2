/* Lists of members: from rows with lists of ids, the rows of every value. Attention reads a block of keys once for all
 * rows that selected it, and experts read a weight once for all tokens routed to it.
 *
 *     ids [rows,groups,width], -1: no id            value = g values + id; a row names an id at most once in a list
 *
 *     list    first[0]      first[1]  first[2] = first[3]               first[groups values]
 *             | a  b  c  d  | e  f    | g  h  i ...                     |
 *               places in ids: (row groups + g) width + n, ascending, so row = place / (groups width)
 *
 *     tiles   tile members of a value at a time; value v has those from tiles[v] to tiles[v + 1]
 *
 * The order does not depend on the order of threads: a member's place is counted, in bits that any thread may set. */
#ifndef M3_CUDA_MEMBERS_H
#define M3_CUDA_MEMBERS_H

#include "cuda/device.cuh"

/* Pointers to device memory, all in one piece of scratch. A kernel takes the struct by value. */
struct m3_members {
    int64_t rows, groups, width, values, words;     /* words of 32 rows */
    int64_t tile;               /* members of a tile */
    uint32_t *bits;             /* [groups values,words] bit row % 32: the row names it */
    int32_t *before;            /* [groups values,words] members in the words before this one */
    int32_t *first;             /* [groups values + 1] */
    int32_t *tiles;             /* [groups values + 1] */
    int32_t *list;              /* [rows groups width] */
};

/* The work of a block of threads: members [begin,end) of `list`, all of `value`. */
struct m3_members_tile {
    int64_t value;              /* -1: none */
    int32_t begin, end;
};

/* Bytes of scratch for m3_cuda_members; 0 if a place in ids, or groups values, exceeds 2^31 - 1. */
size_t m3_cuda_members_bytes(int64_t rows, int64_t groups, int64_t width, int64_t values);

/* *members := the lists for ids [rows,groups,width], each -1 or below `values`. scratch: aligned to 256 bytes, of
 * m3_cuda_members_bytes; it may be reused when the kernels that read *members have finished. */
cudaError_t m3_cuda_members(cudaStream_t stream, struct m3_members *members, const int32_t *ids, int64_t rows,
                            int64_t groups, int64_t width, int64_t values, int64_t tile, void *scratch);

/* An upper bound of the number of tiles, which the host does not know: the number to launch. */
static inline int64_t m3_members_most_tiles(const struct m3_members *members)
{
    int64_t ids = members->rows * members->groups * members->width, values = members->groups * members->values;
    return ids / members->tile + (ids < values ? ids : values);
}

/* Tile `index` of all; the same for all threads that pass the same index. */
static __device__ __forceinline__ struct m3_members_tile m3_members_find(const struct m3_members &members,
                                                                         int64_t index)
{
    int64_t low = 0, high = members.groups * members.values;
    struct m3_members_tile found = { -1, 0, 0 };
    if (index >= members.tiles[high]) return found;
    while (low + 1 < high) {                    /* tiles[low] <= index < tiles[high] */
        int64_t middle = (low + high) / 2;
        if (members.tiles[middle] <= index) low = middle;
        else high = middle;
    }
    found.value = low;
    found.begin = members.first[low] + (int32_t)((index - members.tiles[low]) * members.tile);
    found.end = members.first[low + 1];
    if (found.end - found.begin > members.tile) found.end = found.begin + (int32_t)members.tile;
    return found;
}

#endif
