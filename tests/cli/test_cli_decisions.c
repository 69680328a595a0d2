/* `m3ref run --decisions DUMP`: a run that follows the selected blocks, experts and weights of a dump is the run that
 * chose them, bit for bit; what no operator can take does not enter a run. */
#include "program.h"

#include <math.h>
#include <stdint.h>

#include "base/weight.h"
#include "same_tensors.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model --case golden/tiny/case.safetensors --linear ordered"
#define MTP "golden/mtp/model --case golden/mtp/case.safetensors --linear ordered"
#define M2 "golden/m2/model --case golden/m2/case.safetensors --linear ordered"

static struct m3_error error;

static const char *build(void) { return getenv("BUILD") ? getenv("BUILD") : "build"; }

/* How many tensors of two files differ. */
static int differing(const char *a_name, const char *b_name)
{
    struct m3_safetensors *a, *b;
    int count = 0;
    ck_assert_int_eq(m3_safetensors_open(&a, in_folder(a_name), &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&b, in_folder(b_name), &error), M3_OK);
    for (int64_t i = 0; i < m3_safetensors_count(a); i++) {
        const struct m3_tensor *x = m3_safetensors_at(a, i), *y = m3_safetensors_find(b, x->name);
        count += !y || x->bytes != y->bytes || memcmp(x->data, y->data, x->bytes) != 0;
    }
    m3_safetensors_close(a);
    m3_safetensors_close(b);
    return count;
}

/* Overwrites bytes of a tensor of a dump. */
static void poke(const char *name, const char *tensor, size_t offset, const void *bytes, size_t count)
{
    struct m3_safetensors *file;
    uint64_t header;
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder(name), &error), M3_OK);
    const struct m3_tensor *t = m3_safetensors_find(file, tensor);
    ck_assert_ptr_nonnull(t);
    long at = (long)((const char *)t->data - (const char *)m3_safetensors_header(file, &header)) + (long)offset;
    m3_safetensors_close(file);
    FILE *out = fopen(in_folder(name), "r+b");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_eq(fseek(out, at, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(bytes, 1, count, out), count);
    ck_assert_int_eq(fclose(out), 0);
}

static const struct {
    const char *model, *other;
    int apart;
} others[] = {
    { TINY, "--set selection=shared", 0 },
    { TINY, "--set selection=shared --precision f64", 0 },
    { TINY, "--set pool=lse", 3 },          /* block scores differ too, and are not followed */
    { TINY, "--ops ./%s/tests/wrong_route.so", 0 },
    { M2, "--ops ./%s/tests/wrong_route.so", 0 },
    { MTP, "--set selection=shared --ops ./%s/tests/wrong_route.so", 0 },
};

/* Goal:  to choose as another run did is to be that run; blocks, experts, weights, in modules too, in float and double.
 * Claim: without the dump most taps differ, with it none, except for block scores where they are pooled otherwise.
 * Seen to fail with blocks, experts or weights not followed, and with modules left out. */
LOOP_TEST(follows_another_run, sizeof others / sizeof *others)
{
    const char *model = others[_i].model, *precision = strstr(others[_i].other, "f64") ? "--precision f64" : "";
    char other[200];
    snprintf(other, sizeof other, others[_i].other, build());
    ck_assert_int_eq(m3ref("run %s %s --dump %s", model, other, in_folder("theirs")), 0);
    ck_assert_int_eq(m3ref("run %s %s --dump %s", model, precision, in_folder("ours")), 0);
    ck_assert_int_eq(
        m3ref("run %s %s --decisions %s --dump %s", model, precision, in_folder("theirs"), in_folder("followed")), 0);
    ck_assert_int_ge(differing("theirs", "ours"), 20);
    ck_assert_int_eq(differing("theirs", "followed"), others[_i].apart);
}

/* A float's dump in double: its experts, and its weights, widened. Seen to fail with weights written as floats. */
TEST(float_in_double)
{
    ck_assert_int_eq(m3ref("run " TINY " --ops ./%s/tests/wrong_route.so --dump %s", build(), in_folder("float")), 0);
    ck_assert_int_eq(
        m3ref("run " TINY " --precision f64 --decisions %s --dump %s", in_folder("float"), in_folder("double")), 0);
    struct m3_safetensors *f, *d;
    ck_assert_int_eq(m3_safetensors_open(&f, in_folder("float"), &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&d, in_folder("double"), &error), M3_OK);
    for (int l = 2; l < 5; l++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.moe.weights", l);
        const struct m3_tensor *narrow = m3_safetensors_find(f, name), *wide = m3_safetensors_find(d, name);
        ck_assert(narrow && wide && narrow->count == wide->count && wide->dtype == M3_F64);
        for (int64_t i = 0; i < wide->count; i++)
            ck_assert(m3_decode(M3_F64, wide->data, i) == m3_decode(M3_F32, narrow->data, i));
    }
    m3_safetensors_close(f);
    m3_safetensors_close(d);
}

/* A run's own decisions change nothing, also where a dump holds some layers, or other taps too, and where the run goes
 * on after a cached prefix. */
TEST(follows_itself)
{
    static const char *const kept[] = { "*", "layers.3.*", "*.experts,*.weights", "*.index.blocks" };
    ck_assert_int_eq(m3ref("run " TINY " --dump %s", in_folder("all")), 0);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(m3ref("run " TINY " --taps '%s' --dump %s", kept[i], in_folder("some")), 0);
        ck_assert_int_eq(m3ref("run " TINY " --decisions %s --dump %s", in_folder("some"), in_folder("again")), 0);
        same_tensors(in_folder("all"), in_folder("again"));
    }
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 5,6,7,8,9 --cache-out %s", in_folder("cache")), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(m3ref("run golden/tiny/model --ids 10,11,12 --cache-in %s %s%s --dump %s", in_folder("cache"),
                               i ? "--decisions " : "", i ? in_folder("first") : "", in_folder(i ? "second" : "first")),
                         0);
    same_tensors(in_folder("first"), in_folder("second"));
}

/* A dump that does not number its rows holds those of the call, wherever they stand in the sequence.
 * Seen to fail with rows counted from the cached prefix's start. */
TEST(rows_without_numbers)
{
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 5,6,7,8,9 --cache-out %s", in_folder("cache")), 0);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 10,11,12 --ops ./%s/tests/wrong_route.so --dump %s", build(),
                           in_folder("alone")),
                     0);
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 10,11,12 --cache-in %s --decisions %s --dump %s",
                           in_folder("cache"), in_folder("alone"), in_folder("followed")),
                     0);
    struct m3_safetensors *a, *f;
    ck_assert_int_eq(m3_safetensors_open(&a, in_folder("alone"), &error), M3_OK);
    ck_assert_int_eq(m3_safetensors_open(&f, in_folder("followed"), &error), M3_OK);
    const struct m3_tensor *x = m3_safetensors_find(a, "layers.2.moe.experts");
    const struct m3_tensor *y = m3_safetensors_find(f, "layers.2.moe.experts");
    ck_assert(x && y && x->bytes == y->bytes && memcmp(x->data, y->data, x->bytes) == 0);
    m3_safetensors_close(a);
    m3_safetensors_close(f);
}

/* The golden holds 38 of 2305 rows: those are followed, the others choose by themselves.
 * Seen to fail with rows taken by their place in the file. */
TEST(some_rows)
{
    const char *block128 = "golden/block128/model --case golden/block128/case.safetensors";
    ck_assert_int_eq(m3ref("run %s --dump %s", block128, in_folder("ours")), 0);
    ck_assert_int_eq(m3ref("run %s --decisions golden/block128/golden.safetensors.gz --dump %s --taps "
                           "'*.blocks,*.experts,*.out'",
                           block128, in_folder("followed")),
                     0);
    ck_assert_int_eq(m3ref("compare golden/block128/golden.safetensors.gz %s", in_folder("followed")), 0);
    ck_assert_int_eq(
        m3ref("compare --force %s %s --taps '*.blocks,*.experts'", in_folder("ours"), in_folder("followed")), 0);
}

/* What no operator can take, and dumps that are not of this run. Nothing is written. */
TEST(refused)
{
    static const struct {
        const char *tensor;
        size_t offset;
        int32_t id;
        const char *line;
    } wrong[] = {
        { "layers.2.index.blocks", 0, 1, "layers.2.index.blocks: row 0: got others, expected visible blocks" },
        { "layers.2.index.blocks", 4, 0, "layers.2.index.blocks: row 0: got others, expected visible blocks" },
        { "layers.2.index.blocks", 0, -2, "row 0: got others, expected visible blocks, strictly ascending" },
        { "layers.2.moe.experts", 4, 11, "layers.2.moe.experts: row 0: got others, expected experts from 0 to E-1" },
        { "layers.2.moe.experts", 0, -1, "expected experts from 0 to E-1" },
    };
    ck_assert_int_eq(m3ref("run " TINY " --dump %s", in_folder("good")), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        copy(in_folder("good"), in_folder("bad"));
        poke("bad", wrong[i].tensor, wrong[i].offset, &wrong[i].id, sizeof wrong[i].id);
        ck_assert_int_eq(m3ref("run " TINY " --decisions %s --dump %s", in_folder("bad"), in_folder("none")), 65);
        ck_assert(has("err", wrong[i].line));
        ck_assert(!exists("none"));
    }
    const float nan = NAN;
    copy(in_folder("good"), in_folder("bad"));
    poke("bad", "layers.3.moe.weights", 0, &nan, sizeof nan);
    ck_assert_int_eq(m3ref("run " TINY " --decisions %s", in_folder("bad")), 65);
    ck_assert(has("err", "layers.3.moe.weights: row 0: got others, expected finite weights"));

    ck_assert_int_eq(m3ref("run " TINY " --taps '*.experts' --dump %s", in_folder("bad")), 0);
    ck_assert_int_eq(m3ref("run " TINY " --decisions %s", in_folder("bad")), 65);
    ck_assert(has("err", "layers.2.moe.weights: got no such tensor, expected it together with layers.2.moe.experts"));
    ck_assert_int_eq(m3ref("run " TINY " --taps embed --dump %s", in_folder("bad")), 0);
    ck_assert_int_eq(m3ref("run " TINY " --decisions %s", in_folder("bad")), 65);
    ck_assert(has("err", "got no index.blocks and no moe.experts, expected choices to follow"));
    ck_assert_int_eq(m3ref("run golden/tiny/model --ids 1,2,3 --decisions %s", in_folder("good")), 65);
    ck_assert(has("err", "case_sha256: got "));
    ck_assert_int_eq(m3ref("run " M2 " --decisions %s", in_folder("good")), 65);
    ck_assert(has("err", "model_sha256: got "));
    ck_assert_int_eq(m3ref("run " TINY " --decisions %s", in_folder("absent")), 66);
    ck_assert_int_eq(m3ref("run " TINY " --decisions golden/tiny/model/config.json"), 65);
}
