/* Sums of rounded parts (SPEC 7.5), against an emulation in floats. */
#include "bounds_twin.h"

#include "oracle/partials/reduce.h"

TIMEOUT(60);

/* A float to bf16 by its bits, as engines convert. */
static float to_bfloat(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Goal:  a double is rounded as hardware rounds.
 * Claim: floats of any exponent, ties and subnormal numbers too, as their bits say; F16 against its own spacing.
 * Seen to fail with ties away from 0 (0x8000 added), and with subnormal numbers rounded to 8 bits. */
TEST(roundings)
{
    uint64_t state = 5;
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)twin_pick(&state, 65536) << 16 | (uint32_t)twin_pick(&state, 65536);
        float x;
        if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;             /* a tie */
        if (i % 5 == 0) bits &= 0x80ffffffu;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x) || fabsf(x) > 0x1p+127f) continue;
        ck_assert_msg(m3_rounded_to((double)x, M3_BF16) == (double)to_bfloat(x), "%a: %a", (double)x,
                      m3_rounded_to((double)x, M3_BF16));
    }
    ck_assert(m3_rounded_to(1 + 0x1p-11, M3_F16) == 1 && m3_rounded_to(1 + 3 * 0x1p-11, M3_F16) == 1 + 0x1p-9);
    ck_assert(m3_rounded_to(0x1.8p-24, M3_F16) == 0x1p-23 && m3_rounded_to(-0x1p-25, M3_F16) == 0);
    ck_assert(m3_partials_roundoff(M3_BF16) == 0x1p-8 && m3_partials_roundoff(M3_F16) == 0x1p-11);
}

/* Goal:  every column belongs to one rank.
 * Claim: 10 columns on 4 ranks: 3, 3, 3, 1, or 3, 3, 2, 2; more ranks than columns leave some empty.
 * Seen to fail with sizes rounded down. */
TEST(cuts)
{
    static const int64_t sizes[2][4] = { { 3, 3, 3, 1 }, { 3, 3, 2, 2 } };
    int64_t first, end, last;
    for (int even = 0; even < 2; even++)
        for (int64_t cols = 1; cols < 40; cols++)
            for (int ranks = 2; ranks < 12; ranks++, last = 0) {
                last = 0;
                for (int r = 0; r < ranks; r++, last = end) {
                    m3_partials_cut(&first, &end, cols, ranks, r, even);
                    ck_assert(first == last && end >= first && end <= cols);
                    if (cols == 10 && ranks == 4) ck_assert_int_eq(end - first, sizes[even][r]);
                }
                ck_assert_int_eq(last, cols);
            }
}

enum { ONE_SHOT, RANK_ORDER, RING, NO_ROUNDING, WAYS };

/* What an engine makes of the parts p. */
static float engine(const float *p, int ranks, int way, int start)
{
    float sum = way == NO_ROUNDING ? p[0] : to_bfloat(p[way == RING ? start : 0]);
    for (int k = 1; k < ranks; k++) {
        const float next_part = p[way == RING ? (start + k) % ranks : k];
        sum += way == NO_ROUNDING ? next_part : to_bfloat(next_part);
        if (way == RANK_ORDER || way == RING) sum = to_bfloat(sum);
    }
    return to_bfloat(sum);
}

/* Goal:  the range holds what each engine gives, and is no wider than its kind needs.
 * Given: parts that floats hold exactly, of one size and of very different sizes; 2 to 8 ranks.
 * Claim: one-shot is one number, which the engine gives; a ring's range is that of its starts; `any` holds them all.
 *        Parts that are off by h stay in the range of h.
 * Seen to fail with the sum of one-shot widened where it is exact (not one number), with the ring's first part not
 * rounded, with start 0 alone. */
TEST(ranges)
{
    static const double exact[M3_RANKS];
    uint64_t state = 6;
    for (int i = 0; i < 20000; i++) {
        const int ranks = 2 + i % 7;
        double p[M3_RANKS], h[M3_RANKS];
        float off[M3_RANKS], given[M3_RANKS];
        for (int r = 0; r < ranks; r++) {
            given[r] = (float)(normal(&state) * (i % 2 ? ldexp(1, r - 3) : 1));
            p[r] = (double)given[r], h[r] = fabs(p[r]) * 0x1p-10;
            off[r] = (float)(p[r] + 0.99 * h[r] * (int)(i % 3 - 1) * (r % 2 ? 1 : -1));
        }
        struct m3_partials how = { ranks, M3_REDUCE_ONE_SHOT, M3_BF16 };
        const struct m3_range one = m3_partials_reduce(p, exact, 0, &how, 0x1p-24);
        how.reduce = M3_REDUCE_RING;
        const struct m3_range ring = m3_partials_reduce(p, exact, 0, &how, 0x1p-24);
        how.reduce = M3_REDUCE_ANY;
        const struct m3_range any = m3_partials_reduce(p, exact, 0, &how, 0x1p-24);
        const struct m3_range wide = m3_partials_reduce(p, h, 0, &how, 0x1p-24);
        double low = INFINITY, high = -INFINITY;
        for (int start = 0; start < ranks; start++) {
            const double y = (double)engine(given, ranks, RING, start), z = (double)engine(off, ranks, RING, start);
            low = fmin(low, y), high = fmax(high, y);
            ck_assert(z >= wide.low && z <= wide.high);
        }
        ck_assert(ring.low == low && ring.high == high);
        ck_assert(one.low == one.high && one.low == (double)engine(given, ranks, ONE_SHOT, 0));
        for (int way = 0; way < WAYS; way++) {
            const double y = (double)engine(given, ranks, way, 0), z = (double)engine(off, ranks, way, 0);
            ck_assert(y >= any.low && y <= any.high && z >= wide.low && z <= wide.high);
        }
    }
}

/* Goal:  the range holds every way to add a bias that engines have, and no other.
 * Given: as above, with a bias: in the first part; on the sum of rounded parts, before or after its rounding.
 * Claim: each result is in the range of its kind of sum. A bias in every part, and none, are outside of 9 ranges of 10.
 * Seen to fail without each of the three ways. */
TEST(biases)
{
    static const double exact[M3_RANKS];
    uint64_t state = 61;
    int every = 0, none = 0;
    enum { CASES = 20000 };
    for (int i = 0; i < CASES; i++) {
        const int ranks = 2 + i % 7, is_ring = i / 7 % 2;
        const float bias = (float)normal(&state);
        float p[M3_RANKS], with[M3_RANKS], sum = 0;
        double of[M3_RANKS];
        for (int r = 0; r < ranks; r++)
            of[r] = (double)(p[r] = with[r] = (float)normal(&state)), sum += to_bfloat(p[r]);
        with[0] += bias;
        const struct m3_partials how = { ranks, is_ring ? M3_REDUCE_RING : M3_REDUCE_ONE_SHOT, M3_BF16 };
        const struct m3_range range = m3_partials_reduce(of, exact, (double)bias, &how, 0x1p-24);
        const int way = is_ring ? RING : ONE_SHOT;
        const float late = to_bfloat(engine(p, ranks, way, 0) + bias), first = engine(with, ranks, way, 0);
        const float early = is_ring ? late : to_bfloat(sum + bias);
        const float in_all = to_bfloat(engine(p, ranks, way, 0) + (float)ranks * bias),
                    without = engine(p, ranks, way, 0);
        ck_assert((double)late >= range.low && (double)late <= range.high);
        ck_assert((double)first >= range.low && (double)first <= range.high);
        ck_assert((double)early >= range.low && (double)early <= range.high);
        every += (double)in_all < range.low || (double)in_all > range.high;
        none += (double)without < range.low || (double)without > range.high;
    }
    ck_assert_msg(every > CASES / 10 * 9 && none > CASES / 10 * 9, "%d, %d", every, none);
}

/* Goal:  variances are those of honest roundings, also where only the sizes of terms are known.
 * Given: 64 terms in random order on 8 ranks.
 * Claim: mean squares of the errors over the variance from 0.3 to 1 in both cases, one-shot and ring; no error above
 *        the largest. Independent roundings are uniform at most: 1/3, but in the mean over a significand 0.18.
 * Seen to fail with the running sums left out of the variance (1.9), and of the error. */
TEST(sizes)
{
    enum { TERMS = 64, RANKS = 8, MANY = 20000 };
    uint64_t state = 7;
    for (int way = 0; way < 3; way += 2) {
        const struct m3_partials how = { RANKS, way == RING ? M3_REDUCE_RING : M3_REDUCE_ONE_SHOT, M3_BF16 };
        double squares = 0, by_parts = 0, by_sizes = 0;
        for (int i = 0; i < MANY; i++) {
            struct m3_sum_sizes of = { 0 };
            double p[M3_RANKS] = { 0 }, most, variance, y = 0;
            float given[M3_RANKS];
            for (int k = 0; k < TERMS; k++) {
                const double term = normal(&state);
                p[k * RANKS / TERMS] += term;
                of.mass += fabs(term), of.squares += term * term, of.sum += term;
            }
            for (int r = 0; r < RANKS; r++) given[r] = (float)p[r], y += p[r];
            const double d = (double)engine(given, RANKS, way, i % RANKS) - y;
            m3_partials_estimate(&most, &variance, &of, &how);
            ck_assert(fabs(d) <= 1.05 * 0x1p-8 * (most + fabs(y)));
            squares += d * d;
            by_parts += 0x1p-16 * m3_partials_variance(p, &how);
            by_sizes += 0x1p-16 * (variance + y * y / 3);
        }
        printf("parts, %s: squares over variance %.2f from parts, %.2f from sizes\n", way ? "ring" : "one-shot",
               squares / by_parts, squares / by_sizes);
        ck_assert(squares <= by_parts && squares >= 0.3 * by_parts);
        ck_assert(squares <= by_sizes && squares >= 0.3 * by_sizes);
    }
}
