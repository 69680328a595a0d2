/* Some rows of a long full dump, by which its operators are judged: the cost no longer grows with the length. Keys, values
 * and index keys stay whole, because every row reads those before it. SPEC 7.17. */
#ifndef M3_ORACLE_JUDGE_SAMPLE_SAMPLE_H
#define M3_ORACLE_JUDGE_SAMPLE_SAMPLE_H

#include "io/safetensors.h"
#include "model/files/case.h"
#include "model/model.h"

struct m3_sample {
    int64_t count, of; /* rows that are judged; all rows, T of the case */
    unsigned char *chosen; /* [of] */
};

/* By --rows: a number of rows, or a list such as "0:8,4090:4096,17". "all", and nothing:
 * every row. */
struct m3_sample_wish {
    int64_t count; /* 0: all, or those of the list */
    const char *list; /* NULL: none */
};
/* M3_USAGE: neither a number of rows nor a list; a range without rows. */
int m3_sample_parse(struct m3_sample_wish *wish, const char *text, struct m3_error *error);

/* How many rows of a case of T rows are judged: the wish's, or `of_long` of a long case if it wishes nothing. 0: all.
 * M3_USAGE: a range without rows, or beyond the case. */
int m3_sample_count(int64_t *count, const struct m3_sample_wish *wish, int64_t of_long, int64_t T,
                    struct m3_error *error);
/* Rows where operators fail: the first and last ones, the edges of blocks, those of clamped gates and of the nearest
 * choices, some row of each expert, and random ones, the same for the same dump. M3_USAGE: a row beyond the case; M3_INTERNAL.
 * Free it in any case. */
int m3_sample_choose(struct m3_sample *sample, const struct m3_sample_wish *wish, const struct m3_safetensors *dump,
                     const struct m3_model *model, int64_t T, struct m3_error *error);
/* *dump becomes the dump of these rows, which keeps the other open. M3_INTERNAL. */
int m3_sample_take(struct m3_safetensors **dump, const struct m3_sample *sample, struct m3_error *error);
void m3_sample_free(struct m3_sample *sample);

#endif
