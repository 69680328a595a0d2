/* Cases of several sequences: run, and judged sequence by sequence; candidates as engines store them.
 *
 * tests/candidates/padded, packed and packed_leak are of public PyTorch code (scripts/dump_batch.py).
 *
 * Seen to fail with: blocks anchored to the sequence whatever the reading says; padding that is not skipped; `sequences`
 * that begin at 1; a rank's part that is taken for the whole; parts that are joined in the order of their names. */
#include "program.h"

#include <math.h>

TIMEOUT(240);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model"
#define CANDIDATES "tests/candidates/"

static struct m3_safetensors *opened(const char *path)
{
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_safetensors_open(&file, path, &error), 0);
    return file;
}

struct part {
    const char *name;
    enum m3_dtype dtype;
    int rank;
    int64_t shape[4];
    const void *data;
};

static void write_parts(const char *path, const struct part *parts, int count)
{
    struct m3_writer *writer;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_writer_new(&writer, path, &error), 0);
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(m3_writer_tensor(writer, parts[i].name, parts[i].dtype, parts[i].rank, parts[i].shape, &error),
                         0);
    ck_assert_int_eq(m3_writer_begin(writer, &error), 0);
    for (int i = 0; i < count; i++) {
        uint64_t bytes = m3_dtype_bytes(parts[i].dtype);
        for (int d = 0; d < parts[i].rank; d++) bytes *= (uint64_t)parts[i].shape[d];
        ck_assert_int_eq(m3_writer_append(writer, i, parts[i].data, bytes, &error), 0);
    }
    ck_assert_int_eq(m3_writer_commit(writer, &error), 0);
}

static const int64_t slots[2][8] = { { 0, 0, 0, 5, 17, 9, 33, 2 }, { 0, 0, 0, 0, 0, 88, 4, 61 } };
static const int64_t seen[2][8] = { { 0, 0, 0, 1, 1, 1, 1, 1 }, { 0, 0, 0, 0, 0, 1, 1, 1 } };
static const char *const alone[2] = { "5,17,9,33,2", "88,4,61" };
static const int64_t lengths[2] = { 5, 3 };

static void write_padded(const char *path)
{
    const struct part parts[] = { { "input_ids", M3_I64, 2, { 2, 8 }, slots },
                                  { "attention_mask", M3_I64, 2, { 2, 8 }, seen } };
    write_parts(path, parts, 2);
}

/* Claim: a dump of several sequences holds the rows of runs of each alone, bit for bit, and numbers them; padding ids do
 * not matter. */
TEST(each_alone)
{
    write_padded(in_folder("case"));
    ck_assert_int_eq(m3ref("run " TINY " --case %s --dump %s", in_folder("case"), in_folder("all")), 0);
    struct m3_safetensors *all = opened(in_folder("all"));
    const int32_t *of = m3_safetensors_find(all, "sequences")->data, *rows = m3_safetensors_find(all, "rows")->data;
    ck_assert_int_eq(m3_safetensors_find(all, "rows")->count, 8);
    for (int b = 0, first = 0; b < 2; first += (int)lengths[b++]) {
        ck_assert_int_eq(m3ref("run " TINY " --ids %s --dump %s", alone[b], in_folder("one")), 0);
        struct m3_safetensors *one = opened(in_folder("one"));
        for (int r = 0; r < lengths[b]; r++) ck_assert(of[first + r] == b && rows[first + r] == r);
        for (int64_t i = 0; i < m3_safetensors_count(one); i++) {
            const struct m3_tensor *t = m3_safetensors_at(one, i), *a = m3_safetensors_find(all, t->name);
            if (strstr(t->name, ".bias") || strstr(t->name, "block_scores")) continue;
            ck_assert_ptr_nonnull(a);
            const size_t width = t->bytes / (size_t)lengths[b];
            ck_assert_int_eq(memcmp((const char *)a->data + (size_t)first * width, t->data, t->bytes), 0);
        }
        m3_safetensors_close(one);
    }
    m3_safetensors_close(all);
    ck_assert_int_eq(m3ref("blame " TINY " %s --case %s", in_folder("all"), in_folder("case")), 0);
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* Claim: with block_anchor=slot the score of a block is the greatest over the sequence's keys in these slots, by the
 * formula written out here; the plain operators and the others agree. Blocks of 4: the first token of sequence 0 is in
 * slot 3, the last of the first block, and that of sequence 1 in slot 5, the second of the second block. */
LOOP_TEST(anchored_to_slots, 2)
{
    static const int before[2] = { 3, 5 };
    enum { G = 2, X = 16, BLOCK = 4 };
    write_padded(in_folder("case"));
    ck_assert_int_eq(m3ref("run " TINY " --case %s --set block_anchor=slot %s --dump %s", in_folder("case"),
                           _i ? "--ops plain" : "", in_folder("all")),
                     0);
    struct m3_safetensors *all = opened(in_folder("all"));
    const float *q = m3_safetensors_find(all, "layers.2.index.q_rope")->data;
    const float *k = m3_safetensors_find(all, "layers.2.index.k_rope")->data;
    const struct m3_tensor *m = m3_safetensors_find(all, "layers.2.index.block_scores");
    const int64_t B = m->shape[2];
    for (int b = 0, first = 0; b < 2; first += (int)lengths[b++])
        for (int t = 0; t < lengths[b]; t++)
            for (int i = 0; i < G * (int)B; i++) {
                const int g = i / (int)B, block = i % (int)B + before[b] / BLOCK;
                double want = -INFINITY;
                for (int j = 0; j <= t; j++)
                    if ((before[b] + j) / BLOCK == block)
                        want = fmax(want, dot(q + ((first + t) * G + g) * X, k + (first + j) * X, X));
                const double got = ((const float *)m->data)[(first + t) * G * B + i];
                ck_assert_msg(got == want || fabs(got - want) <= 1e-5, "sequence %d, row %d: %g, not %g", b, t, got,
                              want);
            }
    m3_safetensors_close(all);
    ck_assert_int_eq(m3ref("blame " TINY " %s --case %s --set block_anchor=slot", in_folder("all"), in_folder("case")),
                     0);
}

/* Claim: public code passes, packed and, with blocks anchored to slots, padded; otherwise the reading is named; a
 * sequence that sees the one before it is named. */
TEST(public_code)
{
    ck_assert_int_eq(m3ref("check " TINY " " CANDIDATES "packed.safetensors.gz --map transformers --case " CANDIDATES
                           "packed_case.safetensors"),
                     0);
    ck_assert_int_eq(m3ref("check " TINY " " CANDIDATES "padded.safetensors.gz --map transformers --case " CANDIDATES
                           "padded_case.safetensors --set block_anchor=slot"),
                     0);
    ck_assert_int_eq(m3ref("check " TINY " " CANDIDATES "padded.safetensors.gz --map transformers --case " CANDIDATES
                           "padded_case.safetensors"),
                     1);
    ck_assert(has("out", "with --set block_anchor=slot nothing is wrong"));
    ck_assert_int_eq(m3ref("check " TINY " " CANDIDATES
                           "packed_leak.safetensors.gz --map transformers --json --case " CANDIDATES
                           "packed_case.safetensors"),
                     1);
    ck_assert(has("out", "in sequence 1, row "));
    ck_assert(has("out", "\"sequence\":1"));
}

/* Claim: blame and check write their report files of several sequences too; taps that are missing are skipped.
 * Seen to fail with the names of missing taps, and with the sides of the comparison, left behind in the parts. */
LOOP_TEST(report_files, 2)
{
    static const char *const commands[] = { "blame", "check" };
    ck_assert_int_eq(m3ref("%s " TINY " " CANDIDATES "packed_leak.safetensors.gz --map transformers --case " CANDIDATES
                           "packed_case.safetensors --junit %s --html %s",
                           commands[_i], in_folder("x"), in_folder("h")),
                     1);
    ck_assert(has("x", "sequence 1, row ") && has("x", "<skipped"));
    ck_assert(has("h", "sequence 1, row "));
}

/* Claim: a padded candidate is stripped, and a wrong row is named by its sequence in every report. */
TEST(padded_candidate)
{
    enum { H = 96 };
    static float x[2][8][H];
    write_padded(in_folder("case"));
    ck_assert_int_eq(
        m3ref("run " TINY " --case %s --precision f64 --bounds --dump %s", in_folder("case"), in_folder("truth")), 0);
    struct m3_safetensors *truth = opened(in_folder("truth"));
    const double *embed = m3_safetensors_find(truth, "embed")->data;
    for (int b = 0, first = 0; b < 2; first += (int)lengths[b++])
        for (int s = 0; s < 8; s++)
            for (int h = 0; h < H; h++)
                x[b][s][h] = seen[b][s] ? (float)embed[(first + s - (8 - (int)lengths[b])) * H + h] : 1000.0f;
    m3_safetensors_close(truth);
    const struct part part = { "embed", M3_F32, 3, { 2, 8, H }, x };
    write_parts(in_folder("good"), &part, 1);
    ck_assert_int_eq(m3ref("compare %s %s", in_folder("truth"), in_folder("good")), 0);
    x[1][7][5] += 1;
    write_parts(in_folder("bad"), &part, 1);
    ck_assert_int_eq(m3ref("compare %s %s --junit %s --html %s", in_folder("truth"), in_folder("bad"), in_folder("x"),
                           in_folder("h")),
                     1);
    ck_assert(has("out", "embed sequence 1, row 2, channel 5"));
    ck_assert(has("x", "sequence 1, row 2"));
    ck_assert(has("h", "sequence 1, row 2"));
    ck_assert_int_eq(m3ref("blame " TINY " %s --case %s --json", in_folder("bad"), in_folder("case")), 1);
    ck_assert(has("out", "\"index\":[2,5],\"sequence\":1"));
}

/* ---- folders of files */

/* Claim: parts of heads are joined, partial sums added, equal tensors compared; names are ordered by their numbers. Of
 * taps that differ the first in the model is told, not the first in the file.
 * Seen to fail, of the latter, with the first in the file. */
LOOP_TEST(ranks, 2)
{
    static float q[2][5][3][20], out[2][5][96], mid[2][5][96], mlp[2][5][96];
    ck_assert_int_eq(m3ref("run " TINY " --ids %s --dump %s", alone[0], in_folder("one")), 0);
    struct m3_safetensors *one = opened(in_folder("one"));
    const float *heads = m3_safetensors_find(one, "layers.0.q_proj")->data;
    const float *sum = m3_safetensors_find(one, "layers.0.attn_out")->data;
    for (int k = 0; k < 2; k++)
        for (int t = 0; t < 5; t++) {
            memcpy(q[k][t], heads + (t * 6 + 3 * k) * 20, sizeof q[k][t]);
            memcpy(mid[k][t], (const float *)m3_safetensors_find(one, "layers.0.mid")->data + t * 96, sizeof mid[k][t]);
            memcpy(mlp[k][t], (const float *)m3_safetensors_find(one, "layers.0.mlp")->data + t * 96, sizeof mlp[k][t]);
            for (int h = 0; h < 96; h++) out[k][t][h] = sum[t * 96 + h] / 2; /* exact */
        }
    ck_assert_int_eq(mkdir(in_folder("ranks"), 0700), 0);
    mid[1][3][7] += (float)_i;
    mlp[1][1][2] += (float)_i;
    static const char *const names[2] = { "ranks/rank_9.safetensors", "ranks/rank_10.safetensors" };
    for (int k = 0; k < 2; k++) {
        const struct part parts[] = { { "layers.0.q_proj", M3_F32, 3, { 5, 3, 20 }, q[k] },
                                      { "layers.0.attn_out", M3_F32, 2, { 5, 96 }, out[k] },
                                      { "layers.0.mlp", M3_F32, 2, { 5, 96 }, mlp[k] },
                                      { "layers.0.mid", M3_F32, 2, { 5, 96 }, mid[k] } };
        write_parts(in_folder(names[k]), parts, 4);
    }
    write_text(in_folder("map.json"), "{\"files\": \"ranks\", \"rules\": {\"layers.{l}.attn_out\": \"sum\"}}");
    m3_safetensors_close(one);
    const int status = m3ref("compare %s %s --map %s", in_folder("one"), in_folder("ranks"), in_folder("map.json"));
    ck_assert_int_eq(status, _i ? 3 : 0);
    if (_i) ck_assert(has("err", "layers.0.mid [3, 7]: got ") && has("err", "differ in 1 of 5 rows"));
    if (_i) ck_assert_int_eq(error_lines(), 1);
    else ck_assert(has("out", "4 of 4 stages judged"));
}

/* Claim: the rows that each rank of expert parallelism computed for some tokens are added where its list says, for
 * compare, blame and check; another list is found wrong at this tap.
 * Seen to fail with lists ignored, and with the rows of a case not known to the map. */
LOOP_TEST(scattered_experts, 2)
{
    static const char *const names[2] = { "ranks/rank0.safetensors", "ranks/rank1.safetensors" };
    static int64_t tokens[2][3] = { { 4, 0, 2 }, { 1, 2, 3 } };
    static float rows[2][3][96];
    ck_assert_int_eq(m3ref("run " TINY " --ids %s --dump %s", alone[0], in_folder("one")), 0);
    struct m3_safetensors *one = opened(in_folder("one"));
    const struct m3_tensor *routed = m3_safetensors_find(one, "layers.2.moe.routed");
    ck_assert_ptr_nonnull(routed);
    ck_assert_int_eq(mkdir(in_folder("ranks"), 0700), 0);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 3; i++)
            for (int h = 0; h < 96; h++)
                rows[k][i][h] = ((const float *)routed->data)[tokens[k][i] * 96 + h] / (tokens[k][i] == 2 ? 2 : 1);
        if (_i && k == 1) tokens[k][0] = 3, tokens[k][2] = 1;
        const struct part parts[] = { { "moe.2.rows", M3_F32, 2, { 3, 96 }, rows[k] },
                                      { "moe.2.tokens", M3_I64, 1, { 3 }, tokens[k] } };
        write_parts(in_folder(names[k]), parts, 2);
    }
    if (_i) tokens[1][0] = 1, tokens[1][2] = 3;
    m3_safetensors_close(one);
    write_text(in_folder("map.json"),
               "{\"files\": \"ranks\", \"rules\": {\"*\": \"sum\"}, \"taps\": {\"layers.{l}.moe.routed\":"
               " {\"from\": [\"moe.{l}.rows\", \"moe.{l}.tokens\"], \"steps\": [{\"scatter\": \"T\"}]}}}");
    int status = m3ref("compare %s %s --map %s", in_folder("one"), in_folder("ranks"), in_folder("map.json"));
    ck_assert_int_eq(status, _i);
    ck_assert(has("out", _i ? "fail  layers.2.moe.routed" : "1 of 1 stage judged"));
    status = m3ref("check " TINY " %s --ids %s --map %s", in_folder("ranks"), alone[0], in_folder("map.json"));
    ck_assert_int_eq(status, _i);
    ck_assert(has("out", "layers.2.moe.routed"));
}

/* Claim: the outputs of single experts stand on three ranks in any order, beside the numbers of their slots; to the
 * experts of the last rank no token was sent. Two slots exchanged are found wrong.
 * Seen to fail with T in place of T K. */
LOOP_TEST(slots_of_experts, 2)
{
    enum { SLOTS = 5 * 5, H = 96 };
    static const char *const names[3] = { "ranks/rank0.safetensors", "ranks/rank1.safetensors",
                                          "ranks/rank2.safetensors" };
    static float rows[SLOTS][H];
    static int32_t slots[SLOTS];
    ck_assert_int_eq(m3ref("run " TINY " --ids %s --dump %s", alone[0], in_folder("one")), 0);
    struct m3_safetensors *one = opened(in_folder("one"));
    const struct m3_tensor *outputs = m3_safetensors_find(one, "layers.2.moe.expert_out");
    const struct m3_tensor *experts = m3_safetensors_find(one, "layers.2.moe.experts");
    ck_assert(outputs && experts && experts->count == SLOTS && outputs->count == SLOTS * H);
    ck_assert_int_eq(mkdir(in_folder("ranks"), 0700), 0);
    for (int k = 0; k < 3; k++) {
        int n = 0;
        for (int slot = SLOTS - 1; slot >= 0; slot--) {
            if (k == 2 || ((const int32_t *)experts->data)[slot] % 2 != k) continue;
            memcpy(rows[n], (const float *)outputs->data + (size_t)slot * H, sizeof rows[n]);
            slots[n++] = slot;
        }
        ck_assert(k == 2 ? n == 0 : n > 1);
        if (_i && k == 0) slots[0] += slots[1], slots[1] = slots[0] - slots[1], slots[0] -= slots[1];
        const struct part parts[] = { { "moe.2.out", M3_F32, 2, { n, H }, rows },
                                      { "moe.2.slots", M3_I32, 1, { n }, slots } };
        write_parts(in_folder(names[k]), parts, 2);
    }
    m3_safetensors_close(one);
    write_text(
        in_folder("map.json"),
        "{\"files\": \"ranks\", \"rules\": {\"*\": \"sum\"}, \"taps\": {\"layers.{l}.moe.expert_out\": {\"from\":"
        " [\"moe.{l}.out\", \"moe.{l}.slots\"], \"steps\": [{\"scatter\": \"TK\"}, {\"shape\": [\"T\", \"K\", \"H\"]}]}}}");
    ck_assert_int_eq(m3ref("compare %s %s --map %s", in_folder("one"), in_folder("ranks"), in_folder("map.json")), _i);
    ck_assert(has("out", _i ? "fail  layers.2.moe.expert_out" : "1 of 1 stage judged"));
}

/* Claim: chunks of the rows are joined in the order of their numbers. */
TEST(chunks)
{
    ck_assert_int_eq(m3ref("run " TINY " --ids %s --dump %s", alone[0], in_folder("one")), 0);
    struct m3_safetensors *one = opened(in_folder("one"));
    const float *x = m3_safetensors_find(one, "layers.0.out")->data;
    ck_assert_int_eq(mkdir(in_folder("chunks"), 0700), 0);
    const struct part first = { "layers.0.out", M3_F32, 2, { 4, 96 }, x };
    const struct part last = { "layers.0.out", M3_F32, 2, { 1, 96 }, x + 4 * 96 };
    write_parts(in_folder("chunks/step2.safetensors"), &first, 1);
    write_parts(in_folder("chunks/step10.safetensors"), &last, 1);
    write_text(in_folder("map.json"), "{\"files\": \"chunks\"}");
    m3_safetensors_close(one);
    ck_assert_int_eq(m3ref("compare %s %s --map %s", in_folder("one"), in_folder("chunks"), in_folder("map.json")), 0);
    ck_assert_int_eq(m3ref("compare %s %s", in_folder("one"), in_folder("chunks")), 64);
}

/* ---- bad input */

static const int64_t hole[2][3] = { { 1, 0, 1 }, { 1, 1, 1 } }, nothing[2][3] = { { 1, 1, 1 }, { 0, 0, 0 } };
static const int64_t ids[6] = { 1, 2, 3, 4, 5, 6 }, down[4] = { 0, 4, 2, 6 }, early[2] = { 0, 5 }, late[2] = { 1, 6 };

static const struct {
    struct part parts[2];
    const char *says;
} bad[] = {
    { { { "input_ids", M3_I64, 2, { 2, 3 }, ids }, { "attention_mask", M3_I64, 2, { 2, 3 }, hole } },
      "sequence 0, slot 1: got 0 between tokens" },
    { { { "input_ids", M3_I64, 2, { 2, 3 }, ids }, { "attention_mask", M3_I64, 2, { 2, 3 }, nothing } },
      "sequence 1: got padding alone" },
    { { { "input_ids", M3_I64, 2, { 2, 3 }, ids }, { "attention_mask", M3_I64, 2, { 3, 2 }, hole } },
      "attention_mask: got [3,2], expected [2,3]" },
    { { { "input_ids", M3_I64, 1, { 6 }, ids }, { "cu_seqlens", M3_I64, 1, { 4 }, down } },
      "cu_seqlens[2]: got 2 after 4" },
    { { { "input_ids", M3_I64, 1, { 6 }, ids }, { "cu_seqlens", M3_I64, 1, { 2 }, early } },
      "cu_seqlens[1]: got 5, expected 6" },
    { { { "input_ids", M3_I64, 1, { 6 }, ids }, { "cu_seqlens", M3_I64, 1, { 2 }, late } },
      "cu_seqlens[0]: got 1, expected 0" },
    { { { "input_ids", M3_I64, 2, { 2, 3 }, ids }, { "pixel_values", M3_I64, 2, { 2, 3 }, ids } },
      "pixel_values: got pictures with several sequences" },
};

/* Claim: one line, status 65, nothing written. */
LOOP_TEST(bad_cases, sizeof bad / sizeof bad[0])
{
    write_parts(in_folder("case"), bad[_i].parts, 2);
    ck_assert_int_eq(m3ref("run " TINY " --case %s --dump %s", in_folder("case"), in_folder("dump")), 65);
    ck_assert(has("err", bad[_i].says));
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(!exists("dump"));
    ck_assert_int_eq(entries(), 3); /* case, out, err */
}

/* Claim: a candidate with a row of no sequence is refused, as are options for one sequence. */
TEST(bad_candidates)
{
    static const int32_t of[2] = { 0, 2 }, rows[2] = { 0, 0 };
    static float x[2][96];
    const struct part parts[] = { { "sequences", M3_I32, 1, { 2 }, of },
                                  { "rows", M3_I32, 1, { 2 }, rows },
                                  { "embed", M3_F32, 2, { 2, 96 }, x } };
    write_padded(in_folder("case"));
    write_parts(in_folder("candidate"), parts, 3);
    ck_assert_int_eq(m3ref("blame " TINY " %s --case %s", in_folder("candidate"), in_folder("case")), 65);
    ck_assert(has("err", "sequences[1]: got 2, expected 0 to 1: a row of no sequence"));
    ck_assert_int_eq(m3ref("run " TINY " --case %s --cache-out %s", in_folder("case"), in_folder("cache")), 64);
    ck_assert(has("err", "--cache-out: got it with a case of several sequences"));
    ck_assert(!exists("cache"));
    ck_assert_int_eq(m3ref("generate " TINY " --case %s", in_folder("case")), 65);
    ck_assert(has("err", "only run, grad, compare, blame and check take several"));
}

/* Claim: what takes only one sequence refuses several by a line that says so; an option of usage by status 64.
 * Seen to fail with the envelope's case compared before the number of sequences. */
TEST(only_one_sequence)
{
    static const struct {
        const char *line;
        int status;
    } refused[] = {
        { "compare @/d @/d --envelope @/e", 64 },
        { "check " TINY " @/d --case @/case --layers 1:2", 64 },
        { "run " TINY " --case @/case --hidden @/d --layers 1:2", 64 },
        { "run " TINY " --case @/case --decisions @/d", 64 },
        { "generate " TINY " --case @/case", 65 },
        { "explain " TINY " --case @/case --tap logits --token 1 --channel 0", 65 },
        { "envelope " TINY " --case @/case --profile bf16 --runs 1 --out @/e2", 65 },
        { "picture @/d @/picture.html", 65 },
        { "op add --make @/cases --from @/d --tap layers.0.mid --model " TINY, 65 },
    };
    char line[400];
    write_padded(in_folder("case"));
    ck_assert_int_eq(m3ref("run " TINY " --case %s --dump %s", in_folder("case"), in_folder("d")), 0);
    ck_assert_int_eq(
        m3ref("envelope " TINY " --ids 1,2,3 --profile fp32 --runs 1 --taps logits --out %s", in_folder("e")), 0);
    for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
        ck_assert_int_eq(m3ref("%s", with_folder(line, refused[i].line)), refused[i].status);
        ck_assert_msg(has("err", "several sequences") && error_lines() == 1, "%s", refused[i].line);
    }
}
