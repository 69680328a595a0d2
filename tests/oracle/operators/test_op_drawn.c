/* Weights that a file of cases gives by name and seed: what `--run` and `--check` make of them equals what they make of
 * the same weights as stored tensors, whose values are drawn here by the formula of SPEC 3.6. And sets of cases that
 * the results of the case before would pass. Sizes and rows that the user names; large sets. */
#include "op_cases.h"
#include "same_tensors.h"

#include "model/engine.h"
#include "oracle/operators/drawn/file.h"
#include "oracle/operators/plans/planned.h"
#include "oracle/operators/plans/plans.h"

TIMEOUT(240);
FIXTURE(make_folder, remove_folder);

static const char sizes[] = "T=12,E=700,H=256,F=512,J=16,K=2";

static void make_drawn(const char *op, const char *path)
{
    char own[256];
    const struct m3_make_options options = {
        .given = op_sizes(own, op, sizes), .seed = 3, .random = 1, .dtype = M3_F32
    };
    op_make(op, path, &options);
}

/* ---- the generator, by itself */

static uint64_t mixed(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static uint64_t key_of(const char *name, uint64_t seed)
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return mixed(h + seed * 0x9E3779B97F4A7C15u);
}

static float value_of(uint64_t key, uint64_t i, double scale)
{
    const uint64_t level = (mixed(key + (i + 1) * 0x9E3779B97F4A7C15u) >> 32) * (1 << 24) >> 32;
    return (float)(((double)level - 8388608) * scale);
}

/* ---- files in which the weights are stored */

enum { EXPERTS = 700, NUMBERS = 512 * 256 };

/* A tensor in the header of a file. */
static void declare(json_t *header, const char *name, const char *dtype, json_t *shape, uint64_t *at, uint64_t bytes)
{
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets", (json_int_t)*at,
                              (json_int_t)(*at + bytes));
    ck_assert_int_eq(json_object_set_new(header, name, entry), 0);
    *at += bytes;
}

/* The three weights of one expert, each number times `factor`, to where the file has them; the first begins at `at`. */
static void put_expert(FILE *file, uint64_t at, const json_t *drawn, int64_t expert, float factor)
{
    float *values = malloc(NUMBERS * sizeof *values);
    const char *const names[] = { "w1", "w2", "w3" };
    for (int64_t k = 0; k < 3; k++) {
        const json_t *rule = json_object_get(drawn, names[k]);
        const uint64_t key = key_of(json_string_value(json_object_get(rule, "name")), 3);
        const double scale = json_real_value(json_object_get(rule, "scale"));
        for (int64_t i = 0; i < NUMBERS; i++)
            values[i] = factor * value_of(key, (uint64_t)(expert * NUMBERS + i), scale);
        const int64_t place = (int64_t)at + (k * EXPERTS + expert) * NUMBERS * (int64_t)sizeof *values;
        ck_assert_int_eq(fseek(file, place, SEEK_SET), 0);
        ck_assert_uint_eq(fwrite(values, sizeof *values, NUMBERS, file), NUMBERS);
    }
    free(values);
}

/* The weights of the last case as tensors: of the `chosen` experts; those of the others are zeros, a hole in the file.
 * Of expert `wrong` each number is doubled. */
static void write_stored(const char *from, const char *to, const unsigned char chosen[EXPERTS], int64_t wrong)
{
    struct op_set set;
    char numbered[64];
    uint64_t at = 0, first;
    op_open(&set, from);
    struct op_case *last = &set.cases[set.count - 1];
    json_t *drawn = json_incref(json_object_get(last->entry, "drawn")), *header = json_object();
    ck_assert_int_eq(json_object_size(drawn), 3);
    json_object_del(last->entry, "drawn");
    for (int64_t i = 0; i < m3_safetensors_count(set.file); i++) {
        const struct m3_tensor *t = m3_safetensors_at(set.file, i);
        json_t *shape = json_array();
        for (int d = 0; d < t->rank; d++) json_array_append_new(shape, json_integer(t->shape[d]));
        declare(header, t->name, m3_dtype_name(t->dtype), shape, &at, t->bytes);
    }
    first = at;
    for (int k = 1; k <= 3; k++) {
        snprintf(numbered, sizeof numbered, "w%d", k);
        json_t *shape = json_incref(json_object_get(json_object_get(drawn, numbered), "shape"));
        snprintf(numbered, sizeof numbered, "%d.w%d", (int)last->number, k);
        declare(header, numbered, "F32", shape, &at, EXPERTS * NUMBERS * sizeof(float));
    }
    char *cases = json_dumps(set.list, 0);
    json_object_set_new(
        header, "__metadata__",
        json_pack("{s:s, s:s}", "operator", m3_safetensors_metadata(set.file, "operator"), "cases", cases));
    char *text = json_dumps(header, 0);
    const uint64_t length = strlen(text), begin = 8 + (length + 63) / 64 * 64, padded = begin - 8;
    FILE *file = fopen(to, "wb");
    ck_assert_ptr_nonnull(file);
    fwrite(&padded, 1, 8, file);
    fprintf(file, "%-*s", (int)padded, text);
    for (int64_t i = 0; i < m3_safetensors_count(set.file); i++)
        fwrite(m3_safetensors_at(set.file, i)->data, 1, m3_safetensors_at(set.file, i)->bytes, file);
    for (int64_t e = 0; e < EXPERTS; e++)
        if (chosen[e]) put_expert(file, begin + first, drawn, e, e == wrong ? 2 : 1);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(truncate(to, (off_t)(begin + at)), 0);
    free(text);
    free(cases);
    json_decref(header);
    json_decref(drawn);
    op_close(&set);
}

/* Marks the experts that the judged rows of the last case chose. Returns one of the first row. */
static int64_t chosen_by(unsigned char chosen[EXPERTS], const char *cases, const char *results)
{
    struct op_set set;
    op_open(&set, cases);
    op_read(&set, results);
    const struct op_values *ids = op_output_named(&set.cases[set.count - 1], "ids");
    for (int64_t i = 0; i < ids->count; i++) chosen[(int64_t)ids->x[i]] = 1;
    const int64_t expert = (int64_t)ids->x[0];
    op_close(&set);
    return expert;
}

/* Goal:  drawn weights are those of the formula, for what the reference gives in both precisions and for the verdict.
 * Claim: the same bytes as with stored weights; results of the stored ones pass; with one chosen expert doubled they
 *        fail.
 * Seen to fail with the numbers of the expert after the one that a row chose. */
TEST(drawn_as_stored)
{
    const char *op = "moe_block", *cases = in_folder("cases"), *stored = in_folder("stored");
    const char *results = in_folder("results"), *others = in_folder("others");
    make_drawn(op, cases);
    op_run(op, cases, others, m3_engine_f64());
    unsigned char chosen[EXPERTS] = { 0 };
    const int64_t expert = chosen_by(chosen, cases, others);
    write_stored(cases, stored, chosen, -1);
    op_run(op, stored, results, m3_engine_f64());
    same_tensors(results, others);
    op_run(op, stored, results, m3_engine_f32());
    op_run(op, cases, others, m3_engine_f32());
    same_tensors(results, others);
    ck_assert_int_eq(op_check(op, cases, results, "fp32").status, 0);
    ck_assert_int_eq(op_check(op, cases, results, "bf16").status, 0);
    write_stored(cases, stored, chosen, expert);
    op_run(op, stored, results, m3_engine_f32());
    ck_assert_int_eq(op_check(op, cases, results, "fp32").status, 1);
}

/* Goal:  --draw writes the numbers of the formula: one tensor, or one expert of it.
 * Seen to fail with the first expert in place of the named one. */
TEST(written)
{
    struct m3_safetensors *file, *made;
    struct m3_case_file cases;
    struct m3_error error = { 0 };
    const char *path = in_folder("cases"), *out = in_folder("drawn");
    const uint64_t key = key_of("experts.8.w2", 3);
    make_drawn("experts", path);
    ck_assert_int_eq(m3_safetensors_open(&file, path, &error), M3_OK);
    ck_assert_int_eq(m3_case_file_open(&cases, NULL, file, &error), M3_OK);
    for (int form = 0; form < 2; form++) {
        const char *only = form ? "8.w2.699" : "8.w2";
        ck_assert_int_eq(m3_write_drawn(&cases, out, only, 2, &error), M3_OK);
        ck_assert_int_eq(m3_safetensors_open(&made, out, &error), M3_OK);
        ck_assert_int_eq(m3_safetensors_count(made), 1);
        const struct m3_tensor *t = m3_safetensors_find(made, only);
        ck_assert(t != NULL);
        ck_assert_int_eq(t->rank, form ? 2 : 3);
        ck_assert_int_eq(t->count, (form ? 1 : 700) * 256 * 512);
        const int64_t first = form ? 699 * 256 * 512 : 0;
        for (int64_t i = 0; i < t->count; i += 9973) {
            const float want = value_of(key, (uint64_t)(first + i), 0x1p-26);
            ck_assert_float_eq((float)m3_decode(t->dtype, t->data, i), want);
        }
        m3_safetensors_close(made);
    }
    ck_assert_int_eq(m3_write_drawn(&cases, out, "8.w2.700", 2, &error), M3_USAGE);
    ck_assert_int_eq(m3_write_drawn(&cases, out, "8.x", 2, &error), M3_USAGE);
    ck_assert_int_eq(m3_write_drawn(&cases, out, "5.w2", 2, &error), M3_USAGE);
    m3_error_free(&error);
    m3_case_file_close(&cases);
    m3_safetensors_close(file);
}

/* Goal:  a set is refused if a buffer with the results of the case before would pass all its cases.
 * Seen to fail with every stale result taken for a wrong one. */
TEST(stale_sets)
{
    const struct m3_plan plans[] = {
        { "sigmoid", "zeros", "T=2,E=4", "", "x=zeros", 0 },
        { "sigmoid", "more zeros", "T=3,E=5", "", "x=zeros", 0 },
        { "sigmoid", "arguments up to 100", "T=3,E=5", "", "x=far", 0 },
    };
    for (int count = 1; count <= 3; count++) {
        const struct m3_make_options options = {
            .sizes = M3_SIZES_TINY, .seed = 1, .dtype = M3_F32, .plans = plans, .plan_count = count
        };
        struct m3_make_summary summary;
        struct m3_error error = { 0 };
        const int status = m3_make_cases(m3_operator_named("sigmoid"), in_folder("cases"), &options, &summary, &error);
        ck_assert_msg(status == (count == 2 ? M3_WRONG : M3_OK), "%d cases: status %d", count, status);
        if (count == 2) ck_assert(strstr(error.text, "the results of the case before") != NULL);
        m3_error_free(&error);
    }
}

/* ---- the released sizes */

/* Goal:  `--sizes real`: attention over 65,536 tokens with 64 heads, of which some rows are judged; a MoE block of 128
 *        experts, whose weights are not stored.
 * Seen to fail with 32,768 tokens, with 64 experts, with all rows judged, and with weights of experts that are stored. */
TEST(released_sizes)
{
    static const struct {
        const char *op, *letters;
        int64_t sizes[4];
        int drawn;
    } claims[] = {
        { "attend_full", "TQGD", { 65536, 64, 4, 128 }, 0 },      { "attend_blocks", "TQGD", { 65536, 64, 4, 128 }, 0 },
        { "sparse_attention", "TQGD", { 65536, 64, 4, 128 }, 0 }, { "experts", "EFHK", { 128, 3072, 6144, 4 }, 3 },
        { "moe_block", "EFHK", { 128, 3072, 6144, 4 }, 3 },
    };
    const struct m3_make_options options = { .sizes = M3_SIZES_REAL, .seed = 1, .dtype = M3_BF16 };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct m3_planned_case planned;
        struct m3_error error = { 0 };
        int drawn = 0;
        ck_assert_int_eq(m3_plan_case(&planned, m3_operator_named(claims[i].op), NULL, 0, &options, &error), M3_OK);
        for (int k = 0; k < 4; k++)
            ck_assert_int_eq(planned.dims[(unsigned char)claims[i].letters[k]], claims[i].sizes[k]);
        for (int k = 0; k < planned.count; k++) drawn += planned.operands[k].is_drawn;
        ck_assert_int_eq(drawn, claims[i].drawn);
        ck_assert(claims[i].drawn || (planned.row_count > 0 && planned.row_count < 65536));
        m3_planned_free(&planned);
    }
}

/* Goal:  known mistakes of the norms of heads run where some rows of a case are computed, not all.
 * Seen to fail with the heads of a row taken for the rows at hand, divided by those of the case. */
TEST(heads_of_some_rows)
{
    const struct m3_make_options options = { .given = "T=4100,Q=2,D=8", .seed = 1, .random = 1, .dtype = M3_F32 };
    op_make("qk_norm_rope", in_folder("cases"), &options);
}

/* ---- sizes that are given */

/* Plans one case of drawn values. */
static int plan(struct m3_planned_case *planned, const char *op, const char *sizes, struct m3_error *error)
{
    const struct m3_make_options options = { .given = sizes, .seed = 1, .random = 1, .dtype = M3_F32 };
    return m3_plan_case(planned, m3_operator_named(op), NULL, 0, &options, error);
}

/* The size of a letter; p: places before row 0; R, k and q: what the parameters R, block and p0 state. */
static int64_t size_of(const struct m3_planned_case *c, char letter)
{
    const char *name = letter == 'R' ? "R" : letter == 'k' ? "block" : letter == 'q' ? "p0" : NULL;
    if (name) return json_integer_value(json_object_get(c->parameters, name));
    return letter == 'p' ? c->p0 : c->dims[(unsigned char)letter];
}

/* Goal:  sizes that are given are those of the case; what is not given follows them.
 * Seen to fail with R taken for the number of cosines; with D, E, T and P left as the class has them; with B and S that
 *        are not taken; with places that no p0 states. */
TEST(given_sizes)
{
    static const struct {
        const char *op, *given, *letters;
        int64_t sizes[4];
    } claims[] = {
        { "rope", "R=8,T=5", "rT", { 4, 5 } },
        { "rope", "R=16,D=16", "rD", { 8, 16 } },
        { "rope", "R=64", "rD", { 32, 64 } },
        { "rope", "r=1,D=2", "rD", { 1, 2 } },
        { "rope_backward", "R=64", "rD", { 32, 64 } },
        { "rope_table", "R=6,T=3", "rRT", { 3, 6, 3 } },
        { "rope_table_3d", "R=78,P=5", "rRP", { 39, 78, 5 } },
        { "qk_norm_rope", "R=12", "rRD", { 6, 12, 12 } },
        { "attend_blocks", "block=3,T=20,S=31,N=2", "TSNk", { 20, 31, 2, 3 } },
        { "attend_blocks_backward", "block=3,S=2", "TSk", { 2, 2, 3 } },
        { "block_scores", "block=5,T=12", "TSBk", { 12, 12, 3, 5 } },
        { "block_scores", "block=5,S=12,B=3,T=2", "TSBp", { 2, 12, 3, 10 } },
        { "sparse_attention", "B=9,T=30,block=4", "TSBp", { 30, 36, 9, 6 } },
        { "sparse_attention", "b=1,B=1", "TSBk", { 1, 1, 1, 1 } },
        { "select_blocks", "B=9,T=5,block=4", "TBqk", { 5, 9, 31, 4 } },
        { "select_blocks", "block=5000,T=4200,N=1", "TBNk", { 4200, 1, 1, 5000 } },
        { "attend_full", "S=1", "TS", { 1, 1 } },
        { "attend_full", "Q=5", "QG", { 5, 1 } },
        { "attend_full", "G=7", "QG", { 7, 7 } },
        { "route", "K=40", "KE", { 40, 40 } },
        { "route", "E=1", "KE", { 1, 1 } },
        { "scatter", "M=40", "MT", { 40, 40 } },
        { "attend_segments", "n=90", "nP", { 90, 90 } },
    };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct m3_planned_case planned;
        struct m3_error error = { 0 };
        const int status = plan(&planned, claims[i].op, claims[i].given, &error);
        ck_assert_msg(status == M3_OK, "%s %s: %s", claims[i].op, claims[i].given, error.text);
        for (int k = 0; claims[i].letters[k]; k++) {
            const int64_t got = size_of(&planned, claims[i].letters[k]);
            ck_assert_msg(got == claims[i].sizes[k], "%s %s: got %c=%d, expected %d", claims[i].op, claims[i].given,
                          claims[i].letters[k], (int)got, (int)claims[i].sizes[k]);
        }
        m3_planned_free(&planned);
    }
}

/* Goal:  an operator takes the sizes that it has, and no others; the message names them.
 * Seen to fail with every size taken by every operator, with R taken only where it is a parameter, and with the last
 *        operand left out of the message. */
LOOP_TEST(names_of_sizes, m3_operator_rows())
{
    static const char letters[] = "THQGDXVEKFIJNPAULWMSBnrbZ";
    const struct m3_operator_row *row = m3_operator_at(_i);
    struct m3_error all = { 0 };
    struct m3_planned_case planned;
    char names[200], item[32], listed[32];
    ck_assert_int_eq(plan(&planned, row->name, "Z=3", &all), M3_USAGE);
    m3_planned_free(&planned);
    const char *from = strstr(all.text, "got Z=3, expected "), *to = strstr(all.text, " for ");
    ck_assert(from && to && strstr(to, row->name));
    snprintf(names, sizeof names, " %.*s,", (int)(to - from - 18), from + 18);
    char *last = strstr(names, " or ");
    ck_assert_ptr_nonnull(last);
    memcpy(last, ", ", 2);
    memmove(last + 2, last + 4, strlen(last + 4) + 1);
    for (const char *at = letters; *at; at++) {
        struct m3_error error = { 0 };
        const int is_word = *at == 'r' || *at == 'b', has = op_has_size(row, *at);
        for (int form = 0; form <= is_word; form++) {
            snprintf(item, sizeof item, "%.*s=24", form == 0 ? 1 : 5, form == 0 ? at : *at == 'r' ? "R" : "block");
            const int status = plan(&planned, row->name, item, &error);
            ck_assert_msg(status == (has ? M3_OK : M3_USAGE), "%s %s: %s", row->name, item, error.text);
            m3_planned_free(&planned);
        }
        snprintf(listed, sizeof listed, " %.*s,", (int)strcspn(item, "="), item);
        const int is_listed = strstr(names, listed) != NULL;
        ck_assert_msg(is_listed == has, "%s: %s in \"%s\"", row->name, item, names);
        m3_error_free(&error);
    }
    m3_error_free(&all);
}

/* Goal:  sizes that contradict each other are refused, with both in the message.
 * Seen to fail with each of the relations not asked for. */
TEST(sizes_that_do_not_fit)
{
    static const char *const claims[][3] = {
        { "rope", "R=8,D=6", "got R=8 rotated channels with D=6, expected at most 6" },
        { "qk_norm_rope", "D=1", "got D=1, expected at least 2" },
        { "attend_full", "D=1", "got D=1, expected at least 2" },
        { "rope_3d", "U=5", "got U=5, expected at least 6 for rope_3d" },
        { "vision_attention", "P=12", "got P=12, expected a multiple of 8 for vision_attention" },
        { "rope", "R=7", "got R=7, expected an even number from 2" },
        { "rope", "R=8,r=4", "got r=4 for a size that is given already" },
        { "rope_table_3d", "R=8", "got R=8, expected a multiple of 6" },
        { "rope_table", "r=2000000000", "got r=2000000000, expected a number from 1 to 1073741823" },
        { "attend_full", "S=3,T=5", "got T=5 with S=3, expected at most 3" },
        { "attend_full_backward", "Q=5,G=2", "got Q=5 heads with G=2, expected a multiple of 2" },
        { "block_scores", "B=9,S=12,block=4", "got B=9, expected B=3 blocks of 4 keys for 12 places" },
        { "select_blocks", "B=1,T=5,block=4", "got B=1, expected B=2 blocks of 4 keys for 5 places" },
        { "select_blocks", "B=70000,block=70000", "got B=70000 blocks of 70000 keys, expected at most 2147483647" },
        { "experts_backward", "K=9,E=4", "got K=9 with E=4, expected at most 4" },
        { "scatter", "M=9,T=4", "got M=9 with T=4, expected at most 4" },
        { "attend_segments", "n=9,P=4", "got n=9 with P=4, expected at most 4" },
        { "add", "T=5,,H=3", "got nothing, expected tiny, small, real or LETTER=SIZE with T or H for add" },
        { "add", "T=5,", "got nothing" },
        { "add", "T=", "got T=, expected a number from 1" },
        { "add", "T=5=5", "got T=5=5" },
        { "add", "blocks=4", "got blocks=4, expected T or H for add" },
    };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        struct m3_planned_case planned;
        struct m3_error error = { 0 };
        ck_assert_int_eq(plan(&planned, claims[i][0], claims[i][1], &error), M3_USAGE);
        ck_assert_msg(strstr(error.text, claims[i][2]) != NULL, "%s %s: %s", claims[i][0], claims[i][1], error.text);
        m3_planned_free(&planned);
        m3_error_free(&error);
    }
}

/* ---- rows that are given */

/* Goal:  the rows of --rows are those of every case of drawn values: of them the results are, and they are judged.
 *        Operators whose rows are judged together say so.
 * Seen to fail with the rows of the sample, and with a value of an unlisted row in place of a listed one. */
LOOP_TEST(given_rows, m3_operator_rows())
{
    const struct m3_operator_row *row = m3_operator_at(_i);
    const char *op = row->name, *cases = in_folder("cases"), *results = in_folder("results");
    char sizes_of[256];
    const char *given = op_sizes(sizes_of, op, "T=5,P=8,M=2");
    const struct m3_make_options options = { .given = given, .rows = "0,3", .seed = 3, .random = 2, .dtype = M3_F32 };
    struct m3_make_summary summary;
    struct m3_error error = { 0 };
    if (!m3_operator_by_row(row)) {
        ck_assert_int_eq(m3_make_cases(row, cases, &options, &summary, &error), M3_USAGE);
        ck_assert(strstr(error.text, "its rows are judged together") != NULL);
        m3_error_free(&error);
        return;
    }
    struct op_set set;
    op_make(op, cases, &options);
    op_run(op, cases, results, m3_engine_f32());
    op_open(&set, cases);
    op_read(&set, results);
    for (int64_t i = 0; i < set.count; i++) {
        const json_t *rows = json_object_get(set.cases[i].entry, "rows");
        if (i < set.count - 2) continue;
        ck_assert_uint_eq(json_array_size(rows), 2);
        ck_assert_int_eq(json_integer_value(json_array_get(rows, 0)), 0);
        ck_assert_int_eq(json_integer_value(json_array_get(rows, 1)), 3);
        for (int k = 0; k < set.cases[i].output_count; k++) ck_assert_int_eq(set.cases[i].outputs[k].shape[0], 2);
    }
    ck_assert_int_eq(op_check(op, cases, results, "fp32").status, 0);
    struct op_case *last = &set.cases[set.count - 1];
    struct op_values *y = &last->outputs[last->output_count - 1];
    for (int64_t i = y->count / 2; i < y->count; i++) y->x[i] += 1;
    op_write(&set, results, M3_F32, NULL);
    const struct op_verdict v = op_check(op, cases, results, "fp32");
    ck_assert_msg(v.status == 1, "%s: status %d", op, v.status);
    op_close(&set);
}

/* Goal:  rows are checked against each case.
 * Seen to fail with rows beyond the case taken. */
TEST(rows_that_do_not_fit)
{
    static const struct {
        const char *rows;
        int count; /* -1: refused */
    } claims[] = { { "all", 0 }, { "4", 1 },   { "0:5", 5 },  { "1:3,2,4", 3 }, { "5", -1 },     { "0:6", -1 },
                   { "", -1 },   { "1,", -1 }, { "3:2", -1 }, { "-1", -1 },     { "all,1", -1 }, { "0x1", -1 } };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        const struct m3_make_options options = { .given = "T=5", .rows = claims[i].rows, .random = 1, .dtype = M3_F32 };
        struct m3_planned_case planned;
        struct m3_error error = { 0 };
        const int status = m3_plan_case(&planned, m3_operator_named("rms_norm"), NULL, 7, &options, &error);
        ck_assert_msg(status == (claims[i].count < 0 ? M3_USAGE : M3_OK), "%s: status %d", claims[i].rows, status);
        if (status) ck_assert(strstr(error.text, "from 0 to 4: case 7 has 5 rows") != NULL);
        else ck_assert_int_eq(planned.row_count, claims[i].count);
        m3_planned_free(&planned);
        m3_error_free(&error);
    }
}

/* ---- large sets */

static struct m3_make_summary announced;
static int announcements;

static void announce(const struct m3_operator_row *op, const struct m3_make_summary *set)
{
    ck_assert_str_eq(op->name, "experts");
    ck_assert_int_eq(access(in_folder("cases"), F_OK), -1);
    announced = *set;
    announcements++;
}

/* Goal:  a large set is announced before it is written: its cases, the bytes of its operands, and those that are drawn.
 * Seen to fail with drawn operands not counted, and with the announcement after the file. */
TEST(announced_sets)
{
    struct m3_make_options options = { .given = "T=2", .seed = 3, .random = 1, .dtype = M3_F32, .announce = announce };
    struct m3_safetensors *file;
    struct m3_error error = { 0 };
    uint64_t bytes = 0;
    op_make("experts", in_folder("small"), &options);
    ck_assert_int_eq(announcements, 0);
    options.given = "T=2,E=700,H=256,F=512,K=2";
    op_make("experts", in_folder("cases"), &options);
    ck_assert_int_eq(announcements, 1);
    ck_assert_int_eq(m3_safetensors_open(&file, in_folder("cases"), &error), M3_OK);
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) bytes += m3_safetensors_at(file, i)->bytes;
    m3_safetensors_close(file);
    ck_assert_uint_eq(announced.bytes, bytes);
    ck_assert_uint_eq(announced.drawn, 3u * 700 * 256 * 512 * 4);
    ck_assert_int_eq(announced.cases, announced.structured + 1);
}
