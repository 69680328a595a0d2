/* Which weights stay on a device that has no room for all: those most used, and no more go than must. */
#include "cuda/memory.h"

#include <check.h>
#include <vector>

enum { WEIGHTS = 6, FIT = 4, ROWS = 1024, COLS = 2048, PASSES = 5 };       /* 4 MiB each, of 17.1 MB */

static std::vector<uint16_t> numbers[WEIGHTS];

/* A call that uses weight i. Returns whether it was sent again: it then has the number that it got for this call. */
static int use(struct m3_cuda_state *s, struct m3_ctx *ctx, int i)
{
    static uint16_t call;
    struct m3_weight w = {};
    numbers[i].resize(ROWS * COLS);
    numbers[i][0] = ++call;
    w.data = numbers[i].data();
    w.dtype = M3_BF16;
    w.rows = ROWS, w.cols = COLS;
    w.id = (uint64_t)i + 1;
    m3_cuda_begin(s, "test");
    const struct m3_weight there = m3_cuda_weight(s, &w);
    uint16_t first = 0;
    ck_assert_ptr_nonnull(there.data);
    ck_assert_int_eq(cudaMemcpyAsync(&first, there.data, sizeof first, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
    ck_assert_int_eq(m3_cuda_end(s, ctx), 0);
    return first == call;
}

static size_t bytes_free()
{
    size_t left = 0, all = 0;
    ck_assert_int_eq(cudaMemGetInfo(&left, &all), cudaSuccess);
    return left;
}

/* Claim: six weights in turn, of which four fit: after the first pass three are found again in each, and the device is
 *        never emptied.
 * Seen to fail with the weight dropped that was used longest ago, and with all dropped at once. */
TEST(weights_in_turn)
{
    struct m3_cuda_state s = {};
    struct m3_ctx ctx = {};
    for (int pass = 0; pass < PASSES; pass++) {
        int sent = 0;
        for (int i = 0; i < WEIGHTS; i++) {
            sent += use(&s, &ctx, i);
            if (pass > 0 || i >= FIT) ck_assert_uint_lt(bytes_free(), (size_t)ROWS * COLS * 2);
        }
        ck_assert_int_eq(sent, pass == 0 ? WEIGHTS : WEIGHTS - (FIT - 1));
    }
    m3_cuda_free_all(&s);
}

/* Claim: a weight that every other call uses is sent once.
 * Seen to fail with the most used weight dropped. */
TEST(most_used_stays)
{
    struct m3_cuda_state s = {};
    struct m3_ctx ctx = {};
    int sent = 0;
    for (int i = 0; i < 4 * WEIGHTS; i++) {
        sent += use(&s, &ctx, 0);
        use(&s, &ctx, 1 + i % (WEIGHTS - 1));
    }
    ck_assert_int_eq(sent, 1);
    m3_cuda_free_all(&s);
}

/* Claim: scratch is at most what is wanted, and at most 4 GB of that. */
TEST(scratch)
{
    struct m3_cuda_state s = {};
    m3_cuda_begin(&s, "test");
    ck_assert_uint_eq(m3_cuda_left(&s, 1000), 1000);
    ck_assert_uint_eq(m3_cuda_left(&s, SIZE_MAX), bytes_free() / 2);
    m3_cuda_free_all(&s);
}
