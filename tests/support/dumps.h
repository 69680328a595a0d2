/* For tests of the comparison: small dumps in their own folder, and the comparison of two of them. Each test runs in
 * its own process, so the state here belongs to one test. */
#ifndef M3_TESTS_DUMPS_H
#define M3_TESTS_DUMPS_H

#include "files.h"

#include <stdint.h>

#include "oracle/judge/compare.h"

enum { DUMP_TENSORS = 160 };

struct dump {
    struct m3_writer *writer;
    const void *data[DUMP_TENSORS];
    uint64_t bytes[DUMP_TENSORS];
    int count;
};

static char reference_path[128], candidate_path[128];
static struct m3_safetensors *reference_file, *candidate_file;
static struct m3_judgement result;
static struct m3_error error;
static struct m3_compare_options options;

static inline void dumps_setup(void)
{
    make_folder();
    snprintf(reference_path, sizeof reference_path, "%s/reference.safetensors", folder);
    snprintf(candidate_path, sizeof candidate_path, "%s/candidate.safetensors", folder);
}

static inline void dumps_forget(void)
{
    m3_judgement_free(&result);
    m3_safetensors_close(reference_file);
    m3_safetensors_close(candidate_file);
    reference_file = candidate_file = NULL;
    m3_error_free(&error);
}

static inline void dumps_teardown(void)
{
    dumps_forget();
    remove_folder();
}

static inline void dump_begin(struct dump *dump, const char *path)
{
    *dump = (struct dump){ 0 };
    ck_assert_int_eq(m3_writer_new(&dump->writer, path, &error), M3_OK);
}

static inline void dump_meta(struct dump *dump, const char *key, const char *value)
{
    ck_assert_int_eq(m3_writer_metadata(dump->writer, key, value, &error), M3_OK);
}

/* A dimension of -1 ends the shape. `data` is read by dump_end. */
static inline void dump_tensor(struct dump *dump, const char *name, enum m3_dtype dtype, const void *data, int64_t n0,
                               int64_t n1, int64_t n2)
{
    int64_t shape[] = { n0, n1, n2 }, count = 1;
    int rank = 0;
    while (rank < 3 && shape[rank] >= 0) count *= shape[rank++];
    ck_assert_int_lt(dump->count, DUMP_TENSORS);
    dump->data[dump->count] = data;
    dump->bytes[dump->count++] = (uint64_t)count * m3_dtype_bytes(dtype);
    ck_assert_int_eq(m3_writer_tensor(dump->writer, name, dtype, rank, shape, &error), M3_OK);
}

static inline void dump_end(struct dump *dump)
{
    ck_assert_int_eq(m3_writer_begin(dump->writer, &error), M3_OK);
    for (int i = 0; i < dump->count; i++)
        ck_assert_int_eq(m3_writer_write(dump->writer, dump->data[i], dump->bytes[i], &error), M3_OK);
    ck_assert_int_eq(m3_writer_commit(dump->writer, &error), M3_OK);
}

/* Writes a file with a single tap. */
static inline void dump_one(const char *path, const char *name, enum m3_dtype dtype, const void *data, int64_t n0,
                            int64_t n1, int64_t n2)
{
    struct dump dump;
    dump_begin(&dump, path);
    dump_tensor(&dump, name, dtype, data, n0, n1, n2);
    dump_end(&dump);
}

/* One F64 tap with both tolerances in the reference; the candidate has the same name. */
static inline void write_pair(const char *tap, const double *want, const double *got, int64_t n0, int64_t n1,
                              const char *f32_rel_l2, const char *f32_max)
{
    struct dump dump;
    char key[80];
    dump_begin(&dump, reference_path);
    dump_tensor(&dump, tap, M3_F64, want, n0, n1, -1);
    snprintf(key, sizeof key, "%s.f32_rel_l2", tap);
    if (f32_rel_l2 != NULL) dump_meta(&dump, key, f32_rel_l2);
    snprintf(key, sizeof key, "%s.f32_max", tap);
    if (f32_max != NULL) dump_meta(&dump, key, f32_max);
    dump_end(&dump);
    dump_one(candidate_path, tap, M3_F64, got, n0, n1, -1);
}

/* Compares the current files; returns the status of m3_compare. */
static inline int judge(void)
{
    dumps_forget();
    ck_assert_int_eq(m3_safetensors_open(&reference_file, reference_path, &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&candidate_file, candidate_path, &error), M3_OK);
    memset(&result, 0xFF, sizeof result);
    return m3_compare(&result, reference_file, candidate_file, &options, &error);
}

/* Judges, and returns the only stage. */
static inline const struct m3_finding *judge_one(void)
{
    ck_assert_int_eq(judge(), M3_OK);
    ck_assert_int_eq(result.count, 1);
    return &result.findings[0];
}

static inline int notes_say(const char *words)
{
    return result.notes.text != NULL && strstr(result.notes.text, words) != NULL;
}

static inline int error_says(const char *words) { return error.text != NULL && strstr(error.text, words) != NULL; }

#endif
