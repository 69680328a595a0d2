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
    const struct m3_mask *mask, *causal;        /* the keys of the loss; and all of a row */
    double scale;               /* of dq and dk: weight / what the sum is divided by, times the student's scale */
};

static double dot(const real *a, const real *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum = sum + (double)a[i] * (double)b[i];
    return sum;
}

/* What a product q' . k' of the student is multiplied with. */
static double student_scale(const struct m3_index_loss *d)
{
    const double tau = d->readings.kl_tau > 0 ? d->readings.kl_tau : 1;
    return (d->readings.kl_scale == M3_KL_SCALE_RSQRT ? 1 / sqrt((double)d->X) : 1) / tau;
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

/* keys [n] := those that row t of group g sees; returns n. A row of padding has none. */
static int64_t keys_of(int64_t *keys, const struct operands *a, const struct m3_mask *mask, int64_t t, int64_t g)
{
    int64_t n = 0;
    for (int64_t j = 0; (!a->d->seen || a->d->seen[t]) && j <= t; j++)
        if (m3_visible(mask, t, g, j)) keys[n++] = j;
    return n;
}

/* p [n] := the teacher's probabilities of row t for group g; z [n] is scratch */
static void teach(double *p, const struct operands *a, int64_t t, int64_t g, const int64_t *keys, int64_t n, double *z)
{
    const int64_t Q = a->d->Q, each = Q / a->d->G;
    const int all = a->d->readings.kl_teacher == M3_KL_ALL, by_logit = a->d->readings.kl_teacher == M3_KL_LOGIT;
    const int64_t first = all ? 0 : g * each, heads = all ? Q : each;
    for (int64_t i = 0; i < n; i++) p[i] = 0;
    for (int64_t h = first; h < first + heads; h++) {
        main_logits(z, a, t, h, keys, n);
        if (!by_logit) log_softmax(z, n);
        for (int64_t i = 0; i < n; i++) p[i] = p[i] + (by_logit ? z[i] : m3_exp(z[i])) / (double)heads;
    }
    if (!by_logit) return;
    log_softmax(p, n);
    for (int64_t i = 0; i < n; i++) p[i] = m3_exp(p[i]);
}

/* A teacher over all keys of the row, of which only those of the loss are kept; they are keys [returned]. */
static int64_t cut(double *p, int64_t *keys, const struct operands *a, int64_t t, int64_t g, double *z)
{
    const int64_t all = keys_of(keys, a, a->causal, t, g);
    int64_t n = 0;
    double sum = 0;
    teach(p, a, t, g, keys, all, z);
    for (int64_t i = 0; i < all; i++) {
        if (!m3_visible(a->mask, t, g, keys[i])) continue;
        p[n] = p[i];
        sum = sum + p[n];
        keys[n++] = keys[i];
    }
    for (int64_t i = 0; a->d->readings.kl_teacher_norm == M3_KL_CUTNORM && i < n && sum > 0; i++) p[i] = p[i] / sum;
    return n;
}

/* Keys become blocks: p their masses, z their largest logits, keys the first key that has it. Returns their number. */
static int64_t gather_blocks(double *p, double *z, int64_t *keys, int64_t block, int64_t n)
{
    int64_t blocks = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t last = blocks - 1;
        if (blocks > 0 && keys[last] / block == keys[i] / block) {
            p[last] = p[last] + p[i];
            if (z[i] > z[last]) z[last] = z[i], keys[last] = keys[i];
        } else {
            p[blocks] = p[i];
            z[blocks] = z[i];
            keys[blocks++] = keys[i];
        }
    }
    return blocks;
}

/* The divergence of P = p [n] from P' = exp(z [n]). p [n] := P' times the derivative of the divergence by P'. */
static double divergence(double *p, const double *z, const struct m3_readings *how, int64_t n)
{
    const double eps = how->kl_log_eps;
    double loss = 0;
    for (int64_t i = 0; i < n; i++) {
        const double student = m3_exp(z[i]), teacher = p[i], part = eps > 0 ? student / (student + eps) : 1;
        const double log_student = eps > 0 ? m3_log(student + eps) : z[i];
        if (how->kl_direction == M3_KL_TEACHER_STUDENT) {
            loss = loss + (teacher > 0 ? teacher * (m3_log(teacher + eps) - log_student) : 0);
            p[i] = -teacher * part;
        } else {
            const double log_ratio = student > 0 ? log_student - m3_log(teacher + eps) : 0;
            loss = loss + student * log_ratio;
            p[i] = student * (log_ratio + part);
        }
    }
    return loss;
}

/* The loss of row t and group g. ds [T] := its derivative by the student's scaled logits, 0 for keys it does not see.
 * p, z [T] and keys [T] are scratch. */
static double row_loss(double *ds, const struct operands *a, int64_t t, int64_t g, int64_t *keys, double *p, double *z)
{
    const struct m3_index_loss *d = a->d;
    int64_t n;
    double sum = 0;
    for (int64_t j = 0; j < d->T; j++) ds[j] = 0;
    if (d->readings.kl_teacher_norm == M3_KL_SUPPORT) {
        n = keys_of(keys, a, a->mask, t, g);
        teach(p, a, t, g, keys, n, z);
    } else {
        n = cut(p, keys, a, t, g, z);
    }
    for (int64_t i = 0; i < n; i++)
        z[i] = dot(a->q + (t * d->G + g) * d->X, a->k + keys[i] * d->X, d->X) * student_scale(d);
    if (d->readings.kl_over == M3_KL_BLOCKS) n = gather_blocks(p, z, keys, d->block, n);
    log_softmax(z, n);
    const double loss = divergence(p, z, &d->readings, n);
    for (int64_t i = 0; i < n; i++) sum = sum + p[i];
    for (int64_t i = 0; i < n; i++) ds[keys[i]] = p[i] - m3_exp(z[i]) * sum;
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
 * With a_j, the derivative of the loss by P'_j, a logit has P'_j (a_j - sum over m of P'_m a_m): - P_j / P'_j gives the
 * line above, and other readings have other a.
 * dq, q [T,G,X]; dk, k [T,X]; main_q [T,Q,D]; main_k [T,G,D]: a teacher without gradient.  Memory grows with T.
 * Often wrong: the main branch or the input of the index branch not detached; full-context lse in the sparse phase. */
int m3_index_loss(struct m3_ctx *ctx, double *loss, real *dq, real *dk, const real *q, const real *k,
                  const real *main_q, const real *main_k, const struct m3_index_loss *d, double weight)
{
    const int64_t T = d->T, G = d->G, X = d->X;
    const double divisor = (double)d->rows * (d->readings.kl_count == M3_KL_ROWS_GROUPS ? (double)G : 1);
    const struct m3_mask mask = { .seen = d->seen, .blocks = d->blocks, .block = d->block, .G = G, .N = d->N };
    const struct m3_mask causal = { .seen = d->seen };
    const struct operands a = { q, k, main_q, main_k, d, &mask, &causal, weight / divisor * student_scale(d) };
    const int team = m3_team(ctx, T * d->Q * d->D * T);
    for (int64_t i = 0; d->blocks && i < T * G; i++)
        if (m3_list_length(d->blocks + i * d->N, d->N, i / G / d->block) < 0)
            return m3_fail_at(ctx, M3_WRONG, "block list not strictly ascending visible ids, then -1", i / G, i % G,
                              -1);

    size_t mark = m3_scratch_mark(ctx);
    double *ds = m3_scratch_take(ctx, ROWS * G * T, sizeof *ds), *sums = m3_scratch_take(ctx, T * X, sizeof *sums);
    double *p = m3_scratch_take(ctx, team * T * 2, sizeof *p), *of_row = m3_scratch_take(ctx, ROWS * G, sizeof *of_row);
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
