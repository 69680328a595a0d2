/* Settings, by hand.
 *
 * Seen to fail with: K of a setting decimal; card before GPU lost; the default of ikv. */
#include <check.h>

#include "estimate/documents/documents.h"

TIMEOUT(120);

TEST(settings)
{
    struct m3_error error = { 0 };
    struct m3_document_setting s;
    ck_assert_int_eq(m3_document_setting_parse(&s, "m3", &error), M3_OK);
    ck_assert_str_eq(s.model, "m3");
    ck_assert_int_eq(s.named, 0);
    ck_assert(s.request.context == 0 && s.request.batch == 1 && s.request.gpus == 1 && !s.request.gpu);
    ck_assert(s.request.activation_bytes == 5368709120 && s.request.mtp_modules == 0 && !s.request.weights_asked);
    ck_assert_str_eq(s.request.weights->name, "bf16");
    ck_assert_str_eq(s.request.index_kv->name, "bf16");

    static const char all[] = "m2.7 T=128K B=4 w=int4 kv=fp8 card=reported gpu=h200 gpus=8 act=0 mtp=3";
    ck_assert_int_eq(m3_document_setting_parse(&s, all, &error), M3_OK);
    ck_assert_str_eq(s.model, "m2.7");
    ck_assert(s.request.context == 131072 && s.request.batch == 4 && s.request.gpus == 8);
    ck_assert(s.request.activation_bytes == 0 && s.request.mtp_modules == 3 && s.request.weights_asked);
    ck_assert_int_eq(s.request.card_bytes, 150754820096);
    ck_assert_str_eq(s.request.weights->name, "int4");
    ck_assert_str_eq(s.request.kv->name, "fp8");
    ck_assert_str_eq(s.request.index_kv->name, "fp8");
    ck_assert_str_eq(s.request.gpu->name, "h200");
    ck_assert_uint_eq(s.named, 1023 & ~M3_NAMES_INDEX_KV);

    ck_assert_int_eq(m3_document_setting_parse(&s, "m3 T=1M ikv=fp8 gpu=h100", &error), M3_OK);
    ck_assert(s.request.context == 1048576 && s.request.card_bytes == 80000000000);
    ck_assert_str_eq(s.request.kv->name, "bf16");
    ck_assert_str_eq(s.request.index_kv->name, "fp8");
    ck_assert_uint_eq(s.named, M3_NAMES_CONTEXT | M3_NAMES_INDEX_KV | M3_NAMES_GPU);
    ck_assert_int_eq(m3_document_setting_parse(&s, "m3 T=4097 gpu=a100 card=123456789", &error), M3_OK);
    ck_assert(s.request.context == 4097 && s.request.card_bytes == 123456789);

    /* clang-format off */
    static const char *const refused[] = {
        "", "m4", "M3", "m3 ", "m3  T=1", "m3 T", "m3 T=", "m3 T=0", "m3 T=-1", "m3 T=1G", "m3 T=1MM", "m3 T=1.5",
        "m3 T=1 T=1", "m3 T=99999999999999999999", "m3 T=8589934592M", "m3 B=0", "m3 w=bf17", "m3 kv=", "m3 gpu=v100",
        "m3 gpus=8", "m3 card=vendor", "m3 gpu=b200 card=reported", "m3 gpu=h200 card=big", "m3 gpu=h200 card=0",
        "m3 act=-1", "m3 mtp=17", "m3 t=1", "m3 =1", "T=1 m3",
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        ck_assert_msg(m3_document_setting_parse(&s, refused[i], &error) == M3_BAD_INPUT, "\"%s\"", refused[i]);
    m3_error_free(&error);
}
