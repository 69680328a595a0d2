/* Writes the file of an envelope directly (SPEC 7.10). */
#ifndef M3_TESTS_ENVELOPE_FILE_H
#define M3_TESTS_ENVELOPE_FILE_H

#include "files.h"

#include "base/version.h"
#include "io/safetensors.h"
#include "oracle/judge/rows/envelope.h"

/* NULL: the file has no such string. */
struct envelope_strings {
    const char *format, *profile, *hash, *model, *c, *choices;
};

/* values: [count, runs]. */
static inline void write_envelope(const char *path, const struct envelope_strings *strings, const char *const *taps,
                                  int count, const double *values, int64_t runs)
{
    struct m3_error error = { 0 };
    struct m3_writer *writer;
    const char *const all[][2] = { { "format", strings->format },      { "format_version", "1" },
                                   { "profile", strings->profile },    { "profile_sha256", strings->hash },
                                   { "model_sha256", strings->model }, { "case_sha256", strings->c },
                                   { "choices", strings->choices },    { "arithmetic", M3_ARITHMETIC } };
    int status = m3_writer_new(&writer, path, &error);
    for (size_t i = 0; i < sizeof all / sizeof *all && !status; i++)
        if (all[i][1]) status = m3_writer_metadata(writer, all[i][0], all[i][1], &error);
    for (int i = 0; i < count && !status; i++) status = m3_writer_tensor(writer, taps[i], M3_F64, 1, &runs, &error);
    if (!status) status = m3_writer_seal(writer, &error);
    if (!status) status = m3_writer_begin(writer, &error);
    for (int i = 0; i < count && !status; i++)
        status = m3_writer_write(writer, values + i * runs, (uint64_t)runs * sizeof *values, &error);
    if (!status) status = m3_writer_commit(writer, &error);
    ck_assert_msg(status == M3_OK, "%s", error.text);
}

static inline struct m3_envelope *opened(const char *path, const struct m3_profile *profile)
{
    struct m3_error error = { 0 };
    struct m3_envelope *envelope;
    int status = m3_envelope_open(&envelope, path, NULL, profile, &error);
    ck_assert_msg(status == M3_OK, "%s", error.text);
    return envelope;
}

#endif
