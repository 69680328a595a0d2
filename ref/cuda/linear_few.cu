#include "cuda/linear.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / M3_WARP,
    PAIR = 2,                   /* columns of a warp */
};

template <class Type>
static __device__ __forceinline__ float rounded(float value)
{
    return sizeof(Type) == sizeof(float) ? value : __bfloat162float(__float2bfloat16_rn(value));
}

/* ws [c] := 8 columns of w[c], for the multiplication. */
template <class Type, enum m3_dtype dtype>
static __device__ __forceinline__ void load_pair(float ws[PAIR][M3_RUN], const struct m3_stored_row w[PAIR],
                                                 int64_t col)
{
    m3_stored_8<dtype>(ws[0], w[0], col);
    m3_stored_8<dtype>(ws[1], w[1], col);
    for (int c = 0; c < PAIR; c++)
        for (int i = 0; i < M3_RUN; i++) ws[c][i] = rounded<Type>(ws[c][i]);
}

/* sums [c][r] += 8 columns of w[c] x[rows[r]], r and those after it; rows that are -1 are skipped. */
template <class Type, int r>
static __device__ __forceinline__ void add_rows(float sums[PAIR][M3_FEW], const float ws[PAIR][M3_RUN], const Type *x,
                                                const int32_t rows[M3_FEW], int64_t col, int64_t depth)
{
    if (rows[r] >= 0) {
        float xs[M3_RUN];
        m3_columns_8(xs, x + rows[r] * depth, col, depth);
        for (int c = 0; c < PAIR; c++)
            for (int i = 0; i < M3_RUN; i++) sums[c][r] = fmaf(ws[c][i], xs[i], sums[c][r]);
    }
    if constexpr (r + 1 < M3_FEW) add_rows<Type, r + 1>(sums, ws, x, rows, col, depth);
}

/* Lane r: mine [c] := sums [c][r] of all lanes. */
template <int r>
static __device__ __forceinline__ void sum_rows(float mine[PAIR], const float sums[PAIR][M3_FEW])
{
    for (int c = 0; c < PAIR; c++) {
        float sum = m3_warp_sum(sums[c][r]);
        if (m3_lane() == r) mine[c] = sum;
    }
    if constexpr (r + 1 < M3_FEW) sum_rows<r + 1>(mine, sums);
}

/* For lane r: the slot at which token r names the expert, or -1. PLAIN: row r. */
static __device__ __forceinline__ int32_t find_row(const struct m3_products &p, int64_t expert)
{
    int32_t found = -1, lane = m3_lane();
    if (lane >= p.T) return found;
    if (p.what == M3_TENSOR_PLAIN) return lane;
    for (int64_t k = 0; k < p.K; k++)
        if (p.ids[lane * p.K + k] == expert) found = (int32_t)(lane * p.K + k);
    return found;
}

/* Up to 8 rows. A warp has two columns, which are two rows of weights: read once for all rows of x that use them.
 *
 *     blocks        8 warps' columns, times slots t K + k; the first slot that names an expert does the work of all
 *
 *        ids        3 7         slots 0, 1, 2 work: experts 3, 7, 1; slot 3 exits
 *                   1 3
 *
 * Limit: memory, for the weights that are used; from about 8 rows of one weight on, the FMAs. */
template <class Type>
static __global__ void __launch_bounds__(THREADS) products(struct m3_products p, int64_t blocks_of_columns)
{
    int64_t slot = blockIdx.x / blocks_of_columns, expert = p.what == M3_TENSOR_PLAIN ? 0 : p.ids[slot];
    int64_t n = (blockIdx.x % blocks_of_columns * WARPS + threadIdx.x / M3_WARP) * PAIR;
    if (n >= p.columns) return;
    int32_t my_row = find_row(p, expert), my_x = p.what == M3_GATE_UP && my_row > 0 ? (int32_t)(my_row / p.K) : my_row;
    if (p.what != M3_TENSOR_PLAIN && __any_sync(0xffffffffu, my_row >= 0 && my_row < slot)) return;
    int32_t rows[M3_FEW];
    for (int r = 0; r < M3_FEW; r++) rows[r] = __shfl_sync(0xffffffffu, my_x, r);

    struct m3_stored_row w[PAIR] = { m3_column(p, expert, n), m3_column(p, expert, n + 1) };
    enum m3_dtype dtype = w[0].dtype == w[1].dtype ? w[0].dtype : M3_DTYPES;
    float sums[PAIR][M3_FEW] = {}, ws[PAIR][M3_RUN];
    for (int64_t col = m3_lane() * M3_RUN; col < p.depth; col += M3_WARP * M3_RUN) {
        switch (dtype) {
        case M3_F32: load_pair<Type, M3_F32>(ws, w, col); break;
        case M3_BF16: load_pair<Type, M3_BF16>(ws, w, col); break;
        case M3_F8_E4M3: load_pair<Type, M3_F8_E4M3>(ws, w, col); break;
        default: load_pair<Type, M3_DTYPES>(ws, w, col);
        }
        add_rows<Type, 0>(sums, ws, (const Type *)p.x, rows, col, p.depth);
    }

    float mine[PAIR] = {};
    sum_rows<0>(mine, sums);
    if (my_row >= 0) m3_put_columns<Type>(p, my_row, n, mine[0], mine[1]);
}

cudaError_t m3_products_few(cudaStream_t stream, const struct m3_products *p)
{
    int64_t columns = m3_pieces(p->columns, WARPS * PAIR), slots = p->what == M3_TENSOR_PLAIN ? p->T > 0 : p->T * p->K;
    if (columns > INT32_MAX || slots > INT32_MAX / columns) return cudaErrorNotSupported;
    dim3 grid((unsigned)(slots * columns));
    return p->type == M3_CUDA_BF16 ? m3_launch(stream, products<__nv_bfloat16>, grid, THREADS, 0, *p, columns)
                                   : m3_launch(stream, products<float>, grid, THREADS, 0, *p, columns);
}
