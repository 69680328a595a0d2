#include "base/context.h"

#include <check.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

TIMEOUT(60);

TEST(starts_and_ends)
{
    struct m3_ctx ctx;
    ck_assert_int_eq(m3_ctx_init(&ctx, 3, M3_LINEAR_ORDERED), M3_OK);
    ck_assert_int_eq(ctx.threads, 3);
    ck_assert_int_eq(ctx.linear, M3_LINEAR_ORDERED);
    ck_assert_ptr_null(ctx.failure.what);
    ck_assert_uint_eq(m3_scratch_mark(&ctx), 0);
    m3_ctx_free(&ctx);
    m3_ctx_free(&ctx);

    ck_assert_int_eq(m3_ctx_init(&ctx, 0, M3_LINEAR_BLAS), M3_INTERNAL);
    ck_assert_ptr_nonnull(ctx.failure.what);
    m3_ctx_free(&ctx);
}

TEST(place_of_a_failure)
{
    struct m3_ctx ctx;
    m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS);
    ck_assert_int_eq(m3_fail_at(&ctx, M3_WRONG, "NaN in a block score", 5, 2, 9), M3_WRONG);
    ck_assert_str_eq(ctx.failure.what, "NaN in a block score");
    ck_assert_int_eq(ctx.failure.row, 5);
    ck_assert_int_eq(ctx.failure.group, 2);
    ck_assert_int_eq(ctx.failure.block, 9);
    m3_ctx_free(&ctx);
}

/* Goal:  memory is aligned, apart, and stays where it is while the scratch grows far beyond its first chunk.
 * Given: 40 pieces of odd sizes from 1 byte to 5 MiB, each filled with its own byte.
 * Claim: at the end every piece still holds its byte everywhere. */
TEST(pieces_stay)
{
    enum { PIECES = 40 };
    struct m3_ctx ctx;
    unsigned char *pieces[PIECES];
    int64_t sizes[PIECES];
    m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS);
    for (int i = 0; i < PIECES; i++) {
        sizes[i] = 1 + (int64_t)i * i * i * 83;
        pieces[i] = m3_scratch_take(&ctx, sizes[i], 1);
        ck_assert_ptr_nonnull(pieces[i]);
        ck_assert_uint_eq((uintptr_t)pieces[i] % 64, 0);
        memset(pieces[i], i + 1, (size_t)sizes[i]);
    }
    for (int i = 0; i < PIECES; i++) {
        int64_t whole = 0;
        while (whole < sizes[i] && pieces[i][whole] == i + 1) whole++;
        ck_assert_msg(whole == sizes[i], "piece %d changed at byte %ld", i, (long)whole);
    }
    m3_ctx_free(&ctx);
}

/* Goal:  releasing gives back what came after the mark, keeps what came before it, and the memory is used again.
 * Given: inner marks whose pieces need a chunk of their own, ten times over.
 * Claim: the outer piece is untouched, and the same addresses come back: nothing grows from call to call. */
TEST(mark_and_release)
{
    struct m3_ctx ctx;
    m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS);
    unsigned char *outer = m3_scratch_take(&ctx, 1000, 1), *small = NULL, *large = NULL;
    memset(outer, 0x5A, 1000);
    for (int i = 0; i < 10; i++) {
        size_t mark = m3_scratch_mark(&ctx);
        unsigned char *a = m3_scratch_take(&ctx, 100, 1), *b = m3_scratch_take(&ctx, 3000001, 1);
        ck_assert_ptr_nonnull(b);
        memset(a, i, 100);
        memset(b, i, 3000001);
        if (i > 0) {
            ck_assert_ptr_eq(a, small);
            ck_assert_ptr_eq(b, large);
        }
        small = a;
        large = b;
        m3_scratch_release(&ctx, mark);
        ck_assert_uint_eq(m3_scratch_mark(&ctx), mark);
    }
    for (int j = 0; j < 1000; j++) ck_assert_int_eq(outer[j], 0x5A);
    m3_scratch_release(&ctx, 0);
    ck_assert_uint_eq(m3_scratch_mark(&ctx), 0);
    m3_ctx_free(&ctx);
}

/* Goal:  no sequence of nested takes and releases makes two live pieces share a byte, and a release restores its mark.
 * Given: 20,000 steps from a fixed linear congruential generator, sizes of 0 to about 2 MiB, depth to 64. */
TEST(random_nesting)
{
    enum { DEPTH = 64, STEPS = 20000 };
    struct m3_ctx ctx;
    unsigned char *pieces[DEPTH];
    size_t sizes[DEPTH], marks[DEPTH];
    int depth = 0;
    uint32_t seed = 12345;
    m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS);
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        if (depth < DEPTH && (seed >> 16) % 5 < 3) {
            size_t size = (seed >> 8) % 11 == 0 ? (seed >> 11) : (seed >> 22);
            marks[depth] = m3_scratch_mark(&ctx);
            pieces[depth] = m3_scratch_take(&ctx, (int64_t)size, 1);
            ck_assert_ptr_nonnull(pieces[depth]);
            for (int i = 0; i < depth; i++)
                ck_assert(pieces[i] + sizes[i] <= pieces[depth] || pieces[depth] + size <= pieces[i]);
            sizes[depth++] = size;
        } else if (depth > 0) {
            int to = (int)((seed >> 9) % (uint32_t)depth);
            m3_scratch_release(&ctx, marks[to]);
            ck_assert_uint_eq(m3_scratch_mark(&ctx), marks[to]);
            depth = to;
        }
    }
    m3_ctx_free(&ctx);
}

/* Goal: what cannot be had is NULL with a reason, and the context is good afterwards. */
TEST(impossible_sizes)
{
    struct m3_ctx ctx;
    m3_ctx_init(&ctx, 1, M3_LINEAR_BLAS);
    ck_assert_ptr_nonnull(m3_scratch_take(&ctx, 0, 8));
    size_t mark = m3_scratch_mark(&ctx);

    static const struct {
        int64_t count;
        size_t size;
    } cases[] = {
        { -1, 1 },       { INT64_MIN, 8 }, { INT64_MAX, 8 }, { INT64_MAX, 1 }, { INT64_MAX / 8 + 1, 8 },
        { 1, SIZE_MAX }, { -1, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ctx.failure.what = NULL;
        ck_assert_ptr_null(m3_scratch_take(&ctx, cases[i].count, cases[i].size));
        ck_assert_ptr_nonnull(ctx.failure.what);
        ck_assert_uint_eq(m3_scratch_mark(&ctx), mark);
    }
    unsigned char *piece = m3_scratch_take(&ctx, 10, 1);
    ck_assert_ptr_nonnull(piece);
    memset(piece, 1, 10);
    m3_ctx_free(&ctx);
}
