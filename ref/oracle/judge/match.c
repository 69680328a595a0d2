#include "oracle/judge/private/match.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/judge/companions/companions.h"
#include "oracle/judge/logits.h"

enum { NAMES_IN_A_NOTE = 8 };

static void note_unknown(struct m3_judgement *result, const struct m3_side *dump, const char *side)
{
    int64_t unknown = 0;
    const char *first = NULL;
    for (int64_t i = 0; i < m3_safetensors_count(dump->file); i++) {
        const char *name = m3_safetensors_at(dump->file, i)->name;
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(name, &tap, &layer) == 0 || m3_is_companion(name)) continue;
        if (unknown++ == 0) first = name;
    }
    if (unknown > 0)
        m3_fail(&result->notes, M3_OK, "tensors of the %s that are no taps, not compared: %" PRId64 ", first %s", side,
                unknown, first);
}

static int by_execution(const void *a, const void *b)
{
    const struct m3_matched *x = a, *y = b;
    return m3_tap_order(x->tap, x->layer, y->tap, y->layer);
}

/* The taps of `file` that match the patterns, in execution order. `taps` has room for all. */
static int64_t list_taps(struct m3_matched *taps, const struct m3_safetensors *file, const char *patterns)
{
    int64_t count = 0;
    for (int64_t i = 0; i < m3_safetensors_count(file); i++) {
        const struct m3_tensor *tensor = m3_safetensors_at(file, i);
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(tensor->name, &tap, &layer) != 0 || !m3_tap_matches(patterns, tensor->name)) continue;
        taps[count++] = (struct m3_matched){ .want = tensor, .tap = tap, .layer = layer };
    }
    qsort(taps, (size_t)count, sizeof *taps, by_execution);
    return count;
}

/* Notes the names of the taps that are not in the candidate, the first few by name. */
static void note_missing(struct m3_judgement *result, const struct m3_matched *taps, int64_t count)
{
    char names[600] = "";
    size_t length = 0;
    int64_t named = 0;
    for (int64_t i = 0; i < count && named < NAMES_IN_A_NOTE; i++) {
        if (taps[i].got != NULL) continue;
        int more = snprintf(names + length, sizeof names - length, " %s", taps[i].want->name);
        if (more < 0 || (size_t)more >= sizeof names - length) break;
        length += (size_t)more;
        named++;
    }
    m3_fail(&result->notes, M3_OK, "taps missing in the candidate: %" PRId64 ":%s%s", result->missing, names,
            named < result->missing ? " ..." : "");
}

/* Finds the candidate's taps, and counts and names those that it lacks. */
static int find_taps(struct m3_judgement *result, struct m3_matched *taps, int64_t count,
                     const struct m3_side *reference, const struct m3_side *candidate, struct m3_error *error)
{
    result->missing_taps = calloc((size_t)count + 1, sizeof *result->missing_taps);
    if (result->missing_taps == NULL)
        return m3_fail_memory(error, "list of taps", (size_t)count * sizeof *result->missing_taps);
    for (int64_t i = 0; i < count; i++) {
        taps[i].reference = reference;
        taps[i].candidate = candidate;
        taps[i].got = m3_safetensors_find(candidate->file, taps[i].want->name);
        if (taps[i].got == NULL) m3_judgement_miss(result, taps[i].want->name);
    }
    if (result->missing > 0) note_missing(result, taps, count);
    return M3_OK;
}

/* Moves the taps that both files hold to the front of `taps`, in execution order, and returns their number. Counts those
 * that only the candidate holds. */
static int64_t keep_both(struct m3_judgement *result, struct m3_matched *taps, int64_t count,
                         const struct m3_side *reference, const struct m3_side *candidate, const char *patterns)
{
    const char *first = NULL;
    int64_t both = 0;
    for (int64_t i = 0; i < count; i++)
        if (taps[i].got != NULL) taps[both++] = taps[i];

    for (int64_t i = 0; i < m3_safetensors_count(candidate->file); i++) {
        const char *name = m3_safetensors_at(candidate->file, i)->name;
        enum m3_tap tap;
        int64_t layer;
        if (m3_tap_parse(name, &tap, &layer) == 0 && m3_tap_matches(patterns, name) &&
            m3_safetensors_find(reference->file, name) == NULL && result->extra++ == 0)
            first = name;
    }
    if (result->extra > 0)
        m3_fail(&result->notes, M3_OK, "taps that only the candidate holds, not judged: %" PRId64 ": %s%s",
                result->extra, first, result->extra > 1 ? " ..." : "");
    return both;
}

/* Takes logits of another shape as the tap has them. The rows of the case are known if the reference holds all. */
static int read_logits(struct m3_judgement *result, struct m3_matched *taps, int64_t count, struct m3_error *error)
{
    int status = M3_OK;
    for (int64_t i = 0; i < count && !status; i++) {
        struct m3_matched *m = &taps[i];
        const struct m3_logits *before = result->logits;
        if (m->want->rank != 2) continue;
        const int64_t rows = m3_side_rows(m->reference, m->tap) == NULL ? m->want->shape[0] : -1;
        const struct m3_logits_shape shape = { .tap = m->tap, .rows = rows, .V = m->want->shape[1] };
        status = m3_logits_read(&result->logits, &m->refused, m->got, m->candidate, &shape, &result->notes, error);
        if (status || result->logits == before) continue;
        m->logits = result->logits;
        m->got = &m->logits->tensor;
        m->candidate = &m->logits->side;
    }
    return status;
}

int m3_match_taps(struct m3_matched **taps, int64_t *count, struct m3_judgement *result,
                  const struct m3_side *reference, const struct m3_side *candidate, const char *patterns,
                  struct m3_error *error)
{
    const size_t room = (size_t)m3_safetensors_count(reference->file) + 1;
    note_unknown(result, reference, "reference");
    note_unknown(result, candidate, "candidate");
    *taps = calloc(room, sizeof **taps);
    if (*taps == NULL) return m3_fail_memory(error, "list of taps", room * sizeof **taps);
    *count = list_taps(*taps, reference->file, patterns);
    const int status = find_taps(result, *taps, *count, reference, candidate, error);
    *count = keep_both(result, *taps, *count, reference, candidate, patterns);
    return status ? status : read_logits(result, *taps, *count, error);
}
