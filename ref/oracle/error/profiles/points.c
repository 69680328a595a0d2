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
static int is_read(enum m3_tap tap)
{
    for (int t = 0; t < M3_TAPS; t++) {
        const struct m3_graph_row *row = &m3_graph[t];
        for (int i = 0; i < m3_error_operators[row->op]->reads; i++)
            if (row->operands[i].tap == tap) return 1;
    }
    return 0;
}

/* Is the tap one of those that the field is about? Norms: those that may read the sum of an addition. */
static int is_meant(enum m3_profile_points which, enum m3_tap tap)
{
    const struct m3_graph_row *row = &m3_graph[tap];
    const int is_norm = row->op == M3_OP_RMS_NORM || row->op == M3_OP_LAYER_NORM;
    const int of_sum = m3_graph[row->operands[0].tap].op == M3_OP_ADD || tap == M3_TAP_MTP_HIDDEN_NORM;
    if (which == M3_POINTS_NORMS) return is_norm && of_sum;
    if (which == M3_POINTS_RMS_NORMS) return row->op == M3_OP_RMS_NORM;
    return which != M3_POINTS_KEYS || is_read(tap);
}

/* Does the pattern match that tap, or an intermediate of its operator? `mlp` is a linear operator in dense layers. */
static int matches_tap(const char *pattern, enum m3_profile_points which, enum m3_tap tap, int64_t layer)
{
    const struct m3_error_operator *op = m3_error_operators[m3_graph[tap].op];
    const int has_bias = which == M3_POINTS_WEIGHTS && tap == M3_TAP_EXPERTS, linear = which >= M3_POINTS_LINEAR;
    const int is_linear = op == &m3_error_linear || op->linears > 0 || tap == M3_TAP_MLP;
    const int count = linear ? op->linears : which == M3_POINTS_ALL && may_mean_intermediate(pattern) ? M3_POINTS : 0;
    char name[160];
    if (!is_meant(which, tap) || m3_tap_name(name, sizeof name, tap, layer)) return 0;
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
int m3_profile_means_something(const char *pattern, enum m3_profile_points which)
{
    enum { LAYERS = 1024 };
    const int64_t layers = strpbrk(pattern, "0123456789?[") ? LAYERS : 1;
    for (int64_t layer = 0; layer < layers; layer++)
        for (enum m3_tap tap = 0; tap < M3_TAPS; tap++)
            if (matches_tap(pattern, which, tap, layer) || matches_tap(pattern, which, tap, M3_MTP_LAYER + layer))
                return 1;
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
