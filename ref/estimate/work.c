#include "estimate/work.h"

#include <math.h>

#include "base/minmax.h"

const char *const m3_work_names[M3_WORK_KINDS] = {
    [M3_WORK_PRODUCTS] = "products",   [M3_WORK_EXPERTS] = "experts",     [M3_WORK_INDEX] = "choosing blocks",
    [M3_WORK_ATTENTION] = "attention", [M3_WORK_ROWS] = "norms and sums", [M3_WORK_HEAD] = "head",
};

enum m3_work_kind m3_work_of(const struct m3_node *node)
{
    if (m3_tap_table[node->tap].where == M3_WHERE_AFTER_LAYERS) return M3_WORK_HEAD;
    switch (node->op) {
    case M3_OP_LINEAR:
    case M3_OP_GATED_MLP: return M3_WORK_PRODUCTS;
    case M3_OP_ROUTED: return M3_WORK_EXPERTS;
    case M3_OP_BLOCK_SCORES:
    case M3_OP_SELECT_BLOCKS: return M3_WORK_INDEX;
    case M3_OP_ATTEND: return M3_WORK_ATTENTION;
    default: return M3_WORK_ROWS;
    }
}

/* Places that T rows see, one after the other behind p0 places, `most` at most in each row. */
static double seen(int64_t T, int64_t p0, double most)
{
    const double first = (double)p0 + 1, last = (double)(p0 + T);
    if (last <= most) return (first + last) / 2 * (double)T;
    if (first >= most) return most * (double)T;
    const double rising = most - first + 1;
    return (first + most) / 2 * rising + most * ((double)T - rising);
}

void m3_work_add_layer(struct m3_work *work, const struct m3_config *c, int64_t l, int64_t T, int64_t p0)
{
    const double rows = (double)T, H = (double)c->H, q = (double)(c->Q * c->D), kv = (double)(c->G * c->D);
    const int sparse = m3_config_sparse(c, l), moe = m3_config_moe(c, l);
    const double middle = (double)(moe ? c->shared_intermediate : c->dense_intermediate);
    const double places = seen(T, p0, INFINITY);
    double columns = q + 2 * kv + q + 3 * middle + (double)(moe ? c->E : 0);
    if (sparse) {
        columns += (double)(c->G * c->X + c->X);
        work->of[M3_WORK_INDEX] += (double)(c->G * c->X) * places;
    }
    work->of[M3_WORK_PRODUCTS] += rows * H * columns;
    if (moe) work->of[M3_WORK_EXPERTS] += rows * (double)c->K * 3 * H * (double)c->F;
    const double most = (double)(c->N * c->block) - (double)(c->block - 1) / 2; /* the last block is the row's own */
    work->of[M3_WORK_ATTENTION] += 2 * q * (sparse ? seen(T, p0, most) : places);
    work->of[M3_WORK_ROWS] += rows * (6 * H + 4 * (q + kv) + 3 * middle);
}

void m3_work_add_head(struct m3_work *work, const struct m3_config *c, int64_t rows)
{
    work->of[M3_WORK_HEAD] += (double)rows * (double)c->H * (double)c->V;
}

void m3_work_add_vision(struct m3_work *work, const struct m3_config *config, int64_t patches)
{
    const struct m3_vision_config *v = &config->vision;
    if (!v->present || patches == 0) return;
    const double P = (double)patches, merge = (double)(v->spatial_merge * v->spatial_merge), M = P / merge;
    const double W = (double)v->W, L = (double)v->intermediate, Y = (double)v->projector_hidden;
    const double C = (double)m3_config_size(config, 'C'), out = (double)config->H;
    const double layer = P * (4 * W * W + 2 * W * L) + 2 * P * P * W;
    work->of[M3_WORK_PRODUCTS] += P * C * W + (double)v->layers * layer + P * (W + out) * Y + M * (merge + 1) * out * Y;
}

double m3_work_experts_chosen(const struct m3_config *c, int64_t T)
{
    if (c->E < 1) return 0;
    return (double)c->E * (1 - pow(1 - (double)m3_min(c->K, c->E) / (double)c->E, (double)T));
}
