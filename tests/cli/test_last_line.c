/* Failures of different kinds, read by the last line alone: place, pattern, operator and next step are in it. */
#include "program.h"

#include <math.h>

#define TINY "golden/tiny/model"
#define CASE "--case golden/tiny/case.safetensors"

/* The dump that is right: "right". Each test changes a copy. */
static void begin(void)
{
    make_folder();
    ck_assert_int_eq(m3ref("run " TINY " " CASE " --linear ordered --dump %s", in_folder("right")), 0);
}

TIMEOUT(240);
FIXTURE_ONCE(begin, remove_folder);

enum { OF_HEAD = 20, MOST = 40000 };

/* One tap of the dump: values [rows,width], those that are right, those of another tap. */
struct tap {
    float x[MOST], right[MOST], other[MOST];
    int64_t rows, width;
    int32_t experts[400];       /* of layer 2, five in each row */
};

static const char *in_layer(const char *tap, int layer)
{
    static char name[64];
    snprintf(name, sizeof name, "layers.%d.%s", layer, tap);
    return layer < 0 ? tap : name;
}

/* Where the numbers of a tap stand in the file, and how many there are. */
static size_t place_of(const struct m3_safetensors *file, const char *name, int64_t *count)
{
    uint64_t header;
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    ck_assert_msg(t != NULL, "%s", name);
    if (count) *count = t->count;
    return (size_t)((const char *)t->data - (const char *)m3_safetensors_header(file, &header));
}

static void rows_of_all_layers(struct tap *t)
{
    for (int64_t i = 40 * t->width; i < 60 * t->width; i++) t->x[i] *= 0.75F;
}
static void one_head(struct tap *t)
{
    for (int64_t i = 0; i < t->rows * t->width; i++)
        if (i % t->width / OF_HEAD == 3) t->x[i] = 0;
}
static void one_expert(struct tap *t)
{
    for (int64_t i = 0; i < t->rows * t->width; i++)
        if (t->experts[i / (t->width / 5)] == 5) t->x[i] *= 0.5F;
}
static void one_block(struct tap *t)
{
    for (int64_t i = 0; i < t->rows * t->width; i++)
        if (i % t->width / 32 == 1) t->x[i] = -t->x[i];
}
static void a_row_late(struct tap *t)
{
    memcpy(t->x + t->width, t->right, (size_t)(t->rows - 1) * (size_t)t->width * 4);
}
static void heads_exchanged(struct tap *t)
{
    for (int64_t r = 0; r < t->rows; r++) {
        memcpy(t->x + r * t->width + OF_HEAD, t->right + r * t->width + 4 * OF_HEAD, OF_HEAD * sizeof(float));
        memcpy(t->x + r * t->width + 4 * OF_HEAD, t->right + r * t->width + OF_HEAD, OF_HEAD * sizeof(float));
    }
}
static void of_other_layer(struct tap *t) { memcpy(t->x, t->other, sizeof t->x); }
static void last_block(struct tap *t)
{
    enum { BLOCKS = 17, GROUPS = 2 };
    for (int64_t i = 0; i < t->rows * GROUPS; i++) {
        float *row = t->x + i * BLOCKS;
        int last = BLOCKS - 1;
        while (isinf(row[last])) last--;
        row[last] += 1;
    }
}
static void one_element(struct tap *t) { t->x[20 * t->width + OF_HEAD + 8] += 3; }
static void no_numbers(struct tap *t)
{
    for (int64_t i = 30 * t->width; i < t->rows * t->width; i++) t->x[i] = NAN;
}
static void a_constant(struct tap *t)
{
    for (int64_t i = 0; i < t->rows * t->width; i++) t->x[i] -= 5;
}
/* Noise that no single value proves. */
static void noise(struct tap *t)
{
    for (int64_t i = 0; i < t->rows * t->width; i++)
        if (t->experts[i / (t->width / 5)] == 7) t->x[i] *= 1 + (i % 2 ? 1 : -1) * 8e-6F;
}

static const struct failure {
    const char *tap;
    int layer, layers;          /* the first of them, how many */
    void (*change)(struct tap *t);
    const char *other;          /* a tap of which `other` is read; or NULL */
    const char *place, *pattern, *next, *json;
} failures[] = {
    { "attn", 0, 5, rows_of_all_layers, NULL, "layers.0.attn ",
      "only rows 40 to 59, in every layer; the wrong values are the right ones times 0.75", "SPEC 5.7 attend_full",
      "\"rows\":\"40:60\"}" },
    { "attn", 2, 1, one_head, NULL, "layers.2.attn ", "only head 3; the wrong values are zeros",
      "SPEC 5.10 attend_blocks", "\"heads\":[3]}" },
    { "moe.expert_out", 2, 1, one_expert, NULL, "layers.2.moe.expert_out ",
      "only expert 5; the wrong values are the right ones times 0.5", "SPEC 5.15 experts", "\"experts\":[5]}" },
    { "attn_out", 2, 1, one_block, NULL, "layers.2.attn_out ",
      "only channels 32 to 63 (block 1 of 32); the wrong values are the right ones with the other sign",
      "SPEC 5.4 linear", "\"channels\":\"32:64\"}" },
    { "attn", 2, 1, a_row_late, NULL, "layers.2.attn ",
      "only rows 1 to 66; the wrong values are shifted by one row: each is what the one before it should be",
      "SPEC 5.10 attend_blocks", "\"rows\":\"1:67\"}" },
    { "q_proj", 2, 1, heads_exchanged, NULL, "layers.2.q_proj ",
      "only heads 1 and 4; the wrong values are exchanged with each other", "SPEC 5.4 linear", "\"heads\":[1,4]}" },
    { "attn_norm", 2, 1, of_other_layer, "layers.1.attn_norm", "layers.2.attn_norm ",
      "the wrong values are equal to what layers.1.attn_norm holds", "SPEC 5.2 rms_norm",
      "\"what\":\"equal to what layers.1.attn_norm holds\"}" },
    { "mid", 2, 1, of_other_layer, "layers.1.out", "layers.2.mid ",
      "the wrong values are equal to its input layers.1.out", "SPEC 5.16 add",
      "\"what\":\"equal to its input layers.1.out\"}" },
    { "index.block_scores", 2, 1, last_block, NULL, "layers.2.index.block_scores ", "only the last block of each row",
      "SPEC 5.8 block_scores", "\"where\":\"the last block of each row\"" },
    { "k_proj", 2, 1, one_element, NULL, "row 20, head 1, channel 8", "only row 20, head 1, channel 8",
      "SPEC 5.4 linear", "\"rows\":[20],\"heads\":[1],\"channels\":[8]}" },
    { "mlp_norm", 2, 1, no_numbers, NULL, "row 30, channel 0", "only rows 30 to 66; the wrong values are NaN",
      "SPEC 5.2 rms_norm", "\"rows\":\"30:67\"}" },
    { "logits", -1, 1, a_constant, NULL, "logits ", "the wrong values are the right ones less 5", "SPEC 5.4 linear",
      "\"what\":\"the right ones less 5\"}" },
};

/* "wrong": the dump with the change in each of the layers. */
static void change(const struct failure *f)
{
    struct m3_safetensors *file;
    struct tap *t = calloc(1, sizeof *t);
    size_t size;
    int64_t count = 0;
    ck_assert_ptr_nonnull(t);
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("right"), NULL), 0);
    unsigned char *bytes = read_bytes(in_folder("right"), &size);
    const size_t ids = place_of(file, "layers.2.moe.experts", &count);
    memcpy(t->experts, bytes + ids, (size_t)count * sizeof *t->experts);
    for (int layer = f->layer; layer < f->layer + f->layers; layer++) {
        const size_t at = place_of(file, in_layer(f->tap, layer), &count);
        t->rows = m3_safetensors_find(file, in_layer(f->tap, layer))->shape[0];
        t->width = count / t->rows;
        ck_assert_int_le(count, MOST);
        memcpy(t->x, bytes + at, (size_t)count * sizeof *t->x);
        memcpy(t->right, t->x, sizeof t->x);
        if (f->other) memcpy(t->other, bytes + place_of(file, f->other, NULL), (size_t)count * sizeof *t->other);
        f->change(t);
        memcpy(bytes + at, t->x, (size_t)count * sizeof *t->x);
    }
    m3_safetensors_close(file);
    write_bytes(in_folder("wrong"), bytes, size);
    free(bytes);
    free(t);
}

static void last_line_says(const struct failure *f)
{
    ck_assert(last_line_has(f->place));
    ck_assert(last_line_has(f->pattern));
    ck_assert(last_line_has(f->next));
}

/* Goal:  who reads only the last line of check or of blame knows where to look and for what.
 * Given: a right dump of golden/tiny with one change of each kind.
 * Claim: place with named dimensions, pattern, operator and section are in the last line; the pattern in that of JSON.
 * Seen to fail without the call of the finder (no pattern), with numbers without names (no place), and with layers that
 * are not counted. */
LOOP_TEST(kinds_of_failures, sizeof failures / sizeof failures[0])
{
    change(&failures[_i]);
    ck_assert_int_eq(m3ref("check " TINY " %s " CASE, in_folder("wrong")), 1);
    last_line_says(&failures[_i]);
    ck_assert(last_line_has("Look at the engine's "));
    ck_assert_int_eq(m3ref("blame " TINY " %s " CASE, in_folder("wrong")), 1);
    last_line_says(&failures[_i]);
    ck_assert(last_line_has("; next: check the program's "));
    ck_assert_int_eq(m3ref("check " TINY " %s " CASE " --json", in_folder("wrong")), 1);
    ck_assert(last_line_has(failures[_i].json));
}

/* A model whose layer 2 has the values' weights of layer 3. */
static void make_other_model(void)
{
    static const char name[] = "language_model.model.layers.%d.self_attn.v_proj.weight";
    char mine[96], other[96];
    struct m3_safetensors *file;
    size_t size;
    snprintf(mine, sizeof mine, name, 2);
    snprintf(other, sizeof other, name, 3);
    ck_assert_int_eq(m3_safetensors_open(&file, TINY "/model.safetensors", NULL), 0);
    unsigned char *bytes = read_bytes(TINY "/model.safetensors", &size);
    memcpy(bytes + place_of(file, mine, NULL), bytes + place_of(file, other, NULL),
           m3_safetensors_find(file, mine)->bytes);
    m3_safetensors_close(file);
    ck_assert_int_eq(mkdir(in_folder("model"), 0777), 0);
    copy(TINY "/config.json", in_folder("model/config.json"));
    write_bytes(in_folder("model/model.safetensors"), bytes, size);
    free(bytes);
}

/* Goal:  weights of another layer are recognised by what they make of this layer's inputs.
 * Claim: the last line names the layer. Seen to fail without the try of other weights. */
TEST(other_weights)
{
    make_other_model();
    ck_assert_int_eq(m3ref("run %s " CASE " --dump %s", in_folder("model"), in_folder("other")), 0);
    ck_assert_int_eq(m3ref("blame " TINY " %s " CASE " --force", in_folder("other")), 1);
    ck_assert(last_line_has("layers.2.v_proj row "));
    ck_assert(last_line_has("; the wrong values are equal to what layer 3's weights give; next: "));
}

/* Goal:  the earliest wrong tap leads, also if it is only suspect; what surely fails after it is named too.
 * Given: the outputs of one expert with a little noise, which their sum, made of other numbers, proves wrong.
 * Claim: the expert's output leads. Seen to fail with the first tap that fails as the culprit. */
TEST(earliest_leads)
{
    const struct failure first = { "moe.expert_out", 2, 1, noise, NULL, NULL, NULL, NULL, NULL };
    change(&first);
    ck_assert_int_eq(m3ref("check " TINY " %s " CASE, in_folder("wrong")), 1);
    ck_assert(last_line_has("fail: layers.2.moe.expert_out is suspect in "));
    ck_assert(last_line_has("Pattern: only expert 7."));
    ck_assert(last_line_has("layers.2.moe.routed, after it, is wrong."));
    ck_assert(last_line_has("Look at the engine's expert, and compare it with SPEC 5.15 experts."));
    ck_assert_int_eq(m3ref("blame " TINY " %s " CASE, in_folder("wrong")), 1);
    ck_assert(has("out", "\nculprit  layers.2.moe.expert_out "));
    ck_assert(last_line_has("layers.2.moe.expert_out row "));
}

static void half_of_the_experts(struct tap *t)
{
    const int64_t width = t->width / 5;
    for (int64_t i = 0; i < t->rows * t->width; i++)
        if (t->experts[i / width] >= 6) t->x[i] = 0;
}

/* Goal:  a program reads how often the errors hold those of the mistake that they point to.
 * Given: a dump under fp8 without the outputs of the experts of one of two ranks.
 * Claim: the mistake with a coefficient of 1, and its place. Seen to fail with null. */
TEST(score)
{
    const struct failure lost = { "moe.expert_out", 2, 1, half_of_the_experts, NULL, NULL, NULL, NULL, NULL };
    change(&lost);
    ck_assert_int_eq(m3ref("check " TINY " %s " CASE " --profile fp8 --json", in_folder("wrong")), 1);
    ck_assert(last_line_has("\"score\":{\"mistake\":\"moe.no_reduce\",\"coefficient\":0.9999999"));
    ck_assert(last_line_has("\"what\":\"zeros\",\"experts\":"));
}

/* Goal:  the verdict is the last line of all that is printed, also if the model's config and files do not agree.
 * Given: a dump of M2, whose config names MTP modules that its files lack.
 * Seen to fail with the notes of check, and of blame, printed at the end. */
TEST(verdict_is_last)
{
    static const char m2[] = "golden/m2/model", inputs[] = "--case golden/m2/case.safetensors";
    static const char *const commands[] = { "check", "blame" };
    ck_assert_int_eq(m3ref("run %s %s --dump %s", m2, inputs, in_folder("m2")), 0);
    for (int i = 0; i < 2; i++) {
        char both[200];
        snprintf(both, sizeof both, "%s", in_folder("both"));
        ck_assert_int_eq(m3ref("%s %s %s %s >%s 2>&1; cat %s", commands[i], m2, in_folder("m2"), inputs, both, both),
                         0);
        ck_assert(has("out", "num_mtp_modules"));
        ck_assert(last_line_has(i == 0 ? "pass: Nothing is wrong in " : "pass  "));
    }
}
