/* Cuts the operands of an operator out of a dump of a model: a file of cases as make.h writes it, with the values that
 * the operator had in that run. Activations are the dump's own; weights, sizes and parameters are those of the model
 * directory; ids, positions, mask and pictures are those of the case. SPEC 7.16. */
#ifndef M3_ORACLE_OPERATORS_FROM_DUMP_FROM_DUMP_H
#define M3_ORACLE_OPERATORS_FROM_DUMP_FROM_DUMP_H

#include "oracle/operators/operators.h"

struct m3_from_dump {
    const char *dump, *model;   /* files */
    const char *case_path;      /* NULL: the case that the dump's companions hold, if it has any */
    const char *taps;           /* one tap, or patterns: every tap of the dump that matches and that the operator
                                 * makes, with all its operands there */
    const char *rows;           /* rows to judge: "all", or numbers and ranges, "0,5,128:130"; NULL: all, a sample of
                                 * long calls */
    enum m3_dtype dtype;        /* of activations and weights; M3_DTYPES: as they are stored */
    int allow_large;            /* weights of more than 1 GB */
};

struct m3_from_dump_summary {
    int64_t cases;
    int64_t others, incomplete; /* taps that match, but are made by other operators; whose operands are not there */
    uint64_t bytes;
};

/* Writes the file. M3_USAGE: options, taps or rows that do not fit; M3_BAD_INPUT: the dump lacks an operand, or belongs
 * to another model or case; M3_ABSENT, M3_IO, M3_INTERNAL. Nothing is written on failure. `notes`: what could not be
 * checked. */
int m3_cases_from_dump(const struct m3_operator_row *op, const char *path, const struct m3_from_dump *options,
                       struct m3_from_dump_summary *summary, struct m3_error *notes, struct m3_error *error);

#endif
