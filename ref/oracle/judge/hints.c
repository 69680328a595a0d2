/* What a wrong shape or a wrong tap looks like. Hints change no verdict. */
#include <math.h>

#include "oracle/judge/private/floats.h"

static int is_logits(int tap) { return tap == M3_TAP_LOGITS || tap == M3_TAP_MTP_LOGITS; }

const char *m3_shape_hint(const struct m3_matched *m, const char *why)
{
    const struct m3_tensor *want = m->want, *got = m->got;
    if (is_logits(m->tap) && want->rank == 2 && got->rank == 1 && got->shape[0] == want->shape[1])
        return "shapes differ, the last row alone? Store it as [1,V], with its number in `rows`";
    if (is_logits(m->tap) && want->rank == 2 && got->rank == 2 && got->shape[1] > want->shape[1])
        return "shapes differ, a padded vocabulary? Store the first V columns";
    if (want->rank == 3 && got->rank == 3 && want->shape[0] != want->shape[1] && got->shape[0] == want->shape[1] &&
        got->shape[1] == want->shape[0] && got->shape[2] == want->shape[2])
        return "shapes differ, tokens and heads exchanged? Store [T,heads,..]";
    return why;
}

/* Is the row of the candidate the reference's, less one number, and normalised as log-probabilities are? */
static int is_log_softmax(const struct m3_matched *m, const struct m3_row_pair *row)
{
    const int64_t V = m->want->shape[1];
    double mean = 0, squares = 0, mass = 0;
    for (int64_t v = 0; v < V; v++) {
        const double got = m3_decode(m->got->dtype, m->got->data, row->got * V + v);
        const double d = got - m3_decode(m->want->dtype, m->want->data, row->want * V + v);
        mean += d / (double)V;
        squares += d * d / (double)V;
        mass += exp(got);
    }
    /* Rounding moves the differences by far less than the number that all have in common. */
    return fabs(mass - 1) <= 0.1 && fabs(mean) > 0 && squares - mean * mean <= 0.0025 * mean * mean;
}

const char *m3_value_hint(const struct m3_matched *m)
{
    enum { ROWS = 64 };
    struct m3_row_walk walk;
    struct m3_row_pair row;
    int rows = 0;
    if (!is_logits(m->tap) || m->want->rank != 2 || m3_row_walk_begin(&walk, m) != NULL) return NULL;
    for (; rows < ROWS && m3_row_walk_next(&walk, &row); rows++)
        if (!is_log_softmax(m, &row)) return NULL;
    return rows > 0 ? "looks like log-softmax of the logits: dump what goes into it" : NULL;
}
