#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/explain/private/explaining.h"

/* The keys that one query head sees: rows of kept keys and values. */
struct seen_keys {
    const float *q, *k, *v;     /* q [D]; k, v: the head's part of row 0 */
    int64_t D, stride, n;
    int32_t *ids;               /* [n] ascending */
    int64_t d;                  /* the channel of the head; -1: the log-sum-exp is asked for */
    int64_t block;              /* 0: the keys are not chosen by blocks */
};

/* Rows of keys or values side by side. */
static float *gather(struct m3_explaining *e, const struct seen_keys *keys, const float *from)
{
    const size_t bytes = (size_t)(keys->n * keys->D) * sizeof(float);
    float *rows = from && !e->steps->status ? malloc(bytes + 1) : NULL;
    if (!rows) {
        if (from && !e->steps->status) e->steps->status = m3_fail_memory(e->error, "explain", bytes);
        return NULL;
    }
    for (int64_t i = 0; i < keys->n; i++)
        memcpy(rows + i * keys->D, from + keys->ids[i] * keys->stride, (size_t)keys->D * sizeof *rows);
    return rows;
}

/* The keys of the largest weights, and the share that they hold. */
static void show_keys(struct m3_explaining *e, const struct seen_keys *keys, int z, int w, int sum)
{
    const char *const heads[] = { "key", "logit", "exp", "share", "block" };
    if (e->steps->status) return;
    const double *weights = e->steps->list[w].values, *logits = e->steps->list[z].values;
    const double all = m3_step_value(e->steps, sum, 0);
    int64_t found;
    const int64_t *places = m3_largest(e, &found, weights, keys->n, M3_SHOWN_TERMS);
    struct m3_explained_table *table = m3_table(e, keys->block ? 5 : 4, heads);
    double shown = 0;
    for (int64_t i = 0; table && i < found; i++) {
        m3_cell_int(e, table, keys->ids[places[i]]);
        m3_cell_float(e, table, logits[places[i]]);
        m3_cell_float(e, table, weights[places[i]]);
        m3_cell_text(e, table, "%.2f%%", 100 * weights[places[i]] / all);
        if (keys->block) m3_cell_int(e, table, keys->ids[places[i]] / keys->block);
        shown += weights[places[i]];
    }
    if (table)
        snprintf(table->title, sizeof table->title,
                 "the %" PRId64 " largest weights of %" PRId64 " keys; they hold %.1f%% of the mass", found, keys->n,
                 100 * shown / all);
}

static int nothing_seen(struct m3_explaining *e, const struct seen_keys *keys)
{
    m3_explain_note(e, "This row sees no key.");
    return m3_given_number(e->steps, M3_STEP_F32, "y", "of a row that sees no key", keys->d < 0 ? -INFINITY : 0);
}

/* o[d], or the log-sum-exp, of one query head. */
static int softmax(struct m3_explaining *e, const struct seen_keys *keys)
{
    struct m3_steps *s = e->steps;
    if (keys->n == 0) return nothing_seen(e, keys);
    const int q = m3_given_floats(s, "q", "the query of this head", keys->q, keys->D);
    const int k = m3_given_keys(s, "k", "the keys that it sees, one a row", gather(e, keys, keys->k), keys->n, keys->D);
    m3_given_ints(s, "keys", "the numbers of these rows", keys->ids, keys->n);
    const int one = m3_given_number(s, M3_STEP_F64, "1", "", 1);
    const int D = m3_given_number(s, M3_STEP_F64, "D", "channels of a head", (double)keys->D);
    const int root = m3_step(s, M3_BY_SQRT, M3_STEP_F64, "root", "sqrt D", D, -1);
    const int inverse = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "1 / root", "in double", one, root);
    const int scale = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "scale", "1 / sqrt D, rounded to float", inverse, -1);
    const int dots = m3_step(s, M3_BY_MATRIX, M3_STEP_F32, "q k", "the dot of q with each key", k, q);
    const int z = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "z", "logits: q k scale", dots, scale);
    const int max = m3_step(s, M3_BY_LARGEST, M3_STEP_F32, "max z", "the largest logit", z, -1);
    const int below = m3_step(s, M3_BY_SUBTRACT, M3_STEP_F32, "z - max z", "each logit", z, max);
    const int w = m3_step(s, M3_BY_SOFTMAX_EXP, M3_STEP_F32, "w", "exp(z - max z), rounded to float", below, -1);
    const int sum = m3_step(s, M3_BY_SUM, M3_STEP_F64, "sum of w", "in double, keys ascending", w, -1);
    const int ln = m3_step(s, M3_BY_LN, M3_STEP_F64, "ln", "ln of the sum, in double", sum, -1);
    const int wide = m3_step(s, M3_BY_ADD, M3_STEP_F64, "max z + ln", "in double", max, ln);
    const int lse = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "lse", "max z + ln, rounded to float", wide, -1);
    show_keys(e, keys, z, w, sum);
    if (keys->d < 0) return lse;

    float *column = m3_steps_scratch(s, keys->n, sizeof *column);
    for (int64_t i = 0; column && i < keys->n; i++) column[i] = keys->v[keys->ids[i] * keys->stride + keys->d];
    const int v = m3_given_floats(s, "v", "channel d of the values of these keys", column, keys->n);
    const int total = m3_step(s, M3_BY_DOT, M3_STEP_F32, "w v", "sum of w v, keys ascending", w, v);
    const int share = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "1 / sum of w", "in double", one, sum);
    const int last = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "share", "1 / sum of w, rounded to float", share, -1);
    return m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "o", "(w v) share: the division comes last", total, last);
}

/* Is key j in a block of the list, or with selection=union in one of any group? */
static int is_chosen(const struct m3_explaining *e, const int32_t *blocks, int64_t group, int64_t j)
{
    const struct m3_config *c = e->config;
    const int all = e->how->semantics->selection == M3_SELECT_UNION;
    if (!blocks) return 1;
    for (int64_t i = all ? 0 : group * c->N; i < (all ? c->G : group + 1) * c->N; i++)
        if (blocks[i] == j / c->block) return 1;
    return 0;
}

int m3_explain_attend(struct m3_explaining *e)
{
    const struct m3_config *c = e->config;
    const unsigned char *seen = e->how->the_case->seen;
    const int64_t h = e->tap == M3_TAP_ATTN_LSE ? e->channel : e->channel / c->D, g = h / (c->Q / c->G);
    enum m3_tap tap;
    int64_t layer, row;
    const int32_t *blocks = NULL;
    const float *q = m3_operand_floats(e, 0), *k = NULL, *v = NULL;
    if (!m3_explain_operand(e, 1, &tap, &layer, &row)) k = m3_kept_row(e, tap, layer, 0);
    if (!m3_explain_operand(e, 2, &tap, &layer, &row)) v = m3_kept_row(e, tap, layer, 0);
    if (!m3_explain_operand(e, 3, &tap, &layer, &row)) blocks = m3_kept_row(e, tap, layer, row);
    int32_t *ids = m3_steps_scratch(e->steps, e->p0 + 1, sizeof *ids);
    if (!q || !k || !v || !ids) return -1;
    struct seen_keys keys = { .q = q + h * c->D,
                              .k = k + g * c->D,
                              .v = v + g * c->D,
                              .D = c->D,
                              .stride = c->G * c->D,
                              .ids = ids,
                              .block = blocks ? c->block : 0,
                              .d = e->tap == M3_TAP_ATTN_LSE ? -1 : e->channel % c->D };
    for (int64_t j = 0; j <= e->p0; j++)
        if ((!seen || seen[j]) && is_chosen(e, blocks, g, j)) ids[keys.n++] = (int32_t)j;
    if (blocks) m3_explain_equation(e, "attend_blocks");
    m3_explain_equation(e, "attend_full");
    m3_explain_note(e,
                    "Query head %" PRId64 " reads key head %" PRId64 " (head div Q/G) and sees %" PRId64
                    " of the %" PRId64 " places up to its own.",
                    h, g, keys.n, e->p0 + 1);
    return softmax(e, &keys);
}

int m3_explain_segments(struct m3_explaining *e)
{
    const struct m3_vision_config *c = &e->config->vision;
    const int64_t h = e->channel / c->U;
    enum m3_tap tap;
    int64_t layer, row;
    struct m3_patch patch;
    if (m3_explain_patch(e, &patch, e->row)) return -1;
    const float *q = m3_operand_floats(e, 0), *k = NULL, *v = NULL;
    if (!m3_explain_operand(e, 1, &tap, &layer, &row)) k = m3_kept_row(e, tap, layer, 0);
    if (!m3_explain_operand(e, 2, &tap, &layer, &row)) v = m3_kept_row(e, tap, layer, 0);
    int32_t *ids = m3_steps_scratch(e->steps, patch.end - patch.first, sizeof *ids);
    if (!q || !k || !v || !ids) return -1;
    struct seen_keys keys = { .q = q + h * c->U,
                              .k = k + h * c->U,
                              .v = v + h * c->U,
                              .D = c->U,
                              .stride = c->W,
                              .ids = ids,
                              .d = e->channel % c->U };
    for (int64_t j = patch.first; j < patch.end; j++) ids[keys.n++] = (int32_t)j;
    m3_explain_equation(e, "attend_segments");
    m3_explain_note(e,
                    "The patch is in %s %" PRId64 " and sees the segment of rows %" PRId64 " to %" PRId64
                    ", in both directions.",
                    patch.kind, patch.picture, patch.first, patch.end - 1);
    return softmax(e, &keys);
}
