/* Block scores of bfloat16 on tensor cores, for many rows. */
#include "cuda/scores.cuh"

enum {
    THREADS = 256, WARPS = THREADS / M3_WARP,
    ROWS = 32 * WARPS, KEYS = 128,      /* of a tile */
    PITCH = M3_CUDA_HEAD + 8,           /* eight consecutive rows are in different banks */
    DEEP = M3_CUDA_HEAD / 16,           /* consecutive products */
    ACROSS = 2,                         /* products side by side: 16 keys */
    RANGE_MOST = 4096, RANGE_LEAST = 512, RANGE_GRID = 1024, GRID_Y = 65535,
};

/* A block of threads has a tile of rows and a range of blocks of keys. */
struct tile {
    int64_t row;            /* its first row */
    int rows;               /* number of rows from there on, at most ROWS */
    int head;               /* the first row's group */
    int first, last;        /* places of its first and last row */
    int b, end, stop;       /* its blocks of keys: b .. end seen by some row, end .. stop by none */
};

static __device__ __forceinline__ struct tile tile_of(const struct m3_scores *a)
{
    struct tile tile;
    tile.row = (int64_t)blockIdx.x * ROWS;
    tile.rows = a->rows - tile.row < ROWS ? (int)(a->rows - tile.row) : (int)ROWS;
    tile.head = (int)(tile.row % a->G);
    tile.first = m3_score_place(a, tile.row);
    tile.last = m3_score_place(a, tile.row + tile.rows - 1);
    tile.b = (int)blockIdx.y * a->range;
    tile.stop = a->B - tile.b < a->range ? (int)a->B : tile.b + a->range;
    tile.end = tile.last / a->block < tile.stop ? tile.last / a->block + 1 : tile.stop;
    return tile;
}

/* A step of a tile's walk: keys from `key` on of block b, which ends at `end`. */
struct step {
    int b, key, end;
};

static __device__ __forceinline__ struct step first_of(const struct m3_scores *a, const struct tile *tile, int b)
{
    int64_t key = (int64_t)b * a->block, end = key + a->block <= tile->last ? key + a->block : tile->last + 1;
    struct step step = { b, (int)key, (int)end };
    return step;
}

/* The step after this one; b is tile->end after the last. */
static __device__ __forceinline__ struct step next_of(struct step step, const struct m3_scores *a,
                                                      const struct tile *tile)
{
    if (KEYS < step.end - step.key) {
        step.key += KEYS;
        return step;
    }
    step.b++;
    return step.b < tile->end ? first_of(a, tile, step.b) : step;
}

/* Shared memory: keys are multiplied while the next ones are copied. */
struct stage {
    uint16_t rows[KEYS][PITCH];
};

/* A warp's 32 rows, all channels: 64 registers a thread. */
struct queries {
    uint32_t a[2][DEEP][4];
};

/* s := the warp's 32 rows by the 16 keys from `keys` on. A load of keys serves four products, because it loads 16 keys
 * for both halves of the rows: 512 bytes of shared memory for 2^14 FLOP. */
static __device__ __forceinline__ void multiply(float s[2][ACROSS][4], const struct queries *q,
                                                const uint16_t (*keys)[PITCH])
{
    const uint16_t *row = &keys[m3_lane() / 16 * 8 + m3_lane() % 8][m3_lane() / 8 % 2 * 8];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < ACROSS; j++)
            for (int e = 0; e < 4; e++) s[i][j][e] = 0;
    for (int x = 0; x < DEEP; x++)
        for (int j = 0; j < ACROSS; j += 2) {
            uint32_t b[4];      /* keys 0..7: b[0], b[1]; keys 8..15: b[2], b[3] */
            load_matrices(b, row + j * 8 * PITCH + x * 16);
            for (int i = 0; i < 2; i++) {
                mma_bf16(s[i][j], q->a[i][x], b[0], b[1]);
                mma_bf16(s[i][j + 1], q->a[i][x], b[2], b[3]);
            }
        }
}

/* The position of the value s[i][j][e] of a lane: row 16 i + 8 (e/2) + l/4, key 8 j + 2 (l%4) + e%2. */
static __device__ __forceinline__ int row_of(int i, int e) { return 16 * i + e / 2 * 8 + m3_lane() / 4; }
static __device__ __forceinline__ int key_of(int j, int e) { return 8 * j + m3_lane() % 4 * 2 + e % 2; }

/* Scores of invisible keys become -inf. `row` is the warp's first in the tile, `key` the place of the first key. */
static __device__ __forceinline__ void mask(float s[2][ACROSS][4], const struct m3_scores *a, const struct tile *tile,
                                            int row, int key, int end)
{
    unsigned hidden = 0;        /* bit 2 j + e%2 */
    for (int bit = 0; bit < 2 * ACROSS; bit++)
        hidden |= (unsigned)m3_score_hidden(a, key + key_of(bit / 2, bit % 2), end) << bit;
    for (int n = 0; n < 4; n++) {
        int place = tile->first + (tile->head + row + row_of(n / 2, n % 2 * 2)) / a->G;
        int keys = (place < end ? place + 1 : end) - key;
        for (int j = 0; j < ACROSS; j++)
            for (int e = n % 2 * 2; e < n % 2 * 2 + 2; e++)
                if (key_of(j, e) >= keys || (hidden >> (2 * j + e % 2) & 1)) s[n / 2][j][e] = -INFINITY;
    }
}

/* most: of a lane's four rows, n = 2 i + e/2. */
static __device__ __forceinline__ void pool(float most[4], const float s[2][ACROSS][4])
{
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < ACROSS; j++)
            for (int e = 0; e < 4; e++) most[2 * i + e / 2] = max_nan(most[2 * i + e / 2], s[i][j][e]);
}

/* After the last keys of a block: reduces over the four lanes that share rows; then each writes one of the rows. */
static __device__ __forceinline__ void finish(float most[4], const struct m3_scores *a, int64_t row, int b)
{
    for (int n = 0; n < 4; n++) {
        for (int step = 1; step < 4; step *= 2)
            most[n] = max_nan(most[n], __shfl_xor_sync(0xffffffffu, most[n], step));
        if (m3_lane() % 4 == n) m3_score_write(a, row + row_of(n / 2, n % 2 * 2), b, most[n] * a->scale);
        most[n] = -INFINITY;
    }
}

/* Loads the keys of a step; zeros after the last, and beyond the end of a row. */
static __device__ __forceinline__ void stage_keys(struct stage *stage, const struct m3_scores *a, struct step step)
{
    const uint16_t *keys = (const uint16_t *)a->k + (int64_t)step.key * a->pitch;
    for (int at = (int)threadIdx.x; at < KEYS * (M3_CUDA_HEAD / 8); at += THREADS) {
        const int i = at / (M3_CUDA_HEAD / 8), c = at % (M3_CUDA_HEAD / 8) * 8;
        const int valid = i < step.end - step.key && c < a->pitch;
        copy_16(&stage->rows[i][c], keys + (valid ? (int64_t)i * a->pitch + c : 0), valid);
    }
}

static __device__ __forceinline__ void load_queries(struct queries *q, const struct m3_scores *a,
                                                    const struct tile *tile, int warp_row)
{
    for (int n = 0; n < 2 * DEEP * 4; n++) {
        const int i = n / 4 / DEEP, x = n / 4 % DEEP, e = n % 4;
        const int row = warp_row + row_of(i, e % 2 * 2), c = 16 * x + e / 2 * 8 + m3_lane() % 4 * 2;
        const uint16_t *from = (const uint16_t *)a->q + (tile->row + row) * a->pitch + c;
        q->a[i][x][e] = row < tile->rows && c < a->pitch ? *(const uint32_t *)from : 0;
    }
}

/* Tiles of 256 rows by 128 keys. A warp has 32 rows: their queries stay in registers for the whole walk, as the left
 * factor; the keys are read from shared memory, 16 at a time with all channels, as the right factor.
 *
 *                 keys 0..15   16..31   ..   112..127
 *     warp 0  rows       s        .      .       .        s: the sums that a warp has at a time, 32 rows by 16 keys in
 *     ..                                                  16 registers per thread; only their maxima are kept, a
 *     warp 7  rows       s        .      .       .        register for each of a thread's 4 rows
 *
 * Limit: the tensor cores. A tile is 2^23 FLOP for 32 KiB from the L2, 256 per byte, and for 256 KiB from shared
 * memory, 32 per byte: at its 128 bytes per cycle 4,096 FLOP, twice the rate of the tensor cores of sm_80 and as much
 * as those of sm_90. For 32 products a thread has 8 loads of keys and 16 maxima. Two blocks of threads fit on a
 * multiprocessor, with 128 registers a thread and 68 KiB each: while one waits at its barrier the other multiplies. */
static __global__ __launch_bounds__(THREADS, 2) void scores_bf16(struct m3_scores a)
{
    struct stage *stages = (struct stage *)m3_shared;
    struct tile tile = tile_of(&a);
    int warp_row = (int)threadIdx.x / M3_WARP * 32;
    float most[4] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    if (tile.b < tile.end) {
        struct queries q;
        load_queries(&q, &a, &tile, warp_row);
        struct step step = first_of(&a, &tile, tile.b);
        stage_keys(&stages[0], &a, step);
        copies_commit();
        for (int at = 0; step.b < tile.end; at ^= 1) {
            struct step next = next_of(step, &a, &tile);
            copies_wait<0>();
            __syncthreads();
            if (next.b < tile.end) stage_keys(&stages[at ^ 1], &a, next);
            copies_commit();

            int n = step.end - step.key < KEYS ? step.end - step.key : KEYS;
            int masked = a.seen || n < KEYS || step.key + KEYS - 1 > tile.first;
            for (int key = 0; key < n && warp_row < tile.rows; key += 8 * ACROSS) {
                float s[2][ACROSS][4];
                multiply(s, &q, &stages[at].rows[key]);
                if (masked) mask(s, &a, &tile, warp_row, step.key + key, step.end);
                pool(most, s);
            }
            if (step.end - step.key <= KEYS) finish(most, &a, tile.row + warp_row, step.b);
            step = next;
        }
    }
    int from = tile.end > tile.b ? tile.end : tile.b;       /* blocks that no row of the tile sees */
    for (int i = (int)threadIdx.x / M3_WARP; i < tile.rows; i += WARPS)
        for (int64_t b = from + m3_lane(); b < tile.stop; b += M3_WARP) a.m[(tile.row + i) * a.B + b] = -INFINITY;
}

/* Tiles first: all tiles read a range of keys, 1 MiB, while it is in the L2. Ranges are shorter if there were too
 * few blocks of threads to fill a device. */
cudaError_t m3_scores_bf16(cudaStream_t stream, const struct m3_scores *a)
{
    struct m3_scores b = *a;
    int64_t tiles = m3_pieces(b.rows, ROWS), keys = RANGE_MOST;
    if (tiles > INT32_MAX) return cudaErrorNotSupported;
    while (keys > RANGE_LEAST && tiles * m3_pieces(b.B * b.block, keys) < RANGE_GRID) keys /= 2;
    int64_t range = m3_pieces(keys, b.block), least = m3_pieces(b.B, GRID_Y);
    b.range = (int)(range > least ? range : least);
    dim3 grid((unsigned)tiles, (unsigned)m3_pieces(b.B, b.range));
    return m3_launch(stream, scores_bf16, grid, THREADS, 2 * sizeof(struct stage), b);
}
