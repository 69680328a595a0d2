/* Rows of one sequence, paired by their number; shapes that do not allow it. */
#include "dumps.h"

FIXTURE(dumps_setup, dumps_teardown);

/* Dumps of `embed` [n,2] whose element is 10 t + column, except for `wrong_row` where 1 is added to column 1. */
static void write_rows(const char *path, const int32_t *rows, int64_t n, int64_t wrong_row)
{
    double x[16][2];
    for (int64_t i = 0; i < n; i++) {
        int64_t t = rows != NULL ? rows[i] : i;
        x[i][0] = 10.0 * (double)t;
        x[i][1] = 10.0 * (double)t + (t == wrong_row ? 2 : 1);
    }
    struct dump dump;
    dump_begin(&dump, path);
    dump_tensor(&dump, "embed", M3_F64, x, n, 2, -1);
    if (rows != NULL) dump_tensor(&dump, "rows", M3_I32, rows, n, -1, -1);
    dump_end(&dump);
}

/* Goal:  rows are aligned by their number in the sequence, in which the worst element is named.
 * Given: a reference of rows 1, 4 and 6, a full candidate of 8, and the other way round; an error in row 4, or in
 *        row 5, which only one of them has.
 * Seen to fail with rows paired by index, and with the index of the file reported. */
TEST(rows_against_all)
{
    const int32_t rows[3] = { 1, 4, 6 };
    for (int swapped = 0; swapped < 2; swapped++) {
        for (int wrong = 4; wrong <= 5; wrong++) {
            write_rows(reference_path, swapped ? NULL : rows, swapped ? 8 : 3, -1);
            write_rows(candidate_path, swapped ? rows : NULL, swapped ? 3 : 8, wrong);
            const struct m3_finding *stage = judge_one();
            ck_assert_int_eq(stage->verdict, wrong == 4 ? M3_VERDICT_FAIL : M3_VERDICT_PASS);
            ck_assert_int_eq(stage->elements, 6);
            if (wrong == 4) ck_assert(stage->index[0] == 4 && stage->index[1] == 1 && stage->got == 42);
            ck_assert_ptr_null(result.notes.text != NULL ? strstr(result.notes.text, "rows") : NULL);
        }
    }
}

/* Given: reference rows 0 2 5 7, candidate rows 2 3 7 9: common 2 and 7.
 * Seen to fail with the walk ended at the first row that differs. */
TEST(rows_against_rows)
{
    const int32_t want[4] = { 0, 2, 5, 7 }, got[4] = { 2, 3, 7, 9 }, others[4] = { 1, 3, 4, 6 };
    write_rows(reference_path, want, 4, -1);
    write_rows(candidate_path, got, 4, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_PASS);
    ck_assert_int_eq(result.findings[0].elements, 4);
    write_rows(candidate_path, got, 4, 7);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_FAIL);
    ck_assert_int_eq(result.findings[0].index[0], 7);
    write_rows(candidate_path, others, 4, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    ck_assert_str_eq(result.findings[0].note, "no common row");
    ck_assert_int_eq(result.status, M3_NOT_COMPARABLE);
}

/* Goal:  rows that do not fit their taps are not compared: more rows than the tap has, a row beyond the other's end.
 * Seen to fail without either check. */
TEST(rows_that_do_not_fit)
{
    const int32_t rows[3] = { 1, 4, 6 };
    const double x[4] = { 0, 1, 2, 3 };
    for (int side = 0; side < 2; side++) {
        struct dump dump;
        dump_begin(&dump, side ? candidate_path : reference_path);
        dump_tensor(&dump, "embed", M3_F64, x, 2, 2, -1);
        dump_tensor(&dump, "rows", M3_I32, rows, 3, -1, -1);
        dump_end(&dump);
        write_rows(side ? reference_path : candidate_path, NULL, 8, -1);
        ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    }
    for (int swapped = 0; swapped < 2; swapped++) {
        for (int long_enough = 0; long_enough < 2; long_enough++) {
            write_rows(swapped ? candidate_path : reference_path, rows, 3, -1);
            write_rows(swapped ? reference_path : candidate_path, NULL, long_enough ? 7 : 6, -1);
            ck_assert_int_eq(judge_one()->verdict, long_enough ? M3_VERDICT_PASS : M3_VERDICT_NOT_COMPARABLE);
        }
    }
}

/* Goal:  `rows` number tokens, `vision.rows` patches, and neither the merged rows after the projector.
 * Seen to fail with `rows` for both, and with `vision.rows` for merged rows. */
TEST(rows_of_patches)
{
    static const struct {
        const char *tap;
        int of_patches, of_tokens;
    } taps[] = {
        { "vision.pre_norm", 1, 0 }, { "vision.layers.1.norm1", 1, 0 }, { "projector.linear_2", 1, 0 },
        { "embed", 0, 1 },           { "projector.merged", 0, 0 },      { "projector.out", 0, 0 },
    };
    const int32_t rows[2] = { 1, 4 }, patches[2] = { 2, 3 };
    double all[8][2], some[2][2];
    for (int i = 0; i < 8; i++) all[i][0] = i, all[i][1] = -i;
    for (size_t i = 0; i < sizeof taps / sizeof *taps; i++) {
        struct dump dump;
        int64_t count = taps[i].of_patches || taps[i].of_tokens ? 2 : 8;
        for (int r = 0; r < 2; r++) memcpy(some[r], all[taps[i].of_patches ? patches[r] : rows[r]], sizeof *some);
        dump_begin(&dump, reference_path);
        dump_tensor(&dump, taps[i].tap, M3_F64, count == 2 ? some : all, count, 2, -1);
        dump_tensor(&dump, "rows", M3_I32, rows, 2, -1, -1);
        dump_tensor(&dump, "vision.rows", M3_I32, patches, 2, -1, -1);
        dump_end(&dump);
        dump_one(candidate_path, taps[i].tap, M3_F64, all, 8, 2, -1);
        ck_assert_msg(judge_one()->verdict == M3_VERDICT_PASS, "%s", taps[i].tap);
        ck_assert_int_eq(result.findings[0].elements, 2 * count);
    }
}

/* Seen to fail with < for <= (equal rows), without the sign, and with any dtype or rank taken. */
TEST(rows_must_ascend)
{
    const double x[2] = { 1, 2 };
    const int32_t bad[3][2] = { { 4, 4 }, { 5, 4 }, { -1, 4 } };
    const int64_t wide[2] = { 0, 1 };
    const int32_t good[2] = { 0, 1 };
    struct dump dump;
    for (int i = 0; i < 6; i++) {
        const char *path = i % 2 ? reference_path : candidate_path, *other = i % 2 ? candidate_path : reference_path;
        dump_begin(&dump, path);
        dump_tensor(&dump, "embed", M3_F64, x, 2, 1, -1);
        if (i < 3) dump_tensor(&dump, "rows", M3_I32, bad[i], 2, -1, -1);
        else if (i == 3) dump_tensor(&dump, "rows", M3_I64, wide, 2, -1, -1);
        else if (i == 4) dump_tensor(&dump, "rows", M3_I32, good, 2, 1, -1);
        else dump_tensor(&dump, "vision.rows", M3_I32, bad[0], 2, -1, -1);
        dump_end(&dump);
        dump_one(other, "embed", M3_F64, x, 2, 1, -1);
        ck_assert_int_eq(judge(), M3_BAD_INPUT);
        ck_assert(error_says("rows") && error_says(path));
    }
}

/* Seen to fail with counts compared in place of dimensions ([2,3,2] against [2,2,3]), and with the rows not
 * compared. */
TEST(shapes_that_differ)
{
    const double x[12] = { 0 };
    const int64_t shapes[][3] = { { 2, 6, -1 }, { 3, 4, -1 }, { 2, 5, -1 }, { 1, 6, -1 }, { 12, -1, -1 }, { 2, 3, 2 } };
    dump_one(reference_path, "embed", M3_F64, x, 2, 6, -1);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        dump_one(candidate_path, "embed", M3_F64, x, shapes[i][0], shapes[i][1], shapes[i][2]);
        const struct m3_finding *stage = judge_one();
        ck_assert_int_eq(stage->verdict, i == 0 ? M3_VERDICT_PASS : M3_VERDICT_NOT_COMPARABLE);
        ck_assert_int_eq(result.status, i == 0 ? M3_OK : M3_NOT_COMPARABLE);
    }
    dump_one(reference_path, "embed", M3_F64, x, 2, 3, 2);
    dump_one(candidate_path, "embed", M3_F64, x, 2, 2, 3);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
    dump_one(reference_path, "embed", M3_F64, x, -1, -1, -1);
    dump_one(candidate_path, "embed", M3_F64, x, -1, -1, -1);
    ck_assert_int_eq(judge_one()->verdict, M3_VERDICT_NOT_COMPARABLE);
}
