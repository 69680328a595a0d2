/* For tests of reports: a report as a string, and a comparison with a stage of every kind. Include after dumps.h. */
#ifndef M3_TESTS_PRINTED_H
#define M3_TESTS_PRINTED_H

#include <math.h>

#include "oracle/report/report.h"

/* A report as a string; the caller frees it. */
static inline char *printed(int (*report)(FILE *, const struct m3_judgement *, enum m3_report_extent,
                                          struct m3_error *),
                            enum m3_report_extent extent)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(report(out, &result, extent, &error), M3_OK);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

/* A report that is written to a file, about the two judged files. The caller frees it. */
static inline char *printed_file(int (*report)(FILE *, const struct m3_report_subject *, struct m3_error *))
{
    const struct m3_report_subject subject = { .command = "compare",
                                               .judgement = &result,
                                               .reference = reference_file,
                                               .candidate = candidate_file,
                                               .spec = "SPEC.md" };
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(report(out, &subject, &error), M3_OK);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_uint_eq(strlen(text), length);
    return text;
}

/* Two dumps with one stage of each kind:
 *   embed               off by 2^-20 of 1, where 4 * 2^-20 + 1e-7 is allowed
 *   layers.0.mid        [2,3] against [2,2]
 *   layers.3.attn_lse   NaN for 0.5 in the second row
 *   layers.3.attn_out   an F32 candidate: off by 1/4 of 1 in two of six elements
 *   layers.3.moe.experts  expert 9 in place of 2 in row 1
 *   logits              only in the reference */
static inline void write_kinds(void)
{
    const double one[2] = { 1, 0 }, near_one[2] = { 1 + 0x1p-20, 0 }, lse[2] = { 1, 0.5 }, lse_got[2] = { 1, NAN };
    const double out[6] = { 0.5, 1, -1, 0.25, 0.125, 0 };
    const float out_got[6] = { 0.5f, 1, -0.75f, 0.25f, 0.375f, 0 };
    const int32_t experts[4] = { 0, 1, 2, 3 }, experts_got[4] = { 1, 0, 3, 9 };
    struct dump dump;
    dump_begin(&dump, reference_path);
    dump_tensor(&dump, "embed", M3_F64, one, 1, 2, -1);
    dump_meta(&dump, "embed.f32_rel_l2", "9.5367431640625e-07");
    dump_meta(&dump, "embed.f32_max", "9.5367431640625e-07");
    dump_tensor(&dump, "layers.0.mid", M3_F64, out, 2, 3, -1);
    dump_tensor(&dump, "layers.3.attn_lse", M3_F64, lse, 2, 1, -1);
    dump_tensor(&dump, "layers.3.attn_out", M3_F64, out, 2, 3, -1);
    dump_tensor(&dump, "layers.3.moe.experts", M3_I32, experts, 2, 2, -1);
    dump_tensor(&dump, "logits", M3_F64, one, 1, 2, -1);
    dump_meta(&dump, "model_sha256", "aa");
    dump_meta(&dump, "case_sha256", "bb");
    dump_end(&dump);
    dump_begin(&dump, candidate_path);
    dump_tensor(&dump, "embed", M3_F64, near_one, 1, 2, -1);
    dump_tensor(&dump, "layers.0.mid", M3_F64, out, 2, 2, -1);
    dump_tensor(&dump, "layers.3.attn_lse", M3_F64, lse_got, 2, 1, -1);
    dump_tensor(&dump, "layers.3.attn_out", M3_F32, out_got, 2, 3, -1);
    dump_tensor(&dump, "layers.3.moe.experts", M3_I32, experts_got, 2, 2, -1);
    dump_meta(&dump, "model_sha256", "aa");
    dump_meta(&dump, "case_sha256", "bb");
    dump_end(&dump);
}

#endif
