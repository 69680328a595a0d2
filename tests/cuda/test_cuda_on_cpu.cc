/* The launcher that runs kernels on a CPU: what kernels build on does what a device does, in every order. */
#include "cuda/device.cuh"
#include "cuda/ptx.cuh"

#include <check.h>
#include <vector>

TIMEOUT(120);

enum { LAUNCHES = 16 };     /* of one kernel: every order comes */

/* Device memory, copied there and back. */
template <class T>
struct on_device {
    T *p;
    size_t n;
    explicit on_device(const std::vector<T> &values) : n(values.size())
    {
        ck_assert_int_eq(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
        ck_assert_int_eq(cudaMemcpyAsync(p, values.data(), n * sizeof(T), cudaMemcpyHostToDevice, NULL), cudaSuccess);
    }
    ~on_device() { cudaFree(p); }
    std::vector<T> back() const
    {
        std::vector<T> values(n);
        ck_assert_int_eq(cudaMemcpyAsync(values.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, NULL), cudaSuccess);
        return values;
    }
};

template <class... Parameters, class... Arguments>
static void launch(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared, Arguments... arguments)
{
    ck_assert_int_eq(m3_launch(NULL, kernel, grid, threads, shared, arguments...), cudaSuccess);
}

// ---- grids and orders

static __global__ void count_threads(unsigned *count)
{
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    atomicAdd(count + block * blockDim.x + threadIdx.x, 1);
}

/* Claim: each thread of each block runs once, in every launch. */
TEST(every_thread_once)
{
    static const dim3 grids[] = { dim3(1), dim3(2), dim3(7), dim3(5, 3, 2), dim3(1, 1, 4), dim3(64) };
    for (const dim3 &grid : grids)
        for (unsigned threads = 32; threads <= 1024; threads += 32 * 31) {
            on_device<unsigned> count(std::vector<unsigned>(grid.x * grid.y * grid.z * threads, 0));
            for (int i = 0; i < LAUNCHES; i++) launch(count_threads, grid, threads, 0, count.p);
            for (unsigned n : count.back()) ck_assert_uint_eq(n, LAUNCHES);
        }
    ck_assert_int_eq(m3_launch(NULL, count_threads, dim3(0), 32, 0, (unsigned *)NULL), cudaSuccess);
}

static __global__ void take_tickets(unsigned *ticket, unsigned *next)
{
    ticket[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}

/* Claim: among a few launches are some with the first and some with the last block and thread first, and more than four
 * orders in all; but block after block. */
TEST(orders_change)
{
    enum { BLOCKS = 5, THREADS = 64 };
    unsigned first_first = 0, last_first = 0, orders = 0;
    std::vector<std::vector<unsigned>> seen;
    for (int i = 0; i < LAUNCHES; i++) {
        on_device<unsigned> ticket(std::vector<unsigned>(BLOCKS * THREADS)), next({ 0 });
        launch(take_tickets, BLOCKS, THREADS, 0, ticket.p, next.p);
        const std::vector<unsigned> now = ticket.back();
        for (int b = 0; b < BLOCKS; b++)
            for (int t = 0; t < THREADS; t++)
                ck_assert_uint_eq(now[b * THREADS + t] / THREADS, now[b * THREADS] / THREADS);
        first_first += now[0] == 0 && now[1] == 1;
        last_first += now[BLOCKS * THREADS - 1] == 0 && now[BLOCKS * THREADS - 2] == 1;
        bool again = false;
        for (const auto &before : seen) again |= before == now;
        orders += !again;
        seen.push_back(now);
    }
    ck_assert_uint_gt(first_first, 0);
    ck_assert_uint_gt(last_first, 0);
    ck_assert_uint_gt(orders, 4);
}

static __global__ void turn_round(unsigned *y, int rounds, int wait)
{
    unsigned *s = (unsigned *)m3_shared, *other = s + blockDim.x, x = threadIdx.x;
    for (int i = 0; i < rounds; i++) {
        s[threadIdx.x] = x;
        if (wait) __syncthreads();
        x = s[(threadIdx.x + 1) % blockDim.x];
        unsigned *t = s;
        s = other;
        other = t;
    }
    y[threadIdx.x] = x;
}

/* Goal:  threads go through barriers together; and a barrier that is missing is seen.
 * Claim: with barriers each gets its neighbour's value each round; without, launches differ, and not all are right. */
TEST(barriers)
{
    enum { THREADS = 96, ROUNDS = 5 };
    unsigned wrong = 0, different = 0;
    std::vector<unsigned> before;
    for (int wait = 1; wait >= 0; wait--)
        for (int i = 0; i < LAUNCHES; i++) {
            on_device<unsigned> y(std::vector<unsigned>(THREADS, 0));
            const int rounds = wait ? ROUNDS : 1;
            launch(turn_round, 1, THREADS, 2 * THREADS * sizeof(unsigned), y.p, rounds, wait);
            const std::vector<unsigned> now = y.back();
            bool right = true;
            for (int t = 0; t < THREADS; t++) right &= now[t] == (unsigned)(t + rounds) % THREADS;
            if (wait) ck_assert(right);
            wrong += !right;
            different += !before.empty() && now != before;
            before = now;
        }
    ck_assert_uint_eq(wrong, LAUNCHES);
    ck_assert_uint_gt(different, LAUNCHES / 4);
}

static __global__ void leave_one_by_one(unsigned *y)
{
    for (unsigned i = 0; i < blockDim.x / M3_WARP; i++) {
        if (threadIdx.x / M3_WARP == i) return;
        __syncthreads();
        y[threadIdx.x]++;
    }
}

/* Claim: a barrier waits only for those that have not returned. */
TEST(returned_threads_are_not_waited_for)
{
    for (int i = 0; i < LAUNCHES; i++) {
        on_device<unsigned> y(std::vector<unsigned>(128, 0));
        launch(leave_one_by_one, 1, 128, 0, y.p);
        const std::vector<unsigned> got = y.back();
        for (unsigned t = 0; t < 128; t++) ck_assert_uint_eq(got[t], t / M3_WARP);
    }
}

static __global__ void dirty_shared(unsigned *bad, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        if (m3_shared[i] != 0xFF) atomicAdd(bad, 1);
        m3_shared[i] = 0;
    }
    if ((uintptr_t)m3_shared % 128 != 0) atomicAdd(bad, 1);
}

/* Claim: every block starts with 0xFF in all of its shared memory. */
TEST(shared_memory_starts_as_nan)
{
    static const int sizes[] = { 1, 127, 4097, 48 << 10, 99 << 10 };
    for (int size : sizes) {
        on_device<unsigned> bad({ 0 });
        launch(dirty_shared, 3, 64, (size_t)size, bad.p, size);
        ck_assert_uint_eq(bad.back()[0], 0);
    }
}

// ---- warps

template <class T>
static __global__ void shuffle(T *y, const T *x, int by)
{
    const T own = x[threadIdx.x];
    y[threadIdx.x] = __shfl_sync(0xffffffffu, own, by);
    y[threadIdx.x + 64] = __shfl_xor_sync(0xffffffffu, own, by);
    y[threadIdx.x + 128] = __shfl_up_sync(0xffffffffu, own, (unsigned)by);
}

template <class T>
static void check_shuffles()
{
    std::vector<T> x(64);
    for (int i = 0; i < 64; i++) x[(size_t)i] = (T)(i + 1) / (T)(sizeof(T) == 8 ? 3 : 1);
    on_device<T> there(x);
    for (int by = 0; by < 32; by++) {
        on_device<T> y(std::vector<T>(192, (T)-7));
        launch(shuffle<T>, 1, 64, 0, y.p, there.p, by);
        const std::vector<T> got = y.back();
        for (int i = 0; i < 64; i++) {
            ck_assert(got[i] == x[i / 32 * 32 + by]);
            ck_assert(got[i + 64] == x[i ^ by]);
            ck_assert(got[i + 128] == x[i % 32 >= by ? i - by : i]);
        }
    }
}

/* Given: two warps, all distances, values of 4 and 8 bytes. */
TEST(shuffles)
{
    check_shuffles<int>();
    check_shuffles<unsigned>();
    check_shuffles<float>();
    check_shuffles<double>();
    check_shuffles<unsigned long long>();
}

static __global__ void vote(unsigned *y, unsigned bits)
{
    const int mine = bits >> m3_lane() & 1 ? 256 : 0;
    y[threadIdx.x] = __ballot_sync(0xffffffffu, mine);
    y[threadIdx.x + 32] = (unsigned)__any_sync(0xffffffffu, mine);
}

TEST(votes)
{
    static const unsigned patterns[] = { 0, 1, 0x80000000u, 0xffffffffu, 0x0f00ff31u };
    for (unsigned bits : patterns) {
        on_device<unsigned> y(std::vector<unsigned>(64, 77));
        launch(vote, 1, 32, 0, y.p, bits);
        const std::vector<unsigned> got = y.back();
        for (int i = 0; i < 32; i++) {
            ck_assert_uint_eq(got[i], bits);
            ck_assert_uint_eq(got[i + 32], bits != 0);
        }
    }
}

static __global__ void reduce(float *y, const float *x)
{
    y[threadIdx.x] = m3_warp_sum(x[threadIdx.x]);
}

/* Claim: sums in the stated order, to the bit, the same in all lanes. */
TEST(sums_of_a_warp)
{
    std::vector<float> x(64);
    for (int i = 0; i < 64; i++) x[(size_t)i] = ldexpf((float)(i * 37 % 64 - 30), i % 23);
    on_device<float> there(x), y(std::vector<float>(64));
    launch(reduce, 1, 64, 0, y.p, there.p);
    const std::vector<float> got = y.back();
    for (int warp = 0; warp < 2; warp++) {
        float sum[32];
        for (int i = 0; i < 32; i++) sum[i] = x[(size_t)(32 * warp + i)];
        for (int half = 16; half > 0; half /= 2)
            for (int i = 0; i < half; i++) sum[i] += sum[i + half];
        for (int i = 0; i < 32; i++) {
            ck_assert(got[32 * warp + i] == sum[0]);
        }
    }
}

// ---- matrices

static __device__ uint32_t pair(const __nv_bfloat16 *low, const __nv_bfloat16 *high)
{
    uint16_t bits[2];
    memcpy(bits, low, 2);
    memcpy(bits + 1, high, 2);
    return bits[0] | (uint32_t)bits[1] << 16;
}

/* Element by element as in the PTX ISA: a0..a7, b0..b3, c0..c3 of a group of four lanes. */
static __global__ void multiply(float *d, const __nv_bfloat16 *a, const __nv_bfloat16 *b)
{
    const int group = m3_lane() >> 2, member = m3_lane() & 3;
    const __nv_bfloat16 *ai[8], *bi[4];
    for (int i = 0; i < 8; i++) {
        const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        ai[i] = a + row * 16 + member * 2 + (i & 1) + (i < 4 ? 0 : 8);
    }
    for (int i = 0; i < 4; i++) bi[i] = b + (member * 2 + (i & 1) + (i < 2 ? 0 : 8)) * 8 + group;
    const uint32_t registers[4] = { pair(ai[0], ai[1]), pair(ai[2], ai[3]), pair(ai[4], ai[5]), pair(ai[6], ai[7]) };
    float c[4];
    for (int i = 0; i < 4; i++) c[i] = d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)];
    mma_bf16(c, registers, pair(bi[0], bi[1]), pair(bi[2], bi[3]));
    for (int i = 0; i < 4; i++) d[(i < 2 ? group : group + 8) * 8 + member * 2 + (i & 1)] = c[i];
}

/* The same product with both taken from shared memory, as attention takes keys and values; rows of 24 values. */
static __global__ void multiply_loaded(float *d, const __nv_bfloat16 *a, const __nv_bfloat16 *b)
{
    __nv_bfloat16 *as = (__nv_bfloat16 *)m3_shared, *bs = as + 16 * 24;
    for (int i = m3_lane(); i < 256; i += 32) as[i / 16 * 24 + i % 16] = a[i];
    for (int i = m3_lane(); i < 128; i += 32) bs[i / 8 * 24 + i % 8] = bs[i / 8 * 24 + i % 8 + 8] = b[i];
    __syncwarp();
    uint32_t ar[4], br[4];
    load_matrices(ar, as + m3_lane() % 16 * 24 + m3_lane() / 16 * 8);
    load_matrices_transposed(br, bs + m3_lane() % 16 * 24 + m3_lane() / 16 * 8);
    const int row = m3_lane() / 4, column = 2 * (m3_lane() % 4);
    float c[4] = { d[row * 8 + column], d[row * 8 + column + 1], d[(row + 8) * 8 + column],
                   d[(row + 8) * 8 + column + 1] };
    mma_bf16(c, ar, br[0], br[1]);
    for (int i = 0; i < 4; i++) d[(row + i / 2 * 8) * 8 + column + i % 2] = c[i];
}

/* Given: integers, none of whose sums is rounded; a product that bfloat16 could not hold; NaN in one row. */
TEST(product_of_fragments)
{
    std::vector<__nv_bfloat16> a(256), b(128);
    std::vector<float> c(128), want(128);
    for (int i = 0; i < 256; i++) a[(size_t)i] = __float2bfloat16_rn((float)(i * 29 % 255 - 127));
    for (int i = 0; i < 128; i++) b[(size_t)i] = __float2bfloat16_rn((float)(i * 53 % 253 - 126));
    for (int i = 0; i < 128; i++) c[(size_t)i] = (float)(1000 * i + 1);
    a[13 * 16 + 5] = __float2bfloat16_rn(NAN);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++) {
            double sum = c[(size_t)(m * 8 + n)];
            for (int k = 0; k < 16; k++)
                sum += (double)__bfloat162float(a[(size_t)(m * 16 + k)]) * __bfloat162float(b[(size_t)(k * 8 + n)]);
            want[(size_t)(m * 8 + n)] = (float)sum;
        }
    on_device<__nv_bfloat16> a_there(a), b_there(b);
    for (auto kernel : { multiply, multiply_loaded })
        for (int i = 0; i < LAUNCHES; i++) {
            on_device<float> d(c);
            launch(kernel, 1, 32, 2 * 16 * 24 * 2, d.p, a_there.p, b_there.p);
            const std::vector<float> got = d.back();
            for (size_t j = 0; j < 128; j++)
                ck_assert_msg(j / 8 == 13 ? got[j] != got[j] : got[j] == want[j], "%zu: got %g, want %g", j,
                              (double)got[j], (double)want[j]);
        }
}

/* Then each lane spoils its row at once: what a lane gets was read before. */
static __global__ void deal(uint32_t *y, int transposed)
{
    uint16_t *s = (uint16_t *)m3_shared;
    for (int i = (int)threadIdx.x; i < 256; i += 32) s[i / 8 * 24 + i % 8] = (uint16_t)i;
    __syncwarp();
    uint32_t r[4];
    if (transposed) load_matrices_transposed(r, s + m3_lane() * 24);
    else load_matrices(r, s + m3_lane() * 24);
    for (int i = 0; i < 8; i++) s[m3_lane() * 24 + i] = 999;
    for (int i = 0; i < 4; i++) y[4 * threadIdx.x + (unsigned)i] = r[i];
}

/* Given: element c of row r of matrix i is 64 i + 8 r + c; rows 48 bytes apart. */
TEST(fragments_of_matrices)
{
    for (int transposed = 0; transposed < 2; transposed++)
        for (int launches = 0; launches < LAUNCHES; launches++) {
            on_device<uint32_t> y(std::vector<uint32_t>(128, 0));
            launch(deal, 1, 32, 32 * 48, y.p, transposed);
            const std::vector<uint32_t> got = y.back();
            for (uint32_t lane = 0; lane < 32; lane++)
                for (uint32_t i = 0; i < 4; i++) {
                    const uint32_t one = lane / 4, low = lane % 4 * 2, high = low + 1;
                    const uint32_t want = transposed ? (8 * low + one) | (8 * high + one) << 16
                                                     : (8 * one + low) | (8 * one + high) << 16;
                    ck_assert_uint_eq(got[lane * 4 + i], want + (64 * i | 64 * i << 16));
                }
        }
}

// ---- copies

/* y: what each copy's place held after begin, commit, wait<1>, wait<0>, and a late group's without a wait. */
static __global__ void copy_in_groups(uint4 *y, const uint4 *x)
{
    uint4 *s = (uint4 *)m3_shared + 4 * threadIdx.x;
    for (int i = 0; i < 4; i++) s[i] = make_uint4(5, 5, 5, 5);
    y += 12 * threadIdx.x;
    copy_16(s, x, 1);
    copy_16(s + 1, (const void *)16, 0);        /* no address of a process */
    y[0] = s[0];
    y[1] = s[1];
    copies_commit();
    y[2] = s[0];
    copy_16(s + 2, x + 1 + threadIdx.x, 1);
    copies_commit();
    copies_wait<1>();
    y[3] = s[0];
    y[4] = s[1];
    y[5] = s[2];
    copy_16(s + 3, x, 1);
    copies_wait<0>();
    y[6] = s[2];
    y[7] = s[3];
    copies_commit();
    copies_wait<1>();
    y[8] = s[3];
    copies_wait<0>();
    y[9] = s[3];
}

/* Claim: nothing of a copy is there before its group is waited for; what was there is gone at once. The zeros of a copy
 * that is not valid come without a read. */
TEST(copies_come_when_waited_for)
{
    std::vector<uint4> x(65);
    for (unsigned i = 0; i < 65; i++) x[i] = make_uint4(10 * i, 10 * i + 1, 10 * i + 2, 10 * i + 3);
    const uint4 none = make_uint4(~0u, ~0u, ~0u, ~0u), zero = make_uint4(0, 0, 0, 0);
    on_device<uint4> there(x), y(std::vector<uint4>(64 * 12));
    launch(copy_in_groups, 1, 64, 64 * 4 * sizeof(uint4), y.p, there.p);
    const std::vector<uint4> got = y.back();
    for (unsigned t = 0; t < 64; t++) {
        const uint4 want[10] = { none, none, none, x[0], zero, none, x[1 + t], none, none, x[0] };
        ck_assert_mem_eq(&got[12 * t], want, sizeof want);
    }
}

// ---- numbers

/* Given: all 2^16 patterns; each midpoint of two neighbours, and the floats beside it. */
TEST(bfloat16_rounds_to_nearest_even)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        const uint16_t bits = (uint16_t)h;
        __nv_bfloat16 x, next;
        memcpy(&x, &bits, 2);
        const float value = __bfloat162float(x);
        ck_assert_uint_eq(__float_as_uint(value), h << 16);
        const __nv_bfloat16 back = __float2bfloat16_rn(value);
        const uint16_t want = isnan(value) ? 0x7fff : bits;
        ck_assert_mem_eq(&back, &want, 2);
        if ((h & 0x7fff) >= 0x7f80) continue;
        const uint16_t above = (uint16_t)(h + 1), even = h % 2 ? above : bits;
        const float middle = __uint_as_float(h << 16 | 0x8000);
        next = __float2bfloat16_rn(middle);
        ck_assert_mem_eq(&next, &even, 2);
        const __nv_bfloat162 sides = __floats2bfloat162_rn(__uint_as_float(h << 16 | 0x7fff),
                                                           __uint_as_float(h << 16 | 0x8001));
        ck_assert_mem_eq(&sides.x, &bits, 2);
        ck_assert_mem_eq(&sides.y, &above, 2);
    }
}

static __global__ void gather(unsigned *y, unsigned long long *least)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned before = atomicAdd(y, 3);
    for (int twice = 0; twice < 2; twice++) atomicOr(y + 1 + before / 3 / 32, 1u << before / 3 % 32);
    if (i % 7 == 3) atomicMin(least, (1ull << 40) - i);
}

/* Claim: 192 threads see 192 different old values, and the smallest of what 27 threads give stays. */
TEST(atomics)
{
    for (int launches = 0; launches < LAUNCHES; launches++) {
        on_device<unsigned> y(std::vector<unsigned>(7, 0));
        on_device<unsigned long long> least({ ~0ull });
        launch(gather, 3, 64, 0, y.p, least.p);
        const std::vector<unsigned> got = y.back();
        ck_assert_uint_eq(got[0], 3 * 192);
        for (size_t i = 1; i < 7; i++) ck_assert_uint_eq(got[i], 0xffffffffu);
        ck_assert_uint_eq(least.back()[0], (1ull << 40) - 185);
    }
}

TEST(bits_and_maxima)
{
    ck_assert_int_eq(__clz(0), 32);
    ck_assert_int_eq(__ffs(0), 0);
    for (int i = 0; i < 32; i++) {
        ck_assert_int_eq(__clz((int)(0xffffffffu >> i)), i);
        ck_assert_int_eq(__ffs((int)(0xffffffffu << i)), i + 1);
        ck_assert_int_eq(__popc(0xffffffffu << i), 32 - i);
    }
    ck_assert(max_nan(1, 2) == 2 && max_nan(2, 1) == 2 && max_nan(-INFINITY, -3) == -3);
    ck_assert_uint_eq(__float_as_uint(max_nan(NAN, INFINITY)), 0x7fffffff);
    ck_assert_uint_eq(__float_as_uint(max_nan(1, -NAN)), 0x7fffffff);
    ck_assert(!signbit(max_nan(-0.0f, 0.0f)) && !signbit(max_nan(0.0f, -0.0f)) && signbit(max_nan(-0.0f, -0.0f)));
}
