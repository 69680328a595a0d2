#include "cuda/linear.cuh"

enum {
    TILE = M3_TILE_F32,         /* rows, and columns */
    DEPTH = 32,
    STRIDE = TILE + 4,          /* keeps 16-byte alignment */
    THREADS = 256,
    SIDE = 4,                   /* sums of a thread: SIDE rows of SIDE columns */
};

/* Transposed, so that a thread reads its 4 rows, and its 4 columns, as 16 bytes. */
struct shared_tiles {
    float x[DEPTH][STRIDE], w[DEPTH][STRIDE];
};

/* sums += the product of the tiles in shared memory, ascending depth. */
static __device__ __forceinline__ void add_products(float sums[SIDE][SIDE], const struct shared_tiles *tiles,
                                                    int row, int column)
{
    for (int k = 0; k < DEPTH; k++) {
        float4 x = *(const float4 *)&tiles->x[k][row], w = *(const float4 *)&tiles->w[k][column];
        float xs[SIDE] = { x.x, x.y, x.z, x.w }, ws[SIDE] = { w.x, w.y, w.z, w.w };
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++) sums[i][j] = fmaf(xs[i], ws[j], sums[i][j]);
    }
}

/* A block of threads: 64 rows by 64 columns, 32 deep at a time.
 *
 *     loading       thread l: row l % 64 of x and of w, columns 8 (l / 64) and 7 more
 *     multiplying   thread l: rows 4 (l / 16) .., columns 4 (l % 16) ..
 *
 *     x [64 rows, depth]         w [64 columns, depth]        shared: [32, 64] each
 *
 * The next tiles are loaded into registers while the present ones are multiplied. A sum starts from 0 and ascends, by
 * fused multiply-add: it does not depend on the other rows. Limit: the FMAs, 16 for a warp and a depth, against 3
 * passes of shared memory. */
static __global__ void __launch_bounds__(THREADS) products(struct m3_products p, int64_t tiles_of_rows)
{
    struct shared_tiles *tiles = (struct shared_tiles *)m3_shared;
    struct m3_block_place place = m3_place_of_block(tiles_of_rows, (p.columns + TILE - 1) / TILE);
    struct m3_rows rows = m3_rows_of_tile(p, place.row, TILE);
    if (rows.begin >= rows.end) return;
    int64_t n0 = place.column * TILE;
    int loaded = (int)threadIdx.x % TILE, run = (int)threadIdx.x / TILE * M3_RUN;
    int row = (int)threadIdx.x / (TILE / SIDE) * SIDE, column = (int)threadIdx.x % (TILE / SIDE) * SIDE;
    const float *x = m3_row_of_x<float>(p, rows.begin + loaded, rows.end);
    struct m3_stored_row w = m3_column(p, rows.expert, n0 + loaded);

    float sums[SIDE][SIDE] = {}, next_x[M3_RUN], next_w[M3_RUN];
    m3_columns_8(next_x, x, run, p.depth);
    m3_stored_8<M3_DTYPES>(next_w, w, run);
    for (int64_t k0 = 0; k0 < p.depth; k0 += DEPTH) {
        __syncthreads();
        for (int i = 0; i < M3_RUN; i++) tiles->x[run + i][loaded] = next_x[i], tiles->w[run + i][loaded] = next_w[i];
        __syncthreads();
        if (k0 + DEPTH < p.depth) {
            m3_columns_8(next_x, x, k0 + DEPTH + run, p.depth);
            m3_stored_8<M3_DTYPES>(next_w, w, k0 + DEPTH + run);
        }
        add_products(sums, tiles, row, column);
    }
    for (int i = 0; i < SIDE; i++) {
        if (rows.begin + row + i >= rows.end) break;
        int64_t to = m3_row_of_y(p, rows.begin + row + i);
        for (int j = 0; j < SIDE; j += 2) m3_put_columns<float>(p, to, n0 + column + j, sums[i][j], sums[i][j + 1]);
    }
}

cudaError_t m3_products_f32(cudaStream_t stream, const struct m3_products *p)
{
    int64_t rows = m3_tiles_of_rows(p, TILE), columns = m3_pieces(p->columns, TILE);
    if (rows > INT32_MAX / columns) return cudaErrorNotSupported;
    return m3_launch(stream, products, dim3((unsigned)(rows * columns)), THREADS, sizeof(struct shared_tiles), *p,
                     rows);
}

static int is_supported(const struct m3_weight *w)
{
    if (w->dtype == M3_F8_E4M3) return 1;
    return w->scaling == M3_UNSCALED &&
           (w->dtype == M3_F64 || w->dtype == M3_F32 || w->dtype == M3_F16 || w->dtype == M3_BF16);
}

cudaError_t m3_cuda_linear(cudaStream_t stream, float *y, const void *x, enum m3_cuda_type type,
                           const struct m3_weight *w, const float *bias, int64_t T)
{
    if (!is_supported(w)) return cudaErrorNotSupported;
    struct m3_products p = {};
    p.what = M3_TENSOR_PLAIN;
    p.type = type;
    p.y = y;
    p.x = x;
    p.T = T;
    p.columns = w->rows;
    p.depth = w->cols;
    p.w = *w;
    p.bias = bias;
    if (T <= M3_FEW) return m3_products_few(stream, &p);
    return type == M3_CUDA_BF16 ? m3_products_bf16(stream, &p) : m3_products_f32(stream, &p);
}
