/* The taps and intermediate points that a pattern of a profile matches. */
#include <fnmatch.h>
#include <string.h>

#include "model/taps.h"
#include "oracle/error/private/operators.h"
#include "oracle/error/private/profile.h"

int m3_profile_matches(const char *pattern, const char *point) { return fnmatch(pattern, point, FNM_NOESCAPE) == 0; }

/* A pattern that ends in '*' matches only taps; intermediates of an operator must be named. */
static int may_mean_intermediate(const char *pattern)
{
    size_t length = strlen(pattern);
    return length > 0 && pattern[length - 1] != '*';
}

/* Do attention or block scores read the tap? */
static int is_read(const struct m3_graph *graph, enum m3_tap tap)
{
    for (int64_t n = 0; n < graph->count; n++)
        for (int i = 0; i < m3_error_operators[graph->nodes[n].op]->reads; i++) {
            const struct m3_node *input = graph->nodes[n].inputs[i];
            if (input && input->tap == tap) return 1;
        }
    return 0;
}

static int reads_sum(const struct m3_graph *graph, enum m3_tap tap)
{
    for (int64_t n = 0; n < graph->count; n++) {
        const struct m3_node *input = graph->nodes[n].inputs[0];
        if (graph->nodes[n].tap == tap && input && input->op == M3_OP_ADD) return 1;
    }
    return 0;
}

/* Is the tap one of those that the field is about? Norms: those that may read the sum of an addition. */
static int is_meant(const struct m3_graph *graph, enum m3_profile_points which, const struct m3_node *node)
{
    const int is_norm = node->op == M3_OP_RMS_NORM || node->op == M3_OP_LAYER_NORM;
    if (which == M3_POINTS_NORMS) return is_norm && reads_sum(graph, node->tap);
    if (which == M3_POINTS_RMS_NORMS) return node->op == M3_OP_RMS_NORM;
    return which != M3_POINTS_KEYS || is_read(graph, node->tap);
}

/* Does the pattern match that tap, or an intermediate of its operator? `mlp` is a linear operator in dense layers. */
static int matches_tap(const char *pattern, enum m3_profile_points which, const struct m3_graph *graph,
                       const struct m3_node *node, int64_t layer)
{
    const enum m3_tap tap = node->tap;
    const struct m3_error_operator *op = m3_error_operators[node->op];
    const int has_bias = which == M3_POINTS_WEIGHTS && tap == M3_TAP_EXPERTS, linear = which >= M3_POINTS_LINEAR;
    const int is_linear = op == &m3_error_linear || op->linears > 0 || tap == M3_TAP_MLP;
    const int count = linear ? op->linears : which == M3_POINTS_ALL && may_mean_intermediate(pattern) ? M3_POINTS : 0;
    char name[160];
    if (!is_meant(graph, which, node) || m3_tap_name(name, sizeof name, tap, layer)) return 0;
    if (has_bias || (m3_tap_table[tap].kind == M3_KIND_REALS && (is_linear || !linear)))
        if (m3_profile_matches(pattern, name)) return 1;
    for (int i = 0; i < count && op->points[i]; i++) {
        m3_point_name(name, sizeof name, tap, layer, op->points[i]);
        if (m3_profile_matches(pattern, name)) return 1;
    }
    return 0;
}

/* In a pattern without digits, '?' and '[' only a '*' can stand for the number of a layer, and then for any: one layer
 * says it of all. */
int m3_profile_means_something(const char *pattern, enum m3_profile_points which, const struct m3_graph *every_tap)
{
    enum { LAYERS = 1024 };
    const int64_t layers = strpbrk(pattern, "0123456789?[") ? LAYERS : 1;
    for (int tap = 0; tap < M3_TAPS; tap++) {
        const struct m3_node *node = m3_graph_last(every_tap, (enum m3_tap)tap);
        for (int64_t layer = 0; layer < layers; layer++)
            if (matches_tap(pattern, which, every_tap, node, layer) ||
                matches_tap(pattern, which, every_tap, node, M3_MTP_LAYER + layer))
                return 1;
    }
    return 0;
}

const struct m3_profile_entry *m3_profile_last_match(const struct m3_profile_entries *entries, const char *point)
{
    enum m3_tap tap;
    int64_t layer;
    int is_tap = m3_tap_parse(point, &tap, &layer) == 0;
    for (size_t i = entries->count; i-- > 0;) {
        const char *pattern = entries->rows[i].pattern;
        if ((is_tap || may_mean_intermediate(pattern)) && m3_profile_matches(pattern, point)) return &entries->rows[i];
    }
    return NULL;
}
