/* Every operator on one page. This is also the header of a plug-in (--ops).
 *
 * Letters: SPEC 1. ' is transpose, := assignment, sums ascend, p is the place of a row: p0 + t.
 *
 *  name           outputs            inputs                    weights   meaning                                 SPEC
 *  embed          y[T,H]             ids[T]                    w[V,H]    y := rows ids of w                      5.1
 *  rms_norm       y[T,H]             x[T,H]                    w[H]      y := x / sqrt(mean x^2 + eps) (1 + w)   5.2
 *  rms_norm_plain y[T,H]             x[T,H]                    w[H]      y := x / sqrt(mean x^2 + eps) w         5.3
 *  linear         y[T,rows]          x[T,cols]                 w bias    y := x w' + bias                    (1) 5.4
 *  rope_table     cos sin [T,R/2]    pos[T]                    -         angle := pos theta^(-2i/R)              5.5
 *  rope           y[T,heads,D]       x[T,heads,D] cos sin      -         y := x, channels i and i+R/2 turned     5.6
 *  attend_full    o[T,Q,D] lse[T,Q]  q[T,Q,D] k v [S,G,D]      -         o := softmax(q k' / sqrt D) v, causal   5.7
 *  block_scores   m[T,G,B]           q[T,G,X] k[S,X]           -         m := pool of q k' over a block, causal  5.8
 *  select_blocks  ids[T,G,N]         m[T,G,B]                  -         ids := top-N of m, forced first     (2) 5.9
 *  attend_blocks  o[T,Q,D] lse[T,Q]  q k v blocks[T,G,N]       -         as attend_full, keys of the blocks      5.10
 *  swiglu_oai     y[T,F]             gate up [T,F]             -         y := (up + 1) gate sig(alpha gate)  (3) 5.11
 *  swiglu         y[T,F]             gate up [T,F]             -         y := up gate sig(gate)                  5.12
 *  sigmoid        y[n]               x[n]                      -         y := 1 / (1 + exp(-x))                  5.13
 *  route          ids p [T,K]        s[T,E]                    bias[E]   ids := top-K(s + bias), p := s/sum  (2) 5.14
 *  experts        routed[T,H] each   x[T,H] ids p [T,K]        E of 3    routed := factor sum p each         (4) 5.15
 *  add            y[n]               a[n] b[n]                 -         y := a + b                              5.16
 *  layer_norm     y[T,H]             x[T,H]                    w b[H]    y := (x - mean) / sqrt(var + eps) w + b 5.17
 *  rope_table_3d  cos sin [P,R/2]    places[P,3]               -         angle := place_a theta^(-2i/(R/3))  (5) 5.18
 *  attend_segments o[P,A,U]          q k v [P,A,U] ends[n]     -         as attend_full, all keys of a segment   5.19
 *  gelu           y[n]               x[n]                      -         y := x/2 (1 + erf(x / sqrt 2))          5.20
 *  scatter        y[T,H]             x[T,H] ids[T]             f[M,H]    y := x, its rows of one id := rows of f 5.21
 *  jitter         y[T,H]             x[T,H]                    -         y := x (1 + eps (2 u - 1)), u drawn     5.22
 *
 *  (1) Also lm_head. The router is a linear with F32 weights.   (2) The lower id wins a tie.
 *  (3) gate and up clamped first.   (4) each := w2 act(w1 x, w3 x); ascending expert id; `each` [T,K,H] may be NULL.
 *  (5) a = time, row, column: R/6 angles of each, side by side. rope applies them.
 *
 * Every entry returns 0 or a status (base/status.h) after m3_fail_at. Outputs never overlap inputs, except that y may
 * be x (rms_norm, rms_norm_plain, rope, sigmoid, layer_norm, gelu, scatter, jitter), gate (swiglu_oai, swiglu), a or b
 * (add).
 * Dimensions are at least 1 (M of scatter: 0); the model checks them when it binds. */
#ifndef M3_OPS_H
#define M3_OPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/context.h"
#include "base/real.h"
#include "base/semantics.h"
#include "base/status.h"
#include "base/weight.h"
#include "ops/operators.def"

enum { M3_OPS_ABI = 4 };

/* Rows t = 0..T-1 are at places p0..p0+T-1 of the sequence; keys are places 0..p0+T-1. Q is a multiple of G: query
 * head h reads key head h div (Q/G). */
struct m3_attend {
    int64_t T, p0, Q, G, D;
    const unsigned char *seen;      /* [p0+T] 0: no row sees this key; NULL: causality alone decides */
    int64_t block, N;               /* attend_blocks only: keys in a block, width of a list of blocks */
    enum m3_selection selection;    /* attend_blocks only: M3_SELECT_UNION attends to any group's blocks */
};

/* The index branch; its lists hold N blocks. B is the stride of m, ceil((p0+T)/block) or more: a long sequence may be
 * processed in pieces that all use the B of the whole. */
struct m3_index {
    int64_t T, p0, G, X, block, B, N;
    const unsigned char *seen;      /* as in m3_attend; block_scores only */
    const struct m3_semantics *semantics;
};

/* The elementwise part of a gated MLP, between its matrices. */
struct m3_activation {
    int oai;                        /* swiglu_oai with the fields below; otherwise swiglu */
    real alpha, limit;
    enum m3_gate_clamp clamp;
};

/* Signatures. The table above describes the operands. */
typedef int m3_op_embed(struct m3_ctx *, real *y, const int32_t *ids, const struct m3_weight *w, int64_t T);
typedef int m3_op_rms_norm(struct m3_ctx *, real *y, const real *x, const real *w, int64_t T, int64_t H, real eps);
typedef int m3_op_rms_norm_plain(struct m3_ctx *, real *y, const real *x, const real *w, int64_t T, int64_t H,
                                 real eps);
typedef int m3_op_linear(struct m3_ctx *, real *y, const real *x, const struct m3_weight *w, const real *bias,
                         int64_t T);
typedef int m3_op_rope_table(struct m3_ctx *, real *cos, real *sin, const int64_t *pos, int64_t T, int64_t R,
                             double theta, enum m3_rope_angle angle);
typedef int m3_op_rope(struct m3_ctx *, real *y, const real *x, const real *cos, const real *sin, int64_t T,
                       int64_t heads, int64_t D, int64_t R);
typedef int m3_op_attend_full(struct m3_ctx *, real *o, real *lse, const real *q, const real *k, const real *v,
                              const struct m3_attend *d);
typedef int m3_op_block_scores(struct m3_ctx *, real *m, const real *q, const real *k, const struct m3_index *d);
typedef int m3_op_select_blocks(struct m3_ctx *, int32_t *ids, const real *m, const struct m3_index *d);
typedef int m3_op_attend_blocks(struct m3_ctx *, real *o, real *lse, const real *q, const real *k, const real *v,
                                const int32_t *blocks, const struct m3_attend *d);
typedef int m3_op_swiglu_oai(struct m3_ctx *, real *y, const real *gate, const real *up, int64_t T, int64_t F,
                             const struct m3_activation *act);
typedef int m3_op_swiglu(struct m3_ctx *, real *y, const real *gate, const real *up, int64_t T, int64_t F);
typedef int m3_op_sigmoid(struct m3_ctx *, real *y, const real *x, int64_t n);
typedef int m3_op_route(struct m3_ctx *, int32_t *ids, real *p, const real *s, const real *bias, int64_t T, int64_t E,
                        int64_t K);
typedef int m3_op_experts(struct m3_ctx *, real *routed, real *each, const real *x, const int32_t *ids, const real *p,
                          const struct m3_expert *experts, const struct m3_activation *act, int64_t T, int64_t E,
                          int64_t K, real factor);
typedef int m3_op_add(struct m3_ctx *, real *y, const real *a, const real *b, int64_t n);
typedef int m3_op_layer_norm(struct m3_ctx *, real *y, const real *x, const real *w, const real *b, int64_t T,
                             int64_t H, real eps);
typedef int m3_op_rope_table_3d(struct m3_ctx *, real *cos, real *sin, const int64_t *places, int64_t P, int64_t R,
                                double theta, enum m3_rope_angle angle);
typedef int m3_op_attend_segments(struct m3_ctx *, real *o, const real *q, const real *k, const real *v,
                                  const int64_t *ends, int64_t segments, int64_t A, int64_t U);
typedef int m3_op_gelu(struct m3_ctx *, real *y, const real *x, int64_t n);
typedef int m3_op_scatter(struct m3_ctx *, real *y, const real *x, const int32_t *ids, const real *f, int32_t id,
                          int64_t T, int64_t M, int64_t H);
typedef int m3_op_jitter(struct m3_ctx *, real *y, const real *x, int64_t T, int64_t H, int64_t p0, double eps,
                         uint64_t key);

struct m3_ops {
    int abi_version;                /* M3_OPS_ABI */
    int real_bytes;                 /* sizeof(real) */

    /* m3_op_embed *embed; and so on, in the order of the page above. */
#define M3_OPS_ENTRY(name, ...) m3_op_##name *name;
#define M3_OPS_NONE(...)
    M3_OPERATORS(M3_OPS_ENTRY, M3_OPS_NONE)
#undef M3_OPS_ENTRY
#undef M3_OPS_NONE
};

/* What a plug-in exports under these two names: the table for which it was built, which must be this one, and a
 * function that receives the default table and replaces entries; it returns 0, or a status to refuse. It may call the
 * functions of ref/base.
 *
 *     const struct m3_plugin_abi m3_plugin_abi = { M3_OPS_ABI, sizeof(real) };
 *     int m3_plugin(struct m3_ops *ops) { ops->rope = my_rope; return M3_OK; }
 *
 * A plug-in that keeps state between calls also exports the next two. It is started once, before the first pass, with
 * the text after the first comma of --ops; entries find *state in m3_ctx.plugin. A start that fails says why by
 * m3_fail, and then stop is not called. */
struct m3_plugin_abi {
    int abi_version, real_bytes;
};
extern const struct m3_plugin_abi m3_plugin_abi;
int m3_plugin(struct m3_ops *ops);
int m3_plugin_start(void **state, const char *words, struct m3_error *error);
void m3_plugin_stop(void *state);

#ifdef __cplusplus
}
#endif

#endif
