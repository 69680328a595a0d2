/* Logits that a program stored in another shape than the tap [T,V], where that leaves no doubt: more columns than the
 * vocabulary (padding, which is not judged), or a vector, which is the last row of the case. SPEC 7.0. */
#ifndef M3_ORACLE_JUDGE_LOGITS_H
#define M3_ORACLE_JUDGE_LOGITS_H

#include "oracle/judge/align.h"

struct m3_logits {
    struct m3_logits *next;
    struct m3_tensor tensor;    /* as the tap is; `data` in the dump, or in `copy` */
    struct m3_side side;        /* the dump's, with the row's number if it is a vector */
    const char *note;           /* static: what it was taken for */
    struct m3_tensor number;    /* of the row, in place of the dump's `rows` */
    int32_t row;
    void *copy;                 /* pages */
    size_t bytes;
};

/* The tap in a call. */
struct m3_logits_shape {
    int tap;                    /* of enum m3_tap */
    int64_t rows;               /* -1: not known */
    int64_t V;
};

/* Prepends to *list the logits as the tap has them, if `got`, from the dump of `side`, can be read like that; notes
 * say what was done. Otherwise *list stays, and *why (static text) says why a shape that nearly fits is refused; NULL:
 * nothing to say. M3_INTERNAL. */
int m3_logits_read(struct m3_logits **list, const char **why, const struct m3_tensor *got, const struct m3_side *side,
                   const struct m3_logits_shape *shape, struct m3_error *notes, struct m3_error *error);
void m3_logits_free(struct m3_logits *list); /* NULL is fine */

#endif
