/* The instructions of ref/cuda/ptx.cuh for a CPU, as the PTX ISA describes mma.m16n8k16, ldmatrix and cp.async. Stands
 * before that file on the path of includes. */
#ifndef M3_CUDA_PTX_CUH
#define M3_CUDA_PTX_CUH

#include "../threads.h"

/* What a lane brings to a product: its registers of a and b; of d, before and after. */
struct m3_fragments {
    uint32_t a[4], b[2];
    float d[4];
};

static inline float m3_half(uint32_t pair, int upper)
{
    return __uint_as_float(upper ? pair & 0xffff0000u : pair << 16);
}

/* Sums from d on, ascending k. */
static inline void m3_multiply(void *all)
{
    struct m3_fragments *lanes = (struct m3_fragments *)all;
    float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < M3_LANES; lane++) {
        const int row = lane / 4, pair = 2 * (lane % 4);
        for (int upper = 0; upper < 2; upper++) {
            for (int i = 0; i < 4; i++)
                a[row + 8 * (i % 2)][pair + 8 * (i / 2) + upper] = m3_half(lanes[lane].a[i], upper);
            for (int i = 0; i < 2; i++) {
                b[pair + 8 * i + upper][row] = m3_half(lanes[lane].b[i], upper);
                d[row + 8 * i][pair + upper] = lanes[lane].d[2 * i + upper];
            }
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++) d[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < M3_LANES; lane++)
        for (int i = 0; i < 4; i++) lanes[lane].d[i] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
}

static inline void mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, m3_line at = m3_line::here())
{
    const m3_fragments own = { { a[0], a[1], a[2], a[3] }, { b0, b1 }, { d[0], d[1], d[2], d[3] } };
    const void *all = m3_meet_warp("mma_bf16", at, 0xffffffffu, &own, sizeof own, m3_multiply);
    memcpy(d, ((const m3_fragments *)all)[m3_own_lane()].d, sizeof own.d);
}

/* What a lane brings to a load: a row of 8 values, then its registers. */
struct m3_matrix_row {
    uint16_t values[8];
    uint32_t registers[4];
};

template <bool TRANSPOSED>
static inline void m3_deal_matrices(void *all)
{
    struct m3_matrix_row *lanes = (struct m3_matrix_row *)all;
    for (int lane = 0; lane < M3_LANES; lane++)
        for (int i = 0; i < 4; i++) {
            const struct m3_matrix_row *matrix = lanes + 8 * i;
            const int one = lane / 4, pair = 2 * (lane % 4);
            const uint32_t low = TRANSPOSED ? matrix[pair].values[one] : matrix[one].values[pair];
            const uint32_t high = TRANSPOSED ? matrix[pair + 1].values[one] : matrix[one].values[pair + 1];
            lanes[lane].registers[i] = low | high << 16;
        }
}

template <bool TRANSPOSED>
static inline void m3_load_matrices(uint32_t r[4], const void *row, const char *operation, m3_line at)
{
    struct m3_matrix_row own = {};
    m3_check_shared(operation, at, row, sizeof own.values);
    memcpy(own.values, row, sizeof own.values);
    const void *all = m3_meet_warp(operation, at, 0xffffffffu, &own, sizeof own, m3_deal_matrices<TRANSPOSED>);
    memcpy(r, ((const m3_matrix_row *)all)[m3_own_lane()].registers, sizeof own.registers);
}

static inline void load_matrices(uint32_t r[4], const void *row, m3_line at = m3_line::here())
{
    m3_load_matrices<false>(r, row, "load_matrices", at);
}

static inline void load_matrices_transposed(uint32_t r[4], const void *row, m3_line at = m3_line::here())
{
    m3_load_matrices<true>(r, row, "load_matrices_transposed", at);
}

/* Until copies_wait the target holds 0xFF bytes, so that neither what comes nor what was there can be read. */
void m3_begin_copy(void *shared, const void *global, int valid, m3_line at);
void m3_commit_copies();
void m3_finish_copies(size_t groups_left);

static inline void copy_16(void *shared, const void *global, int valid, m3_line at = m3_line::here())
{
    m3_begin_copy(shared, global, valid, at);
}

static inline void copies_commit() { m3_commit_copies(); }

template <int N>
static inline void copies_wait()
{
    static_assert(N >= 0, "groups under way");
    m3_finish_copies(N);
}

/* Zeros as in the instruction: +0 is the larger. */
static inline float max_nan(float a, float b)
{
    if (a != a || b != b) return __uint_as_float(0x7fffffff);
    return a > b || (a == b && !signbit(a)) ? a : b;
}

#endif
