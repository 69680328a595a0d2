#include <math.h>
#include <string.h>

#include "oracle/error/parameters/private/derivatives.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/private/functions.h"

/* y = factor sum p_k e_k: by the factor, the sum */
int m3_by_factor(struct m3_recomputing *m)
{
    const int64_t K = m->config->K, H = m->config->H;
    memset(m->y, 0, (size_t)m->count * sizeof *m->y);
    for (int64_t r = 0; r < m->rows; r++)
        for (int64_t k = r * K; k < (r + 1) * K; k++)
            for (int64_t i = 0; i < H; i++) m->y[r * H + i] += m->in[1].values[k] * m->in[0].values[k * H + i];
    return M3_OK;
}

/* Scores s_j = scale q k_j of the keys of a block; m = max s_j, or ln sum exp(s_j). By ln(scale): m itself, or sum
 * exp(s_j - m) s_j. A block without a visible key: 0. */
struct scored {
    const double *q, *k;
    const struct m3_index *d;
    double *y, scale;
};

static void at_block(const void *self, const struct m3_scored *block)
{
    const struct scored *to = self;
    const int64_t X = to->d->X;
    double top = -INFINITY, sum = 0, mean = 0, *s = block->scratch;
    for (int64_t j = 0; j < block->n; j++) {
        s[j] = 0;
        for (int64_t i = 0; i < X; i++) s[j] += to->scale * to->q[block->pair * X + i] * to->k[block->keys[j] * X + i];
        if (!(s[j] <= top)) top = s[j];
    }
    for (int64_t j = 0; j < block->n; j++) {
        const double p = m3_exp(s[j] - top);
        sum += p;
        mean += p * s[j];
    }
    const double by = to->d->semantics->pool == M3_POOL_LSE ? mean / sum : top;
    to->y[block->pair * to->d->B + block->block] = block->n > 0 ? by : 0;
}

int m3_by_index_scale(struct m3_recomputing *m)
{
    const struct m3_config *c = m->config;
    const struct m3_case *the_case = m->setting->the_case;
    const struct m3_semantics *semantics = m->setting->semantics;
    const int64_t places = the_case->p0 + m3_tap_rows(m->setting, m->tap, m->layer);
    const struct m3_index d = { .T = m->rows,
                                .p0 = the_case->p0 + m->numbers[0],
                                .G = c->G,
                                .X = c->X,
                                .block = c->block,
                                .N = c->N,
                                .B = (places + c->block - 1) / c->block,
                                .seen = the_case->seen,
                                .semantics = semantics };
    const double scale = semantics->index_scale == M3_INDEX_SCALE_RSQRT ? 1 / sqrt((double)c->X) : 1;
    const struct scored to = { m->in[0].values, m->in[1].values, &d, m->y, scale };
    /* Errors of keys are the same in all rows. */
    if (m3_is_off(&m->in[1])) {
        m3_recompute_missing(m->out, "exact keys");
        return M3_OK;
    }
    return m3_scored_blocks(m->ctx, at_block, &to, (struct m3_attended_scratch){ .per_key = 1 }, &d);
}
