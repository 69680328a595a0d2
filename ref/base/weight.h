/* Stored numbers: dtype codes, and a weight matrix that keeps its stored type.
 *
 * A weight never changes and is never expanded as a whole; operators expand the rows that they need. */
#ifndef M3_BASE_WEIGHT_H
#define M3_BASE_WEIGHT_H

#include <stddef.h>
#include <stdint.h>

/* clang-format off */
enum m3_dtype {
    M3_F64, M3_F32, M3_F16, M3_BF16, M3_F8_E4M3, M3_F8_E8M0, M3_I64, M3_I32, M3_U8, M3_BOOL,
    M3_DTYPES,              /* the number of dtypes; also "no such dtype" */
};
/* clang-format on */

/* How the scales of F8_E4M3 codes are laid out (SPEC "Stored numbers"). Both are multipliers. */
enum m3_scaling {
    M3_UNSCALED,
    M3_SCALE_128X128,       /* F32 [ceil(rows/128), ceil(cols/128)] */
    M3_SCALE_MX32,          /* ue8m0 bytes [rows, ceil(cols/32)]: 2^(byte - 127), 255 is NaN */
};

struct m3_weight {
    const void *data;       /* [rows, cols] of dtype, row-major, any alignment */
    const void *scales;     /* NULL if unscaled; any alignment */
    enum m3_dtype dtype;
    enum m3_scaling scaling;
    int64_t rows, cols;     /* a vector is one row */
    uint64_t id;            /* unique in a model, > 0: the key under which a device may keep a copy */
};

/* One routed expert. */
struct m3_expert {
    struct m3_weight w1, w3, w2;        /* gate [F,H], up [F,H], down [H,F] */
};

size_t m3_dtype_bytes(enum m3_dtype dtype);
const char *m3_dtype_name(enum m3_dtype dtype);             /* as safetensors spells it: "BF16" */
enum m3_dtype m3_dtype_named(const char *name);             /* M3_DTYPES if unknown */

/* The value of one stored number, exact (I64 beyond 2^53 is rounded). `data` may be unaligned. */
double m3_decode(enum m3_dtype dtype, const void *data, int64_t index);

/* The bits of a number rounded to BF16, ties to even; it must be finite and far from the largest. */
uint16_t m3_bf16_of(float value);

/* Columns [col, col + n) of one row, as numbers. Exact in double: an E4M3 code has 4 significant bits, a scale at most
 * 24. The float form is that value rounded once. */
void m3_expand_f64(double *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n);
void m3_expand_f32(float *out, const struct m3_weight *w, int64_t row, int64_t col, int64_t n);

#endif
