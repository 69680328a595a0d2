#include "cuda/linear.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / M3_WARP,
    PAIR = 2,                   /* columns of a warp */
    SUMS = PAIR * M3_FEW,
    AHEAD = 4,                  /* loads of 16 bytes a column and lane that are begun at once, with their scales */
};

template <class Type>
static __device__ __forceinline__ float rounded(float value)
{
    return sizeof(Type) == sizeof(float) ? value : __bfloat162float(__float2bfloat16_rn(value));
}

/* sums [r][c] += N columns of w[c] x[rows[r]]; rows that are -1 are skipped. */
template <class Type, int N>
static __device__ __forceinline__ void add_rows(float sums[SUMS], const float ws[PAIR][N], const Type *x,
                                                const int32_t rows[M3_FEW], int64_t col, int64_t pitch)
{
    constexpr enum m3_dtype dtype = sizeof(Type) == sizeof(float) ? M3_F32 : M3_BF16;
    constexpr int run = m3_stored_run(dtype);
#pragma unroll
    for (int r = 0; r < M3_FEW; r++) {
        if (rows[r] < 0 || col >= pitch) continue;
        float xs[N];
        for (int i = 0; i < N; i += run) {
            const struct m3_loaded loaded = { *(const uint4 *)(x + rows[r] * pitch + col + i), 0 };
            m3_decode<dtype, run>(xs + i, loaded, 0, M3_UNSCALED);
        }
        for (int c = 0; c < PAIR; c++)
            for (int i = 0; i < N; i++) sums[r * PAIR + c] = fmaf(ws[c][i], xs[i], sums[r * PAIR + c]);
    }
}

/* At each step a lane passes half of its sums to the lane at a distance of 2 HALF, and adds those it receives. */
template <int HALF>
static __device__ __forceinline__ void pass_half(float sums[2 * HALF])
{
    const int upper = m3_lane() & 2 * HALF;
    for (int i = 0; i < HALF; i++) {
        float pass = upper ? sums[i] : sums[i + HALF], keep = upper ? sums[i + HALF] : sums[i];
        sums[i] = keep + __shfl_xor_sync(0xffffffffu, pass, 2 * HALF);
    }
}

/* In lane 4 r + 2 c, and the next one: sums [r][c] of all lanes, in 16 shuffles. */
static __device__ __forceinline__ float own_sum(float sums[SUMS])
{
    pass_half<8>(sums);
    pass_half<4>(sums);
    pass_half<2>(sums);
    pass_half<1>(sums);
    return sums[0] + __shfl_xor_sync(0xffffffffu, sums[0], 1);
}

/* For lane r the place of its row of y, or -1, and of x. Few: the slot at which token r names the expert. Otherwise row
 * r of a tile; of PLAIN, of x. */
static __device__ __forceinline__ int32_t find_row(int32_t *of_x, const struct m3_products &p, struct m3_rows rows,
                                                   int64_t expert)
{
    int32_t found = -1, lane = m3_lane();
    if (p.what == M3_TENSOR_PLAIN || !p.few) {
        int64_t i = rows.begin + lane;
        if (lane < M3_FEW && i < rows.end) found = (int32_t)i;
    } else if (lane < p.T) {
        for (int64_t k = 0; k < p.K; k++)
            if (p.ids[lane * p.K + k] == expert) found = (int32_t)(lane * p.K + k);
    }
    *of_x = found;
    if (p.what == M3_GATE_UP && found >= 0) *of_x = (int32_t)((!p.few ? p.members.list[found] : found) / p.K);
    return p.what == M3_DOWN && !p.few && found >= 0 ? p.members.list[found] : found;
}

/* 8 rows at a time. A warp has two columns, which are two rows of weights: read once for all rows of x that use them.
 *
 *     blocks        8 warps' columns, times tiles of 8 rows (or members of an expert's list); for 8 tokens or fewer,
 *                   times slots t K + k, where the first slot that names an expert does the work of all:
 *
 *        ids        3 7         slots 0, 1, 2 work: experts 3, 7, 1; slot 3 exits
 *                   1 3
 *
 * Limit: memory, for the weights that are used; from about 8 rows of one weight on, the FMAs, and beyond the L2 cache,
 * from which weights come once for 8 rows. As compiled, a thread has 64 bytes of weights in flight, and two blocks of
 * threads fit on a multiprocessor: 32 KiB, where 0.6 of 3.35 TB/s need 15 with loads of 1 us (cuda_resources.py). */
template <class Type, enum m3_dtype dtype>
static __global__ void __launch_bounds__(THREADS, 2) products(struct m3_products p, int64_t blocks_of_columns)
{
    const int64_t slot = blockIdx.x / blocks_of_columns, slots_work = p.what != M3_TENSOR_PLAIN && p.few;
    int64_t n = (blockIdx.x % blocks_of_columns * WARPS + threadIdx.x / M3_WARP) * PAIR;
    struct m3_rows tile = { 0, 0, 0 };
    if (slots_work) tile.expert = p.ids[slot];
    else tile = m3_rows_of_tile(p, slot, M3_FEW);
    if (n >= p.columns || tile.expert < 0) return;
    const int64_t expert = tile.expert;
    int32_t my_x, my_row = find_row(&my_x, p, tile, expert), rows[M3_FEW];
    if (slots_work && __any_sync(0xffffffffu, my_row >= 0 && my_row < slot)) return;
    for (int r = 0; r < M3_FEW; r++) rows[r] = __shfl_sync(0xffffffffu, my_x, r);

    struct m3_stored_row w[PAIR] = { m3_column(p, expert, n), m3_column(p, expert, n + 1) };
    constexpr int N = m3_stored_run(dtype), PART = N < 8 ? N : 8;
    float sums[SUMS] = {};
    for (int64_t col = m3_lane() * N; col < p.depth; col += M3_WARP * N * AHEAD) {
        struct m3_loaded loaded[AHEAD][PAIR];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            for (int c = 0; c < PAIR; c++) loaded[a][c] = m3_load_run(w[c], col + a * M3_WARP * N, p.depth, N);
#pragma unroll
        for (int i = 0; i < AHEAD * N; i += PART) {
            float ws[PAIR][PART];
            for (int c = 0; c < PAIR; c++) {
                m3_decode<dtype, PART>(ws[c], loaded[i / N][c], i % N, w[c].scaling);
                for (int j = 0; j < PART && dtype != M3_BF16; j++) ws[c][j] = rounded<Type>(ws[c][j]);
            }
            add_rows<Type, PART>(sums, ws, (const Type *)p.x, rows, col + i / N * M3_WARP * N + i % N,
                                 m3_cuda_pitch(p.depth));
        }
    }

    const float mine = own_sum(sums), next = __shfl_xor_sync(0xffffffffu, mine, PAIR);
    my_row = __shfl_sync(0xffffffffu, my_row, m3_lane() / 4);
    if (my_row >= 0 && m3_lane() % 4 == 0) m3_put_columns<Type>(p, my_row, n, mine, next);
}

cudaError_t m3_products_few(cudaStream_t stream, const struct m3_products *p)
{
    int64_t columns = m3_pieces(p->columns, WARPS * PAIR);
    int64_t slots = p->what == M3_TENSOR_PLAIN || !p->few ? m3_tiles_of_rows(p, M3_FEW) : p->T * p->K;
    if (columns > INT32_MAX || slots > INT32_MAX / columns) return cudaErrorNotSupported;
    void (*kernel)(struct m3_products, int64_t) = NULL;
    if (p->type == M3_CUDA_F32)
        kernel = p->dtype == M3_F32 ? products<float, M3_F32> : p->dtype == M3_BF16 ? products<float, M3_BF16>
                                                                                    : products<float, M3_F8_E4M3>;
    else kernel = p->dtype == M3_BF16 ? products<__nv_bfloat16, M3_BF16> : products<__nv_bfloat16, M3_F8_E4M3>;
    return m3_launch(stream, kernel, dim3((unsigned)(slots * columns)), THREADS, 0, *p, columns);
}
