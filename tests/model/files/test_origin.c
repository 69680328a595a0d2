/* Whether a file is of the model, the case and the reading that it is used with. */
#include "files.h"

#include "model/files/origin.h"

FIXTURE(make_folder, remove_folder);

/* A file that states these; NULL: it does not. To be closed. */
static struct m3_safetensors *file_of(const char *name, const char *model, const char *the_case, const char *semantics)
{
    const char *const stated[][2] = { { "model_sha256", model },
                                      { "case_sha256", the_case },
                                      { "semantics", semantics } };
    struct m3_error error = { 0 };
    struct m3_safetensors *file;
    struct m3_writer *writer;
    const int64_t one = 1;
    const float value = 0;
    int status = m3_writer_new(&writer, in_folder(name), &error);
    for (int i = 0; i < 3 && !status; i++)
        if (stated[i][1]) status = m3_writer_metadata(writer, stated[i][0], stated[i][1], &error);
    if (!status) status = m3_writer_tensor(writer, "embed", M3_F32, 1, &one, &error);
    if (!status) status = m3_writer_begin(writer, &error);
    if (!status) status = m3_writer_write(writer, &value, sizeof value, &error);
    if (!status) status = m3_writer_commit(writer, &error);
    if (!status) status = m3_safetensors_open(&file, in_folder(name), &error);
    ck_assert_msg(status == M3_OK, "%s", error.text);
    return file;
}

/* Goal:  another model or case is an error, or noted by force; what one side does not state is noted, not an error.
 * Claim: status, number of lines and their texts, by hand.
 * Seen to fail with only the model compared, and with force ignored. */
/* clang-format off */
static const struct {
    const char *model, *the_case, *expected_model;
    struct m3_origin_use use;
    int status;
    const char *note, *error;
} checks[] = {
    { "m", "c", "m", { .verdict = "compared", .status = M3_NOT_COMPARABLE }, M3_OK, NULL, NULL },
    { "n", "c", "m", { .verdict = "compared", .status = M3_NOT_COMPARABLE }, M3_NOT_COMPARABLE,
      "model_sha256 differs: got n, expected m\n", "model_sha256: got n, expected m\n" },
    { "m", "d", "m", { .verdict = "judged", .force = 1, .status = M3_NOT_COMPARABLE }, M3_OK,
      "case_sha256 differs: got d, expected c; judged by force\n", NULL },
    { NULL, "c", "m", { .verdict = "judged", .status = M3_NOT_COMPARABLE }, M3_OK,
      "model_sha256 is missing in the candidate: not checked\n", NULL },
    { "m", "c", NULL, { .verdict = "compared", .status = M3_NOT_COMPARABLE }, M3_OK,
      "model_sha256 is missing in the reference: not checked\n", NULL },
    { NULL, "c", NULL, { .verdict = "compared", .status = M3_NOT_COMPARABLE }, M3_OK,
      "model_sha256 is missing in the reference and the candidate: not checked\n", NULL },
    { "m", "d", "m", { .status = M3_BAD_INPUT }, M3_BAD_INPUT, NULL, "case_sha256: got d, expected c\n" },
    { NULL, "c", "m", { .status = M3_BAD_INPUT }, M3_OK, ": model_sha256 is missing: not checked\n", NULL },
};
/* clang-format on */

static int ends_with(const struct m3_error *lines, const char *text)
{
    if (text == NULL) return lines->text == NULL;
    if (lines->text == NULL || strlen(lines->text) < strlen(text)) return 0;
    return strcmp(lines->text + strlen(lines->text) - strlen(text), text) == 0;
}

LOOP_TEST(another_model_or_case, sizeof checks / sizeof *checks)
{
    struct m3_error notes = { 0 }, error = { 0 };
    struct m3_safetensors *dump = file_of("dump", checks[_i].model, checks[_i].the_case, NULL);
    const struct m3_origin expected = { .model_sha256 = checks[_i].expected_model, .case_sha256 = "c" };
    ck_assert_int_eq(m3_origin_check(dump, &expected, &checks[_i].use, &notes, &error), checks[_i].status);
    ck_assert_msg(ends_with(&notes, checks[_i].note), "%s", notes.text ? notes.text : "no note");
    ck_assert_msg(ends_with(&error, checks[_i].error), "%s", error.text ? error.text : "no error");
    m3_error_free(&notes);
    m3_error_free(&error);
    m3_safetensors_close(dump);
}

/* Goal:  two files are of the same run only if both state all, and the same.
 * Seen to fail with semantics left out, and with what both do not state taken as equal. */
TEST(same_run)
{
    static const char *const stated[][3] = {
        { "n", "c", "{}" }, { "m", "d", "{}" }, { "m", "c", "{\"pool\": \"lse\"}" }, { "m", "c", NULL }
    };
    struct m3_error error = { 0 };
    struct m3_safetensors *dump = file_of("dump", "m", "c", "{}"), *silent = file_of("silent", NULL, NULL, NULL);
    for (size_t i = 0; i < sizeof stated / sizeof *stated; i++) {
        struct m3_safetensors *file = file_of("file", stated[i][0], stated[i][1], stated[i][2]);
        ck_assert_int_eq(m3_origin_same_run(file, dump, &error), M3_NOT_COMPARABLE);
        m3_safetensors_close(file);
    }
    ck_assert_int_eq(m3_origin_same_run(silent, silent, &error), M3_NOT_COMPARABLE);
    ck_assert_int_eq(m3_origin_same_run(dump, dump, &error), M3_OK);
    m3_error_free(&error);
    m3_safetensors_close(dump);
    m3_safetensors_close(silent);
}

/* A file that states a model, a case and these weights; NULL: it does not. */
static struct m3_safetensors *weighed(const char *name, const char *weights)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *file;
    struct m3_writer *writer;
    int status = m3_writer_new(&writer, in_folder(name), &error);
    const char *const stated[][2] = {
        { "model_sha256", "m" }, { "case_sha256", "c" }, { "semantics", "{}" }, { "weights_sha256", weights }
    };
    for (int i = 0; i < 4 && !status; i++)
        if (stated[i][1]) status = m3_writer_metadata(writer, stated[i][0], stated[i][1], &error);
    if (!status) status = m3_writer_begin(writer, &error);
    if (!status) status = m3_writer_commit(writer, &error);
    if (!status) status = m3_safetensors_open(&file, in_folder(name), &error);
    ck_assert_msg(status == M3_OK, "%s", error.text);
    return file;
}

/* Goal:  other weights are treated as another model is; of shards that one side does not name nothing is said.
 * Seen to fail with the code as it was, and with force ignored. */
TEST(other_weights)
{
    static const struct {
        const char *got, *expected;
        int differ;
    } cases[] = {
        { "{\"a\":\"1\",\"b\":\"2\"}", "{\"a\":\"1\",\"b\":\"3\"}", 1 },
        { "{\"a\":\"1\"}", "{\"a\":\"1\",\"b\":\"3\"}", 0 },
        { "{\"a\":\"1\"}", NULL, 0 },
        { NULL, "{\"a\":\"1\"}", 0 },
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const int differ = cases[i / 2].differ, force = i % 2;
        const struct m3_origin_use use = { .verdict = "judged", .force = force, .status = M3_NOT_COMPARABLE };
        struct m3_error notes = { 0 }, error = { 0 };
        struct m3_safetensors *got = weighed("got", cases[i / 2].got), *want = weighed("want", cases[i / 2].expected);
        const struct m3_origin expected = m3_origin_of_file(want);
        ck_assert_int_eq(m3_origin_check(got, &expected, &use, &notes, &error),
                         differ && !force ? M3_NOT_COMPARABLE : M3_OK);
        ck_assert(ends_with(
            &error, differ && !force ? "got: weights_sha256: b: got 2, expected 3; 1 of 2 files differ\n" : NULL));
        ck_assert(ends_with(&notes, !differ ? NULL
                                    : force ? "1 of 2 files differ; judged by force\n"
                                            : "weights_sha256 differs: b: got 2, expected 3; 1 of 2 files differ\n"));
        ck_assert_int_eq(m3_origin_same_run(got, want, &error), differ ? M3_NOT_COMPARABLE : M3_OK);
        m3_error_free(&notes);
        m3_error_free(&error);
        m3_safetensors_close(got);
        m3_safetensors_close(want);
    }
}
