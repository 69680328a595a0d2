#include "oracle/judge/gradients.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/error/operators.h"
#include "oracle/judge/judge.h"
#include "oracle/judge/private/match.h"

static const double in_double = 1e-11, in_float = 1e-5, in_tower = 3e-5;
static const char prefix[] = "d.", parameter[] = "d.param.";

int m3_is_gradient(const char *name) { return strncmp(name, prefix, sizeof prefix - 1) == 0; }

int m3_holds_gradients(const struct m3_safetensors *file)
{
    for (int64_t i = 0; i < m3_safetensors_count(file); i++)
        if (m3_is_gradient(m3_safetensors_at(file, i)->name)) return 1;
    return 0;
}

static int is_parameter(const char *name) { return strncmp(name, parameter, sizeof parameter - 1) == 0; }

int m3_gradient_tap(const char *name, enum m3_tap *tap, int64_t *layer)
{
    if (!is_parameter(name) && m3_tap_parse(name + sizeof prefix - 1, tap, layer) == 0) return 0;
    *tap = M3_TAP_PROJECTOR_OUT;
    *layer = -1;
    return -1;
}

/* In the tower or the projector, where biases are sums of many rows that cancel? */
static int is_of_tower(const char *name)
{
    static const char *const names[] = { "d.vision.", "d.projector.", "d.param.vision_tower.",
                                         "d.param.multi_modal_projector.", "d.param.patch_merge_mlp." };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0) return 1;
    return 0;
}

static double allowed(const struct m3_tensor *want, const struct m3_tensor *got)
{
    if (want->dtype == M3_F64 && got->dtype == M3_F64) return in_double;
    return is_of_tower(want->name) ? in_tower : in_float;
}

/* Taps from the last to the first, then parameters as in the file. */
static int backwards(const void *a, const void *b)
{
    const struct m3_matched *x = a, *y = b;
    const int is_x = is_parameter(x->want->name), is_y = is_parameter(y->want->name);
    if (is_x != is_y) return is_x - is_y;
    if (is_x) return x->want < y->want ? -1 : x->want > y->want;
    return -m3_tap_order((enum m3_tap)x->tap, x->layer, (enum m3_tap)y->tap, y->layer);
}

static int64_t list(struct m3_matched *found, struct m3_judgement *result, const struct m3_side *reference,
                    const struct m3_side *candidate, const char *patterns)
{
    const char *missing = NULL, *extra = NULL;
    int64_t count = 0;
    for (int64_t i = 0; i < m3_safetensors_count(reference->file); i++) {
        const struct m3_tensor *want = m3_safetensors_at(reference->file, i);
        enum m3_tap tap;
        if (!m3_is_gradient(want->name) || !m3_tap_matches(patterns, want->name)) continue;
        struct m3_matched *m = &found[count];
        *m = (struct m3_matched){ .reference = reference, .candidate = candidate, .want = want };
        m3_gradient_tap(want->name, &tap, &m->layer);
        m->tap = (int)tap;
        m->got = m3_safetensors_find(candidate->file, want->name);
        if (m->got != NULL) count++;
        else if (result->missing++ == 0) missing = want->name;
    }
    for (int64_t i = 0; i < m3_safetensors_count(candidate->file); i++) {
        const char *name = m3_safetensors_at(candidate->file, i)->name;
        if (!m3_is_gradient(name) || !m3_tap_matches(patterns, name)) continue;
        if (m3_safetensors_find(reference->file, name) == NULL && result->extra++ == 0) extra = name;
    }
    if (missing != NULL)
        m3_fail(&result->notes, M3_OK, "gradients missing in the candidate: %" PRId64 ", first %s", result->missing,
                missing);
    if (extra != NULL)
        m3_fail(&result->notes, M3_OK, "gradients that only the candidate holds, not judged: %" PRId64 ", first %s",
                result->extra, extra);
    qsort(found, (size_t)count, sizeof *found, backwards);
    return count;
}

static int judge(struct m3_finding *finding, const struct m3_matched *matched, struct m3_error *error)
{
    const struct m3_float_rules rules = { .stored = M3_F64, .any_grid = 1 };
    *finding =
        m3_finding_of(matched->want->name, (enum m3_tap)matched->tap, matched->layer, matched->want, matched->got);
    finding->selection = 0;     /* of a tap whose gradient it is */
    finding->judged_by = M3_BY_GRADIENT;
    finding->letters = is_parameter(finding->tap) ? "" : m3_tap_table[matched->tap].shape;
    finding->off.allowed_l2 = allowed(matched->want, matched->got);
    finding->off.allowed_max = INFINITY;
    return m3_judge_values(finding, matched, &rules, error);
}

/* Readings of losses that differ from the defaults. */
static const char *readings_of(const struct m3_side *side)
{
    const char *readings = m3_safetensors_metadata(side->file, "readings");
    return readings ? readings : "{}";
}

/* Gradients of another sum of losses, or of other labels, are other numbers. */
static int check_losses(const struct m3_side *reference, const struct m3_side *candidate, struct m3_error *error)
{
    static const char *const keys[] = { "loss_weights", "labels_sha256" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *want = m3_safetensors_metadata(reference->file, keys[i]);
        const char *got = m3_safetensors_metadata(candidate->file, keys[i]);
        if (want != NULL && got != NULL && strcmp(want, got) != 0)
            return m3_fail(error, M3_NOT_COMPARABLE, "%s: %s: got %s, expected %s, as in %s",
                           m3_safetensors_path(candidate->file), keys[i], got, want,
                           m3_safetensors_path(reference->file));
    }
    const char *want = readings_of(reference), *got = readings_of(candidate);
    if (strcmp(want, got) == 0) return M3_OK;
    return m3_fail(error, M3_NOT_COMPARABLE, "%s: readings: got %s, expected %s, as in %s",
                   m3_safetensors_path(candidate->file), got, want, m3_safetensors_path(reference->file));
}

/* Does a node of tap t read the tap in a layer of this kind, of a module or not? Then its operator. */
static const struct m3_node *reader_of(const struct m3_graph *graph, enum m3_tap t, enum m3_tap tap, int in_module)
{
    for (int64_t n = 0; n < graph->count; n++)
        for (int i = 0; graph->nodes[n].tap == t && i < graph->nodes[n].input_count; i++) {
            const struct m3_node *input = graph->nodes[n].inputs[i];
            if (input->tap == tap && (m3_mtp_module_of(input->layer) >= 0) == in_module) return &graph->nodes[n];
        }
    return NULL;
}

/* The taps whose operators read this one: its gradient is the sum of what their derivatives give. */
static int name_readers(struct m3_judgement *result, struct m3_error *error)
{
    char names[200] = "";
    enum m3_tap tap;
    int64_t layer;
    struct m3_graph graph;
    if (result->first == NULL || m3_gradient_tap(result->first->tap, &tap, &layer) != 0) return M3_OK;
    const int status = m3_graph_record_every_tap(&graph, error);
    for (int t = 0; t < M3_TAPS && !status; t++) {
        const struct m3_node *reader = reader_of(&graph, (enum m3_tap)t, tap, m3_mtp_module_of(layer) >= 0);
        const size_t length = strlen(names);
        if (!reader) continue;
        snprintf(names + length, sizeof names - length, "%s%s (%s)", length > 0 ? ", " : "", m3_tap_table[t].name,
                 m3_operator_name(reader->op));
    }
    if (names[0] != '\0')
        m3_fail(&result->notes, M3_OK, "%s is what comes back from the operators that read this tap: %s",
                result->first->tap, names);
    m3_graph_free(&graph);
    return status;
}

int m3_compare_gradients(struct m3_judgement *result, const struct m3_side *reference, const struct m3_side *candidate,
                         const struct m3_compare_options *options, struct m3_error *error)
{
    const size_t room = (size_t)m3_safetensors_count(reference->file) + 1;
    const char *holds = m3_safetensors_metadata(reference->file, "holds");
    struct m3_matched *found = calloc(room, sizeof *found);
    result->findings = calloc(room, sizeof *result->findings);
    int status =
        found != NULL && result->findings != NULL ? M3_OK : m3_fail_memory(error, "gradients", room * sizeof *found);
    if (status == M3_OK && !options->force) status = check_losses(reference, candidate, error);
    const int64_t both = status == M3_OK ? list(found, result, reference, candidate, options->taps) : 0;
    for (int64_t i = 0; status == M3_OK && i < both; i++) {
        m3_tell(&options->progress, "gradient", i, both);
        status = judge(&result->findings[result->count++], &found[i], error);
    }
    free(found);
    if (status != M3_OK) return status;
    if (both == 0)
        return m3_fail(error, M3_NOT_COMPARABLE, "%s: nothing matched: got no gradient that %s also holds",
                       m3_safetensors_path(candidate->file), m3_safetensors_path(reference->file));
    m3_judgement_settle(result, holds != NULL && strcmp(holds, "part") == 0 ? 0 : result->extra);
    return name_readers(result, error);
}
