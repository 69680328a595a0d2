#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "model/divided/share.h"
#include "model/weights/pages.h"
#include "ops/operators.h"

/* Each rank computes its experts for the rows of all ranks, some rows of each at a time. A slot is one of the K experts
 * of a row. The outputs come back unweighted, so that the row's rank adds them in the order of the operator. */
enum { ROWS = 2048 };

struct slots {
    int64_t *to, *from;         /* [count]: how many slots go to each rank, and come from it */
    int64_t *order;             /* [n K]: the slots, by the rank that has the expert */
    int64_t sent, received;     /* slots, those of this rank itself included */
    int32_t *ids_out, *ids_in;  /* [sent] [received] */
    real *x_out, *x_in;         /* [sent,H] [received,H] */
    real *y_out, *y_in;         /* [received,H] [sent,H]: results for the others, and for this rank's slots */
    real *p;                    /* [received], ones */
};

static void free_slots(struct slots *s)
{
    void *all[] = { s->to, s->from, s->order, s->ids_out, s->ids_in, s->x_out, s->x_in, s->y_out, s->y_in, s->p };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

/* Sorts the slots of n rows by the ranks that have their experts, and lets each rank know how many it gets. */
static void sort(struct m3_pass *f, struct slots *s, const int32_t *ids, int64_t n)
{
    const struct m3_share *share = f->share;
    const int64_t E = f->config->E, K = f->config->K;
    struct m3_parcel *parcels = m3_pass_need(f, 2, share->count, sizeof *parcels);
    s->to = m3_pass_need(f, share->count, 1, sizeof *s->to);
    s->from = m3_pass_need(f, share->count, 1, sizeof *s->from);
    s->order = m3_pass_need(f, n, K, sizeof *s->order);
    for (int r = 0, others = 0; !f->status && r < share->count; r++) {
        const int64_t before = s->sent;
        for (int64_t i = 0; i < n * K; i++)
            if (m3_experts_owner(E, share->count, ids[i]) == r) s->order[s->sent++] = i;
        s->to[r] = s->from[r] = s->sent - before;
        if (r == share->rank) continue;
        parcels[others] = (struct m3_parcel){ r, &s->to[r], sizeof s->to[r] };
        parcels[share->count + others++] = (struct m3_parcel){ r, &s->from[r], sizeof s->from[r] };
    }
    if (!f->status)
        f->status = m3_ranks_exchange(share->ranks, M3_SENT_TOKENS, parcels, share->count - 1, parcels + share->count,
                                      share->count - 1, f->error);
    for (int r = 0; !f->status && r < share->count; r++) s->received += s->from[r];
    free(parcels);
}

static void make_room(struct m3_pass *f, struct slots *s)
{
    const int64_t H = f->config->H;
    s->ids_out = m3_pass_need(f, s->sent, 1, sizeof *s->ids_out);
    s->ids_in = m3_pass_need(f, s->received, 1, sizeof *s->ids_in);
    s->x_out = m3_pass_need(f, s->sent, H, sizeof *s->x_out);
    s->x_in = m3_pass_need(f, s->received, H, sizeof *s->x_in);
}

/* One array of numbers per slot to the ranks in `counts`, and from those in `back`; this rank's own are copied. */
static void swap(struct m3_pass *f, enum m3_sent kind, void *out, const int64_t *counts, void *in, const int64_t *back,
                 size_t bytes)
{
    const struct m3_share *s = f->share;
    struct m3_parcel *parcels = m3_pass_need(f, 2, s->count, sizeof *parcels);
    char *from = out, *to = in;
    int others = 0;
    for (int r = 0; !f->status && r < s->count; r++) {
        const uint64_t gives = (uint64_t)counts[r] * bytes, takes = (uint64_t)back[r] * bytes;
        if (r == s->rank) {
            memcpy(to, from, takes);
        } else {
            parcels[others] = (struct m3_parcel){ r, from, gives };
            parcels[s->count + others++] = (struct m3_parcel){ r, to, takes };
        }
        from += gives;
        to += takes;
    }
    if (!f->status)
        f->status = m3_ranks_exchange(s->ranks, kind, parcels, others, parcels + s->count, others, f->error);
    free(parcels);
}

static void send_rows(struct m3_pass *f, struct slots *s, const real *x, const int32_t *ids)
{
    const int64_t H = f->config->H, K = f->config->K;
    for (int64_t i = 0; !f->status && i < s->sent; i++) {
        s->ids_out[i] = ids[s->order[i]];
        memcpy(s->x_out + i * H, x + s->order[i] / K * H, (size_t)H * sizeof *x);
    }
    swap(f, M3_SENT_TOKENS, s->ids_out, s->to, s->ids_in, s->from, sizeof *s->ids_in);
    swap(f, M3_SENT_TOKENS, s->x_out, s->to, s->x_in, s->from, (size_t)H * sizeof *x);
}

/* The operator with one expert a row, weight 1 and factor 1: its sum is the expert's output. */
static void compute(struct m3_pass *f, struct slots *s, int each_tap, const struct m3_expert *w)
{
    const struct m3_config *c = f->config;
    s->y_out = m3_pass_need(f, s->received, c->H, sizeof *s->y_out);
    s->p = m3_pass_need(f, s->received, 1, sizeof *s->p);
    for (int64_t i = 0; !f->status && i < s->received; i++) s->p[i] = 1;
    m3_pass_ask_experts(f, w, s->ids_in, s->received);
    if (f->status || s->received == 0) return;
    m3_pass_done(
        f, prepares((enum m3_tap)each_tap), NULL,
        f->ops.experts(&f->ctx, s->y_out, NULL, s->x_in, s->ids_in, s->p, w, &f->act, s->received, c->E, 1, 1));
    m3_ranks_work(f->share->ranks)->expert_rows += s->received;
}

/* n rows of this rank; each [n,K,H]. */
static void run_rows(struct m3_pass *f, int each_tap, real *each, const real *x, const int32_t *ids, int64_t n,
                     const struct m3_expert *w)
{
    const int64_t H = f->config->H;
    struct slots s = { 0 };
    sort(f, &s, ids, n);
    make_room(f, &s);
    send_rows(f, &s, x, ids);
    free(s.x_out);
    s.x_out = NULL;
    compute(f, &s, each_tap, w);
    free(s.x_in);
    s.x_in = NULL;
    s.y_in = m3_pass_need(f, s.sent, H, sizeof *s.y_in);
    swap(f, M3_SENT_RESULTS, s.y_out, s.from, s.y_in, s.to, (size_t)H * sizeof *s.y_in);
    for (int64_t i = 0; !f->status && i < s.sent; i++)
        memcpy(each + s.order[i] * H, s.y_in + i * H, (size_t)H * sizeof *each);
    free_slots(&s);
}

/* The rows of the rank that has most: all ranks take equally many turns. */
static int64_t most_rows(const struct m3_share *s)
{
    int64_t most = 0;
    for (int r = 0; r < s->count; r++) {
        const struct m3_rows rows = m3_division_rows(&s->division, r);
        most = m3_max(most, m3_rows_count(&rows));
    }
    return most;
}

void m3_share_experts(struct m3_pass *f, int each_tap, real *each, int tap, real *routed, const real *x,
                      const int32_t *ids, const real *p, const struct m3_expert *w)
{
    const struct m3_config *c = f->config;
    const int64_t H = c->H, K = c->K, most = most_rows(f->share);
    real *piece = each ? NULL : m3_pass_need(f, m3_min(f->rows, ROWS), K * H, sizeof *piece);
    for (int64_t at = 0; !f->status && at < most; at += ROWS) {
        const int64_t t = m3_min(at, f->rows), n = m3_min(ROWS, f->rows - t);
        real *each_t = each ? each + t * K * H : piece;
        run_rows(f, each_tap, each_t, x + t * H, ids + t * K, n, w);
        if (!f->status)
            m3_experts_sum(routed + t * H, each_t, ids + t * K, p + t * K, n, K, H, (real)c->routed_scaling);
    }
    free(piece);
    show(f, each_tap, each);
    show(f, tap, routed);
}
