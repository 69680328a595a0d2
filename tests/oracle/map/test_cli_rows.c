/* Candidates that say which rows they hold: by `rows` and `sequences`, by what engines have for them, or by their
 * shapes alone; under a map and under m3ref's names.
 *
 * Given: an honest run of two sequences, packed and padded, of 14 and 6 tokens (tests/candidates), of which some rows
 * are written in the form of an engine.
 * Seen to fail with numbers that a map does not read, with packed rows taken for slots, and with those of a padded
 * batch taken for packed ones. */
#include "program.h"

#include <math.h>

#define MODEL "golden/tiny/model"

enum { ROWS = 20, FIRST = 14, SLOTS = 15, MOST = 32, NUMBERS = 4 };
enum form { PACKED, FLAT, BATCH, ONE }; /* [R,..], [B S,..], [B,S,..], [1,R,..] */

static const struct tap {
    const char *own, *theirs;
} taps[] = {
    { "embed", "model.embed_tokens" },
    { "layers.2.attn_out", "model.layers.2.self_attn.o_proj.0" },
    { "final_norm", "model.norm.0" },
    { "logits", "logits_processor" },
};
enum { TAPS = sizeof taps / sizeof *taps };

struct number {
    const char *name;
    int count, of[MOST];
};

struct candidate {
    const char *what;
    enum form form;
    int count, rows[MOST]; /* count 0: all */
    struct number numbers[NUMBERS];
    int status;
    const char *says; /* in the report, or in the only line of the error */
};

static const char *const cases[] = { "packed", "padded" };
static const int before[2][2] = { { 0, 0 }, { 1, 9 } };

static const char *file_of(const char *which, int c)
{
    char name[40];
    snprintf(name, sizeof name, "%s.%s.safetensors", cases[c], which);
    return in_folder(name);
}

static void setup(void)
{
    make_folder();
    for (int c = 0; c < 2; c++) {
        char file[64];
        snprintf(file, sizeof file, "tests/candidates/%s_case.safetensors", cases[c]);
        ck_assert_int_eq(m3ref("run " MODEL " --case %s --dump %s", file, file_of("run", c)), 0);
        ck_assert_int_eq(m3ref("run " MODEL " --case %s --precision f64 --bounds --dump %s", file, file_of("truth", c)),
                         0);
    }
}

TIMEOUT(240);
FIXTURE_ONCE(setup, remove_folder);

/* Which row of the run stands at place i of the form; -1: padding. */
static int row_at(const struct candidate *x, int c, int i)
{
    if (x->form == PACKED || x->form == ONE) return x->count ? x->rows[i] : i;
    const int b = i / SLOTS, at = i % SLOTS - before[c][b];
    return at < 0 || at >= (b ? ROWS - FIRST : FIRST) ? -1 : b * FIRST + at;
}

static void write_values(struct m3_writer *writer, const struct m3_tensor *t, const struct candidate *x, int c,
                         int places)
{
    struct m3_error error = { 0 };
    const size_t width = t->bytes / ROWS;
    unsigned char *padding = malloc(width);
    memset(padding, 0xff, width); /* NaN */
    for (int i = 0; i < places; i++) {
        const int row = row_at(x, c, i);
        const void *from = row < 0 || row >= ROWS ? padding : (const unsigned char *)t->data + (size_t)row * width;
        ck_assert_int_eq(m3_writer_write(writer, from, width, &error), 0);
    }
    free(padding);
}

static void write_candidate(const char *path, const struct candidate *x, int c, int is_mapped)
{
    struct m3_error error = { 0 };
    struct m3_safetensors *run;
    struct m3_writer *writer;
    const int places = x->form == FLAT || x->form == BATCH ? 2 * SLOTS : x->count ? x->count : ROWS;
    ck_assert_int_eq(m3_safetensors_open(&run, file_of("run", c), &error), 0);
    ck_assert_int_eq(m3_writer_new(&writer, path, &error), 0);
    for (int i = 0; i < TAPS; i++) {
        const struct m3_tensor *t = m3_safetensors_find(run, taps[i].own);
        const int64_t width = t->shape[1], wide[] = { 2, SLOTS, width }, one[] = { 1, places, width },
                      flat[] = { places, width };
        const int64_t *shape = x->form == BATCH ? wide : x->form == ONE ? one : flat;
        ck_assert_int_eq(m3_writer_tensor(writer, is_mapped ? taps[i].theirs : taps[i].own, t->dtype,
                                          shape == flat ? 2 : 3, shape, &error),
                         0);
    }
    for (int i = 0; i < NUMBERS && x->numbers[i].name; i++)
        ck_assert_int_eq(
            m3_writer_tensor(writer, x->numbers[i].name, M3_I32, 1, &(int64_t){ x->numbers[i].count }, &error), 0);
    ck_assert_int_eq(m3_writer_begin(writer, &error), 0);
    for (int i = 0; i < TAPS; i++) write_values(writer, m3_safetensors_find(run, taps[i].own), x, c, places);
    for (int i = 0; i < NUMBERS && x->numbers[i].name; i++)
        ck_assert_int_eq(m3_writer_write(writer, x->numbers[i].of, (uint64_t)x->numbers[i].count * sizeof(int), &error),
                         0);
    ck_assert_int_eq(m3_writer_commit(writer, &error), 0);
    m3_safetensors_close(run);
}

static void compare_all(const struct candidate *list, size_t count, int c)
{
    char candidate[512];
    snprintf(candidate, sizeof candidate, "%s", in_folder("candidate.safetensors"));
    for (size_t i = 0; i < count; i++)
        for (int is_mapped = 0; is_mapped < 2; is_mapped++) {
            write_candidate(candidate, &list[i], c, is_mapped);
            const int status = m3ref("compare %s %s%s", file_of("truth", c), candidate, is_mapped ? " --map vllm" : "");
            ck_assert_msg(status == list[i].status, "%s, %s, map %d: status %d", cases[c], list[i].what, is_mapped,
                          status);
            ck_assert_msg(has(status == 65 || status == 3 ? "err" : "out", list[i].says), "%s, %s, map %d: not: %s",
                          cases[c], list[i].what, is_mapped, list[i].says);
            if (status == 65 || status == 3) ck_assert_int_eq(error_lines(), 1);
        }
}

#define PASS 0, "pass  4 of 4 stages judged"

/* Claim: whatever an engine calls the numbers of its rows, each row is compared with its own. */
static const struct candidate right[] = {
    { "in order", PACKED, 0, { 0 }, { { 0 } }, PASS },
    { "rows in any order",
      PACKED,
      5,
      { 14, 3, 5, 4, 15 },
      { { "sequences", 5, { 1, 0, 0, 0, 1 } }, { "rows", 5, { 0, 3, 5, 4, 1 } } },
      PASS },
    { "starts and positions",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } }, { "positions", 5, { 3, 4, 5, 0, 1 } } },
      PASS },
    { "starts and lengths",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "attn_metadata.query_start_loc", 3, { 0, 3, 5 } }, { "attn_metadata.seq_lens", 2, { 6, 2 } } },
      PASS },
    { "counts and tokens in the cache",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "extend_seq_lens", 2, { 3, 2 } }, { "extend_prefix_lens", 2, { 3, 0 } } },
      PASS },
    { "positions and lengths",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "model.forward_batch_info.positions", 5, { 3, 4, 5, 0, 1 } },
        { "model.forward_batch_info.seq_lens", 2, { 6, 2 } } },
      PASS },
    { "requests of rows",
      PACKED,
      5,
      { 14, 3, 15, 4, 5 },
      { { "req_indices", 5, { 1, 0, 1, 0, 0 } }, { "positions", 5, { 0, 3, 1, 4, 5 } } },
      PASS },
    { "requests of a step",
      PACKED,
      5,
      { 14, 15, 3, 4, 5 },
      { { "query_start_loc", 3, { 0, 2, 5 } }, { "requests", 2, { 1, 0 } }, { "positions", 5, { 0, 1, 3, 4, 5 } } },
      PASS },
    { "one request of two",
      PACKED,
      2,
      { 14, 15 },
      { { "query_start_loc", 2, { 0, 2 } }, { "requests", 1, { 1 } }, { "positions", 2, { 0, 1 } } },
      PASS },
    { "a decode step", PACKED, 2, { 13, 19 }, { { "positions", 2, { 13, 5 } } }, PASS },
    { "a decode step by lengths",
      PACKED,
      2,
      { 13, 19 },
      { { "seq_lens", 2, { 14, 6 } }, { "query_start_loc", 3, { 0, 1, 2 } } },
      PASS },
    { "whole sequences by starts", PACKED, 0, { 0 }, { { "cu_seqlens_q", 3, { 0, 14, 20 } } }, PASS },
    { "longer buffers",
      PACKED,
      7,
      { 3, 4, 5, 14, 15, 99, 99 },
      { { "query_start_loc", 5, { 0, 3, 5, 5, 5 } },
        { "positions", 7, { 3, 4, 5, 0, 1, 0, 0 } },
        { "seq_lens", 4, { 6, 2, 0, 0 } },
        { "slot_mapping", 7, { 8, 9, 3, 2, 1, -1, -1 } } },
      PASS },
    { "a batch of one", ONE, 0, { 0 }, { { 0 } }, PASS },
};

/* Claim: rows that are numbered wrongly fail. */
static const struct candidate wrong[] = {
    { "another row",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } }, { "positions", 5, { 2, 4, 5, 0, 1 } } },
      1,
      "fail  embed sequence 0, row 2" },
    { "other lengths",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } }, { "seq_lens", 2, { 7, 2 } } },
      1,
      "fail  embed sequence 0" },
};

/* Claim: what cannot be is refused in one line, before anything is compared. */
static const struct candidate refused[] = {
    { "another number of rows", PACKED, 19, { 0, 1, 2 }, { { 0 } }, 3, "embed: got [19,96], expected packed [20,..]" },
    { "rows that are not numbered",
      PACKED,
      0,
      { 0 },
      { { "query_start_loc", 3, { 0, 3, 5 } }, { "positions", 5, { 3, 4, 5, 0, 1 } } },
      3,
      "embed: got [20,96], expected [5,..], as its rows are numbered" },
    { "positions that go back",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } }, { "positions", 5, { 3, 5, 4, 0, 1 } } },
      65,
      "positions[2]: got 4 after 5 in sequence 0, expected more" },
    { "a request twice",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } }, { "requests", 2, { 1, 1 } }, { "positions", 5, { 3, 4, 5, 0, 1 } } },
      65,
      "requests[1]: got request 1 twice in a step, expected it once" },
    { "a row twice",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "sequences", 5, { 0, 0, 0, 1, 1 } }, { "rows", 5, { 3, 4, 4, 0, 1 } } },
      65,
      "got row 4 of sequence 0 twice, expected it once" },
    { "a position behind the end",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } }, { "positions", 5, { 3, 4, 15, 0, 1 } } },
      65,
      "positions[2]: got row 15, expected 0 to 13, the rows of sequence 0" },
    { "starts that go back",
      PACKED,
      0,
      { 0 },
      { { "query_start_loc", 3, { 0, 14, 12 } } },
      65,
      "query_start_loc[2]: got 12, expected 14 to " },
    { "starts beyond the rows",
      PACKED,
      0,
      { 0 },
      { { "query_start_loc", 3, { 0, 14, 22 } }, { "positions", 2, { 0, 1 } } },
      65,
      "positions: got 2 rows, expected 22, those of the requests" },
    { "requests that nobody names",
      PACKED,
      0,
      { 0 },
      { { "query_start_loc", 4, { 0, 10, 14, 20 } } },
      65,
      "query_start_loc: got 3 requests, expected the 2 of the case, or `requests`" },
    { "rows that nobody names",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } } },
      65,
      "got 3 rows of sequence 0, expected its 14, or `positions`" },
    { "two numberings",
      PACKED,
      0,
      { 0 },
      { { "query_start_loc", 3, { 0, 14, 20 } }, { "cu_seqlens", 3, { 0, 13, 20 } } },
      65,
      "got other numbers than query_start_loc, expected one numbering" },
    { "padding between rows",
      PACKED,
      5,
      { 3, 4, 5, 14, 15 },
      { { "query_start_loc", 3, { 0, 3, 5 } },
        { "positions", 5, { 3, 4, 5, 0, 1 } },
        { "slot_mapping", 5, { 1, -1, 2, 3, 4 } } },
      65,
      "slot_mapping[1]: got -1 before other rows, expected padding at the end alone" },
    { "a sequence that is not there",
      PACKED,
      2,
      { 13, 19 },
      { { "requests", 2, { 0, 2 } }, { "positions", 2, { 13, 5 } } },
      65,
      "requests[1]: got sequence 2, expected 0 to 1" },
};

/* The padded case alone has slots. */
static const struct candidate padded[] = {
    { "[B,S,..]", BATCH, 0, { 0 }, { { 0 } }, PASS },
    { "[B S,..]", FLAT, 0, { 0 }, { { 0 } }, PASS },
    { "[B,S,..] with lengths", BATCH, 0, { 0 }, { { "seq_lens", 2, { 14, 6 } } }, PASS },
    { "another number of rows",
      PACKED,
      19,
      { 0, 1, 2 },
      { { 0 } },
      3,
      "embed: got [19,96], expected packed [20,..] or padded [2,15,..]" },
};

#define ALL(list, c) compare_all(list, sizeof list / sizeof *list, c)

TEST(packed_case)
{
    ALL(right, 0);
    ALL(wrong, 0);
    ALL(refused, 0);
}

TEST(padded_case)
{
    ALL(right, 1);
    ALL(wrong, 1);
    ALL(refused, 1);
    ALL(padded, 1);
}
