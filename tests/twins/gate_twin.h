/* Gated linear units (SPEC 5.11, 5.12) in long double, and their bound. */
#ifndef M3_TESTS_GATE_TWIN_H
#define M3_TESTS_GATE_TWIN_H

#include "propagate_twin.h"

static const struct m3_gate gates[] = {
    { 1, 1.702, 7, M3_GATE_CLAMP_UPPER },
    { 1, 1.702, 7, M3_GATE_CLAMP_BOTH },
    { 0, 0, 0, M3_GATE_CLAMP_UPPER },
};

static inline long double clamp(long double x, long double low, long double high)
{
    return x < low ? low : x > high ? high : x;
}

static inline long double sig(long double x) { return 1 / (1 + expl(-x)); }

/* To bf16, if it is stored in so coarse a format. */
static inline long double kept(long double x, double u) { return u > 0 ? to_bf16(x) : x; }

static inline long double clamped_gate(long double z, const struct m3_gate *g)
{
    return g->oai ? clamp(z, g->clamp == M3_GATE_CLAMP_BOTH ? -g->limit : -HUGE_VALL, g->limit) : z;
}

/* u: every step is stored, the exponential, the sum and the quotient apart. */
static inline long double gated(long double z, long double up, const struct m3_gate *g, double u)
{
    z = clamped_gate(z, g);
    if (g->oai) up = kept(clamp(up, -g->limit, g->limit) + 1, u);
    const long double e = kept(expl(-kept((g->oai ? g->alpha : 1) * z, u)), u);
    return kept(up * kept(z * kept(1 / kept(1 + e, u), u), u), u);
}

static inline long double gate_bound(long double z, long double up, const struct m3_gate *g)
{
    const long double t = (g->oai ? g->alpha : 1) * clamped_gate(z, g);
    return fabsl(gated(z, up, g, 0)) * (1 + fabsl(t) * (1 - sig(t)));
}

#endif
