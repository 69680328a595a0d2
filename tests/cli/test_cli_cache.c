/* `m3ref run --cache-in F --cache-out F`: runs that hand their cache on are one run over everything; a cache file that
 * is not this model's, or not whole, does not enter a run, and nothing is written then. */
#include "program.h"

#include <math.h>
#include <stdint.h>

#include "base/sha256.h"
#include "base/weight.h"
#include "same_tensors.h"

TIMEOUT(120);
FIXTURE(make_folder, remove_folder);

#define TINY "golden/tiny/model"
#define MTP "golden/mtp/model"
#define OTHER "other"

enum { PREFIX = 61, MIDDLE = 18, REST = 14, ALL = PREFIX + MIDDLE + REST };

static struct m3_error error;

/* Tokens [from, from + count) of a fixed sequence, for --ids. Valid until four more calls. */
static const char *ids(int64_t from, int64_t count)
{
    static char texts[4][1024];
    static int next;
    char *text = texts[next = (next + 1) % 4];
    int length = 0;
    for (int64_t t = from; t < from + count; t++)
        length +=
            snprintf(text + length, 1024 - (size_t)length, "%s%d", t > from ? "," : "", (int)(t * t * 5 + t) % 79 + 10);
    return text;
}

static struct m3_safetensors *open_file(const char *name)
{
    struct m3_safetensors *file;
    int status = m3_safetensors_open(&file, in_folder(name), &error);
    if (status) m3_error_print(&error, stderr);
    ck_assert_int_eq(status, M3_OK);
    return file;
}

/* The line of the last run that tells its next tokens. */
static void next_tokens(char line[400])
{
    FILE *lines = fopen(in_folder("out"), "r");
    ck_assert_ptr_nonnull(lines);
    do ck_assert_ptr_nonnull(fgets(line, 400, lines));
    while (strncmp(line, "next tokens:", 12) != 0);
    fclose(lines);
}

/* Every tensor of `part` is the last rows of that of `whole`, bit for bit; `rows` says which rows they are. */
static void last_rows(const char *part_name, const char *whole_name, int64_t T)
{
    struct m3_safetensors *part = open_file(part_name), *all = open_file(whole_name);
    const struct m3_tensor *rows = m3_safetensors_find(part, "rows");
    ck_assert_ptr_nonnull(rows);
    ck_assert(rows->dtype == M3_I32 && rows->rank == 1 && rows->count == T);
    for (int64_t t = 0; t < T; t++) ck_assert(m3_decode(M3_I32, rows->data, t) == (double)(ALL - T + t));
    ck_assert_int_eq(m3_safetensors_count(part), m3_safetensors_count(all) + 1);
    for (int64_t i = 0; i < m3_safetensors_count(part); i++) {
        const struct m3_tensor *x = m3_safetensors_at(part, i), *y = m3_safetensors_find(all, x->name);
        if (x == rows) continue;
        ck_assert_ptr_nonnull(y);
        if (x->rank == 1) {             /* beside a tap: the bias of the experts */
            ck_assert_msg(x->bytes == y->bytes && memcmp(x->data, y->data, x->bytes) == 0, "%s differs", x->name);
            continue;
        }
        ck_assert_int_eq(x->shape[0], T);
        ck_assert_int_eq(y->shape[0], ALL);
        ck_assert_uint_eq(x->bytes / (uint64_t)T, y->bytes / ALL);
        const char *last = (const char *)y->data + y->bytes - x->bytes;
        ck_assert_msg(memcmp(x->data, last, x->bytes) == 0, "%s differs", x->name);
    }
    m3_safetensors_close(part);
    m3_safetensors_close(all);
}

/* with_positions: they count from 0. */
static void write_case(const char *path, int64_t from, int64_t T, int with_positions)
{
    struct m3_writer *writer;
    int64_t numbers[ALL], places[ALL];
    char *at, text[1024];
    snprintf(text, sizeof text, "%s", ids(from, T));
    for (int64_t t = 0; t < T; t++) numbers[t] = strtoll(t ? at + 1 : text, &at, 10), places[t] = t;
    ck_assert_int_eq(m3_writer_new(&writer, path, &error), M3_OK);
    ck_assert_int_eq(m3_writer_tensor(writer, "input_ids", M3_I64, 1, &T, &error), M3_OK);
    if (with_positions) ck_assert_int_eq(m3_writer_tensor(writer, "position_ids", M3_I64, 1, &T, &error), M3_OK);
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    ck_assert_int_eq(m3_writer_write(writer, numbers, (uint64_t)T * 8, &error), M3_OK);
    if (with_positions) ck_assert_int_eq(m3_writer_write(writer, places, (uint64_t)T * 8, &error), M3_OK);
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
}

/* Goal:  three runs that hand on their cache, the last over a case file, are one run: taps, next tokens, positions; a
 *        file may grow in place.
 * Seen to fail with: positions from 0 after a cache; the dump's rows counted from 0. */
LOOP_TEST(runs_are_one_run, 4)
{
    const char *how = _i / 2 ? "--linear ordered --precision f64" : "--linear ordered";
    char file[300], want[400], got[400];
    snprintf(file, sizeof file, "%s", in_folder(_i % 2 ? "c.safetensors.gz" : "c.safetensors"));
    ck_assert_int_eq(m3ref("run " TINY " --ids %s %s --dump %s", ids(0, ALL), how, in_folder("whole")), 0);
    next_tokens(want);
    ck_assert_int_eq(m3ref("run " TINY " --ids %s %s --cache-out %s", ids(0, PREFIX), how, file), 0);
    ck_assert(has("out", "cache: 61 tokens in "));
    ck_assert_int_eq(
        m3ref("run " TINY " --ids %s %s --cache-in %s --cache-out %s", ids(PREFIX, MIDDLE), how, file, file), 0);
    ck_assert(has("out", "cache: 79 tokens in "));
    write_case(in_folder("case"), PREFIX + MIDDLE, REST, 0);
    ck_assert_int_eq(
        m3ref("run " TINY " --case %s %s --cache-in %s --dump %s", in_folder("case"), how, file, in_folder("part")), 0);
    next_tokens(got);
    ck_assert_str_eq(got, want);
    last_rows("part", "whole", REST);
    ck_assert_int_eq(m3ref("compare --force %s %s", in_folder("whole"), in_folder("part")), 0);
    ck_assert_int_eq(entries(), 6);         /* also whole, case, out, err */
}

/* Goal:  with BLAS, one token at a time, the next tokens are the same, their logits within 1e-4.
 * Seen to fail with positions from 0 after a cache. */
TEST(next_tokens_with_blas)
{
    static const char form[] = "next tokens: %d \"%*[^\"]\" (%lf), %d \"%*[^\"]\" (%lf), %d \"%*[^\"]\" (%lf)";
    char line[400];
    int want[3], got[3];
    double logits[3], near[3];
    ck_assert_int_eq(m3ref("run " TINY " --ids %s --top 3", ids(0, PREFIX + 3)), 0);
    next_tokens(line);
    ck_assert_int_eq(sscanf(line, form, &want[0], &logits[0], &want[1], &logits[1], &want[2], &logits[2]), 6);
    ck_assert_int_eq(m3ref("run " TINY " --ids %s --cache-out %s", ids(0, PREFIX), in_folder("c")), 0);
    for (int t = 0; t < 3; t++)
        ck_assert_int_eq(m3ref("run " TINY " --ids %s --top 3 --cache-in %s --cache-out %s", ids(PREFIX + t, 1),
                               in_folder("c"), in_folder("c")),
                         0);
    next_tokens(line);
    ck_assert_int_eq(sscanf(line, form, &got[0], &near[0], &got[1], &near[1], &got[2], &near[2]), 6);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(got[i], want[i]);
        ck_assert_msg(fabs(near[i] - logits[i]) <= 1e-4, "%g, expected %g", near[i], logits[i]);
    }
}

/* ---- files that are refused */

/* What is changed of a good cache on its way into the file "bad". */
/* clang-format off */
enum change {
    NOTHING, NO_FILE, EMPTY, SHORT, CUT, FLIP_FIRST, FLIP_LAST, NOT_SAFETENSORS, A_DUMP, A_FOLDER, NO_TENSOR, NO_FIRST,
    NO_INDEX, EXTRA, INDEX_OF_DENSE, FEWER_PLACES, NO_PLACES, TRANSPOSED, FLAT, DEEP, TYPE, NO_FORMAT, NO_HASH,
    OTHER_VERSION,
};
/* clang-format on */

static void hash_of(char hex[65], const char *path)
{
    size_t count;
    unsigned char *bytes = read_bytes(path, &count);
    struct m3_sha256 *hash = m3_sha256_new();
    m3_sha256_add(hash, bytes, count);
    ck_assert_int_eq(m3_sha256_end(hash, hex), 0);
    free(bytes);
}

static const char *const keys[] = {
    "format", "format_version", "producer", "precision", "semantics", "model_sha256", "data_sha256", "weights_sha256",
};

static int is_named(const struct m3_tensor *t, const char *name) { return strcmp(t->name, name) == 0; }

static int left_out(enum change change, const struct m3_tensor *t)
{
    return (change == NO_TENSOR && is_named(t, "layers.3.v")) || (change == NO_FIRST && is_named(t, "layers.0.k")) ||
           (change == NO_INDEX && is_named(t, "layers.4.index_k"));
}

/* Declares a tensor with its change; the bytes stay as many, or become fewer. */
static void declare(struct m3_writer *writer, enum change change, const struct m3_tensor *t, uint64_t *bytes)
{
    int64_t shape[M3_MAX_RANK];
    enum m3_dtype dtype = t->dtype;
    int rank = t->rank, changes = is_named(t, "layers.2.v");
    memcpy(shape, t->shape, sizeof shape);
    *bytes = t->bytes;
    if (change == FEWER_PLACES && changes) *bytes -= t->bytes / (uint64_t)shape[0]--;
    if (change == NO_PLACES) shape[0] = 0, *bytes = 0;
    if (change == TRANSPOSED && changes) shape[1] = t->shape[2], shape[2] = t->shape[1];
    if (change == FLAT && changes) rank = 2, shape[1] *= shape[2];
    if (change == DEEP && changes) shape[rank++] = 1;
    if (change == TYPE && changes) dtype = M3_I32;
    ck_assert_int_eq(m3_writer_tensor(writer, t->name, dtype, rank, shape, &error), M3_OK);
}

/* `good` again, with one change. */
static void rewrite(enum change change)
{
    static const float zeros[64];
    struct m3_safetensors *file = open_file("good");
    struct m3_writer *writer;
    uint64_t bytes[32];
    const int64_t four = 4, count = m3_safetensors_count(file);
    const char *extra = change == EXTRA ? "layers.5.k" : change == INDEX_OF_DENSE ? "layers.0.index_k" : NULL;
    ck_assert_int_eq(m3_writer_new(&writer, in_folder("bad"), &error), M3_OK);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value = m3_safetensors_metadata(file, keys[i]);
        ck_assert_ptr_nonnull(value);
        if ((change == NO_FORMAT && i == 0) || (change == NO_HASH && i == 6)) continue;
        if (change == OTHER_VERSION && i == 1) value = "2";
        ck_assert_int_eq(m3_writer_metadata(writer, keys[i], value, &error), M3_OK);
    }
    ck_assert_int_lt(count, 32);
    for (int64_t i = 0; i < count; i++)
        if (!left_out(change, m3_safetensors_at(file, i)))
            declare(writer, change, m3_safetensors_at(file, i), &bytes[i]);
    if (extra) ck_assert_int_eq(m3_writer_tensor(writer, extra, M3_F32, 1, &four, &error), M3_OK);
    ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
    for (int64_t i = 0; i < count; i++)
        if (!left_out(change, m3_safetensors_at(file, i)))
            ck_assert_int_eq(m3_writer_write(writer, m3_safetensors_at(file, i)->data, bytes[i], &error), M3_OK);
    if (extra) ck_assert_int_eq(m3_writer_write(writer, zeros, 16, &error), M3_OK);
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
    m3_safetensors_close(file);
}

/* Makes "bad" from "good" or from what is not a cache at all. */
static void make_bad(enum change change)
{
    size_t count;
    unsigned char *bytes = read_bytes(in_folder("good"), &count), header = 8;
    size_t first = 8;
    for (int i = 0; i < header; i++) first += (size_t)bytes[i] << 8 * i;
    if (change == FLIP_FIRST) bytes[first] ^= 1;
    if (change == FLIP_LAST) bytes[count - 1] ^= 0x10;
    if (change == CUT) count -= 4;
    if (change == SHORT) count = 5;
    if (change == EMPTY) count = 0;
    if (change == A_FOLDER) ck_assert_int_eq(mkdir(in_folder("bad"), 0700), 0);
    else if (change == NOT_SAFETENSORS) copy(TINY "/config.json", in_folder("bad"));
    else if (change == A_DUMP) ck_assert_int_eq(m3ref("run " TINY " --ids 1,2 --dump %s", in_folder("bad")), 0);
    else if (change >= NO_TENSOR) rewrite(change);
    else if (change != NO_FILE) write_bytes(in_folder("bad"), bytes, count);
    free(bytes);
}

static const struct {
    enum change change;
    const char *model, *flags, *words;      /* model NULL: the tiny one; OTHER: one byte more of config */
    int status;
} refused[] = {
    { NOTHING, NULL, "", "", 0 },           /* the way here works */
    { NO_FILE, NULL, "", "bad: ", 66 },
    { EMPTY, NULL, "", "bad: ", 65 },
    { SHORT, NULL, "", "bad: ", 65 },
    { CUT, NULL, "", "bad: ", 65 },
    { FLIP_FIRST, NULL, "", "data_sha256", 65 },
    { FLIP_LAST, NULL, "", "data_sha256", 65 },
    { NOT_SAFETENSORS, NULL, "", "bad: ", 65 },
    { A_DUMP, NULL, "", "m3ref-cache", 65 },
    { A_FOLDER, NULL, "", "bad: ", 65 },
    { NO_TENSOR, NULL, "", "layers.3.v: got no such tensor", 65 },
    { NO_FIRST, NULL, "", "layers.0.k: got no such tensor", 65 },
    { NO_INDEX, NULL, "", "layers.4.index_k: got no such tensor", 65 },
    { EXTRA, NULL, "", "got 14 tensors, expected 13", 65 },
    { INDEX_OF_DENSE, NULL, "", "got 14 tensors, expected 13", 65 },
    { FEWER_PLACES, NULL, "", "layers.2.v: ", 65 },
    { NO_PLACES, NULL, "", "layers.0.k: ", 65 },
    { TRANSPOSED, NULL, "", "layers.2.v: ", 65 },
    { FLAT, NULL, "", "layers.2.v: ", 65 },
    { DEEP, NULL, "", "layers.2.v: ", 65 },
    { TYPE, NULL, "", "layers.2.v: ", 65 },
    { NO_FORMAT, NULL, "", "format: got none, expected m3ref-cache", 65 },
    { NO_HASH, NULL, "", "data_sha256: got none", 65 },
    { OTHER_VERSION, NULL, "", "format_version: got 2, expected 1", 65 },
    { NOTHING, NULL, "--precision f64", "precision: got f32, expected f64", 65 },
    { NOTHING, NULL, "--set selection=union", "semantics: got", 65 },
    { NOTHING, NULL, "--set rope_angle=f32", "semantics: got", 65 },
    { NOTHING, MTP, "", "model_sha256: got", 65 },
    { NOTHING, OTHER, "", "model_sha256: got", 65 },
};

enum { REFUSED = sizeof refused / sizeof *refused };

static void append(const char *path, const char *text)
{
    FILE *file = fopen(path, "a");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

/* Goal:  one clear line, 65 (66 where no file is), and nothing written: no dump, no cache, no temporary file.
 * Seen to fail with each check of m3_cache_load taken out separately. */
LOOP_TEST(refused_files, REFUSED)
{
    char where[300] = TINY;
    const char *other = refused[_i].model;
    ck_assert_int_eq(m3ref("run " TINY " --ids %s --cache-out %s", ids(0, 40), in_folder("good")), 0);
    make_bad(refused[_i].change);
    if (other) snprintf(where, sizeof where, "%s", other);
    if (other && strcmp(other, MTP) != 0) {
        copy_tiny();
        append(in_folder("model/config.json"), "\n");
        snprintf(where, sizeof where, "%s", in_folder("model"));
    }
    write_text(in_folder("old"), "old");
    int before = entries() + (refused[_i].status ? 0 : 1);
    ck_assert_int_eq(m3ref("run %s --ids 5,6,7 %s --cache-in %s --dump %s --cache-out %s", where, refused[_i].flags,
                           in_folder("bad"), in_folder("dump"), in_folder("old")),
                     refused[_i].status);
    ck_assert_int_eq(error_lines(), refused[_i].status ? 1 : 0);
    if (refused[_i].status) ck_assert(has("err", refused[_i].words));
    ck_assert_int_eq(exists("dump"), !refused[_i].status);
    if (refused[_i].status) ck_assert(has("old", "old"));
    ck_assert_int_eq(entries(), before);
}

/* Goal:  what one model wrote is not used with a model that differs from it in nothing but its weights.
 * Given: two models of the same config, of seeds 1 and 2; a cache, a dump and an envelope of the second.
 * Claim: 65, or 3 where dumps are judged, with the file, the shard and both hashes; a note with --force; what the first
 *        model wrote is accepted.
 * Seen to fail with the code as it was: all were accepted. */
TEST(other_seed)
{
    static const struct {
        const char *command;
        int status, forced;
    } cases[] = {
        { "run @/m1 --ids 5,6,7 --cache-in @/c%d", 65, 0 },
        { "run @/m1 --case @/case --decisions @/d%d --taps logits --dump @/new", 65, 0 },
        { "run @/m1 --case @/case --hidden @/d%d --layers 1:2", 65, 0 },
        { "compare @/d1 @/d%d", 3, 0 },
        { "compare @/d1 @/d1 --envelope @/e%d", 65, 0 },
        { "blame @/m1 @/d%d --case @/case", 3, 0 },
        { "compare @/d1 @/d%d --force", 1, 1 },
    };
    char hash[2][65], words[400], format[300];
    write_case(in_folder("case"), 0, 9, 0);
    for (int seed = 1; seed <= 2; seed++) {
        ck_assert_int_eq(m3ref("synth %s/config.json %s/m%d --seed %d", TINY, folder, seed, seed), 0);
        ck_assert_int_eq(m3ref("run %s/m%d --case %s/case --dump %s/d%d --cache-out %s/c%d", folder, seed, folder,
                               folder, seed, folder, seed),
                         0);
        ck_assert_int_eq(m3ref("envelope %s/m%d --case %s/case --profile fp32 --runs 1 --out %s/e%d", folder, seed,
                               folder, folder, seed),
                         0);
        snprintf(words, sizeof words, "%s/m%d/model.safetensors", folder, seed);
        hash_of(hash[seed - 1], words);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        with_folder(format, cases[i].command);
        for (int seed = 2; seed >= 1; seed--) {
            snprintf(words, sizeof words, format, seed);
            ck_assert_int_eq(m3ref("%s", words), seed == 2 ? cases[i].status : 0);
            if (seed == 1) continue;
            sprintf(words, "weights_sha256: model.safetensors: got %s, expected %s", hash[1], hash[0]);
            if (!cases[i].forced) ck_assert(has("err", words) && has("err", folder));
            else ck_assert(has("out", "compared by force") && has("out", hash[1]));
        }
    }
}

/* ---- usage */

static int same_bytes(const char *a_path, const char *b_path)
{
    size_t a_count, b_count;
    unsigned char *a = read_bytes(a_path, &a_count), *b = read_bytes(b_path, &b_count);
    int same = a_count == b_count && memcmp(a, b, a_count) == 0;
    free(a);
    free(b);
    return same;
}

/* Goal:  the cache is not written over what the run reads, nor the dump over a cache; each file stays as it was.
 *        One file under two names for two outputs is refused, and a place that cannot be written before any output is.
 * Seen to fail with: --cache-out not checked; --dump not compared with --cache-in; names compared as strings; the
 * cache's file opened after the pass. */
TEST(cache_over_an_input)
{
    copy_tiny();
    write_case(in_folder("case"), 0, 12, 0);
    copy(in_folder("case"), in_folder("case copy"));
    ck_assert_int_eq(symlink(in_folder("model/config.json"), in_folder("link")), 0);
    ck_assert_int_eq(m3ref("run %s --case %s --cache-out %s", in_folder("model"), in_folder("case"), in_folder("c")),
                     0);
    copy(in_folder("c"), in_folder("c copy"));
    static const char *const targets[] = { "model/config.json", "model/model.safetensors", "case", "link" };
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(
            m3ref("run %s --case %s --cache-out %s", in_folder("model"), in_folder("case"), in_folder(targets[i])), 64);
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(has("err", "--cache-out"));
    }
    ck_assert_int_eq(
        m3ref("run %s --ids 1 --cache-in %s --dump %s", in_folder("model"), in_folder("c"), in_folder("c")), 64);
    ck_assert(has("err", "--cache-in"));
    ck_assert_int_eq(
        m3ref("run %s --ids 1 --dump %s --cache-out %s", in_folder("model"), in_folder("d"), in_folder("d")), 64);
    ck_assert_int_eq(
        m3ref("run %s --ids 1 --dump %s --cache-out %s", in_folder("model"), in_folder("d"), in_folder("model/../d")),
        64);
    ck_assert(has("err", "--cache-out"));
    ck_assert_int_eq(
        m3ref("run %s --ids 1 --dump %s --cache-out %s", in_folder("model"), in_folder("d"), in_folder("no/folder")),
        74);
    ck_assert_int_eq(m3ref("run %s --ids 1 --cache-out ''", in_folder("model")), 64);
    ck_assert(!exists("d"));
    ck_assert(same_bytes(in_folder("model/config.json"), TINY "/config.json"));
    ck_assert(same_bytes(in_folder("model/model.safetensors"), TINY "/model.safetensors"));
    ck_assert(same_bytes(in_folder("case"), in_folder("case copy")));
    ck_assert(same_bytes(in_folder("c"), in_folder("c copy")));
}

/* A cache holds every layer. Seen to fail with the check taken out. */
TEST(not_with_some_layers)
{
    ck_assert_int_eq(m3ref("run " TINY " --ids 1,2 --cache-out %s --dump %s", in_folder("c"), in_folder("d")), 0);
    static const char *const layers[] = { "0:5", "0:3" };
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(m3ref("run " TINY " --ids 3 --layers %s --cache-in %s", layers[i], in_folder("c")), 64);
        ck_assert(has("err", "--layers"));
        ck_assert_int_eq(m3ref("run " TINY " --ids 3 --layers %s --cache-out %s", layers[i], in_folder("e")), 64);
    }
    ck_assert_int_eq(
        m3ref("run " TINY " --ids 1,2 --layers 3:5 --hidden %s --cache-out %s", in_folder("d"), in_folder("e")), 64);
    ck_assert(!exists("e"));
}

/* Goal:  the limit of positions counts cached tokens: the last place below it is allowed, the next needs --allow-long.
 * Seen to fail with: positions counted from 0; places counted from 0; the limit one too high. */
TEST(limit_behind_a_cache)
{
    copy_tiny();
    size_t count;
    char *config = (char *)read_bytes(in_folder("model/config.json"), &count), *at = strstr(config, "1048576");
    ck_assert_ptr_nonnull(at);
    memcpy(at, "     66", 7);
    write_text(in_folder("model/config.json"), config);
    free(config);
    ck_assert_int_eq(m3ref("run %s --ids %s --cache-out %s", in_folder("model"), ids(0, 60), in_folder("c")), 0);
    ck_assert_int_eq(m3ref("run %s --ids %s --cache-in %s", in_folder("model"), ids(60, 6), in_folder("c")), 0);
    ck_assert_int_eq(m3ref("run %s --ids %s --cache-in %s --cache-out %s", in_folder("model"), ids(60, 7),
                           in_folder("c"), in_folder("e")),
                     64);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", "token 6: got position 66, expected below max_position_embeddings 66"));
    ck_assert(!exists("e"));
    for (int with_positions = 0; with_positions < 2; with_positions++) {        /* places count, whatever positions */
        write_case(in_folder("case"), 60, 7, with_positions);
        ck_assert_int_eq(m3ref("run %s --case %s --cache-in %s", in_folder("model"), in_folder("case"), in_folder("c")),
                         65);
        ck_assert(has("err", "token 6: got position 66"));
    }
    ck_assert_int_eq(
        m3ref("run %s --ids %s --cache-in %s --allow-long", in_folder("model"), ids(60, 7), in_folder("c")), 0);
    ck_assert_int_eq(m3ref("run %s --ids %s --allow-long", in_folder("model"), ids(0, 67)), 0);
}

/* Goal:  a run that fails leaves the cache that was to grow in place as it was, and makes no other: a bad id, NaN in
 *        the pass, a plug-in that is not there, a full disk.
 * Seen to fail with: the cache saved before the pass; the cache saved whatever the pass said. */
TEST(the_old_cache_stays)
{
    char command[2048];
    const char *build = getenv("BUILD");
    copy_tiny();
    patch("language_model.model.embed_tokens.weight", 7 * 96 * 2, "\xC0\x7F", 2);
    ck_assert_int_eq(m3ref("run %s --ids %s --cache-out %s", in_folder("model"), ids(0, 60), in_folder("c")), 0);
    copy(in_folder("c"), in_folder("copy"));
    int before = entries();
    static const struct {
        const char *flags;
        int status;
    } fails[] = {
        { "--ids 5,211", 64 },
        { "--ids 5,7,9", 1 },
        { "--ids 5 --ops ./no-such-library.so", 69 },
    };
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(m3ref("run %s %s --cache-in %s --cache-out %s --dump %s", in_folder("model"), fails[i].flags,
                               in_folder("c"), in_folder("c"), in_folder("d")),
                         fails[i].status);
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(same_bytes(in_folder("c"), in_folder("copy")));
        ck_assert_int_eq(entries(), before);
        ck_assert_int_eq(m3ref("run %s %s --cache-in %s --cache-out %s", in_folder("model"), fails[i].flags,
                               in_folder("c"), in_folder("new")),
                         fails[i].status);
        ck_assert(!exists("new"));
    }
    snprintf(command, sizeof command, "ulimit -f 60; %s/m3ref run %s --ids 5 --cache-in %s --cache-out %s >%s 2>%s",
             build ? build : "build", in_folder("model"), in_folder("c"), in_folder("c"), in_folder("out"),
             in_folder("err"));
    int status = system(command);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 74);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(same_bytes(in_folder("c"), in_folder("copy")));
    ck_assert_int_eq(entries(), before);
}

/* How many tensors of a dump begin with `prefix`. */
static int tensors_of(const char *name, const char *prefix)
{
    struct m3_safetensors *file = open_file(name);
    int count = 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++)
        count += strncmp(m3_safetensors_at(file, i)->name, prefix, strlen(prefix)) == 0;
    m3_safetensors_close(file);
    return count;
}

/* Goal:  a call after a cached prefix shows no MTP module, as their keys are not in the file; a call from nothing
 *        does, also one that saves its cache. All else is that of one call.
 * Seen to fail with modules run whether there is a cache or not. */
TEST(no_modules_behind_a_cache)
{
    char want[400], got[400];
    ck_assert_int_eq(m3ref("run " MTP " --ids %s --linear ordered --dump %s", ids(0, 50), in_folder("whole")), 0);
    next_tokens(want);
    ck_assert_int_gt(tensors_of("whole", "mtp.0."), 20);
    ck_assert_int_gt(tensors_of("whole", "mtp.1."), 20);
    ck_assert_int_eq(m3ref("run " MTP " --ids %s --linear ordered --cache-out %s --dump %s", ids(0, 50), in_folder("c"),
                           in_folder("again")),
                     0);
    same_tensors(in_folder("whole"), in_folder("again"));
    ck_assert_int_eq(m3ref("run " MTP " --ids %s --linear ordered --cache-out %s", ids(0, 30), in_folder("c")), 0);
    ck_assert_int_eq(m3ref("run " MTP " --ids %s --linear ordered --cache-in %s --dump %s", ids(30, 20), in_folder("c"),
                           in_folder("part")),
                     0);
    next_tokens(got);
    ck_assert_str_eq(got, want);
    ck_assert_int_eq(tensors_of("part", "mtp."), 0);
    ck_assert_int_eq(tensors_of("part", "layers."), tensors_of("whole", "layers."));
    ck_assert_int_eq(
        m3ref("run " MTP " --ids 5 --cache-in %s --dump %s --taps 'mtp.*'", in_folder("c"), in_folder("none")), 64);
    ck_assert(!exists("none"));
}
