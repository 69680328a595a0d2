/* Rows that tell nothing that another row does not (SPEC 7.2), on made numbers. */
#include "check.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/judge/side_by_side.h"

enum { ROWS = 4, WIDTH = 64 };

/* Goal:  a row is left out if its errors are those of another row, not if it only resembles that row.
 * Given: numbers that are rounded to steps of 1, so with a variance of 1/12. The inputs of rows 1 to 3 are off from those
 *        of row 0, up and down, by a tenth, by three tenths and by half of a step: they have most roundings in common with
 *        row 0, and hardly any.
 * Claim: row 1 alone is marked.
 * Seen to fail with four variances, and with a hundredth of one. */
TEST(by_steps)
{
    static const double apart[ROWS] = { 0, 0.1, 0.3, 0.5 };
    double want[ROWS * WIDTH], got[ROWS * WIDTH], walk[ROWS * WIDTH] = { 0 }, variance[ROWS * WIDTH];
    struct m3_error error = { 0 };
    for (int i = 0; i < ROWS * WIDTH; i++) {
        const int r = i / WIDTH, c = i % WIDTH;
        want[i] = 5 * sin(c) + (c % 2 ? apart[r] : -apart[r]);
        got[i] = round(want[i]);
        variance[i] = 1.0 / 12;
    }
    struct m3_side_by_side s = {
        .got = got, .want = want, .walk = walk, .variance = variance, .count = ROWS * WIDTH, .rows = ROWS
    };
    ck_assert_int_eq(m3_side_by_side_mark(&s, 0, 0, "a tap", &error), M3_OK);
    for (int r = 0; r < ROWS; r++) ck_assert_msg(m3_side_by_side_tells(&s, r) == (r != 1), "row %d", r);
    free(s.repeated);
}
