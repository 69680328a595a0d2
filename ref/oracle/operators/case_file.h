/* A file of cases of one operator: tensors "i.OPERAND", and what each case is in the metadata. SPEC 7.16. */
#ifndef M3_ORACLE_OPERATORS_CASE_FILE_H
#define M3_ORACLE_OPERATORS_CASE_FILE_H

#include <jansson.h>

#include "io/safetensors.h"
#include "oracle/operators/fragment.h"

struct m3_case_file {
    const struct m3_operator_row *op;
    const struct m3_safetensors *file;
    json_t *cases;              /* the list of __metadata__.cases */
    int64_t count;
};

/* One case of a file. */
struct m3_operator_case {
    int64_t number;
    const char *what;
    const json_t *parameters;   /* an object or NULL */
    const json_t *drawn;        /* operands that are not stored: an object or NULL */
    int exact;                  /* every sum is exact in any order: results are judged bit for bit */
    int64_t *rows, row_count;   /* owned: the rows that are judged, ascending; NULL: all */
};

/* M3_BAD_INPUT: the file has no cases, is of another operator, or its list is malformed. `op` NULL: the file's own. */
int m3_case_file_open(struct m3_case_file *cases, const struct m3_operator_row *op, const struct m3_safetensors *file,
                      struct m3_error *error);
void m3_case_file_close(struct m3_case_file *cases);
int m3_case_file_at(struct m3_operator_case *the_case, const struct m3_case_file *cases, int64_t i,
                    struct m3_error *error);
void m3_operator_case_free(struct m3_operator_case *the_case);
/* The case as a call. */
int m3_case_file_call(struct m3_fragment **fragment, const struct m3_case_file *cases,
                      const struct m3_operator_case *the_case, struct m3_error *error);
/* How an operand of a case is drawn, and its form, without data. *found 0: it is not drawn. M3_BAD_INPUT. */
int m3_case_file_drawn(struct m3_tensor *tensor, struct m3_drawing *drawing, int *found,
                       const struct m3_operator_case *the_case, const char *operand, const char *name,
                       struct m3_error *error);
/* Tensor "i.NAME" of a file of cases or results under the name NAME; 0: there is none. */
int m3_numbered_tensor(struct m3_tensor *tensor, const struct m3_safetensors *file, int64_t i, const char *name);

#endif
