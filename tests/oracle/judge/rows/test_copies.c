/* Rows of zeros and rows that hold another row's values (judge/rows/copies.h), on made tensors of ten columns. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/judge/rows/copies.h"

enum { ROWS = 6, WIDTH = 10 };

static struct m3_error error;
static float want[ROWS * WIDTH], got[ROWS * WIDTH];
static struct m3_row_pair pairs[ROWS];

static void setup(void)
{
    for (int i = 0; i < ROWS * WIDTH; i++) want[i] = (float)((i * 7 + i / WIDTH) % 13 - 6);
    memcpy(got, want, sizeof got);
    for (int r = 0; r < ROWS; r++) pairs[r] = (struct m3_row_pair){ r, r, r };
}

FIXTURE(setup, NULL);

static int64_t find(int64_t width, double far)
{
    const struct m3_tensor one = { .name = "want",
                                   .dtype = M3_F32,
                                   .rank = 2,
                                   .shape = { ROWS, width },
                                   .count = ROWS * width,
                                   .bytes = (uint64_t)(ROWS * width) * 4,
                                   .data = want };
    struct m3_tensor other = one;
    other.data = (const void *)got;
    const struct m3_matched matched = { .want = &one, .got = &other };
    int64_t found;
    ck_assert_int_eq(m3_copies_find(&found, &matched, pairs, ROWS, far, &error), 0);
    return found;
}

static void copy(float *to, int row, int from) { memcpy(to + row * WIDTH, to + from * WIDTH, WIDTH * sizeof *to); }

/* Claim: the row that lost its own values is found, whether it stands before or after the one that it copies; so is a
 * row of zeros.
 * Seen to fail with the first row of two that are equal, and without the zeros. */
TEST(copies)
{
    ck_assert_int_eq(find(WIDTH, 0.1), -1);
    copy(got, 4, 1);
    ck_assert_int_eq(find(WIDTH, 0.1), 4);
    memcpy(got, want, sizeof got);
    copy(got, 1, 4);
    ck_assert_int_eq(find(WIDTH, 0.1), 1);
    memcpy(got, want, sizeof got);
    memset(got + 3 * WIDTH, 0, WIDTH * sizeof *got);
    ck_assert_int_eq(find(WIDTH, 0.1), 3);
}

/* Claim: rows that are equal in the reference too, or nearly so, are no copies; nor are zeros that the reference has,
 * nor rows so short that they agree by chance.
 * Seen to fail without the distance of the reference's rows, and without a least width. */
TEST(alike)
{
    copy(want, 4, 1);
    copy(got, 4, 1);
    ck_assert_int_eq(find(WIDTH, 0.1), -1);
    want[4 * WIDTH] += 0.5F;
    ck_assert_int_eq(find(WIDTH, 0.1), -1);
    ck_assert_int_eq(find(WIDTH, 0.01), 4);
    memset(got, 0, sizeof got);
    memset(want, 0, sizeof want);
    ck_assert_int_eq(find(WIDTH, 0.1), -1);
    want[0] = 1;
    ck_assert_int_eq(find(2, 0.1), -1);
}
