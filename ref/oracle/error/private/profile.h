/* What the files that read a profile and answer for it share. */
#ifndef M3_ORACLE_ERROR_PRIVATE_PROFILE_H
#define M3_ORACLE_ERROR_PRIVATE_PROFILE_H

#include <stddef.h>

#include "model/graph/graph.h"
#include "oracle/error/profile.h"

/* What an entry of a field with patterns says about the points that its pattern matches. */
struct m3_profile_entry {
    char *pattern;
    enum m3_dtype dtype;            /* of the containers: M3_F32 for tf32; M3_DTYPES: deliberately none */
    struct m3_input_rounding input;
    struct m3_read_rounding read;   /* of the format */
    struct m3_partials partials;
};

struct m3_profile_entries {
    struct m3_profile_entry *rows;
    size_t count;
};

struct m3_profile {
    char *name, sha256[65];
    enum m3_dtype dtype;            /* of the arithmetic */
    enum m3_dtype alpha;            /* of the constant alpha; M3_F64: it is exact */
    struct m3_arithmetic how;
    int truncates, flushes, ties_lowest;
    struct m3_profile_entries store, input, weights, partials, exact, dump_rounding, fused_norm, read, norm_weight,
        weight_first;
};

/* The points that a pattern may match. */
enum m3_profile_points {
    M3_POINTS_ALL,
    M3_POINTS_TAPS,
    M3_POINTS_NORMS,
    M3_POINTS_RMS_NORMS,
    M3_POINTS_KEYS,
    M3_POINTS_LINEAR,
    M3_POINTS_WEIGHTS
};

int m3_profile_matches(const char *pattern, const char *point);
/* Does the pattern match a point of that kind in any model? */
int m3_profile_means_something(const char *pattern, enum m3_profile_points which, const struct m3_graph *every_tap);
/* The last entry that matches the point; NULL: none. A pattern that ends in '*' matches only taps. */
const struct m3_profile_entry *m3_profile_last_match(const struct m3_profile_entries *entries, const char *point);
double m3_profile_roundoff(enum m3_dtype dtype);

#endif
