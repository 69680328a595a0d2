#include "oracle/judge/hints.h"

#include <math.h>

#include "model/taps.h"

int m3_is_logits(int tap) { return tap == M3_TAP_LOGITS || tap == M3_TAP_MTP_LOGITS; }

const char *m3_shape_hint(int rank, const int64_t *shape, const struct m3_tensor *got, const char *why)
{
    if (rank == 3 && got->rank == 3 && shape[0] != shape[1] && got->shape[0] == shape[1] && got->shape[1] == shape[0] &&
        got->shape[2] == shape[2])
        return "shapes differ, tokens and heads exchanged? Store [T,heads,..]";
    return why;
}

/* Is the row of the candidate the reference's, less one number, and normalised as log-probabilities are? */
static int is_log_softmax(const double *got, const double *want, int64_t V)
{
    double mean = 0, squares = 0, mass = 0;
    for (int64_t v = 0; v < V; v++) {
        const double d = got[v] - want[v];
        mean += d / (double)V;
        squares += d * d / (double)V;
        mass += exp(got[v]);
    }
    /* Rounding moves the differences by far less than the number that all have in common. */
    return fabs(mass - 1) <= 0.1 && fabs(mean) > 0 && squares - mean * mean <= 0.0025 * mean * mean;
}

const char *m3_value_hint(const double *got, const double *want, int64_t rows, int64_t V)
{
    for (int64_t r = 0; r < rows && r < M3_HINT_ROWS; r++)
        if (!is_log_softmax(got + r * V, want + r * V, V)) return NULL;
    return rows > 0 ? "looks like log-softmax of the logits: dump what goes into it" : NULL;
}
