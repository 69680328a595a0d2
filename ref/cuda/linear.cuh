/* Products of rows and stored weights, for m3_cuda_linear and m3_cuda_experts: which rows, which weights, and where
 * results are written. How they are multiplied: linear_bf16.cu, and for few rows or floats linear_few.cu; with one
 * kernel for each stored type.
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

#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "cuda/members.h"
#include "cuda/weight.cuh"

enum m3_product { M3_TENSOR_PLAIN, M3_GATE_UP, M3_DOWN };

enum {
    M3_FEW = 8,                 /* rows at a time that use dot products */
    M3_TILE = 128,              /* rows of a tile of bfloat16, and columns */
    M3_BAND = 16,               /* tiles of rows that share weights while these are in a near cache */
};

struct m3_products {
    enum m3_product what;
    enum m3_cuda_type type;             /* of x, and of the y of GATE_UP; other y are float */
    enum m3_dtype dtype;                /* of all weights */
    void *y;
    const void *x;
    int few;                            /* the call has at most M3_FEW rows or tokens */
    int64_t T, columns, depth;          /* columns of y, which are rows of weights; depth: their length */
    int64_t given;                      /* GATE_UP: the columns with weights; the others, up to the pitch of y, are 0 */
    struct m3_weight w;                 /* PLAIN */
    const float *bias;                  /* PLAIN; [columns] or NULL */
    const struct m3_expert *experts;    /* GATE_UP, DOWN, as are the fields below */
    const int32_t *ids;                 /* [T,K] */
    int64_t K;
    struct m3_activation act;
    struct m3_members members;          /* of ids; unused for few rows, where place = slot */
};

/* Chooses: many rows of bfloat16, or few, or floats. */
cudaError_t m3_products(cudaStream_t stream, const struct m3_products *p);
cudaError_t m3_products_bf16(cudaStream_t stream, const struct m3_products *p);
cudaError_t m3_products_few(cudaStream_t stream, const struct m3_products *p);

static inline int m3_products_tile(enum m3_cuda_type type) { return type == M3_CUDA_BF16 ? M3_TILE : M3_FEW; }

/* ---- the activation of a gated MLP, for one pair of numbers: SPEC 5.11, 5.12 */

/* For x < 0 computed from exp(x): exp(-x) overflows from 88.8 on, where the logistic is still above 0. NaN is not
 * below 0. */
static __device__ __forceinline__ float m3_logistic(float x)
{
    float e = expf(x < 0 ? x : -x);
    return (x < 0 ? e : 1) / (1 + e);
}

/* Comparisons instead of fminf and fmaxf: a NaN fails them and stays. */
static __device__ __forceinline__ float m3_gated(float gate, float up, const struct m3_activation &act)
{
    if (!act.oai) return up * gate * m3_logistic(gate);
    float g = gate > act.limit ? act.limit : gate, u = up > act.limit ? act.limit : up;
    if (act.clamp == M3_GATE_CLAMP_BOTH && g < -act.limit) g = -act.limit;
    if (u < -act.limit) u = -act.limit;
    return (u + 1) * g * m3_logistic(act.alpha * g);
}

/* The row of a weight for column n. */
static __device__ __forceinline__ struct m3_stored_row m3_column(const struct m3_products &p, int64_t expert, int64_t n)
{
    if (p.what == M3_TENSOR_PLAIN) return m3_stored_row_of(p.w, n);
    if (p.what == M3_DOWN) return m3_stored_row_of(p.experts[expert].w2, n);
    return m3_stored_row_of(n % 2 ? p.experts[expert].w3 : p.experts[expert].w1, n / 2);
}

/* Writes columns n, which is even, and n + 1 of row i of y. */
template <class Type>
static __device__ __forceinline__ void m3_put_columns(const struct m3_products &p, int64_t i, int64_t n, float first,
                                                      float second)
{
    if (n >= p.columns) return;
    if (p.what == M3_GATE_UP) {
        m3_put((Type *)p.y + i * (p.columns / 2) + n / 2, n < p.given ? m3_gated(first, second, p.act) : 0);
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
    return (const Type *)p.x + (p.what == M3_GATE_UP ? p.members.list[i] / p.K : i) * m3_cuda_pitch(p.depth);
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
