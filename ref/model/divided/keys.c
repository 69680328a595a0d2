#include <stdlib.h>
#include <string.h>

#include "model/divided/share.h"

/* The three arrays of a layer: whole ones, by places, and the rank's rows. */
struct array {
    real *all, *own;
    int64_t width;
};

struct parcels {
    struct m3_parcel *out, *in;
    int outs, ins;
};

/* What a rank has is of use to those with a row that is not before it. */
static int reads(const struct m3_rows *reader, const struct m3_rows *of, int run)
{
    return of->rows[run] > 0 && m3_rows_seen(reader) > of->first[run];
}

static real *place(const struct array *x, int64_t p) { return x->all + p * x->width; }

/* One array between this rank and another: the cached places, which rank 0 has, then both runs. */
static void add_parcels(struct parcels *p, const struct m3_pass *f, const struct array *x, int other, int64_t cached)
{
    const struct m3_rows theirs = m3_division_rows(&f->share->division, other), *mine = &f->own;
    const uint64_t row = (uint64_t)x->width * sizeof(real);
    const uint64_t before = (uint64_t)cached * row;
    if (f->share->rank == 0 && cached && m3_rows_count(&theirs))
        p->out[p->outs++] = (struct m3_parcel){ other, x->all, before };
    if (other == 0 && cached && f->rows) p->in[p->ins++] = (struct m3_parcel){ 0, x->all, before };
    for (int run = 0; run < 2; run++) {
        real *own = x->own + (run ? mine->rows[0] * x->width : 0), *to = place(x, f->p0 + theirs.first[run]);
        if (reads(&theirs, mine, run))
            p->out[p->outs++] = (struct m3_parcel){ other, own, (uint64_t)mine->rows[run] * row };
        if (reads(mine, &theirs, run))
            p->in[p->ins++] = (struct m3_parcel){ other, to, (uint64_t)theirs.rows[run] * row };
    }
}

static void put_own(const struct m3_pass *f, const struct array *x)
{
    for (int run = 0; run < 2; run++)
        if (f->own.rows[run])
            memcpy(place(x, f->p0 + f->own.first[run]), x->own + (run ? f->own.rows[0] * x->width : 0),
                   (size_t)(f->own.rows[run] * x->width) * sizeof(real));
}

void m3_share_keys(struct m3_pass *f, const struct m3_keys *all, const struct m3_keys *own)
{
    const struct m3_config *c = f->config;
    const struct m3_share *s = f->share;
    const struct array arrays[3] = { { all->k, own->k, c->G * c->D },
                                     { all->v, own->v, c->G * c->D },
                                     { all->index_k, own->index_k, c->X } };
    const int64_t cached = f->p0 - f->request->shift, most = INT64_C(9) * s->count;
    struct parcels p = { .out = m3_pass_need(f, most, 1, sizeof *p.out) };
    p.in = m3_pass_need(f, most, 1, sizeof *p.in);
    for (int i = 0; !f->status && i < 3; i++) {
        if (!own->index_k && i == 2) continue;
        put_own(f, &arrays[i]);
        for (int other = 0; other < s->count; other++)
            if (other != s->rank) add_parcels(&p, f, &arrays[i], other, cached);
    }
    if (!f->status) f->status = m3_ranks_exchange(s->ranks, M3_SENT_KEYS, p.out, p.outs, p.in, p.ins, f->error);
    free(p.out);
    free(p.in);
}
