/* Judges a float tap row by row among honest implementations of its profile, without its inputs: for dumps that hold
 * layer outputs, logits or the last row alone. The implementations stand in an envelope or beside the truth
 * (variants/honest_rows.h writes them). SPEC 7.10. */
#ifndef M3_ORACLE_JUDGE_ROWS_ROWS_H
#define M3_ORACLE_JUDGE_ROWS_ROWS_H

#include "oracle/error/profile.h"
#include "oracle/error/tiers/verdict.h"
#include "oracle/judge/align.h"
#include "oracle/judge/pattern/pattern.h"

/* The tensors "<tap>.<name>". */
enum m3_row_field {
    M3_ROW_SIZE,        /* F64 [rows]: L2 of each row of the truth */
    M3_ROW_ERROR,       /* F32 [runs,rows]: |run - truth| / |truth| of each row */
    M3_ROW_RUNS,        /* BF16 [runs,rows,columns]: run - truth, of at most M3_ROW_COLUMNS evenly spaced columns */
    M3_ROW_OTHERS, /* F64 [rows]: choices that may be others, expected in each row (variants/honest_margins.h) */
    M3_ROW_FIELDS,
};
enum { M3_ROW_COLUMNS = 1024 };
extern const char *const m3_row_names[M3_ROW_FIELDS];

/* Is it the name of such a tensor? */
int m3_is_row_statistic(const char *name);

/* L2 of the finite numbers of n elements from `first` on, every step-th of them. */
double m3_row_size(const struct m3_tensor *tensor, int64_t first, int64_t n, int64_t step);
/* length / size; 0 for 0 / 0. */
double m3_row_share(double length, double size);

struct m3_row_verdict {
    enum m3_verdict verdict; /* not judged: `why` says why */
    const char *why; /* static text, or NULL */
    int64_t rows;
    /* NaN: not known. */
    double error, error_largest;        /* 75 % of the rows have at most this error; the largest of an honest run */
    double nearest, nearest_largest;    /* the same of the distance to the nearest honest run */
    double share;                       /* of what fails: above 1 it does */
    struct m3_pattern pattern;          /* of what is farther off than any row of an honest run */
    /* Only these rows of the sequence are off, and decided the verdict; 0: all count. Each is `times` as far off as any
     * honest run there. */
    int64_t first_bad, bad_rows;
    double times;
};

/* `file` NULL, or without the tap's tensors: not judged. Rows that follow from other choices are judged too, because
 * honest implementations choose for themselves. M3_INTERNAL: memory is short. */
int m3_judge_rows(struct m3_row_verdict *out, const struct m3_safetensors *file, const struct m3_matched *matched,
                  struct m3_error *error);

#endif
