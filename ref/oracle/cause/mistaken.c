/* One tap with a known mistake: its operator, and those before it whose taps the dump does not hold, run in double from
 * the candidate's own values. */
#include "oracle/cause/mistaken.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/error/profiles/codes.h"

enum {
    WHOLE = 256, /* a tap of no more rows is computed whole */
    WINDOW = 32, /* rows of others */
    FEW = 8, /* rows of a tap without keys that has many numbers: */
    MANY = 1 << 20,
    LARGE = 1 << 22, /* numbers of a picture's tap that is too large to be tried */
    SMALL = 1 << 18, /* steps of a tap for which threads cost more than they save; those of products are short */
    SHORT = 64,
    EXPANDED = 1 << 26, /* numbers of the experts of a layer that may be expanded */
    KEPT = 96, /* taps of a layer, and those that it reads */
};

struct m3_mistaken {
    const struct m3_blaming *b;
    const struct m3_blame_item *item;
    int64_t first, rows; /* of the item that are computed */
    int64_t at; /* of the layer in the model, which is the first of `part` */
    int64_t shift; /* the layer's number is that in `part`, and this */
    struct m3_tap_values given[KEPT]; /* the candidate's values */
    int given_count;
    struct m3_layer *layers; /* of `part` */
    struct m3_model part; /* with no other layer than the item's, and those of modules */
    struct m3_case view; /* the rows of the case, the pictures of the whole */
};

/* While the item is computed with one mistake. */
struct making {
    struct m3_mistaken *of;
    const struct m3_mistake *mistake;
    struct m3_mistaken_run *run;
    struct m3_request request;
    struct m3_setting setting; /* of the mistaken model, and the whole case */
    struct m3_evaluator taps;
    const struct m3_emulation *emulation; /* NULL: nothing is rounded */
    int missing; /* the dump lacks what is read */
    struct m3_error why;
    int failed; /* the status of what blame itself could not read or make; it has the message */
};

/* ---- which mistakes may show here */

/* The patterns of mistakes name layers: any number will do. */
static int is_first(const struct m3_mistake *mistake, enum m3_tap tap, int64_t layer)
{
    const int64_t layers[] = { layer, 0, 1, M3_MTP_LAYER, M3_MTP_LAYER + 1 };
    char name[96];
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        if (m3_tap_name(name, sizeof name, tap, layers[i]) == 0 && m3_tap_matches(mistake->first, name)) return 1;
    return 0;
}

/* Is an operand computed with its tap, because the dump does not hold it? Not from one layer to the next. */
static int is_computed(const struct m3_blame_item *operand, const struct m3_blame_item *item)
{
    return operand && !operand->dumped && (operand->layer == item->layer || operand->layer < 0);
}

int m3_mistaken_reaches(const struct m3_blaming *b, const struct m3_blame_item *item, const struct m3_mistake *mistake)
{
    if (is_first(mistake, item->tap, item->layer)) return 1;
    if (item->tap == M3_TAP_ATTN && is_first(mistake, M3_TAP_ATTN_LSE, item->layer)) return 1;
    for (int i = 0; i < M3_OPERANDS; i++) {
        const struct m3_blame_item *operand = m3_blame_operand(b, item, i);
        if (is_computed(operand, item) && m3_mistaken_reaches(b, operand, mistake)) return 1;
    }
    return 0;
}

static int64_t depth(const struct m3_blaming *b, struct m3_blame_item *item)
{
    int64_t count = 1;
    for (int i = 0; i < M3_OPERANDS; i++) {
        struct m3_blame_item *operand = m3_blame_operand(b, item, i);
        if (!is_computed(operand, item) || operand->counted) continue;
        operand->counted = 1;
        count += depth(b, operand);
    }
    return count;
}

int64_t m3_mistaken_depth(const struct m3_blaming *b, struct m3_blame_item *item)
{
    for (int64_t i = 0; i < b->count; i++) b->items[i].counted = 0;
    return depth(b, item);
}

/* ---- one tap with all its mistakes */

static int is_of_text(const struct m3_blame_item *item) { return m3_tap_table[item->tap].shape[0] == 'T'; }

/* Of a dump that holds some rows: those around `near` without a gap. 0: it holds every row. */
static int choose_held(struct m3_mistaken *m, int64_t near)
{
    const struct m3_tensor *dumped = m->item->dumped;
    const struct m3_tensor *numbers = dumped ? m3_side_rows(m->item->side, m->item->tap) : NULL;
    if (!numbers || dumped->shape[0] == m->item->rows) return 0;
    int64_t at = 0, end;
    while (at + 1 < dumped->shape[0] && m3_row_number(numbers, at) < near) at++;
    for (end = at + 1; end < dumped->shape[0] && end - at < WHOLE; end++)
        if (m3_row_number(numbers, end) != m3_row_number(numbers, at) + end - at) break;
    while (at > 0 && end - at < WHOLE && m3_row_number(numbers, at - 1) == m3_row_number(numbers, at) - 1) at--;
    m->first = m3_row_number(numbers, at);
    m->rows = end - at;
    return 1;
}

/* Is each row computed from one row of every operand? */
static int is_row_by_row(const struct m3_mistaken *m)
{
    const struct m3_setting *s = m->b->setting;
    if (!is_of_text(m->item) || m->item->tap == M3_TAP_FUSED) return 0;
    for (int i = 0; i < M3_OPERANDS; i++) {
        const struct m3_blame_item *operand = m3_blame_operand(m->b, m->item, i);
        if (operand && !operand->dumped) return 0;
    }
    switch (m3_graph_node(s->model, s->semantics, m->item->tap, m->item->layer)->op) {
    case M3_OP_ATTEND:
    case M3_OP_BLOCK_SCORES:
    case M3_OP_SELECT_BLOCKS: return 0;
    default: return 1;
    }
}

/* Queries of attention see all keys of their own block, so the rows end with a block or with the last row. */
static void choose_rows(struct m3_mistaken *m, int64_t near, int64_t numbers)
{
    const int64_t all = m->item->rows, block = m3_max(1, m->b->setting->model->config.block);
    m->rows = all;
    if (is_of_text(m->item) && choose_held(m, near)) return;
    if (is_row_by_row(m)) {
        m->rows =
            m3_min(all, m3_max(numbers > 0 ? 1 : FEW, (numbers > 0 ? numbers : MANY) / m3_max(1, m->item->width)));
        m->first = m3_max(0, m3_min(near - m->rows / 2, all - m->rows));
        return;
    }
    if (!is_of_text(m->item) || all <= WHOLE || m->item->tap == M3_TAP_FUSED) return;
    const int64_t end = m3_min(all, (m3_max(0, m3_min(near, all - 1)) / block + 1) * block);
    m->first = m3_max(0, end - WINDOW);
    m->rows = end - m->first;
}

/* A model with the item's layer alone: a mistake in the weights changes a copy of every layer that it is given. */
static int cut_model(struct m3_mistaken *m)
{
    const struct m3_model *model = m->b->setting->model;
    const struct m3_config *c = &model->config;
    const int64_t module = m3_mtp_module_of(m->item->layer);
    const int64_t at = module >= 0 ? c->layers - 1 : m3_tap_is_of_layers(m->item->tap) ? m->item->layer : 0;
    m->part = *model;
    m->part.graphs = NULL;
    m->at = at;
    m->part.config.layers = m3_min(1, c->layers);
    m->part.mtp_modules = module >= 0 ? model->mtp_modules : 0;
    if (!model->layers || c->layers == 0) return m3_graphs_record(&m->part, m->b->error);
    const size_t count = (size_t)(1 + m->part.mtp_modules);
    m->layers = malloc(count * sizeof *m->layers);
    if (!m->layers) return m3_fail_memory(m->b->error, "layers", count * sizeof *m->layers);
    memcpy(m->layers, model->layers + at, count * sizeof *m->layers);
    m->part.layers = m->layers;
    m->part.config.sparse = c->sparse ? c->sparse + at : NULL;
    m->part.config.moe = c->moe ? c->moe + at : NULL;
    m->shift = module >= 0 || !m3_tap_is_of_layers(m->item->tap) ? 0 : at;
    return m3_graphs_record(&m->part, m->b->error);
}

int m3_mistaken_new(struct m3_mistaken **mistaken, const struct m3_blaming *b, const struct m3_blame_item *item,
                    int64_t near, int64_t numbers)
{
    struct m3_mistaken *m = *mistaken = calloc(1, sizeof *m);
    if (!m) return m3_fail_memory(b->error, item->name, sizeof *m);
    m->b = b;
    m->item = item;
    choose_rows(m, near, numbers);
    m->view = *b->setting->the_case;
    if (is_of_text(item)) {
        const int64_t module = m3_mtp_module_of(item->layer);
        m->view.ids += m->first;
        m->view.positions += m->first;
        m->view.T = m->rows + module + 1;
    }
    return cut_model(m);
}

void m3_mistaken_rows(int64_t *first, int64_t *rows, const struct m3_mistaken *m)
{
    *first = m->first;
    *rows = m->rows;
}

void m3_mistaken_free(struct m3_mistaken *m)
{
    if (!m) return;
    for (int i = 0; i < m->given_count; i++) m3_tap_values_free(&m->given[i]);
    m3_graphs_free(&m->part);
    free(m->layers);
    free(m);
}

/* ---- values */

static enum m3_given lack(struct making *k)
{
    k->missing = 1;
    return M3_LACKING;
}

static int comes_before(int32_t a, int32_t b) { return (uint32_t)a < (uint32_t)b; }

/* Operators need lists of blocks ascending, -1 last; programs may write them in any order. */
static void sort_lists(int32_t *ids, int64_t count, int64_t N)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t n = i % N, at = i; n > 0 && comes_before(ids[at], ids[at - 1]); n--, at--) {
            const int32_t id = ids[at];
            ids[at] = ids[at - 1];
            ids[at - 1] = id;
        }
}

/* Leaves rows [first, first + rows); 0 if one of them is not there, or is no operand. */
static int leave_rows(struct m3_tap_values *v, int64_t first, int64_t rows)
{
    const size_t row = (size_t)v->width * m3_tap_number_bytes(v->tap, sizeof(double));
    int64_t left = 0;
    for (int64_t r = 0; r < v->rows; r++) {
        const int64_t at = v->numbers[r] - first;
        if (!v->usable[r] || at != left || at >= rows) continue;
        memmove((char *)v->data + (size_t)at * row, (char *)v->data + (size_t)r * row, row);
        left++;
    }
    void *less = left == rows ? realloc(v->data, (size_t)rows * row + 1) : NULL;
    if (!less) return 0;
    free(v->numbers);
    free(v->usable);
    v->data = less, v->numbers = NULL, v->usable = NULL;
    v->first = first, v->rows = rows;
    return 1;
}

/* The candidate's own values of a dumped tap. NULL: its dump lacks some of them. */
static const void *given(struct making *k, const struct m3_blame_item *item, int64_t first, int64_t rows)
{
    struct m3_mistaken *m = k->of;
    struct m3_tap_values mine;
    const struct m3_tap_values *known = NULL;
    for (int i = 0; i < m->given_count; i++)
        if (m->given[i].tap == item->tap && m->given[i].layer == item->layer) known = &m->given[i];
    if (known && known->first == first && known->rows == rows) return known->data;
    if (known || m->given_count == KEPT) return NULL;
    const int status = m3_blame_read(&mine, m->b, item);
    if (status) k->failed = status;
    if (status || !leave_rows(&mine, first, rows)) {
        m3_tap_values_free(&mine);
        return NULL;
    }
    const int64_t N = m->b->setting->model->config.N;
    if (item->tap == M3_TAP_INDEX_BLOCKS) sort_lists(mine.data, rows * item->width, N);
    m->given[m->given_count++] = mine;
    return mine.data;
}

/* ---- what no single operator computes */

/* Embeddings of a module's tokens, which no tap holds: by the embedding's operator, with the mistake or without it. */
static int embed_module(struct making *k, double *y, int64_t layer, int64_t rows, int is_right)
{
    struct m3_request how = k->request;
    const struct m3_tap_request r = { .how = &how, .tap = M3_TAP_EMBED, .layer = layer, .rows = rows, .y = y };
    how.ids += m3_mtp_module_of(layer) + 1;
    if (is_right) how.replacement = NULL, how.force = NULL;
    else m3_evaluator_announce(&k->taps, M3_TAP_MTP_EMBED_NORM, layer);
    return m3_engine_f64()->tap(k->setting.model, &r, &k->why);
}

/* The candidate's own embeddings, unless the mistake takes others. */
static int module_input(struct making *k, double *x, double *other, int64_t layer, int64_t first, int64_t rows)
{
    const struct m3_semantics *s = k->setting.semantics;
    const int64_t H = k->setting.model->config.H, later = m3_mtp_module_of(layer) + 1;
    const enum m3_tap from = s->mtp_embed == M3_MTP_EMBED_FUSED ? M3_TAP_FUSED : M3_TAP_EMBED;
    const struct m3_blame_item *item = m3_blame_find(k->of->b, from, -1);
    const int is_dumped = item && item->dumped;
    if (!is_dumped && from == M3_TAP_FUSED) return M3_WRONG;
    const double *own = is_dumped ? given(k, item, first + later, rows) : NULL;
    int status = own || !is_dumped ? embed_module(k, other, layer, rows, 1) : M3_WRONG;
    if (!status) status = embed_module(k, x, layer, rows, 0);
    if (status) return status;
    if (own && (from == M3_TAP_FUSED || memcmp(x, other, (size_t)(rows * H) * sizeof *x) == 0))
        memcpy(x, own, (size_t)(rows * H) * sizeof *x);
    for (int64_t t = 0; t < rows && s->mtp_zero_position0 == M3_MTP_ZERO_POSITION0; t++)
        if (k->request.positions[t] == 0) memset(x + t * H, 0, (size_t)H * sizeof *x);
    return M3_OK;
}

static enum m3_given norm_of_embedding(struct making *k, struct m3_tap_values *y)
{
    const int64_t count = y->rows * y->width;
    double *x = malloc(2 * (size_t)count * sizeof *x + 1);
    int status = x ? m3_tap_values_room(y, sizeof(double), &k->why)
                   : m3_fail_memory(&k->why, m3_tap_table[y->tap].name, 2 * (size_t)count * sizeof *x);
    if (!status) status = module_input(k, x, x + count, y->layer, y->first, y->rows);
    if (!status) {
        const struct m3_tap_request r = {
            .how = &k->request, .tap = y->tap, .layer = y->layer, .rows = y->rows, .in = { x }, .y = y->data
        };
        m3_evaluator_announce(&k->taps, y->tap, y->layer);
        status = m3_engine_f64()->tap(k->setting.model, &r, &k->why);
    }
    free(x);
    if (!status) return M3_GIVEN;
    m3_tap_values_free(y);
    return lack(k);
}

/* The sum of the experts' outputs that the candidate holds: only the factor may be mistaken. */
static enum m3_given weigh_experts(struct making *k, struct m3_tap_values *y)
{
    const struct m3_config *c = &k->setting.model->config;
    const double factor = c->routed_scaling * m3_mistake_routed_factor(k->mistake, c);
    struct m3_tap_values each, p;
    int status = m3_evaluate_tap(&each, &k->taps, M3_TAP_EXPERT_OUT, y->layer, y->first, y->rows);
    if (!status) status = m3_evaluate_tap(&p, &k->taps, M3_TAP_EXPERT_WEIGHTS, y->layer, y->first, y->rows);
    if (!status) status = m3_tap_values_room(y, sizeof(double), &k->why);
    if (status) return lack(k);
    double *sum = y->data;
    for (int64_t i = 0; i < y->rows * c->H; i++) {
        sum[i] = 0;
        for (int64_t s = i / c->H * c->K; s < (i / c->H + 1) * c->K; s++)
            sum[i] += factor * m3_tap_doubles(&p)[s] * m3_tap_doubles(&each)[s * c->H + i % c->H];
    }
    return M3_GIVEN;
}

static int has_dumped(const struct making *k, enum m3_tap tap, int64_t layer)
{
    const struct m3_blame_item *item = m3_blame_find(k->of->b, tap, layer);
    return item && item->dumped;
}

/* Weights in the order of the candidate's experts: NaN in rows where the mistake chooses others. */
static enum m3_given align_weights(struct making *k, struct m3_tap_values *p)
{
    const int64_t K = k->setting.model->config.K, count = p->rows * K;
    const int32_t *own = given(k, m3_blame_find(k->of->b, M3_TAP_EXPERTS, p->layer), p->first, p->rows);
    if (!own || m3_evaluate_call(&k->taps, p->tap, p->layer, p->first, p->rows)) return lack(k);
    /* The call has just made both. */
    const struct m3_tap_values *made = &k->taps.known[k->taps.count - 2];
    const int32_t *ids = m3_tap_ids(&made[0]);
    double *weights = made[1].data, *mine = malloc((size_t)count * sizeof *mine + 1);
    if (!mine) {
        m3_fail_memory(&k->why, m3_tap_table[p->tap].name, (size_t)count * sizeof *mine);
        return lack(k);
    }
    for (int64_t i = 0; i < count; i++) {
        mine[i] = NAN;
        for (int64_t j = i / K * K; j < (i / K + 1) * K; j++)
            if (ids[j] == own[i]) mine[i] = weights[j];
    }
    for (int64_t i = 0; i < count; i++)
        if (isnan(mine[i]))
            for (int64_t j = i / K * K; j < (i / K + 1) * K; j++) mine[j] = NAN;
    memcpy(weights, mine, (size_t)count * sizeof *mine);
    free(mine);
    return M3_MADE;
}

static int is_present(const struct m3_weight *w) { return w && w->data; }

/* Are the weights there with which the mistake computes the tap? It may take those of a layer that is not loaded. */
static int has_weights(const struct making *k, enum m3_tap tap, int64_t layer)
{
    const struct m3_model *model = k->setting.model;
    const int64_t own = m3_evaluator_layer(&k->taps, tap, layer);
    const struct m3_node *node = m3_graph_node(model, k->setting.semantics, tap, own);
    for (int i = 0; i < node->weight_count; i++)
        if (!is_present(m3_graph_weight(model, k->setting.semantics, tap, own, i))) return 0;
    const struct m3_expert *experts = node->op == M3_OP_EXPERT || node->op == M3_OP_ROUTED
                                          ? model->layers[m3_layer_index(&model->config, own)].experts
                                          : NULL;
    for (int64_t e = 0; experts && e < model->config.E; e++)
        if (!experts[e].w1.data || !experts[e].w3.data || !experts[e].w2.data) return 0;
    return 1;
}

/* How a tap that the dump does not hold is made. */
static enum m3_given make(struct making *k, struct m3_tap_values *values)
{
    const struct m3_config *c = &k->setting.model->config;
    const enum m3_tap tap = m3_computed_with(values->tap);
    const int64_t layer = values->layer, own = m3_evaluator_layer(&k->taps, tap, layer);
    const int is_joined = tap == M3_TAP_MTP_EH_PROJ && k->setting.semantics->mtp_join == M3_MTP_ADDITIVE;
    if (tap == M3_TAP_VISION_PIXELS || m3_tap_table[tap].kind == M3_KIND_COUNTS || is_joined) return lack(k);
    if (values->tap == M3_TAP_ROUTED && has_dumped(k, M3_TAP_EXPERT_OUT, layer)) return weigh_experts(k, values);
    if (tap == M3_TAP_ROUTED && !k->setting.model->layers[m3_layer_index(c, own)].experts) return lack(k);
    if (!has_weights(k, tap, layer)) return lack(k);
    if (tap == M3_TAP_MTP_EMBED_NORM) return norm_of_embedding(k, values);
    if (values->tap == M3_TAP_EXPERT_WEIGHTS && has_dumped(k, M3_TAP_EXPERTS, layer)) return align_weights(k, values);
    return M3_NOT_GIVEN;
}

/* The candidate's own values as the emulated engine reads them, from a cache of a coarser format. */
static enum m3_given give_rounded(struct making *k, struct m3_tap_values *values, const struct m3_blame_item *item)
{
    const struct m3_read_rounding rule = m3_profile_read(k->emulation->profile, item->name);
    double scale = 1;
    if (rule.u == 0) return M3_GIVEN;
    for (int i = 0; i < M3_OPERANDS && k->emulation->is_scaled && rule.largest > 0; i++)
        if (m3_blame_operand(k->of->b, k->of->item, i) == item) scale = k->emulation->largest[i] / rule.largest;
    const double *own = values->data;
    values->is_borrowed = 0;
    if (m3_tap_values_room(values, sizeof(double), &k->why)) return lack(k);
    for (int64_t i = 0; i < values->rows * values->width; i++)
        values->values[i] = m3_read_value(own[i], &rule, scale > 0 ? scale : 1);
    return M3_GIVEN;
}

/* What a tap reads: the candidate's own values, or what the mistake makes of those before it. */
static enum m3_given give(void *self, struct m3_tap_values *values)
{
    struct making *k = self;
    const struct m3_mistaken *m = k->of;
    const struct m3_blame_item *item = m3_blame_find(m->b, values->tap, values->layer);
    const int is_large =
        m3_tap_table[values->tap].shape[0] != 'T' && item != m->item && values->rows * values->width > LARGE;
    const int is_near = values->layer == m->item->layer || values->layer < 0 || values->tap == M3_TAP_MTP_FINAL_NORM;
    if (!item || k->missing || is_large) return lack(k);
    if (item != m->item && item->dumped) {
        values->data = (void *)(uintptr_t)given(k, item, values->first, values->rows);
        values->is_borrowed = 1;
        if (!values->data) return lack(k);
        return k->emulation && m3_tap_doubles(values) ? give_rounded(k, values, item) : M3_GIVEN;
    }
    /* With fewer rows than those of the case, mistakes do not know which keys come before. */
    if (!is_near || values->first != m->first || values->rows != m->rows) return lack(k);
    return make(k, values);
}

/* ---- */

/* A tap of another layer, without a mistake there. */
static void other_tap(struct m3_tap_values *right, struct making *k, const struct m3_blame_item *item)
{
    const struct m3_mistaken *m = k->of;
    struct m3_mistaken *other = NULL;
    int applies = 0;
    int status = m3_mistaken_new(&other, m->b, item, m->first + m->rows - 1, 0);
    if (!status && other->first == m->first && other->rows >= m->rows)
        status = m3_mistaken_make(right, &applies, other, NULL);
    m3_mistaken_free(other);
    if (status == M3_INTERNAL) k->failed = status;
}

/* What the mistake kept from an earlier tap. */
static int recall(struct making *k)
{
    const struct m3_mistaken *m = k->of;
    const struct m3_force *force = k->request.force;
    enum m3_tap tap;
    int64_t layer;
    if (!m3_mistake_keeps(&tap, &layer, k->mistake, &m->b->setting->model->config)) return M3_OK;
    if (layer == m->item->layer) return M3_OK;
    const struct m3_blame_item *item = m3_blame_find(m->b, tap, layer);
    if (!item) return lack(k), M3_WRONG;
    struct m3_tap_values copied = { .tap = tap, .rows = m->rows, .width = item->width }, right = { 0 };
    const void *own = item->dumped ? given(k, item, m->first, m->rows) : (other_tap(&right, k, item), right.data);
    int status = own ? m3_tap_values_room(&copied, sizeof(double), &k->why) : M3_WRONG;
    if (!status) memcpy(copied.data, own, (size_t)(m->rows * item->width) * m3_tap_number_bytes(tap, sizeof(double)));
    m3_tap_values_free(&right);
    if (status) return lack(k), M3_WRONG;
    /* The last layer, for the mistake, is the last of the model that it was given. */
    status = force->replace(force->self, tap, tap == M3_TAP_OUT ? m->part.config.layers - 1 : layer, copied.data, 0,
                            m->rows, &k->why);
    m3_tap_values_free(&copied);
    return status;
}

static int take(struct m3_tap_values *out, struct making *k)
{
    const struct m3_mistaken *m = k->of;
    const struct m3_blame_item *item = m->item;
    struct m3_tap_values made;
    if (m3_evaluate_tap(&made, &k->taps, item->tap, item->layer, m->first, m->rows)) return M3_WRONG;
    struct m3_tap_values mine = made;
    mine.is_borrowed = 0;
    if (m3_tap_values_room(&mine, sizeof(double), &k->why)) return M3_INTERNAL;
    memcpy(mine.data, made.data, (size_t)(made.rows * made.width) * m3_tap_number_bytes(item->tap, sizeof(double)));
    *out = mine;
    for (int64_t r = 0; r < m->rows && item->tap == M3_TAP_INDEX_BLOCKS; r++)
        m3_blame_drop_unseen((int32_t *)out->data + r * out->width, out->width, m->b, item, m->first + r);
    return M3_OK;
}

static int is_small(const struct m3_mistaken *m)
{
    const int64_t H = m->b->setting->model->config.H, numbers = m->rows * H;
    return (m3_blame_is_product(m->b, m->item) ? numbers * (H / SHORT + 1) : numbers) < SMALL;
}

/* A mistake in stored matrices expands all of a layer: experts are not given to it where they are too large. */
static void give_weights(struct m3_mistaken *m, const struct m3_mistake *mistake)
{
    const struct m3_config *c = &m->part.config;
    const int is_large = mistake && (mistake->needs & M3_NEEDS_MX32) && c->E * 3 * c->F > EXPANDED / m3_max(1, c->H);
    for (int64_t l = 0; m->layers && l < 1 + m->part.mtp_modules; l++) {
        m->layers[l] = m->b->setting->model->layers[m->at + l];
        m3_mistake_borrow(&m->layers[l], mistake, m->b->setting->model, m->at + l);
        if (is_large) m->layers[l].experts = NULL;
    }
}

static int make_with(struct m3_tap_values *out, int *applies, struct m3_mistaken *m, const struct m3_mistake *mistake,
                     const struct m3_emulation *emulation)
{
    const struct m3_setting *s = m->b->setting;
    struct making k = { .of = m, .mistake = mistake, .emulation = emulation };
    *out = (struct m3_tap_values){ 0 };
    *applies = 0;
    if (s->semantics->jitter != 0 || s->the_case->p0 > 0) return M3_OK;
    if (mistake && m3_mistake_missing(mistake, s->model, s->semantics, s->the_case)) return M3_OK;
    give_weights(m, mistake);
    int status = m3_mistake_install(&k.run, mistake, &m->part, s->semantics, &m->view, &k.why);
    if (!status) {
        if (is_of_text(m->item)) m3_mistake_is_followed(k.run, m->item->rows - m->first - m->rows);
        if (emulation) m3_mistake_store_within(k.run, emulation->profile, emulation->largest[0]);
        k.request = *m3_mistaken_request(k.run);
        k.request.threads = is_small(m) ? 1 : s->ctx->threads;
        k.request.linear = s->ctx->linear;
        k.setting = *s;
        k.setting.model = m3_mistaken_model(k.run);
        k.setting.semantics = k.request.semantics;
        k.taps = (struct m3_evaluator){ .engine = m3_engine_f64(),
                                        .named = s->model,
                                        .model = k.setting.model,
                                        .dropped = m->shift,
                                        .how = &k.request,
                                        .the_case = s->the_case,
                                        .give = give,
                                        .self = &k,
                                        .error = &k.why };
        status = recall(&k);
        if (!status) status = take(out, &k);
    }
    m3_evaluator_forget(&k.taps);
    m3_mistake_remove(k.run);
    *applies = !status;
    /* Without memory nothing is known about the mistake; another failure means that it does not apply. */
    const int no_memory = status && k.why.status == M3_INTERNAL;
    if (status && !k.failed && no_memory) k.failed = m3_fail_because(m->b->error, M3_INTERNAL, &k.why);
    else if (status == M3_INTERNAL && !k.failed) k.failed = m3_fail_memory(m->b->error, m->item->name, 0);
    m3_error_free(&k.why);
    return k.failed;
}

int m3_mistaken_make(struct m3_tap_values *out, int *applies, struct m3_mistaken *m, const struct m3_mistake *mistake)
{
    return make_with(out, applies, m, mistake, NULL);
}

int m3_mistaken_emulate(struct m3_tap_values *out, int *applies, struct m3_mistaken *m, const struct m3_emulation *how)
{
    return make_with(out, applies, m, NULL, how);
}
