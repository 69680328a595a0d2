#include "ops/math.h"
#include "train/losses.h"

/* The load-balancing loss of the router, as transformers has it. TRAINING 19.16
 *
 *     s[t] = softmax(l[t]),   f_e = rows with e among their K largest / rows,   p_e = sum over t of s[t,e] / rows
 *     loss = E sum over e of f_e p_e,    dl[t,e] = E / rows s[t,e] (f_e - sum over j of f_j s[t,j])
 *
 * l, dl [M,E]; chosen, mass [E] count the rows of all MoE layers together. f is a constant for the gradient. Ties: the
 * lower id. Rows of padding do not count.  Often wrong: the sigmoid scores and the biased choice of the model itself; a
 * mean of losses of layers. */
static double sum_of(double *largest, const real *l, int64_t E)
{
    double sum = 0;
    *largest = (double)l[0];
    for (int64_t e = 1; e < E; e++)
        if ((double)l[e] > *largest) *largest = (double)l[e];
    for (int64_t e = 0; e < E; e++) sum = sum + m3_exp((double)l[e] - *largest);
    return sum;
}

static int is_chosen(const real *l, int64_t e, int64_t E, int64_t K)
{
    int64_t before = 0;
    for (int64_t o = 0; o < E; o++) before += l[o] > l[e] || (o < e && l[o] == l[e]);
    return before < K;
}

int64_t m3_balance_count(double *chosen, double *mass, const real *l, const unsigned char *counts, int64_t M, int64_t E,
                         int64_t K)
{
    int64_t rows = 0;
    for (int64_t t = 0; t < M; t++) {
        if (counts && !counts[t]) continue;
        rows++;
        const real *l_t = l + t * E;
        double largest, sum = sum_of(&largest, l_t, E);
        for (int64_t e = 0; e < E; e++) {
            mass[e] = mass[e] + m3_exp((double)l_t[e] - largest) / sum;
            chosen[e] = chosen[e] + is_chosen(l_t, e, E, K);
        }
    }
    return rows;
}

double m3_balance_loss(const double *chosen, const double *mass, int64_t rows, int64_t E)
{
    double sum = 0;
    for (int64_t e = 0; e < E; e++) sum = sum + chosen[e] / (double)rows * (mass[e] / (double)rows);
    return (double)E * sum;
}

void m3_balance_gradient(real *dl, const real *l, const double *chosen, const unsigned char *counts, int64_t M,
                         int64_t E, int64_t rows, double weight)
{
    for (int64_t t = 0; t < M; t++) {
        if (counts && !counts[t]) continue;
        const real *l_t = l + t * E;
        double largest, sum = sum_of(&largest, l_t, E), mean = 0;
        for (int64_t e = 0; e < E; e++)
            mean = mean + chosen[e] / (double)rows * (m3_exp((double)l_t[e] - largest) / sum);
        for (int64_t e = 0; e < E; e++) {
            const double s = m3_exp((double)l_t[e] - largest) / sum;
            const double d = weight * (double)E / (double)rows * s * (chosen[e] / (double)rows - mean);
            dl[t * E + e] = (real)((double)dl[t * E + e] + d);
        }
    }
}

static double sig(double l) { return 1 / (1 + m3_exp(-l)); }

static double sum_of_scores(const real *l, int64_t E)
{
    double sum = 0;
    for (int64_t e = 0; e < E; e++) sum = sum + sig((double)l[e]);
    return sum;
}

/* The load-balancing loss of one layer with the scores and the choice of the model, as NeMo Automodel has it. TRAINING
 * 19.16
 *
 *     p[t] = sig(l[t]) / sum over e of sig(l[t,e]),   c_e = E rows that chose e / (K rows)
 *     loss = sum over e of c_e mean over t of p[t,e],
 *     dl[t,e] = 1 / rows sig(l) sig(-l) / (sum of sig) (c_e - sum over j of c_j p[t,j])
 *
 * l, dl [M,E]; ids [M,K]; c is a constant for the gradient.  Often wrong: the sum over the chosen experts for that over
 * all; layers pooled. */
void m3_balance_sigmoid_chosen(double *chosen, const int32_t *ids, const unsigned char *counts, int64_t M, int64_t K)
{
    for (int64_t i = 0; i < M * K; i++)
        if (!counts || counts[i / K]) chosen[ids[i]] = chosen[ids[i]] + 1;
}

int64_t m3_balance_sigmoid_mass(double *mass, const real *l, const unsigned char *counts, int64_t M, int64_t E)
{
    int64_t rows = 0;
    for (int64_t t = 0; t < M; t++) {
        if (counts && !counts[t]) continue;
        rows++;
        const double sum = sum_of_scores(l + t * E, E);
        for (int64_t e = 0; e < E; e++) mass[e] = mass[e] + sig((double)l[t * E + e]) / sum;
    }
    return rows;
}

double m3_balance_sigmoid_loss(const double *chosen, const double *mass, int64_t rows, int64_t E, int64_t K)
{
    return m3_balance_loss(chosen, mass, rows, E) / (double)K;
}

void m3_balance_sigmoid_gradient(real *dl, const real *l, const double *chosen, const unsigned char *counts, int64_t M,
                                 int64_t E, int64_t K, int64_t rows, double weight)
{
    const double to_c = (double)E / ((double)K * (double)rows);
    for (int64_t t = 0; t < M; t++) {
        if (counts && !counts[t]) continue;
        const real *l_t = l + t * E;
        const double sum = sum_of_scores(l_t, E);
        double mean = 0;
        for (int64_t e = 0; e < E; e++) mean = mean + to_c * chosen[e] * (sig((double)l_t[e]) / sum);
        for (int64_t e = 0; e < E; e++) {
            const double both = sig((double)l_t[e]) * sig(-(double)l_t[e]);
            const double d = weight / (double)rows * (both / sum) * (to_c * chosen[e] - mean);
            dl[t * E + e] = (real)((double)dl[t * E + e] + d);
        }
    }
}
