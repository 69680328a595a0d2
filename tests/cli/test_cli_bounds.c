/* `m3ref run --bounds`, `--companions`: what accompanies the taps is complete, is that of the taps, and changes none
 * of them. SPEC 7.13. */
#include "program.h"

#include <math.h>
#include <stdint.h>

#include "base/weight.h"
#include "model/model.h"
#include "model/taps.h"
#include "oracle/error/operators.h"
#include "same_tensors.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model --case golden/tiny/case.safetensors --linear ordered"
#define SEEN "golden/tiny/model --case golden/vision/video_case.safetensors --linear ordered"
#define MTP "golden/mtp/model --case golden/mtp/case.safetensors --linear ordered"
#define M2 "golden/m2/model --case golden/m2/case.safetensors --linear ordered"

static struct m3_error error;

static struct m3_safetensors *opened(const char *path)
{
    struct m3_safetensors *file;
    ck_assert_msg(m3_safetensors_open(&file, path, &error) == M3_OK, "%s", error.text);
    return file;
}

static const struct m3_tensor *need_tensor(const struct m3_safetensors *file, const char *name)
{
    const struct m3_tensor *t = m3_safetensors_find(file, name);
    ck_assert_msg(t != NULL, "%s is not there", name);
    return t;
}

static const struct m3_tensor *beside(const struct m3_safetensors *file, const char *tap, const char *field)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", tap, field);
    return m3_safetensors_find(file, name);
}

static double at(const struct m3_tensor *t, int64_t i) { return m3_decode(t->dtype, t->data, i); }

static int64_t number(const struct m3_safetensors *file, const char *tap, const char *key)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", tap, key);
    const char *text = m3_safetensors_metadata(file, name);
    ck_assert_msg(text != NULL, "%s is not there", name);
    return strtoll(text, NULL, 10);
}

static int same_shape(const struct m3_tensor *a, const struct m3_tensor *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

/* Every tensor of `part` is in `whole`, with the same bytes; how many `whole` has besides. */
static int64_t contains(const char *whole, const char *part)
{
    struct m3_safetensors *a = opened(in_folder(whole)), *b = opened(in_folder(part));
    int64_t count = m3_safetensors_count(a) - m3_safetensors_count(b);
    for (int64_t i = 0; i < m3_safetensors_count(b); i++) {
        const struct m3_tensor *x = m3_safetensors_at(b, i), *y = need_tensor(a, x->name);
        ck_assert_msg(x->bytes == y->bytes && memcmp(x->data, y->data, x->bytes) == 0, "%s differs", x->name);
    }
    m3_safetensors_close(a);
    m3_safetensors_close(b);
    return count;
}

/* Goal:  companions change nothing, and do not depend on where they are or on threads.
 * Claim: the taps are those of a run without, bit for bit; a file of its own holds what the dump would have held; one
 *        thread, two threads and three give the same.
 * Seen to fail with probes drawn by the number of threads. */
LOOP_TEST(only_beside, 5)
{
    static const char *const cases[] = { TINY, SEEN, MTP, M2 " --precision f64", MTP " --set mtp_join=additive" };
    const char *c = cases[_i];
    ck_assert_int_eq(m3ref("run %s --dump %s", c, in_folder("plain")), 0);
    ck_assert_int_eq(m3ref("run %s --dump %s --bounds --threads 1", c, in_folder("one")), 0);
    ck_assert_int_eq(m3ref("run %s --dump %s --bounds --threads 3", c, in_folder("three")), 0);
    ck_assert_int_eq(m3ref("run %s --dump %s --companions %s", c, in_folder("beside"), in_folder("own")), 0);
    ck_assert(has("out", "with companions in"));
    same_tensors(in_folder("one"), in_folder("three"));
    same_tensors(in_folder("plain"), in_folder("beside"));
    ck_assert_int_gt(contains("one", "plain"), 60);
    struct m3_safetensors *own = opened(in_folder("own")), *plain = opened(in_folder("plain"));
    int64_t in_both = 0;                /* the bias of the experts */
    for (int64_t i = 0; i < m3_safetensors_count(plain); i++)
        in_both += m3_safetensors_find(own, m3_safetensors_at(plain, i)->name) != NULL;
    ck_assert_int_ge(in_both, 2);
    ck_assert_int_eq(contains("one", "own"), m3_safetensors_count(plain) - in_both);
    m3_safetensors_close(plain);
    ck_assert_str_eq(m3_safetensors_metadata(own, "format"), "m3ref-dump");
    m3_safetensors_close(own);
}

/* What a tap with that operator has. */
static void check_fields(const struct m3_safetensors *file, const struct m3_tensor *t, enum m3_operator op,
                         const struct m3_weight *w, const struct m3_weight *bias)
{
    const struct m3_tensor *gain = beside(file, t->name, "gain"), *scale = beside(file, t->name, "weight");
    const struct m3_tensor *offset = beside(file, t->name, "bias"), *inside[2];
    const int norm = op == M3_OP_RMS_NORM || op == M3_OP_LAYER_NORM, mlp = op == M3_OP_GATED_MLP || op == M3_OP_EXPERT;
    ck_assert_msg((gain != NULL) == (op == M3_OP_LINEAR || mlp), "%s", t->name);
    ck_assert_msg((scale != NULL) == norm, "%s", t->name);
    ck_assert_msg((offset != NULL) == (bias && (norm || op == M3_OP_LINEAR)), "%s", t->name);
    if (op == M3_OP_LINEAR) ck_assert_msg(gain->rank == 1 && gain->shape[0] == w->rows, "%s", t->name);
    if (mlp) ck_assert_msg(same_shape(gain, t), "%s", t->name);
    for (int i = 0; i < 2; i++) {
        inside[i] = beside(file, t->name, i ? "inside_walk" : "inside");
        ck_assert_msg((inside[i] != NULL) == mlp, "%s", t->name);
        ck_assert_msg(!mlp || (same_shape(inside[i], t) && inside[i]->dtype == M3_F64), "%s", t->name);
    }
    for (int64_t i = 0; scale && i < scale->count; i++) {
        double want;
        m3_expand_f64(&want, w, 0, i, 1);
        ck_assert_msg(at(scale, i) == want, "%s", t->name);
    }
    for (int64_t i = 0; offset && i < offset->count; i++) {
        double want;
        m3_expand_f64(&want, bias, 0, i, 1);
        ck_assert_msg(at(offset, i) == want, "%s", t->name);
    }
}

/* Goal:  every tap has all of its companions.
 * Claim: bound and walk of the tap's shape, finite and not negative; n and f of the graph; gains of linear operators
 *        and gated MLPs, of these what rounding inside costs; weights and biases of norms; biases of linear operators;
 *        a margin for each decision.
 * Seen to fail with layer norms without weights, linear operators without biases, one step more. */
LOOP_TEST(complete, 3)
{
    static const struct {
        const char *model, *run;
        int64_t floats;
    } cases[] = {
        { "golden/tiny/model", SEEN, 150 },
        { "golden/mtp/model", MTP, 110 },
        { "golden/m2/model", M2, 60 },
    };
    struct m3_model *model;
    struct m3_error notes = { 0 };
    const struct m3_arithmetic how = m3_arithmetic_f32();
    int64_t floats = 0;
    ck_assert_int_eq(m3_model_open(&model, cases[_i].model, &notes, &error), 0);
    ck_assert_int_eq(m3ref("run %s --dump %s --bounds", cases[_i].run, in_folder("dump")), 0);
    struct m3_safetensors *file = opened(in_folder("dump"));
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(file, i);
        enum m3_tap tap;
        int64_t layer, n, f;
        if (m3_tap_parse(t->name, &tap, &layer) || m3_tap_table[tap].kind == M3_KIND_COUNTS) continue;
        const struct m3_semantics *s = &model->config.semantics;
        if (m3_tap_table[tap].kind == M3_KIND_CHOICES) {
            const struct m3_tensor *margin = beside(file, t->name, "margin");
            ck_assert_msg(margin && margin->rank == t->rank - 1 && margin->shape[0] == t->shape[0], "%s", t->name);
            ck_assert_msg((beside(file, t->name, "bias") != NULL) == (tap == M3_TAP_EXPERTS), "%s", t->name);
            continue;
        }
        const struct m3_tensor *bound = beside(file, t->name, "bound"), *walk = beside(file, t->name, "walk");
        ck_assert_msg(bound && walk && same_shape(bound, t) && same_shape(walk, t), "%s", t->name);
        ck_assert_msg(bound->dtype == M3_F64 && walk->dtype == M3_F64, "%s", t->name);
        for (int64_t k = 0; k < t->count; k++)
            ck_assert_msg(at(bound, k) >= 0 && at(walk, k) >= 0 && isfinite(at(bound, k) + at(walk, k)), "%s", t->name);
        m3_steps(&n, &f, model, s, tap, layer, &how);
        ck_assert_msg(number(file, t->name, "n") == n && number(file, t->name, "f") == f, "%s", t->name);
        check_fields(file, t, m3_graph_node(model, s, tap, layer)->op, m3_graph_weight(model, s, tap, layer, 0),
                     m3_graph_weight(model, s, tap, layer, 1));
        floats++;
    }
    ck_assert_int_ge(floats, cases[_i].floats);
    m3_safetensors_close(file);
    m3_model_close(model);
    m3_error_free(&notes);
}

/* Goal:  the case and the config are there in full.
 * Claim: ids, positions and grids as in the case file; no mask where it has none, and the mask where it has one; the
 *        text of config.json.
 * Seen to fail with positions only where they were given, video grids that are those of images, no mask. */
TEST(the_case)
{
    const char *const run[] = { SEEN, "golden/tiny/model --case golden/readings/mask_case.safetensors" };
    const char *const path[] = { "golden/vision/video_case.safetensors", "golden/readings/mask_case.safetensors" };
    static const char *const names[] = { "input_ids", "position_ids", "attention_mask", "image_grid_thw",
                                         "video_grid_thw" };
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(
            m3ref("run %s --dump %s --companions %s --taps fused", run[i], in_folder("dump"), in_folder("own")), 0);
        struct m3_safetensors *file = opened(in_folder("own")), *given = opened(path[i]);
        int64_t found = 0;
        for (int j = 0; j < 5; j++) {
            const struct m3_tensor *want = m3_safetensors_find(given, names[j]);
            char name[64];
            snprintf(name, sizeof name, "case.%s", names[j]);
            const struct m3_tensor *got = m3_safetensors_find(file, name);
            if (!want && j == 1) {
                for (int64_t k = 0; k < got->count; k++) ck_assert(at(got, k) == (double)k);
                continue;
            }
            ck_assert_msg((got != NULL) == (want != NULL), "%s", name);
            ck_assert_msg(!got || same_shape(got, want), "%s", name);
            for (int64_t k = 0; got && k < got->count; k++) ck_assert_msg(at(got, k) == at(want, k), "%s", name);
            found += got != NULL;
        }
        ck_assert_int_ge(found, 2);
        ck_assert_str_eq(m3_safetensors_metadata(file, "case.cached"), "0");
        size_t count;
        unsigned char *text = read_bytes("golden/tiny/model/config.json", &count);
        const char *config = m3_safetensors_metadata(file, "config");
        ck_assert(config && strlen(config) == count && memcmp(config, text, count) == 0);
        free(text);
        m3_safetensors_close(file);
        m3_safetensors_close(given);
    }
}

/* How many elements of a candidate's tap are beyond u (n + f) B of the reference: one subtraction, one comparison. */
static int64_t beyond(const struct m3_safetensors *reference, const struct m3_safetensors *candidate, const char *tap)
{
    const struct m3_tensor *r = need_tensor(reference, tap), *c = need_tensor(candidate, tap);
    const struct m3_tensor *bound = beside(reference, tap, "bound");
    const double steps = (double)(number(reference, tap, "n") + number(reference, tap, "f"));
    int64_t count = 0;
    ck_assert(bound && same_shape(r, c));
    for (int64_t i = 0; i < r->count; i++)
        count += !(fabs(at(c, i) - at(r, i)) <= (0x1p-24 + 0x1p-53) * steps * at(bound, i));
    return count;
}

/* |dx| of a row in L2. */
static double moved(const struct m3_tensor *r, const struct m3_tensor *c, int64_t row)
{
    const int64_t n = r->count / r->shape[0];
    double squares = 0;
    for (int64_t i = row * n; i < (row + 1) * n; i++) squares += (at(c, i) - at(r, i)) * (at(c, i) - at(r, i));
    return sqrt(squares);
}

/* The same of a linear tap whose input moved: gain_i |dx| more, and the bound of the moved input, 1 % more. */
static int64_t beyond_gain(const struct m3_safetensors *reference, const struct m3_safetensors *candidate,
                           const char *tap, const char *input)
{
    const struct m3_tensor *r = need_tensor(reference, tap), *c = need_tensor(candidate, tap);
    const struct m3_tensor *x = need_tensor(reference, input), *cx = need_tensor(candidate, input);
    const struct m3_tensor *bound = beside(reference, tap, "bound"), *gain = beside(reference, tap, "gain");
    const double steps = (double)(number(reference, tap, "n") + number(reference, tap, "f"));
    const int64_t width = gain->count;
    int64_t count = 0;
    for (int64_t i = 0; i < r->count; i++)
        count += !(fabs(at(c, i) - at(r, i)) <=
                   1.01 * (0x1p-24 * steps * at(bound, i) + at(gain, i % width) * moved(x, cx, i / width)));
    return count;
}

/* Element i of a float tap in a file, wrong by `by`. */
static void plant(const char *name, const char *tap, int64_t i, double by)
{
    struct m3_safetensors *file = opened(in_folder(name));
    uint64_t header;
    const struct m3_tensor *t = need_tensor(file, tap);
    const float wrong = (float)(at(t, i) + by);
    const long place = (long)((const char *)t->data - (const char *)m3_safetensors_header(file, &header)) + 4 * (long)i;
    m3_safetensors_close(file);
    FILE *out = fopen(in_folder(name), "r+b");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fseek(out, place, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(&wrong, sizeof wrong, 1, out), 1);
    ck_assert_int_eq(fclose(out), 0);
}

/* Goal:  a reader with one subtraction and one comparison passes correct floats and finds a planted error.
 * Given: the double run as reference; the float run, first taps with equal inputs, linear ones with moved inputs.
 * Claim: none beyond; with one element of each tap off by 0.1 one is.
 * Seen to fail with bounds 1e4 times as large. */
TEST(one_comparison)
{
    static const char *const first[] = { "vision.pixels", "vision.patch_embed", "embed" };
    static const char *const linear[][2] = {
        { "layers.1.q_proj", "layers.1.attn_norm" },
        { "layers.3.index.k_proj", "layers.3.attn_norm" },
        { "layers.0.mlp", "layers.0.mlp.act" },
        { "layers.4.attn_out", "layers.4.attn" },
        { "logits", "final_norm" },
        { "vision.layers.1.mlp", "vision.layers.1.act" },
        { "projector.out", "projector.act_2" },
        { "layers.2.moe.router_logits", "layers.2.mlp_norm" },
    };
    ck_assert_int_eq(m3ref("run " SEEN " --dump %s", in_folder("float")), 0);
    ck_assert_int_eq(m3ref("run " SEEN " --precision f64 --decisions %s --dump %s --bounds", in_folder("float"),
                           in_folder("double")),
                     0);
    struct m3_safetensors *r = opened(in_folder("double")), *c = opened(in_folder("float"));
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        ck_assert_msg(beyond(r, c, first[i]) == 0, "%s", first[i]);
    }
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++)
        ck_assert_msg(beyond_gain(r, c, linear[i][0], linear[i][1]) == 0, "%s", linear[i][0]);
    m3_safetensors_close(c);

    for (size_t i = 0; i < sizeof first / sizeof *first + sizeof linear / sizeof *linear; i++) {
        const int64_t j = (int64_t)i - (int64_t)(sizeof first / sizeof *first);
        const char *tap = j < 0 ? first[i] : linear[j][0];
        copy(in_folder("float"), in_folder("wrong"));
        plant("wrong", tap, 7, 0.1);
        c = opened(in_folder("wrong"));
        const int64_t count = j < 0 ? beyond(r, c, tap) : beyond_gain(r, c, tap, linear[j][1]);
        ck_assert_msg(count == 1, "%s: %d", tap, (int)count);
        m3_safetensors_close(c);
    }
    m3_safetensors_close(r);
}

/* Goal:  margins and the routers' biases are those of public code.
 * Given: goldens that the public PyTorch code made.
 * Claim: the double run's margins agree to 1e-12 of the largest score, or are both infinite; biases are equal.
 * Seen to fail with margins of scores without the bias. */
LOOP_TEST(margins, 6)
{
    static const struct {
        const char *run, *golden;
    } cases[] = {
        { TINY, "golden/tiny/golden.safetensors.gz" },
        { MTP, "golden/mtp/golden.safetensors.gz" },
        { M2, "golden/m2/golden.safetensors.gz" },
        { "golden/tiny/model --case golden/readings/case.safetensors --set pool=lse",
          "golden/readings/lse.safetensors.gz" },
        { "golden/tiny/model --case golden/readings/case.safetensors --set local_blocks=2",
          "golden/readings/local2.safetensors.gz" },
        { "golden/tiny/model --case golden/readings/case.safetensors --set init_blocks=1",
          "golden/readings/init1.safetensors.gz" },
    };
    ck_assert_int_eq(m3ref("run %s --precision f64 --dump %s --bounds", cases[_i].run, in_folder("dump")), 0);
    struct m3_safetensors *file = opened(in_folder("dump")), *golden = opened(cases[_i].golden);
    const struct m3_tensor *rows = m3_safetensors_find(golden, "rows");
    int64_t found = 0, finite = 0;
    for (int64_t i = 0; i < m3_safetensors_count(golden); i++) {
        const struct m3_tensor *want = m3_safetensors_at(golden, i);
        const char *end = strrchr(want->name, '.');
        const int is_bias = end && strcmp(end, ".bias") == 0;
        if (!is_bias && (!end || strcmp(end, ".margin") != 0)) continue;
        const struct m3_tensor *got = need_tensor(file, want->name);
        const int64_t width = want->count / want->shape[0];
        for (int64_t k = 0; k < want->count; k++) {
            const int64_t row = is_bias || !rows ? k / width : (int64_t)at(rows, k / width);
            const double x = at(got, row * width + k % width), y = at(want, k);
            ck_assert_msg(x == y || (!is_bias && fabs(x - y) <= 1e-11), "%s [%d]: got %.17g, want %.17g", want->name,
                          (int)k, x, y);
            finite += isfinite(y);
        }
        found++;
    }
    ck_assert_int_ge(found, 2);
    ck_assert_int_gt(finite, 10);
    m3_safetensors_close(file);
    m3_safetensors_close(golden);
}

/* Companions of rows from `first` on are those of the whole run. */
static int64_t same_rows(const char *whole_name, const char *part_name, int64_t first)
{
    struct m3_safetensors *whole = opened(in_folder(whole_name)), *part = opened(in_folder(part_name));
    int64_t count = 0;
    for (int64_t i = 0; i < m3_safetensors_count(part); i++) {
        const struct m3_tensor *x = m3_safetensors_at(part, i);
        const char *end = strrchr(x->name, '.');
        const int probed = end && strcmp(end, ".gain") == 0 && x->rank > 1;
        if (strncmp(x->name, "case.", 5) == 0 || strcmp(x->name, "rows") == 0 || probed) continue;
        const struct m3_tensor *y = need_tensor(whole, x->name);
        const uint64_t skip = y->bytes - x->bytes;
        ck_assert_msg(skip == 0 || skip == (uint64_t)first * (y->bytes / (uint64_t)y->shape[0]), "%s", x->name);
        ck_assert_msg(memcmp(x->data, (const char *)y->data + skip, x->bytes) == 0, "%s", x->name);
        count++;
    }
    m3_safetensors_close(whole);
    m3_safetensors_close(part);
    return count;
}

/* Goal:  after cached places, and from a later layer on, companions are those of one run over everything.
 * Given: ordered sums, which give the same bits; gains of MLPs, which are probed by rows, left out.
 * Claim: bit for bit.
 * Seen to fail with other numbers in the cached places. */
TEST(in_parts)
{
    const char *run = "run golden/tiny/model --linear ordered --ids ", *first = "5,9,3,77,14,20,33";
    const char *second = "8,101,54,12,7,60";
    const char *taps =
        "--taps '*norm,*proj,*rope,*.attn,*lse,*scores,*blocks,*experts,*routed,*out,*mid,*logits,fused'";
    ck_assert_int_eq(m3ref("%s%s,%s %s --dump %s --companions %s", run, first, second, taps, in_folder("whole.taps"),
                           in_folder("whole")),
                     0);
    ck_assert_int_eq(m3ref("%s%s --cache-out %s", run, first, in_folder("cache")), 0);
    ck_assert_int_eq(m3ref("%s%s --cache-in %s %s --dump %s --companions %s", run, second, in_folder("cache"), taps,
                           in_folder("later.taps"), in_folder("later")),
                     0);
    ck_assert_int_gt(same_rows("whole", "later", 7), 100);
    struct m3_safetensors *file = opened(in_folder("later"));
    ck_assert_str_eq(m3_safetensors_metadata(file, "case.cached"), "7");
    m3_safetensors_close(file);
    ck_assert_int_eq(m3ref("%s%s,%s --layers 2:4 --hidden %s %s --dump %s --companions %s", run, first, second,
                           in_folder("whole.taps"), taps, in_folder("part.taps"), in_folder("part")),
                     0);
    ck_assert_int_gt(same_rows("whole", "part", 0), 60);
}

/* Goal:  a tap alone has its companions too.
 * Claim: of moe.routed alone, whose parts nobody dumps, the whole allowance: n 0, f 1, a bound that is more than that
 *        of the sum and less than 1e4 times it; a gain; nothing but the tap, its companions and the case.
 * Seen to fail with the steps of the sum alone, without what the experts may be off. */
TEST(alone)
{
    ck_assert_int_eq(m3ref("run " TINY " --dump %s --bounds", in_folder("all")), 0);
    ck_assert_int_eq(m3ref("run " TINY " --dump %s --bounds --taps layers.2.moe.routed", in_folder("one")), 0);
    struct m3_safetensors *all = opened(in_folder("all")), *one = opened(in_folder("one"));
    const char *tap = "layers.2.moe.routed";
    const struct m3_tensor *of_sum = beside(all, tap, "bound"), *whole = beside(one, tap, "bound");
    const struct m3_tensor *got = need_tensor(one, tap), *want = need_tensor(all, tap);
    const double steps = (double)(number(all, tap, "n") + number(all, tap, "f"));
    ck_assert(got->bytes == want->bytes && memcmp(got->data, want->data, got->bytes) == 0);
    ck_assert(number(one, tap, "n") == 0 && number(one, tap, "f") == 1 && beside(one, tap, "gain"));
    ck_assert(!beside(all, tap, "gain"));
    for (int64_t i = 0; i < whole->count; i++)
        ck_assert(at(whole, i) > steps * at(of_sum, i) && at(whole, i) < 1e4 * steps * at(of_sum, i));
    ck_assert_int_eq(m3_safetensors_count(one), 4 + 2);
    m3_safetensors_close(all);
    m3_safetensors_close(one);
}

/* ---- what rounding inside costs */

/* Nearest number of BF16, ties to even. */
static double to_bf16(double x)
{
    int exponent;
    const double fraction = frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(fraction, 8)), exponent - 8);
}

static double keep(double x) { return x; }

typedef double store(double x);

/* One row of an expert, gate, up, each step of SwiGLU-OAI stored. */
static void expert_of(double *y, const double *x, const struct m3_weight *const w[3], const struct m3_config *c,
                      store *s)
{
    const int64_t H = w[0]->cols, F = w[0]->rows;
    double *act = calloc((size_t)F, sizeof *act), *row = calloc((size_t)(H + F), sizeof *row);
    for (int64_t i = 0; i < F; i++) {
        double in[2] = { 0, 0 };
        for (int k = 0; k < 2; k++) {
            m3_expand_f64(row, w[k], i, 0, H);
            for (int64_t h = 0; h < H; h++) in[k] += row[h] * x[h];
            in[k] = s(in[k]);
        }
        const double gate = fmin(in[0], c->swiglu_limit), up = fmax(fmin(in[1], c->swiglu_limit), -c->swiglu_limit);
        const double sigmoid = s(1 / (1 + exp(-s(c->swiglu_alpha * gate))));
        act[i] = s(s(up + 1) * s(gate * sigmoid));
    }
    for (int64_t h = 0; h < H; h++) {
        m3_expand_f64(row, w[2], h, 0, F);
        y[h] = 0;
        for (int64_t i = 0; i < F; i++) y[h] += row[i] * act[i];
    }
    free(act);
    free(row);
}

/* The experts of every slot; the shared one. */
static void weights_of(const struct m3_weight *w[3], const struct m3_model *model, enum m3_tap tap, int64_t layer,
                       int64_t expert)
{
    const struct m3_layer *l = &model->layers[layer];
    const struct m3_weight *of_expert[3] = { &l->experts[expert].w1, &l->experts[expert].w3, &l->experts[expert].w2 };
    for (int i = 0; i < 3; i++)
        w[i] = tap == M3_TAP_SHARED ? m3_graph_weight(model, &model->config.semantics, tap, layer, i) : of_expert[i];
}

/* Goal:  what experts make of values that were stored in BF16 inside is within what `.inside` allows, and not far.
 * Given: the double run of golden/tiny, whose activations reach the clamps; experts computed here, with gate, up, every
 *        step of the chain and the activation rounded to nearest, and without.
 * Claim: without, the tap; with, |d| <= u inside of every element, at most more than 2 % of it somewhere; mean of d^2
 *        over (u inside_walk)^2 / 3 from 0.01 to 1.
 * Seen to fail with a fiftieth of `.inside` and a tenth of `.inside_walk`, with both 100 times as large. */
LOOP_TEST(inside, 6)
{
    static const enum m3_tap taps[] = { M3_TAP_EXPERT_OUT, M3_TAP_SHARED };
    struct m3_model *model;
    struct m3_error notes = { 0 };
    ck_assert_int_eq(m3_model_open(&model, "golden/tiny/model", &notes, &error), 0);
    ck_assert_int_eq(m3ref("run " TINY " --precision f64 --dump %s --bounds", in_folder("dump")), 0);
    struct m3_safetensors *file = opened(in_folder("dump"));
    const int64_t H = model->config.H, layer = 2 + _i / 2, slots = _i % 2 ? 1 : model->config.K;
    char name[3][64];
    m3_tap_name(name[0], 64, taps[_i % 2], layer);
    m3_tap_name(name[1], 64, M3_TAP_MLP_NORM, layer);
    m3_tap_name(name[2], 64, M3_TAP_EXPERTS, layer);
    const struct m3_tensor *t = need_tensor(file, name[0]), *x = need_tensor(file, name[1]);
    const struct m3_tensor *ids = need_tensor(file, name[2]), *error_of = beside(file, name[0], "inside");
    const struct m3_tensor *walk = beside(file, name[0], "inside_walk");
    double *in = calloc((size_t)(3 * H), sizeof *in), *exact = in + H, *stored = in + 2 * H, most = 0, mean = 0;
    for (int64_t r = 0; r < t->count / H; r++) {
        const struct m3_weight *w[3];
        weights_of(w, model, taps[_i % 2], layer, (int64_t)at(ids, slots > 1 ? r : 0));
        for (int64_t h = 0; h < H; h++) in[h] = at(x, r / slots * H + h);
        expert_of(exact, in, w, &model->config, keep);
        expert_of(stored, in, w, &model->config, to_bf16);
        for (int64_t h = 0; h < H; h++) {
            const double d = stored[h] - exact[h], allowed = 0x1p-8 * at(error_of, r * H + h);
            const double sigma = 0x1p-8 * at(walk, r * H + h);
            ck_assert(fabs(exact[h] - at(t, r * H + h)) <= 1e-10);
            ck_assert_msg(fabs(d) <= allowed, "%s: %g of %g", name[0], d, allowed);
            most = fmax(most, fabs(d) / allowed);
            mean += 3 * d * d / (sigma * sigma) / (double)t->count;
        }
    }
    ck_assert_msg(most > 0.02 && mean > 0.01 && mean <= 1, "%s: most %g, mean %g", name[0], most, mean);
    free(in);
    m3_safetensors_close(file);
    m3_model_close(model);
}

/* Usage. */
TEST(refuses)
{
    ck_assert_int_eq(m3ref("run " TINY " --bounds"), 64);
    ck_assert_int_eq(m3ref("run " TINY " --companions %s", in_folder("own")), 64);
    ck_assert_int_eq(m3ref("run " TINY " --dump %s --companions ''", in_folder("dump")), 64);
    ck_assert_int_eq(m3ref("run " TINY " --dump %s --companions %s", in_folder("dump"), in_folder("dump")), 64);
    ck_assert(has("err", "--companions and --dump: got"));
    ck_assert_int_eq(m3ref("run " TINY " --dump %s --companions %s", in_folder("dump"), in_folder("no/where")), 74);
    ck_assert_int_eq(entries(), 2);
}
