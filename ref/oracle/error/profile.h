/* What the arithmetic of a candidate may do: its precision, where it rounds values on storing them, what it must not
 * round at all. Data, not code: a JSON file; those of profiles/ are built in. SPEC 7.3. */
#ifndef M3_ORACLE_ERROR_PROFILE_H
#define M3_ORACLE_ERROR_PROFILE_H

#include "base/status.h"
#include "base/weight.h"
#include "oracle/error/bounds.h"

struct m3_profile;

/* How the inputs of linear operators are quantised. */
struct m3_input_rounding {
    enum m3_dtype dtype;            /* M3_F8_E4M3; M3_DTYPES: they are not */
    enum m3_scaling scaling;        /* blocks of 128 (M3_SCALE_128X128) or of 32 (M3_SCALE_MX32) along a row */
    int exponent_down;              /* MX32: the shared exponent is rounded down, so the largest values saturate */
};

/* Name and text of each that is built in: the Makefile makes them of profiles/. NULLs at the end. */
extern const char *const m3_built_in_profiles[][2];
/* "bf16, fp32, ..", for messages and help. */
void m3_profile_names(char *names, size_t size);

/* By name, or from a file if `name` has a '/' or ends in ".json". M3_ABSENT, M3_BAD_INPUT with field, got and expected:
 * unknown fields, dtypes, patterns that match no point. *profile is NULL on failure. */
int m3_profile_open(struct m3_profile **profile, const char *name, struct m3_error *error);
void m3_profile_close(struct m3_profile *profile);          /* NULL is fine */
const char *m3_profile_name(const struct m3_profile *profile);
/* Of what it says, whatever the blanks in its file. */
const char *m3_profile_sha256(const struct m3_profile *profile);

struct m3_arithmetic m3_profile_arithmetic(const struct m3_profile *profile, int64_t elements);
int m3_profile_truncates(const struct m3_profile *profile);
int m3_profile_flushes(const struct m3_profile *profile);
int m3_profile_ties_lowest(const struct m3_profile *profile);   /* else any order of equal scores will do */

/* `point` is a tap's name ("layers.3.q_rope") or that of an intermediate of an operator (SPEC 7.3), in a layer's or
 * module's folder: layers.3.attn.logits, layers.3.attn.p, layers.3.rope.cos. The last pattern of "store" that matches
 * decides. */

/* Unit roundoff of storing there, if it is coarser than the arithmetic; else 0. */
double m3_profile_store(const struct m3_profile *profile, const char *point);
/* The dtype a tap's values are numbers of: that of the arithmetic if nothing coarser is said. */
enum m3_dtype m3_profile_dtype(const struct m3_profile *profile, const char *point);
/* Must the tap be bit for bit what the expanded weights say? */
int m3_profile_exact(const struct m3_profile *profile, const char *tap);
/* The dtype that the values in a dump are numbers of: that of the last rounding, of storing or of the dump alone. */
enum m3_dtype m3_profile_dumped(const struct m3_profile *profile, const char *tap);
/* Unit roundoff of the dump alone: a tap was used finer than it was dumped; else 0. */
double m3_profile_dump_rounding(const struct m3_profile *profile, const char *tap);
struct m3_input_rounding m3_profile_input(const struct m3_profile *profile, const char *tap);
/* Unit roundoff at which the weights of a linear operator may have been rounded beside how they are stored, and the
 * router's bias (moe.experts); else 0. */
double m3_profile_weights(const struct m3_profile *profile, const char *tap);

#endif
