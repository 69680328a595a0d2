#include "cuda/linear.cuh"
#include "cuda/ptx.cuh"

enum {
    TILE = M3_TILE_BF16,        /* rows, and columns */
    DEPTH = 32,
    STRIDE = DEPTH + 8,         /* rows of 80 bytes: 8 rows start at 8 different 16-byte offsets modulo 128 */
    STAGES = 4,
    THREADS = 256,
    CODES = 16,                 /* columns of a row that a thread loads */
    WARP_ROWS = 64,             /* a warp's part of the tile: 4 times 16 rows, */
    WARP_COLUMNS = 32,          /* 4 times 8 columns */
    WARPS_ACROSS = TILE / WARP_COLUMNS,
};

struct shared_stage {
    __nv_bfloat16 x[TILE][STRIDE], w[TILE][STRIDE];
};

/* Used afterwards, in the same memory; a row's first number is 8 banks after that of the row before. */
struct shared_sums {
    float y[TILE][TILE + 8];
};

static __device__ __forceinline__ uint32_t two_bf16(float low, float high)
{
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
}

static __device__ __forceinline__ void put_8(__nv_bfloat16 *to, const float v[M3_RUN])
{
    *(uint4 *)to = make_uint4(two_bf16(v[0], v[1]), two_bf16(v[2], v[3]), two_bf16(v[4], v[5]), two_bf16(v[6], v[7]));
}

/* Loads 8 columns of x into shared memory: asynchronously if they are aligned, otherwise through registers. */
static __device__ __forceinline__ void fill_x(__nv_bfloat16 *to, const __nv_bfloat16 *x, int64_t col, int64_t cols)
{
    const __nv_bfloat16 *from = x ? x + col : x;
    int all = x && col + M3_RUN <= cols;
    if (m3_is_aligned(from) && (all || !x || col >= cols)) {
        copy_16(to, from, all);
        return;
    }
    float v[M3_RUN];
    m3_columns_8(v, x, col, cols);
    put_8(to, v);
}

/* Are the 32 columns of w from k on copied as codes? */
static __device__ __forceinline__ int goes_as_codes(const struct m3_stored_row &w, int64_t k)
{
    return w.dtype == M3_F8_E4M3 && m3_is_aligned(w.data + k) && k + DEPTH <= w.cols;
}

/* Loads a thread's 16 of those columns likewise: 16 codes, into the first half of the memory for their numbers;
 * bfloat16; or numbers decoded here. */
static __device__ __forceinline__ void fill_w(__nv_bfloat16 *row, const struct m3_stored_row &w, int64_t k, int half)
{
    if (goes_as_codes(w, k)) {
        copy_16(row + half * CODES, w.data + k + half * CODES, 1);
        return;
    }
    for (int i = half * M3_RUN; i < DEPTH; i += 2 * M3_RUN) {
        const unsigned char *from = w.data + 2 * (k + i);
        int all = k + i + M3_RUN <= w.cols;
        if (w.dtype == M3_BF16 && m3_is_aligned(from) && (all || k + i >= w.cols)) {
            copy_16(row + i, from, all);
        } else {
            float v[M3_RUN];
            m3_stored_8<M3_DTYPES>(v, w, k + i);
            put_8(row + i, v);
        }
    }
}

/* Decodes the codes that fill_w has loaded. */
static __device__ __forceinline__ void decode_w(__nv_bfloat16 *row, const struct m3_stored_row &w, int64_t k, int half)
{
    if (!goes_as_codes(w, k)) return;
    __nv_bfloat16 *to = row + half * CODES;
    uint4 codes = *(const uint4 *)to;
    uint32_t words[4] = { codes.x, codes.y, codes.z, codes.w };
    float scale = w.scaling == M3_UNSCALED ? 1 : m3_scale_8(w, k), v[CODES];
    for (int i = 0; i < CODES; i++) v[i] = m3_number<M3_F8_E4M3>(words, i) * scale;
    put_8(to, v);
    put_8(to + M3_RUN, v + M3_RUN);
}

/* sums += the product of one stage: 16 deep at a time, 4 x 4 products of 16 rows by 8 columns. */
static __device__ __forceinline__ void add_products(float sums[4][4][4], const struct shared_stage *stage, int row,
                                                    int column)
{
    int lane = m3_lane();
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t x[4][4], w[2][4];
        for (int i = 0; i < 4; i++) load_matrices(x[i], &stage->x[row + 16 * i + lane % 16][k + lane / 16 * 8]);
        for (int j = 0; j < 2; j++)
            load_matrices(w[j], &stage->w[column + 16 * j + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) mma_bf16(sums[i][j], x[i], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
    }
}

/* A block of threads: 128 rows by 128 columns, 32 deep at a time, in 4 stages of shared memory.
 *
 *     loading       thread l: row l / 2 of x and of w, columns 8 (l % 2) and 7 more, and those 16 further on;
 *                   of E4M3 columns 16 (l % 2) and 15 more, as codes, and decodes these in their turn
 *     multiplying   warps, 64 rows by 32 columns each       0 1 2 3
 *                                                           4 5 6 7
 *
 *     step k        k        k + 1        k + 2        k + 3 takes the place of k - 1
 *                   used     <- on their way ->
 *
 * Limits: the tensor cores; for E4M3 also the decoding, about 8 instructions for a number that is multiplied 128
 * times; other types are waited for in every step. */
static __global__ void __launch_bounds__(THREADS, 2) products(struct m3_products p, int64_t tiles_of_rows)
{
    struct shared_stage *stages = (struct shared_stage *)m3_shared;
    struct m3_block_place place = m3_place_of_block(tiles_of_rows, (p.columns + TILE - 1) / TILE);
    struct m3_rows rows = m3_rows_of_tile(p, place.row, TILE);
    if (rows.begin >= rows.end) return;
    int64_t n0 = place.column * TILE;
    int loaded = (int)threadIdx.x / 2, half = (int)threadIdx.x % 2, warp = (int)threadIdx.x / M3_WARP;
    int row = warp / WARPS_ACROSS * WARP_ROWS, column = warp % WARPS_ACROSS * WARP_COLUMNS;
    const __nv_bfloat16 *x = m3_row_of_x<__nv_bfloat16>(p, rows.begin + loaded, rows.end);
    struct m3_stored_row w = m3_column(p, rows.expert, n0 + loaded);

    float sums[4][4][4] = {};
    int steps = (int)((p.depth + DEPTH - 1) / DEPTH);
    for (int step = 1 - STAGES; step < steps; step++) {
        if (step >= 0) {
            copies_wait<STAGES - 2>();
            decode_w(stages[step % STAGES].w[loaded], w, (int64_t)step * DEPTH, half);
            __syncthreads();
        }
        int next = step + STAGES - 1;
        if (next < steps) {
            struct shared_stage *stage = &stages[next % STAGES];
            int64_t k = (int64_t)next * DEPTH;
            for (int i = half * M3_RUN; i < DEPTH; i += 2 * M3_RUN)
                fill_x(&stage->x[loaded][i], x, k + i, p.depth);
            fill_w(stage->w[loaded], w, k, half);
        }
        copies_commit();
        if (step >= 0 && rows.begin + row < rows.end) add_products(sums, &stages[step % STAGES], row, column);
    }

    struct shared_sums *all = (struct shared_sums *)m3_shared;
    __syncthreads();
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++) {
            float *y = &all->y[row + 8 * i + m3_lane() / 4][column + 8 * j + m3_lane() % 4 * 2];
            y[0] = sums[i / 2][j][i % 2 * 2], y[1] = sums[i / 2][j][i % 2 * 2 + 1];
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < TILE * TILE / 2; i += THREADS) {
        const float *y = &all->y[i / (TILE / 2)][i % (TILE / 2) * 2];
        int64_t from = rows.begin + i / (TILE / 2), n = n0 + i % (TILE / 2) * 2;
        if (from < rows.end) m3_put_columns<__nv_bfloat16>(p, m3_row_of_y(p, from), n, y[0], y[1]);
    }
}

cudaError_t m3_products_bf16(cudaStream_t stream, const struct m3_products *p)
{
    int64_t rows = m3_tiles_of_rows(p, TILE), columns = m3_pieces(p->columns, TILE);
    if (rows > INT32_MAX / columns || p->depth > INT32_MAX - STAGES * DEPTH) return cudaErrorNotSupported;
    return m3_launch(stream, products, dim3((unsigned)(rows * columns)), THREADS, STAGES * sizeof(struct shared_stage),
                     *p, rows);
}
