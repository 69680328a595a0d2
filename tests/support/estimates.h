/* Estimates of models in golden/, and comparison of their figures with literals. Include in one test file. */
#ifndef M3_TESTS_ESTIMATES_H
#define M3_TESTS_ESTIMATES_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "estimate/estimate.h"

#define M3 "golden/configs/minimax-m3.json"
#define M3_MXFP8 "golden/configs/minimax-m3-mxfp8.json"

enum { K = 1024, M = 1024 * 1024 };

static inline void read_config(struct m3_config *config, const char *path)
{
    struct m3_error notes = { 0 }, error = { 0 };
    int status = m3_config_read(config, path, &notes, &error);
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
    m3_error_free(&notes);
}

static inline struct m3_estimate_request request(int64_t context, int64_t batch, const char *weights, const char *kv)
{
    return (struct m3_estimate_request){ .context = context,
                                         .batch = batch,
                                         .weights = m3_format_named(weights),
                                         .kv = m3_format_named(kv),
                                         .index_kv = m3_format_named(kv),
                                         .activation_bytes = 5368709120,
                                         .gpus = 1 };
}

static inline struct m3_estimate estimate(const struct m3_config *config, const struct m3_estimate_request *request)
{
    struct m3_estimate e;
    struct m3_error error = { 0 };
    int status = m3_estimate(&e, config, request, &error);
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
    return e;
}

/* A figure of an estimate by its key. */
static inline int64_t whole(const struct m3_config *config, const struct m3_estimate_request *request, const char *key)
{
    struct m3_estimate e = estimate(config, request);
    return m3_whole(&e, key);
}

static inline double quantity(const struct m3_config *config, const struct m3_estimate_request *request,
                              const char *key)
{
    struct m3_estimate e = estimate(config, request);
    return m3_quantity(&e, key);
}

/* A key of the summary and the whole number that it must have. */
struct literal {
    const char *key;
    int64_t value;
};

static inline void check_literals(const struct m3_estimate *e, const struct literal *literals, size_t count)
{
    json_t *summary = m3_estimate_json(e);
    for (size_t i = 0; i < count; i++) {
        const json_t *value = m3_estimate_value(summary, literals[i].key);
        ck_assert_msg(json_is_integer(value), "%s is no whole number", literals[i].key);
        ck_assert_msg(json_integer_value(value) == literals[i].value, "%s: got %lld, expected %lld", literals[i].key,
                      (long long)json_integer_value(value), (long long)literals[i].value);
    }
    json_decref(summary);
}

#define CHECK(e, literals) check_literals(e, literals, sizeof(literals) / sizeof *(literals))

/* Checks that both agree to `decimals` decimals. */
static inline void check_decimals(double got, double expected, int decimals, const char *what)
{
    ck_assert_msg(fabs(got - expected) <= 0.5000001 * pow(10, -decimals), "%s: got %.12g, expected %.12g", what, got,
                  expected);
}

#endif
