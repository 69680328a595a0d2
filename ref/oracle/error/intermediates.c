#include "oracle/error/intermediates.h"

#include <math.h>
#include <string.h>

#include "oracle/error/private/operators.h"

int m3_has_intermediates(const struct m3_setting *setting, enum m3_tap tap, int64_t layer)
{
    return m3_error_operators[m3_graph_node(setting->model, setting->semantics, tap, layer)->op]->linears > 0;
}

int m3_intermediates(double *error, double *walk, const struct m3_setting *setting, enum m3_tap tap, int64_t layer,
                     const double *x, const int32_t *ids, int64_t T, struct m3_error *message)
{
    const double u = M3_INTERMEDIATES_U;
    const struct m3_mlp_storage storage = { .gate = u, .up = u, .chain = u, .act = u };
    const struct m3_config *c = &setting->model->config;
    const struct m3_gate gate = m3_setting_gate(setting);
    const struct m3_weight *w[3];
    for (int i = 0; i < 3; i++) w[i] = m3_graph_weight(setting->model, setting->semantics, tap, layer, i);
    const int64_t n = T * m3_tap_width(setting, tap, layer);
    struct m3_spread out = { error, walk };         /* walk holds the variance at first */
    memset(error, 0, (size_t)n * sizeof *error);
    memset(walk, 0, (size_t)n * sizeof *walk);
    const int status =
        tap == M3_TAP_SHARED
            ? m3_propagate_gated_mlp(setting->ctx, &out, x, NULL, w[0], w[1], w[2], &gate, T, &storage)
            : m3_propagate_experts(setting->ctx, &out, x, NULL, ids, (const struct m3_expert *)(const void *)w[0],
                                   &gate, T, c->E, c->K, &storage);
    if (status)
        return m3_fail(message, status, "%s: intermediate rounding: %s", m3_tap_table[tap].name,
                       setting->ctx->failure.what);
    for (int64_t i = 0; i < n; i++) {
        error[i] /= u;
        walk[i] = sqrt(3 * walk[i]) / u;
    }
    return M3_OK;
}
