#include "oracle/judge/rows/ranking.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/origin.h"

void m3_ranking_begin(struct m3_ranking *ranking, struct m3_judgement *result, const struct m3_envelope *envelope,
                      const struct m3_safetensors *reference)
{
    *ranking = (struct m3_ranking){ .envelope = envelope };
    if (envelope == NULL) return;
    const char *precision = m3_safetensors_metadata(reference, "precision");
    if (precision == NULL || strcmp(precision, "f64") != 0)
        m3_fail(&result->notes, M3_OK,
                "precision of the reference: got %s, expected f64: distances of an envelope are "
                "from the double engine, so ranks are rough",
                precision != NULL ? precision : "nothing");
    m3_origin_note_semantics(&result->notes, "semantics of the envelope", m3_envelope_metadata(envelope, "semantics"),
                             m3_safetensors_metadata(reference, "semantics"));
}

void m3_ranking_choose(struct m3_ranking *ranking, const struct m3_finding *stage)
{
    const struct m3_tensor *want = stage->reference;
    if (stage->verdict == M3_VERDICT_NOT_COMPARABLE || want->count == 0) return;
    int64_t decisions = want->count / want->shape[want->rank - 1];
    ranking->same_choices += stage->choices[M3_CHOICE_IDENTICAL] + stage->choices[M3_CHOICE_PERMUTED] == decisions;
}

static enum m3_unranked leave_out(struct m3_ranking *ranking, const struct m3_finding *stage, enum m3_unranked why)
{
    if (ranking->unranked[why]++ == 0) ranking->first[why] = stage->tap;
    return why;
}

/* Does the tap have all rows of the sequence? The envelope's distances are over all rows, but a reference with `rows`
 * may not hold them all. */
static int is_whole(const struct m3_matched *matched, int64_t elements)
{
    return matched->reference->rows == NULL && matched->reference->vision_rows == NULL &&
           elements == matched->want->count;
}

/* rel_l2 covers only finite elements. */
static double distance_of(const struct m3_finding *stage)
{
    return isfinite(stage->off.max_abs) ? stage->off.rel_l2 : INFINITY;
}

enum m3_unranked m3_ranking_rank(struct m3_ranking *ranking, struct m3_finding *stage, const struct m3_matched *matched,
                                 int64_t elements)
{
    struct m3_envelope_rank rank;
    if (ranking->envelope == NULL || stage->verdict == M3_VERDICT_NOT_COMPARABLE) return M3_UNRANKED_REASONS;
    if (m3_envelope_rank(&rank, ranking->envelope, stage->tap, distance_of(stage)) != 0)
        return leave_out(ranking, stage, M3_UNRANKED_ABSENT);
    if (ranking->same_choices !=
        m3_envelope_choices_before(ranking->envelope, (enum m3_tap)matched->tap, matched->layer))
        return leave_out(ranking, stage, M3_UNRANKED_CHOICES);
    if (!is_whole(matched, elements)) return leave_out(ranking, stage, M3_UNRANKED_ROWS);
    if (rank.blind) return leave_out(ranking, stage, M3_UNRANKED_BLIND);
    stage->percentile = rank.percentile;
    stage->envelope_median = rank.median;
    stage->envelope_largest = rank.largest;
    stage->beyond_envelope = rank.suspect;
    return M3_UNRANKED_REASONS;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double share_of_largest(const struct m3_finding *stage)
{
    return distance_of(stage) == 0 ? 0 : distance_of(stage) / stage->envelope_largest;
}

static void print_notes(const struct m3_ranking *ranking, struct m3_judgement *result)
{
    static const char *const reasons[M3_UNRANKED_REASONS] = {
        [M3_UNRANKED_CHOICES] = "after choices that are not the reference's, or were not compared",
        [M3_UNRANKED_ROWS] = "not all rows were compared",
        [M3_UNRANKED_ABSENT] = "missing in the envelope",
        [M3_UNRANKED_BLIND] = "blind, legitimate implementations may be as far off as zeros",
    };
    for (int i = 0; i < M3_UNRANKED_REASONS; i++)
        if (ranking->unranked[i] > 0)
            m3_fail(&result->notes, M3_OK, "taps not ranked, %s: %" PRId64 ", first %s", reasons[i],
                    ranking->unranked[i], ranking->first[i]);
}

int m3_ranking_end(const struct m3_ranking *ranking, struct m3_judgement *result, struct m3_error *error)
{
    if (ranking->envelope == NULL) return M3_OK;
    double *percentiles = malloc(((size_t)result->count + 1) * sizeof *percentiles);
    if (percentiles == NULL) return m3_fail_memory(error, "percentiles", (size_t)result->count * sizeof *percentiles);
    int64_t n = 0;
    for (int64_t i = 0; i < result->count; i++) {
        const struct m3_finding *stage = &result->findings[i], **farthest = &result->envelope.farthest;
        if (isnan(stage->percentile)) continue;
        percentiles[n++] = stage->percentile;
        if (*farthest == NULL || share_of_largest(stage) > share_of_largest(*farthest)) *farthest = stage;
    }
    qsort(percentiles, (size_t)n, sizeof *percentiles, by_size);
    result->envelope.runs = m3_envelope_runs(ranking->envelope);
    result->envelope.profile = m3_envelope_metadata(ranking->envelope, "profile");
    result->envelope.ranked = n;
    result->envelope.blind = ranking->unranked[M3_UNRANKED_BLIND];
    result->envelope.percentile = n > 0 ? (percentiles[(n - 1) / 2] + percentiles[n / 2]) / 2 : NAN;
    free(percentiles);
    print_notes(ranking, result);
    return M3_OK;
}
