/* Declarations shared by the files that implement honest.h. */
#ifndef M3_ORACLE_VARIANTS_PRIVATE_HONEST_H
#define M3_ORACLE_VARIANTS_PRIVATE_HONEST_H

#include <math.h>
#include <string.h>

#include "base/generator.h"
#include "ops/ops.h"
#include "oracle/variants/honest.h"

enum { M3_POINT_NAME = 96 };

/* A weight, and the linear operator that uses it. */
struct m3_honest_place {
    const struct m3_weight *weight;
    char name[M3_POINT_NAME];
};

enum { M3_MOST_PARTS = 8 };             /* into which the columns of a linear operator are cut */

struct m3_honest {
    const struct m3_model *model;
    const struct m3_semantics *semantics;
    const struct m3_profile *profile;
    const struct m3_safetensors *choices;       /* NULL: the implementation chooses itself and rounds to nearest */
    const struct m3_ops *base;          /* the reference's */
    struct m3_ops ops;
    struct m3_replacement replacement;
    struct m3_force force;
    struct m3_honest_place *places;
    int64_t place_count, T, shift;
    float *scores;                      /* [T,E] of the current layer */

    uint64_t key;                       /* of this implementation */
    double skip;                        /* share of the points that are skipped */
    int skips_nothing;
    int float_angles;
    int most_parts;                     /* 1 to M3_MOST_PARTS */
    uint64_t place, calls;              /* key of the tap made last; draws since then: no two are the same, and none
                                         * depends on what is computed elsewhere */
    int rounds;                         /* a value was rounded at random, or a rounding was skipped */
    enum m3_tap last;                   /* the last computed tap, and its layer */
    int64_t layer;
    int in_experts;
    float *sum, *stored; /* [T,H] the last sum that a norm may read, before it is rounded and after; NULL:
                                         * no norm may */
    int64_t sum_rows; /* rows of both */
};

/* A random rounding to either neighbour, the nearer one more likely: unbiased. Or to nearest, ties to even. */
struct m3_rounder {
    int bits, least; /* significant bits, exponent of the least step; bits 0: none */
    float normal; /* from here up all bits are significant */
    uint64_t key;
    int nearest;
};

/* Below `normal` all steps have the same size. */
static inline float m3_rounded_subnormal(const struct m3_rounder *r, float x, uint32_t draw)
{
    return (float)ldexp(floor(ldexp((double)x, -r->least) + draw * 0x1p-32), r->least);
}

static inline float m3_rounded_to_nearest(const struct m3_rounder *r, float x)
{
    uint32_t bits;
    if (fabsf(x) < r->normal) return (float)ldexp(nearbyint(ldexp((double)x, -r->least)), r->least);
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + (UINT32_C(1) << (23 - r->bits)) - 1 + (bits >> (24 - r->bits) & 1)) &
           ~((UINT32_C(1) << (24 - r->bits)) - 1);
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float m3_rounded(const struct m3_rounder *r, double value, uint64_t i)
{
    float x = (float)value;
    uint32_t bits, draw;
    if (r->bits == 0 || !isfinite(x)) return x;
    if (r->nearest) return m3_rounded_to_nearest(r, x);
    draw = (uint32_t)m3_draw(r->key, i, UINT64_C(1) << 32);
    if (fabsf(x) < r->normal) return m3_rounded_subnormal(r, x, draw);
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + (draw >> (8 + r->bits))) & ~((UINT32_C(1) << (24 - r->bits)) - 1);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A key for the next draws. */
uint64_t m3_honest_key(struct m3_honest *honest, const char *what);
/* Does this implementation skip the point, as a kernel that fuses several operators does? */
int m3_honest_skips(const struct m3_honest *honest, const char *point);
struct m3_rounder m3_honest_rounder(struct m3_honest *honest, const char *point);
/* The rounder for the weights of a linear operator. */
struct m3_rounder m3_honest_weights(struct m3_honest *honest, const char *name);
struct m3_rounder m3_rounder_of(enum m3_dtype dtype, uint64_t key);
/* The same, as this implementation rounds. */
struct m3_rounder m3_honest_rounder_of(const struct m3_honest *honest, enum m3_dtype dtype, uint64_t key);
struct m3_rounder m3_honest_rounder_like(const struct m3_honest *honest, double u, double floor, uint64_t key);
void m3_honest_round(struct m3_honest *honest, struct m3_ctx *ctx, const char *point, float *x, int64_t n);
/* "layers.3." of the current layer, or "" outside layers, followed by `inner`; into space [M3_POINT_NAME]. */
const char *m3_honest_point(const struct m3_honest *honest, char *space, const char *inner);
/* 0 .. n-1 in random order. */
void m3_honest_shuffle(struct m3_honest *honest, int64_t *order, int64_t n);

/* y [T,w->rows] := x w' + bias, columns in random order and in a random number of parts. honest_linear.c */
int m3_honest_linear(struct m3_ctx *, float *y, const float *x, const struct m3_weight *w, const float *bias,
                     int64_t T);
int m3_honest_experts(struct m3_ctx *, float *routed, float *each, const float *x, const int32_t *ids, const float *p,
                      const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E, int64_t K,
                      float factor);
int m3_honest_swiglu_oai(struct m3_ctx *, float *y, const float *gate, const float *up, int64_t T, int64_t F,
                         const struct m3_activation *act);
int m3_honest_swiglu(struct m3_ctx *, float *y, const float *gate, const float *up, int64_t T, int64_t F);

/* honest_norm.c: norms that read their sum before it is rounded for storing. */

/* Allocates sum and stored, if the profile has such norms. M3_INTERNAL. */
int m3_honest_norm_begin(struct m3_honest *honest, struct m3_error *error);
/* To be called for each tap of floats before it is rounded (`stored` 0) and after. */
void m3_honest_keep_sum(struct m3_honest *honest, const float *data, int64_t row, int64_t rows, int stored);
int m3_honest_rms_norm(struct m3_ctx *, float *y, const float *x, const float *w, int64_t T, int64_t H, float eps);
int m3_honest_rms_norm_plain(struct m3_ctx *, float *y, const float *x, const float *w, int64_t T, int64_t H,
                             float eps);

/* honest_attend.c */
int m3_honest_rope(struct m3_ctx *, float *y, const float *x, const float *cos, const float *sin, int64_t T,
                   int64_t heads, int64_t D, int64_t R);
int m3_honest_block_scores(struct m3_ctx *, float *m, const float *q, const float *k, const struct m3_index *d);
int m3_honest_attend_full(struct m3_ctx *, float *o, float *lse, const float *q, const float *k, const float *v,
                          const struct m3_attend *d);
int m3_honest_attend_blocks(struct m3_ctx *, float *o, float *lse, const float *q, const float *k, const float *v,
                            const int32_t *blocks, const struct m3_attend *d);
int m3_honest_attend_segments(struct m3_ctx *, float *o, const float *q, const float *k, const float *v,
                              const int64_t *ends, int64_t segments, int64_t A, int64_t U);

#endif
