#include "cuda/linear.cuh"
#include "cuda/ptx.cuh"

enum {
    TILE = M3_TILE,        /* rows, and columns */
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

static __device__ __forceinline__ void put_8(__nv_bfloat16 *to, const float v[8])
{
    *(uint4 *)to = make_uint4(m3_pair(v[0], v[1]), m3_pair(v[2], v[3]), m3_pair(v[4], v[5]), m3_pair(v[6], v[7]));
}

/* Begins to load a thread's 16 of the 32 columns from k on: of x, and of w, whose codes of E4M3 go into the first half
 * of the memory for their numbers. Zeros beyond the pitch, and where there is no row. */
template <enum m3_dtype dtype>
static __device__ __forceinline__ void fill(struct shared_stage *stage, int row, const __nv_bfloat16 *x,
                                            const struct m3_stored_row &w, int64_t k, int64_t depth)
{
    const int valid = k < m3_cuda_pitch(depth), at = (int)(k % DEPTH), bytes = 16 / m3_stored_run(dtype);
    for (int i = 0; i < CODES; i += 8) copy_16(&stage->x[row][at + i], x && valid ? x + k + i : NULL, x && valid);
    for (int i = 0; i < CODES; i += m3_stored_run(dtype))
        copy_16(&stage->w[row][at + i], w.data && valid ? w.data + (k + i) * bytes : NULL, w.data && valid);
}

static __device__ __forceinline__ uint32_t scale_bits(const struct m3_stored_row &w, int64_t k, int64_t depth)
{
    return w.data && w.scaling != M3_UNSCALED && k < depth ? m3_scale_bits(w, k) : 0;
}

/* Decodes the codes that fill has loaded. */
static __device__ __forceinline__ void decode(__nv_bfloat16 *to, enum m3_scaling scaling, uint32_t scale)
{
    const struct m3_loaded loaded = { *(const uint4 *)to, scale };
    float v[CODES];
    m3_decode<M3_F8_E4M3, CODES>(v, loaded, 0, scaling);
    put_8(to, v);
    put_8(to + 8, v + 8);
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
 *     loading       thread l: row l / 2 of x and of w, columns 16 (l % 2) and 15 more; of E4M3 as codes, which it
 *                   decodes in their turn
 *     multiplying   warps, 64 rows by 32 columns each       0 1 2 3
 *                                                           4 5 6 7
 *
 *     step k        k        k + 1        k + 2        k + 3 takes the place of k - 1
 *                   used     <- on their way ->
 *
 * Limits: the tensor cores; for E4M3 also the decoding, about 8 instructions for a number that is multiplied 128
 * times. */
template <enum m3_dtype dtype>
static __global__ void __launch_bounds__(THREADS, 2) products(struct m3_products p, int64_t tiles_of_rows)
{
    struct shared_stage *stages = (struct shared_stage *)m3_shared;
    struct m3_block_place place = m3_place_of_block(tiles_of_rows, (p.columns + TILE - 1) / TILE);
    struct m3_rows rows = m3_rows_of_tile(p, place.row, TILE);
    if (rows.begin >= rows.end) return;
    int64_t n0 = place.column * TILE;
    int loaded = (int)threadIdx.x / 2, mine = (int)threadIdx.x % 2 * CODES, warp = (int)threadIdx.x / M3_WARP;
    int row = warp / WARPS_ACROSS * WARP_ROWS, column = warp % WARPS_ACROSS * WARP_COLUMNS;
    const __nv_bfloat16 *x = m3_row_of_x<__nv_bfloat16>(p, rows.begin + loaded, rows.end);
    struct m3_stored_row w = m3_column(p, rows.expert, n0 + loaded);

    float sums[4][4][4] = {};
    uint32_t scale = scale_bits(w, mine, p.depth);      /* of the next step, on its way while one is multiplied */
    int steps = (int)((p.depth + DEPTH - 1) / DEPTH);
    for (int step = 1 - STAGES; step < steps; step++) {
        if (step >= 0) {
            copies_wait<STAGES - 2>();
            if (dtype == M3_F8_E4M3) {
                decode(&stages[step % STAGES].w[loaded][mine], w.scaling, scale);
                scale = scale_bits(w, (int64_t)(step + 1) * DEPTH + mine, p.depth);
            }
            __syncthreads();
        }
        int next = step + STAGES - 1;
        if (next < steps)
            fill<dtype>(&stages[next % STAGES], loaded, x, w, (int64_t)next * DEPTH + mine, p.depth);
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
    return m3_launch(stream, p->dtype == M3_BF16 ? products<M3_BF16> : products<M3_F8_E4M3>,
                     dim3((unsigned)(rows * columns)), THREADS, STAGES * sizeof(struct shared_stage), *p, rows);
}
