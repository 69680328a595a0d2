/* Cases from files and from ids: values, limits, and the hash that goldens carry, which another program made. */
#include "files.h"

#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "model/case.h"

static struct m3_error error;

/* Seen to fail with the zero byte behind the name left out, and with ids hashed as I32. */
START_TEST(hashes_of_the_goldens)
{
    static const char *const names[] = { "tiny", "block128", "mxfp8", "f8block" };
    struct m3_safetensors *golden;
    struct m3_checkpoint *checkpoint;
    struct m3_case c, same;
    int64_t ids[4096];
    char model_sha256[65];

    snprintf(folder, sizeof folder, "golden/%s", names[_i]);
    ck_assert_int_eq(m3_safetensors_open(&golden, in_folder("golden.safetensors.gz"), &error), M3_OK);
    ck_assert_int_eq(m3_case_read(&c, in_folder("case.safetensors"), &error), M3_OK);
    ck_assert_str_eq(c.sha256, m3_safetensors_metadata(golden, "case_sha256"));
    for (int64_t t = 0; t < c.T; t++) ids[t] = c.ids[t];
    ck_assert_int_eq(m3_case_from_ids(&same, ids, c.T, &error), M3_OK);
    ck_assert_str_eq(same.sha256, c.sha256);

    ck_assert_int_eq(m3_checkpoint_open(&checkpoint, in_folder("model"), &error), M3_OK);
    ck_assert_int_eq(m3_checkpoint_sha256(checkpoint, model_sha256, &error), M3_OK);
    ck_assert_str_eq(model_sha256, m3_safetensors_metadata(golden, "model_sha256"));
    m3_checkpoint_close(checkpoint);
    m3_safetensors_close(golden);
    m3_case_free(&c);
    m3_case_free(&same);
}
END_TEST

/* Positions enter the hash and the case; the hash of this case is in the golden that was made from it. */
START_TEST(positions)
{
    struct m3_safetensors *golden;
    struct m3_case c;
    ck_assert_int_eq(m3_case_read(&c, "golden/tiny/positions_case.safetensors", &error), M3_OK);
    ck_assert_int_eq(c.T, 67);
    ck_assert_int_eq(c.positions[0], 1000000);
    ck_assert_int_eq(c.positions[66], 1000066);
    ck_assert_int_eq(m3_safetensors_open(&golden, "golden/tiny/positions.safetensors", &error), M3_OK);
    const char *sha256 = m3_safetensors_metadata(golden, "case_sha256");
    if (sha256) ck_assert_str_eq(c.sha256, sha256);
    m3_safetensors_close(golden);
    m3_case_free(&c);
}
END_TEST

START_TEST(limits)
{
    struct m3_config config = { .V = 10, .max_positions = 4 };
    const int64_t ids[] = { 0, 9, 3, 5, 1 }, high[] = { 1, 10 }, huge[] = { 1L << 32 }, negative[] = { -1 };
    struct m3_case c;

    ck_assert_int_eq(m3_case_from_ids(&c, ids, 4, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_BAD_INPUT, &error), M3_OK);
    c.positions[2] = 4;
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_BAD_INPUT, &error), M3_BAD_INPUT);
    ck_assert_int_eq(m3_case_check(&c, &config, 1, "x", M3_BAD_INPUT, &error), M3_OK);
    c.positions[2] = -1;
    ck_assert_int_eq(m3_case_check(&c, &config, 1, "x", M3_BAD_INPUT, &error), M3_BAD_INPUT);
    m3_case_free(&c);

    ck_assert_int_eq(m3_case_from_ids(&c, ids, 5, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_USAGE, &error), M3_USAGE);
    m3_case_free(&c);

    const int64_t *bad[] = { high, huge, negative };
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(m3_case_from_ids(&c, bad[i], i == 0 ? 2 : 1, &error), M3_OK);
        ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_USAGE, &error), M3_USAGE);
        m3_case_free(&c);
    }
    ck_assert_int_eq(m3_case_from_ids(&c, ids, 0, &error), M3_USAGE);
}
END_TEST

/* A picture's placeholder without a picture. */
START_TEST(placeholders)
{
    struct m3_config config = { .V = 10,
                                .max_positions = 4,
                                .vision = { .present = 1, .image_token = 7, .video_token = 8 } };
    const int64_t image[] = { 1, 7 }, video[] = { 8 };
    struct m3_case c;
    ck_assert_int_eq(m3_case_from_ids(&c, image, 2, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_USAGE, &error), M3_USAGE);
    m3_case_free(&c);
    ck_assert_int_eq(m3_case_from_ids(&c, video, 1, &error), M3_OK);
    ck_assert_int_eq(m3_case_check(&c, &config, 0, "x", M3_USAGE, &error), M3_USAGE);
    m3_case_free(&c);
}
END_TEST

Suite *m3_suite(void);

Suite *m3_suite(void)
{
    Suite *suite = suite_create("case");
    TCase *tests = tcase_create("case");
    tcase_add_loop_test(tests, hashes_of_the_goldens, 0, 4);
    tcase_add_test(tests, positions);
    tcase_add_test(tests, limits);
    tcase_add_test(tests, placeholders);
    suite_add_tcase(suite, tests);
    return suite;
}
