/* The arithmetic that a candidate may use: its precision, which values it rounds when it stores them, and which it
 * must not round at all. A profile is data: a JSON file; those in profiles/ are built in. SPEC 7.3. */
#ifndef M3_ORACLE_ERROR_PROFILE_H
#define M3_ORACLE_ERROR_PROFILE_H

#include "base/status.h"
#include "base/weight.h"
#include "model/taps.h"
#include "oracle/error/bounds.h"
#include "oracle/partials/reduce.h"

struct m3_graph;
struct m3_profile;

/* Which numbers of an input share a scale. */
enum m3_scale_group { M3_GROUP_BLOCK, M3_GROUP_ROW, M3_GROUP_TENSOR };

/* Codes of few bits, times a scale. Q8_0, Q8_K: 8-bit integers, for 32 numbers a scale in F16, for 256 one in float.
 * NVFP4, MXFP4: 4 bits (E2M1), for 16 numbers a scale in E4M3 times a global one, for 32 a power of two. */
enum m3_codes { M3_CODES_NONE, M3_CODES_E4M3, M3_CODES_Q8_0, M3_CODES_Q8_K, M3_CODES_NVFP4, M3_CODES_MXFP4 };

/* How the inputs of linear operators are rounded. */
struct m3_input_rounding {
    enum m3_dtype
        dtype; /* M3_F8_E4M3, or M3_U8 for other codes; M3_BF16, M3_F16, M3_F32 (tf32): plain; M3_DTYPES: no */
    enum m3_codes codes;
    enum m3_scaling scaling; /* blocks of 128 (M3_SCALE_128X128) or of 32 (M3_SCALE_MX32) along a row */
    int exponent_down; /* MX32, MXFP4: the shared exponent is rounded down; the largest values saturate */
    enum m3_scale_group group; /* of E4M3: blocks unless it is another */
    double u, floor; /* without scales: unit roundoff, and half the smallest step */
};

static inline int m3_has_codes(const struct m3_input_rounding *rule) { return rule->codes != M3_CODES_NONE; }

/* Is an error a share of the largest number, not of the number itself? */
static inline int m3_has_wide_error(const struct m3_input_rounding *rule) { return rule->codes > M3_CODES_E4M3; }
/* The largest relative error that the rule makes, of numbers that are not small beside their scale; 0: none. */
double m3_input_roundoff(const struct m3_input_rounding *rule);

/* What attention and block scores see of the taps that they read. */
struct m3_read_rounding {
    double u; /* unit roundoff; 0: what the tap holds */
    double floor; /* half the smallest step of the format, without a scale */
    double largest; /* the largest code of a format that needs a scale; 0: none does */
};

/* Name and text of each built-in profile, and of each word; the Makefile generates them from profiles/ and
 * profiles/words/. NULLs at the end. */
extern const char *const m3_built_in_profiles[][2], *const m3_profile_word_texts[][2];
/* "bf16, fp32, ..", for messages and help; likewise of the words. */
void m3_profile_names(char *names, size_t size);
void m3_profile_words(char *names, size_t size);
/* Says of each built-in profile, and then of each word, what it allows, in the words of its own file. Returns 0 or
 * M3_INTERNAL. */
typedef void m3_profile_say(void *self, int is_word, const char *name, const char *what);
int m3_profile_list(m3_profile_say *say, void *self);
/* The length of the part of "NAME+word+word" that comes before the words. */
size_t m3_profile_base_length(const char *text);

/* Opens a profile by name, or from a file if the name has a '/' or ends in ".json"; with words after it,
 * "bf16+fused_norm". M3_ABSENT; M3_BAD_INPUT with field, value found and value expected: unknown words, fields or
 * dtypes, patterns that match no point. *profile is NULL on failure. */
int m3_profile_open(struct m3_profile **profile, const char *name, struct m3_error *error);
void m3_profile_close(struct m3_profile *profile); /* NULL is fine */
/* With its words: "bf16+fused_norm". */
const char *m3_profile_name(const struct m3_profile *profile);
/* The SHA-256 of its contents, which does not depend on the blanks in its file. */
const char *m3_profile_sha256(const struct m3_profile *profile);

struct m3_arithmetic m3_profile_arithmetic(const struct m3_profile *profile, int64_t elements);
int m3_profile_truncates(const struct m3_profile *profile);
int m3_profile_flushes(const struct m3_profile *profile);
int m3_profile_ties_lowest(const struct m3_profile *profile); /* otherwise equal scores may have any order */

/* `point` is a tap's name ("layers.3.q_rope") or that of an intermediate of an operator (SPEC 7.3), with the prefix of
 * a layer or module: layers.3.attn.logits, layers.3.attn.p, layers.3.rope.cos. The last pattern of "store" that
 * matches decides. */

/* The unit roundoff of storing at the point if it is coarser than the arithmetic; otherwise 0. */
double m3_profile_store(const struct m3_profile *profile, const char *point);
/* Half the smallest step of the format in which it is stored; 0: as exact as the arithmetic. */
double m3_profile_store_floor(const struct m3_profile *profile, const char *point);
/* The dtype of a tap's values: that of the arithmetic unless the profile has a coarser one. */
enum m3_dtype m3_profile_dtype(const struct m3_profile *profile, const char *point);
/* Must the tap equal the expanded weights bit for bit? */
int m3_profile_exact(const struct m3_profile *profile, const char *tap);
/* May this norm read its sum before it is rounded for storing? */
int m3_profile_fused_norm(const struct m3_profile *profile, const char *tap);
/* Are the outputs of these experts weighted, because the routing weight multiplies the activation? */
int m3_profile_weight_first(const struct m3_profile *profile, const char *tap);
/* The format in which this norm may form 1 + w; M3_DTYPES: in that of the arithmetic. */
enum m3_dtype m3_profile_norm_weight(const struct m3_profile *profile, const char *tap);
/* The alpha of SwiGLU-OAI as the program holds it. */
double m3_profile_alpha(const struct m3_profile *profile, double alpha);
struct m3_read_rounding m3_profile_read(const struct m3_profile *profile, const char *tap);
/* The dtype of the values in a dump: that of the last rounding, by storing or only in the dump. */
enum m3_dtype m3_profile_dumped(const struct m3_profile *profile, const char *tap);
/* The unit roundoff of the dump only, if a tap was used at a finer precision than it was dumped; otherwise 0. */
double m3_profile_dump_rounding(const struct m3_profile *profile, const char *tap);
struct m3_input_rounding m3_profile_input(const struct m3_profile *profile, const char *tap);
/* The unit roundoff to which the weights of a linear operator, or the router's bias (moe.experts), may have been
 * rounded in addition to their stored form; otherwise 0. */
double m3_profile_weights(const struct m3_profile *profile, const char *tap);
/* Half the smallest step of that format: what it may cost numbers that it holds as subnormal ones. */
double m3_profile_weight_floor(const struct m3_profile *profile, const char *tap);
/* In how many parts a linear operator is computed, and the format in which they are stored; ranks 0: in one part, or
 * that format is no coarser than the arithmetic. */
struct m3_partials m3_profile_partials(const struct m3_profile *profile, const char *tap);

/* Do they say different things about the operator of that tap, or what it reads? */
int m3_profiles_differ(const struct m3_profile *a, const struct m3_profile *b, const struct m3_graph *every_tap,
                       enum m3_tap tap, int64_t layer);

#endif
