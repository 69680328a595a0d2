/* Outputs for which a pass shows no tap: the table of angles, the noise, a rotation by a table that is given, and
 * gradients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/room.h"
#include "oracle/error/propagate.h"
#include "oracle/judge/align.h"
#include "oracle/operators/derivative.h"
#include "oracle/operators/evaluate.h"
#include "oracle/operators/private.h"

struct judging {
    const struct m3_setting *setting;
    const struct m3_fragment *f;
    struct m3_recomputed *out;
    struct m3_arithmetic how;
    struct m3_error *error;
};

static const struct m3_tensor *operand_of(const struct m3_fragment *f, enum m3_role role, enum m3_tap tap)
{
    for (int i = 0; i < M3_OPERATOR_OPERANDS; i++)
        if (f->op->operands[i].role == role && (role != M3_ROLE_TAP || f->op->operands[i].tap == tap))
            return f->operands[i].rank > 0 ? &f->operands[i] : NULL;
    return NULL;
}

int m3_is_without_tap(const struct m3_fragment *f, const struct m3_operand_row *output)
{
    return output->role != M3_ROLE_TAP || (output->tap == M3_TAP_Q_ROPE && operand_of(f, M3_ROLE_COS, M3_TAPS));
}

static double *reals(const struct m3_tensor *t, struct m3_error *error)
{
    double *x = malloc(((size_t)t->count + 1) * sizeof *x);
    if (!x) m3_fail_memory(error, t->name, (size_t)t->count * sizeof *x);
    for (int64_t i = 0; x && i < t->count; i++) x[i] = m3_decode(t->dtype, t->data, i);
    return x;
}

/* The unit roundoff of storing at a point of the layer; 0: not coarser. */
static double stored(const struct judging *j, const char *point)
{
    return j->setting->profile ? m3_profile_store(j->setting->profile, point) : 0;
}

static void add_store(const struct judging *j, const char *point)
{
    const struct m3_recomputed *out = j->out;
    const double u = stored(j, point);
    struct m3_spread extra = out->y.off;
    if (u > 0)
        m3_propagate_store(&extra, out->y.values, out->y.rows * out->y.width, u,
                           m3_store_floor(m3_profile_dtype(j->setting->profile, point)));
}

/* ---- angles */

/* The bound of an element: the angle's error, and that of the function. The true table replaces the engine's. */
static int judge_angles(const struct judging *j, const struct m3_operand_row *output)
{
    const struct m3_fragment *f = j->f;
    const int is_sin = output->role == M3_ROLE_SIN;
    struct m3_recomputed *out = j->out;
    const struct m3_tensor *places = operand_of(f, M3_ROLE_PLACES, M3_TAPS);
    const int64_t R = 2 * out->y.width, n = out->y.rows * out->y.width;
    const double theta = places ? f->model.config.vision.rope_theta : f->model.config.rope_theta;
    double *other = malloc(((size_t)n + 1) * sizeof *other), *angle = malloc(((size_t)n + 1) * sizeof *angle);
    int64_t *at = places ? malloc((size_t)places->count * sizeof *at + 1) : NULL;
    int status = M3_OK;
    if (!other || !angle || (places && !at)) status = m3_fail_memory(j->error, "angles", (size_t)n * sizeof *other);
    for (int64_t i = 0; !status && places && i < places->count; i++) at[i] = m3_id_at(places, i);
    double *cos = is_sin ? other : out->y.values, *sin = is_sin ? out->y.values : other;
    if (!status && places)
        status = m3_bound_angles_3d(j->setting->ctx, cos, sin, angle, at, out->y.rows, R, theta, &j->how);
    else if (!status)
        status =
            m3_bound_angles(j->setting->ctx, cos, sin, angle, f->the_case.positions, out->y.rows, R, theta, &j->how);
    out->f = j->how.c_turn;
    for (int64_t i = 0; !status && i < n; i++) {
        out->bound[i] = fabs(out->y.values[i]) + angle[i] / (j->how.u * (double)out->f);
        out->walk[i] = sqrt((double)out->f) * out->bound[i];
    }
    free(other);
    free(angle);
    free(at);
    if (!status) add_store(j, "layers.0.rope.cos");
    return status;
}

/* ---- a rotation by a table that is given exactly */

static int judge_rotation(const struct judging *j, const struct m3_operand_row *output)
{
    (void)output;
    const struct m3_fragment *f = j->f;
    const struct m3_config *c = &f->model.config;
    struct m3_recomputed *out = j->out;
    struct m3_bound bound = { .bound = out->bound, .walk = out->walk };
    struct m3_arithmetic how = j->how;
    double *x = reals(operand_of(f, M3_ROLE_TAP, M3_TAP_Q_NORM), j->error);
    double *cos = reals(operand_of(f, M3_ROLE_COS, M3_TAPS), j->error);
    double *sin = reals(operand_of(f, M3_ROLE_SIN, M3_TAPS), j->error);
    const int64_t heads = out->y.width / c->D;
    int status = x && cos && sin ? M3_OK : M3_INTERNAL;
    how.c_turn = 0;
    if (!status) {
        struct m3_spread extra = out->y.off;
        m3_bound_rope(j->setting->ctx, &bound, x, cos, sin, NULL, out->y.rows, heads, c->D, c->R, &how);
        out->f = bound.f;
        status = m3_propagate_rope(j->setting->ctx, &extra, x, NULL, cos, sin, out->y.rows, heads, c->D, c->R, 0,
                                   stored(j, "layers.0.rope.product"));
    }
    free(x);
    free(cos);
    free(sin);
    if (!status) add_store(j, "layers.0.q_rope");
    return status;
}

/* ---- values by the double engine */

/* Of the rows of `out`. */
static int take_values(const struct judging *j, const struct m3_operand_row *output)
{
    const struct m3_evaluation_how how = { .engine = m3_engine_f64(),
                                           .threads = j->setting->ctx->threads,
                                           .linear = M3_LINEAR_ORDERED,
                                           .rows = j->out->y.numbers,
                                           .count = j->out->y.rows };
    struct m3_evaluation values;
    int status = m3_evaluate(&values, j->f, &how, j->error);
    for (int i = 0; !status && i < M3_OPERATOR_OUTPUTS; i++) {
        if (&j->f->op->outputs[i] != output) continue;
        memcpy(j->out->y.values, values.outputs[i].data, (size_t)values.outputs[i].bytes);
    }
    m3_evaluation_free(&values);
    return status;
}

/* The product and the factor are rounded once each. */
static int judge_noise(const struct judging *j, const struct m3_operand_row *output)
{
    struct m3_recomputed *out = j->out;
    (void)output;
    out->f = 2;
#pragma omp parallel for num_threads(m3_team(j->setting->ctx, out->y.rows * out->y.width))
    for (int64_t i = 0; i < out->y.rows * out->y.width; i++) {
        out->bound[i] = fabs(out->y.values[i]);
        out->walk[i] = sqrt(2.0) * out->bound[i];
    }
    add_store(j, "layers.0.mlp_norm");
    return M3_OK;
}

/* The whole allowance is the bound: worst case and usual error are not told apart. It counts twice where the true
 * gradient is no more exact than the candidate's. */
static int judge_gradient(const struct judging *j, const struct m3_operand_row *output)
{
    struct m3_recomputed *out = j->out;
    const double u = j->how.u, more = (1 + 0x1p-53 / u) / u, least = 64 * m3_bound_eta(u) / u;
    const int status = m3_bound_derivative(out->bound, j->f, output, j->setting, &j->how, j->error);
    out->f = 1;
    for (int64_t i = 0; !status && i < out->y.rows * out->y.width; i++) {
        if (out->bound[i] > 0) out->bound[i] = out->bound[i] * more + least;
        out->walk[i] = out->bound[i];
    }
    if (!status) add_store(j, m3_derivative_stored_as(j->f->op, output));
    return status;
}

/* The rows that are recomputed: all, except of noise, where rows may be listed. */
static int choose_rows(struct m3_recomputed *out, const struct m3_operand_row *output, const int64_t *rows,
                       int64_t count, struct m3_error *error)
{
    if (!rows || output->role != M3_ROLE_NOISY) return M3_OK;
    int64_t *numbers = malloc((size_t)count * sizeof *numbers + 1);
    if (!numbers) return m3_fail_memory(error, output->name, (size_t)count * sizeof *numbers);
    memcpy(numbers, rows, (size_t)count * sizeof *numbers);
    out->y.numbers = numbers;
    out->y.rows = count;
    return M3_OK;
}

typedef int judge(const struct judging *, const struct m3_operand_row *output);

/* The errors of an operator that no model has at a tap, whose values by the double engine are there. */
static judge *judge_of(const struct m3_operator_row *op)
{
    static const struct {
        const char *op;
        judge *judge;
    } all[] = { { "rope_table", judge_angles },
                { "rope_table_3d", judge_angles },
                { "rope", judge_rotation },
                { "jitter", judge_noise } };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp(all[i].op, op->name) == 0) return all[i].judge;
    return op->derivative ? judge_gradient : NULL;
}

int m3_recompute_without_tap(struct m3_recomputed *out, const struct m3_setting *setting, const struct m3_fragment *f,
                             const struct m3_operand_row *output, const int64_t *rows, int64_t count,
                             struct m3_error *error)
{
    int64_t shape[M3_MAX_RANK], width = 1;
    const int rank = m3_fragment_shape(shape, f, output);
    for (int i = 1; i < rank; i++) width *= shape[i];
    *out = (struct m3_recomputed){ .y.rows = shape[0], .y.width = width };
    int status = choose_rows(out, output, rows, count, error);
    if (status) return status;
    const size_t room = (size_t)(out->y.rows * width) + 1;
    out->y.values = m3_room(room, sizeof *out->y.values);
    out->bound = m3_room(room, sizeof *out->bound);
    out->walk = m3_room(room, sizeof *out->walk);
    out->y.off = (struct m3_spread){ m3_room(room, sizeof(double)), m3_room(room, sizeof(double)) };
    if (!out->y.values || !out->bound || !out->walk || !out->y.off.error || !out->y.off.variance)
        return m3_fail_memory(error, output->name, room * sizeof *out->y.values);
    const struct judging j = { setting, f, out, m3_setting_arithmetic(setting, out->y.rows * width), error };
    judge *judge = judge_of(f->op);
    if (!judge) return m3_fail(error, M3_INTERNAL, "%s: got no bound of its error, expected one", f->op->name);
    status = take_values(&j, output);
    return status ? status : judge(&j, output);
}
