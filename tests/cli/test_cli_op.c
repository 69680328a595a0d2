/* `m3ref op`: what it accepts, standard input and output, and bad input: one line and the right status, nothing
 * written, no crash. */
#include "op_cases.h"
#include "program.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

TIMEOUT(60);
FIXTURE(make_folder, remove_folder);

static int op_status(const char *words)
{
    char text[1024];
    return m3ref("op %s", with_folder(text, words));
}

/* Goal:  the whole round: cases, results, verdict, by files and through standard input and output. */
TEST(round_trip)
{
    ck_assert_int_eq(op_status("--list"), 0);
    ck_assert(has("out", "moe_block"));
    ck_assert_int_eq(op_status("rms_norm --make @/c"), 0);
    ck_assert_int_eq(op_status("rms_norm --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("rms_norm --check @/c @/r"), 0);
    ck_assert_int_eq(op_status("rms_norm --check - @/r <@/c"), 0);
    ck_assert_int_eq(op_status("rms_norm --check @/c - <@/r"), 0);
    ck_assert_int_eq(op_status("rms_norm --run - - <@/c"), 0);
    copy(in_folder("out"), in_folder("piped"));
    ck_assert_int_eq(op_status("rms_norm --check @/c @/piped --junit @/j"), 0);
    ck_assert(exists("j"));
    /* Sampled rows are rows of the case, also where a block is as long as the case. */
    ck_assert_int_eq(op_status("select_blocks --make @/e --sizes T=4200,b=5000,N=1 --cases 1"), 0);
    ck_assert_int_eq(op_status("select_blocks --run @/e @/f"), 0);
    ck_assert_int_eq(op_status("select_blocks --check @/e @/f"), 0);
    ck_assert_int_eq(op_status("rms_norm_plain --make @/d --seed 1"), 0);
    ck_assert_int_eq(op_status("rms_norm --check @/c @/d"), 3);         /* operands are no results */
}

/* ---- bad words */

static const struct {
    const char *words;
    int status;
    const char *says;
} bad_words[] = {
    { "", 64, "got none of" },
    { "rms_norm --make @/x --ops ./mine.so", 64, "got --ops with --list, --make or --draw" },
    { "rms_norm --perf --cases 0", 64, "--cases 0" },
    { "rope_3d --make @/x --sizes P=3301,A=16,U=80 --cases 1", 64, "got P=3301, expected a multiple of 8 for rope_3d" },
    { "--make @/x", 64, "names" },
    { "nosuch --make @/x", 64, "nosuch" },
    { "linear --list", 64, "names" },
    { "linear --make @/x --check @/c @/r", 64, "two of" },
    { "linear --run @/c --run @/c @/x", 64, "two of" },
    { "linear --check - -", 64, "two inputs" },
    { "linear --check @/c", 64, "names" },
    { "linear --make @/x --sizes huge", 64, "huge" },
    { "linear --make @/x --sizes T", 64, "T" },
    { "linear --make @/x --sizes T=0", 64, "T=0" },
    { "linear --make @/x --sizes T=-4", 64, "T=-4" },
    { "linear --make @/x --sizes T=5x", 64, "T=5x" },
    { "linear --make @/x --sizes T=99999999999999999999", 64, "T=" },
    { "linear --make @/x --sizes Z=5", 64, "got Z=5, expected T, H or I for linear" },
    { "linear --make @/x --sizes Z=5 --cases 0", 64, "got Z=5, expected T, H or I for linear" },
    { "rope --make @/x --sizes R=8,D=6", 64, "got R=8 rotated channels with D=6, expected at most 6" },
    { "rms_norm --make @/x --sizes block=4", 64, "got block=4, expected T or H for rms_norm" },
    { "rms_norm --make @/x --sizes T=5 --rows 0,5", 64,
      "got 0,5, expected all, or numbers and ranges A:B from 0 to 4" },
    { "rms_norm --make @/x --sizes T=5 --rows 0,", 64, "--rows: got 0," },
    { "rms_norm_backward --make @/x --rows 0", 64, "got 0 for rms_norm_backward, expected all" },
    { "vision_attention --make @/x --rows 0", 64, "got 0 for vision_attention, expected all" },
    { "linear --check @/c @/r --rows 0", 64, "--rows: got 0 without --make" },
    { "linear --run @/c @/x --rows 0", 64, "--rows: got 0 without --make" },
    { "select_blocks --make @/x --sizes N=2000000000", 64, "more than 64 GiB" },
    { "attend_blocks --make @/x --sizes N=2000000000", 64, "more than 64 GiB" },
    { "linear --make @/x --sizes T=2147483647,H=2147483647", 64, "x [2147483647,2147483647]" },
    { "linear --make @/x --sizes I=2147483647,T=64", 64, "more than 64 GiB" },
    { "linear --draw @/c", 64, "names" },
    { "linear --draw @/c @/c", 64, "c" },
    { "linear --draw @/c @/x", 64, "no drawn tensor" },
    { "linear --draw @/r @/x", 65, "cases" },
    { "linear --make @/x --only 0.w", 64, "--only" },
    { "linear --make @/x --dtype f8", 64, "f8" },
    { "linear --make @/x --seed -1", 64, "seed" },
    { "linear --make @/x --cases 1000000", 64, "cases" },
    { "linear --run @/c @/x --precision f16", 64, "f16" },
    { "linear --run @/c @/c", 64, "c" },
    { "linear --check @/c @/r --profile nosuch", 66, "nosuch" },
    { "linear --check @/none @/r", 66, "none" },
    { "linear --check @/c @/none", 66, "none" },
    { "add --check @/c @/r", 65, "linear" },
    { "linear --check @/r @/c", 65, "cases" },
    { "linear --run @/r @/x", 65, "cases" },
    { "linear --make @/no/x", 74, "no/x" },
    { "linear --make @/x --nosuch", 64, "nosuch" },
    { "attend_full --make @/x --sizes Q=5,G=2", 64, "" },
};
enum { BAD_WORDS = sizeof bad_words / sizeof bad_words[0] };

/* Goal:  wrong words: one line that names them, the status, no file. */
LOOP_TEST(words, BAD_WORDS)
{
    ck_assert_int_eq(op_status("linear --make @/c"), 0);
    ck_assert_int_eq(op_status("linear --run @/c @/r"), 0);
    const int status = op_status(bad_words[_i].words);
    ck_assert_msg(status == bad_words[_i].status, "%s: status %d", bad_words[_i].words, status);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", bad_words[_i].says));
    ck_assert(!exists("x"));
}

/* ---- large sets */

/* Are these the bytes of a part of the file? */
static int holds(const char *name, const char *text)
{
    size_t size;
    unsigned char *bytes = read_bytes(in_folder(name), &size);
    const int found = memmem(bytes, size, text, strlen(text)) != NULL;
    free(bytes);
    return found;
}

/* Goal:  --rows and sizes by name reach the cases.
 * Seen to fail with the rows of the sample. */
TEST(named_sizes)
{
    ck_assert_int_eq(op_status("qk_norm_rope --make @/c --sizes R=8,T=5 --rows 1,3:5 --cases 2"), 0);
    ck_assert_int_eq(error_lines(), 0);
    ck_assert(holds("c", "\\\"R\\\":8,") && holds("c", "\\\"rows\\\":[1,3,4]"));
    ck_assert_int_eq(op_status("qk_norm_rope --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("qk_norm_rope --check @/c @/r"), 0);
    ck_assert_int_eq(op_status("attend_blocks --make @/c --sizes T=9,block=2,N=2 --rows all"), 0);
    ck_assert_int_eq(op_status("attend_blocks --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("attend_blocks --check @/c @/r"), 0);
}

/* Goal:  a large set is announced, and one that the disk has no room for is refused before anything is written.
 * Seen to fail with neither. */
TEST(large_sets)
{
    struct statvfs disk;
    ck_assert_int_eq(op_status("experts --make @/c --cases 1 --sizes T=2,E=700,H=256,F=512,K=1"), 0);
    ck_assert_int_eq(error_lines(), 1);
    ck_assert(has("err", "m3ref: experts: 9 cases, with 0.1 MB of operands to write, and 1.10 GB that are drawn"));
    /* 393 TB; where that fits, or the file system does not say, nothing is refused. */
    if (statvfs(folder, &disk) || !disk.f_blocks || disk.f_bavail > (UINT64_C(100) << 40) / disk.f_frsize) return;
    const struct rlimit little = { 1 << 24, 1 << 24 };
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &little), 0);
    ck_assert_int_eq(op_status("add --make @/x --sizes T=800000,H=6144 --cases 10000"), 74);
    ck_assert_int_eq(error_lines(), 2);
    ck_assert(has("err", "m3ref: add: 10002 cases, with 393216.00 GB of operands to write\n"));
    ck_assert(has("err", "/x: got room for ") && has("err", " GB on its disk, expected 393216.00 GB\n"));
    ck_assert(!exists("x"));
}

/* ---- bad files */

/* Writes `from` again: without tensor `drop`, with text `find` of the list of cases replaced, with tensor `change`
 * of another dtype or shape, or with one element of it set. */
struct change {
    const char *op, *tensor, *find, *by;
    int kind, status; /* 'd': dropped; 'v': element 0 := value; 't': dtype; 's': one more dimension; 'l': list */
    double value;
    const char *says;
};

static void write_changed(const char *from, const char *to, const struct change *change)
{
    struct m3_safetensors *file;
    struct m3_writer *writer;
    struct m3_error error = { 0 };
    ck_assert_int_eq(m3_safetensors_open(&file, from, &error), M3_OK);
    ck_assert_int_eq(m3_writer_new(&writer, to, &error), M3_OK);
    const char *list = m3_safetensors_metadata(file, "cases");
    char *text = calloc(strlen(list) + 200, 1);
    strcpy(text, list);
    if (change->kind == 'l') {
        const char *at = strstr(list, change->find);
        ck_assert_msg(at != NULL, "no %s in %s", change->find, list);
        sprintf(text + (at - list), "%s%s", change->by, at + strlen(change->find));
    }
    if (change->kind == 'j') strcpy(text, change->by);
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            ck_assert_int_eq(m3_writer_metadata(writer, "operator", m3_safetensors_metadata(file, "operator"), &error),
                             M3_OK);
            ck_assert_int_eq(m3_writer_metadata(writer, "cases", text, &error), M3_OK);
            ck_assert_int_eq(m3_writer_begin(writer, &error), M3_OK);
        }
        for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
            const struct m3_tensor *t = m3_safetensors_at(file, i);
            const int mine = change->tensor && strcmp(change->tensor, t->name) == 0;
            struct m3_tensor n = *t;
            unsigned char value[8];
            if (mine && change->kind == 'd') continue;
            if (mine && change->kind == 't')
                n.dtype = t->dtype == M3_I32 ? M3_F32 : t->dtype == M3_F32 ? M3_I32 : M3_F64;
            if (mine && change->kind == 's') n.shape[n.rank++] = 1;
            if (pass == 0) {
                ck_assert_int_eq(m3_writer_tensor(writer, n.name, n.dtype, n.rank, n.shape, &error), M3_OK);
                continue;
            }
            const size_t size = m3_dtype_bytes(n.dtype);
            for (int64_t e = 0; e < t->count; e++) {
                const int set = mine && change->kind == 'v' && e == 0;
                op_encode(value, n.dtype, set ? change->value : m3_decode(t->dtype, t->data, e));
                if (t->dtype == M3_U8) value[0] = ((const unsigned char *)t->data)[e];
                ck_assert_int_eq(m3_writer_write(writer, value, size, &error), M3_OK);
            }
        }
    }
    ck_assert_int_eq(m3_writer_commit(writer, &error), M3_OK);
    m3_safetensors_close(file);
    free(text);
}

static const struct change changes[] = {
    { "linear", "0.w", NULL, NULL, 'd', 65, 0, "no operand w" },
    { "linear", "0.w", NULL, NULL, 't', 65, 0, "0: w: got dtype I32" },
    { "linear", "0.w", NULL, NULL, 's', 65, 0, "rank 3" },
    { "linear", NULL, NULL, "", 'j', 65, 0, "list of cases" },
    { "linear", NULL, NULL, "{}", 'j', 65, 0, "list of cases" },
    { "linear", NULL, NULL, "[]", 'j', 65, 0, "list of cases" },
    { "linear", NULL, NULL, "[1]", 'j', 65, 0, "\"case\"" },
    { "linear", NULL, NULL, "[{\"case\":-1}]", 'j', 65, 0, "\"case\"" },
    { "linear", NULL, NULL, "[{\"case\":0},{\"case\":0}]", 'j', 65, 0, "ascending numbers" },
    { "linear", NULL, NULL, "[{\"case\":0,\"params\":3}]", 'j', 65, 0, "params" },
    { "linear", NULL, NULL, "[{\"case\":0,\"params\":{\"nosuch\":3}}]", 'j', 65, 0, "nosuch" },
    { "linear", NULL, NULL, "[{\"case\":0,\"rows\":[2,1]}]", 'j', 65, 0, "ascending list" },
    { "linear", NULL, NULL, "[{\"case\":0,\"rows\":[1,1]}]", 'j', 65, 0, "ascending list" },
    { "linear", NULL, NULL, "[{\"case\":0,\"rows\":[-1]}]", 'j', 65, 0, "ascending list" },
    { "linear", NULL, NULL, "[{\"case\":0,\"rows\":[0.5]}]", 'j', 65, 0, "ascending list" },
    { "linear", NULL, NULL, "[{\"case\":0,\"rows\":\"1\"}]", 'j', 65, 0, "ascending list" },
    { "linear", NULL, NULL, "[{\"case\":0,\"rows\":[5]}]", 'j', 65, 0, "a row of the case" },
    { "linear", NULL, NULL, "[{\"case\":99}]", 'j', 65, 0, "no operand" },
    { "rms_norm", NULL, "\"eps\":9.9999999999999995e-7", "\"eps\":\"x\"", 'l', 65, 0, "eps" },
    { "rms_norm", NULL, "\"eps\":9.9999999999999995e-7", "\"eps\":[1]", 'l', 65, 0, "eps" },
    { "route", NULL, "\"K\":4", "\"K\":10", 'l', 65, 0, "at most as many" },
    { "route", NULL, "\"K\":4", "\"K\":0", 'l', 65, 0, "K" },
    { "route", NULL, "\"K\":4", "\"K\":1.5", 'l', 65, 0, "K" },
    { "route", "0.s", NULL, NULL, 'v', 1, NAN, "NaN" },
    { "rope_table", NULL, "\"R\":6", "\"R\":5", 'l', 65, 0, "even" },
    { "rope_table", "0.pos", NULL, NULL, 'v', 65, -3, "pos" },
    { "rope_table_3d", "0.places", NULL, NULL, 'v', 65, -3, "places" },
    { "rope_table_3d", NULL, "\"R\":6", "\"R\":8", 'l', 65, 0, "multiple of 6" },
    { "embed", "0.ids", NULL, NULL, 'v', 65, 29, "ids" },
    { "embed", "0.ids", NULL, NULL, 'v', 65, -1, "ids" },
    { "select_blocks", NULL, "\"block\":4", "\"block\":5", 'l', 65, 0, "blocks" },
    { "select_blocks", "0.m", NULL, NULL, 'v', 1, NAN, "NaN" },
    { "attend_blocks", "0.blocks", NULL, NULL, 'v', 1, 7, "" },
    { "attend_segments", "0.ends", NULL, NULL, 'v', 65, 0, "segment" },
    { "attend_segments", "0.ends", NULL, NULL, 'v', 65, 9, "segment" },
    { "rope_3d", "0.grid", NULL, NULL, 'v', 65, 2, "patches" },
    { "rope_3d", "0.grid", NULL, NULL, 'v', 65, 0, "patches" },
    { "experts", "0.ids", NULL, NULL, 'v', 1, 77, "" },
    { "experts", "0.ids", NULL, NULL, 'v', 1, -1, "" },
    { "scatter", "1.ids", NULL, NULL, 'v', 65, 6, "" },
    { "linear_mxfp8", "0.scales", NULL, NULL, 's', 65, 0, "rank" },
};
enum { CHANGES = sizeof changes / sizeof changes[0] };

/* Goal:  a malformed file of cases: one line that names what is wrong, the status, for --run and --check, no results
 *        written.
 * Seen to fail with two cases of one number, more rotated channels than a head has, and an R of rope_table_3d that 6
 *        does not divide. */
LOOP_TEST(files, CHANGES)
{
    const struct change *c = &changes[_i];
    ck_assert_int_eq(m3ref("op %s --make %s", c->op, in_folder("c")), 0);
    ck_assert_int_eq(m3ref("op %s --run %s %s", c->op, in_folder("c"), in_folder("r")), 0);
    write_changed(in_folder("c"), in_folder("bad"), c);
    for (int form = 0; form < 2; form++) {
        const int status = form == 0 ? m3ref("op %s --run %s %s", c->op, in_folder("bad"), in_folder("x"))
                                     : m3ref("op %s --check %s %s", c->op, in_folder("bad"), in_folder("r"));
        /* Rows whose operands the operator refuses are not judged. */
        if (form == 1 && c->status == 1) {
            ck_assert_msg(status >= 0 && status <= 2, "%s, change %d: status %d", c->op, _i, status);
            continue;
        }
        ck_assert_msg(status == c->status, "%s, change %d, form %d: status %d", c->op, _i, form, status);
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(has("err", c->says));
        ck_assert(!exists("x"));
    }
}

/* Goal:  results that do not fit are not comparable, and the tensor is named: missing, another rank, another dtype, and
 *        files that are cut short. What was expected is what the case expects.
 * Seen to fail with the rank not compared, and with the shape that was got for the expected one. */
TEST(results)
{
    static const char *const says[] = { "1.p", "1.p  not the rank of this output: got [6,3,1] F32, expected [6,3] F32",
                                        "1.ids  not an integer dtype: got [6,3] F32, expected [6,3] I32",
                                        "1.p  not the rows of this case: got [5,3] F32, expected [6,3] F32" };
    struct op_set set;
    size_t count;
    ck_assert_int_eq(op_status("route --make @/c"), 0);
    ck_assert_int_eq(op_status("route --run @/c @/r"), 0);
    op_open(&set, in_folder("c"));
    for (int form = 0; form < 4; form++) {
        op_read(&set, in_folder("r"));
        struct op_values *ids = op_output_named(&set.cases[1], "ids"), *p = op_output_named(&set.cases[1], "p");
        if (form == 0) strcpy(p->name, "q");
        if (form == 1) p->shape[p->rank++] = 1;
        if (form == 2) ids->is_ids = 0;
        if (form == 3) p->shape[0]--, p->count -= p->shape[1];
        op_write(&set, in_folder("bad"), M3_F32, NULL);
        ck_assert_int_eq(op_status("route --check @/c @/bad"), 3);
        ck_assert(has("out", says[form]));
    }
    op_close(&set);
    unsigned char *bytes = read_bytes(in_folder("r"), &count);
    const size_t cuts[] = { 0, 4, 8, 100, count - 1 };
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        write_bytes(in_folder("bad"), bytes, cuts[i]);
        ck_assert_int_eq(op_status("route --check @/c @/bad"), 65);
        ck_assert_int_eq(op_status("route --check @/c - <@/bad"), 65);
        ck_assert(has("err", "standard input"));
    }
    free(bytes);
}

/* ---- weights that are drawn */

static const struct {
    const char *find, *by, *says;
} bad_rules[] = {
    { "\"dtype\":\"F32\"", "\"dtype\":\"I32\"", "w1: dtype" },
    { "\"seed\":1", "\"seed\":-1", "w1: seed" },
    { "\"name\":\"experts.8.w1\"", "\"name\":1", "w1: name" },
    { "\"levels\":16777216", "\"levels\":0", "w1: levels" },
    { "\"levels\":16777216", "\"levels\":16777217", "w1: levels" },
    { "\"offset\":8388608.0", "\"offset\":\"a\"", "w1: offset" },
    { "\"offset\":8388608.0", "\"offset\":1e300", "w1: offset" },
    { "[700,512,256]", "[700,0,256]", "w1: shape" },
    { "[700,512,256]", "[700]", "w1: got rank 1" },
    { "[700,512,256]", "[699,512,256]", "w3: got size 700" },
    { "[700,512,256]", "[9223372036854775807,512,256]", "w1: shape" },
    { "[700,512,256]", "[1048577,512,256]", "w1: shape" },
    { "\"drawn\":{\"w1\":", "\"drawn\":3,\"was\":{\"w1\":", "drawn: got no object" },
    { "\"drawn\":{\"w1\":", "\"drawn\":{\"w9\":", "no operand w1" },
};
enum { BAD_RULES = sizeof bad_rules / sizeof bad_rules[0] };

/* Replaces text in the metadata of a file by as long a text, with spaces at the end. */
static void replace_in_header(const char *path, const char *find, const char *by)
{
    char from[200] = "", to[200] = "";
    size_t size;
    for (; *find; find++) snprintf(from + strlen(from), 4, "%s%c", *find == '"' ? "\\" : "", *find);
    for (; *by; by++) snprintf(to + strlen(to), 4, "%s%c", *by == '"' ? "\\" : "", *by);
    unsigned char *bytes = read_bytes(path, &size);
    const size_t length = strlen(from), more = strlen(to), grown = size + more - length;
    unsigned char *made = malloc(grown + 16);
    char *at = memmem(bytes, size, from, length);
    ck_assert_msg(at != NULL, "no %s", from);
    const size_t before = (size_t)((unsigned char *)at - bytes);
    uint64_t header;
    memcpy(&header, bytes, 8);
    header += more - length;
    const size_t pad = (8 - header % 8) % 8, end = 8 + (size_t)header;
    memcpy(made, bytes, before);
    memcpy(made + before, to, more);
    memcpy(made + before + more, bytes + before + length, end - before - more);
    memset(made + end, ' ', pad);
    memcpy(made + end + pad, bytes + (end + length - more), size - (end + length - more));
    header += pad;
    memcpy(made, &header, 8);
    write_bytes(path, made, grown + pad);
    free(bytes);
    free(made);
}

/* Goal:  a malformed rule of drawn weights: one line that names it, status 65, for --run and --check.
 * Seen to fail with levels and the number of experts not checked. */
LOOP_TEST(rules, BAD_RULES)
{
    static const char make[] = "experts --make @/c --cases 1 --seed 1 --sizes T=2,E=700,H=256,F=512,K=1";
    ck_assert_int_eq(op_status(make), 0);
    ck_assert_int_eq(op_status("experts --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("experts --check @/c @/r"), 0);
    replace_in_header(in_folder("c"), "seal_sha256", "unsealed");
    replace_in_header(in_folder("c"), bad_rules[_i].find, bad_rules[_i].by);
    for (int form = 0; form < 2; form++) {
        const int status = op_status(form ? "experts --check @/c @/r" : "experts --run @/c @/x");
        ck_assert_msg(status == 65, "rule %d, form %d: status %d", _i, form, status);
        ck_assert_int_eq(error_lines(), 1);
        ck_assert(has("err", bad_rules[_i].says));
        ck_assert(!exists("x"));
    }
}

/* ---- what a file is of */

/* Flips the lowest bit of the byte after the text, NULL: of the last one. */
static void flip_after(const char *path, const char *text)
{
    size_t size;
    unsigned char *bytes = read_bytes(path, &size);
    unsigned char *found = text ? memmem(bytes, size, text, strlen(text)) : NULL;
    ck_assert(!text || found);
    *(text ? found + strlen(text) : bytes + size - 1) ^= 1;
    write_bytes(path, bytes, size);
    free(bytes);
}

/* Goal:  cases that have changed, cases of another arithmetic and results of other cases are refused.
 * Seen to fail with each of the three not compared. */
TEST(identity)
{
    ck_assert_int_eq(op_status("rms_norm --make @/c"), 0);
    ck_assert_int_eq(op_status("rms_norm --run @/c @/r"), 0);
    ck_assert_int_eq(op_status("rms_norm --make @/d --seed 2"), 0);
    ck_assert_int_eq(op_status("rms_norm --check @/d @/r"), 3);
    ck_assert(has("err", "cases_sha256: got ") && error_lines() == 1);
    flip_after(in_folder("c"), NULL);
    ck_assert_int_eq(op_status("rms_norm --check @/c @/r"), 65);
    ck_assert(has("err", "the file has changed") && error_lines() == 1);
    ck_assert_int_eq(op_status("rms_norm --run @/c @/x"), 65);
    ck_assert(!exists("x"));
    replace_in_header(in_folder("d"), "seal_sha256", "unsealed");
    ck_assert_int_eq(op_status("rms_norm --run @/d @/x"), 0);
    flip_after(in_folder("d"), "\"arithmetic\":\"");
    ck_assert_int_eq(op_status("rms_norm --run @/d @/y"), 65);
    ck_assert(has("err", "arithmetic: got 0, expected 1") && error_lines() == 1);
}

/* ---- rows that are left out */

/* Goal:  a verdict says how many rows it does not cover, and an output none of whose rows is judged is no pass.
 * Seen to fail with rows of noise not counted. */
TEST(left_out)
{
    static const struct {
        const char *op, *tensor, *says;
        int status;
    } rows[] = {
        { "rms_norm", "4.x", "are no numbers: 1, in 1 output, first 4.y", 2 },       /* of one row */
        { "rms_norm", "3.x", "are no numbers: 1, in 1 output, first 3.y", 0 },
        { "residual_norm", "3.a", "are no numbers: 2, in 2 outputs, first 3.sum", 0 },
        { "jitter", "0.x", "are no numbers: 1, in 1 output, first 0.y", 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct change change = { rows[i].op, rows[i].tensor, NULL, NULL, 'v', 0, NAN, NULL };
        ck_assert_int_eq(m3ref("op %s --make %s", rows[i].op, in_folder("c")), 0);
        write_changed(in_folder("c"), in_folder("bad"), &change);
        ck_assert_int_eq(m3ref("op %s --run %s %s", rows[i].op, in_folder("bad"), in_folder("r")), 0);
        const int status = m3ref("op %s --check %s %s", rows[i].op, in_folder("bad"), in_folder("r"));
        ck_assert_msg(status == rows[i].status, "%s %s: status %d", rows[i].op, rows[i].tensor, status);
        ck_assert_msg(has("out", rows[i].says), "%s %s", rows[i].op, rows[i].tensor);
        ck_assert_int_eq(has("out", "not judged"), rows[i].status != 0);
        ck_assert_int_eq(m3ref("op %s --run %s %s", rows[i].op, in_folder("c"), in_folder("r")), 0);
        ck_assert_int_eq(m3ref("op %s --check %s %s", rows[i].op, in_folder("c"), in_folder("r")), 0);
        ck_assert(!has("out", "left out"));
    }
}
