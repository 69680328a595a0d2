/* A gated linear unit at one place: y = (u' + 1) g' sig(alpha g') of clamped u' and g' (SPEC 5.11), or u g sig(g). Its
 * bound and its derivatives by parameters, without branches, so that loops over them vectorise. */
#ifndef M3_ORACLE_ERROR_PRIVATE_GATE_H
#define M3_ORACLE_ERROR_PRIVATE_GATE_H

#include <math.h>

#include "oracle/error/bounds.h"
#include "oracle/error/private/functions.h"

/* struct m3_gate as numbers: what a form does not have is infinite, or 0 or 1. */
struct m3_gate_form {
    double alpha, limit, lower, one;            /* lower: limit of the gate; one: what is added to up */
};

static inline struct m3_gate_form m3_gate_form(const struct m3_gate *g)
{
    if (!g->oai) return (struct m3_gate_form){ 1, INFINITY, -INFINITY, 0 };
    const double lower = g->clamp == M3_GATE_CLAMP_BOTH ? -g->limit : -INFINITY;
    return (struct m3_gate_form){ g->alpha, g->limit, lower, 1 };
}

static inline double m3_clamped(double x, double low, double high)
{
    return m3_select(x > high, high, m3_select(x < low, low, x));
}

static inline double m3_gate_clamped(double gate, const struct m3_gate_form *g)
{
    return m3_clamped(gate, g->lower, g->limit);
}

static inline double m3_up_clamped(double up, const struct m3_gate_form *g)
{
    return m3_clamped(up, -g->limit, g->limit);
}

static inline double m3_gate_bound_of(double gate, double up, const struct m3_gate_form *g, double steps, double u)
{
    const double z = m3_gate_clamped(gate, g), a = g->alpha * z, s = m3_logistic(a);
    const double product = fabs((m3_up_clamped(up, g) + g->one) * z);
    return product * m3_logistic_bound(s, steps, u) + product * s * fabs(a) * (1 - s);
}

/* Is the gate clamped? */
static inline int m3_gate_is_clamped(double gate, const struct m3_gate_form *g)
{
    return (gate >= g->limit) | (gate <= g->lower);
}

/* dy/dalpha = (u' + 1) g'^2 sig (1 - sig) */
static inline double m3_gate_by_alpha(double gate, double up, const struct m3_gate_form *g)
{
    const double z = m3_gate_clamped(gate, g), sig = m3_logistic(g->alpha * z);
    return (m3_up_clamped(up, g) + 1) * z * z * sig * (1 - sig);
}

/* The same of one element alone. Clamped gates all share the rounding of one sig: 0. */
static inline double m3_gate_by_alpha_alone(double gate, double up, const struct m3_gate_form *g)
{
    return m3_select(m3_gate_is_clamped(gate, g), 0, m3_gate_by_alpha(gate, up, g));
}

/* dy/dbeta of (up' + beta) g' sig, where beta is 1 */
static inline double m3_gate_by_beta(double gate, double up, const struct m3_gate_form *g)
{
    const double z = m3_gate_clamped(gate, g);
    (void)up;
    return z * m3_logistic(g->alpha * z);
}

/* The same of one element alone: 0 as above. */
static inline double m3_gate_by_beta_alone(double gate, double up, const struct m3_gate_form *g)
{
    return m3_select(m3_gate_is_clamped(gate, g), 0, m3_gate_by_beta(gate, up, g));
}

/* dy/dlimit where up is clamped: +-g sig(alpha g). Where gate is clamped too, y is one number: 0. */
static inline double m3_gate_by_limit_of_up(double gate, double up, const struct m3_gate_form *g)
{
    const double by = copysign(gate * m3_logistic(g->alpha * gate), up * gate);
    return m3_select((fabs(up) < g->limit) | m3_gate_is_clamped(gate, g), 0, by);
}

/* dy/dlimit where gate is clamped: +-(u + 1) d(z sig(alpha z))/dz */
static inline double m3_gate_by_limit_of_gate(double gate, double up, const struct m3_gate_form *g)
{
    const double z = m3_gate_clamped(gate, g), sig = m3_logistic(g->alpha * z);
    const double by = copysign(1, z) * (up + 1) * (sig + g->alpha * z * sig * (1 - sig));
    return m3_select((fabs(up) >= g->limit) | ((gate < g->limit) & (gate > g->lower)), 0, by);
}

#endif
