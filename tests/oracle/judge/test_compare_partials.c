/* compare without weights, where an engine computes products in parts (SPEC 7.5, 7.8): o_proj of one layer, as eight
 * ranks in a ring make it of the reference's own input, so that nothing has drifted. */
#include "program.h"

#include <math.h>
#include <stdlib.h>

#include "base/weight.h"
#include "model/model.h"

#define TINY "golden/tiny/model --case golden/tiny/case.safetensors"
#define TAP "layers.0.attn_out"

enum { RANKS = 8 };

static struct m3_error error, notes;

static float bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* One output; `twice`: the part of this rank is added twice (-1: of none). */
static float in_parts(const double *w, const double *x, int64_t cols, int start, int twice)
{
    float sum = 0;
    for (int i = 0; i < RANKS; i++) {
        const int r = (start + i) % RANKS;
        float part = 0;
        for (int64_t k = r * cols / RANKS; k < (r + 1) * cols / RANKS; k++) part += (float)w[k] * (float)x[k];
        sum = bf16(sum + bf16(part) * (r == twice ? 2.0f : 1.0f));
    }
    return sum;
}

/* The tap in a file of its own, beside its input as the truth has it. */
static void write_candidate(int twice)
{
    struct m3_safetensors *truth;
    struct m3_model *model;
    struct m3_writer *writer;
    static const char *const keys[] = { "format",    "format_version", "precision",
                                        "semantics", "model_sha256",   "case_sha256" };
    ck_assert_int_eq(m3_safetensors_open(&truth, in_folder("truth"), &error), M3_OK);
    ck_assert_int_eq(m3_model_open(&model, "golden/tiny/model", &notes, &error), M3_OK);
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("candidate"), &error), M3_OK);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = m3_safetensors_metadata(truth, keys[i]);
        if (value) ck_assert_int_eq(m3_writer_metadata(writer, keys[i], value, &error), M3_OK);
    }
    const struct m3_tensor *in = m3_safetensors_find(truth, "layers.0.attn"), *out = m3_safetensors_find(truth, TAP);
    const struct m3_weight *w = &model->layers[0].o_proj;
    ck_assert_int_eq(m3_writer_tensor(writer, in->name, in->dtype, in->rank, in->shape, &error), M3_OK);
    ck_assert_int_eq(m3_writer_tensor(writer, TAP, M3_F32, out->rank, out->shape, &error), M3_OK);
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    ck_assert_int_eq(m3_writer_write(writer, in->data, in->bytes, &error), M3_OK);
    double *row = calloc((size_t)w->cols, sizeof *row);
    float *y = calloc((size_t)out->count, sizeof *y);
    const double *x = (const double *)in->data;
    for (int64_t n = 0; n < w->rows; n++) {
        m3_expand_f64(row, w, n, 0, w->cols);
        for (int64_t t = 0; t < out->shape[0]; t++)
            y[t * w->rows + n] = in_parts(row, x + t * w->cols, w->cols, (int)(n * RANKS / w->rows), twice);
    }
    ck_assert_int_eq(m3_writer_write(writer, y, (size_t)out->count * sizeof *y, &error), M3_OK);
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
    free(row), free(y);
    m3_model_close(model);
    m3_safetensors_close(truth);
}

static int compare_as(const char *partials)
{
    char text[400];
    snprintf(text, sizeof text, "{\"name\": \"x\", \"u\": \"f32\", \"store\": {\"*.attn_out\": \"bf16\"}%s}", partials);
    write_text(in_folder("own.json"), text);
    return m3ref("compare %s %s --profile %s --taps layers.0.attn,layers.0.attn_out", in_folder("truth"),
                 in_folder("candidate"), in_folder("own.json"));
}

#define WITH(reduce) ", \"partials\": {\"*.attn_out\": {\"ranks\": 8, \"reduce\": \"" reduce "\"}}"

/* The product passes. Nothing judges its own input, attn, so that the run is partial. */
static int product_passes(const char *partials)
{
    return compare_as(partials) == 2 && has("out", "\npartial  1 of 2 stages judged, 1 not judged");
}

static void make_truth(void)
{
    make_folder();
    ck_assert_int_eq(m3ref("run %s --precision f64 --dump %s --bounds", TINY, in_folder("truth")), 0);
}

TIMEOUT(120);
FIXTURE(make_truth, remove_folder);

/* Goal:  a ring of 8 passes where the profile says so, and fails where it does not or says less.
 * Claim: pass with `any` and `ring`; fail without partials; a part added twice is no pass in any of these.
 * Seen to fail with no error added for parts, with 1000 times the error and 10^4 times their variance, with the
 * mistake left unplanted. */
TEST(ring)
{
    write_candidate(-1);
    ck_assert(product_passes(WITH("any")));
    ck_assert(product_passes(WITH("ring")));
    ck_assert_int_eq(compare_as(""), 1);
    write_candidate(3);
    ck_assert_int_eq(compare_as(""), 1);
    ck_assert(!product_passes(WITH("any")) && (has("out", "\nsuspect  ") || has("out", "\nfail  ")));
    ck_assert(!product_passes(WITH("ring")) && (has("out", "\nsuspect  ") || has("out", "\nfail  ")));
}
