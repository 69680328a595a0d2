/* attend_segments against the formula and the order of SPEC 5.19: those of 5.7, in attend_twin.h, over the rows of the
 * segment. */
#include "attend_twin.h"

TIMEOUT(60);

enum { MOST_SEGMENTS = 512 };

/* Segments of these lengths, up to a 0. */
static struct attend_case draw(const int64_t *lengths, int64_t A, int64_t U, double size)
{
    int64_t *ends = room(MOST_SEGMENTS, sizeof *ends), segments = 0, P = 0;
    while (*lengths > 0) ends[segments++] = P += *lengths++;
    struct attend_case c = attend_draw(P, 0, 1, A, U, size);
    c.ends = ends;
    c.segments = segments;
    return c;
}

/* Segment s as a call of its own. The arrays stay those of the case. */
static struct attend_case only(const struct attend_case *c, int64_t s)
{
    const int64_t begin = s > 0 ? c->ends[s - 1] : 0, at = begin * c->d.Q * c->d.D;
    struct attend_case part = *c;
    part.d.T = c->ends[s] - begin;
    part.segments = 1;
    part.ends = memcpy(room(1, sizeof *part.ends), &part.d.T, sizeof part.d.T);
    part.q += at, part.k += at, part.v += at;
    return part;
}

/* Returns o [P,A,U]. */
static real *run(const struct attend_case *c, int threads) { return attend_run(c, threads).o; }

static struct call call_of(const struct attend_case *c)
{
    struct attend_got got;
    struct call call = attend_call(c, &got);
    call.checks_first = 1;
    return call;
}

static void check_drawn(const int64_t *lengths, int64_t A, int64_t U, double size, int64_t step)
{
    struct attend_case c = draw(lengths, A, U, size);
    attend_check_some(&c, step);
    rooms_free(0);
}

/* Goal:  o is the softmax attention of SPEC 5.19.
 * Given: segments of one row, of 1 2 3 5 7, around 8 16 32 64 128, long beside short; A 1 2 3 14 16, U 1 .. 128 with 14
 *        and 80, once P = A = U; logits of a few and of hundreds.
 * Claim: within the bound of SPEC; in float, the bits of a plain loop; the same bits on 1, 2 and 13 threads.
 * Seen to fail with one segment for all (vision.no_boundary), the last key seen by one row only, ends read as lengths,
 * one row more before or after a segment, the last key left out, a scale of R, of A U or none, keys of head 0 for all,
 * another head's v, another row's q, threads that share their scratch, keys beyond a piece that replace the sum, o
 * added to what was there; in float with o / c, the sum of weights in float, and the maximum not subtracted. */
TEST(formula_and_order)
{
    static const int64_t one[] = { 1, 0 }, two[] = { 2, 0 }, small[] = { 1, 2, 3, 5, 7, 0 }, odd[] = { 67, 0 },
                         ones[] = { 1, 1, 1, 1, 1, 0 }, around[] = { 7, 8, 9, 15, 16, 17, 31, 32, 33, 0 },
                         far[] = { 63, 64, 65, 1, 127, 128, 129, 0 }, long_first[] = { 131, 1, 0 },
                         long_last[] = { 1, 257, 0 }, square[] = { 3, 11, 0 };
    static const int64_t *const lengths[] = { one, two, small, odd, ones, around };
    static const int64_t widths[] = { 1, 2, 13, 14, 80 };
    for (int i = 0; i < 6 * 5; i++) check_drawn(lengths[i / 5], 1 + i % 3, widths[i % 5], 4, 1);
    check_drawn(small, 16, 80, 4, 1);
    check_drawn(square, 14, 14, 4, 1);          /* P = A = U */
    check_drawn(far, 1, 14, 20, 3);
    check_drawn(far, 2, 80, 4, 19);
    check_drawn(long_first, 3, 127, 4, 5);
    check_drawn(long_last, 3, 20, 60, 3);
    check_drawn(long_last, 2, 128, 1, 9);
    printf("  attend_segments: at most %.1Lf %% of the allowed error\n", 100 * attend_worst);
}

/* Goal:  segments longer than any tile, and more segments than rows of a tile.
 * Given: one segment of 1103 rows; 530 beside 513; 512 segments of 1 .. 3 rows.
 * Seen to fail with all that formula_and_order lists. */
TEST(long_segments)
{
    static const int64_t one[] = { 1103, 0 }, two[] = { 530, 513, 0 };
    check_drawn(one, 1, 14, 4, 37);
    check_drawn(one, 1, 80, 20, 97);
    check_drawn(two, 2, 14, 4, 41);
    int64_t many[MOST_SEGMENTS + 1] = { 0 };
    for (int s = 0; s < MOST_SEGMENTS; s++) many[s] = 1 + s % 3;
    check_drawn(many, 1, 14, 4, 1);
}

/* Goal:  a segment does not know what it is computed with.
 * Claim: each of ten segments has the bits of a call of its own.
 * Seen to fail with one segment for all, ends read as lengths, one row more before or after a segment; in float with
 * threads that share their scratch. */
TEST(alone_as_with_others)
{
    static const int64_t lengths[] = { 5, 1, 130, 2, 64, 65, 1, 33, 7, 300, 0 };
    struct attend_case c = draw(lengths, 3, 14, 4);
    real *whole = run(&c, 2), *first = whole;
    for (int64_t s = 0; s < c.segments; s++) {
        struct attend_case part = only(&c, s);
        real *got = run(&part, 1 + s % 2);
        const int64_t n = part.d.T * part.d.Q * part.d.D;
        ck_assert_msg(memcmp(first, got, (size_t)n * sizeof *got) == 0, "segment %lld", (long long)s);
        first += n;
    }
}

/* Goal:  what is not finite stays in its segment, its head and, in v, its channel.
 * Given: NaN, inf or -inf in q, k or v of head 1, channel 2, at every row of six segments.
 * Claim: NaN in q makes its own row of that head NaN, in k all rows of the segment, in v that channel of them; infinite
 *        v shows there too; all else keeps its bits.
 * Seen to fail with one segment for all, ends read as lengths, one row more before or after a segment, the last key
 * left out, keys of head 0 for all, another head's v, another row's q, and a NaN logit that weighs nothing. */
TEST(segments_do_not_leak)
{
    enum { A = 3, U = 5, ROW = A * U, P = 40 };
    static const int64_t lengths[] = { 3, 1, 17, 2, 16, 1, 0 };
    static const real bad[3] = { NAN, INFINITY, -INFINITY };
    struct attend_case c = draw(lengths, A, U, 2);
    ck_assert_int_eq(c.d.T, P);
    real *clean = run(&c, 1), *parts[3] = { c.q, c.k, c.v };
    for (int n = 0; n < 3 * 3 * P; n++) {
        const int part = n / 3 % 3;                                 /* q, k, v */
        const int64_t row = n / 9, at = row * ROW + 1 * U + 2;      /* head 1, channel 2 */
        const real was = parts[part][at];
        parts[part][at] = bad[n % 3];
        real *got = run(&c, 1 + n % 2);
        int64_t s = 0;
        while (c.ends[s] <= row) s++;
        for (int64_t i = 0; i < P * ROW; i++) {
            const int64_t r = i / ROW, head = i / U % A, channel = i % U;
            const int hit = r < c.ends[s] && r >= (s ? c.ends[s - 1] : 0) && head == 1 && (part > 0 || r == row);
            if (part == 2 && hit && channel == 2) ck_assert(!isfinite(got[i]) && (n % 3 > 0 || isnan(got[i])));
            else if (part == 2 || !hit) twin_check_same("not hit", r, i % ROW, got[i], clean[i]);
            else if (n % 3 == 0) ck_assert_msg(isnan(got[i]), "NaN in part %d row %d: row %d", part, (int)row, (int)r);
        }
        parts[part][at] = was;
    }
}

/* v of the keys in integers, so that every sum is exact; q and k as they are set. */
static void integer_values(struct attend_case *c)
{
    for (int64_t i = 0; i < c->d.T * c->d.Q * c->d.D; i++) c->v[i] = (real)(twin_pick(&attend_state, 61) - 30);
}

/* Given: all keys of a segment equal, v in integers, segments of 1 .. 512 rows, powers of two.
 * Claim: the mean of v, exactly, in every row.
 * Seen to fail with the last key left out or seen by one row only, one segment for all, ends read as lengths, another
 * head's v, keys beyond a piece that replace the sum, and o added to what was there. */
TEST(equal_keys)
{
    static const int64_t lengths[] = { 1, 2, 4, 8, 64, 128, 512, 0 };
    enum { A = 2, U = 14 };
    struct attend_case c = draw(lengths, A, U, 4);
    integer_values(&c);
    for (int64_t s = 0, begin = 0; s < c.segments; begin = c.ends[s++])
        for (int64_t i = begin * A * U; i < c.ends[s] * A * U; i++) c.k[i] = c.k[begin * A * U + i % (A * U)];
    real *o = run(&c, 2);
    for (int64_t s = 0, begin = 0; s < c.segments; begin = c.ends[s++])
        for (int64_t m = 0; m < A * U; m++) {
            double sum = 0;
            for (int64_t j = begin; j < c.ends[s]; j++) sum += c.v[j * A * U + m];
            for (int64_t i = begin; i < c.ends[s]; i++)
                twin_check("mean", i, m, o[i * A * U + m], sum / (double)(c.ends[s] - begin), 0);
        }
}

/* Goal:  every row sees every key: no causal mask, in either direction.
 * Given: one key above all others, from the first to the last place of its segment; in head 1 counted from the end.
 * Claim: its v, exactly, in every row.
 * Seen to fail with the last key left out or seen by one row only, one segment for all, ends read as lengths, keys of
 * head 0 for all, another head's v, and the maximum not subtracted. */
TEST(one_dominant_key)
{
    enum { A = 2, U = 3 };
    static const int64_t lengths[] = { 5, 67, 1, 129, 0 };
    struct attend_case c = draw(lengths, A, U, 1);
    real *o;
    for (int64_t shift = 0; shift < 129; shift += shift < 8 ? 1 : 11) {
        for (int64_t i = 0; i < c.d.T; i++)
            for (int64_t a = 0; a < A; a++) {
                real *q = c.q + (i * A + a) * U, *k = c.k + (i * A + a) * U;
                q[0] = 3e4f;
                q[1] = 0;
                k[0] = 0;
            }
        for (int64_t s = 0, begin = 0; s < c.segments; begin = c.ends[s++]) {
            const int64_t n = c.ends[s] - begin;
            c.k[(begin + shift % n) * A * U] = 1;                   /* head 0: key `shift`; head 1: from the end */
            c.k[((c.ends[s] - 1 - shift % n) * A + 1) * U] = 1;
        }
        o = run(&c, 1);
        for (int64_t s = 0, begin = 0; s < c.segments; begin = c.ends[s++])
            for (int64_t i = begin; i < c.ends[s]; i++)
                for (int64_t d = 0; d < U; d++) {
                    const int64_t n = c.ends[s] - begin, j0 = begin + shift % n, j1 = c.ends[s] - 1 - shift % n;
                    twin_check("head 0", i, d, o[i * A * U + d], c.v[j0 * A * U + d], 0);
                    twin_check("head 1", i, d, o[(i * A + 1) * U + d], c.v[(j1 * A + 1) * U + d], 0);
                }
    }
}

/* Goal:  the bits of every sum, in both engines.
 * Given: weights that are exactly 1 or exactly 0, so that no exp rounds; some of the keys, at random.
 * Claim: the bits of the plain loop.
 * Seen to fail with o / c for o * real(1 / c), the last key left out, one segment for all, and keys beyond a piece
 * that replace the sum. */
TEST(exact_weights)
{
    static const int64_t lengths[] = { 131, 3, 67, 0 };
    static int64_t keys[131];
    enum { A = 2, U = 80, ROW = A * U };
    struct attend_case c = draw(lengths, A, U, 1);
    for (int64_t i = 0; i < c.d.T * A; i++) {
        for (int64_t d = 0; d < U; d++) c.q[i * U + d] = d == 3 ? 2e5f : d == 5 ? 3 : 0;
        c.k[i * U + 3] = -(twin_draw(&attend_state) < 0);
        c.k[i * U + 5] = 1;
    }
    real *o = run(&c, 1);
    for (int64_t s = 0, begin = 0; s < c.segments; begin = c.ends[s++]) {
        const int64_t n = c.ends[s] - begin;
        for (int64_t j = 0; j < n; j++) keys[j] = begin + j;
        for (int64_t i = begin; i < c.ends[s]; i++)
            for (int64_t a = 0; a < A; a++) {
                real order[ATTEND_MAX_D], lse;
                attend_order(order, &lse, c.q + i * ROW + a * U, c.k + a * U, c.v + a * U, keys, n, U, ROW);
                for (int64_t d = 0; d < U; d++)
                    twin_check_same("o in order", i, a * U + d, o[i * ROW + a * U + d], order[d]);
            }
    }
}

/* Claim: o is v, except for a -0, because a sum begins with +0.
 * Seen to fail with one segment for all, one row more before or after a segment, keys of head 0 for all, another
 * head's v, the maximum not subtracted, and o added to what was there. */
TEST(one_row_segments)
{
    int64_t lengths[MOST_SEGMENTS + 1] = { 0 };
    for (int s = 0; s < 67; s++) lengths[s] = 1;
    for (int64_t U = 1; U <= ATTEND_MAX_D; U += U < 20 ? 1 : 15) {
        struct attend_case c = draw(lengths, 3, U, 4);
        c.v[0] = -0.0;
        real *o = run(&c, 2);
        for (int64_t i = 0; i < c.d.T * 3 * U; i++) {
            const real want = 0 + c.v[i];
            twin_check_same("o = v", i / (3 * U), i % (3 * U), o[i], want);
        }
        rooms_free(0);
    }
}

/* Goal:  logits of 1e37 (double: 1e300) neither overflow nor lose the key that wins.
 * Claim: o is v of the largest logit, found in long double.
 * Seen to fail with the maximum not subtracted, another row's q, one segment for all, and the last key left out. */
TEST(large_logits)
{
    enum { A = 2, U = 20 };
    static const int64_t lengths[] = { 67, 2, 31, 0 };
    const double size = sizeof(real) == 4 ? 1e18 : 1e150;
    struct attend_case c = draw(lengths, A, U, size);
    for (int64_t i = 0; i < c.d.T * A * U; i++) c.k[i] *= (real)size;
    real *o = run(&c, 2);
    for (int64_t s = 0, begin = 0; s < c.segments; begin = c.ends[s++])
        for (int64_t i = begin; i < c.ends[s]; i++)
            for (int64_t a = 0; a < A; a++) {
                long double top = -INFINITY;
                int64_t winner = 0;
                for (int64_t j = begin; j < c.ends[s]; j++) {
                    long double z = 0;
                    for (int64_t d = 0; d < U; d++)
                        z += (long double)c.q[(i * A + a) * U + d] * c.k[(j * A + a) * U + d];
                    if (z > top) {
                        top = z;
                        winner = j;
                    }
                }
                for (int64_t d = 0; d < U; d++) ck_assert(o[(i * A + a) * U + d] == c.v[(winner * A + a) * U + d]);
            }
}

/* Goal:  logits that are not finite, wherever they stand.
 * Given: segments of 1 .. 70 rows, one channel; the logit of key j is NaN, +inf (by an operand, or by overflow) or
 *        -inf (by overflow); or all are -inf. One row more, a segment of its own.
 * Claim: NaN, +inf and nothing but -inf make every row NaN; -inf among finite logits gives the bits of the segment
 *        without that key; the other segment gives its v.
 * Seen to fail with a NaN logit that weighs nothing, an infinite logit made finite, one segment for all, and the
 * maximum not subtracted. */
TEST(logits_not_finite)
{
    const real big = sizeof(real) == 4 ? (real)1e30 : (real)1e200, bad[4] = { NAN, INFINITY, big, -big };
    for (int64_t L = 1; L <= 70; L += 1 + (L > 20)) {
        const int64_t lengths[3] = { L, 1, 0 }, fewer[2] = { L > 1 ? L - 1 : 1, 0 };
        struct attend_case c = draw(lengths, 1, 1, 1), without = draw(fewer, 1, 1, 1);
        for (int64_t j = 0; j < L + 1; j++) c.q[j] = big;
        for (int64_t j = 0; j < L; j++) c.k[j] /= big;
        for (int64_t j = 0; j < L; j++) {
            const real was = c.k[j];
            for (int i = 0; i < 4; i++) {
                c.k[j] = bad[i];
                real *o = run(&c, 1);
                if (i < 3 || L == 1) {
                    for (int64_t r = 0; r < L; r++) ck_assert(isnan(o[r]));
                } else {
                    for (int64_t n = 0; n < L - 1; n++) {
                        without.q[n] = big;
                        without.k[n] = c.k[n + (n >= j)];
                        without.v[n] = c.v[n + (n >= j)];
                    }
                    real *want = run(&without, 1);
                    for (int64_t r = 0; r < L; r++) twin_check_same("without it", L, r, o[r], want[0]);
                }
                ck_assert(o[L] == c.v[L]);
            }
            c.k[j] = was;
        }
        for (int64_t j = 0; j < L; j++) c.k[j] = -big;
        real *o = run(&c, 1);
        for (int64_t r = 0; r < L; r++) ck_assert(isnan(o[r]));
        rooms_free(0);
    }
}

/* Goal:  ends that do not ascend from above 0 are refused.
 * Given: none at all, 0, negative, equal and descending ones, first, in the middle and last, also two at once.
 * Claim: a status, a reason, the row where the first wrong segment would begin (-1 if there is none), nothing written.
 * Seen to fail with equal ends let through, no check, none of the first, no row, the row of the last segment, and no
 * segments let through. */
TEST(ends_refused)
{
    enum { A = 2, U = 3, ROWS = 9 };
    /* clang-format off */
    static const struct { int64_t segments, ends[5], at; } bad[] = {
        { 0, { 9 }, -1 }, { -1, { 9 }, -1 }, { 1, { 0 }, 0 }, { 1, { -1 }, 0 }, { 1, { INT64_MIN }, 0 },
        { 2, { 0, 9 }, 0 }, { 2, { -3, 9 }, 0 }, { 2, { 9, 9 }, 1 }, { 2, { 9, 8 }, 1 }, { 3, { 3, 3, 9 }, 1 },
        { 3, { 3, 9, 9 }, 2 }, { 3, { 3, 9, 8 }, 2 }, { 3, { 5, 4, 9 }, 1 }, { 4, { 2, 5, 0, 9 }, 2 },
        { 4, { 2, 5, -9, 9 }, 2 }, { 5, { 1, 2, 2, 1, 9 }, 2 }, { 5, { 1, 3, 2, 0, 0 }, 2 }, { 3, { 4, 4, 1 }, 1 },
    };
    /* clang-format on */
    static const int64_t lengths[] = { ROWS, 0 };
    for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
        struct attend_case c = draw(lengths, A, U, 1);
        c.segments = bad[b].segments;
        memcpy(c.ends, bad[b].ends, sizeof bad[b].ends);
        struct call call = call_of(&c);
        call_refused(&call, ANY, bad[b].at > 0 ? c.ends[bad[b].at - 1] : bad[b].at, NOWHERE, NOWHERE);
        rooms_free(0);
    }
}

/* Goal:  a context carries nothing from one call to the next.
 * Given: one context for a large case full of NaN, then for a small one.
 * Seen to fail with scratch not given back. */
TEST(context_used_again)
{
    static const int64_t large_lengths[] = { 131, 70, 0 }, small_lengths[] = { 7, 3, 0 };
    struct attend_case large = draw(large_lengths, 4, 80, 1), small = draw(small_lengths, 3, 14, 4);
    for (int64_t i = 0; i < large.d.T * 4 * 80; i++) large.k[i] = large.v[i] = NAN;
    struct call first = call_of(&large), then = call_of(&small);
    call_after(&then, &first);
}
