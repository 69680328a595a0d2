/* Which rows of a long dump are judged (SPEC 7.17). */
#include "oracle/judge/sample/sample.h"

#include <string.h>

#include "check.h"

enum { T = 200, E = 8, K = 2, BLOCKS = 50 };

static struct m3_model model;
static struct m3_layer layer;
static struct m3_safetensors *dump;
static struct m3_sample sample;
static struct m3_error error;
static float scores[T * E], gates[T * 3], ones[T * 3];
static int32_t experts[T * K];

/* One MoE layer of 8 experts, blocks of 4 keys: expert 7 in row 77 alone, the nearest scores in row 123, a gate beyond the
 * limit in row 150. */
static void setup(void)
{
    static const int64_t wide[] = { T, 3 }, of_experts[] = { T, E }, chosen[] = { T, K };
    model = (struct m3_model){ .layers = &layer };
    model.config.layers = 1, model.config.E = E, model.config.K = K, model.config.N = 3, model.config.block = 4;
    model.config.swiglu_limit = 7;
    for (int t = 0; t < T; t++) {
        for (int e = 0; e < E; e++) scores[t * E + e] = (float)(e + 1) / 10;
        for (int k = 0; k < K; k++) experts[t * K + k] = (t + k) % 7;
        for (int i = 0; i < 3; i++) gates[t * 3 + i] = 1, ones[t * 3 + i] = 1;
    }
    scores[123 * E + 5] = 0.6999F;
    experts[77 * K] = 7;
    gates[150 * 3 + 2] = 7.5F;
    ck_assert_int_eq(m3_safetensors_make(&dump, "dump", &error), 0);
    m3_safetensors_add(dump, "layers.0.moe.router_scores", M3_F32, 2, of_experts, scores, &error);
    m3_safetensors_add(dump, "layers.0.moe.experts", M3_I32, 2, chosen, experts, &error);
    m3_safetensors_add(dump, "layers.0.mlp.gate", M3_F32, 2, wide, gates, &error);
    m3_safetensors_add(dump, "layers.0.k_rope", M3_F32, 2, wide, ones, &error);
    m3_safetensors_add(dump, "layers.0.attn_norm", M3_F32, 2, wide, gates, &error);
    m3_safetensors_add(dump, "mtp.0.eh_proj", M3_F32, 2, wide, ones, &error);
    ck_assert_int_eq(m3_safetensors_complete(dump, &error), 0);
}

static void teardown(void)
{
    m3_sample_free(&sample);
    m3_safetensors_close(dump);
    m3_error_free(&error);
}

FIXTURE(setup, teardown);

static int choose(const char *text)
{
    struct m3_sample_wish wish;
    const int status = m3_sample_parse(&wish, text, &error);
    return status ? status : m3_sample_choose(&sample, &wish, dump, &model, T, &error);
}

static void count_is(int64_t count)
{
    int64_t chosen = 0;
    for (int64_t r = 0; r < T; r++) chosen += sample.chosen[r];
    ck_assert_int_eq(sample.count, count);
    ck_assert_int_eq(chosen, count);
    ck_assert_int_eq(sample.of, T);
}

/* Claim: as many rows as asked for, among them those where operators fail, and a row of the rare expert; the same twice.
 * Seen to fail without each of the five kinds of rows. */
TEST(rows_where_operators_fail)
{
    static const int64_t wanted[] = { 0, 1, 3, 4, 77, 123, 150, T - 4, T - 1 };
    unsigned char first[T];
    ck_assert_int_eq(choose("100"), 0);
    count_is(100);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        ck_assert_msg(sample.chosen[wanted[i]], "row %d is not chosen", (int)wanted[i]);
    memcpy(first, sample.chosen, sizeof first);
    m3_sample_free(&sample);
    ck_assert_int_eq(choose("100"), 0);
    ck_assert_int_eq(memcmp(first, sample.chosen, sizeof first), 0);
}

/* Claim: however few rows, exactly so many; more than there are: all. */
TEST(how_many)
{
    static const int counts[] = { 1, 2, 7, 33, 199, 200, 5000 };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", counts[i]);
        ck_assert_int_eq(choose(text), 0);
        count_is(counts[i] < T ? counts[i] : T);
        m3_sample_free(&sample);
    }
}

/* Claim: a list is taken as it stands, a row that is there twice once. */
TEST(a_list)
{
    ck_assert_int_eq(choose("3:6,199,4,0"), 0);
    count_is(5);
    ck_assert(sample.chosen[0] && sample.chosen[3] && sample.chosen[4] && sample.chosen[5] && sample.chosen[199]);
}

static const char *const bad[] = { "",
                                   "0",
                                   "-3",
                                   "x",
                                   "4:",
                                   "3:2",
                                   "3:3",
                                   ":4",
                                   "0:201",
                                   "200,",
                                   "5:6:7",
                                   ",",
                                   "1,,2",
                                   "99999999999999999999:5",
                                   "99999999999999999999" };

LOOP_TEST(bad_lists, sizeof bad / sizeof bad[0])
{
    ck_assert_msg(choose(bad[_i]) == M3_USAGE, "\"%s\" was taken", bad[_i]);
    ck_assert_ptr_nonnull(strstr(error.text, "--rows: got "));
}

/* Claim: the dump of the rows has their values, all keys, no module, and says which rows they are.
 * Seen to fail with keys of the chosen rows alone. */
TEST(the_dump_of_the_rows)
{
    int64_t n = 0;
    ck_assert_int_eq(choose("150,7:9"), 0);
    ck_assert_int_eq(m3_sample_take(&dump, &sample, &error), 0);
    const struct m3_tensor *norm = m3_safetensors_find(dump, "layers.0.attn_norm"),
                           *rows = m3_safetensors_find(dump, "rows"),
                           *keys = m3_safetensors_find(dump, "layers.0.k_rope"),
                           *places = m3_safetensors_find(dump, "cache.rows");
    ck_assert(norm && rows && keys && places && !m3_safetensors_find(dump, "mtp.0.eh_proj"));
    ck_assert_int_eq(norm->shape[0], 3);
    ck_assert_int_eq(rows->count, 3);
    for (int64_t r = 0; r < T; r++) {
        if (!sample.chosen[r]) continue;
        ck_assert(m3_decode(rows->dtype, rows->data, n) == (double)r);
        ck_assert(m3_decode(norm->dtype, norm->data, 3 * n + 2) == (double)gates[r * 3 + 2]);
        n++;
    }
    ck_assert(keys->shape[0] == T && places->count == T);
}
