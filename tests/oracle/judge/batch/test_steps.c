/* Which tokens an engine had in its cache at each of its steps (SPEC 7.19): rows by request and position, in the order in
 * which they were computed, against histories written down by hand. */
#include "oracle/judge/batch/steps.h"

#include <string.h>

#include "check.h"

enum { MOST = 16, REQUESTS = 3 };

/* Tokens of a request: 100 r + position, unless a row says otherwise. */
static int32_t token_of(int64_t request, int64_t row) { return (int32_t)(100 * request + row); }

struct row {
    int request, row, token; /* token 0: that of the request */
};

/* Of a history: its request, the dump's row of each of its tokens, and the first that is its own. */
struct wanted {
    int request, first, is_dropped, length, at[MOST];
    int other, token; /* the token at `other`, if it is not the request's; 0: all are */
};

static const struct scenario {
    const char *what;
    int count;
    struct row rows[MOST];
    int wanted_count;
    struct wanted wanted[5];
} scenarios[] = {
    { "two requests, a chunk and a step each, the rest not computed",
      5,
      { { 0, 0, 0 }, { 0, 1, 0 }, { 1, 0, 0 }, { 0, 2, 0 }, { 1, 1, 0 } },
      3,
      { { 0, 0, 0, 4, { 0, 1, 3, -1 }, 0, 0 },
        { 1, 0, 0, 4, { 2, 4, -1, -1 }, 0, 0 },
        { 2, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 } } },
    { "preempted and computed again",
      5,
      { { 0, 0, 0 }, { 0, 1, 0 }, { 0, 0, 0 }, { 0, 1, 0 }, { 0, 2, 0 } },
      4,
      { { 0, 0, 0, 4, { 2, 3, 4, -1 }, 0, 0 },
        { 1, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 2, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 0, 0, 1, 2, { 0, 1 }, 0, 0 } } },
    { "a draft of two, of which the second is rejected",
      6,
      { { 0, 0, 0 }, { 0, 1, 0 }, { 0, 2, 0 }, { 0, 3, 77 }, { 0, 3, 0 }, { 0, 4, 5 } },
      4,
      { { 0, 3, 0, 5, { 0, 1, 2, 4, 5 }, 4, 5 },
        { 1, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 2, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 0, 0, 1, 4, { 0, 1, 2, 3 }, 3, 77 } } },
    { "rows that the dump does not hold",
      2,
      { { 0, 0, 0 }, { 0, 3, 0 } },
      3,
      { { 0, 0, 0, 4, { 0, -1, -1, 1 }, 0, 0 },
        { 1, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 2, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 } } },
    { "a request that the case does not have",
      2,
      { { 3, 0, 0 }, { 3, 1, 0 } },
      4,
      { { 0, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 1, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 2, 0, 0, 4, { -1, -1, -1, -1 }, 0, 0 },
        { 3, 0, 0, 2, { 0, 1 }, 0, 0 } } },
};

static struct m3_batch batch;
static struct m3_case cases[REQUESTS];
static int64_t lengths[REQUESTS];
static int32_t ids[REQUESTS][4];
static struct m3_histories found;
static struct m3_error error;

/* Requests 0 to 2 of four tokens each; `like`: request 2 has the tokens of request 0. */
static void make_requests(int like)
{
    for (int r = 0; r < REQUESTS; r++) {
        for (int i = 0; i < 4; i++) ids[r][i] = token_of(like && r == 2 ? 0 : r, i);
        cases[r] = (struct m3_case){ .ids = ids[r], .T = 4 };
        lengths[r] = 4;
    }
    batch = (struct m3_batch){ .is_several = 1, .layout = { .count = REQUESTS, .lengths = lengths }, .cases = cases };
}

static int find(const struct row *rows, int count)
{
    static int64_t requests[MOST], numbers[MOST], tokens[MOST];
    for (int i = 0; i < count; i++) {
        requests[i] = rows[i].request, numbers[i] = rows[i].row;
        tokens[i] = rows[i].token ? rows[i].token : token_of(rows[i].request, rows[i].row);
    }
    const struct m3_step_rows steps = { count, requests, numbers, tokens, "dump" };
    return m3_histories_find(&found, &steps, &batch, &error);
}

static void same(const struct m3_history *h, const struct wanted *w)
{
    ck_assert_int_eq(h->request, w->request);
    ck_assert_int_eq(h->length, w->length);
    ck_assert_int_eq(h->is_dropped, w->is_dropped);
    ck_assert_int_eq(h->first, w->first);
    for (int i = 0; i < w->length; i++) {
        ck_assert_int_eq(h->at[i], w->at[i]);
        ck_assert_int_eq(h->tokens[i], w->token && i == w->other ? w->token : token_of(w->request, i));
    }
}

/* Claim: the histories are those written down. Seen to fail with rows that are cut off and kept in none; with a history
 * of a rejected draft that begins at its draft; with the first row of a history at 0. */
LOOP_TEST(histories, sizeof scenarios / sizeof scenarios[0])
{
    const struct scenario *s = &scenarios[_i];
    make_requests(0);
    ck_assert_msg(find(s->rows, s->count) == 0, "%s: %s", s->what, error.text ? error.text : "");
    ck_assert_msg(found.count == s->wanted_count, "%s: %d histories", s->what, (int)found.count);
    for (int i = 0; i < s->wanted_count; i++) same(&found.all[i], &s->wanted[i]);
    m3_histories_free(&found);
}

/* Claim: a request that begins in the middle of another's tokens has the other's rows before, as far as the tokens are the
 * same. Seen to fail with rows that are taken from request 1. */
TEST(prefix_of_another)
{
    static const struct row rows[] = { { 1, 0, 0 }, { 1, 1, 0 }, { 1, 2, 0 }, { 0, 0, 0 },
                                       { 0, 1, 0 }, { 2, 3, 3 }, { 0, 2, 0 } };
    static const int wanted[] = { 3, 4, -1, 5 };
    make_requests(1);
    ck_assert_int_eq(find(rows, 7), 0);
    ck_assert_int_eq(found.count, 3);
    for (int i = 0; i < 4; i++) ck_assert_int_eq(found.all[2].at[i], wanted[i]);
    m3_histories_free(&found);
}

static const struct {
    struct row rows[2];
    int count;
    const char *says;
} bad[] = {
    { { { 0, 5, 0 } }, 1, "dump: got row 5 of request 0 after row -1, expected the tokens between them in the case" },
    { { { 3, 1, 0 } }, 1, "dump: got row 1 of request 3 after row -1" },
    { { { 4, 0, 0 }, { 4, 1, 0 } }, 2, "dump: got no row of request 3, expected requests in a row" },
    { { { 0, 0, 9 } }, 1, "dump: request 0 begins with token 9, expected 0, as in the case" },
    { { { -1, 0, 9 } }, 1, "dump: row 0 of the dump: got row 0 of request -1, expected rows from 0 on" },
    { { { 9, 0, 9 } }, 1, "of requests from 0 to 3" },
    { { { 0, 0, -7 } }, 1, "dump: row 0 of the dump: got token -7, expected an id of the vocabulary" },
};

LOOP_TEST(bad_steps, sizeof bad / sizeof bad[0])
{
    make_requests(0);
    ck_assert_int_eq(find(bad[_i].rows, bad[_i].count), M3_BAD_INPUT);
    ck_assert_msg(strstr(error.text, bad[_i].says) != NULL, "%s", error.text);
    m3_histories_free(&found);
    m3_error_free(&error);
}
