/* rms_norm_plain, SPEC 5.3, against the twin of norm_twin.h and against rms_norm. */
#include "norm_twin.h"

TIMEOUT(60);

/* Goal:  the norm of every row with the plain weight; eps inside the root; each row alone.
 * Given: norm_shapes: 14 shapes, rows of seven sizes around eps, three numbers of threads, in place and not.
 * Claim: within 3 u |y| in float, (ceil(H/2) + 7) u |y| in double, and the bits of SPEC's order of operations.
 * Seen to fail with rms_norm in its place, eps outside the root, no eps, one norm over all rows, the sum for the mean,
 * squares summed in float, the weight multiplied by the scale first, a scale not rounded, x overwritten before it is
 * summed, a weight changed, one bit off with five threads. */
TEST(shapes_and_threads) { norm_shapes(0); }

/* Goal:  values known without the formula: 3-4-5 triangles of x and eps, mean x^2 = eps, a row of zeros; w = 0.
 * Claim: 0.6 w, sqrt(1/2) w, 0; w = 0 gives 0 exactly.
 * Seen to fail with rms_norm in its place, eps outside the root, no eps, the sum for the mean, a weight changed. */
TEST(known_norms) { norm_known(0); }

/* Goal:  the squares are summed in ascending order, without a tree or lanes.
 * Given: norm_ascends: rows of one large number and 6142 small ones, chosen so that another order shows even in float.
 * Claim: the bits of SPEC's order of operations.
 * Seen to fail with a descending sum. */
TEST(squares_ascend) { norm_ascends(0); }

/* Goal:  infinity gives NaN at its own place and zeros elsewhere, NaN its whole row; no other row changes.
 * Seen to fail with rows scaled by their largest |x| first, infinity kept, NaN left out of the sum, in double a sum
 * kept below infinity. */
TEST(not_finite) { norm_not_finite(0); }

/* Goal:  the largest and the smallest numbers: no overflow in float; in double beyond 1e154 the row is 0; no flushing.
 * Seen to fail with squares summed in float, subnormal x flushed, in double a sum kept below infinity. */
TEST(extremes) { norm_extremes(0); }

/* Goal:  the two norms differ in the weight alone.
 * Given: weights w for rms_norm, real(1 + w) for rms_norm_plain.
 * Claim: equal bits. 1 + w is rounded once either way.
 * Seen to fail with norm.no_plus_one and norm.double_plus_one in rms_norm. */
TEST(agrees_with_rms_norm)
{
    enum { T = 5, H = 257 };
    static real x[T * H], w[H], w_plus_1[H], gemma[T * H], plain[T * H];
    uint64_t state = 53;
    for (int i = 0; i < T * H; i++) x[i] = (real)(4 * twin_fine(&state));
    for (int i = 0; i < H; i++) {
        w[i] = (real)twin_fine(&state);
        w_plus_1[i] = 1 + w[i];
    }
    norm_run(gemma, x, w, T, H, 1e-6, 1, 1, 0);
    norm_run(plain, x, w_plus_1, T, H, 1e-6, 0, 1, 0);
    for (int i = 0; i < T * H; i++) twin_check_same("plain against gemma", i / H, i % H, plain[i], gemma[i]);
}
