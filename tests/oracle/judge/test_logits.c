/* compare: logits stored in another shape than the tap's: padded columns, and the last row alone (SPEC 7.0). */
#include "dumps.h"

#include <math.h>

#include "oracle/judge/logits.h"

FIXTURE(dumps_setup, dumps_teardown);

enum { T = 3, V = 4, PADDED = 6 };

static const double truth[T * V] = { 1, 2, 4, 0.5, 3, -1, 0.25, 2, -2, 1, 5, 0.75 };

/* What a tensor of T rows holds after the vocabulary. */
static void pad(double *wide, double padding)
{
    for (int i = 0; i < T * PADDED; i++) wide[i] = i % PADDED < V ? truth[i / PADDED * V + i % PADDED] : padding;
}

static void with_rows(const char *path, const double *logits, int64_t rows, int64_t columns, const int32_t *numbers,
                      int64_t count)
{
    struct dump dump;
    dump_begin(&dump, path);
    dump_tensor(&dump, "logits", M3_F64, logits, rows, columns, -1);
    dump_tensor(&dump, "rows", M3_I32, numbers, count, -1, -1);
    dump_end(&dump);
}

/* Goal:  columns after the vocabulary are ignored and said to be padding; those of the vocabulary are judged.
 * Claim: 0, 1e30 and NaN in the padding pass; the next token is not one of the padding; one wrong number fails.
 * Seen to fail with the copy taken row by row from consecutive places (padding among the vocabulary), with the note
 * left out. */
TEST(padded)
{
    const double paddings[] = { 0, 1e30, NAN };
    double wide[T * PADDED];
    dump_one(reference_path, "logits", M3_F64, truth, T, V, -1);
    for (int i = 0; i < 3; i++) {
        pad(wide, paddings[i]);
        dump_one(candidate_path, "logits", M3_F64, wide, T, PADDED, -1);
        ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_PASS);
        ck_assert(result.status == M3_OK && result.findings[0].elements == T * V);
        ck_assert_int_eq(result.next_token.choices[M3_CHOICE_IDENTICAL], T);
        ck_assert(notes_say("logits: got 6 columns, expected 4, the vocabulary: the last 2 are taken as padding"));
        ck_assert_ptr_nonnull(strstr(result.findings[0].note, "padding"));
    }
    wide[PADDED + 3] += 0.5;
    dump_one(candidate_path, "logits", M3_F64, wide, T, PADDED, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_FAIL);
    ck_assert(result.findings[0].index[0] == 1 && result.findings[0].index[1] == 3);
}

/* Goal:  [V] is the last row of the case.
 * Claim: the last row passes, and is row T - 1; the first row fails there; `rows` with one number says which row it
 *        is; with several, the last of them must be the case's last.
 * Seen to fail with row 0 taken, with the dump's `rows` ignored. */
TEST(vector)
{
    const int32_t middle[] = { 1 }, first_two[] = { 0, 1 }, last_two[] = { 0, 2 };
    dump_one(reference_path, "logits", M3_F64, truth, T, V, -1);
    dump_one(candidate_path, "logits", M3_F64, truth + 2 * V, V, -1, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_PASS);
    ck_assert(result.status == M3_OK && result.findings[0].elements == V);
    ck_assert(notes_say("logits: got a vector of 4 numbers: taken as row 2, the last of the case"));
    dump_one(candidate_path, "logits", M3_F64, truth, V, -1, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_FAIL);
    ck_assert_int_eq(result.findings[0].index[0], 2);

    with_rows(candidate_path, truth + V, V, -1, middle, 1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_PASS);
    with_rows(candidate_path, truth + 2 * V, V, -1, last_two, 2);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_PASS);
    with_rows(candidate_path, truth + V, V, -1, first_two, 2);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    ck_assert_ptr_nonnull(strstr(result.findings[0].note, "`rows` has other rows than the last"));
}

/* Goal:  where it is not certain what a vector is, it is refused with the reason.
 * Claim: V rows of V numbers; a reference with some rows only; another length is no vector of logits.
 * Seen to fail with V = T accepted, with the reference's own last row taken. */
TEST(ambiguous)
{
    const int32_t some[] = { 0, 1, 5 };
    dump_one(reference_path, "logits", M3_F64, truth, T, 3, -1);
    dump_one(candidate_path, "logits", M3_F64, truth, 3, -1, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    ck_assert_ptr_nonnull(strstr(result.findings[0].note, "the case has V rows too"));
    with_rows(reference_path, truth, T, V, some, 3);
    dump_one(candidate_path, "logits", M3_F64, truth + 2 * V, V, -1, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    ck_assert_ptr_nonnull(strstr(result.findings[0].note, "The reference does not hold all rows"));
    dump_one(reference_path, "logits", M3_F64, truth, T, V, -1);
    dump_one(candidate_path, "logits", M3_F64, truth, V - 1, -1, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    dump_one(candidate_path, "final_norm", M3_F64, truth, V, -1, -1);
    dump_one(reference_path, "final_norm", M3_F64, truth, T, V, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
}
