/* Operands cut out of the goldens (public PyTorch code in fp64), for every operator and every tap that it makes: the
 * golden's own value of the tap must pass as the result, and a wrong one must not. So an operand of another layer or
 * row, a weight of another tap, or a parameter that is not the model's, shows. */
#include "files.h"

#include <jansson.h>
#include <math.h>

#include "oracle/error/graph.h"
#include "oracle/error/profile.h"
#include "oracle/operators/check_file.h"
#include "oracle/operators/from_dump/from_dump.h"

static struct m3_error error;

/* `not_made`: taps that no operator makes from what this golden holds. */
static const struct {
    const char *model, *dump, *the_case, *not_made;
    int taps;                           /* that are judged */
} runs[] = {
    { "tiny/model", "tiny/golden.safetensors.gz", "tiny/case.safetensors", NULL, 0 },
    { "tiny/model", "vision/two.safetensors.gz", "vision/two_case.safetensors", NULL, 0 },
    { "tiny/model", "vision/two_none.safetensors.gz", "vision/two_case.safetensors", NULL, 0 },
    { "tiny/model", "vision/still.safetensors.gz", "vision/still_case.safetensors", NULL, 0 },
    { "tiny/model", "vision/video.safetensors.gz", "vision/video_case.safetensors", NULL, 0 },
    { "tiny/model", "vision/video_none.safetensors.gz", "vision/video_case.safetensors", NULL, 0 },
    { "mtp/model", "mtp/golden.safetensors.gz", "mtp/case.safetensors", NULL, 0 },
    { "mtp/model", "mtp/post_norm.safetensors.gz", "mtp/case.safetensors", NULL, 0 },
    { "mtp/model", "mtp/fused.safetensors.gz", "mtp/picture_case.safetensors", NULL, 0 },
    { "mtp/model", "mtp/additive.safetensors.gz", "mtp/case.safetensors", NULL, 0 },
    { "mtp/model", "mtp/zero_position0.safetensors.gz", "mtp/case.safetensors", NULL, 0 },
    { "mxfp8/model", "mxfp8/golden.safetensors.gz", "mxfp8/case.safetensors", NULL, 0 },
    { "f8block/model", "f8block/golden.safetensors.gz", "f8block/case.safetensors", NULL, 0 },
    { "block128/model", "block128/golden.safetensors.gz", "block128/case.safetensors", NULL, 0 },
    { "m2/model", "m2/golden.safetensors.gz", "m2/case.safetensors", NULL, 0 },
    { "m2/mtp_model", "m2/concat.safetensors.gz", "m2/mtp_case.safetensors", NULL, 0 },
    { "tiny/model", "readings/lse.safetensors.gz", "readings/case.safetensors", NULL, 0 },
};
enum { RUNS = sizeof runs / sizeof runs[0] };

static int cut(const char *op, int run, const char *tap, struct m3_from_dump_summary *summary)
{
    char model[64], dump[64], the_case[64];
    snprintf(model, sizeof model, "golden/%s", runs[run].model);
    snprintf(dump, sizeof dump, "golden/%s", runs[run].dump);
    snprintf(the_case, sizeof the_case, "golden/%s", runs[run].the_case);
    const struct m3_from_dump options = {
        .dump = dump, .model = model, .case_path = the_case, .taps = tap, .dtype = M3_DTYPES
    };
    m3_error_free(&error);
    error = (struct m3_error){ 0 };
    return m3_cases_from_dump(m3_operator_named(op), in_folder("cases"), &options, summary, NULL, &error);
}

/* ---- the golden's values as results */

struct output {
    char name[96], tap[96];
    int rank;
    int64_t shape[M3_MAX_RANK];
    const struct m3_tensor *want;
    int is_ids;
};

static int outputs_of(struct output *all, const struct m3_safetensors *cases, const struct m3_safetensors *golden)
{
    json_t *list = json_loads(m3_safetensors_metadata(cases, "cases"), 0, NULL), *entry, *shape, *size;
    const char *name;
    int count = 0;
    size_t i, k;
    json_array_foreach(list, i, entry)
    {
        json_object_foreach(json_object_get(entry, "outputs"), name, shape)
        {
            struct output *o = &all[count];
            const char *tap = json_string_value(json_object_get(json_object_get(entry, "taps"), name));
            ck_assert_ptr_nonnull(tap);
            *o = (struct output){ .want = m3_safetensors_find(golden, tap) };
            if (!o->want) continue;
            snprintf(o->name, sizeof o->name, "%d.%s", (int)json_integer_value(json_object_get(entry, "case")), name);
            snprintf(o->tap, sizeof o->tap, "%s", tap);
            int64_t elements = 1;
            json_array_foreach(shape, k, size) elements *= o->shape[o->rank++] = json_integer_value(size);
            ck_assert_msg(elements == o->want->count, "%s %s: %d elements", o->name, tap, (int)elements);
            o->is_ids = o->want->dtype == M3_I32;
            count++;
        }
    }
    json_decref(list);
    return count;
}

/* Output `wrong` with its middle element moved by 2 % of the largest, or its last id taken for another. */
static void write_results(const struct output *all, int count, int wrong)
{
    struct m3_writer *writer;
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("results"), &error), M3_OK);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(
            m3_writer_tensor(writer, all[i].name, all[i].want->dtype, all[i].rank, all[i].shape, &error), M3_OK);
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    for (int i = 0; i < count; i++) {
        const struct m3_tensor *t = all[i].want;
        unsigned char *bytes = malloc(t->bytes + 1);
        memcpy(bytes, t->data, t->bytes);
        if (i == wrong && all[i].is_ids) {
            ((int32_t *)bytes)[t->count - 1] = ((int32_t *)bytes)[t->count - 1] == 1000 ? 0 : 1000;
        } else if (i == wrong) {
            double most = 0, *x = (double *)bytes;
            ck_assert_int_eq(t->dtype, M3_F64);
            for (int64_t k = 0; k < t->count; k++)
                if (isfinite(x[k])) most = fmax(most, fabs(x[k]));
            int64_t at = t->count / 2;
            while (!isfinite(x[at])) at = (at + 1) % t->count;
            x[at] += 0.02 * most + 1e-3;
        }
        ck_assert_int_eq(m3_writer_write(writer, bytes, t->bytes, &error), M3_OK);
        free(bytes);
    }
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
}

/* The number of stages that pass; *failed: of the others that were given. Marks the taps that pass. */
static int judge(int *failed, struct output *all, int count, const struct m3_safetensors *cases_file, const char *op)
{
    struct m3_safetensors *results;
    struct m3_case_file cases;
    struct m3_file_check check;
    struct m3_profile *profile;
    int passed = 0;
    *failed = 0;
    ck_assert_int_eq(m3_safetensors_open(&results, in_folder("results"), &error), M3_OK);
    ck_assert_int_eq(m3_case_file_open(&cases, NULL, cases_file, &error), M3_OK);
    ck_assert_int_eq(m3_profile_open(&profile, "fp32", &error), M3_OK);
    ck_assert_msg(!m3_file_check(&check, &cases, results, profile, 1, &error), "%s: %s", op, error.text);
    for (int64_t i = 0; i < check.comparison.count; i++) {
        const struct m3_stage *stage = &check.comparison.stages[i];
        for (int k = 0; k < count; k++) {
            if (strcmp(all[k].name, stage->tap) != 0) continue;
            const int passes = stage->verdict == M3_VERDICT_PASS && !(stage->headroom > 1);
            if (!passes) fprintf(stderr, "%s %s (%s): verdict %d, %s\n", op, stage->tap, all[k].tap, stage->verdict,
                                 stage->note ? stage->note : "");
            passed += passes;
            *failed += !passes;
        }
    }
    m3_file_check_free(&check);
    m3_profile_close(profile);
    m3_case_file_close(&cases);
    m3_safetensors_close(results);
    return passed;
}

/* Goal:  every tap of every golden, from the operands that the cut gives, passes; none is left out. */
START_TEST(goldens_pass)
{
    struct m3_safetensors *golden, *cases;
    struct output *all = calloc(4096, sizeof *all);
    char path[64];
    snprintf(path, sizeof path, "golden/%s", runs[_i].dump);
    ck_assert_int_eq(m3_safetensors_open(&golden, path, &error), M3_OK);
    unsigned char *made = calloc((size_t)m3_safetensors_count(golden), 1);
    int wrong = 0, taps = 0, left_out = 0;
    for (int i = 0; i < m3_operator_rows(); i++) {
        const char *op = m3_operator_at(i)->name;
        struct m3_from_dump_summary summary;
        int failed;
        const int status = cut(op, _i, "*", &summary);
        if (status) fprintf(stderr, "RUN %d %s: %s", _i, op, error.text);
        if (status) continue;
        ck_assert_int_eq(m3_safetensors_open(&cases, in_folder("cases"), &error), M3_OK);
        const int count = outputs_of(all, cases, golden);
        write_results(all, count, -1);
        const int passed = judge(&failed, all, count, cases, op);
        wrong += failed;
        ck_assert_int_eq(passed + failed, count);
        for (int k = 0; k < count; k++)
            for (int64_t t = 0; t < m3_safetensors_count(golden); t++)
                made[t] |= strcmp(m3_safetensors_at(golden, t)->name, all[k].tap) == 0;
        m3_safetensors_close(cases);
    }
    for (int64_t t = 0; t < m3_safetensors_count(golden); t++) {
        enum m3_tap tap;
        int64_t layer;
        const char *name = m3_safetensors_at(golden, t)->name;
        if (m3_tap_parse(name, &tap, &layer)) continue;
        if (made[t] || m3_graph[tap].op == M3_OP_NONE || m3_graph[tap].op == M3_OP_INPUT) {
            taps += made[t];
            continue;
        }
        left_out++;
        fprintf(stderr, "RUN %d: not made: %s\n", _i, name);
    }
    fprintf(stderr, "RUN %d %s: taps %d, left out %d, wrong %d\n", _i, path, taps, left_out, wrong);
    ck_assert_int_eq(wrong, 0);
    free(made);
    free(all);
    m3_safetensors_close(golden);
}
END_TEST

Suite *m3_suite(void)
{
    Suite *suite = suite_create("op from dump");
    TCase *tests = tcase_create("goldens");
    tcase_add_checked_fixture(tests, make_folder, remove_folder);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, goldens_pass, 0, RUNS);
    suite_add_tcase(suite, tests);
    return suite;
}
