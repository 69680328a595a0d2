/* `m3ref envelope`: what it prints and writes, that a seed repeats, and what it refuses; `m3ref compare --envelope`. */
#include "program.h"

#include <math.h>

#include "oracle/judge/rows/rows.h"

TIMEOUT(300);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model --case golden/tiny/case.safetensors "

/* Goal:  one line of summary, a file with the tensors and strings of SPEC 7.10, nothing left beside it.
 * Claim: the strings of the file are those of the run; every tensor is F64 [runs], ascending, of a float tap.
 * Seen to fail with the truth's file left behind, with ids among the tensors, without qsort. */
TEST(writes)
{
    ck_assert_int_eq(
        m3ref("envelope " TINY "--profile bf16 --runs 3 --seed 11 --threads 1 --out %s", in_folder("env.safetensors")),
        0);
    ck_assert(has("out", "envelope: 3 runs, profile bf16, seed 11"));
    ck_assert(has("out", "logits"));
    ck_assert(has("err", "m3ref: --runs: got 3, with fewer than 32 the ranks mean little"));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert_int_eq(entries(), 3);

    struct m3_error error = { 0 };
    struct m3_safetensors *file;
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("env.safetensors"), &error), M3_OK);
    const char *const strings[][2] = { { "format", "m3ref-envelope" },
                                       { "format_version", "1" },
                                       { "profile", "bf16" },
                                       { "seed", "11" },
                                       { "runs", "3" },
                                       { "semantics", "{}" } };
    for (int i = 0; i < 6; i++) ck_assert_str_eq(m3_safetensors_metadata(file, strings[i][0]), strings[i][1]);
    ck_assert_int_eq(strlen(m3_safetensors_metadata(file, "model_sha256")), 64);
    ck_assert_int_eq(strlen(m3_safetensors_metadata(file, "case_sha256")), 64);
    ck_assert_ptr_nonnull(strstr(m3_safetensors_metadata(file, "command"), "--seed 11"));
    ck_assert_ptr_null(m3_safetensors_find(file, "layers.4.moe.experts"));
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(file, i);
        if (m3_is_row_statistic(tensor->name)) continue;
        ck_assert(tensor->dtype == M3_F64 && tensor->rank == 1 && tensor->count == 3);
        double a = m3_decode(M3_F64, tensor->data, 0), b = m3_decode(M3_F64, tensor->data, 1);
        ck_assert(a >= 0 && a <= b && b <= m3_decode(M3_F64, tensor->data, 2));
    }
    m3_safetensors_close(file);
}

/* Goal:  --taps narrows the file and not the numbers; one seed, one file.
 * Seen to fail with choices only where a pattern asks for them. */
TEST(narrowed)
{
    const char *line = "envelope " TINY "--profile bf16 --runs 2 --threads 1 --out %s %s";
    ck_assert_int_eq(m3ref(line, in_folder("all"), ""), 0);
    ck_assert_int_eq(m3ref(line, in_folder("some"), "--taps 'layers.4.moe.*,logits'"), 0);
    struct m3_error error = { 0 };
    struct m3_safetensors *all, *some;
    ck_assert_int_eq(m3_safetensors_open(&all, in_folder("all"), &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&some, in_folder("some"), &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_count(some), 7 + 4 * 3 + 4); /* not of slots of experts; logits have all fields */
    for (int64_t i = 0; i < m3_safetensors_count(some); i++) {
        const struct m3_tensor *a = m3_safetensors_at(some, i), *b = m3_safetensors_find(all, a->name);
        ck_assert_msg(b && memcmp(a->data, b->data, a->bytes) == 0, "%s", a->name);
    }
    m3_safetensors_close(all);
    m3_safetensors_close(some);
}

static const struct {
    int status;
    const char *arguments, *says;
} refused[] = {
    { 64, "", "got 0 model directories" },
    { 64, TINY "--out x", "got no --profile" },
    { 64, TINY "--profile fp32", "got no --out" },
    { 64, "golden/tiny/model --profile fp32 --out x", "got neither" },
    { 64, TINY "--profile fp32 --out x --runs 0", "--runs" },
    { 64, TINY "--profile fp32 --out x --seed -1", "--seed" },
    { 64, TINY "--profile fp32 --out x --precision f64", "precision" },
    { 64, TINY "--profile fp32 --out x --decisions y", "decisions" },
    { 64, TINY "--profile fp32 --out golden/tiny/model/config.json", "which this command reads as " },
    { 64, TINY "--profile fp32 --out golden/tiny/case.safetensors", "which this command reads as " },
    { 66, TINY "--profile bf17 --out x", "profile bf17: got no such profile" },
    { 66, "golden/none --case golden/tiny/case.safetensors --profile fp32 --out x", "golden/none" },
    { 66, "golden/tiny/model --case golden/none --profile fp32 --out x", "golden/none" },
    { 65, "golden/tiny/model --case golden/tiny/model/config.json --profile fp32 --out x", "config.json" },
    { 65, TINY "--profile golden/flops.json --out x", "golden/flops.json" },
};

/* Goal:  each refusal has its status and words, and writes nothing.
 * Seen to fail with the target not checked. */
LOOP_TEST(refusals, sizeof refused / sizeof *refused)
{
    ck_assert_int_eq(m3ref("envelope %s", refused[_i].arguments), refused[_i].status);
    ck_assert(has("err", refused[_i].says));
    ck_assert(access("x", F_OK) != 0);
    ck_assert_int_eq(entries(), 2);
}

/* Goal:  profiles that cannot be drawn from, and taps that match nothing, leave no file.
 * Seen to fail with the arithmetic not looked at. */
TEST(late)
{
    write_text(in_folder("half.json"), "{\"name\": \"half\", \"u\": \"bf16\"}");
    write_text(in_folder("zero.json"), "{\"name\": \"zero\", \"u\": \"f32\", \"rounding\": \"zero\"}");
    ck_assert_int_eq(m3ref("envelope " TINY "--profile %s --out %s", in_folder("half.json"), in_folder("env")), 65);
    ck_assert(has("err", "profile half: got other arithmetic"));
    ck_assert_int_eq(m3ref("envelope " TINY "--profile %s --out %s", in_folder("zero.json"), in_folder("env")), 65);
    ck_assert_int_eq(m3ref("envelope " TINY "--profile fp32 --taps 'nothing.*' --out %s", in_folder("env")), 64);
    ck_assert(has("err", "--taps"));
    ck_assert_int_eq(m3ref("envelope " TINY "--profile fp32 --out %s", in_folder("no/env")), 74);
    ck_assert_int_eq(entries(), 4);
}

/* ---- compare --envelope */

static struct m3_safetensors *file_of(const char *name)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *file;
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder(name), &error), M3_OK);
    return file;
}

static double distance(const struct m3_tensor *want, const struct m3_tensor *got)
{
    double d2 = 0, r2 = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double r = m3_decode(want->dtype, want->data, i), d = m3_decode(got->dtype, got->data, i) - r;
        d2 += d * d;
        r2 += r * r;
    }
    return sqrt(d2 / r2);
}

/* A copy of the dump `honest` whose one tap is `factor` times the largest of the envelope from the truth. */
static void write_farther(const char *name, const char *tap, double factor)
{
    struct m3_safetensors *truth = file_of("truth"), *honest = file_of("honest"), *envelope = file_of("envelope");
    struct m3_error error = { 0 };
    struct m3_writer *writer;
    const struct m3_tensor *want = m3_safetensors_find(truth, tap), *all = m3_safetensors_find(envelope, tap);
    double *moved = malloc((size_t)want->count * sizeof *moved);
    int64_t count = m3_safetensors_count(honest);
    ck_assert(want && all && moved);
    int status = m3_writer_new(&writer, in_folder(name), &error);
    const char *const keys[] = { "format", "format_version", "model_sha256", "case_sha256" };
    for (int i = 0; i < 4; i++)
        status |= m3_writer_metadata(writer, keys[i], m3_safetensors_metadata(honest, keys[i]), &error);
    for (int64_t i = 0; i < count; i++) {
        const struct m3_tensor *t = m3_safetensors_at(honest, i);
        status |=
            m3_writer_tensor(writer, t->name, strcmp(t->name, tap) == 0 ? M3_F64 : t->dtype, t->rank, t->shape, &error);
    }
    status |= m3_writer_begin(writer, &error);
    for (int64_t i = 0; i < count; i++) {
        const struct m3_tensor *t = m3_safetensors_at(honest, i);
        double scale = factor * m3_decode(M3_F64, all->data, all->count - 1) / distance(want, t);
        if (strcmp(t->name, tap) != 0) {
            status |= m3_writer_write(writer, t->data, t->bytes, &error);
            continue;
        }
        for (int64_t k = 0; k < t->count; k++) {
            double r = m3_decode(want->dtype, want->data, k);
            moved[k] = r + scale * (m3_decode(t->dtype, t->data, k) - r);
        }
        status |= m3_writer_write(writer, moved, (uint64_t)t->count * sizeof *moved, &error);
    }
    status |= m3_writer_commit(writer, &error);
    ck_assert_msg(status == M3_OK, "%s", error.text);
    free(moved);
    m3_safetensors_close(truth);
    m3_safetensors_close(honest);
    m3_safetensors_close(envelope);
}

static int compare(const char *candidate, const char *more)
{
    char path[128];
    snprintf(path, sizeof path, "%s", in_folder(candidate));
    return m3ref("compare %s %s --envelope %s %s", in_folder("truth"), path, in_folder("envelope"), more);
}

/* The median percentile that the comparison printed. */
static double median_percentile(void)
{
    size_t count;
    char *text = (char *)read_bytes(in_folder("out"), &count);
    const char *line = strstr(text, "\nenvelope  percentile ");
    ck_assert_ptr_nonnull(line);
    double value = strtod(line + strlen("\nenvelope  percentile "), NULL);
    free(text);
    return value;
}

/* Goal:  candidates of whole passes stand where they should.
 * Given: the truth, its envelope of 16 runs, the float engine; the same with final_norm 3 times the largest from the
 *        truth; readings that clamp the gate below too (a few elements), that choose other blocks in layer 2.
 * Claim: the float engine passes, its median percentile between 10 and 99; farther is suspect there and nowhere else,
 *        exit status 2; so is the clamp, which passes layer 0 without the envelope, from the activation on; other
 *        blocks fail for what they are, and nothing after them is ranked.
 * Seen to fail with suspects beyond 4 times the largest, with --envelope not handed on, and with linear operators of
 * all implementations cut into up to 8 parts. */
TEST(ranks)
{
    ck_assert_int_eq(m3ref("run " TINY "--precision f64 --dump %s", in_folder("truth")), 0);
    ck_assert_int_eq(m3ref("run " TINY "--dump %s", in_folder("honest")), 0);
    ck_assert_int_eq(m3ref("run " TINY "--set gate_clamp=both --dump %s", in_folder("clamped")), 0);
    ck_assert_int_eq(m3ref("run " TINY "--set selection=shared --dump %s", in_folder("shared")), 0);
    ck_assert_int_eq(m3ref("envelope " TINY "--profile fp32 --runs 16 --out %s", in_folder("envelope")), 0);

    ck_assert_int_eq(compare("honest", ""), 0);
    ck_assert(has("out", " among 16 legitimate fp32 implementations; farthest "));
    ck_assert_msg(median_percentile() > 10 && median_percentile() < 99, "%g", median_percentile());
    ck_assert_int_eq(compare("honest", "--json --taps layers.0.attn_norm,layers.0.mlp"), 0);
    ck_assert(has("out", "\"ranked\":2"));

    write_farther("farther", "final_norm", 3);
    ck_assert_int_eq(compare("farther", ""), 2);
    ck_assert(has("out", "\nSUSPECT  final_norm  ") && has("out", "is more than twice the farthest legitimate"));
    ck_assert(has("out", " stages judged, 1 suspect; ") && has("out", "farthest final_norm: percentile 100, "));

    ck_assert_int_eq(m3ref("compare %s %s/clamped --taps 'layers.0.*'", in_folder("truth"), folder), 0);
    ck_assert_int_eq(compare("clamped", "--taps 'layers.0.*'"), 2);
    ck_assert(has("out", "\nnote  first divergence layers.0.mlp.act; all "));

    ck_assert_int_eq(compare("shared", "--json"), 1);
    ck_assert(has("out", "\"suspects\":0") && has("out", "\"ranked\":52,"));
    ck_assert(has("out", " are not the reference's, or were not compared: 71, first layers.2.attn_lse"));
}

/* Goal:  an envelope of another model, case, reading or profile is refused before anything is compared; so is what is none,
 * and one that has changed.
 * Seen to fail with the reference's hashes not handed on; with the seal and the reading not compared. */
TEST(others)
{
    const struct {
        const char *made_of, *profile;
        int status;
        const char *says;
    } cases[] = {
        { "golden/mtp/model --case golden/mtp/case.safetensors", "fp32", 65, "model_sha256: got " },
        { "golden/tiny/model --case golden/tiny/positions_case.safetensors", "fp32", 65, "case_sha256: got " },
        { TINY, "bf16", 65, "profile: got bf16, expected fp32" },
        { TINY "--set selection=shared", "fp32", 65, "semantics: got {\"selection\":\"shared\"}, expected {}" },
        { TINY, "fp32", 0, "" },
    };
    ck_assert_int_eq(m3ref("run " TINY "--precision f64 --dump %s", in_folder("truth")), 0);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(m3ref("envelope %s --profile %s --runs 1 --taps logits --out %s", cases[i].made_of,
                               cases[i].profile, in_folder("envelope")),
                         0);
        ck_assert_int_eq(compare("truth", "--taps logits"), cases[i].status);
        ck_assert(has("err", cases[i].says) && (i == 4 || has("err", in_folder("envelope"))));
        if (i == 4) ck_assert(has("out", "no tap is ranked among 1 legitimate fp32 implementation"));
    }
    size_t size;
    unsigned char *bytes = read_bytes(in_folder("envelope"), &size);
    bytes[size - 1] ^= 1;
    write_bytes(in_folder("envelope"), bytes, size);
    free(bytes);
    ck_assert_int_eq(compare("truth", "--taps logits"), 65);
    ck_assert(has("err", "the file has changed"));
    ck_assert_int_eq(
        m3ref("compare %s golden/tiny/golden.safetensors.gz --envelope %s", in_folder("truth"), in_folder("truth")),
        65);
    ck_assert(has("err", "format: got m3ref-dump, expected m3ref-envelope"));
    ck_assert_int_eq(
        m3ref("compare %s golden/tiny/golden.safetensors.gz --envelope %s", in_folder("truth"), in_folder("none")), 66);
}

TEST(helps)
{
    ck_assert_int_eq(m3ref("envelope --help"), 0);
    ck_assert(has("out", "usage: m3ref envelope"));
    ck_assert_int_eq(m3ref("--help"), 0);
    ck_assert(has("out", "  envelope MODEL"));
    ck_assert_int_eq(m3ref("compare --help"), 0);
    ck_assert(has("out", "  --envelope FILE"));
}
