/* Recomputes one tap in double from given values of the taps that it reads, with all errors that its operator's
 * arithmetic may cause: bounds (7.1), intermediates and results that the profile stores more coarsely, and propagated
 * errors (7.4). blame, companions and compare are built on it. The graph (graph.h) lists the operands; SPEC 7.5. */
#ifndef M3_ORACLE_ERROR_RECOMPUTE_H
#define M3_ORACLE_ERROR_RECOMPUTE_H

#include "model/files/case.h"
#include "model/engine.h"
#include "oracle/error/operators.h"
#include "oracle/error/profile.h"
#include "oracle/error/propagate.h"

struct m3_recomputing;          /* private/recompute.h */
/* Fills y of a tap with something else: parameters/private/derivatives.h. */
typedef int m3_recompute_instead(struct m3_recomputing *m);
/* Receives pieces of it, at most M3_VISITED elements of a row at a time, in place of a whole array. */
enum { M3_VISITED = 256 };
struct m3_visit {
    void (*at)(void *self, int64_t number, int64_t first, const double *values, int64_t n);
    void *self;
};

/* The setting shared by all taps of a call. */
struct m3_setting {
    const struct m3_model *model;   /* weights, and the taps that they determine, may be absent (data NULL) */
    const struct m3_semantics *semantics;
    const struct m3_case *the_case;
    const struct m3_profile *profile; /* NULL: fp32, nothing stored coarser */
    struct m3_ctx *ctx;
    /* A part of the model: runs begin at layer `first` with these hidden states [T,H] (NULL if it is 0), layers from
     * `judged` to `end` - 1 are judged. end 0: all of the model. */
    struct m3_part {
        int64_t first, judged, end;
        const double *hidden;
    } part;
    /* Makes the weights of the experts ids [count] of one row, which replace those of another row; NULL: all are there. */
    int (*need)(void *self, const int32_t *ids, int64_t count, int threads, struct m3_error *error);
    void *need_self;
    int unrounded;                  /* results are not rounded for storing */
    m3_recompute_instead *instead;  /* in place of the tap's value, bound and spread; NULL: those */
    const struct m3_visit *visit;   /* receives what `instead` computes, if it computes single elements; NULL */
    enum m3_norm_scale {
        M3_SCALE_EITHER,
        M3_SCALE_PLAIN,
        M3_SCALE_ROUNDED
    } norm_scale;                   /* 1 + w of a norm whose profile lets it be rounded */
};

struct m3_recomputed {
    struct m3_tap_values y;              /* its values or selections; `off`, if any, is from storage points and the
                                     * operands */
    double *bound, *walk, *suspect; /* as in bounds.h; suspect is NULL except for attention */
    int64_t n, f;
    char missing[160];              /* why there is no y: "layers.3.k_rope, rows 0 to 7", "the weights of
                                     * logits"; "": there is */
};

/* Recomputes rows [first, end) only, where rows are recomputed one by one: all taps except fused, and attention and
 * copies of pictures. operands[i] is NULL if that tap is unknown. Returns 0 with a text in out->missing if the
 * operands are not sufficient; M3_INTERNAL for memory; M3_WRONG if the operator refuses its inputs. Call
 * m3_recomputed_free after any of them. */
int m3_recompute(struct m3_recomputed *out, const struct m3_setting *setting, enum m3_tap tap, int64_t layer,
                 const struct m3_tap_values *const operands[M3_OPERANDS], int64_t first, int64_t end,
                 struct m3_error *error);
void m3_recomputed_free(struct m3_recomputed *out);

/* The end of the layers that run. */
int64_t m3_setting_end(const struct m3_setting *setting);
/* Is a tap in the part of the model that is judged? */
int m3_setting_judges(const struct m3_setting *setting, enum m3_tap tap, int64_t layer);
/* The candidate's arithmetic: of the profile, otherwise plain fp32; lambda for this number of elements. */
struct m3_arithmetic m3_setting_arithmetic(const struct m3_setting *setting, int64_t elements);
struct m3_gate m3_setting_gate(const struct m3_setting *setting);
/* What a bound allows, as a spread: error, variance [n]. */
void m3_allowance(double *error, double *variance, const struct m3_bound *bound, int64_t n, double u);

/* input_rounding.c: adds what rounding inputs x [rows,width] costs; largest: of the whole tensor. */
void m3_round_inputs(struct m3_spread *off, const double *x, int64_t rows, int64_t width, double largest,
                     const struct m3_input_rounding *rule);

/* m3_graph_operand of this call: without pictures `fused` reads no features; experts may read their weights. */
int m3_setting_operand(enum m3_tap *operand, int64_t *operand_layer, const struct m3_setting *, enum m3_tap tap,
                       int64_t layer, int i);
/* Does the profile let the routing weight multiply the activations of this layer's experts? */
int m3_setting_weighs_first(const struct m3_setting *setting, int64_t layer);

/* The number of elements in a row of the tap; that of blocks follows from the places of the call. */
int64_t m3_tap_width(const struct m3_setting *setting, enum m3_tap tap, int64_t layer);
/* Rows of the tap in the whole call: T, P, M, or fewer in a module. */
int64_t m3_tap_rows(const struct m3_setting *setting, enum m3_tap tap, int64_t layer);

/* ---- the taps known so far, while taps arrive in execution order. The trace copies its inputs. */

struct m3_trace;
int m3_trace_new(struct m3_trace **trace, const struct m3_setting *setting, struct m3_error *error);
void m3_trace_free(struct m3_trace *trace); /* NULL is fine */
/* Rows that are not `usable`, or not of the call, are left out; the profile's rounding of the dump adds to value->off. */
int m3_trace_put(struct m3_trace *trace, const struct m3_tap_values *value, struct m3_error *error);
/* The same without a copy: the arrays, from malloc, become the trace's, also on failure; *value is empty afterwards. */
int m3_trace_take(struct m3_trace *trace, struct m3_tap_values *value, struct m3_error *error);
/* A tap that was put is not asked for any more: what it was the last to read is dropped. */
void m3_trace_pass(struct m3_trace *trace, enum m3_tap tap, int64_t layer);
const struct m3_tap_values *m3_trace_get(const struct m3_trace *trace, enum m3_tap tap,
                                         int64_t layer); /* NULL: unknown */
/* Recomputes the tap from the known taps. An unknown operand is recomputed first and kept with its possible error; but
 * not in a layer or module, other than this tap's, of which no float tap was put. Values that no later tap of this
 * call can read are dropped as the trace advances from layer to layer. */
int m3_trace_recompute(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                       struct m3_error *error);
/* The same for rows [first, end) only, where rows are recomputed one by one: all taps except fused and some of
 * pictures. */
int m3_trace_recompute_rows(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                            int64_t first, int64_t end, struct m3_error *error);
/* A derivative in place of rows [first, end) of the tap itself: y alone, or, if `visit` is not NULL, no y: `visit`
 * receives it in pieces. */
int m3_trace_derivative(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                        int64_t first, int64_t end, m3_recompute_instead *derivative, const struct m3_visit *visit,
                        struct m3_error *error);
/* The sum that a norm reads, if the profile lets it read the sum before it is rounded; otherwise 0. */
int m3_fused_sum(enum m3_tap *sum, int64_t *sum_layer, const struct m3_setting *setting, enum m3_tap tap,
                 int64_t layer);
/* The same as m3_trace_recompute by another hypothesis, or both; 0: none. M3_AS_FUSED: a norm read its sum before that
 * was rounded, which is made of the sum's terms, or, if they are not all known, the stored sum with its rounding as a
 * spread. M3_AS_ROUNDED: 1 + w in the weights' format. Says in out->missing if the tap has no such hypothesis. */
enum m3_hypothesis { M3_AS_FUSED = 1, M3_AS_ROUNDED = 2, M3_HYPOTHESES = 4 };
int m3_trace_recompute_as(struct m3_recomputed *out, struct m3_trace *trace, enum m3_tap tap, int64_t layer,
                          int hypothesis, struct m3_error *error);
/* The whole list of (tap, layer) of a call in execution order: index from 0; 0 at the end. */
int m3_trace_tap(const struct m3_setting *setting, int64_t index, enum m3_tap *tap, int64_t *layer);

#endif
