#include "ops/brief.h"
#include "oracle/explain/private/explaining.h"

/* 1 / (1 + exp(-x)) in double, rounded once. */
static int sig(struct m3_explaining *e, const char *of, int x)
{
    struct m3_steps *s = e->steps;
    const int zero = m3_given_number(s, M3_STEP_F64, "0", "", 0), one = m3_given_number(s, M3_STEP_F64, "1", "", 1);
    const int minus = m3_step(s, M3_BY_SUBTRACT, M3_STEP_F64, "minus", "0 - the argument, in double", zero, x);
    const int exp = m3_step(s, M3_BY_EXP, M3_STEP_F64, "exp", "exp(minus), in double", minus, -1);
    const int below = m3_step(s, M3_BY_ADD, M3_STEP_F64, "1 + exp", "in double", one, exp);
    const int wide = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "1 / (1 + exp)", "in double", one, below);
    return m3_step(s, M3_BY_ROUND, M3_STEP_F32, of, "1 / (1 + exp), rounded to float", wide, -1);
}

int m3_explain_sigmoid(struct m3_explaining *e)
{
    m3_explain_equation(e, "sigmoid");
    return sig(e, "y", m3_given_operand(e, "x", 0, e->channel, 1));
}

/* Says which clamp acted on single numbers. */
static void say_clamps(struct m3_explaining *e, double gate, double up, double limit)
{
    const int both = e->how->semantics->gate_clamp == M3_GATE_CLAMP_BOTH;
    const int low = both && gate<-limit, high = gate> limit;
    if (high || low)
        m3_explain_note(e, "gate is clamped: %.9g is %s %s%.9g.", gate, high ? "above" : "below", low ? "-" : "",
                        limit);
    if (up > limit || up < -limit)
        m3_explain_note(e, "up is clamped: %.9g is %s %s%.9g.", up, up > limit ? "above" : "below",
                        up > limit ? "" : "-", limit);
    if (!(high || low) && !(up > limit || up < -limit))
        m3_explain_note(e, "No clamp acts: gate and up are within %.9g.", limit);
}

int m3_explain_gate(struct m3_explaining *e, int gate, int up)
{
    struct m3_steps *s = e->steps;
    const double most = (double)(float)e->config->swiglu_limit;
    m3_explain_equation(e, e->config->oai ? "swiglu_oai" : "swiglu");
    if (!e->config->oai) {
        const int product = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "up gate", "", up, gate);
        return m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "act", "(up gate) sig", product, sig(e, "sig", gate));
    }
    if (!s->status && s->list[gate].count == 1) say_clamps(e, m3_step_value(s, gate, 0), m3_step_value(s, up, 0), most);
    const int limit = m3_given_number(s, M3_STEP_F32, "limit", "swiglu_limit of config.json", most);
    const int low = m3_given_number(s, M3_STEP_F32, "-limit", "", -most);
    const int one = m3_given_number(s, M3_STEP_F32, "1", "", 1);
    const int alpha = m3_given_number(s, M3_STEP_F32, "alpha", "swiglu_alpha of config.json", e->config->swiglu_alpha);
    int g = m3_step(s, M3_BY_AT_MOST, M3_STEP_F32, "g", "min(gate, limit)", gate, limit);
    if (e->how->semantics->gate_clamp == M3_GATE_CLAMP_BOTH)
        g = m3_step(s, M3_BY_AT_LEAST, M3_STEP_F32, "g", "max(g, -limit), by gate_clamp=both", g, low);
    const int below = m3_step(s, M3_BY_AT_MOST, M3_STEP_F32, "up below", "min(up, limit)", up, limit);
    const int u = m3_step(s, M3_BY_AT_LEAST, M3_STEP_F32, "u", "max(up below, -limit)", below, low);
    const int more = m3_step(s, M3_BY_ADD, M3_STEP_F32, "u + 1", "", u, one);
    const int product = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "(u + 1) g", "", more, g);
    const int argument = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "alpha g", "", alpha, g);
    return m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "act", "((u + 1) g) sig", product, sig(e, "sig", argument));
}

int m3_explain_activation(struct m3_explaining *e)
{
    const int gate = m3_given_operand(e, "gate", 0, e->channel, 1), up = m3_given_operand(e, "up", 1, e->channel, 1);
    return m3_explain_gate(e, gate, up);
}

int m3_explain_gelu(struct m3_explaining *e)
{
    struct m3_steps *s = e->steps;
    m3_explain_equation(e, "gelu");
    const int x = m3_given_operand(e, "x", 0, e->channel, 1);
    const int most = m3_given_number(s, M3_STEP_F32, "most", "the range of the tail", (double)m3_tail_most);
    const int least = m3_given_number(s, M3_STEP_F32, "-most", "", -(double)m3_tail_most);
    const int below = m3_step(s, M3_BY_AT_MOST, M3_STEP_F32, "x below", "min(x, most)", x, most);
    const int near = m3_step(s, M3_BY_AT_LEAST, M3_STEP_F32, "near", "max(x below, -most)", below, least);
    const int tail = m3_step(s, M3_BY_TAIL, M3_STEP_F64, "tail", "erfc(|near| / sqrt 2) / 2, in double", near, -1);
    int part = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F64, "part", "near tail, in double", near, tail);
    const int is_negative = m3_step_value(s, x, 0) < 0;
    m3_explain_note(e, is_negative ? "x is negative: the result is x times the tail of the normal distribution."
                                   : "x is not negative: the result is x less x times the tail.");
    if (!is_negative) part = m3_step(s, M3_BY_SUBTRACT, M3_STEP_F64, "x - part", "in double", x, part);
    return m3_step(s, M3_BY_ROUND, M3_STEP_F32, "y", "rounded to float", part, -1);
}
