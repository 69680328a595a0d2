#include <inttypes.h>

#include "estimate/private/parts.h"

static int refuse(const char *flag, int64_t got, const char *expected, int64_t number, struct m3_error *error)
{
    return m3_fail(error, M3_USAGE, "%s: got %" PRId64 ", expected %s %" PRId64, flag, got, expected, number);
}

/* Experts lie on ep groups of cards. If ep is below tp, the matrices of an expert are cut among the cards of a group; if
 * it is above, groups of several replicas form one group for experts. */
int m3_layout_check(const struct m3_layout *l, const struct m3_config *c, struct m3_error *error)
{
    const int64_t wide = l->tp * l->dp;
    if (c->Q % l->tp) return refuse("--tp", l->tp, "a divisor of the number of query heads,", c->Q, error);
    if (l->tp > c->G && l->tp % c->G)
        return refuse("--tp", l->tp, "a multiple of the number of key/value heads,", c->G, error);
    if (l->tp < c->G && c->G % l->tp)
        return refuse("--tp", l->tp, "a divisor of the number of key/value heads,", c->G, error);
    if (l->pp > c->layers) return refuse("--pp", l->pp, "at most the number of layers,", c->layers, error);
    if (c->E && c->E % l->ep) return refuse("--ep", l->ep, "a divisor of the number of experts,", c->E, error);
    if (wide % l->ep) return refuse("--ep", l->ep, "a divisor of tp * dp,", wide, error);
    if (l->ep > l->tp && l->ep % l->tp) return refuse("--ep", l->ep, "a multiple of tp,", l->tp, error);
    if (l->ep < l->tp && l->tp % l->ep) return refuse("--ep", l->ep, "a divisor of tp,", l->tp, error);
    return M3_OK;
}

/* Layers are divided evenly; where that leaves some over, the first stages hold one more. */
struct m3_stage m3_layout_stage(const struct m3_estimate *e, int64_t stage)
{
    const struct m3_config *c = e->config;
    const int64_t pp = e->request.layout.pp, each = c->layers / pp, more = c->layers % pp;
    const int64_t first = stage * each + (stage < more ? stage : more), end = first + each + (stage < more);
    struct m3_stage s = { .layers = end - first, .is_first = stage == 0, .is_last = stage == pp - 1 };
    for (int64_t l = first; l < end; l++) {
        s.sparse += m3_config_sparse(c, l);
        s.moe += m3_config_moe(c, l);
    }
    s.dense = s.layers - s.moe;
    return s;
}

/* Which of two stages limits the model more: it leaves room for fewer sequences, or needs more memory. */
static int is_tighter(const struct m3_estimate *a, const struct m3_estimate *b)
{
    const int64_t batch_a = m3_whole(a, "layout.max_batch"), batch_b = m3_whole(b, "layout.max_batch");
    if (batch_a != batch_b) return batch_a < batch_b;
    return m3_whole(a, "layout.memory_bytes_per_card") > m3_whole(b, "layout.memory_bytes_per_card");
}

int m3_estimate_layout(struct m3_estimate *e, struct m3_error *error)
{
    const struct m3_estimate counted = *e;
    int status = M3_OK;
    for (int64_t stage = 0; stage < e->request.layout.pp && !status; stage++) {
        struct m3_estimate other = counted;
        other.stage = m3_layout_stage(e, stage);
        status = m3_estimate_figures(&other, error);
        if (!status && (stage == 0 || is_tighter(&other, e))) *e = other;
    }
    return status;
}

int m3_layout_fits(const struct m3_estimate *e)
{
    return m3_whole(e, "layout.memory_bytes_per_card") <= e->request.card_bytes;
}
