/* Why an element of a tap has its value: the equation, the numbers that went in, and each step to the result.
 *
 * The numbers are those of a pass in float with ordered sums, which gives the bits of `run --ops plain`. The plain
 * operator is then called on the one row, and the steps are followed: all three must agree to the bit, or there is no
 * explanation. SPEC.md defines the operators; this folder repeats none of their sums (steps.h). */
#ifndef M3_ORACLE_EXPLAIN_EXPLAIN_H
#define M3_ORACLE_EXPLAIN_EXPLAIN_H

#include <stdio.h>

#include "base/progress.h"
#include "model/files/case.h"
#include "model/model.h"
#include "model/taps.h"
#include "oracle/explain/steps.h"

struct m3_explain_how {
    const struct m3_model *model;
    const struct m3_case *the_case;
    const struct m3_semantics *semantics;
    int threads;
    enum m3_tap tap;
    int64_t layer;
    int64_t row;
    const char *channel;        /* "5", or an index for each dimension after the row, "2,5"; NULL: the largest */
    struct m3_progress progress;
};

/* An operator as it is printed. The lines are those of the comment above its plain function. */
struct m3_equation {
    const char *name;           /* in ops/ops.h; or of what no operator computes, "copy" */
    const char *function, *file;        /* NULL: none */
    const char *section;        /* heading of SPEC.md */
    const char *lines[6];
};

/* A cell is a text, or a number of a type. */
struct m3_cell {
    char text[40];              /* "": a number */
    enum m3_step_type type;
    double value;
};

enum { M3_TABLE_COLUMNS = 8, M3_EXPLAIN_TABLES = 4, M3_EXPLAIN_EQUATIONS = 3, M3_TAP_DIMENSIONS = 3 };

struct m3_explained_table {
    char title[160];
    const char *heads[M3_TABLE_COLUMNS];
    int columns;
    int64_t rows, filled, room; /* cells: so many, with room for so many */
    struct m3_cell *cells;      /* [rows,columns] */
};

struct m3_explanation {
    char name[96];              /* of the tap */
    const char *words;          /* what the tap is */
    const char *letters;        /* of its dimensions, the row's first */
    int64_t row, index[M3_TAP_DIMENSIONS];      /* index: after the row */
    int rank;                   /* of `index` */
    char from[256];             /* the taps that the operator read */
    const struct m3_equation *equations[M3_EXPLAIN_EQUATIONS];
    int equation_count;
    struct m3_steps steps;
    int result;                 /* the last step; its values are those of the tap */
    struct m3_explained_table tables[M3_EXPLAIN_TABLES];
    int table_count;
    struct m3_error notes;      /* sentences */
};

/* Finds the tap and opens as much of the model as it needs: how->tap, layer and model. M3_USAGE if there is no such tap
 * or layer. The caller closes the model, also after a failure. */
int m3_explain_open(struct m3_explain_how *how, struct m3_model **model, const char *folder, const char *tap,
                    struct m3_error *notes, struct m3_error *error);
/* The end of the layers that run for the tap. */
int64_t m3_explain_end_layer(const struct m3_config *config, enum m3_tap tap, int64_t layer);

/* Runs the pass and explains the element. M3_USAGE if the model or the call has no such tap, row or channel;
 * M3_INTERNAL, also if operator, steps and pass do not agree. Free the explanation in any case. */
int m3_explain_tap(struct m3_explanation *explanation, const struct m3_explain_how *how, struct m3_error *error);
void m3_explanation_free(struct m3_explanation *explanation);

/* All equations, for tests; NULL at the end. */
const struct m3_equation *m3_equation_at(int i);

/* M3_IO, M3_INTERNAL. */
int m3_explanation_text(FILE *out, const struct m3_explanation *explanation, struct m3_error *error);
int m3_explanation_json(FILE *out, const struct m3_explanation *explanation, struct m3_error *error);
int m3_explanation_html(FILE *out, const struct m3_explanation *explanation, const char *command,
                        struct m3_error *error);

#endif
