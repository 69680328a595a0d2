#include "oracle/error/private/recompute.h"

static struct m3_attend_storage storage_of(const struct m3_recomputing *m)
{
    return (struct m3_attend_storage){ m3_recompute_store(m, "attn.logits"), m3_recompute_store(m, "attn.p"),
                                       m3_recompute_store(m, "attn.partial") };
}

static int is_stored(const struct m3_attend_storage *s) { return s->logits > 0 || s->p > 0 || s->partial > 0; }

/* Rows of a spread from `at` on; an empty one stays empty. */
static struct m3_spread from(const struct m3_spread *s, int64_t at)
{
    return s->error ? (struct m3_spread){ s->error + at, s->variance + at } : *s;
}

static struct m3_bound bound_from(const struct m3_bound *b, int64_t at)
{
    return (struct m3_bound){ .bound = b->bound + at, .walk = b->walk + at, .suspect = b->suspect + at };
}

/* What attention gives besides the tap. */
struct other {
    double *o, *lse;            /* one of them is the tap's own */
    struct m3_bound bound;
};

static int operators(struct m3_recomputing *m, const struct other *other, const int32_t *blocks, const double *q,
                     const struct m3_attend *d)
{
    struct m3_ctx *ctx = m->setting->ctx;
    const double *k = m->in[1].x, *v = m->in[2].x;
    return blocks ? m->ops->attend_blocks(ctx, other->o, other->lse, q, k, v, blocks, d)
                  : m->ops->attend_full(ctx, other->o, other->lse, q, k, v, d);
}

static int bounds(struct m3_recomputing *m, struct m3_bound *o, struct m3_bound *lse, const int32_t *blocks,
                  const double *q, const struct m3_attend *d)
{
    struct m3_ctx *ctx = m->setting->ctx;
    const double *k = m->in[1].x, *v = m->in[2].x;
    return blocks ? m3_bound_attend_blocks(ctx, o, lse, q, k, v, blocks, d, &m->how)
                  : m3_bound_attend_full(ctx, o, lse, q, k, v, d, &m->how);
}

/* `rows` rows from row r on, which follow each other. */
static void attend_span(struct m3_recomputing *m, const struct other *scratch, int64_t r, int64_t rows,
                        const struct m3_attend_storage *storage)
{
    const struct m3_config *c = m->config;
    const int64_t wide = c->Q * c->D;
    const int is_lse = m->tap == M3_TAP_ATTN_LSE;
    const struct m3_attend d = {
        .T = rows, .p0 = m->setting->the_case->p0 + m->numbers[r], .Q = c->Q, .G = c->G, .D = c->D,
        .seen = m->setting->the_case->seen, .block = c->block, .N = c->N,
        .selection = m->setting->semantics->selection,
    };
    const int32_t *blocks = m->in[3].ids ? m->in[3].ids + r * c->G * c->N : NULL;
    const double *q = m->in[0].x + r * wide;
    struct m3_bound own = bound_from(&m->bound, r * m->width), beside = scratch->bound;
    struct other made = *scratch;
    *(is_lse ? &made.lse : &made.o) = m->out->y + r * m->width;
    m3_recompute_check(m, operators(m, &made, blocks, q, &d));
    m3_recompute_check(m, bounds(m, is_lse ? &beside : &own, is_lse ? &own : NULL, blocks, q, &d));
    m->bound.n = own.n, m->bound.f = own.f;

    const int off = m3_is_off(&m->in[0]) || m3_is_off(&m->in[1]) || m3_is_off(&m->in[2]) || is_stored(storage);
    struct m3_spread *extra = off ? m3_recompute_extra(m) : NULL;
    if (!extra) return;
    struct m3_spread to = from(extra, r * m->width), of_q = from(&m->in[0].off, r * wide);
    m3_recompute_check(m, m3_propagate_attend(m->setting->ctx, is_lse ? NULL : &to, is_lse ? &to : NULL, q, m->in[1].x,
                                    m->in[2].x, &of_q, &m->in[1].off, &m->in[2].off, blocks, &d, storage));
}

void m3_recompute_attend(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const int is_lse = m->tap == M3_TAP_ATTN_LSE;
    const int64_t beside = m->rows * (is_lse ? c->Q * c->D : c->Q);
    const struct m3_attend_storage storage = storage_of(m);
    double *memory = m3_recompute_scratch(m, beside, sizeof *memory);
    double *bound = is_lse ? m3_recompute_scratch(m, beside, sizeof *bound) : NULL;
    if (m->status) return;
    const struct other scratch = { .o = memory, .lse = memory, .bound = { .bound = bound } };
    for (int64_t r = 0, rows; r < m->rows; r += rows) {
        rows = m3_recompute_span(m, r);
        attend_span(m, &scratch, r, rows, &storage);
    }
}

void m3_recompute_attend_segments(struct m3_recomputing *m)
{
    const struct m3_vision_config *v = &m->config->vision;
    const struct m3_given *q = &m->in[0], *k = &m->in[1], *x = &m->in[2];
    const struct m3_attend_storage storage = storage_of(m);
    struct m3_ctx *ctx = m->setting->ctx;
    int64_t *places = m3_recompute_scratch(m, 3 * m->rows, sizeof *places);
    int64_t *ends = m3_recompute_scratch(m, m->rows, sizeof *ends);
    if (m->status) return;
    const int64_t segments = m3_pictures_segments(ends, places, &m->setting->the_case->pictures, v,
                                                  m->setting->semantics->vision_boundary);
    m3_recompute_check(m, m->ops->attend_segments(ctx, m->out->y, q->x, k->x, x->x, ends, segments, v->A, v->U));
    m3_recompute_check(m, m3_bound_attend_segments(ctx, &m->bound, q->x, k->x, x->x, ends, segments, v->A, v->U, &m->how));
    const int off = m3_is_off(q) || m3_is_off(k) || m3_is_off(x) || is_stored(&storage);
    struct m3_spread *extra = off ? m3_recompute_extra(m) : NULL;
    if (extra)
        m3_recompute_check(m, m3_propagate_attend_segments(ctx, extra, q->x, k->x, x->x, &q->off, &k->off, &x->off, ends,
                                                 segments, v->A, v->U, &storage));
}

static struct m3_index index_of(const struct m3_recomputing *m, int64_t r, int64_t rows)
{
    const struct m3_config *c = m->config;
    const struct m3_case *the_case = m->setting->the_case;
    const int64_t places = the_case->p0 + m3_tap_rows(m->setting, m->tap, m->layer);
    return (struct m3_index){ .T = rows, .p0 = the_case->p0 + m->numbers[r], .G = c->G, .X = c->X, .block = c->block,
                              .N = c->N, .B = (places + c->block - 1) / c->block, .seen = the_case->seen,
                              .semantics = m->setting->semantics };
}

void m3_recompute_block_scores(struct m3_recomputing *m)
{
    const int64_t wide = m->config->G * m->config->X;
    const double u_score = m3_recompute_store(m, "index.scores");
    const struct m3_given *q = &m->in[0], *k = &m->in[1];
    struct m3_ctx *ctx = m->setting->ctx;
    for (int64_t r = 0, rows; r < m->rows; r += rows) {
        rows = m3_recompute_span(m, r);
        const struct m3_index d = index_of(m, r, rows);
        struct m3_bound own = { .bound = m->bound.bound + r * m->width, .walk = m->bound.walk + r * m->width };
        m3_recompute_check(m, m->ops->block_scores(ctx, m->out->y + r * m->width, q->x + r * wide, k->x, &d));
        m3_recompute_check(m, m3_bound_block_scores(ctx, &own, q->x + r * wide, k->x, &d, &m->how));
        m->bound.n = own.n, m->bound.f = own.f;
        struct m3_spread *extra = m3_is_off(q) || m3_is_off(k) || u_score > 0 ? m3_recompute_extra(m) : NULL;
        if (!extra) continue;
        struct m3_spread to = from(extra, r * m->width), of_q = from(&q->off, r * wide);
        m3_recompute_check(m, m3_propagate_block_scores(ctx, &to, q->x + r * wide, k->x, &of_q, &k->off, &d, u_score));
    }
}

void m3_recompute_select_blocks(struct m3_recomputing *m)
{
    for (int64_t r = 0, rows; r < m->rows; r += rows) {
        rows = m3_recompute_span(m, r);
        const struct m3_index d = index_of(m, r, rows);
        m3_recompute_check(m, m->ops->select_blocks(m->setting->ctx, m->out->ids + r * m->width,
                                               m->in[0].x + r * m->in[0].width, &d));
    }
}
