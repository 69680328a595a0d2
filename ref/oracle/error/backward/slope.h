/* The slopes of a gated activation and of its logistic function, with their errors: shared by gates.c and experts.c. */
#ifndef M3_ORACLE_ERROR_BACKWARD_SLOPE_H
#define M3_ORACLE_ERROR_BACKWARD_SLOPE_H

#include <math.h>

#include "oracle/error/backward/backward.h"
#include "oracle/error/private/functions.h"

/* s = sig(a), rest = 1 - s, h = 1 + |a| rest: sizes, and absolute errors. */
struct m3_slope_errors {
    double s, rest, h, e_s, e_rest, e_h;
};
/* e_a: absolute error of the argument. h is not set. */
struct m3_slope_errors m3_logistic_errors(double a, double e_a, const struct m3_backward_arithmetic *how);

/* d act / d gate = factor s (1 + alpha g (1 - s)), d act / d up = g s; 0 beyond a clamp. */
struct m3_gate_slope {
    double g, factor, size, a; /* factor u + 1 or up, size |factor|, a = alpha g */
    int has_gate, has_up;
    double by_gate, by_up, y;
};

static inline struct m3_gate_slope m3_gate_slope(double gate, double up, const struct m3_gate *act)
{
    const double L = act->limit;
    struct m3_gate_slope k = { .g = gate, .factor = up, .has_gate = 1, .has_up = 1 };
    double alpha = 1;
    if (act->oai) {
        alpha = act->alpha;
        k.has_gate = !(gate > L) && !(act->clamp == M3_GATE_CLAMP_BOTH && gate < -L);
        k.has_up = !(up > L) && !(up < -L);
        if (gate > L) k.g = L;
        if (act->clamp == M3_GATE_CLAMP_BOTH && gate < -L) k.g = -L;
        k.factor = (up > L ? L : up < -L ? -L : up) + 1;
    }
    k.a = alpha * k.g;
    k.size = fabs(k.factor);
    const double s = m3_logistic(k.a), rest = m3_logistic(-k.a);
    k.by_gate = k.has_gate && s > 0 ? k.factor * s * (1 + k.a * rest) : 0;
    k.by_up = k.has_up && s > 0 ? k.g * s : 0;
    k.y = s > 0 ? k.factor * k.g * s : 0;
    return k;
}

/* Errors of s and of h for the argument of a slope. */
static inline struct m3_slope_errors m3_gate_errors(const struct m3_gate_slope *k,
                                                    const struct m3_backward_arithmetic *how)
{
    const double size = fabs(k->a);
    struct m3_slope_errors e = m3_logistic_errors(k->a, 2 * (how->u + how->act) * size, how);
    if (isinf(size)) return (struct m3_slope_errors){ .s = e.s, .e_s = e.e_s, .h = 1 };
    e.h = 1 + size * e.rest;
    e.e_h = size * (e.e_rest + 2 * how->u * e.rest) + 2 * how->u * e.h;
    return e;
}

#endif
