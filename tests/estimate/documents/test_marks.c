/* Marks: which errata an estimate of M3 shows.
 *
 * Seen to fail with: marks for another context, batch or number of modules, for a sum of keys, or twice. */
#include "documented.h"

TIMEOUT(120);

static struct m3_mark marks[M3_MOST_MARKS];

/* Of M3, as `r` asks; -1 if a mark is about a figure of another value than the estimate's. */
static int marks_for(const struct m3_estimate_request *r)
{
    struct m3_error error = { 0 };
    struct m3_estimate e = estimate(&loaded[0].own, r);
    json_t *summary = m3_estimate_json(&e);
    int count, status = m3_estimate_marks(marks, &count, &e, summary, &error);
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
    for (int i = 0; i < count; i++) {
        const json_t *value = m3_estimate_value(summary, marks[i].key), *quotient = json_object_get(value, "value");
        double here = json_number_value(quotient ? quotient : value);
        int whole = !strchr(marks[i].row->formula, '/');
        ck_assert_msg(here > 0 && (!whole || fabs(marks[i].judgement.ours - here) <= 1e-12 * here), "%s: %.17g, %.17g",
                      marks[i].key, here, marks[i].judgement.ours);
        ck_assert_int_eq(marks[i].judgement.verdict, M3_REPRODUCTION_DIFFERS);
    }
    json_decref(summary);
    return count;
}

static int marked(int count, const char *erratum, const char *key)
{
    int found = 0;
    for (int i = 0; i < count; i++)
        found += strcmp(marks[i].row->erratum, erratum) == 0 && strcmp(marks[i].key, key) == 0;
    return found;
}

TEST(marks_of_a_request)
{
    load();
    struct m3_estimate_request r = request(M, 1, "bf16", "bf16");
    int count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E0-55", "flops_decode.projections"), 2);        /* a layer, all layers */
    ck_assert_int_eq(marked(count, "E3-18", "flops_decode.total"), 1);              /* printed again in 6.6, 7, 7.5 */
    ck_assert_int_eq(marked(count, "E3-10", "params_total"), 2);                    /* 427.2 and 428 */
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 1);                  /* a formula of one sequence */
    ck_assert_int_eq(marked(count, "E3-13", "ratios.layer_attention"), 1);
    ck_assert_int_eq(marked(count, "E3-48", "arithmetic_intensity"), 1);
    ck_assert_int_eq(marked(count, "E0-50", "flops_decode.msa_main"), 1);
    ck_assert_int_eq(marked(count, "E3-12", "flops_decode.full_attention"), 0);     /* its formula has no key */
    ck_assert_int_eq(marked(count, "E3-46", "decode_read_bytes.kv_full"), 0);       /* a sum of three */
    ck_assert_int_eq(marked(count, "E3-32", "max_batch"), 0);

    r.context = 128 * K;                                                            /* T is another */
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E0-55", "flops_decode.projections"), 2);
    ck_assert_int_eq(marked(count, "E3-18", "flops_decode.total"), 0);
    ck_assert_int_eq(marked(count, "E0-50", "flops_decode.msa_main"), 0); /* though the figure is the same */
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);

    r = request(M, 2, "bf16", "bf16"); /* two sequences */
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes_per_sequence.total"), 1);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);
    ck_assert_int_eq(marked(count, "E3-48", "arithmetic_intensity"), 0);
    ck_assert_int_eq(marked(count, "E3-47", "decode_read_bytes.weights"), 0);

    r = request(M, 1, "int4", "fp8"); /* other formats, cards */
    r.gpu = m3_gpu_named("h200");
    r.gpus = 8;
    r.card_bytes = 141000000000;
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);
    ck_assert_int_eq(marked(count, "E3-23", "kv_bytes.total"), 1); /* in FP8 */
    ck_assert_int_eq(marked(count, "E3-32", "max_batch"), 1);
    ck_assert_int_eq(marked(count, "E3-10", "weight_bytes"), 0);
    r.card_bytes = 143771 * (int64_t)M;
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-32", "max_batch"), 0);

    r = request(M, 1, "bf16", "bf16"); /* not named, but it matters */
    r.mtp_modules = 1;
    count = marks_for(&r);
    ck_assert_int_eq(marked(count, "E3-10", "params_total"), 0);
    ck_assert_int_eq(marked(count, "E3-35", "kv_bytes.total"), 0);
    ck_assert_int_eq(marked(count, "E3-18", "flops_decode.total"), 1);
    unload();
}

TEST(no_marks_of_other_models)
{
    load();
    loaded[0].own.max_positions--;
    struct m3_estimate_request r = request(4096, 1, "bf16", "bf16");
    ck_assert_int_eq(marks_for(&r), 0);
    unload();
}
