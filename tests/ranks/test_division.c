/* Goal:  every row and every expert has one rank, whatever their numbers.
 * Given: 1 to 9 ranks; from 2 rows a rank to some hundred; parts of which only the first rows exist.
 * Claim: each row on exactly one rank, ascending in its memory; the first and the last row of a call on rank 0; equal
 *        shares up to two rows; m3_rows_before and m3_rows_seen as counted; each expert with the rank that owns it.
 *
 * Seen to fail with chunks r and r + N, with a last chunk that ends a row early, and with an owner one expert early. */
#include "ranks/division.h"

#include <check.h>
#include <stdlib.h>

/* Writes the rank of every row into owner [T], -1 for rows that do not exist. */
static void owners(int *owner, const struct m3_division *d, int64_t T)
{
    for (int64_t t = 0; t < T; t++) owner[t] = -1;
    for (int rank = 0; rank < d->count; rank++) {
        const struct m3_rows r = m3_division_rows(d, rank);
        int64_t last = -1;
        for (int64_t i = 0; i < m3_rows_count(&r); i++) {
            const int64_t row = m3_rows_row(&r, i);
            ck_assert(row > last && row < T);
            ck_assert_int_eq(owner[row], -1);
            owner[row] = rank;
            last = row;
        }
        ck_assert_int_eq(m3_rows_seen(&r), last + 1);
    }
}

static void check_counts(const struct m3_division *d, const int *owner, int64_t T)
{
    for (int rank = 0; rank < d->count; rank++) {
        const struct m3_rows r = m3_division_rows(d, rank);
        for (int64_t row = 0, before = 0; row <= T; row++) {
            ck_assert_int_eq(m3_rows_before(&r, row), before);
            before += row < T && owner[row] == rank;
        }
        for (int64_t i = 0, n; i < m3_rows_count(&r); i += n) {
            n = m3_rows_run(&r, i, m3_rows_count(&r));
            ck_assert_int_gt(n, 0);
            ck_assert_int_eq(m3_rows_row(&r, i + n - 1), m3_rows_row(&r, i) + n - 1);
        }
    }
}

TEST(rows)
{
    int owner[300];
    for (int count = 1; count < 10; count++)
        for (int64_t T = 2 * count; T < 300; T += 1 + T / 20)
            for (int64_t missing = 0; missing < 4 && missing < T; missing++) {
                const struct m3_division d = { T, T - missing, count };
                int64_t least = T, most = 0;
                owners(owner, &d, T);
                for (int64_t t = 0; t < T; t++) ck_assert_int_eq(owner[t] >= 0, t < T - missing);
                check_counts(&d, owner, T);
                ck_assert_int_eq(owner[0], 0);
                if (missing) continue;
                ck_assert_int_eq(owner[T - 1], 0);
                for (int rank = 0; rank < count; rank++) {
                    const struct m3_rows r = m3_division_rows(&d, rank);
                    least = m3_rows_count(&r) < least ? m3_rows_count(&r) : least;
                    most = m3_rows_count(&r) > most ? m3_rows_count(&r) : most;
                }
                ck_assert_int_le(most - least, 2);
            }
}

TEST(undivided)
{
    const struct m3_division d = { 0, 7, 3 };
    const struct m3_rows first = m3_division_rows(&d, 0), second = m3_division_rows(&d, 1);
    ck_assert_int_eq(m3_rows_count(&first), 7);
    ck_assert_int_eq(m3_rows_row(&first, 6), 6);
    ck_assert_int_eq(m3_rows_count(&second), 0);
    ck_assert_int_eq(m3_rows_seen(&second), 0);
}

TEST(experts)
{
    for (int count = 1; count < 40; count++)
        for (int64_t E = 1; E < 140; E++) {
            ck_assert_int_eq(m3_experts_first(E, count, 0), 0);
            ck_assert_int_eq(m3_experts_first(E, count, count), E);
            for (int rank = 0; rank < count; rank++)
                for (int64_t e = m3_experts_first(E, count, rank); e < m3_experts_first(E, count, rank + 1); e++)
                    ck_assert_int_eq(m3_experts_owner(E, count, e), rank);
        }
}
