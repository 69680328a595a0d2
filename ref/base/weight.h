/* Stored numbers: dtype codes, and a weight matrix that keeps its stored type.
 *
 * A weight never changes and is never expanded as a whole; operators expand the rows that they need. */
#ifndef M3_BASE_WEIGHT_H
#define M3_BASE_WEIGHT_H

#include <stddef.h>
#include <stdint.h>

enum m3_dtype {
    M3_F64,
    M3_F32,
    M3_F16,
    M3_BF16,
    M3_F8_E4M3,
    M3_F8_E8M0,
    M3_I64,
    M3_I32,
    M3_U8,
    M3_BOOL,
    M3_F4_E2M1,
    M3_I4,      /* of weights only: two codes in a byte; files hold them as U8 or I32 */
    M3_DTYPES,              /* the number of dtypes; also "no such dtype" */
};

/* How codes are packed and scaled (SPEC "Stored numbers"). A group is `group` columns of one row. */
enum m3_scaling {
    M3_UNSCALED,
    M3_SCALE_128X128,       /* F8_E4M3; F32 [ceil(rows/128), ceil(cols/128)], multipliers */
    M3_SCALE_MX32,          /* F8_E4M3; ue8m0 bytes [rows, ceil(cols/32)]: 2^(byte - 127), 255 is NaN */
    M3_SCALE_NVFP4,         /* F4_E2M1; F8_E4M3 [rows, cols/16], times `global`, or divided by it */
    M3_SCALE_MXFP4,         /* F4_E2M1; ue8m0 bytes [rows, cols/32] */
    M3_SCALE_INT4, /* I4, less a zero point; a row of codes is padded to 8; float scales [rows, cols/group] */
    M3_SCALE_INT4_PAIRS, /* I4 in two's complement: a byte holds one column of rows 2r and 2r + 1; the same scales */
};

struct m3_weight {
    const void *data; /* [rows, cols] of dtype, row-major, any alignment */
    const void *scales; /* NULL if unscaled; any alignment */
    const void *zeros; /* M3_SCALE_INT4: I32 [ceil(rows/8), cols/group], rows 8r .. 8r + 7 in the nibbles of a
                             * number, the first in the lowest; NULL: every zero point is 8 */
    enum m3_dtype dtype, scale_dtype; /* scale_dtype: of a 4-bit form */
    enum m3_scaling scaling;
    int64_t rows, cols; /* a vector is one row */
    int64_t group; /* of a 4-bit form */
    double global; /* of M3_SCALE_NVFP4 */
    int divides; /* by `global`: compressed-tensors; otherwise multiplied: ModelOpt */
    uint64_t id; /* unique in a model, > 0: the key under which a device may keep a copy */
};

/* One routed expert. */
struct m3_expert {
    struct m3_weight w1, w3, w2; /* gate [F,H], up [F,H], down [H,F] */
};

size_t m3_dtype_bytes(enum m3_dtype dtype); /* 0 for codes of 4 bits */
const char *m3_dtype_name(enum m3_dtype dtype); /* as safetensors spells it: "BF16" */
enum m3_dtype m3_dtype_named(const char *name); /* M3_DTYPES if unknown, or of 4 bits */

/* Is the weight a matrix of codes of 4 bits? */
int m3_weight_is_packed(const struct m3_weight *w);
/* The size of w->data. */
size_t m3_weight_bytes(const struct m3_weight *w);
/* The scale of a group of a packed weight, with `global` applied, and its zero point (0 for floats). Times a code of
 * NVFP4 it is exact unless it is divided; a quotient is rounded once to double. */
double m3_weight_group(const struct m3_weight *w, int64_t row, int64_t group, double *zero);

/* The value of one stored number, exact (I64 beyond 2^53 is rounded). `data` may be unaligned. */
double m3_decode(enum m3_dtype dtype, const void *data, int64_t index);

/* The bits of a number rounded to BF16, ties to even; it must be finite and far from the largest. */
uint16_t m3_bf16_of(float value);

/* One element as it is stored. Its value is (number - zero) * scale, rounded once where m3_expand_f32 says so. */
struct m3_stored {
    uint64_t code; /* the bits of the stored number; of a packed weight its 4 bits */
    double number; /* what they stand for */
    double scale, zero; /* 1 and 0 if there are none */
};
struct m3_stored m3_weight_stored(const struct m3_weight *w, int64_t row, int64_t col);

/* Columns [col, col + n) of one row, as numbers. Exact in double, unless a scale is a quotient: a code has at most 5
 * significant bits, a scale at most 28. The float form is the exact value rounded once, also of a quotient. */
void m3_expand_f64(double *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n);
void m3_expand_f32(float *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n);

#endif
