#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/explain/private/explaining.h"

/* ---- the score of a block */

/* The visible keys of a block, side by side; *n is their number. */
static float *keys_of(struct m3_explaining *e, int32_t *ids, int64_t *n, const float *k, int64_t first, int64_t end)
{
    const unsigned char *seen = e->how->the_case->seen;
    const int64_t X = e->config->X;
    float *rows = malloc((size_t)(m3_max(0, end - first) * X) * sizeof *rows + 1);
    *n = 0;
    if (!rows) e->steps->status = m3_fail_memory(e->error, "explain", (size_t)X * sizeof *rows);
    for (int64_t j = first; rows && j < end; j++) {
        if (seen && !seen[j]) continue;
        memcpy(rows + *n * X, k + j * X, (size_t)X * sizeof *rows);
        ids[(*n)++] = (int32_t)j;
    }
    return rows;
}

static void show_scores(struct m3_explaining *e, const int32_t *ids, int scores, int64_t n)
{
    const char *const heads[] = { "key", "score" };
    int64_t found;
    if (e->steps->status) return;
    const double *values = e->steps->list[scores].values;
    const int64_t *places = m3_largest(e, &found, values, n, M3_SHOWN_TERMS);
    struct m3_explained_table *table = m3_table(e, 2, heads);
    for (int64_t i = 0; table && i < found; i++) {
        m3_cell_int(e, table, ids[places[i]]);
        m3_cell_float(e, table, values[places[i]]);
    }
    if (table)
        snprintf(table->title, sizeof table->title, "the %" PRId64 " best of the block's %" PRId64 " visible keys",
                 found, n);
}

/* With index_scale=rsqrt and pool=lse what follows the dot products and their maximum. */
static int scaled(struct m3_explaining *e, int scores)
{
    struct m3_steps *s = e->steps;
    if (e->how->semantics->index_scale != M3_INDEX_SCALE_RSQRT) return scores;
    const int one = m3_given_number(s, M3_STEP_F64, "1", "", 1);
    const int X = m3_given_number(s, M3_STEP_F64, "X", "channels of an index head", (double)e->config->X);
    const int root = m3_step(s, M3_BY_SQRT, M3_STEP_F64, "root", "sqrt X", X, -1);
    const int inverse = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "1 / root", "in double", one, root);
    const int scale = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "scale", "1 / sqrt X, rounded to float", inverse, -1);
    return m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "scaled", "s scale (index_scale=rsqrt)", scores, scale);
}

static int pooled(struct m3_explaining *e, int scores, int max)
{
    struct m3_steps *s = e->steps;
    if (e->how->semantics->pool == M3_POOL_MAX || !isfinite(m3_step_value(s, max, 0))) return max;
    const int below = m3_step(s, M3_BY_SUBTRACT, M3_STEP_F64, "s - max s", "pool=lse, in double", scores, max);
    const int w = m3_step(s, M3_BY_EXP, M3_STEP_F64, "exp(s - max s)", "in double", below, -1);
    const int sum = m3_step(s, M3_BY_SUM, M3_STEP_F64, "sum", "in double, keys ascending", w, -1);
    const int ln = m3_step(s, M3_BY_LN, M3_STEP_F64, "ln", "ln of the sum", sum, -1);
    const int wide = m3_step(s, M3_BY_ADD, M3_STEP_F64, "max s + ln", "in double", max, ln);
    return m3_step(s, M3_BY_ROUND, M3_STEP_F32, "m", "max s + ln, rounded to float", wide, -1);
}

int m3_explain_block_scores(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const struct m3_config *c = e->config;
    const int64_t B = e->kept[0].width / c->G, g = e->channel / B, b = e->channel % B;
    const int64_t first = b * c->block, end = m3_min(first + c->block, e->p0 + 1);
    enum m3_tap tap;
    int64_t layer, row, n;
    const float *k = NULL;
    m3_explain_equation(e, "block_scores");
    if (!m3_explain_operand(e, 1, &tap, &layer, &row)) k = m3_kept_row(e, tap, layer, 0);
    int32_t *ids = m3_steps_scratch(s, c->block, sizeof *ids);
    if (!k || !ids) return -1;
    float *rows = keys_of(e, ids, &n, k, first, end);
    m3_explain_note(e,
                    "Block %" PRId64 " is the places %" PRId64 " to %" PRId64 "; %" PRId64 " of them are visible from"
                    " place %" PRId64 ".",
                    b, first, first + c->block - 1, n, e->p0);
    if (n == 0) {
        free(rows);
        return m3_given_number(s, M3_STEP_F32, "m", "of a block without a visible key", -INFINITY);
    }
    const int q = m3_given_operand(e, "q", 0, g * c->X, c->X);
    const int keys = m3_given_keys(s, "k", "the visible index keys of the block, one a row", rows, n, c->X);
    const int dots = m3_step(s, M3_BY_MATRIX, M3_STEP_F32, "s", "the dot of q with each key", keys, q);
    const int scores = scaled(e, dots);
    const int max = m3_step(s, M3_BY_LARGEST, M3_STEP_F32, "max s", "the largest score", scores, -1);
    show_scores(e, ids, scores, n);
    return pooled(e, scores, max);
}

/* ---- the choice of blocks */

struct choice {
    const float *m;             /* [G,B] the scores */
    int64_t B, own;
    int32_t *ids;               /* [most + 1] of a call */
    int64_t forced, most;
    struct m3_index d;
};

/* What select_blocks chooses for the group with lists of n; in c->ids [n]. Returns how many. */
static int64_t chosen(struct m3_explaining *e, struct choice *c, const float *scores, int64_t n)
{
    struct m3_index d = c->d;
    d.N = n;
    const int64_t G = d.G;
    int32_t *lists = m3_steps_scratch(e->steps, G * n, sizeof *lists);
    if (!lists) return 0;
    const int status = m3_engine_f32()->plain->select_blocks(&e->ctx, lists, scores, &d);
    if (status) {
        m3_explain_failed(e, "select_blocks refuses the scores");
        return 0;
    }
    memcpy(c->ids, lists + e->group * n, (size_t)n * sizeof *lists);
    int64_t count = 0;
    while (count < n && c->ids[count] >= 0) count++;
    return count;
}

static int has(const int32_t *ids, int64_t n, int64_t id)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] == id) return 1;
    return 0;
}

/* order [c->most]: the blocks as longer and longer lists choose them, the forced ones first. Returns how many. */
static int64_t ranking(struct m3_explaining *e, struct choice *c, int32_t *order)
{
    const int64_t count = e->config->G * c->B;
    float *nothing = m3_steps_scratch(e->steps, count, sizeof *nothing);
    for (int64_t i = 0; nothing && i < count; i++) nothing[i] = -INFINITY;
    if (!nothing) return 0;
    /* Blocks that score -inf are chosen only if they are forced. */
    int64_t found = c->forced = chosen(e, c, nothing, m3_min(e->config->N, c->most));
    memcpy(order, c->ids, (size_t)found * sizeof *order);
    for (int64_t n = found + 1; n <= c->most && !e->steps->status; n++) {
        const size_t mark = m3_scratch_mark(&e->ctx);
        const int64_t count_now = chosen(e, c, c->m, n);
        m3_scratch_release(&e->ctx, mark);
        if (count_now < n) break;
        for (int64_t i = 0; i < n; i++)
            if (!has(order, found, c->ids[i])) {
                order[found++] = c->ids[i];
                break;
            }
    }
    return found;
}

/* The score that decides: the group's own, or with selection=shared the largest of all groups. */
static double score_of(const struct m3_explaining *e, const struct choice *c, int64_t b)
{
    double best = (double)c->m[e->group * c->B + b];
    for (int64_t g = 0; e->how->semantics->selection == M3_SELECT_SHARED && g < e->config->G; g++)
        best = fmax(best, (double)c->m[g * c->B + b]);
    return best;
}

static void show_ranking(struct m3_explaining *e, const struct choice *c, const int32_t *order, int64_t found)
{
    const char *const heads[] = { "rank", "block", "places", "score", "chosen", "gap" };
    const int64_t N = e->config->N, kept = m3_min(N, found), block = e->config->block;
    const double least = kept > c->forced ? score_of(e, c, order[kept - 1]) : INFINITY;
    struct m3_explained_table *table = m3_table(e, 6, heads);
    for (int64_t i = 0; table && i < found; i++) {
        const int64_t b = order[i];
        m3_cell_int(e, table, i + 1);
        m3_cell_int(e, table, b);
        m3_cell_text(e, table, "%" PRId64 "-%" PRId64, b * block, m3_min(b * block + block - 1, e->p0));
        m3_cell_float(e, table, score_of(e, c, b));
        m3_cell_text(e, table, "%s", i < c->forced ? "forced" : i < kept ? "yes" : "no");
        if (i < c->forced || kept == c->forced) m3_cell_text(e, table, "-");
        else m3_cell_float(e, table, score_of(e, c, b) - least);
    }
    if (table)
        snprintf(table->title, sizeof table->title,
                 "the ranking of group %" PRId64 "; gap: score minus that of the last chosen", e->group);
    if (found > kept && kept > c->forced)
        m3_explain_note(
            e,
            "The margin is %.9g: the score of block %d (the last chosen) exceeds that of block %d (the first "
            "not chosen) by this much.",
            least - score_of(e, c, order[kept]), order[kept - 1], order[kept]);
    if (found <= N) m3_explain_note(e, "Every block with a visible key is chosen: there are no more than N.");
}

/* Why the candidate that was asked for is chosen, or is not. */
static void answer(struct m3_explaining *e, const struct choice *c, const int32_t *order, int64_t found)
{
    const int64_t b = e->channel < 0 ? -1 : e->channel % c->B, kept = m3_min(e->config->N, found);
    if (b < 0) return;
    const double score = score_of(e, c, b), least = kept > 0 ? score_of(e, c, order[kept - 1]) : NAN;
    if (b > c->own)
        m3_explain_note(e,
                        "Block %" PRId64 " is not chosen: it begins after place %" PRId64 ", and a row sees no later "
                        "place.",
                        b, e->p0);
    else if (has(order, c->forced, b))
        m3_explain_note(e, "Block %" PRId64 " is chosen whatever it scores: it is forced.", b);
    else if (has(order, kept, b)) m3_explain_note(e, "Block %" PRId64 " is chosen: it scores %.9g.", b, score);
    else if (score == -INFINITY)
        m3_explain_note(e, "Block %" PRId64 " is not chosen: this row sees none of its keys.", b);
    else if (kept == c->forced)
        m3_explain_note(e, "Block %" PRId64 " is not chosen: the forced blocks fill the list.", b);
    else
        m3_explain_note(
            e, "Block %" PRId64 " is not chosen: its score of %.9g is %.9g below that of block %d, the last chosen.", b,
            score, least - score, order[kept - 1]);
}

/* The scores of the visible blocks, as the choice reads them. */
static int given_scores(struct m3_explaining *e, const struct choice *c)
{
    struct m3_steps *s = e->steps;
    const int is_shared = e->how->semantics->selection == M3_SELECT_SHARED;
    char name[32];
    int best = -1;
    for (int64_t g = is_shared ? 0 : e->group; g < (is_shared ? c->d.G : e->group + 1); g++) {
        snprintf(name, sizeof name, "m[%" PRId64 "]", g);
        const int m = m3_given_operand(e, name, 0, g * c->B, c->own + 1);
        best = best < 0 ? m : m3_step(s, M3_BY_AT_LEAST, M3_STEP_F32, "m", "the largest of the groups", best, m);
    }
    return best;
}

int m3_explain_select_blocks(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    const struct m3_config *config = e->config;
    enum m3_tap tap;
    int64_t layer, row;
    m3_explain_equation(e, "select_blocks");
    const float *m = m3_operand_floats(e, 0);
    if (!m || m3_explain_operand(e, 0, &tap, &layer, &row)) return -1;
    struct choice c = { .m = m, .B = m3_tap_width(&e->setting, tap, layer) / config->G, .own = e->p0 / config->block };
    c.most = m3_min(c.own + 1, m3_max(config->N, 1) + M3_SHOWN_TERMS);
    c.d = (struct m3_index){ .T = 1,
                             .p0 = e->p0,
                             .G = config->G,
                             .X = config->X,
                             .block = config->block,
                             .B = c.B,
                             .semantics = e->how->semantics };
    c.ids = m3_steps_scratch(s, m3_max(c.most, config->N) + 1, sizeof *c.ids);
    int32_t *order = m3_steps_scratch(s, m3_max(c.most, config->N) + 1, sizeof *order);
    if (!c.ids || !order) return -1;
    const int64_t found = ranking(e, &c, order);
    if (s->status) return -1;
    m3_explain_note(e,
                    "Place %" PRId64 " is in block %" PRId64 ". N = %" PRId64 " blocks are chosen, of which %" PRId64
                    " %s forced.",
                    e->p0, c.own, config->N, c.forced, c.forced == 1 ? "is" : "are");
    const int scores = given_scores(e, &c);
    const int forced = m3_given_ints(s, "forced", "the own block, local and initial ones", order, c.forced);
    const int N = m3_given_number(s, M3_STEP_INT, "N", "blocks that are kept", (double)config->N);
    show_ranking(e, &c, order, found);
    answer(e, &c, order, found);
    chosen(e, &c, c.m, config->N);
    return m3_step_choice(s, M3_BY_BEST_BLOCKS, "ids", "forced ones, then the best, ascending, then -1",
                          (const int[]){ scores, forced, N }, c.ids, config->N);
}
