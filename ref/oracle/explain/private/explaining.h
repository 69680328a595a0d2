/* A tap while it is explained, and the interface between the families of operators and explain.c. */
#ifndef M3_ORACLE_EXPLAIN_PRIVATE_EXPLAINING_H
#define M3_ORACLE_EXPLAIN_PRIVATE_EXPLAINING_H

#include "model/engine.h"
#include "model/graph/evaluate.h"
#include "ops/ops.h"
#include "oracle/error/recompute.h"
#include "oracle/explain/explain.h"

enum { M3_MOST_KEPT = 10 };

struct m3_explaining {
    const struct m3_explain_how *how;
    const struct m3_config *config;
    struct m3_setting setting;
    struct m3_ctx ctx;
    const struct m3_node *node;
    enum m3_tap tap;
    int64_t layer, row;
    int64_t channel;                    /* of the row; of choices the candidate, -1: none was asked for */
    int64_t group;                      /* of block lists */
    int64_t p0;                         /* the place of the row */
    const char *changed;                /* what an operator reads in place of its operand; or "" */
    struct m3_tap_values kept[M3_MOST_KEPT];  /* the tap's own row first */
    int kept_count;
    struct m3_explanation *to;
    struct m3_steps *steps;             /* of *to */
    struct m3_error *error;
};

/* How an operator is explained. `steps` returns the step of the result, -1 after a failure. */
struct m3_explainer {
    int (*steps)(struct m3_explaining *e);
    enum m3_tap extra[3];               /* further taps of the layer that are kept; 0: none */
};

/* ---- pass.c: what the pass gave */

int m3_explain_pass(struct m3_explaining *e);
/* The row of a kept tap, as float or int32_t; NULL with a failure. */
const void *m3_kept_row(struct m3_explaining *e, enum m3_tap tap, int64_t layer, int64_t row);
/* Operand i of the tap: its tap, layer, and the row that belongs to the tap's; -1 if there is none. */
int m3_explain_operand(const struct m3_explaining *e, int i, enum m3_tap *tap, int64_t *layer, int64_t *row);
/* Calls the plain operator on the one row. M3_INTERNAL if it does not give the bits of the pass. */
int m3_explain_one_row(struct m3_explaining *e);

/* ---- shared by the families (helpers.c) */

/* Elements [at, at + n) of the row of operand i, as a given step. */
int m3_given_operand(struct m3_explaining *e, const char *name, int i, int64_t at, int64_t n);
const float *m3_operand_floats(struct m3_explaining *e, int i);
/* "layers.3.mid, row 17" */
void m3_explain_source(const struct m3_explaining *e, char *text, size_t size, enum m3_tap tap, int64_t layer,
                       int64_t row);
/* The tensor that weight i of the tap is, by its name in the files. */
void m3_explain_weight_name(const struct m3_explaining *e, char *text, size_t size, const struct m3_weight *w);
const struct m3_weight *m3_explain_weight(const struct m3_explaining *e, int i);
void m3_explain_equation(struct m3_explaining *e, const char *name);
__attribute__((format(printf, 2, 3))) void m3_explain_note(struct m3_explaining *e, const char *format, ...);
int m3_explain_failed(struct m3_explaining *e, const char *why);
/* The width of a head: the last letter of the tap's shape. */
int64_t m3_explain_last(const struct m3_explaining *e);

/* Tables: a new one, then its cells row by row. */
struct m3_explained_table *m3_table(struct m3_explaining *e, int columns, const char *const heads[]);
void m3_cell_int(struct m3_explaining *e, struct m3_explained_table *table, int64_t value);
void m3_cell_float(struct m3_explaining *e, struct m3_explained_table *table, double value);
__attribute__((format(printf, 3, 4))) void m3_cell_text(struct m3_explaining *e, struct m3_explained_table *table,
                                                        const char *format, ...);
/* The places of the `most` largest keys [n], largest first, in scratch; *found is their number. */
int64_t *m3_largest(struct m3_explaining *e, int64_t *found, const double *keys, int64_t n, int64_t most);
/* The largest terms of a sum of products; w: where the second factor is stored, or NULL. */
enum { M3_SHOWN_TERMS = 8 };
void m3_table_terms(struct m3_explaining *e, int x, int y, const char *x_name, const char *y_name,
                    const struct m3_weight *w, int64_t row);

/* ---- the families */

extern const struct m3_explainer m3_explainers[M3_OPERATORS];

int m3_explain_linear(struct m3_explaining *e);                 /* linear.c */
int m3_explain_rms_norm(struct m3_explaining *e);               /* norms.c */
int m3_explain_layer_norm(struct m3_explaining *e);
int m3_explain_rope(struct m3_explaining *e);                   /* rope.c */
int m3_explain_rope_3d(struct m3_explaining *e);
int m3_explain_attend(struct m3_explaining *e);                 /* attention.c */
int m3_explain_segments(struct m3_explaining *e);
int m3_explain_block_scores(struct m3_explaining *e);           /* blocks.c */
int m3_explain_select_blocks(struct m3_explaining *e);
int m3_explain_activation(struct m3_explaining *e);             /* gates.c */
int m3_explain_sigmoid(struct m3_explaining *e);
int m3_explain_gelu(struct m3_explaining *e);
int m3_explain_gate(struct m3_explaining *e, int gate, int up);         /* the activation of steps */
int m3_explain_select_experts(struct m3_explaining *e);         /* router.c */
int m3_explain_route(struct m3_explaining *e);
int m3_explain_expert(struct m3_explaining *e);                 /* experts.c */
int m3_explain_routed(struct m3_explaining *e);
int m3_explain_gated_mlp(struct m3_explaining *e);
int m3_explain_embed(struct m3_explaining *e);                  /* rows.c */
int m3_explain_scatter(struct m3_explaining *e);
int m3_explain_copy(struct m3_explaining *e);
int m3_explain_input(struct m3_explaining *e);
int m3_explain_counts(struct m3_explaining *e);
int m3_explain_add(struct m3_explaining *e);
void m3_explain_draft(struct m3_explaining *e);                 /* drafts.c */
/* Where a patch is: the picture, its place in the grid, and the segment [first, end) of rows that see each other. */
struct m3_patch {
    int64_t place[3], first, end, picture;
    const char *kind;           /* "image", "video" */
};
int m3_explain_patch(struct m3_explaining *e, struct m3_patch *patch, int64_t row);

#endif
