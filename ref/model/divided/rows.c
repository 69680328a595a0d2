#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/divided/share.h"

/* The order in which rank 0 takes the rows of the others: ascending, those between its own two runs. */
struct turn {
    int from, run;
};

static int turns(const struct m3_share *s) { return 2 * (s->count - 1); }

static struct turn turn_at(const struct m3_share *s, int i)
{
    return i < s->count - 1 ? (struct turn){ i + 1, 0 } : (struct turn){ 2 * (s->count - 1) - i, 1 };
}

static int exchange(struct m3_pass *f, enum m3_sent kind, const struct m3_parcel *out, const struct m3_parcel *in)
{
    if (!f->status) f->status = m3_ranks_exchange(f->share->ranks, kind, out, out != NULL, in, in != NULL, f->error);
    return f->status;
}

int m3_share_shows(const struct m3_pass *f, enum m3_tap tap) { return m3_share_mark(f, tap) & M3_MARK_SHOWN; }

/* Bytes of a row of a tap; a row of block scores has a number for each block of the call. */
static size_t row_bytes(const struct m3_pass *f, enum m3_tap tap)
{
    const struct m3_config *c = f->config;
    int64_t width = m3_pass_width(f, tap);
    if (tap == M3_TAP_INDEX_BLOCK_SCORES) width = c->G * ((f->p0 + f->T + c->block - 1) / c->block);
    return (size_t)width * (m3_tap_table[tap].kind == M3_KIND_REALS ? sizeof(real) : sizeof(int32_t));
}

/* Rank 0 shows rows [row, row + rows) of the call, after the force has changed them; or puts them into `all`, for a sink
 * that wants the whole tap. */
static void present(struct m3_pass *f, enum m3_tap tap, void *data, int64_t row, int64_t rows, char *all)
{
    const struct m3_force *force = f->share->whole->force;
    const struct m3_sink *sink = f->share->whole->sink;
    const int mark = m3_share_mark(f, tap);
    if (!f->status && mark & M3_MARK_FORCED)
        f->status = force->replace(force->self, tap, f->layer, data, row, rows, f->error);
    if (f->status || !(mark & M3_MARK_SHOWN)) return;
    if (all) memcpy(all + (size_t)row * row_bytes(f, tap), data, (size_t)rows * row_bytes(f, tap));
    else f->status = sink->write(sink->self, tap, f->layer, data, row, rows, f->error);
}

/* A piece of rows travels with its place and length; if they are forced, it comes back. */
static void send_piece(struct m3_pass *f, enum m3_tap tap, void *data, int64_t row, int64_t rows)
{
    int64_t head[2] = { row, rows };
    const struct m3_parcel of_head = { 0, head, sizeof head }, piece = { 0, data, (uint64_t)rows * row_bytes(f, tap) };
    exchange(f, M3_SENT_TAPS, &of_head, NULL);
    exchange(f, M3_SENT_TAPS, &piece, NULL);
    if (m3_share_mark(f, tap) & M3_MARK_FORCED) exchange(f, M3_SENT_TAPS, NULL, &piece);
}

/* One run of another rank, which may arrive in several pieces. */
static void receive_run(struct m3_pass *f, enum m3_tap tap, int from, int64_t row, int64_t end, char *all)
{
    while (!f->status && row < end) {
        int64_t head[2] = { 0 };
        const struct m3_parcel of_head = { from, head, sizeof head };
        if (exchange(f, M3_SENT_TAPS, NULL, &of_head)) return;
        const size_t bytes = (size_t)head[1] * row_bytes(f, tap);
        void *data = m3_pass_need(f, head[1], (int64_t)row_bytes(f, tap), 1);
        const struct m3_parcel piece = { from, data, bytes };
        exchange(f, M3_SENT_TAPS, NULL, &piece);
        present(f, tap, data, head[0], head[1], all);
        if (m3_share_mark(f, tap) & M3_MARK_FORCED) exchange(f, M3_SENT_TAPS, &piece, NULL);
        free(data);
        row = head[0] + head[1];
    }
}

static void receive_others(struct m3_pass *f, enum m3_tap tap, char *all)
{
    for (int i = 0; i < turns(f->share); i++) {
        const struct turn turn = turn_at(f->share, i);
        const struct m3_rows r = m3_division_rows(&f->share->division, turn.from);
        receive_run(f, tap, turn.from, r.first[turn.run], r.first[turn.run] + r.rows[turn.run], all);
    }
}

/* Room for a whole tap on rank 0, if its sink takes no pieces of it; otherwise NULL. */
static char *room_for_whole(struct m3_pass *f, enum m3_tap tap)
{
    const struct m3_sink *sink = f->share->whole ? f->share->whole->sink : NULL;
    if (!sink || !sink->takes_whole || !m3_share_shows(f, tap)) return NULL;
    if (tap == M3_TAP_INDEX_BLOCK_SCORES || tap == M3_TAP_LOGITS || tap == M3_TAP_MTP_LOGITS) return NULL;
    return m3_pass_need(f, f->T, (int64_t)row_bytes(f, tap), 1);
}

void m3_share_show(struct m3_pass *f, enum m3_tap tap, void *data)
{
    const size_t bytes = row_bytes(f, tap);
    const int64_t end = f->row + f->rows;
    if (m3_share_mark(f, tap) == 0) return;
    char *all = room_for_whole(f, tap);
    for (int64_t at = f->row, n; !f->status && at < end; at += n) {
        char *piece = (char *)data + (size_t)(at - f->row) * bytes;
        n = m3_rows_run(&f->own, at, end);
        if (f->share->rank > 0) send_piece(f, tap, piece, m3_rows_row(&f->own, at), n);
        else present(f, tap, piece, m3_rows_row(&f->own, at), n, all);
        if (f->share->rank == 0 && at + n == f->own.rows[0]) receive_others(f, tap, all);
    }
    if (all && !f->status) {
        const struct m3_sink *sink = f->share->whole->sink;
        f->status = sink->write(sink->self, tap, f->layer, all, 0, f->T, f->error);
    }
    free(all);
}

/* The part of a run from row `from` on. */
static int64_t part(const struct m3_rows *r, int run, int64_t from, int64_t *first)
{
    *first = m3_max(r->first[run], from);
    return m3_max(0, r->first[run] + r->rows[run] - *first);
}

void m3_share_gather(struct m3_pass *f, void *all, const void *own, int64_t from, size_t bytes)
{
    struct m3_share *s = f->share;
    struct m3_parcel *parcels = m3_pass_need(f, 2, s->count, sizeof *parcels);
    int outs = 0, ins = 0;
    int64_t first, taken = 0;
    if (f->status) return;
    for (int run = 0; run < 2; run++) {
        const int64_t rows = part(&f->own, run, from, &first);
        char *data = (char *)(uintptr_t)own + (size_t)taken * bytes;
        if (s->rank > 0) parcels[outs++] = (struct m3_parcel){ 0, data, (uint64_t)rows * bytes };
        else memcpy((char *)all + (size_t)(first - from) * bytes, data, (size_t)rows * bytes);
        taken += rows;
    }
    for (int i = 0; s->rank == 0 && i < turns(s); i++) {
        const struct turn turn = turn_at(s, i);
        const struct m3_rows r = m3_division_rows(&s->division, turn.from);
        const int64_t rows = part(&r, turn.run, from, &first);
        char *to = (char *)all + (size_t)(first - from) * bytes;
        parcels[ins++] = (struct m3_parcel){ turn.from, rows ? to : NULL, (uint64_t)rows * bytes };
    }
    f->status = m3_ranks_exchange(s->ranks, M3_SENT_HIDDEN, parcels, outs, parcels, ins, f->error);
    free(parcels);
}

void m3_share_scatter(struct m3_pass *f, real *own, const real *all)
{
    struct m3_share *s = f->share;
    const int64_t H = f->config->H;
    struct m3_parcel *parcels = m3_pass_need(f, 2, s->count, sizeof *parcels);
    int outs = 0, ins = 0;
    if (f->status) return;
    for (int run = 0; run < 2; run++) {
        const uint64_t bytes = (uint64_t)(f->own.rows[run] * H) * sizeof *own;
        real *to = own + (run ? f->own.rows[0] * H : 0);
        if (s->rank > 0) parcels[ins++] = (struct m3_parcel){ 0, to, bytes };
        else if (bytes) memcpy(to, all + f->own.first[run] * H, bytes);
    }
    for (int i = 0; s->rank == 0 && i < turns(s); i++) {
        const struct turn turn = turn_at(s, i);
        const struct m3_rows r = m3_division_rows(&s->division, turn.from);
        real *rows = (real *)(uintptr_t)all + r.first[turn.run] * H;
        parcels[outs++] = (struct m3_parcel){ turn.from, rows, (uint64_t)(r.rows[turn.run] * H) * sizeof *rows };
    }
    f->status = m3_ranks_exchange(s->ranks, M3_SENT_HIDDEN, parcels, outs, parcels, ins, f->error);
    free(parcels);
}
