/* Which rows of two dumps correspond. A dump may hold only some rows of the sequence; then its tensor `rows` numbers
 * them, and `vision.rows` numbers its patches. */
#ifndef M3_ORACLE_JUDGE_ALIGN_H
#define M3_ORACLE_JUDGE_ALIGN_H

#include <stdint.h>

#include "base/status.h"
#include "io/safetensors.h"

struct m3_ctx;
struct m3_tap_values;
struct m3_taint;
struct m3_logits;

struct m3_side {
    const struct m3_safetensors *file;
    /* I32 [R], strictly ascending from 0 or more: the rows of taps [T,...] and of taps [P,...]; NULL: all rows. */
    const struct m3_tensor *rows, *vision_rows;
    /* The same of keys, values and index keys, if the dump holds the cache that its rows read. */
    const struct m3_tensor *cache_rows;
};

/* One tap of both dumps. */
struct m3_matched {
    const struct m3_side *reference, *candidate;
    const struct m3_tensor *want, *got;
    int tap;                            /* enum m3_tap */
    int64_t layer;
    const struct m3_taint *taint;       /* rows of another computation are left out (taint.h); NULL: none */
    int drift_is_judged;                /* rows that only drift are judged too */
    const char *refused;                /* static: why `got` is not read as logits of another shape (logits.h) */
    const struct m3_logits *logits;     /* `got` was read as such; NULL: it is as in the file */
};

struct m3_row_pair {
    int64_t number;                     /* in the sequence */
    int64_t want, got;                  /* in the tensors */
};

struct m3_row_walk {
    const struct m3_tensor *want_rows, *got_rows;   /* NULL: a row's number is its index */
    int64_t want_count, got_count, want, got;
};

/* Returns M3_BAD_INPUT if the file is not a dump, or `rows` or `vision.rows` is malformed. */
int m3_side_begin(struct m3_side *dump, const struct m3_safetensors *file, struct m3_error *error);

#define M3_CACHE_ROWS "cache.rows"
#define M3_CACHE_SEQUENCES "cache.sequences"
/* Is it what a cache holds: keys and values as attention reads them, or index keys? */
int m3_is_cached(int tap);
/* The numbers of a tap's rows; NULL: all rows. */
const struct m3_tensor *m3_side_rows(const struct m3_side *side, int tap);
int64_t m3_row_number(const struct m3_tensor *rows, int64_t index);         /* rows NULL: the index itself */

/* The greatest number of ids that a set of the last dimension has; -1 of blocks is no id. */
int64_t m3_most_ids(const struct m3_tensor *sets);
int m3_holds_ids(const struct m3_tensor *tensor);                   /* I32 or I64 */
int m3_holds_floats(const struct m3_tensor *tensor);                /* F64, F32, F16 or BF16 */
/* Can an operator use this number? It must be within the range of float, so that no square overflows in double; only
 * scores of blocks may be -inf. */
int m3_is_operand(double x, int tap);
int64_t m3_id_at(const struct m3_tensor *ids, int64_t index);       /* exact, which m3_decode is not for I64 */

/* Reads values->rows rows of a tensor in the tap's shape: rows `at` (NULL: in order), which are rows `numbers` of the
 * call, ascending (NULL: in order). The caller frees the values, also on failure. M3_INTERNAL. */
int m3_read_rows(struct m3_tap_values *values, const struct m3_tensor *tensor, const int64_t *at,
                 const int64_t *numbers, const struct m3_ctx *ctx, struct m3_error *error);

/* Returns NULL, or why the two cannot be compared. Ranks must be above 0 and equal, as all dimensions except the
 * first. */
const char *m3_row_walk_begin(struct m3_row_walk *walk, const struct m3_matched *matched);
/* The next row that both hold, ascending; 0 at the end. */
int m3_row_walk_next(struct m3_row_walk *walk, struct m3_row_pair *pair);
int64_t m3_row_walk_count(struct m3_row_walk walk);         /* number of rows still to come */

#endif
