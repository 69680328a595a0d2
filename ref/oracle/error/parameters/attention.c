#include <math.h>
#include <string.h>

#include "oracle/error/parameters/private/derivatives.h"
#include "oracle/error/private/attended.h"
#include "oracle/error/private/functions.h"
#include "oracle/error/private/kernels.h"

/* o = sum p_j v_j, p = softmax(z), z_j = scale q k_j. If a parameter moves z_j by f_j,
 *
 *     do = sum p_j (f_j - f) v_j,  dlse = f,   f = sum p_j f_j
 *
 * By ln(scale): f_j = z_j. A cap c replaces z by c tanh(z / c) = z - z^3 / (3 c^2) + ..: by 1 / c^2 at 0, f_j =
 * -z_j^3 / 3. */
struct moved {
    double *o, *lse;            /* one of them is NULL */
    int by_cap;
};

static void at_row(const void *self, const struct m3_attended *r)
{
    const struct moved *to = self;
    const struct m3_error_kernels *kernels = m3_error_kernels();
    double *p = r->scratch, *f = p + r->L, top = -INFINITY, sum = 0, mean = 0, mass;
    for (int64_t j = 0; j < r->L; j++) {
        const double *k = r->k + r->keys[j] * r->stride;
        const double z = kernels->dot(&mass, r->q, k, r->D) / sqrt((double)r->D);
        p[j] = z;
        f[j] = to->by_cap ? -z * z * z / 3 : z;
        if (!(z <= top)) top = z;
    }
    for (int64_t j = 0; j < r->L; j++) sum += p[j] = m3_exp(p[j] - top);
    for (int64_t j = 0; j < r->L; j++) mean += (p[j] /= sum) * f[j];
    if (to->lse) to->lse[r->at] = mean;
    if (!to->o) return;
    double *moved = to->o + r->at * r->D;
    memset(moved, 0, (size_t)r->D * sizeof *moved);
    for (int64_t j = 0; j < r->L; j++)
        kernels->add_scaled(moved, r->v + r->keys[j] * r->stride, p[j] * (f[j] - mean), r->D);
}

static const struct m3_attended_scratch scratch = { .per_key = 2 };

static int of_pictures(struct m3_recomputing *m, const struct moved *to)
{
    const struct m3_vision_config *v = &m->config->vision;
    const struct m3_pictures *pictures = &m->setting->the_case->pictures;
    int64_t *places = m3_recompute_scratch(m, 3 * m->rows, sizeof *places);
    int64_t *ends = m3_recompute_scratch(m, m->rows, sizeof *ends);
    if (m->status) return m->status;
    const int64_t count = m3_pictures_segments(ends, places, pictures, v, m->setting->semantics->vision_boundary);
    return m3_attended_segments(m->ctx, at_row, to, scratch, m->in[0].values, m->in[1].values, m->in[2].values, ends,
                                count, v->A, v->U);
}

static int of_text(struct m3_recomputing *m, const struct moved *to)
{
    const struct m3_config *c = m->config;
    const struct m3_case *the_case = m->setting->the_case;
    const struct m3_attend d = { .T = m->rows,
                                 .p0 = the_case->p0 + m->numbers[0],
                                 .Q = c->Q,
                                 .G = c->G,
                                 .D = c->D,
                                 .seen = the_case->seen,
                                 .block = c->block,
                                 .N = c->N,
                                 .selection = m->setting->semantics->selection };
    return m3_attended_causal(m->ctx, at_row, to, scratch, m->in[0].values, m->in[1].values, m->in[2].values,
                              m->in[3].ids, &d);
}

static int derive(struct m3_recomputing *m, int by_cap)
{
    const int is_lse = m->tap == M3_TAP_ATTN_LSE;
    const struct moved to = { is_lse ? NULL : m->y, is_lse ? m->y : NULL, by_cap };
    /* Errors of keys and values are the same in all rows. */
    if (m3_is_off(&m->in[1]) || m3_is_off(&m->in[2])) {
        m3_recompute_missing(m->out, "exact keys and values");
        return M3_OK;
    }
    return m->tap == M3_TAP_VISION_ATTN ? of_pictures(m, &to) : of_text(m, &to);
}

int m3_by_scale(struct m3_recomputing *m) { return derive(m, 0); }

int m3_by_cap(struct m3_recomputing *m) { return derive(m, 1); }
