/* One tap with a known mistake: its operator, and those before it whose taps the dump does not hold, run in double from
 * the candidate's own values. */
#include "oracle/blame/private/mistaken.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"

enum {
    WHOLE = 256, /* a tap of no more rows is computed whole */
    WINDOW = 32, /* rows of others */
    LARGE = 1 << 22, /* numbers of a picture's tap that is too large to be tried */
    SMALL = 1 << 18, /* numbers of a tap for which threads cost more than they save */
    EXPANDED = 1 << 26, /* numbers of the experts of a layer that may be expanded */
    KEPT = 96, /* taps of a layer, and those that it reads */
};

/* Rows [first, first + rows) of a tap: `double` or int32_t. */
struct kept {
    enum m3_tap tap;
    int64_t layer, first, rows, width;
    void *data;
};

struct m3_mistaken {
    const struct m3_blaming *b;
    const struct m3_blame_item *item;
    int64_t first, rows; /* of the item that are computed */
    int64_t at; /* of the layer in the model, which is the first of `part` */
    int64_t shift; /* the layer's number is that in `part`, and this */
    struct kept given[KEPT]; /* the candidate's values */
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
    struct kept made[KEPT];
    int made_count;
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

static int is_of_layers(enum m3_tap tap)
{
    const enum m3_tap_where where = m3_tap_table[tap].where;
    return where >= M3_WHERE_EVERY_LAYER && where != M3_WHERE_AFTER_LAYERS;
}

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

/* Queries of attention see all keys of their own block, so the rows end with a block or with the last row. */
static void choose_rows(struct m3_mistaken *m, int64_t near)
{
    const int64_t all = m->item->rows, block = m3_max(1, m->b->setting->model->config.block);
    m->rows = all;
    if (is_of_text(m->item) && choose_held(m, near)) return;
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
    const int64_t at = module >= 0 ? c->layers - 1 : is_of_layers(m->item->tap) ? m->item->layer : 0;
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
    m->shift = module >= 0 || !is_of_layers(m->item->tap) ? 0 : at;
    return m3_graphs_record(&m->part, m->b->error);
}

int m3_mistaken_new(struct m3_mistaken **mistaken, const struct m3_blaming *b, const struct m3_blame_item *item,
                    int64_t near)
{
    struct m3_mistaken *m = *mistaken = calloc(1, sizeof *m);
    if (!m) return m3_fail_memory(b->error, item->name, sizeof *m);
    m->b = b;
    m->item = item;
    choose_rows(m, near);
    m->view = *b->setting->the_case;
    if (is_of_text(item)) {
        const int64_t module = m3_mtp_module_of(item->layer);
        m->view.ids += m->first;
        m->view.positions += m->first;
        m->view.T = m->rows + module + 1;
    }
    return cut_model(m);
}

static void forget(struct kept *kept, int *count)
{
    for (int i = 0; i < *count; i++) free(kept[i].data);
    *count = 0;
}

void m3_mistaken_free(struct m3_mistaken *m)
{
    if (!m) return;
    forget(m->given, &m->given_count);
    m3_graphs_free(&m->part);
    free(m->layers);
    free(m);
}

void m3_mistaken_tap_free(struct m3_mistaken_tap *tap)
{
    free(tap->y);
    free(tap->ids);
    *tap = (struct m3_mistaken_tap){ 0 };
}

/* ---- values */

static size_t size_of(enum m3_tap tap)
{
    return m3_tap_table[tap].kind == M3_KIND_REALS ? sizeof(double) : sizeof(int32_t);
}

static const void *lack(struct making *k)
{
    k->missing = 1;
    return NULL;
}

static void *room(struct making *k, int64_t rows, int64_t width, size_t size)
{
    size_t count, bytes;
    void *data = NULL;
    if (!__builtin_mul_overflow((size_t)rows, (size_t)width, &count) && !__builtin_mul_overflow(count, size, &bytes))
        data = malloc(bytes + 1);
    if (!data) m3_fail_memory(&k->why, "a tap with a mistake", size);
    return data;
}

static const struct kept *find(const struct kept *kept, int count, enum m3_tap tap, int64_t layer)
{
    for (int i = 0; i < count; i++)
        if (kept[i].tap == tap && kept[i].layer == layer) return &kept[i];
    return NULL;
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

/* Puts rows in the place of their numbers; 0 if one is not there, or is no operand. */
static int place_rows(struct kept *to, const struct m3_blame_values *v)
{
    const size_t row = (size_t)v->width * size_of(to->tap);
    const char *from = v->ids ? (const char *)v->ids : (const char *)v->values;
    int64_t placed = 0;
    for (int64_t r = 0; r < v->rows; r++) {
        const int64_t at = v->numbers[r] - to->first;
        if (!v->usable[r] || at != placed || at >= to->rows) continue;
        memcpy((char *)to->data + (size_t)at * row, from + (size_t)r * row, row);
        placed++;
    }
    return placed == to->rows;
}

/* The candidate's own values of a dumped tap. */
static const void *given(struct making *k, const struct m3_blame_item *item, int64_t first, int64_t rows)
{
    struct m3_mistaken *m = k->of;
    const struct kept *known = find(m->given, m->given_count, item->tap, item->layer);
    struct m3_blame_values values = { 0 };
    if (known && known->first == first && known->rows == rows) return known->data;
    if (known || m->given_count == KEPT) return lack(k);
    struct kept mine = { item->tap, item->layer, first, rows, item->width, NULL };
    mine.data = room(k, rows, item->width, size_of(item->tap));
    int status = mine.data ? m3_blame_read(&values, m->b, item) : M3_INTERNAL;
    const int whole = !status && place_rows(&mine, &values);
    m3_blame_values_free(&values);
    if (mine.data && status) k->failed = status;
    if (!whole) {
        free(mine.data);
        return lack(k);
    }
    const int64_t N = m->b->setting->model->config.N;
    if (item->tap == M3_TAP_INDEX_BLOCKS) sort_lists(mine.data, rows * item->width, N);
    m->given[m->given_count++] = mine;
    return mine.data;
}

static const void *keep(struct making *k, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows, int64_t width,
                        void *data)
{
    if (!data || k->made_count == KEPT) {
        free(data);
        return lack(k);
    }
    k->made[k->made_count++] = (struct kept){ tap, layer, first, rows, width, data };
    return data;
}

/* The layer's number in the model that is run. */
static int64_t cut_layer(const struct making *k, enum m3_tap tap, int64_t layer)
{
    return is_of_layers(tap) && layer >= 0 && layer < M3_MTP_LAYER ? layer - k->of->shift : layer;
}

static int64_t width_of(const struct making *k, enum m3_tap tap, int64_t layer)
{
    return m3_tap_width(&k->setting, tap, cut_layer(k, tap, layer));
}

/* Tells the mistake which tap comes next. */
static int announce(const struct making *k, enum m3_tap before, int64_t layer)
{
    const struct m3_force *force = k->request.force;
    return force->replace(force->self, before, layer, NULL, 0, 0, NULL);
}

/* ---- the operators */

static const void *value(struct making *k, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows);

/* Input i of the operator that computes a tap; -1: there is none. */
static int input_of(enum m3_tap *input, int64_t *input_layer, const struct making *k, enum m3_tap tap, int64_t layer,
                    int i)
{
    static const enum m3_tap of_experts[] = { M3_TAP_MLP_NORM, M3_TAP_EXPERTS, M3_TAP_EXPERT_WEIGHTS };
    const struct m3_setting *s = k->of->b->setting;
    const struct m3_config *mistaken = &k->setting.model->config;
    if (tap == M3_TAP_ROUTED) {
        *input_layer = layer;
        return i < 3 ? (int)(*input = of_experts[i], 0) : -1;
    }
    if (m3_graph_operand(input, input_layer, s->model, k->setting.semantics, tap, layer, i)) return -1;
    if (*input == M3_TAP_PROJECTOR_OUT && s->the_case->pictures.P == 0) return -1;
    if (*input == M3_TAP_INDEX_BLOCKS &&
        !m3_config_sparse(mistaken, m3_layer_index(mistaken, cut_layer(k, tap, layer))))
        return -1;
    return 0;
}

/* Rows of an input: those of the tap, and of keys and values also all before them; of pictures all. */
static const void *input(struct making *k, enum m3_tap tap, int i, enum m3_tap from, int64_t layer, int64_t first,
                         int64_t rows)
{
    const int is_key = (tap == M3_TAP_ATTN && (i == 1 || i == 2)) || (tap == M3_TAP_INDEX_BLOCK_SCORES && i == 1);
    if (m3_tap_table[from].shape[0] != 'T') {
        const int64_t all = m3_tap_rows(k->of->b->setting, from, layer);
        return all * width_of(k, from, layer) > LARGE ? lack(k) : value(k, from, layer, 0, all);
    }
    return is_key ? value(k, from, layer, 0, first + rows) : value(k, from, layer, first, rows);
}

/* The operator of a tap, and of its second output. */
static int run_operator(struct making *k, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows)
{
    const enum m3_tap second = m3_computed_beside(tap);
    enum m3_tap from;
    int64_t from_layer;
    /* clang-format off */
    struct m3_tap_request r = { .how = &k->request, .tap = tap, .layer = cut_layer(k, tap, layer), .p0 = first,
                                .rows = rows, .places = m3_tap_rows(k->of->b->setting, tap, layer) };
    /* clang-format on */
    for (int i = 0; i < M3_TAP_INPUTS && !input_of(&from, &from_layer, k, tap, layer, i); i++) {
        r.in[i] = input(k, tap, i, from, from_layer, first, rows);
        if (!r.in[i]) return M3_WRONG;
    }
    const int64_t width = width_of(k, tap, layer);
    r.y = (void *)(uintptr_t)keep(k, tap, layer, first, rows, width, room(k, rows, width, size_of(tap)));
    if (second < M3_TAPS) {
        const int64_t other = width_of(k, second, layer);
        r.second = (void *)(uintptr_t)keep(k, second, layer, first, rows, other, room(k, rows, other, sizeof(double)));
    }
    if (!r.y || (second < M3_TAPS && !r.second)) return M3_WRONG;
    if (tap > 0) announce(k, (second < tap ? second : tap) - 1, r.layer);
    return m3_engine_f64()->tap(k->setting.model, &r, &k->why);
}

/* The same numbers under another name. */
static int copy(struct making *k, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows)
{
    const struct m3_force *force = k->request.force;
    const int64_t width = width_of(k, tap, layer);
    enum m3_tap from;
    int64_t from_layer;
    if (input_of(&from, &from_layer, k, tap, layer, 0)) return M3_WRONG;
    const double *x = input(k, tap, 0, from, from_layer, first, rows);
    double *y = x ? room(k, rows, width, sizeof *y) : NULL;
    if (y) memcpy(y, x, (size_t)(rows * width) * sizeof *y);
    if (!y || !keep(k, tap, layer, first, rows, width, y)) return M3_WRONG;
    return force->replace(force->self, tap, cut_layer(k, tap, layer), y, 0, rows, &k->why);
}

/* Embeddings of a module's tokens, which no tap holds: by the embedding's operator, with the mistake or without it. */
static int embed_module(struct making *k, double *y, int64_t layer, int64_t rows, int is_right)
{
    struct m3_request how = k->request;
    /* clang-format off */
    const struct m3_tap_request r = { .how = &how, .tap = M3_TAP_EMBED, .layer = layer, .rows = rows, .y = y };
    /* clang-format on */
    how.ids += m3_mtp_module_of(layer) + 1;
    if (is_right) how.replacement = NULL, how.force = NULL;
    else announce(k, M3_TAP_MTP_EMBED_NORM - 1, layer);
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

static int norm_of_embedding(struct making *k, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows)
{
    const int64_t H = k->setting.model->config.H;
    double *x = room(k, rows, 2 * H, sizeof *x), *y = room(k, rows, H, sizeof *y);
    int status = x && y ? module_input(k, x, x + rows * H, layer, first, rows) : M3_INTERNAL;
    if (!keep(k, tap, layer, first, rows, H, y)) status = M3_WRONG;
    if (!status) {
        /* clang-format off */
        const struct m3_tap_request r = { .how = &k->request, .tap = tap, .layer = layer, .rows = rows, .in = { x },
                                          .y = y };
        /* clang-format on */
        announce(k, tap - 1, layer);
        status = m3_engine_f64()->tap(k->setting.model, &r, &k->why);
    }
    free(x);
    return status;
}

/* The sum of the experts' outputs that the candidate holds: only the factor may be mistaken. */
static int weigh_experts(struct making *k, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows)
{
    const struct m3_config *c = &k->setting.model->config;
    const double factor = c->routed_scaling * m3_mistake_routed_factor(k->mistake, c);
    const double *each = value(k, M3_TAP_EXPERT_OUT, layer, first, rows),
                 *p = each ? value(k, M3_TAP_EXPERT_WEIGHTS, layer, first, rows) : NULL;
    double *y = p ? room(k, rows, c->H, sizeof *y) : NULL;
    for (int64_t i = 0; y && i < rows * c->H; i++) {
        y[i] = 0;
        for (int64_t s = i / c->H * c->K; s < (i / c->H + 1) * c->K; s++)
            y[i] += factor * p[s] * each[s * c->H + i % c->H];
    }
    return keep(k, tap, layer, first, rows, c->H, y) ? M3_OK : M3_WRONG;
}

static int has_dumped(const struct making *k, enum m3_tap tap, int64_t layer)
{
    const struct m3_blame_item *item = m3_blame_find(k->of->b, tap, layer);
    return item && item->dumped;
}

/* Weights in the order of the candidate's experts: NaN in rows where the mistake chooses others. */
static int align_weights(struct making *k, int64_t layer, int64_t first, int64_t rows)
{
    const int64_t K = k->setting.model->config.K;
    const struct kept *p = find(k->made, k->made_count, M3_TAP_EXPERT_WEIGHTS, layer),
                      *ids = find(k->made, k->made_count, M3_TAP_EXPERTS, layer);
    const int32_t *own = given(k, m3_blame_find(k->of->b, M3_TAP_EXPERTS, layer), first, rows);
    double *mine = own && p && ids ? room(k, rows, K, sizeof *mine) : NULL;
    if (!mine) return M3_WRONG;
    for (int64_t i = 0; i < rows * K; i++) {
        mine[i] = NAN;
        for (int64_t j = i / K * K; j < (i / K + 1) * K; j++)
            if (((const int32_t *)ids->data)[j] == own[i]) mine[i] = ((const double *)p->data)[j];
    }
    for (int64_t i = 0; i < rows * K; i++)
        if (isnan(mine[i]))
            for (int64_t j = i / K * K; j < (i / K + 1) * K; j++) mine[j] = NAN;
    memcpy(p->data, mine, (size_t)(rows * K) * sizeof *mine);
    free(mine);
    return M3_OK;
}

/* An operator whose second output is wanted is the same call. */
static int compute(struct making *k, enum m3_tap wanted, int64_t layer, int64_t first, int64_t rows)
{
    const struct m3_setting *s = k->of->b->setting;
    const enum m3_tap tap = m3_computed_with(wanted);
    const enum m3_operator op = m3_graph_node(s->model, k->setting.semantics, tap, layer)->op;
    const int is_joined = tap == M3_TAP_MTP_EH_PROJ && k->setting.semantics->mtp_join == M3_MTP_ADDITIVE;
    if (tap == M3_TAP_VISION_PIXELS || m3_tap_table[tap].kind == M3_KIND_COUNTS || is_joined) return M3_WRONG;
    if (wanted == M3_TAP_ROUTED && has_dumped(k, M3_TAP_EXPERT_OUT, layer))
        return weigh_experts(k, tap, layer, first, rows);
    if (tap == M3_TAP_ROUTED &&
        !k->setting.model->layers[m3_layer_index(&k->setting.model->config, cut_layer(k, tap, layer))].experts)
        return M3_WRONG;
    if (tap == M3_TAP_MTP_EMBED_NORM) return norm_of_embedding(k, tap, layer, first, rows);
    const int status = op == M3_OP_COPY ? copy(k, tap, layer, first, rows) : run_operator(k, tap, layer, first, rows);
    const int is_aligned = wanted == M3_TAP_EXPERT_WEIGHTS && has_dumped(k, M3_TAP_EXPERTS, layer);
    return !status && is_aligned ? align_weights(k, layer, first, rows) : status;
}

/* What a tap reads: the candidate's own values, or what the mistake makes of those before it. */
static const void *value(struct making *k, enum m3_tap tap, int64_t layer, int64_t first, int64_t rows)
{
    const struct m3_mistaken *m = k->of;
    const struct m3_blame_item *item = m3_blame_find(m->b, tap, layer);
    if (!item || k->missing) return lack(k);
    if (item != m->item && item->dumped) return given(k, item, first, rows);
    const struct kept *known = find(k->made, k->made_count, tap, layer);
    if (!known) {
        const int is_near = layer == m->item->layer || layer < 0 || tap == M3_TAP_MTP_FINAL_NORM;
        /* With fewer rows than those of the case, mistakes do not know which keys come before. */
        if (!is_near || first != m->first || rows != m->rows || compute(k, tap, layer, first, rows)) return lack(k);
        known = find(k->made, k->made_count, tap, layer);
    }
    return known && known->first == first && known->rows == rows ? known->data : lack(k);
}

/* ---- */

/* A tap of another layer, without a mistake there. */
static const void *other_tap(struct making *k, struct m3_mistaken_tap *right, const struct m3_blame_item *item)
{
    const struct m3_mistaken *m = k->of;
    struct m3_mistaken *other = NULL;
    int applies = 0;
    int status = m3_mistaken_new(&other, m->b, item, m->first + m->rows - 1);
    if (!status && other->first == m->first && other->rows >= m->rows)
        status = m3_mistaken_make(right, &applies, other, NULL);
    m3_mistaken_free(other);
    if (status == M3_INTERNAL) k->failed = status;
    return status || !applies ? lack(k) : right->ids ? (const void *)right->ids : (const void *)right->y;
}

/* What the mistake kept from an earlier tap. */
static int recall(struct making *k)
{
    struct m3_mistaken_tap right = { 0 };
    const struct m3_mistaken *m = k->of;
    const struct m3_force *force = k->request.force;
    enum m3_tap tap;
    int64_t layer;
    if (!m3_mistake_keeps(&tap, &layer, k->mistake, &m->b->setting->model->config)) return M3_OK;
    if (layer == m->item->layer) return M3_OK;
    const struct m3_blame_item *item = m3_blame_find(m->b, tap, layer);
    const void *own = !item ? lack(k) : item->dumped ? given(k, item, m->first, m->rows) : other_tap(k, &right, item);
    void *copied = own ? room(k, m->rows, item->width, size_of(tap)) : NULL;
    if (copied) memcpy(copied, own, (size_t)(m->rows * item->width) * size_of(tap));
    m3_mistaken_tap_free(&right);
    if (!copied) return M3_WRONG;
    /* The last layer, for the mistake, is the last of the model that it was given. */
    const int status = force->replace(force->self, tap, tap == M3_TAP_OUT ? m->part.config.layers - 1 : layer, copied,
                                      0, m->rows, &k->why);
    free(copied);
    return status;
}

static int take(struct m3_mistaken_tap *out, struct making *k)
{
    const struct m3_mistaken *m = k->of;
    const struct m3_blame_item *item = m->item;
    const void *data = value(k, item->tap, item->layer, m->first, m->rows);
    if (!data) return M3_WRONG;
    const int64_t width = find(k->made, k->made_count, item->tap, item->layer)->width;
    const size_t bytes = (size_t)(m->rows * width) * size_of(item->tap);
    *out = (struct m3_mistaken_tap){ .first = m->first, .rows = m->rows, .width = width };
    void *mine = room(k, m->rows, width, size_of(item->tap));
    if (!mine) return M3_INTERNAL;
    memcpy(mine, data, bytes);
    if (size_of(item->tap) == sizeof(double)) out->y = mine;
    else out->ids = mine;
    for (int64_t r = 0; r < m->rows && item->tap == M3_TAP_INDEX_BLOCKS; r++)
        m3_blame_drop_unseen(out->ids + r * width, width, m->b, item, m->first + r);
    return M3_OK;
}

/* A mistake in stored matrices expands all of a layer: experts are not given to it where they are too large. */
static void give_experts(struct m3_mistaken *m, const struct m3_mistake *mistake)
{
    const struct m3_config *c = &m->part.config;
    const int is_large = mistake && (mistake->needs & M3_NEEDS_MX32) && c->E * 3 * c->F > EXPANDED / m3_max(1, c->H);
    for (int64_t l = 0; m->layers && l < 1 + m->part.mtp_modules; l++)
        m->layers[l].experts = is_large ? NULL : m->b->setting->model->layers[m->at + l].experts;
}

int m3_mistaken_make(struct m3_mistaken_tap *out, int *applies, struct m3_mistaken *m, const struct m3_mistake *mistake)
{
    const struct m3_setting *s = m->b->setting;
    struct making k = { .of = m, .mistake = mistake };
    *out = (struct m3_mistaken_tap){ 0 };
    *applies = 0;
    if (s->semantics->jitter != 0 || s->the_case->p0 > 0) return M3_OK;
    if (mistake && m3_mistake_missing(mistake, s->model, s->semantics, s->the_case)) return M3_OK;
    give_experts(m, mistake);
    int status = m3_mistake_install(&k.run, mistake, &m->part, s->semantics, &m->view, &k.why);
    if (!status) {
        k.request = *m3_mistaken_request(k.run);
        k.request.threads = m->rows * s->model->config.H < SMALL ? 1 : s->ctx->threads;
        k.request.linear = s->ctx->linear;
        k.setting = *s;
        k.setting.model = m3_mistaken_model(k.run);
        k.setting.semantics = k.request.semantics;
        status = recall(&k);
        if (!status) status = take(out, &k);
    }
    forget(k.made, &k.made_count);
    m3_mistake_remove(k.run);
    *applies = !status;
    /* Without memory nothing is known about the mistake; another failure means that it does not apply. */
    const int no_memory = status && k.why.status == M3_INTERNAL;
    if (status && !k.failed && no_memory) k.failed = m3_fail_because(m->b->error, M3_INTERNAL, &k.why);
    else if (status == M3_INTERNAL && !k.failed) k.failed = m3_fail_memory(m->b->error, m->item->name, 0);
    m3_error_free(&k.why);
    return k.failed;
}
