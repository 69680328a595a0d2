#include <inttypes.h>
#include <stdio.h>

#include "oracle/explain/private/explaining.h"

/* Where a channel of a head is rotated. */
struct turned {
    int64_t half, i;            /* channels i and i + half turn together */
    int64_t place;              /* the position, or the coordinate of a patch */
    const char *what;           /* "position", "row of the grid" */
    int64_t k, channels;        /* the exponent is -2 k / channels */
    double theta;
};

/* The angle, and its cosine and sine rounded to float. */
static void angle(struct m3_explaining *e, int *cosine, int *sine, const struct turned *turned)
{
    struct m3_steps *s = e->steps;
    const int place = m3_given_number(s, M3_STEP_F64, turned->what, "of this row", (double)turned->place);
    const int theta = m3_given_number(s, M3_STEP_F64, "theta", "config.json", turned->theta);
    const int up = m3_given_number(s, M3_STEP_F64, "-2 i", "i is the pair", turned->k ? -2.0 * (double)turned->k : 0);
    const int R =
        m3_given_number(s, M3_STEP_F64, "R", "the channels that share these frequencies", (double)turned->channels);
    const int exponent = m3_step(s, M3_BY_DIVIDE, M3_STEP_F64, "exponent", "-2 i / R", up, R);
    int frequency = m3_step(s, M3_BY_POW, M3_STEP_F64, "frequency", "theta^exponent", theta, exponent);
    int a;
    if (e->how->semantics->rope_angle == M3_ANGLE_F32) {
        frequency = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "frequency in float", "rope_angle=f32", frequency, -1);
        const int single = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "place in float", "rope_angle=f32", place, -1);
        a = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "angle", "place frequency, in float", single, frequency);
    } else {
        a = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F64, "angle", "place frequency, in double", place, frequency);
    }
    const int c = m3_step(s, M3_BY_COS, M3_STEP_F64, "cosine", "cos angle, in double", a, -1);
    const int n = m3_step(s, M3_BY_SIN, M3_STEP_F64, "sine", "sin angle, in double", a, -1);
    *cosine = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "cos", "cosine, rounded to float", c, -1);
    *sine = m3_step(s, M3_BY_ROUND, M3_STEP_F32, "sin", "sine, rounded to float", n, -1);
}

/* Both channels of the pair, of which the asked one comes last. */
static int turn(struct m3_explaining *e, int64_t first, const struct turned *turned, int is_upper)
{
    struct m3_steps *s = e->steps;
    int c, n;
    const int a = m3_given_operand(e, "x[i]", 0, first + turned->i, 1);
    const int b = m3_given_operand(e, "x[i + R/2]", 0, first + turned->i + turned->half, 1);
    angle(e, &c, &n, turned);
    int result = -1;
    for (int round = 0; round < 2; round++) {
        const int upper = round == 0 ? !is_upper : is_upper;
        if (upper) {
            const int p = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "x[i + R/2] cos", "", b, c);
            const int q = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "x[i] sin", "", a, n);
            result = m3_step(s, M3_BY_ADD, M3_STEP_F32, "y[i + R/2]", "x[i + R/2] cos + x[i] sin", p, q);
        } else {
            const int p = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "x[i] cos", "", a, c);
            const int q = m3_step(s, M3_BY_MULTIPLY, M3_STEP_F32, "x[i + R/2] sin", "", b, n);
            result = m3_step(s, M3_BY_SUBTRACT, M3_STEP_F32, "y[i]", "x[i] cos - x[i + R/2] sin", p, q);
        }
    }
    return result;
}

/* A channel that is not rotated. */
static int copied(struct m3_explaining *e, int64_t channel, int64_t R)
{
    m3_explain_note(
        e, "Only the first %" PRId64 " channels of a head are rotated; this is channel %" PRId64 ", which is copied.",
        R, channel);
    return m3_given_operand(e, "x", 0, e->channel, 1);
}

int m3_explain_rope(struct m3_explaining *e)
{
    const int64_t R = e->config->R, D = m3_explain_last(e), channel = e->channel % D, half = R / 2;
    m3_explain_equation(e, "rope");
    if (channel >= R) return copied(e, channel, R);
    m3_explain_equation(e, "rope_table");
    const int64_t i = channel % half;
    m3_explain_note(e, "Channels %" PRId64 " and %" PRId64 " of head %" PRId64 " are a pair.", i, i + half,
                    e->channel / D);
    const struct turned turned = { .half = half,
                                   .i = i,
                                   .place = e->how->the_case->positions[e->row],
                                   .what = "position",
                                   .k = i,
                                   .channels = R,
                                   .theta = e->config->rope_theta };
    return turn(e, e->channel - channel, &turned, channel >= half);
}

int m3_explain_rope_3d(struct m3_explaining *e)
{
    static const char *const axes[] = { "time", "row", "column" };
    const int64_t U = m3_explain_last(e), R = U / 6 * 6, channel = e->channel % U, half = R / 2, each = R / 6;
    m3_explain_equation(e, "rope");
    if (channel >= R) return copied(e, channel, R);
    m3_explain_equation(e, "rope_table_3d");
    const int64_t i = channel % half, axis = i / each;
    struct m3_patch patch;
    if (m3_explain_patch(e, &patch, e->row)) return -1;
    m3_explain_note(e,
                    "Channels %" PRId64 " and %" PRId64 " of head %" PRId64 " are a pair. Angles %" PRId64
                    " to %" PRId64 " of a head belong to the %s.",
                    i, i + half, e->channel / U, axis * each, axis * each + each - 1, axes[axis]);
    m3_explain_note(e, "The patch is at time %" PRId64 ", row %" PRId64 ", column %" PRId64 " of %s %" PRId64 ".",
                    patch.place[0], patch.place[1], patch.place[2], patch.kind, patch.picture);
    const struct turned turned = { .half = half,
                                   .i = i,
                                   .place = patch.place[axis],
                                   .what = axes[axis],
                                   .k = i % each,
                                   .channels = R / 3,
                                   .theta = e->config->vision.rope_theta };
    return turn(e, e->channel - channel, &turned, channel >= half);
}
