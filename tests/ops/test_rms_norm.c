/* rms_norm, SPEC 5.2, against the twin of norm_twin.h. */
#include "norm_twin.h"

TIMEOUT(60);

/* Goal:  the norm of every row with the offset weight; eps inside the root; each row alone.
 * Given: norm_shapes: 14 shapes, rows of seven sizes around eps, three numbers of threads, in place and not.
 * Claim: within 4 u |y| in float, (ceil(H/2) + 8) u |y| in double, and the bits of SPEC's order of operations.
 * Seen to fail with norm.no_plus_one, norm.double_plus_one, eps outside the root, no eps, one norm over all rows, the
 * sum for the mean, squares summed in float, the weight multiplied by the scale first, a scale not rounded, x
 * overwritten before it is summed, a weight changed, one bit off with five threads. */
TEST(shapes_and_threads) { norm_shapes(1); }

/* Goal:  values known without the formula: 3-4-5 triangles of x and eps, mean x^2 = eps, a row of zeros; w = -1.
 * Claim: 0.6 (1 + w), sqrt(1/2) (1 + w), 0; w = -1 gives 0 exactly.
 * Seen to fail with norm.no_plus_one, norm.double_plus_one, eps outside the root, no eps, the sum for the mean, a
 * weight changed. */
TEST(known_norms) { norm_known(1); }

/* Goal:  the squares are summed in ascending order, without a tree or lanes.
 * Given: norm_ascends: rows of one large number and 6142 small ones, chosen so that another order shows even in float.
 * Claim: the bits of SPEC's order of operations.
 * Seen to fail with a descending sum. */
TEST(squares_ascend) { norm_ascends(1); }

/* Goal:  infinity gives NaN at its own place and zeros elsewhere, NaN its whole row; no other row changes.
 * Seen to fail with rows scaled by their largest |x| first, infinity kept, NaN left out of the sum, in double a sum
 * kept below infinity. */
TEST(not_finite) { norm_not_finite(1); }

/* Goal:  the largest and the smallest numbers: no overflow in float; in double beyond 1e154 the row is 0; no flushing.
 * Seen to fail with squares summed in float, subnormal x flushed, in double a sum kept below infinity. */
TEST(extremes) { norm_extremes(1); }
