#include "oracle/operators/fragment.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "oracle/judge/align.h"
#include "oracle/operators/own_graph.h"
#include "oracle/operators/parameters.h"

struct making {
    struct m3_fragment *f;
    const struct m3_operand_source *source;
    struct m3_error *error;
};

/* ---- shapes and letters */

/* Reads one dimension of `letters`: its size, 0 if that is not known, and the letter that decides it with its factor;
 * letter 0: a constant. '_' stands for a size that follows from other operands. */
struct dimension {
    char letter;
    int64_t factor;
};

static struct dimension next_dimension(const char **letters)
{
    struct dimension d = { 0, 1 };
    if (**letters >= '0' && **letters <= '9') d.factor = *(*letters)++ - '0';
    else return (struct dimension){ *(*letters)++, 1 };
    if (**letters) d.letter = *(*letters)++;
    return d;
}

static int rank_of(const char *letters)
{
    int rank = 0;
    for (; *letters; rank++) next_dimension(&letters);
    return rank;
}

int m3_fragment_shape(int64_t shape[M3_MAX_RANK], const struct m3_fragment *f, const struct m3_operand_row *row)
{
    return m3_shape_by_letters(shape, row->letters, f->dims);
}

static int wrong_shape(const struct making *m, const struct m3_operand_row *row, int i, int64_t got, int64_t expected)
{
    if (expected > 0)
        return m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got size %" PRId64 " of dimension %d, expected %" PRId64,
                       m->source->name, row->name, got, i, expected);
    return m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got size %" PRId64 " of dimension %d, expected another",
                   m->source->name, row->name, got, i);
}

/* Letters get their sizes from the first operand that has them; the others must agree. */
static int take_sizes(const struct making *m, const struct m3_operand_row *row, const struct m3_tensor *t)
{
    const char *letters = row->letters;
    if (t->rank != rank_of(letters))
        return m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got rank %d, expected %d [%s]", m->source->name, row->name,
                       t->rank, rank_of(letters), row->letters);
    for (int i = 0; i < t->rank; i++) {
        const struct dimension d = next_dimension(&letters);
        int64_t *size = &m->f->dims[(unsigned char)d.letter];
        if (d.letter == '_') continue;
        if (t->shape[i] < 1 && d.letter != 'M') return wrong_shape(m, row, i, t->shape[i], *size);
        if (!d.letter && t->shape[i] != d.factor) return wrong_shape(m, row, i, t->shape[i], d.factor);
        if (!d.letter) continue;
        if (*size == 0 && t->shape[i] % d.factor == 0) *size = t->shape[i] / d.factor;
        if (t->shape[i] != *size * d.factor) return wrong_shape(m, row, i, t->shape[i], *size * d.factor);
    }
    return M3_OK;
}

static int fits_dtype(const struct m3_operand_row *row, const struct m3_tensor *t)
{
    switch (row->role) {
    case M3_ROLE_TAP: return m3_tap_table[row->tap].kind == M3_KIND_REALS ? m3_holds_floats(t) : t->dtype == M3_I32;
    case M3_ROLE_WEIGHT:
    case M3_ROLE_EXPERTS: return m3_holds_floats(t) || t->dtype == M3_F8_E4M3;
    case M3_ROLE_SCALES: return t->dtype == M3_F32 || t->dtype == M3_U8 || t->dtype == M3_F8_E8M0;
    case M3_ROLE_SEEN: return t->dtype == M3_U8 || t->dtype == M3_BOOL;
    case M3_ROLE_COS:
    case M3_ROLE_SIN:
    case M3_ROLE_OPERAND:
    case M3_ROLE_INCOMING: return m3_holds_floats(t);
    default: return m3_holds_ids(t);
    }
}

/* Only weights of experts may be drawn: of them alone a call reads a part. */
static int take_drawn(const struct making *m, const struct m3_operand_row *row, struct m3_tensor *t, int *found)
{
    struct m3_drawing drawing = { 0 };
    *found = 0;
    if (!m->source->drawn) return M3_OK;
    const int status = m->source->drawn(m->source->self, row->name, t, &drawing, found, m->error);
    if (status || !*found) return status;
    if (row->role != M3_ROLE_EXPERTS || m->f->op->derivative)
        return m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got drawn values, expected a stored tensor", m->source->name,
                       row->name);
    m->f->drawings[row->weight] = drawing;
    return M3_OK;
}

static int take_operands(const struct making *m)
{
    int status = M3_OK;
    for (int i = 0; !status && i < M3_OPERATOR_OPERANDS; i++) {
        const struct m3_operand_row *row = &m->f->op->operands[i];
        struct m3_tensor *t = &m->f->operands[i];
        if (row->role == M3_ROLE_NONE) break;
        int found = m->source->find(m->source->self, row->name, t);
        if (!found) {
            *t = (struct m3_tensor){ 0 };
            status = take_drawn(m, row, t, &found);
        }
        if (status) break;
        if (!found) {
            if (!row->optional)
                status = m3_fail(m->error, M3_BAD_INPUT, "%s: got no operand %s, expected it for %s", m->source->name,
                                 row->name, m->f->op->name);
            continue;
        }
        if (!fits_dtype(row, t))
            status = m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got dtype %s, expected another", m->source->name,
                             row->name, m3_dtype_name(t->dtype));
        if (!status) status = take_sizes(m, row, t);
    }
    return status;
}

/* ---- the config */

static int take_config(const struct making *m)
{
    struct m3_fragment *f = m->f;
    struct m3_config *c = &f->model.config;
    const int64_t *d = f->dims;
    const int kind = f->op->kind;
    struct m3_parameters to = { .config = c, .semantics = &f->semantics, .in_vision = (kind & M3_LAYER_VISION) != 0 };
    c->oai = (kind & M3_LAYER_OAI) != 0;
    f->semantics.local_blocks = 1;
    int status = m3_parameters_set(&to, f->op->parameters, m->source->parameters, m->source->name, m->error);
    if (status) return status;
    f->sparse = (kind & M3_LAYER_SPARSE) != 0, f->moe = (kind & M3_LAYER_MOE) != 0;
    /* The rest of the config follows from the shapes; a parameter that a shape states too has that size. */
    c->layers = 1, c->sparse = &f->sparse, c->moe = &f->moe, c->gemma_norm = (kind & M3_LAYER_GEMMA) != 0;
    c->mtp_modules = f->model.mtp_modules = (kind & M3_LAYER_MODULE) != 0;
    c->H = d['H'], c->Q = d['Q'], c->G = d['G'], c->D = d['D'], c->X = d['X'], c->V = d['V'];
    c->E = d['E'], c->F = d['F'], c->dense_intermediate = d['I'], c->shared_intermediate = d['J'];
    if (d['r']) c->R = 2 * d['r'];
    /* Attention alone does not depend on these, but some mistakes do: shares as in the released model. */
    if (d['Q'] && !c->R) c->R = m3_max(d['D'] / 4, 1) * 2;
    if (d['Q'] && !c->H) c->H = m3_max(3 * d['Q'] * d['D'] / 4, 1);
    if (d['K']) c->K = d['K'];
    if (d['N']) c->N = d['N'];
    f->dims['K'] = c->K, f->dims['N'] = c->N, f->dims['r'] = c->R / 2;
    c->vision.W = d['W'] ? d['W'] : d['A'] * d['U'], c->vision.A = d['A'], c->vision.U = d['U'] ? d['U'] : c->R;
    c->vision.intermediate = d['L'], c->vision.layers = 1, c->vision.spatial_merge = to.merge;
    c->vision.present = (kind & M3_LAYER_VISION) != 0;
    c->vision.image_token = to.id, c->vision.video_token = -1;
    c->max_positions = INT64_MAX;
    const int64_t p0 = d['S'] ? d['S'] - d['T'] : to.p0;
    if (p0 < 0)
        return m3_fail(m->error, M3_BAD_INPUT,
                       "%s: got %" PRId64 " places for %" PRId64 " rows, expected as "
                       "many or more",
                       m->source->name, d['S'], d['T']);
    /* Row t of a module joins the embedding of the token after it. */
    f->the_case.T = d['T'] + ((kind & M3_LAYER_MODULE) != 0), f->the_case.p0 = p0;
    f->places = p0 + d['T'];
    if (!d['S']) f->dims['S'] = f->places;
    if (c->block > 0) {
        const int64_t B = (f->places + c->block - 1) / c->block;
        if (d['B'] && d['B'] != B)
            return m3_fail(m->error, M3_BAD_INPUT,
                           "%s: got %" PRId64 " blocks, expected %" PRId64 " for %" PRId64 " places", m->source->name,
                           d['B'], B, f->places);
        f->dims['B'] = B;
    }
    return M3_OK;
}

static int check_config(const struct making *m)
{
    const struct m3_config *c = &m->f->model.config;
    const char *why = NULL;
    if (c->G && c->Q && c->Q % c->G) why = "a number of heads that the groups divide";
    if (c->D && c->R > c->D) why = "at most as many rotated channels as a head has";
    if (c->K > c->E && c->E && m->f->dims['K']) why = "at most as many chosen experts as there are";
    if (m->f->op->operands[0].role == M3_ROLE_PLACES && (c->R < 6 || c->R % 6)) why = "R a multiple of 6";
    if (!why) return M3_OK;
    return m3_fail(m->error, M3_BAD_INPUT, "%s: got sizes that do not fit, expected %s", m->source->name, why);
}

/* ---- weights */

static void bind(struct m3_weight *w, const struct m3_tensor *t)
{
    const int vector = t->rank == 1;
    w->data = t->data;
    w->dtype = t->dtype;
    w->cols = t->rank > 0 ? t->shape[t->rank - 1] : 1;
    w->rows = vector || w->cols == 0 ? 1 : t->count / w->cols;
}

static struct m3_weight *weight_of(struct m3_fragment *f, const struct m3_operand_row *row)
{
    const int64_t layer = m3_fragment_layer(f, row->tap);
    return (struct m3_weight *)(uintptr_t)m3_graph_made_weight(&f->model, &f->semantics, row->tap, layer, row->weight);
}

static int bind_scales(const struct making *m, const struct m3_operand_row *row, const struct m3_tensor *t)
{
    struct m3_weight *w = weight_of(m->f, row);
    const int mx = t->dtype != M3_F32;
    const int64_t rows = mx ? w->rows : (w->rows + 127) / 128, cols = mx ? (w->cols + 31) / 32 : (w->cols + 127) / 128;
    if (w->dtype != M3_F8_E4M3)
        return m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got scales of %s, expected them of F8_E4M3 codes",
                       m->source->name, row->name, m3_dtype_name(w->dtype));
    if (t->shape[0] != rows || t->shape[1] != cols)
        return m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got %" PRId64 " x %" PRId64 ", expected %" PRId64 " x %" PRId64,
                       m->source->name, row->name, t->shape[0], t->shape[1], rows, cols);
    w->scales = t->data;
    w->scaling = mx ? M3_SCALE_MX32 : M3_SCALE_128X128;
    return M3_OK;
}

/* [E,rows,cols]: one matrix an expert. */
static int bind_experts(const struct making *m, const struct m3_operand_row *row, const struct m3_tensor *t)
{
    struct m3_layer *layer = &m->f->layers[0];
    if (!layer->experts) layer->experts = calloc((size_t)t->shape[0], sizeof *layer->experts);
    if (!layer->experts) return m3_fail_memory(m->error, row->name, (size_t)t->shape[0] * sizeof *layer->experts);
    const size_t bytes = (size_t)(t->shape[1] * t->shape[2]) * m3_dtype_bytes(t->dtype);
    for (int64_t e = 0; e < t->shape[0]; e++) {
        struct m3_expert *x = &layer->experts[e];
        struct m3_weight *w = row->weight == 0 ? &x->w1 : row->weight == 1 ? &x->w3 : &x->w2;
        *w = (struct m3_weight){ .data = t->data ? (const char *)t->data + (size_t)e * bytes : NULL,
                                 .dtype = t->dtype,
                                 .rows = t->shape[1],
                                 .cols = t->shape[2] };
    }
    return M3_OK;
}

/* ---- inputs of the call */

static int out_of_range(const struct making *m, const char *what, int64_t got, int64_t most)
{
    return m3_fail(m->error, M3_BAD_INPUT, "%s: %s: got %" PRId64 ", expected 0 to %" PRId64, m->source->name, what,
                   got, most);
}

static int take_ids(const struct making *m, const struct m3_tensor *t)
{
    const int64_t V = m->f->model.config.V ? m->f->model.config.V : (int64_t)INT32_MAX + 1;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t id = m3_id_at(t, i);
        if (id < 0 || id >= V) return out_of_range(m, "ids", id, V - 1);
        m->f->the_case.ids[i] = (int32_t)id;
    }
    return M3_OK;
}

static int take_positions(const struct making *m, const struct m3_tensor *t)
{
    const int64_t most = (int64_t)1 << 40;
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t position = m3_id_at(t, i);
        if (position < 0 || position > most) return out_of_range(m, "pos", position, most);
        m->f->the_case.positions[i] = position;
    }
    return M3_OK;
}

static int check_places(const struct making *m, const struct m3_tensor *t)
{
    const int64_t most = (int64_t)1 << 40;
    for (int64_t i = 0; i < t->count; i++)
        if (m3_id_at(t, i) < 0 || m3_id_at(t, i) > most) return out_of_range(m, "places", m3_id_at(t, i), most);
    return M3_OK;
}

static int take_seen(const struct making *m, const struct m3_tensor *t)
{
    unsigned char *seen = malloc((size_t)t->count);
    if (!seen) return m3_fail_memory(m->error, "seen", (size_t)t->count);
    memcpy(seen, t->data, (size_t)t->count);
    m->f->the_case.seen = seen;
    m->f->the_case.places = t->count;
    return M3_OK;
}

/* One picture of a row of patches for each segment, or the pictures of a grid; without either, one segment. */
static int take_pictures(const struct making *m, const struct m3_tensor *ends, const struct m3_tensor *grid)
{
    struct m3_pictures *p = &m->f->the_case.pictures;
    const int64_t P = m->f->dims['P'] ? m->f->dims['P'] : m->f->dims['M'];
    const int64_t count = ends ? ends->count : grid ? grid->shape[0] : 1;
    int64_t total = 0, merge = m->f->model.config.vision.spatial_merge;
    if (P == 0) return M3_OK;
    p->grid = calloc((size_t)count, sizeof *p->grid);
    if (!p->grid) return m3_fail_memory(m->error, "grid", (size_t)count * sizeof *p->grid);
    if (!grid) m->f->model.config.vision.spatial_merge = merge = 1;
    for (int64_t i = 0; i < count && total <= P; i++) {         /* a sum beyond P could wrap around */
        int64_t *g = p->grid[i];
        g[0] = grid ? m3_id_at(grid, 3 * i) : 1, g[1] = grid ? m3_id_at(grid, 3 * i + 1) : 1;
        g[2] = grid ? m3_id_at(grid, 3 * i + 2) : ends ? m3_max(m3_id_at(ends, i), 0) - total : P;
        const int64_t most = (int64_t)1 << 20;
        if (g[0] < 1 || g[1] < 1 || g[2] < 1 || g[0] > most || g[1] > most || (grid && g[2] > most) || g[1] % merge ||
            g[2] % merge)
            return m3_fail(m->error, M3_BAD_INPUT,
                           "%s: got picture or segment %" PRId64 " of %" PRId64 " x %" PRId64 " x %" PRId64
                           " patches, expected 1 or more, in multiples of %" PRId64,
                           m->source->name, i, g[0], g[1], g[2], merge);
        total += g[0] * g[1] * g[2];
    }
    if (total != P)
        return m3_fail(m->error, M3_BAD_INPUT, "%s: got pictures or segments of %" PRId64 " patches, expected %" PRId64,
                       m->source->name, total, P);
    /* Only a video may be longer than one step. */
    for (int64_t i = 0; i < count; i++) p->images += p->videos == 0 && p->grid[i][0] == 1;
    p->videos = count - p->images;
    p->P = P;
    for (int64_t i = 0; i < p->images; i++) p->image_P += p->grid[i][1] * p->grid[i][2];
    return M3_OK;
}

static int take_inputs(const struct making *m)
{
    struct m3_case *c = &m->f->the_case;
    const struct m3_tensor *ends = NULL, *grid = NULL;
    const size_t room = (size_t)c->T + 1;
    int status = M3_OK;
    c->ids = calloc(room, sizeof *c->ids);
    c->positions = calloc(room, sizeof *c->positions);
    if (!c->ids || !c->positions) return m3_fail_memory(m->error, "positions", room * sizeof *c->positions);
    for (int64_t t = 0; t < c->T; t++) c->positions[t] = c->p0 + t;
    for (int i = 0; !status && i < M3_OPERATOR_OPERANDS; i++) {
        const struct m3_operand_row *row = &m->f->op->operands[i];
        const struct m3_tensor *t = &m->f->operands[i];
        if (row->role == M3_ROLE_NONE) break;
        if (t->rank == 0) continue;
        switch (row->role) {
        case M3_ROLE_WEIGHT: bind(weight_of(m->f, row), t); break;
        case M3_ROLE_SCALES: status = bind_scales(m, row, t); break;
        case M3_ROLE_EXPERTS: status = bind_experts(m, row, t); break;
        case M3_ROLE_IDS: status = take_ids(m, t); break;
        case M3_ROLE_POSITIONS: status = take_positions(m, t); break;
        case M3_ROLE_PLACES: status = check_places(m, t); break;
        case M3_ROLE_SEEN: status = take_seen(m, t); break;
        case M3_ROLE_ENDS: ends = t; break;
        case M3_ROLE_GRID: grid = t; break;
        default: break;
        }
    }
    if (!status && m->f->model.config.vision.present) status = take_pictures(m, ends, grid);
    return status;
}

/* ---- the whole */

int64_t m3_fragment_layer(const struct m3_fragment *f, enum m3_tap tap) { return m3_operator_layer(f->op, tap); }

int64_t m3_fragment_rows(const struct m3_fragment *f) { return f->dims['P'] ? f->dims['P'] : f->dims['T']; }

int m3_fragment_make(struct m3_fragment **fragment, const struct m3_operator_row *op,
                     const struct m3_operand_source *source, struct m3_error *error)
{
    struct m3_fragment *f = *fragment = calloc(1, sizeof *f);
    const struct making m = { f, source, error };
    if (!f) return m3_fail_memory(error, op->name, sizeof *f);
    f->op = op;
    f->model.layers = f->layers;
    f->model.mtp = &f->mtp;
    f->model.vision.layers = &f->vision_layer;
    int status = take_operands(&m);
    if (!status) status = take_config(&m);
    if (!status) status = check_config(&m);
    if (!status) status = m3_graphs_record(&f->model, error);
    if (!status) status = take_inputs(&m);
    const struct m3_config *c = &f->model.config;
    if (!status && (f->drawings[0].levels || f->drawings[1].levels || f->drawings[2].levels))
        status = m3_drawn_experts_new(&f->drawn, f->layers[0].experts, c->E, f->drawings, c->K, error);
    if (!status) return M3_OK;
    m3_fragment_free(f);
    *fragment = NULL;
    return status;
}

void m3_fragment_free(struct m3_fragment *f)
{
    if (!f) return;
    m3_drawn_experts_free(f->drawn);
    m3_graphs_free(&f->model);
    free(f->layers[0].experts);
    m3_case_free(&f->the_case);
    free(f);
}
