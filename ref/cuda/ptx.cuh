/* The few instructions for which CUDA C++ has no function. All exist from sm_80 on, also in sm_90 and sm_100.
 *
 * All 32 lanes of a warp must call mma_bf16 and load_matrices. Fragments, with l the lane; in every pair the lower
 * index is in the lower half of the register:
 *
 *     a[0]  row l/4,      k 2(l%4), +1          b0  k 2(l%4), +1,      column l/4
 *     a[1]  row l/4 + 8,  k 2(l%4), +1          b1  k 2(l%4) + 8, +9,  column l/4
 *     a[2]  row l/4,      k 2(l%4) + 8, +9      d[0], d[1]  row l/4,      columns 2(l%4), +1
 *     a[3]  row l/4 + 8,  k 2(l%4) + 8, +9      d[2], d[3]  row l/4 + 8,  columns 2(l%4), +1
 *
 * load_matrices over a row-major [16,16] of bf16 (lane l points at row l%16, column 8 (l/16)) gives a[0..3]. */
#ifndef M3_CUDA_PTX_CUH
#define M3_CUDA_PTX_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t m3_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* d [16,8] := a [16,16] b [16,8] + d. Products are exact, sums float, in unspecified order. */
static __device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices [8,8] of 16-bit values. Lane l points at row l%8 of matrix l/8: 16 bytes of shared memory, aligned to
 * 16. r[i] := of matrix i, row l/4, columns 2(l%4), +1. */
static __device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(m3_shared_address(row))
                 : "memory");
}

/* r[i] := of matrix i, rows 2(l%4), +1, column l/4. */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(m3_shared_address(row))
                 : "memory");
}

/* Begins to copy 16 bytes, both sides aligned to 16; zeros if not valid, and then `global` is not read. The copy is
 * visible to this thread after copies_wait, to others after a following barrier; the old contents are lost at once. */
static __device__ __forceinline__ void copy_16(void *shared, const void *global, int valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(m3_shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
}

/* Makes the copies begun since the last call a group. */
static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most the N youngest groups of this thread are in flight. */
template <int N>
static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* NaN if either is; fmaxf would take the other. */
static __device__ __forceinline__ float max_nan(float a, float b)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

#endif
