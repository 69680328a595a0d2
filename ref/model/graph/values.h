/* The values of a tap: of a pass, of a dump, recomputed, or of a caller. */
#ifndef M3_MODEL_GRAPH_VALUES_H
#define M3_MODEL_GRAPH_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/taps.h"

/* The possible errors of the elements of an array. */
struct m3_spread {
    double *error; /* maximum; NULL, with variance NULL: exact */
    double *variance; /* variance of the error of a correct implementation */
};

/* Rows of a tap, as far as they are known. */
struct m3_tap_values {
    enum m3_tap tap;
    int64_t layer, first, rows, width;
    union { /* [rows,width]; NULL: not there */
        void *data; /* `real` of an engine, or int32_t */
        double *values; /* of the double engine */
        int32_t *ids; /* of choices and counts, -2 for what I32 does not hold */
    };
    int64_t *numbers; /* [rows] which rows of the call, ascending; NULL: all, from `first` on. Keys and values after
                       * cached places have those too: rows -p0 .. -1 */
    unsigned char *usable; /* [rows] an operator can read the row; NULL: any */
    struct m3_spread off; /* of a coarser dump, or of a tap that was itself recomputed */
    int is_borrowed; /* all of this memory belongs to somebody else */
};

/* Frees the arrays. */
void m3_tap_values_free(struct m3_tap_values *values);
/* A copy with memory of its own, of the double engine's values or of ids. M3_INTERNAL. */
int m3_tap_values_copy(struct m3_tap_values *to, const struct m3_tap_values *from, struct m3_error *error);
/* Memory for its numbers, not filled. M3_INTERNAL. */
int m3_tap_values_room(struct m3_tap_values *values, size_t real_bytes, struct m3_error *error);
size_t m3_tap_number_bytes(enum m3_tap tap, size_t real_bytes);
/* Its numbers of the double engine, or its ids; NULL: it holds the others. */
const double *m3_tap_doubles(const struct m3_tap_values *values);
const int32_t *m3_tap_ids(const struct m3_tap_values *values);
/* The index of row `number` of the call; -1: it is not there. */
int64_t m3_tap_values_row(const struct m3_tap_values *values, int64_t number);
/* The same among `rows` rows with these numbers, ascending, NULL: from 0 on. */
int64_t m3_row_index(const int64_t *numbers, int64_t rows, int64_t number);

#endif
