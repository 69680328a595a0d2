/* Semantics fields by name. Seen to fail with the second name of a field taken for the first. */
#include <check.h>
#include <stdlib.h>

#include "model/semantics.h"

static struct m3_error error;

TEST(fields)
{
    struct m3_semantics s = { .local_blocks = 1 };
    static const char *const settings[] = { "selection=union", "pool=lse",       "index_scale=rsqrt",
                                            "gate_clamp=both", "init_blocks=3",  "local_blocks=0",
                                            "local_rule=own",  "rope_angle=f32", "vision_boundary=none" };
    char *json = m3_semantics_json(&s);
    ck_assert_str_eq(json, "{}");
    free(json);
    for (int i = 0; i < 9; i++) ck_assert_int_eq(m3_semantics_set(&s, settings[i], &error), M3_OK);
    ck_assert(s.selection == M3_SELECT_UNION && s.pool == M3_POOL_LSE && s.index_scale == M3_INDEX_SCALE_RSQRT);
    ck_assert(s.gate_clamp == M3_GATE_CLAMP_BOTH && s.init_blocks == 3 && s.local_blocks == 0);
    ck_assert(s.local_rule == M3_LOCAL_OWN && s.rope_angle == M3_ANGLE_F32);
    ck_assert(s.vision_boundary == M3_BOUNDARY_NONE);
    json = m3_semantics_json(&s);
    ck_assert_str_eq(json,
                     "{\"selection\":\"union\",\"pool\":\"lse\",\"index_scale\":\"rsqrt\",\"gate_clamp\":\"both\","
                     "\"init_blocks\":3,\"local_blocks\":0,\"local_rule\":\"own\",\"rope_angle\":\"f32\","
                     "\"vision_boundary\":\"none\"}");
    free(json);
    ck_assert_int_eq(m3_semantics_set(&s, "selection=group", &error), M3_OK);
    ck_assert(s.selection == M3_SELECT_GROUP);
}

/* A number, and which noise. Seen to fail with the number read as an integer. */
TEST(noise)
{
    struct m3_semantics s = { .local_blocks = 1 };
    ck_assert_int_eq(m3_semantics_set(&s, "jitter=0.01", &error), M3_OK);
    ck_assert_int_eq(m3_semantics_set(&s, "jitter_seed=7", &error), M3_OK);
    ck_assert(s.jitter == 0.01 && s.jitter_seed == 7);
    char *json = m3_semantics_json(&s);
    ck_assert_str_eq(json, "{\"jitter\":0.01,\"jitter_seed\":7}");
    free(json);
    ck_assert_int_eq(m3_semantics_set(&s, "jitter=1", &error), M3_OK);
    ck_assert(s.jitter == 1);
}

TEST(refused)
{
    /* clang-format off */
    static const char *const wrong[] = { "pool", "pool=", "pool=mean", "=max", "poo=max", "pools=max", "init_blocks=-1",
                                         "init_blocks=x", "init_blocks=", "init_blocks=1 ", "",
                                         "jitter=", "jitter=-0.1", "jitter=1.01", "jitter=nan", "jitter=0.1x",
                                         "jitter_seed=-1", "jitter_seed=0.5" };
    /* clang-format on */
    struct m3_semantics s = { .local_blocks = 1 };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        ck_assert_msg(m3_semantics_set(&s, wrong[i], &error) == M3_USAGE, "%s", wrong[i]);
    ck_assert_int_eq(error.count, (int)(sizeof wrong / sizeof wrong[0]));
}

/* Goal:  what a dump says is read back as it was; what cannot be read says nothing.
 * Seen to fail with numbers left out, and with local_blocks 0 where nothing is said. */
TEST(read_back)
{
    static const char *const said[] = {
        "{}",
        "{\"selection\":\"shared\",\"init_blocks\":3,\"local_blocks\":0}",
        "{\"mtp_zero_position0\":\"true\",\"jitter\":0.01,\"jitter_seed\":7}",
    };
    static const char *const nothing[] = { "", "[]", "{\"pool\"",
                                           "{\"pool\":\"mean\",\"what\":[1],\"init_blocks\":-1}" };
    struct m3_semantics s;
    for (int i = 0; i < 3; i++) {
        m3_semantics_read(&s, said[i]);
        char *json = m3_semantics_json(&s);
        ck_assert_str_eq(json, said[i]);
        free(json);
    }
    m3_semantics_read(&s, "{\"local_blocks\":\"2\",\"mtp_zero_position0\":true,\"pool\":\"lse\"}");
    ck_assert(s.local_blocks == 2 && s.pool == M3_POOL_LSE);
    for (int i = 0; i < 5; i++) {
        m3_semantics_read(&s, i < 4 ? nothing[i] : NULL);
        char *json = m3_semantics_json(&s);
        ck_assert_str_eq(json, "{}");
        free(json);
    }
}
