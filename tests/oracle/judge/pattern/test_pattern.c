/* Where the wrong values of a tap are, and what they are, found on arrays. */
#include "check.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/pattern/pattern.h"

enum { ROWS = 24, HEADS = 4, WIDTH = 64, OF_ROW = HEADS * WIDTH, COUNT = ROWS * OF_ROW };

static double got[COUNT], want[COUNT], variance[COUNT], other[COUNT];
static int32_t experts[ROWS * HEADS];
static const double deviation = 1e-3;

/* Uniform in -1 .. 1, the same on every machine. */
static double drawn(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (double)(state >> 11) / (double)(UINT64_C(1) << 52) - 1;
}

/* Values with the errors of an honest implementation; eleven experts, of which each row has four. */
static void setup(void)
{
    for (int i = 0; i < COUNT; i++) {
        want[i] = 3 * drawn();
        other[i] = 3 * drawn();
        got[i] = want[i] + deviation * drawn();
        variance[i] = deviation * deviation;
    }
    for (int i = 0; i < ROWS * HEADS; i++) experts[i] = (i / HEADS + i % HEADS * 3) % 11;
}

FIXTURE(setup, NULL);

static double other_at(const void *self, int64_t row, int64_t i)
{
    (void)self;
    return other[row * OF_ROW + i];
}

/* ---- changes of element i of row r: of head h, channel c */

static double nothing(int i, int r, int h, int c) { return (void)r, (void)h, (void)c, got[i]; }
static double rows_times(int i, int r, int h, int c)
{
    return (void)h, (void)c, r >= 9 && r <= 17 ? 0.75 * got[i] : got[i];
}
static double head_zeros(int i, int r, int h, int c) { return (void)r, (void)c, h == 3 ? 0 : got[i]; }
static double expert_sign(int i, int r, int h, int c)
{
    return (void)c, experts[r * HEADS + h] == 5 ? -got[i] : got[i];
}
static double channels_plus(int i, int r, int h, int c) { return (void)r, (void)h, c >= 32 ? got[i] + 0.5 : got[i]; }
static double one_row_before(int i, int r, int h, int c) { return (void)h, (void)c, r > 0 ? want[i - OF_ROW] : got[i]; }
static double of_row_3(int i, int r, int h, int c)
{
    return (void)h, (void)c, r == 20 ? want[i - 17 * OF_ROW] : got[i];
}
static double heads_exchanged(int i, int r, int h, int c)
{
    return (void)r, (void)c, h == 0 ? want[i + 2 * WIDTH] : h == 2 ? want[i - 2 * WIDTH] : got[i];
}
static double heads_turned(int i, int r, int h, int c)
{
    return (void)r, (void)c, h == 3 ? want[i - 3 * WIDTH] : want[i + WIDTH];
}
static double halves(int i, int r, int h, int c)
{
    return (void)r, (void)h, want[c < WIDTH / 2 ? i + WIDTH / 2 : i - WIDTH / 2];
}
static double interleaved(int i, int r, int h, int c)
{
    return (void)r, (void)h, want[i - c + c % 2 * (WIDTH / 2) + c / 2];
}
static double of_other_tap(int i, int r, int h, int c) { return (void)h, (void)c, r > 5 ? other[i] : got[i]; }
static double no_number(int i, int r, int h, int c) { return (void)h, (void)c, r == 4 ? NAN : got[i]; }
static double own_factors(int i, int r, int h, int c) { return (void)c, (1.5 + 0.1 * r + 0.3 * h) * got[i]; }
static double one_value(int i, int r, int h, int c) { return r == 11 && h == 1 && c == 8 ? got[i] + 1 : got[i]; }
static double strided(int i, int r, int h, int c) { return (void)h, (void)c, r % 4 == 3 ? 2 * got[i] : got[i]; }
/* Wrong everywhere, far more than rounding, and like nothing that is known. */
static double garbage(int i, int r, int h, int c) { return (void)r, (void)h, (void)c, got[i] + 0.4 * other[i]; }
/* Far off in one row; in all others more than rounding explains, but no single value for certain. */
static double everywhere_a_little(int i, int r, int h, int c)
{
    return (void)h, (void)c, r == 7 ? 2 * got[i] : got[i] + 4 * deviation * (i % 2 ? 1 : -1);
}
/* Small beside the right values, but not zero. */
static double little(int i, int r, int h, int c) { return (void)r, (void)h, (void)c, 0.05 * other[i]; }
/* Of a row half the error is a factor, half is not. */
static double half_a_factor(int i, int r, int h, int c)
{
    return (void)r, (void)h, (void)c, 0.9 * got[i] + 0.05 * other[i];
}

static const struct {
    double (*change)(int i, int r, int h, int c);
    const char *where, *what;
    int has_experts;
} kinds[] = {
    { nothing, "", "", 0 },
    { nothing, "", "", 1 },
    { rows_times, "rows 9 to 17", "the right ones times 0.75", 0 },
    { head_zeros, "head 3", "zeros", 0 },
    { expert_sign, "expert 5", "the right ones with the other sign", 1 },
    { channels_plus, "channels 32 to 63 (block 1 of 32)", "the right ones plus 0.5", 0 },
    { one_row_before, "rows 1 to 23", "shifted by one row: each is what the one before it should be", 0 },
    { of_row_3, "row 20", "what row 3 should be", 0 },
    { heads_exchanged, "heads 0 and 2", "exchanged with each other", 0 },
    { heads_turned, "",
      "permuted: head 0 is what head 1 should be, head 1 is what head 2 should be, "
      "head 2 is what head 3 should be, ..",
      0 },
    { halves, "", "the right channels with both halves exchanged", 0 },
    { interleaved, "", "the right channels with both halves interleaved", 0 },
    { of_other_tap, "rows 6 to 23", "equal to the other tap", 0 },
    { no_number, "row 4", "NaN", 0 },
    { own_factors, "", "the right ones times a factor of each head's own, such as 1.5 in row 0", 0 },
    { one_value, "row 11, head 1, channel 8", "", 0 },
    { strided, "one row in 4 from row 3 on", "the right ones times 2", 0 },
    { garbage, "", "", 0 },
    { everywhere_a_little, "", "", 0 },
    { half_a_factor, "", "", 0 },
    { little, "", "", 0 },
};

/* Goal:  the place is the smallest that holds all errors beyond rounding; what the wrong values are is said if it
 *        explains nearly all of their errors; honest errors have no pattern, nor has what is like nothing known.
 * Claim: of each change, where and what in these words.
 * Seen to fail with the sizes of `telling`, `rest_of_all` and `beyond` changed by a factor of 100, with heads in place
 * of experts, without the look outside of a place (a row that is far off, others a little), with each guess of moved.c
 * left out, and with small values taken for zeros. */
LOOP_TEST(kinds_of_errors, sizeof kinds / sizeof kinds[0])
{
    const struct m3_pattern_other tap = { "equal to the other tap", other_at, NULL };
    const struct m3_pattern_values values = { .got = got,
                                              .want = want,
                                              .variance = variance,
                                              .rows = ROWS,
                                              .outputs = HEADS,
                                              .width = WIDTH,
                                              .places = kinds[_i].has_experts ? experts : NULL,
                                              .place_count = kinds[_i].has_experts ? 11 : HEADS,
                                              .place = kinds[_i].has_experts ? "expert" : "head",
                                              .element = "channel",
                                              .others = &tap,
                                              .other_count = 1 };
    static double changed[COUNT];
    struct m3_pattern pattern;
    for (int i = 0; i < COUNT; i++) changed[i] = kinds[_i].change(i, i / OF_ROW, i / WIDTH % HEADS, i % WIDTH);
    memcpy(got, changed, sizeof got);
    ck_assert_int_eq(m3_pattern_find(&pattern, &values, NULL), 0);
    ck_assert_str_eq(pattern.where, kinds[_i].where);
    ck_assert_str_eq(pattern.what, kinds[_i].what);
}

/* Claim: numbers of rows are those of the sequence; the last block of keys, which is another in each row, is named as
 * such; wrong decisions have places too. Seen to fail with indexes in place of numbers, and with `are_last` left out. */
TEST(rows_and_blocks)
{
    enum { GROUPS = 2, BLOCKS = 8, N = BLOCKS * GROUPS * BLOCKS };
    static double scores[N], right[N];
    int64_t numbers[BLOCKS];
    unsigned char wrong[BLOCKS * GROUPS] = { 0 };
    struct m3_pattern pattern;
    for (int i = 0; i < N; i++) {
        const int row = i / (GROUPS * BLOCKS), block = i % BLOCKS;
        right[i] = block <= row ? 1 + 0.1 * block : -INFINITY;
        scores[i] = block == row ? 2 * right[i] : right[i];
        numbers[row] = 40 + 2 * row;
    }
    const struct m3_pattern_values values = { .got = scores,
                                              .want = right,
                                              .variance = variance,
                                              .numbers = numbers,
                                              .rows = BLOCKS,
                                              .outputs = GROUPS,
                                              .width = BLOCKS,
                                              .place_count = GROUPS,
                                              .place = "group",
                                              .element = "block" };
    ck_assert_int_eq(m3_pattern_find(&pattern, &values, NULL), 0);
    ck_assert_str_eq(pattern.where, "the last block of each row");
    for (int row = 3; row < BLOCKS; row++) wrong[row * GROUPS + 1] = 1;
    ck_assert_int_eq(m3_pattern_of_choices(&pattern, wrong, numbers, BLOCKS, GROUPS, "group", NULL), 0);
    ck_assert_str_eq(pattern.where, "rows 46 to 54, group 1");
}

/* Claim: dimensions have the names of a reader; a letter without a name has none. Seen to fail with a group of blocks
 * that is called a head. */
TEST(axes)
{
    ck_assert_str_eq(m3_axis_name("TQD", 0), "row");
    ck_assert_str_eq(m3_axis_name("TQD", 1), "head");
    ck_assert_str_eq(m3_axis_name("TGD", 1), "head");
    ck_assert_str_eq(m3_axis_name("TGN", 1), "group");
    ck_assert_str_eq(m3_axis_name("TGB", 2), "block");
    ck_assert_str_eq(m3_axis_name("TKH", 2), "channel");
    ck_assert_ptr_null(m3_axis_name("O3", 1));
}
