/* Where two profiles say different things. */
#include <string.h>

#include "oracle/error/private/operators.h"
#include "oracle/error/private/profile.h"

/* Rules of inputs say something about linear operators only. */
static int differ_at(const struct m3_profile *a, const struct m3_profile *b, const char *point, int is_linear)
{
    const struct m3_input_rounding none = { .dtype = M3_DTYPES };
    const struct m3_input_rounding x = is_linear ? m3_profile_input(a, point) : none;
    const struct m3_input_rounding y = is_linear ? m3_profile_input(b, point) : none;
    const struct m3_partials p = m3_profile_partials(a, point), q = m3_profile_partials(b, point);
    return m3_profile_store(a, point) != m3_profile_store(b, point) || x.dtype != y.dtype || x.codes != y.codes ||
           x.group != y.group || x.scaling != y.scaling || x.exponent_down != y.exponent_down || x.u != y.u ||
           m3_profile_weights(a, point) != m3_profile_weights(b, point) || p.ranks != q.ranks || p.reduce != q.reduce ||
           m3_profile_fused_norm(a, point) != m3_profile_fused_norm(b, point) ||
           m3_profile_weight_first(a, point) != m3_profile_weight_first(b, point) ||
           m3_profile_norm_weight(a, point) != m3_profile_norm_weight(b, point) ||
           m3_profile_read(a, point).u != m3_profile_read(b, point).u;
}

int m3_profiles_differ(const struct m3_profile *a, const struct m3_profile *b, const struct m3_graph *every_tap,
                       enum m3_tap tap, int64_t layer)
{
    const struct m3_node *node = m3_graph_last(every_tap, tap);
    const struct m3_error_operator *op = m3_error_operators[node->op];
    char name[160];
    const int is_linear = op == &m3_error_linear || op->linears > 0 || tap == M3_TAP_MLP;
    const int turns = op->functions == M3_FUNCTIONS_TURN;
    const int gates = op == &m3_error_activation || op->linears > 1;
    if (gates && a->alpha != b->alpha) return 1;
    if (turns && (a->how.angle != b->how.angle || a->how.frequency != b->how.frequency)) return 1;
    if (m3_tap_name(name, sizeof name, tap, layer) == 0 && differ_at(a, b, name, is_linear)) return 1;
    for (int i = 0; i < M3_POINTS && op->points[i]; i++) {
        m3_point_name(name, sizeof name, tap, layer, op->points[i]);
        if (differ_at(a, b, name, is_linear)) return 1;
    }
    for (int i = 0; i < op->reads; i++)
        if (m3_tap_name(name, sizeof name, node->inputs[i]->tap, layer) == 0 &&
            m3_profile_read(a, name).u != m3_profile_read(b, name).u)
            return 1;
    return 0;
}
