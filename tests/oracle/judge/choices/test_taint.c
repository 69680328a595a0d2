/* What a differing choice takes out of judgement by value: rows, layers, groups. SPEC 7.8. */
#include <check.h>
#include <sys/resource.h>

#include "oracle/judge/choices/taint.h"

enum { LAST = 5 };

static struct m3_taint *taint;
static struct m3_error error;

static void setup(void) { taint = m3_taint_new(LAST); }
static void teardown(void) { m3_taint_free(taint); }

FIXTURE(setup, teardown);

static void flip(int64_t layer, int64_t row, int64_t group)
{
    ck_assert_int_eq(m3_taint_add(taint, layer, row, group, &error), M3_OK);
}

static enum m3_tainted of(enum m3_tap tap, int64_t layer, int64_t row)
{
    return m3_taint_of(taint, tap, layer, row, -1);
}

/* Goal:  without a flip nothing is tainted, not in part either.
 * Seen to fail with an empty list not taken for none, and with NULL read. */
TEST(nothing)
{
    ck_assert(m3_taint_is_empty(taint) && m3_taint_is_empty(NULL));
    ck_assert_int_eq(of(M3_TAP_OUT, 3, 7), M3_TAINT_NONE);
    ck_assert_int_eq(m3_taint_of(NULL, M3_TAP_OUT, 3, 7, -1), M3_TAINT_NONE);
    ck_assert(!m3_taint_is_partial(taint, M3_TAP_ATTN, 3, 7) && !m3_taint_is_partial(NULL, M3_TAP_ATTN, 3, 7));
}

/* Goal:  another choice of experts: what follows in the layer but the shared expert, and all later layers; rows after
 *        it drift in later layers, rows before it never; slots of experts are asked one by one.
 * Seen to fail with the shared expert tainted, and with <= for < of layers. */
TEST(experts)
{
    flip(2, 3, -1);
    for (int tap = M3_TAP_ATTN_NORM; tap <= M3_TAP_OUT; tap++) {
        const int after = tap >= M3_TAP_EXPERT_WEIGHTS && tap != M3_TAP_EXPERT_OUT && tap != M3_TAP_SHARED;
        ck_assert_int_eq(of((enum m3_tap)tap, 2, 3), after ? M3_TAINT_OTHER : M3_TAINT_NONE);
        ck_assert_int_eq(of((enum m3_tap)tap, 2, 4), M3_TAINT_NONE);
        ck_assert_int_eq(of((enum m3_tap)tap, 1, 3), M3_TAINT_NONE);
        ck_assert_int_eq(of((enum m3_tap)tap, 3, 3), M3_TAINT_OTHER);
        ck_assert_int_eq(of((enum m3_tap)tap, 3, 2), M3_TAINT_NONE);
        ck_assert_int_eq(of((enum m3_tap)tap, 3, 4), M3_TAINT_DRIFT);
        ck_assert_int_eq(of((enum m3_tap)tap, M3_MTP_LAYER, 3), M3_TAINT_OTHER);
    }
    ck_assert_int_eq(of(M3_TAP_EMBED, -1, 3), M3_TAINT_NONE);
    ck_assert_int_eq(of(M3_TAP_VISION_OUT, 4, 3), M3_TAINT_NONE);
    ck_assert_int_eq(of(M3_TAP_MTP_EMBED_NORM, M3_MTP_LAYER, 3), M3_TAINT_NONE);
    ck_assert_int_eq(of(M3_TAP_LOGITS, -1, 3), M3_TAINT_OTHER);
    ck_assert_int_eq(of(M3_TAP_FINAL_NORM, -1, 900), M3_TAINT_DRIFT);
    ck_assert_int_eq(of(M3_TAP_FINAL_NORM, -1, 0), M3_TAINT_NONE);
}

/* Goal:  another choice of blocks: the heads of its group, then all of the row.
 * Seen to fail with groups not told apart. */
TEST(blocks)
{
    flip(2, 3, 1);
    flip(2, 3, 3);
    for (int64_t g = 0; g < 4; g++) {
        const enum m3_tainted want = g % 2 ? M3_TAINT_OTHER : M3_TAINT_NONE;
        ck_assert_int_eq(m3_taint_of(taint, M3_TAP_ATTN, 2, 3, g), want);
        ck_assert_int_eq(m3_taint_of(taint, M3_TAP_ATTN_LSE, 2, 3, g), want);
        ck_assert_int_eq(m3_taint_of(taint, M3_TAP_ATTN_OUT, 2, 3, g), M3_TAINT_OTHER);
    }
    ck_assert(m3_taint_is_partial(taint, M3_TAP_ATTN, 2, 3) && !m3_taint_is_partial(taint, M3_TAP_ATTN_OUT, 2, 3));
    ck_assert(!m3_taint_is_partial(taint, M3_TAP_ATTN, 2, 4) && !m3_taint_is_partial(taint, M3_TAP_ATTN, 3, 3));
    ck_assert_int_eq(of(M3_TAP_INDEX_BLOCK_SCORES, 2, 3), M3_TAINT_NONE);
    ck_assert_int_eq(of(M3_TAP_SHARED, 2, 3), M3_TAINT_OTHER);
    ck_assert_int_eq(of(M3_TAP_EXPERT_OUT, 2, 3), M3_TAINT_OTHER);
}

/* Goal:  many flips, found by layer, kind and row; a flip of the last layer moves no other row of the logits.
 * Seen to fail with the least row taken of all flips in place of those of earlier layers. */
TEST(many)
{
    for (int64_t row = 100; row < 400; row += 2) flip(1, row, 0);
    for (int64_t row = 99; row < 400; row += 3) flip(1, row, -1);
    for (int64_t row = 5; row < 400; row += 5) flip(LAST, row, -1);
    for (int64_t row = 0; row < 450; row++) {
        const int block = row >= 100 && row < 400 && row % 2 == 0, expert = row >= 99 && row < 400 && row % 3 == 0;
        ck_assert_int_eq(of(M3_TAP_ATTN_OUT, 1, row), block ? M3_TAINT_OTHER : M3_TAINT_NONE);
        ck_assert_int_eq(of(M3_TAP_ROUTED, 1, row), block || expert ? M3_TAINT_OTHER : M3_TAINT_NONE);
        ck_assert_int_eq(of(M3_TAP_MID, 2, row), block || expert ? M3_TAINT_OTHER
                                                 : row > 99      ? M3_TAINT_DRIFT
                                                                 : M3_TAINT_NONE);
        if (row <= 99)
            ck_assert_int_eq(of(M3_TAP_LOGITS, -1, row),
                             expert || (row >= 5 && row % 5 == 0) ? M3_TAINT_OTHER : M3_TAINT_NONE);
    }
}

/* Goal:  rows have any numbers up to 2^31, and memory is that of the flips.
 * Seen to fail with an array by row. */
TEST(far)
{
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    for (int64_t i = 0; i < 1000; i++) flip(3, INT32_MAX - 2000000 + 2000 * i, 0);
    getrusage(RUSAGE_SELF, &after);
    ck_assert_int_lt(after.ru_maxrss - before.ru_maxrss, 100000);
    for (int64_t i = 0; i < 1000; i++) {
        ck_assert_int_eq(of(M3_TAP_MID, 3, INT32_MAX - 2000000 + 2000 * i), M3_TAINT_OTHER);
        ck_assert_int_ne(of(M3_TAP_MID, 3, INT32_MAX - 2000000 + 2000 * i + 1), M3_TAINT_OTHER);
    }
}
