/* Mistakes in loading: weights of another place, fused matrices and shards in another order; the head. */
#include "oracle/variants/private/mistakes.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "ops/math.h"

static int are_alike(const struct m3_weight *a, const struct m3_weight *b)
{
    return a->data && b->data && a->rows == b->rows && a->cols == b->cols;
}

static void exchange(struct m3_weight *a, struct m3_weight *b)
{
    const struct m3_weight kept = *a;
    if (!are_alike(a, b)) return;
    *a = *b;
    *b = kept;
}

/* ---- the next layer's */

/* Where the two layers are of different kinds, a weight that only one of them has stays. */
static void all_of_next(struct m3_layer *mine, const struct m3_layer *next)
{
    const size_t end = offsetof(struct m3_layer, experts), one = sizeof(struct m3_weight);
    for (size_t at = 0; at + one <= end; at += one) {
        struct m3_weight own, other;
        memcpy(&own, (char *)mine + at, one);
        memcpy(&other, (const char *)next + at, one);
        if (are_alike(&own, &other)) memcpy((char *)mine + at, &other, one);
    }
    if (mine->experts && next->experts) mine->experts = next->experts;
}

static void index_of_next(struct m3_layer *mine, const struct m3_layer *next)
{
    if (are_alike(&mine->index_q_proj, &next->index_q_proj)) mine->index_q_proj = next->index_q_proj;
    if (are_alike(&mine->index_k_proj, &next->index_k_proj)) mine->index_k_proj = next->index_k_proj;
}

static void bias_of_next(struct m3_layer *mine, const struct m3_layer *next)
{
    if (are_alike(&mine->router_bias, &next->router_bias)) mine->router_bias = next->router_bias;
}

/* ---- two weights exchanged */

static int keys_and_values(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    (void)error;
    exchange(&run->model.layers[l].k_proj, &run->model.layers[l].v_proj);
    return M3_OK;
}

static int swap_keys_and_values(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, keys_and_values);
}

static int gate_and_up(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    (void)error;
    exchange(&run->model.layers[l].gate, &run->model.layers[l].up);
    return M3_OK;
}

static int swap_gate_and_up(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, gate_and_up);
}

static int head_norms(struct m3_mistaken_run *run, int64_t l, struct m3_error *error)
{
    (void)error;
    exchange(&run->model.layers[l].q_norm, &run->model.layers[l].k_norm);
    return M3_OK;
}

static int swap_head_norms(struct m3_mistaken_run *run, struct m3_error *error)
{
    return m3_each_layer(run, error, head_norms);
}

/* ---- rows of fused matrices */

enum { MEMBERS = 3 };

/* Members of a fused matrix, one on top of the other; count 0: not all are there. */
struct stack {
    const struct m3_weight *members[MEMBERS];
    int64_t starts[MEMBERS + 1];
    int count;
};

static struct stack stack_of(const struct m3_weight *a, const struct m3_weight *b, const struct m3_weight *c)
{
    struct stack s = { .members = { a, b, c } };
    if (!a->data || !b->data || (c && !c->data)) return s;
    while (s.count < MEMBERS && s.members[s.count]) {
        s.starts[s.count + 1] = s.starts[s.count] + s.members[s.count]->rows;
        s.count++;
    }
    return s;
}

/* The fused matrix of which w is member `place`: q, k and v, or gate and up; count 0: of none. */
static struct stack find_stack(int *place, const struct m3_mistaken_run *run, const struct m3_weight *w)
{
    const struct stack none = { .count = 0 };
    if (run->layer < 0 || !w->data) return none;
    const struct m3_layer *l = &run->model.layers[m3_layer_index(&run->model.config, run->layer)];
    const struct stack both[] = { stack_of(&l->q_proj, &l->k_proj, &l->v_proj), stack_of(&l->gate, &l->up, NULL) };
    for (int s = 0; s < 2; s++)
        for (*place = 0; *place < both[s].count; ++*place)
            if (both[s].members[*place]->data == w->data) return both[s];
    return none;
}

/* y := the rows of the fused matrix that stand in the place of w's. */
static int restacked(struct m3_ctx *ctx, real *y, const real *x, const struct m3_weight *w, const real *bias, int64_t T)
{
    const struct m3_mistaken_run *run = m3_run_of(ctx);
    const size_t mark = m3_scratch_mark(ctx);
    int place, status = M3_OK;
    const struct stack s = find_stack(&place, run, w);
    if (s.count == 0) return m3_right()->linear(ctx, y, x, w, bias, T);
    int64_t *from = m3_scratch_take(ctx, w->rows, sizeof *from);
    if (!from) return M3_INTERNAL;
    for (int64_t n = 0; n < w->rows; n++)
        from[n] = run->change->row_at(&run->model.config, s.starts, s.count, place, n);
    for (int i = 0; i < s.count && !status; i++) {
        const int64_t rows = s.members[i]->rows;
        int64_t taken = 0;
        for (int64_t n = 0; n < w->rows; n++) taken += from[n] >= s.starts[i] && from[n] < s.starts[i + 1];
        if (taken == 0) continue;
        const size_t before = m3_scratch_mark(ctx);
        real *all = m3_scratch_take(ctx, T * rows, sizeof *all);
        status = all ? m3_right()->linear(ctx, all, x, s.members[i], NULL, T) : M3_INTERNAL;
        for (int64_t n = 0; n < w->rows && !status; n++)
            for (int64_t t = 0; t < T && from[n] >= s.starts[i] && from[n] < s.starts[i + 1]; t++)
                y[t * w->rows + n] = all[t * rows + from[n] - s.starts[i]];
        m3_scratch_release(ctx, before);
    }
    m3_scratch_release(ctx, mark);
    return status;
}

/* The rows of a key head's queries, its key and its value follow each other. */
static int64_t by_group(const struct m3_config *c, const int64_t *starts, int count, int place, int64_t n)
{
    const int64_t heads = c->Q / c->G, h = n / c->D;
    if (count != 3) return starts[place] + n;
    const int64_t g = place == 0 ? h / heads : h, in_group = place == 0 ? h % heads : heads + place - 1;
    return (g * (heads + 2) + in_group) * c->D + n % c->D;
}

/* The fused gate and up are cut in two as if they were one matrix, and each rank takes its half for both. */
static int64_t cut_across(const struct m3_config *c, const int64_t *starts, int count, int place, int64_t n)
{
    (void)c;
    const int64_t half = (starts[1] + 1) / 2, rank = n / half;
    if (count != 2) return starts[place] + n;
    const int64_t own = n % half + (place == 0 ? 0 : half);
    return starts[rank] + (own < starts[1] ? own : n % half);
}

/* How many rows a rank of two has of a member: whole heads, if it has more than one. */
static int64_t rows_of_rank(const struct m3_config *c, const int64_t *starts, int count, int place)
{
    const int64_t rows = starts[place + 1] - starts[place], each = count == 3 && rows > c->D ? c->D : 1;
    return (rows / each + 1) / 2 * each;
}

static int64_t first_shard(const struct m3_config *c, const int64_t *starts, int count, int place, int64_t n)
{
    return starts[place] + n % rows_of_rank(c, starts, count, place);
}

static int64_t other_shard(const struct m3_config *c, const int64_t *starts, int count, int place, int64_t n)
{
    return starts[place] + (n + rows_of_rank(c, starts, count, place)) % (starts[place + 1] - starts[place]);
}

/* ---- columns */

/* Each of two ranks has the other one's columns. */
static int other_heads(struct m3_ctx *ctx, real *mine, const real *x, int64_t T, int64_t cols)
{
    const struct m3_config *c = &m3_run_of(ctx)->model.config;
    const int64_t half = (c->Q + 1) / 2 * c->D;
    for (int64_t i = 0; i < T * cols; i++) mine[i] = x[i - i % cols + (i % cols + half) % cols];
    return M3_OK;
}

/* ---- the head */

static int tied_head(struct m3_mistaken_run *run, struct m3_error *error)
{
    (void)error;
    if (are_alike(&run->model.lm_head, &run->model.embed)) run->model.lm_head = run->model.embed;
    return M3_OK;
}

static int head_as_embedding(struct m3_mistaken_run *run, struct m3_error *error)
{
    (void)error;
    if (are_alike(&run->model.lm_head, &run->model.embed)) run->model.embed = run->model.lm_head;
    return M3_OK;
}

static int log_softmax(struct m3_mistaken_run *run, enum m3_tap tap, int64_t layer, void *data, int64_t row,
                       int64_t rows, struct m3_error *error)
{
    const int64_t V = tap == M3_TAP_LOGITS || tap == M3_TAP_MTP_LOGITS ? run->model.config.V : 0;
    double *x = data;
    (void)layer, (void)row, (void)error;
    for (int64_t t = 0; t < rows && V > 0; t++, x += V) {
        double most = -(double)INFINITY, sum = 0;
        for (int64_t v = 0; v < V; v++) most = fmax(most, x[v]);
        for (int64_t v = 0; v < V; v++) sum += m3_exp(x[v] - most);
        for (int64_t v = 0; v < V; v++) x[v] -= most + m3_log(sum);
    }
    return M3_OK;
}

static const struct m3_mistake all[] = {
    { "load.next_layer", "a layer has the weights of the next one", "*.attn_norm", M3_OP_RMS_NORM, 0, "a second layer",
      NULL, M3_CHANGE(.borrows = all_of_next) },
    { "load.next_index", "the index projections are the next layer's", "*.index.q_proj", M3_OP_LINEAR,
      M3_NEEDS_TWO_SPARSE, "sparse layers that follow each other", NULL, M3_CHANGE(.borrows = index_of_next) },
    { "load.next_bias", "the router's bias is the next layer's", "*.moe.experts,*.moe.weights", M3_OP_NONE,
      M3_NEEDS_EXPERTS, "layers with experts that follow each other, a bias that changes a choice", NULL,
      M3_CHANGE(.borrows = bias_of_next) },
    { "load.kv_swap", "the matrices of keys and values are exchanged", "*.k_proj", M3_OP_LINEAR, 0, NULL, NULL,
      M3_CHANGE(.prepare = swap_keys_and_values) },
    { "load.qk_norms", "the norms of q and k have each other's weights", "*.q_norm", M3_OP_RMS_NORM, M3_NEEDS_HEAD_NORM,
      NULL, NULL, M3_CHANGE(.prepare = swap_head_norms) },
    { "load.gate_up_swap", "gate and up of the dense MLP and the shared expert are exchanged", "*.mlp.gate",
      M3_OP_LINEAR, M3_NEEDS_DENSE_MLP, NULL, NULL, M3_CHANGE(.prepare = swap_gate_and_up) },
    { "load.qkv_groups", "fused rows of q, k and v, stored one after the other, are read key head by key head",
      "*.q_proj", M3_OP_LINEAR, M3_NEEDS_GROUPS, NULL, NULL, M3_CHANGE(.ops.linear = restacked, .row_at = by_group) },
    { "load.fused_shards", "fused rows of gate and up are cut in two for two ranks as if they were one matrix",
      "*.mlp.gate", M3_OP_LINEAR, M3_NEEDS_DENSE_MLP, NULL, NULL,
      M3_CHANGE(.ops.linear = restacked, .row_at = cut_across) },
    { "load.same_shard", "both of two ranks have the first one's rows of q, k, v, gate and up", "*.q_proj",
      M3_OP_LINEAR, 0, "a second query head", NULL, M3_CHANGE(.ops.linear = restacked, .row_at = first_shard) },
    { "load.shard_order", "two ranks have each other's rows of q, k, v, gate and up", "*.q_proj", M3_OP_LINEAR, 0,
      "a second query head", NULL, M3_CHANGE(.ops.linear = restacked, .row_at = other_shard) },
    { "load.column_order", "two ranks have each other's columns of o_proj", "*.attn_out", M3_OP_LINEAR, 0,
      "a second query head", NULL,
      M3_CHANGE(.ops.linear = m3_mistaken_linear, .reads = other_heads, .reader = M3_TAP_ATTN_OUT) },
    { "head.tied", "the embedding serves as the head, which has weights of its own", "logits,mtp.*.logits",
      M3_OP_LINEAR, 0, "a head that is not tied", NULL, M3_CHANGE(.prepare = tied_head) },
    { "head.as_embedding", "the head serves as the embedding, which has weights of its own", "embed", M3_OP_EMBED, 0,
      "a head that is not tied", NULL, M3_CHANGE(.prepare = head_as_embedding) },
    { "head.log_softmax", "log-probabilities in place of logits", "logits,mtp.*.logits", M3_OP_LINEAR, 0, NULL, NULL,
      M3_CHANGE(.force = log_softmax) },
};

const struct m3_mistake_section m3_mistakes_load = { all, sizeof all / sizeof all[0] };
