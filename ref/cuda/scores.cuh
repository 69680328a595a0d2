/* Block scores: declarations shared by the kernels. The scores themselves stay in registers; only their maxima are
 * written.
 *
 *     m[i,b] = max over visible keys j of block b of q[i] . k[j],   i = t G + g: all groups read the one key head
 *
 * A row, in these files, is a pair i. In scores.cu and scores_bf16.cu a block of threads has a tile of rows and a
 * range of blocks of keys; in scores_few.cu a block of keys and all rows. */
#ifndef M3_CUDA_SCORES_CUH
#define M3_CUDA_SCORES_CUH

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/ptx.cuh"

enum {
    M3_SCORES_FEW = 8,                      /* rows that scores_few.cu takes */
    M3_SCORES_KEYS = INT32_MAX - 1024,      /* keys: step counters may go past the last one */
};

/* Places, keys and visible blocks fit in an int; m and k do not. */
struct m3_scores {
    float *m;                       /* [rows,B] */
    unsigned long long *nan_at;
    const void *q, *k;              /* [rows,X] [p0+T,X]; float, or the bits of bfloat16 */
    const unsigned char *seen;      /* [p0+T] or NULL */
    int64_t rows, B;
    int p0, G, X, block;
    float scale;
    int lse;                        /* pool=lse: every block of keys is walked twice, see m3_score_step */
    int by_16;                      /* every row of q and k has a multiple of 16 bytes and is aligned to 16 */
    int range;                      /* blocks of keys per block of threads, in the first two kernels */
};

cudaError_t m3_scores_bf16(cudaStream_t stream, const struct m3_scores *a);
/* For at most M3_SCORES_FEW rows, with by_16. */
cudaError_t m3_scores_few(cudaStream_t stream, const struct m3_scores *a, enum m3_cuda_type type);

/* ---- host: tiles of `rows` rows by ranges of blocks, tiles first: all tiles read a range of keys, 1 MiB of bfloat16,
 * while it is in the L2. Ranges are shorter if there would be too few blocks of threads to fill a device. */
enum { M3_RANGE_MOST = 4096, M3_RANGE_LEAST = 512, M3_RANGE_GRID = 1024, M3_GRID_Y = 65535 };

static inline dim3 m3_scores_grid(struct m3_scores *a, int rows)
{
    int64_t tiles = m3_pieces(a->rows, rows), keys = M3_RANGE_MOST;
    while (keys > M3_RANGE_LEAST && tiles * m3_pieces(a->B * a->block, keys) < M3_RANGE_GRID) keys /= 2;
    int64_t range = m3_pieces(keys, a->block), least = m3_pieces(a->B, M3_GRID_Y);
    a->range = (int)(range > least ? range : least);
    return dim3((unsigned)tiles, (unsigned)m3_pieces(a->B, a->range));
}

/* ---- device: the tile of a block of threads, and its walk */

struct m3_score_tile {
    int64_t row;            /* its first row */
    int rows;               /* number of rows from there on, at most a tile's */
    int head;               /* the first row's group */
    int first, last;        /* places of its first and last row */
    int b, end, stop;       /* its blocks of keys: b .. end seen by some row, end .. stop by none */
};

static __device__ __forceinline__ struct m3_score_tile m3_score_tile_of(const struct m3_scores *a, int rows)
{
    struct m3_score_tile tile;
    tile.row = (int64_t)blockIdx.x * rows;
    tile.rows = (int)(a->rows - tile.row < rows ? a->rows - tile.row : rows);
    tile.head = (int)(tile.row % a->G);
    tile.first = a->p0 + (int)(tile.row / a->G);
    tile.last = tile.first + (tile.head + tile.rows - 1) / a->G;
    tile.b = (int)blockIdx.y * a->range;
    tile.stop = a->B - tile.b < a->range ? (int)a->B : tile.b + a->range;
    tile.end = tile.last / a->block < tile.stop ? tile.last / a->block + 1 : tile.stop;
    return tile;
}

/* The place of the tile's i-th row. */
static __device__ __forceinline__ int m3_score_place(const struct m3_scores *a, const struct m3_score_tile *tile, int i)
{
    return tile->first + (tile->head + i) / a->G;
}

/* A step of the walk: keys from `key` on of block b, channels from x on. pool=lse walks over the keys of each block in
 * two passes: 0 for the maximum, 1 for the sum. */
struct m3_score_step {
    int b, pass, key, end;      /* the block's keys end at `end` */
    int x;
};

static __device__ __forceinline__ struct m3_score_step m3_score_block(const struct m3_scores *a, int b, int last)
{
    int64_t key = (int64_t)b * a->block, end = key + a->block <= last ? key + a->block : last + 1;
    struct m3_score_step step = { b, 0, (int)key, (int)end, 0 };
    return step;
}

/* The step after this one, of `keys` keys and `channels` channels; b is tile->end after the last. */
static __device__ __forceinline__ struct m3_score_step m3_score_next(struct m3_score_step step,
                                                                     const struct m3_scores *a,
                                                                     const struct m3_score_tile *tile, int keys,
                                                                     int channels, int lse)
{
    step.x += channels;
    if (step.x < a->X) return step;
    step.x = 0;
    if (keys < step.end - step.key) {
        step.key += keys;
        return step;
    }
    if (step.pass < lse) {
        step.pass++;
        step.key = step.b * a->block;
        return step;
    }
    step.b++;
    return step.b < tile->end ? m3_score_block(a, step.b, tile->last) : step;
}

/* Are some keys of the step invisible to some row? */
static __device__ __forceinline__ int m3_score_masked(const struct m3_scores *a, struct m3_score_step step, int keys,
                                                      int first)
{
    return a->seen || step.end - step.key < keys || step.key + keys - 1 > first;
}

static __device__ __forceinline__ int m3_score_hidden(const struct m3_scores *a, int key, int end)
{
    return a->seen && key < end && !a->seen[key];
}

/* ---- device: pools
 *
 * The scale is applied after the maximum: rounding is monotone, so the result is the maximum of the scaled scores. */

/* pool=lse: the part of a score s in the sum, `most` being the scaled maximum. */
static __device__ __forceinline__ float m3_score_part(float s, float scale, float most)
{
    return expf(s * scale - most);
}

static __device__ __forceinline__ float m3_score_log(float most, float sum)
{
    return isinf(most) || isnan(most) ? most : most + logf(sum);
}

static __device__ __forceinline__ void m3_score_write(const struct m3_scores *a, int64_t row, int64_t b, float m)
{
    if (row >= a->rows) return;
    int64_t at = row * a->B + b;
    a->m[at] = m;
    if (isnan(m)) atomicMin(a->nan_at, (unsigned long long)at);
}

/* The blocks of a tile that no row of it sees. */
static __device__ __forceinline__ void m3_score_unseen(const struct m3_scores *a, const struct m3_score_tile *tile,
                                                       int threads)
{
    int from = tile->end > tile->b ? tile->end : tile->b;
    for (int i = (int)threadIdx.x / M3_WARP; i < tile->rows; i += threads / M3_WARP)
        for (int64_t b = from + m3_lane(); b < tile->stop; b += M3_WARP) a->m[(tile->row + i) * a->B + b] = -INFINITY;
}

/* ---- device: rows into shared memory
 *
 * to [rows, wide], rows `stride` apart := channels x .. x + wide of [n,X]; zeros beyond the ends. Wait for it as for
 * copy_16. */
template <class Number>
static __device__ __forceinline__ void m3_stage_rows(Number *to, int stride, const Number *from, int n, int x, int X,
                                                     int by_16, int rows, int wide, int threads)
{
    const int each = (int)(16 / sizeof(Number));
    for (int at = (int)threadIdx.x; at < rows * (wide / each); at += threads) {
        int row = at / (wide / each), c = at % (wide / each) * each;
        Number *to_c = to + row * stride + c;
        const Number *from_c = from + (int64_t)row * X + x + c;
        if (by_16) {
            copy_16(to_c, from_c, row < n && x + c < X);
            continue;
        }
        for (int i = 0; i < each; i++) to_c[i] = row < n && x + c + i < X ? from_c[i] : (Number)0;
    }
}

#endif
