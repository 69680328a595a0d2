#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/minmax.h"
#include "ops/lists.h"
#include "ops/math.h"
#include "ops/visible.h"
#include "train/losses.h"

enum { ROWS = 16 };             /* rows whose differences are kept until the keys have taken them */

struct operands {
    const real *q, *k, *main_q, *main_k;
    const struct m3_index_loss *d;
    const struct m3_mask *mask;
    double scale;               /* of dq and dk: weight / what the sum is divided by, times the student's scale */
};

static double dot(const real *a, const real *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum = sum + (double)a[i] * (double)b[i];
    return sum;
}

static double student_scale(const struct m3_index_loss *d)
{
    return d->scale == M3_KL_SCALE_RSQRT ? 1 / sqrt((double)d->X) : 1;
}

/* z [n] := z - ln sum exp z */
static void log_softmax(double *z, int64_t n)
{
    double largest = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        if (z[i] > largest) largest = z[i];
    for (int64_t i = 0; i < n; i++) sum = sum + m3_exp(z[i] - largest);
    const double lse = largest + m3_log(sum);
    for (int64_t i = 0; i < n; i++) z[i] = z[i] - lse;
}

/* z [n] := logits of query head h of row t */
static void main_logits(double *z, const struct operands *a, int64_t t, int64_t h, const int64_t *keys, int64_t n)
{
    const int64_t Q = a->d->Q, G = a->d->G, D = a->d->D, g = h / (Q / G);
    const double scale = 1 / sqrt((double)D);
    for (int64_t i = 0; i < n; i++)
        z[i] = dot(a->main_q + (t * Q + h) * D, a->main_k + (keys[i] * G + g) * D, D) * scale;
}

/* p [n] := the teacher's probabilities of row t for group g; z [n] is scratch */
static void teach(double *p, const struct operands *a, int64_t t, int64_t g, const int64_t *keys, int64_t n, double *z)
{
    const int64_t Q = a->d->Q, each = Q / a->d->G;
    const int all = a->d->teacher == M3_KL_ALL;
    const int64_t first = all ? 0 : g * each, heads = all ? Q : each;
    for (int64_t i = 0; i < n; i++) p[i] = 0;
    for (int64_t h = first; h < first + heads; h++) {
        main_logits(z, a, t, h, keys, n);
        if (a->d->teacher != M3_KL_LOGIT) log_softmax(z, n);
        for (int64_t i = 0; i < n; i++)
            p[i] = p[i] + (a->d->teacher == M3_KL_LOGIT ? z[i] : m3_exp(z[i])) / (double)heads;
    }
    if (a->d->teacher != M3_KL_LOGIT) return;
    log_softmax(p, n);
    for (int64_t i = 0; i < n; i++) p[i] = m3_exp(p[i]);
}

/* The loss of row t and group g. ds [T] := its derivative by the student's scaled logits, 0 for keys it does not see.
 * p, z [T] and keys [T] are scratch. */
static double row_loss(double *ds, const struct operands *a, int64_t t, int64_t g, int64_t *keys, double *p, double *z)
{
    const struct m3_index_loss *d = a->d;
    int64_t n = 0;
    for (int64_t j = 0; j < d->T; j++) {
        ds[j] = 0;
        if (m3_visible(a->mask, t, g, j)) keys[n++] = j;
    }
    teach(p, a, t, g, keys, n, z);
    for (int64_t i = 0; i < n; i++)
        z[i] = dot(a->q + (t * d->G + g) * d->X, a->k + keys[i] * d->X, d->X) * student_scale(d);
    log_softmax(z, n);

    double loss = 0;
    for (int64_t i = 0; i < n; i++) {
        const double student = m3_exp(z[i]);
        if (d->direction == M3_KL_TEACHER_STUDENT) loss = loss + (p[i] > 0 ? p[i] * (m3_log(p[i]) - z[i]) : 0);
        else loss = loss + (student > 0 ? student * (z[i] - m3_log(p[i])) : 0);
    }
    for (int64_t i = 0; i < n; i++) {
        const double student = m3_exp(z[i]);
        if (d->direction == M3_KL_TEACHER_STUDENT) ds[keys[i]] = student - p[i];
        else ds[keys[i]] = student > 0 ? student * (z[i] - m3_log(p[i]) - loss) : 0;
    }
    return loss;
}

/* What `rows` rows from t on add to dk [T,X], and their dq. ds [rows,G,T]. */
static void spread(real *dq, double *dk, const struct operands *a, const double *ds, int64_t t, int64_t rows, int team)
{
    const int64_t T = a->d->T, G = a->d->G, X = a->d->X;
#pragma omp parallel for num_threads(team)
    for (int64_t r = 0; r < rows * G; r++)
        for (int64_t x = 0; x < X; x++) {
            double sum = 0;
            for (int64_t j = 0; j < T; j++) sum = sum + ds[r * T + j] * (double)a->k[j * X + x];
            dq[(t * G + r) * X + x] = (real)(a->scale * sum);
        }
#pragma omp parallel for num_threads(team)
    for (int64_t j = 0; j < T; j++)
        for (int64_t r = 0; r < rows * G; r++)
            for (int64_t x = 0; x < X; x++)
                dk[j * X + x] = dk[j * X + x] + ds[r * T + j] * (double)a->q[(t * G + r) * X + x];
}

/* The alignment loss of the index branch. TRAINING 19.17
 *
 *     over the keys j of row t and group g:  P = mean over the group's heads of softmax_j(main_q . main_k_j / sqrt D),
 *     P' = softmax_j(q . k_j / sqrt X),   loss = 1 / (rows G) sum over t, g, j of P (ln P - ln P')
 *     dq[t,g] = c sum over j of (P' - P) k_j,   dk_j = c sum over t, g of (P' - P) q[t,g],   c = weight / (rows G sqrt X)
 *
 * dq, q [T,G,X]; dk, k [T,X]; main_q [T,Q,D]; main_k [T,G,D]: a teacher without gradient.  Memory grows with T.
 * Often wrong: the main branch or the input of the index branch not detached; full-context lse in the sparse phase. */
int m3_index_loss(struct m3_ctx *ctx, double *loss, real *dq, real *dk, const real *q, const real *k,
                  const real *main_q, const real *main_k, const struct m3_index_loss *d, double weight)
{
    const int64_t T = d->T, G = d->G, X = d->X;
    const double divisor = (double)d->rows * (d->count == M3_KL_ROWS_GROUPS ? (double)G : 1);
    /* clang-format off */
    const struct m3_mask mask = { .seen = d->seen, .blocks = d->blocks, .block = d->block, .G = G, .N = d->N };
    /* clang-format on */
    const struct operands a = { q, k, main_q, main_k, d, &mask, weight / divisor * student_scale(d) };
    const int team = m3_team(ctx, T * d->Q * d->D * T);
    for (int64_t i = 0; d->blocks && i < T * G; i++)
        if (m3_list_length(d->blocks + i * d->N, d->N, i / G / d->block) < 0)
            return m3_fail_at(ctx, M3_WRONG, "block list not strictly ascending visible ids, then -1", i / G, i % G,
                              -1);

    size_t mark = m3_scratch_mark(ctx);
    double *ds = m3_scratch_take(ctx, ROWS * G * T, sizeof *ds), *sums = m3_scratch_take(ctx, T * X, sizeof *sums);
    double *p = m3_scratch_take(ctx, team * 2 * T, sizeof *p), *of_row = m3_scratch_take(ctx, ROWS * G, sizeof *of_row);
    int64_t *keys = m3_scratch_take(ctx, team * T, sizeof *keys);
    if (!ds || !sums || !p || !of_row || !keys) {
        m3_scratch_release(ctx, mark);
        return M3_INTERNAL;
    }
    memset(sums, 0, (size_t)(T * X) * sizeof *sums);
    for (int64_t t = 0; t < T; t += ROWS) {
        const int64_t rows = m3_min(ROWS, T - t);
#pragma omp parallel for num_threads(team)
        for (int64_t r = 0; r < rows * G; r++) {
            const int64_t thread = omp_get_thread_num();
            of_row[r] = row_loss(ds + r * T, &a, t + r / G, r % G, keys + thread * T, p + thread * 2 * T,
                                 p + thread * 2 * T + T);
        }
        for (int64_t r = 0; r < rows * G; r++) *loss = *loss + of_row[r] / divisor;
        spread(dq, sums, &a, ds, t, rows, team);
    }
    for (int64_t i = 0; i < T * X; i++) dk[i] = (real)(a.scale * sums[i]);
    m3_scratch_release(ctx, mark);
    return M3_OK;
}
