/* compare under a profile: what a coarser storage allows without companions, what is exact, grids, and what follows from
 * other choices. Expected verdicts are reasoned by hand from numbers that are exact in binary. */
#include "dumps.h"

#include <math.h>

#include "oracle/profile.h"
#include "oracle/tiers.h"

static struct m3_profile *profile;

static void under(const char *name)
{
    m3_profile_close(profile);
    ck_assert_msg(m3_profile_open(&profile, name, &error) == M3_OK, "%s", error.text);
    options.profile = profile;
}

static void teardown(void)
{
    m3_profile_close(profile);
    profile = NULL;
    dumps_teardown();
}

/* Goal:  under bf16 a tap is allowed 4 f32_max 2^16, one rounding of 2^-8, and 1e-7.
 * Given: f32_max 2^-20: 2^-2 + 2^-8 + 1e-7 of the largest, 4; f32_rel_l2 2^-20 too, which nothing here reaches.
 * Seen to fail with 2^-9 for the rounding, and with 2^15 for 2^16. */
START_TEST(stretched)
{
    const double want[6] = { 4, -2, 0, 0.5, 4, 1 }, allowed = 4 * (0x1p-2 + 0x1p-8 + 1e-7);
    const double factor[] = { 1 - 1e-9, 1 + 1e-9 };
    under("bf16");
    for (int over = 0; over < 2; over++) {
        double got[6];
        memcpy(got, want, sizeof got);
        got[5] -= allowed * factor[over];
        write_pair("layers.0.mid", want, got, 2, 3, "9.5367431640625e-07", "9.5367431640625e-07");
        const struct m3_stage *stage = judge_one();
        ck_assert_int_eq(stage->verdict, over ? M3_FAIL : M3_PASS);
        ck_assert(fabs(stage->headroom - 1) < 1e-8);
        under("fp32");
        ck_assert_int_eq(judge_one()->verdict, M3_FAIL);
        under("bf16");
    }
}
END_TEST

/* Goal:  where zeros would pass nothing is judged, but NaN fails.
 * Seen to fail with NaN not judged as well. */
START_TEST(too_wide)
{
    const double want[4] = { 1, -2, 4, 3 }, got[4] = { 1, -2, 4, 3 }, nan[4] = { 1, -2, NAN, 3 };
    under("fp8");
    write_pair("layers.3.mid", want, got, 2, 2, "1e-6", "1e-6");
    ck_assert_int_eq(judge_one()->verdict, M3_NOT_JUDGED);
    ck_assert_int_eq(result.status, M3_NOT_COMPARABLE);
    write_pair("layers.3.mid", want, nan, 2, 2, "1e-6", "1e-6");
    ck_assert_int_eq(judge_one()->verdict, M3_FAIL);
    ck_assert_int_eq(result.status, M3_WRONG);
}
END_TEST

/* Goal:  what a profile calls exact is the reference rounded once to what it stores, and nothing else.
 * Seen to fail with the reference not rounded, and with 1e-3 allowed. */
START_TEST(exact)
{
    const double want[4] = { 1, 1 + 0x1p-9, 3, 0.1 };
    const double bf16[4] = { 1, 1, 3, 0x1.9ap-4 }, next[4] = { 1, 1, 3, 0x1.9cp-4 };
    const double f32[4] = { 1, 1 + 0x1p-9, 3, (double)0.1f };
    under("bf16");
    write_pair("embed", want, bf16, 2, 2, "1", "1");
    ck_assert_int_eq(judge_one()->verdict, M3_PASS);
    write_pair("embed", want, next, 2, 2, "1", "1");
    ck_assert(judge_one()->verdict == M3_FAIL && result.stages[0].violations == 1);
    under("fp32");
    ck_assert_int_eq(judge_one()->verdict, M3_FAIL);
    write_pair("embed", want, f32, 2, 2, "1", "1");
    ck_assert_int_eq(judge_one()->verdict, M3_PASS);
}
END_TEST

/* Goal:  a candidate declared F32 whose values are all numbers of bf16, though the reference's are not, fails under
 *        fp32 even within what it is allowed; with 63 values nothing is said; under bf16 it passes.
 * Seen to fail with the grid not looked at. */
START_TEST(grid)
{
    float got[64];
    double want[64];
    for (int i = 0; i < 64; i++) {
        got[i] = (float)(128 + i) / 64;
        want[i] = got[i] * (1 + 0x1p-12);
    }
    for (int kind = 0; kind < 3; kind++) {
        struct dump dump;
        under(kind == 2 ? "bf16" : "fp32");
        dump_begin(&dump, reference_path);
        dump_meta(&dump, "layers.0.mid.f32_rel_l2", kind == 2 ? "1e-6" : "1e-4");
        dump_meta(&dump, "layers.0.mid.f32_max", kind == 2 ? "1e-6" : "1e-4");
        dump_tensor(&dump, "layers.0.mid", M3_F64, want, 1, kind == 1 ? 63 : 64, -1);
        dump_end(&dump);
        dump_one(candidate_path, "layers.0.mid", M3_F32, got, 1, kind == 1 ? 63 : 64, -1);
        const struct m3_stage *stage = judge_one();
        ck_assert_int_eq(stage->verdict, kind == 0 ? M3_FAIL : M3_PASS);
        ck_assert_int_eq(stage->grid, kind == 0 ? M3_BF16 : M3_DTYPES);
        ck_assert_int_eq(stage->tiers, kind == 0 ? M3_TIER_GRID : 0);
    }
}
END_TEST

enum { ROWS = 4, H = 2, K = 2 };

/* Row `row` of layers.1.moe.experts chooses otherwise; `mid` of layers 1 and 2 are off by `off` in that row. */
static void write_flip(const char *path, int row, double off, int with_nan)
{
    static int32_t ids[ROWS][K];
    static double mid[2][ROWS][H];
    for (int t = 0; t < ROWS; t++) {
        for (int k = 0; k < K; k++) ids[t][k] = k + 2 * (t == row);
        for (int h = 0; h < H; h++) mid[0][t][h] = mid[1][t][h] = 1 + t + h;
    }
    if (row >= 0) mid[1][row][0] += off;
    if (with_nan) mid[1][ROWS - 1][1] = NAN;
    struct dump dump;
    dump_begin(&dump, path);
    dump_tensor(&dump, "layers.1.mid", M3_F64, mid[0], ROWS, H, -1);
    dump_tensor(&dump, "layers.1.moe.experts", M3_I32, ids, ROWS, K, -1);
    dump_tensor(&dump, "layers.2.mid", M3_F64, mid[1], ROWS, H, -1);
    dump_end(&dump);
}

/* Goal:  the row of another choice, and those behind it, are left out of later layers and counted; the layer's own taps
 *        before the choice are not; NaN in a row that is left out still fails; where no row is left nothing is judged.
 * Seen to fail with taint not asked, with rows behind it judged, and with NaN looked for in judged rows alone. */
START_TEST(follows_from_other_choices)
{
    write_flip(reference_path, -1, 0, 0);
    write_flip(candidate_path, 2, 0.5, 0);
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert_int_eq(result.stages[1].verdict, M3_FAIL);
    ck_assert(result.stages[0].elements == ROWS * H && result.stages[0].rows_left_out == 0);
    ck_assert(result.stages[2].elements == 2 * H && result.stages[2].rows_left_out == 2);
    ck_assert(result.stages[2].verdict == M3_PASS && result.failed == 1);

    write_flip(candidate_path, 2, 0.5, 1);
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert(result.stages[2].verdict == M3_FAIL && result.failed == 2 && result.stages[2].index[0] == ROWS - 1);

    write_flip(candidate_path, 0, 0.5, 0);
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert(result.stages[2].verdict == M3_NOT_JUDGED && result.stages[2].rows_left_out == ROWS);
    ck_assert(result.not_judged == 1 && result.failed == 1);
}
END_TEST

Suite *m3_suite(void);
Suite *m3_suite(void)
{
    Suite *suite = suite_create("compare under profiles");
    TCase *tests = tcase_create("profile");
    tcase_add_checked_fixture(tests, dumps_setup, teardown);
    tcase_add_test(tests, stretched);
    tcase_add_test(tests, too_wide);
    tcase_add_test(tests, exact);
    tcase_add_test(tests, grid);
    tcase_add_test(tests, follows_from_other_choices);
    suite_add_tcase(suite, tests);
    return suite;
}
