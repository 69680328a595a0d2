/* Operands cut out of the goldens (public PyTorch code in fp64), for every operator and every tap that it makes: the
 * golden's own value of the tap must pass as the result, and a wrong one must not. So an operand of another layer or
 * row, a weight of another tap, or a parameter that is not the model's, shows. */
#include "program.h"
#include "slice.h"

#include <jansson.h>
#include <math.h>

#include "oracle/error/operators.h"
#include "oracle/error/profile.h"
#include "oracle/operators/check_file.h"
#include "oracle/operators/from_dump/from_dump.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

static struct m3_error error;

/* A golden that holds every operand is the dump itself. `rerun`: it does not, and what it lacks comes from a run in
 * double (with that reading), which differs from the golden by 1e-14; the results are still the golden's. `taps`: how
 * many are judged. `not_made`: taps that no operator makes. */
static const struct {
    const char *model, *golden, *the_case, *rerun;
    int taps;
    const char *not_made;
} runs[] = {
    { "tiny/model", "tiny/golden", "tiny/case", NULL, 130, "" },
    { "tiny/model", "vision/two", "vision/two_case", NULL, 38, "logits projector.merged " },
    { "tiny/model", "vision/two_none", "vision/two_case", NULL, 38, "logits projector.merged " },
    { "tiny/model", "vision/still", "vision/still_case", NULL, 38, "logits projector.merged " },
    { "tiny/model", "vision/video", "vision/video_case", NULL, 37, "fused logits projector.merged " },
    { "tiny/model", "vision/video_none", "vision/video_case", NULL, 37, "fused logits projector.merged " },
    { "mtp/model", "mtp/golden", "mtp/case", NULL, 122, "" },
    { "mtp/model", "mtp/post_norm", "mtp/case", "mtp_handover=post_norm", 5, "" },
    { "mtp/model", "mtp/fused", "mtp/picture_case", "mtp_embed=fused", 11, "" },
    { "mtp/model", "mtp/additive", "mtp/case", "mtp_join=additive", 8, "" },
    { "mtp/model", "mtp/zero_position0", "mtp/case", "mtp_zero_position0=true", 11, "" },
    { "mxfp8/model", "mxfp8/golden", "mxfp8/case", "", 52, "" },
    { "f8block/model", "f8block/golden", "f8block/case", "", 52, "" },
    /* A dump of some rows: operators that read no other row. */
    { "mxfp8/model", "mxfp8/golden", "mxfp8/case", NULL, 45,
      "fused layers.0.attn layers.0.attn_lse layers.1.attn layers.1.attn_lse layers.1.index.block_scores "
      "layers.1.index.blocks " },
    { "m2/model", "m2/golden", "m2/case", "", 63, "fused layers.0.mlp layers.1.mlp layers.2.mlp " },
    { "m2/model", "m2/positions", "m2/positions_case", "", 10, "" },
    { "m2/mtp_model", "m2/concat", "m2/mtp_case", "", 48,
      "mtp.0.eh_proj mtp.0.layer.mlp mtp.1.eh_proj mtp.1.layer.mlp " },
    { "tiny/model", "readings/lse_rsqrt", "readings/case", "pool=lse --set index_scale=rsqrt", 14, "" },
    { "tiny/model", "readings/shared", "readings/case", "selection=shared", 14, "" },
    { "tiny/model", "readings/union", "readings/case", "selection=union", 14, "" },
    { "tiny/model", "readings/clamp_both", "readings/case", "gate_clamp=both", 10, "" },
    { "tiny/model", "readings/init2_local2", "readings/case", "init_blocks=2 --set local_blocks=2", 14, "" },
    { "tiny/model", "readings/local2_own", "readings/case", "local_blocks=2 --set local_rule=own", 10, "" },
    { "tiny/model", "readings/mask", "readings/mask_case", "", 23, "" },
};
enum { RUNS = sizeof runs / sizeof runs[0] };

/* The rows that a golden holds, as --rows takes them; NULL: all. */
static const char *rows_of(char text[512], const struct m3_safetensors *golden)
{
    const struct m3_tensor *rows = m3_safetensors_find(golden, "rows");
    int used = 0;
    for (int64_t i = 0; rows && i < rows->count; i++)
        used += snprintf(text + used, (size_t)(512 - used), "%s%d", i > 0 ? "," : "",
                         (int)m3_decode(M3_I32, rows->data, i));
    return rows ? text : NULL;
}

static int cut(const char *op, int run, const char *tap, const char *rows)
{
    char model[64], dump[96], the_case[96];
    struct m3_from_dump_summary summary;
    snprintf(model, sizeof model, "golden/%s", runs[run].model);
    snprintf(the_case, sizeof the_case, "golden/%s.safetensors", runs[run].the_case);
    snprintf(dump, sizeof dump, "golden/%s.safetensors.gz", runs[run].golden);
    if (runs[run].rerun) snprintf(dump, sizeof dump, "%s/dump", folder);
    const struct m3_from_dump options = {
        .dump = dump, .model = model, .case_path = the_case, .taps = tap, .rows = rows, .dtype = M3_DTYPES
    };
    m3_error_free(&error);
    error = (struct m3_error){ 0 };
    return m3_cases_from_dump(m3_operator_named(op), in_folder("cases"), &options, &summary, NULL, &error);
}

/* Puts the golden's rows of a tap in the place of those of the run. */
static void put_golden(unsigned char *bytes, const struct m3_tensor *t, const struct m3_safetensors *golden)
{
    const struct m3_tensor *g = m3_safetensors_find(golden, t->name), *rows = m3_safetensors_find(golden, "rows");
    enum m3_tap tap;
    int64_t layer;
    if (!g || g->count == 0 || g->dtype != t->dtype || m3_tap_parse(t->name, &tap, &layer)) return;
    if (m3_tap_table[tap].kind == M3_KIND_COUNTS) return;
    const size_t width = (size_t)(g->bytes / (uint64_t)g->shape[0]);
    for (int64_t r = 0; r < g->shape[0]; r++) {
        const int64_t at = rows ? (int64_t)m3_decode(M3_I32, rows->data, r) : r;
        ck_assert_int_lt(at, t->shape[0]);
        memcpy(bytes + (size_t)at * width, (const char *)g->data + (size_t)r * width, width);
    }
}

static void write_dump(const struct m3_safetensors *run, const struct m3_safetensors *golden)
{
    static const char *const keys[] = { "format", "precision", "semantics", "model_sha256", "case_sha256" };
    struct m3_writer *writer;
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("dump"), &error), M3_OK);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        ck_assert_int_eq(m3_writer_metadata(writer, keys[i], m3_safetensors_metadata(run, keys[i]), &error), M3_OK);
    for (int64_t i = 0; i < m3_safetensors_count(run); i++) {
        const struct m3_tensor *t = m3_safetensors_at(run, i);
        ck_assert_int_eq(m3_writer_tensor(writer, t->name, t->dtype, t->rank, t->shape, &error), M3_OK);
    }
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    for (int64_t i = 0; i < m3_safetensors_count(run); i++) {
        const struct m3_tensor *t = m3_safetensors_at(run, i);
        unsigned char *bytes = malloc(t->bytes + 1);
        if (t->bytes) memcpy(bytes, t->data, t->bytes);
        put_golden(bytes, t, golden);
        ck_assert_int_eq(m3_writer_write(writer, bytes, t->bytes, &error), M3_OK);
        free(bytes);
    }
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
}

static void open_run(struct m3_safetensors **golden, int run)
{
    char path[96];
    struct m3_safetensors *all;
    const char *set = runs[run].rerun;
    snprintf(path, sizeof path, "golden/%s.safetensors.gz", runs[run].golden);
    ck_assert_int_eq(m3_safetensors_open(golden, path, &error), M3_OK);
    if (!set) return;
    const int status = m3ref("run golden/%s --case golden/%s.safetensors --precision f64 --dump %s %s %s",
                             runs[run].model, runs[run].the_case, in_folder("run"), *set ? "--set" : "", set);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(m3_safetensors_open(&all, in_folder("run"), &error), M3_OK);
    write_dump(all, *golden);
    m3_safetensors_close(all);
}

/* ---- the golden's values as results */

struct output {
    char name[96], tap[96];
    int rank;
    int64_t shape[M3_MAX_RANK];
    const struct m3_tensor *want, *x, *rows;    /* x: the operand of rope */
    size_t bytes;
    int is_ids;
};

static int outputs_of(struct output *all, const struct m3_safetensors *cases, const struct m3_safetensors *golden)
{
    json_t *list = json_loads(m3_safetensors_metadata(cases, "cases"), 0, NULL), *entry, *shape, *size;
    const char *name;
    char operand[96];
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
            const json_t *rows = json_object_get(entry, "rows");
            int64_t elements = 1;
            json_array_foreach(shape, k, size)
            {
                o->shape[o->rank] = json_integer_value(size);
                if (k == 0 && json_is_array(rows)) o->shape[0] = (int64_t)json_array_size(rows);
                elements *= o->shape[o->rank++];
            }
            /* The rows of a module are the first ones of a tap of the module before it. */
            ck_assert_msg(elements <= o->want->count, "%s %s: %d elements", o->name, tap, (int)elements);
            o->bytes = (size_t)elements * m3_dtype_bytes(o->want->dtype);
            o->is_ids = o->want->dtype == M3_I32;
            snprintf(operand, sizeof operand, "%d.x", (int)json_integer_value(json_object_get(entry, "case")));
            if (strcmp(m3_safetensors_metadata(cases, "operator"), "rope") == 0)
                o->x = m3_safetensors_find(cases, operand);
            if (json_is_array(rows)) o->rows = m3_safetensors_find(golden, "rows");
            count++;
        }
    }
    json_decref(list);
    return count;
}

/* Channels that are not turned must equal the operand, which may come from a run that differs by 1e-14. */
static void copy_channels(unsigned char *bytes, const struct output *o)
{
    const size_t width = o->bytes / sizeof(double) / (size_t)o->shape[0];
    double *y = (double *)bytes;
    for (int64_t r = 0; o->x && r < o->shape[0]; r++) {
        const int64_t at = o->rows ? (int64_t)m3_decode(M3_I32, o->rows->data, r) : r;
        const double *x = (const double *)o->x->data + (size_t)at * width;
        for (size_t i = 0; i < width; i++)
            if (fabs(y[(size_t)r * width + i] - x[i]) <= 1e-12) y[(size_t)r * width + i] = x[i];
    }
}

/* Moves the middle element by 2 % of the largest; sets the last id to another one. */
static void spoil(unsigned char *bytes, const struct output *o)
{
    const int64_t count = (int64_t)(o->bytes / m3_dtype_bytes(o->want->dtype));
    double *x = (double *)bytes, most = 0;
    if (o->is_ids) {
        int32_t *last = (int32_t *)bytes + count - 1;
        *last = *last == 0 ? 1 : 0;
        return;
    }
    ck_assert_int_eq(o->want->dtype, M3_F64);
    int64_t at = count / 2;
    while (!isfinite(x[at])) at = (at + 1) % count;
    for (int64_t k = 0; k < count; k++)
        if (isfinite(x[k])) most = fmax(most, fabs(x[k]));
    x[at] += 0.02 * most + 1e-3;
}

/* Output number `wrong` is spoiled; -1: none. */
static void write_results(const struct output *all, int count, int wrong)
{
    struct m3_writer *writer;
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("results"), &error), M3_OK);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(m3_writer_tensor(writer, all[i].name, all[i].want->dtype, all[i].rank, all[i].shape, &error),
                         M3_OK);
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    for (int i = 0; i < count; i++) {
        unsigned char *bytes = malloc(all[i].bytes + 1);
        memcpy(bytes, all[i].want->data, all[i].bytes);
        copy_channels(bytes, &all[i]);
        if (i == wrong) spoil(bytes, &all[i]);
        ck_assert_int_eq(m3_writer_write(writer, bytes, all[i].bytes, &error), M3_OK);
        free(bytes);
    }
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
}

/* The number of stages that pass; *failed: of the others that were given. Marks the taps that pass. */
static int judge(int *failed, struct output *all, int count, const struct m3_safetensors *cases_file, const char *op,
                 int says)
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
    ck_assert_msg(!m3_file_check(&check, &cases, results, NULL, profile, 1, &error), "%s: %s", op, error.text);
    for (int64_t i = 0; i < check.comparison.count; i++) {
        const struct m3_finding *stage = &check.comparison.findings[i];
        for (int k = 0; k < count; k++) {
            if (strcmp(all[k].name, stage->tap) != 0) continue;
            const int passes = stage->verdict == M3_VERDICT_PASS && !(stage->tiers.headroom > 1);
            if (!passes && says)
                fprintf(stderr, "%s %s (%s): verdict %d, %s\n", op, stage->tap, all[k].tap, stage->verdict,
                        stage->note);
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

/* Goal:  every tap of every golden passes, judged from the operands that the cut gives; none is left out. A slice has a
 *        third of the goldens. */
LOOP_TEST(goldens_pass, RUNS)
{
    if (!in_slice(_i, 3)) return;
    struct m3_safetensors *golden, *cases;
    struct output *all = calloc(4096, sizeof *all);
    char text[512], not_made[2048] = "";
    open_run(&golden, _i);
    const char *rows = runs[_i].rerun ? rows_of(text, golden) : NULL;
    unsigned char *made = calloc((size_t)m3_safetensors_count(golden), 1);
    int wrong = 0, taps = 0;
    for (int i = 0; i < m3_operator_rows(); i++) {
        const char *op = m3_operator_at(i)->name;
        int failed;
        if (cut(op, _i, "*", rows)) continue;
        ck_assert_int_eq(m3_safetensors_open(&cases, in_folder("cases"), &error), M3_OK);
        const int count = outputs_of(all, cases, golden);
        write_results(all, count, -1);
        ck_assert_int_eq(judge(&failed, all, count, cases, op, 1) + failed, count);
        wrong += failed;
        for (int k = 0; k < count; k++)
            for (int64_t t = 0; t < m3_safetensors_count(golden); t++)
                made[t] |= strcmp(m3_safetensors_at(golden, t)->name, all[k].tap) == 0;
        m3_safetensors_close(cases);
    }
    for (int64_t t = 0; t < m3_safetensors_count(golden); t++) {
        enum m3_tap tap;
        int64_t layer;
        const char *name = m3_safetensors_at(golden, t)->name;
        if (m3_tap_parse(name, &tap, &layer) || m3_tap_table[tap].kind == M3_KIND_COUNTS || tap == M3_TAP_VISION_PIXELS)
            continue;
        taps += made[t];
        if (!made[t]) strcat(strcat(not_made, name), " ");
    }
    ck_assert_int_eq(wrong, 0);
    ck_assert_int_eq(taps, runs[_i].taps);
    ck_assert_str_eq(not_made, runs[_i].not_made);
    free(made);
    free(all);
    m3_safetensors_close(golden);
}

/* Goal:  of every operator, an output of the golden with one wrong element fails. A slice has one of three goldens. */
LOOP_TEST(wrong_values_fail, m3_operator_rows())
{
    static const int of[] = { 0, 1, 6 };
    const char *op = m3_operator_at(_i)->name;
    struct m3_safetensors *golden, *cases;
    struct output *all = calloc(4096, sizeof *all);
    int failed;
    for (size_t r = 0; r < sizeof of / sizeof of[0]; r++) {
        if (!in_slice(_i + (int64_t)r, 3) || cut(op, of[r], "*", NULL)) continue;
        open_run(&golden, of[r]);
        ck_assert_int_eq(m3_safetensors_open(&cases, in_folder("cases"), &error), M3_OK);
        const int count = outputs_of(all, cases, golden);
        for (int wrong = 0; wrong < count && wrong < 6; wrong++) {
            write_results(all, count, wrong);
            judge(&failed, all, count, cases, op, 0);
            ck_assert_msg(failed > 0, "%s: %s (%s) with a wrong value passes", op, all[wrong].name, all[wrong].tap);
        }
        m3_safetensors_close(cases);
        m3_safetensors_close(golden);
    }
    free(all);
}
