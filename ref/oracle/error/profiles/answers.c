#include <math.h>

#include "oracle/error/private/profile.h"
#include "oracle/error/tiers/tiers.h"

const char *m3_profile_name(const struct m3_profile *profile) { return profile->name; }
const char *m3_profile_sha256(const struct m3_profile *profile) { return profile->sha256; }
int m3_profile_truncates(const struct m3_profile *profile) { return profile->truncates; }
int m3_profile_flushes(const struct m3_profile *profile) { return profile->flushes; }
int m3_profile_ties_lowest(const struct m3_profile *profile) { return profile->ties_lowest; }

struct m3_arithmetic m3_profile_arithmetic(const struct m3_profile *profile, int64_t elements)
{
    struct m3_arithmetic how = profile->how;
    how.lambda = m3_lambda(elements);
    return how;
}

/* The entry that makes a stored value coarser than the arithmetic; NULL: none. */
static const struct m3_profile_entry *coarser(const struct m3_profile *profile, const char *point)
{
    const struct m3_profile_entry *entry = m3_profile_last_match(&profile->store, point);
    return entry && entry->read.u > profile->how.u ? entry : NULL;
}

double m3_profile_store(const struct m3_profile *profile, const char *point)
{
    const struct m3_profile_entry *entry = coarser(profile, point);
    return entry ? entry->read.u : 0;
}

double m3_profile_store_floor(const struct m3_profile *profile, const char *point)
{
    const struct m3_profile_entry *entry = coarser(profile, point);
    return entry ? entry->read.floor : 0;
}

enum m3_dtype m3_profile_dtype(const struct m3_profile *profile, const char *point)
{
    const struct m3_profile_entry *entry = coarser(profile, point);
    return entry ? entry->dtype : profile->dtype;
}

int m3_profile_exact(const struct m3_profile *profile, const char *tap)
{
    return m3_profile_last_match(&profile->exact, tap) != NULL;
}

int m3_profile_fused_norm(const struct m3_profile *profile, const char *tap)
{
    return m3_profile_last_match(&profile->fused_norm, tap) != NULL;
}

int m3_profile_weight_first(const struct m3_profile *profile, const char *tap)
{
    return m3_profile_last_match(&profile->weight_first, tap) != NULL;
}

enum m3_dtype m3_profile_norm_weight(const struct m3_profile *profile, const char *tap)
{
    const struct m3_profile_entry *entry = m3_profile_last_match(&profile->norm_weight, tap);
    return entry && entry->read.u > profile->how.u ? entry->dtype : M3_DTYPES;
}

double m3_profile_alpha(const struct m3_profile *profile, double alpha)
{
    return profile->alpha == M3_F64 ? alpha : m3_stored_as(alpha, profile->alpha);
}

struct m3_read_rounding m3_profile_read(const struct m3_profile *profile, const char *tap)
{
    const struct m3_profile_entry *entry = m3_profile_last_match(&profile->read, tap);
    const struct m3_read_rounding none = { 0 };
    return entry && entry->read.u > profile->how.u ? entry->read : none;
}

double m3_profile_dump_rounding(const struct m3_profile *profile, const char *tap)
{
    const struct m3_profile_entry *entry = m3_profile_last_match(&profile->dump_rounding, tap);
    double u = entry ? entry->read.u : 0;
    return u > profile->how.u ? u : 0;
}

enum m3_dtype m3_profile_dumped(const struct m3_profile *profile, const char *tap)
{
    const enum m3_dtype stored = m3_profile_dtype(profile, tap);
    const struct m3_profile_entry *entry = m3_profile_last_match(&profile->dump_rounding, tap);
    return entry && entry->read.u > fmax(m3_profile_store(profile, tap), profile->how.u) ? entry->dtype : stored;
}

/* Patterns that end in '*' match points in experts too. */
static const struct m3_read_rounding *weights_of(const struct m3_profile *profile, const char *tap)
{
    for (size_t i = profile->weights.count; i-- > 0;) {
        const struct m3_profile_entry *entry = &profile->weights.rows[i];
        if (m3_profile_matches(entry->pattern, tap)) return entry->read.u > profile->how.u ? &entry->read : NULL;
    }
    return NULL;
}

double m3_profile_weights(const struct m3_profile *profile, const char *tap)
{
    const struct m3_read_rounding *read = weights_of(profile, tap);
    return read ? read->u : 0;
}

double m3_profile_weight_floor(const struct m3_profile *profile, const char *tap)
{
    const struct m3_read_rounding *read = weights_of(profile, tap);
    return read ? read->floor : 0;
}

double m3_input_roundoff(const struct m3_input_rounding *rule)
{
    switch (rule->codes) {
    case M3_CODES_NONE: return rule->u;
    case M3_CODES_E4M3: return rule->exponent_down ? 0x1p-3 : 0x1p-4;
    case M3_CODES_Q8_0: return 1 / 254.0 + 0x1p-11;
    case M3_CODES_Q8_K: return 1 / 254.0;
    default: return rule->exponent_down ? 0.25 : 0.2;
    }
}

struct m3_input_rounding m3_profile_input(const struct m3_profile *profile, const char *tap)
{
    struct m3_input_rounding none = { .dtype = M3_DTYPES };
    for (size_t i = profile->input.count; i-- > 0;)
        if (m3_profile_matches(profile->input.rows[i].pattern, tap)) return profile->input.rows[i].input;
    return none;
}

struct m3_partials m3_profile_partials(const struct m3_profile *profile, const char *tap)
{
    struct m3_partials how = { 0 };
    if (m3_profile_store(profile, tap) == 0) return how;
    for (size_t i = profile->partials.count; i-- > 0;)
        if (m3_profile_matches(profile->partials.rows[i].pattern, tap)) {
            how = profile->partials.rows[i].partials;
            how.dtype = m3_profile_dtype(profile, tap);
            return how;
        }
    return how;
}
