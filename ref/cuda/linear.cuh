/* Products of rows and stored weights, for m3_cuda_linear and m3_cuda_experts: which rows, which weights, and where
 * results are written. How they are multiplied: linear.cu, linear_bf16.cu, linear_few.cu.
 *
 *     M3_TENSOR_PLAIN       y[i]        := w x[i] + bias
 *     M3_GATE_UP     y[place]    := act(w1_e x[t], w3_e x[t])     for every place of the list of e (members.h), of
 *     M3_DOWN        y[slot]     := w2_e x[place]                 slot t K + k
 *
 * The columns of GATE_UP alternate, so that one thread gets both numbers of a pair:
 *
 *     column         0      1      2      3      4    ..
 *     row of         w1[0]  w3[0]  w1[1]  w3[1]  w1[2] .. */
#ifndef M3_CUDA_LINEAR_CUH
#define M3_CUDA_LINEAR_CUH

#include "cuda/activation.cuh"
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/members.h"
#include "cuda/weight.cuh"

enum m3_product { M3_TENSOR_PLAIN, M3_GATE_UP, M3_DOWN };

enum {
    M3_FEW = 8,                 /* up to this many rows use dot products; more use tiles */
    M3_TILE_F32 = 64,           /* rows of a tile, and columns */
    M3_TILE_BF16 = 128,
    M3_BAND = 16,               /* tiles of rows that share weights while these are in a near cache */
};

struct m3_products {
    enum m3_product what;
    enum m3_cuda_type type;             /* of x, and of the y of GATE_UP; other y are float */
    void *y;
    const void *x;
    int64_t T, columns, depth;          /* columns of y, which are rows of weights; depth: their length */
    struct m3_weight w;                 /* PLAIN */
    const float *bias;                  /* PLAIN; [columns] or NULL */
    const struct m3_expert *experts;    /* GATE_UP, DOWN, as are the fields below */
    const int32_t *ids;                 /* [T,K] */
    int64_t K;
    struct m3_activation act;
    struct m3_members members;          /* of ids; unused for few rows, where place = slot */
};

cudaError_t m3_products_f32(cudaStream_t stream, const struct m3_products *p);
cudaError_t m3_products_bf16(cudaStream_t stream, const struct m3_products *p);
cudaError_t m3_products_few(cudaStream_t stream, const struct m3_products *p);      /* T <= M3_FEW */

/* The row of a weight for column n. */
static __device__ __forceinline__ struct m3_stored_row m3_column(const struct m3_products &p, int64_t expert, int64_t n)
{
    if (p.what == M3_TENSOR_PLAIN) return m3_stored_row_of(p.w, n);
    if (p.what == M3_DOWN) return m3_stored_row_of(p.experts[expert].w2, n);
    return m3_stored_row_of(n % 2 ? p.experts[expert].w3 : p.experts[expert].w1, n / 2);
}

static __device__ __forceinline__ void m3_put(float *y, float value) { *y = value; }
static __device__ __forceinline__ void m3_put(__nv_bfloat16 *y, float value) { *y = __float2bfloat16_rn(value); }

/* Writes columns n, which is even, and n + 1 of row i of y. */
template <class Type>
static __device__ __forceinline__ void m3_put_columns(const struct m3_products &p, int64_t i, int64_t n, float first,
                                                      float second)
{
    if (n >= p.columns) return;
    if (p.what == M3_GATE_UP) {
        m3_put((Type *)p.y + i * (p.columns / 2) + n / 2, m3_gated(first, second, p.act));
        return;
    }
    float *y = (float *)p.y + i * p.columns + n;
    y[0] = p.bias ? first + p.bias[n] : first;
    if (n + 1 < p.columns) y[1] = p.bias ? second + p.bias[n + 1] : second;
}

/* Rows of one tile: of x, or places of the list of one expert. */
struct m3_rows {
    int64_t expert, begin, end;
};

static __device__ __forceinline__ struct m3_rows m3_rows_of_tile(const struct m3_products &p, int64_t index, int tile)
{
    struct m3_rows rows = { 0, index * tile, (index + 1) * tile < p.T ? (index + 1) * tile : p.T };
    if (p.what != M3_TENSOR_PLAIN) {
        struct m3_members_tile found = m3_members_find(p.members, index);
        rows.expert = found.value, rows.begin = found.begin, rows.end = found.end;
    }
    return rows;
}

/* Row i of x for the multiplication; NULL from `end` on. */
template <class Type>
static __device__ __forceinline__ const Type *m3_row_of_x(const struct m3_products &p, int64_t i, int64_t end)
{
    if (i >= end) return NULL;
    return (const Type *)p.x + (p.what == M3_GATE_UP ? p.members.list[i] / p.K : i) * p.depth;
}

static __device__ __forceinline__ int m3_is_aligned(const void *from) { return (uintptr_t)from % 16 == 0; }

/* v [8] := x [col, col + 8) as float; 0 from `cols` on, and if x is NULL. */
static __device__ __forceinline__ void m3_columns_8(float v[M3_RUN], const float *x, int64_t col, int64_t cols)
{
    if (x && col + M3_RUN <= cols && m3_is_aligned(x + col)) {
        float4 low = *(const float4 *)(x + col), high = *(const float4 *)(x + col + 4);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
        for (int i = 0; i < M3_RUN; i++) v[i] = x && col + i < cols ? x[col + i] : 0;
    }
}

static __device__ __forceinline__ void m3_columns_8(float v[M3_RUN], const __nv_bfloat16 *x, int64_t col, int64_t cols)
{
    if (x && col + M3_RUN <= cols && m3_is_aligned(x + col)) {
        uint4 eight = *(const uint4 *)(x + col);
        uint32_t words[4] = { eight.x, eight.y, eight.z, eight.w };
        for (int i = 0; i < M3_RUN; i++) v[i] = m3_number<M3_BF16>(words, i);
    } else {
        for (int i = 0; i < M3_RUN; i++) v[i] = x && col + i < cols ? __bfloat162float(x[col + i]) : 0;
    }
}

static __device__ __forceinline__ int64_t m3_row_of_y(const struct m3_products &p, int64_t i)
{
    return p.what == M3_DOWN ? p.members.list[i] : i;
}

/* The grid: tiles of rows times tiles of columns, in bands of M3_BAND tiles of rows, down each column of a band.
 *
 *      0  2  4 | the blocks of a band of 2      Blocks that run together share few rows and few columns.
 *      1  3  5 |
 *      6  7  8   the last band has the remaining tiles */
struct m3_block_place {
    int64_t row, column;
};

static __device__ __forceinline__ struct m3_block_place m3_place_of_block(int64_t rows, int64_t columns)
{
    int64_t index = blockIdx.x, band = index / (M3_BAND * columns), inside = index % (M3_BAND * columns);
    int64_t height = rows - band * M3_BAND;
    if (height > M3_BAND) height = M3_BAND;
    struct m3_block_place place = { band * M3_BAND + inside % height, inside / height };
    return place;
}

static inline int64_t m3_tiles_of_rows(const struct m3_products *p, int tile)
{
    return p->what == M3_TENSOR_PLAIN ? m3_pieces(p->T, tile) : m3_members_most_tiles(&p->members);
}

#endif
