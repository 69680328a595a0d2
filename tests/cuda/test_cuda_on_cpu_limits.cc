/* The launcher that runs kernels on a CPU: what a device refuses is refused, and what a device would forgive now and
 * then, or do in silence, is named. */
#include "cuda/device.cuh"
#include "cuda/ptx.cuh"

#include <check.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

TIMEOUT(120);

static __global__ void nothing() {}
static __global__ void nothing_either() {}

static cudaError_t run(void (*kernel)(), dim3 grid, dim3 block, size_t shared)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    return cudaLaunchKernelEx(&config, kernel);
}

TEST(limits_of_a_launch)
{
    const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    ck_assert_int_eq(run(nothing, 1, 1024, 48 << 10), cudaSuccess);
    ck_assert_int_eq(run(nothing, 1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFuncSetAttribute((const void *)nothing, attribute, 99 << 10), cudaSuccess);
    ck_assert_int_eq(run(nothing, 1, 32, 99 << 10), cudaSuccess);
    ck_assert_int_eq(run(nothing_either, 1, 32, (48 << 10) + 1), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFuncSetAttribute((const void *)nothing, attribute, (99 << 10) + 1), cudaErrorInvalidValue);
    ck_assert_int_eq(m3_launch(NULL, nothing, 1, 32, (99 << 10) + 1), cudaErrorInvalidValue);
    static const dim3 blocks[] = { dim3(0), dim3(1056), dim3(1025), dim3(33), dim3(32, 2) };
    for (const dim3 &block : blocks) ck_assert_int_eq(run(nothing, 1, block, 0), cudaErrorInvalidConfiguration);
    static const dim3 grids[] = { dim3(0), dim3(0x80000000u), dim3(1, 65536), dim3(1, 1, 65536), dim3(1, 0) };
    for (const dim3 &grid : grids) ck_assert_int_eq(run(nothing, grid, 32, 0), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert_int_eq(run(nothing, dim3(1, 65535), 32, 0), cudaSuccess);
}

TEST(memory_of_a_device)
{
    size_t free_before, free_now, total;
    unsigned char *p, *more, host[64] = { 1, 2, 3 };
    ck_assert_int_eq(cudaMemGetInfo(&free_before, &total), cudaSuccess);
    ck_assert_int_eq(cudaMalloc(&more, total + 1), cudaErrorMemoryAllocation);
    ck_assert_ptr_null(more);
    ck_assert_int_eq(cudaMalloc(&p, 64), cudaSuccess);
    ck_assert_uint_eq((uintptr_t)p % 256, 0);
    ck_assert_int_eq(cudaMalloc(&more, total - 63), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaMemGetInfo(&free_now, &total), cudaSuccess);
    ck_assert_uint_eq(free_now, free_before - 64);

    for (int i = 0; i < 64; i++) ck_assert_uint_eq(p[i], 0xFF);
    ck_assert_int_eq(cudaMemcpyAsync(p + 61, host, 3, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    ck_assert_int_eq(cudaMemsetAsync(p, 7, 61, NULL), cudaSuccess);
    ck_assert_int_eq(cudaMemcpyAsync(host + 8, p + 56, 8, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
    ck_assert_mem_eq(host + 8, "\7\7\7\7\7\1\2\3", 8);

    ck_assert_int_eq(cudaMemcpyAsync(p + 62, host, 3, cudaMemcpyHostToDevice, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpyAsync(p, p, 3, cudaMemcpyHostToDevice, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpyAsync(host, host, 3, cudaMemcpyDeviceToHost, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpyAsync(p, host, 3, cudaMemcpyDeviceToHost, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpyAsync(p, p + 32, 3, cudaMemcpyDeviceToHost, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpyAsync(p, host, 3, cudaMemcpyDeviceToDevice, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemsetAsync(p + 1, 7, 64, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemsetAsync(host, 7, 1, NULL), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFree(p + 1), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFree(p), cudaSuccess);
    ck_assert_int_eq(cudaFree(p), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFree(NULL), cudaSuccess);
    ck_assert_int_eq(cudaMemGetInfo(&free_now, &total), cudaSuccess);
    ck_assert_uint_eq(free_now, free_before);
}

static __global__ void take_pointers(const float *, int, unsigned *) {}

/* Claim: a kernel may be given pointers into device memory, or just after it, or NULL; others are refused. */
TEST(pointers_of_a_launch)
{
    float *x;
    unsigned here;
    ck_assert_int_eq(cudaMalloc(&x, 4 * sizeof *x), cudaSuccess);
    ck_assert_int_eq(m3_launch(NULL, take_pointers, 1, 32, 0, x + 4, 1, nullptr), cudaSuccess);
    ck_assert_int_eq(m3_launch(NULL, take_pointers, 1, 32, 0, x + 1, 1, &here), cudaErrorIllegalAddress);
    ck_assert_int_eq(m3_launch(NULL, take_pointers, 1, 32, 0, (float *)&here, 1, nullptr), cudaErrorIllegalAddress);
    cudaFree(x);
    ck_assert_int_eq(m3_launch(NULL, take_pointers, 1, 32, 0, x, 1, nullptr), cudaErrorIllegalAddress);
}

// ---- misuse

static __global__ void barriers_at_two_lines(unsigned char *)
{
    if (threadIdx.x < 32) __syncthreads();
    if (threadIdx.x >= 32) __syncthreads();
}

static __global__ void barrier_in_a_warp(unsigned char *)
{
    if (threadIdx.x == 5) __syncthreads();
    else if (threadIdx.x < 32) __syncwarp();
    else return;
}

static __global__ void two_operations(unsigned char *)
{
    threadIdx.x % 2 ? (void)__ballot_sync(0xffffffffu, 1) : (void)__any_sync(0xffffffffu, 1);
}

static __global__ void half_a_mask(unsigned char *) { __shfl_sync(0x0000ffffu, 1, 0); }

static __global__ void a_lane_that_left(unsigned char *)
{
    if (threadIdx.x == 31) return;
    m3_warp_sum(1);
}

static __global__ void write_behind_shared(unsigned char *) { m3_shared[threadIdx.x + 1] = 1; }
static __global__ void copy_behind_shared(unsigned char *global) { copy_16(m3_shared + 64, global, 1); }
static __global__ void copy_to_odd_place(unsigned char *global) { copy_16(m3_shared + 8, global, 1); }
static __global__ void copy_from_odd_place(unsigned char *global) { copy_16(m3_shared, global + 8, 1); }

static __global__ void load_from_odd_place(unsigned char *)
{
    uint32_t r[4];
    load_matrices(r, m3_shared + 2 * m3_lane());
}

static __global__ void load_from_elsewhere(unsigned char *global)
{
    uint32_t r[4];
    load_matrices(r, global);
}

static const struct {
    void (*kernel)(unsigned char *);
    const char *said[2];        /* one or the other, as the order goes, or as the sanitizer says it */
} misuses[] = {
    { barriers_at_two_lines, { "is at __syncthreads", "is at __syncthreads" } },
    { barrier_in_a_warp, { "waits for ever at __syncwarp", "with 31 of 32 lanes; thread 5 waits at __syncthreads" } },
    { two_operations, { "is at __ballot_sync", "is at __any_sync" } },
    { half_a_mask, { "__shfl_sync", "with mask 0000ffff" } },
    { a_lane_that_left, { "but a lane has returned", "returns while lane" } },
    { write_behind_shared, { "that wrote byte 64 of shared memory of 64", "use-after-poison" } },
    { copy_behind_shared, { "16 bytes at 64 of shared memory of 64", "at 64" } },
    { copy_to_odd_place, { "16 bytes at 8 of shared memory of 64", "at 8" } },
    { copy_from_odd_place, { "is not aligned to 16", "not aligned" } },
    { load_from_odd_place, { "16 bytes at 2 of shared memory of 64", "load_matrices" } },
    { load_from_elsewhere, { "of shared memory of 64", "load_matrices" } },
};

/* What a process says that uses one after `launches` other launches; "" if it ends well. */
static std::vector<char> said_of(size_t misuse, int launches)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        unsigned char *global;
        if (cudaMalloc(&global, 64) != cudaSuccess) _exit(2);
        for (int i = 0; i < launches; i++)
            if (run(nothing, 1, 32, 0) != cudaSuccess) _exit(2);
        m3_launch(NULL, misuses[misuse].kernel, 1, 64, 64, global);
        _exit(0);
    }
    close(ends[1]);
    std::vector<char> said;
    char c;
    while (read(ends[0], &c, 1) == 1) said.push_back(c);
    close(ends[0]);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (status == 0) said.clear();
    said.push_back('\0');
    return said;
}

/* Claim: in every order a misuse ends the process, and is named. */
LOOP_TEST(misuses_are_named, sizeof misuses / sizeof *misuses)
{
    for (int launches = 0; launches < 8; launches++) {
        const std::vector<char> said = said_of((size_t)_i, launches);
        ck_assert_msg(strstr(said.data(), misuses[_i].said[0]) || strstr(said.data(), misuses[_i].said[1]),
                      "misuse %d, launch %d: %s", _i, launches, said.data());
    }
}
